"""Turns of an event loop: how long a task may go on before others get to run."""

from __future__ import annotations

import asyncio
import threading
import time

LONGEST_TURN = 0.001  # seconds of calls that return without waiting
NOT_BEGUN = "It had not begun, and nothing was changed."


class _Turn(threading.local):
    """The turn of the event loop that runs in this thread."""

    began: float | None = None  # when the first quick call was made in it


_turn = _Turn()


async def give_way() -> None:
    """Let other tasks run, if quick calls have taken up the loop for LONGEST_TURN.

    An `await` of something that is there already does not suspend its task: a loop of such calls would keep
    all other tasks waiting.
    """
    if _turn.began is None:
        _turn.began = time.monotonic()
        asyncio.get_running_loop().call_soon(_end)
    elif time.monotonic() - _turn.began >= LONGEST_TURN:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError as cancelled:
            cancelled.add_note(NOT_BEGUN)
            raise
        finally:
            _end()


def _end() -> None:
    _turn.began = None
