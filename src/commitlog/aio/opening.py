"""Opening: what `aio.open()` returns, to be awaited or used with `async with`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, Protocol, TypeVar

from commitlog.aio.workers import Workers, end_of, finish, workers


class Closable(Protocol):
    """What has to be closed."""

    async def close(self) -> None:
        """Close it."""


class BlockingClosable(Protocol):
    """What has to be closed, in a worker."""

    def close(self) -> None:
        """Close it."""


Opened = TypeVar("Opened", bound=Closable)
Blocking = TypeVar("Blocking", bound=BlockingClosable)


class Opening(Generic[Opened]):
    """Something to open: `await` it, or use it with `async with`, which closes it at the end."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, Opened]]) -> None:
        self._make = make
        self._opened: Opened | None = None

    def __await__(self) -> Generator[Any, Any, Opened]:
        return self._make().__await__()

    async def __aenter__(self) -> Opened:
        self._opened = await self._make()
        return self._opened

    async def __aexit__(self, *_: object) -> None:
        assert self._opened is not None
        await self._opened.close()


async def opened(call: Callable[[], Blocking], by: Workers = workers) -> Blocking:
    """Open something in a worker. If the coroutine is cancelled meanwhile, it is closed again."""
    job = by.begin(call)
    try:
        return await end_of(job)
    except asyncio.CancelledError:
        if job.future.done() and job.future.exception() is None:
            await finish(by.begin(job.future.result().close))
        raise
