"""Runs tests that are coroutines."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec

Given = ParamSpec("Given")
LIMIT_S = 60


def in_a_loop(test: Callable[Given, Coroutine[Any, Any, None]]) -> Callable[Given, None]:
    """Make a test of a coroutine function: it runs in an event loop of its own, for a limited time."""

    @functools.wraps(test)
    def run(*args: Given.args, **named: Given.kwargs) -> None:
        async def limited() -> None:
            async with asyncio.timeout(LIMIT_S):
                await test(*args, **named)

        asyncio.run(limited())

    return run


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks run until a condition holds."""
    while not condition():
        await asyncio.sleep(0.001)


async def outcome(awaited: Awaitable[Any]) -> Any:
    """What is returned, or what is raised."""
    try:
        return await awaited
    except BaseException as error:
        return error
