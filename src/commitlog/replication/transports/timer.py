"""Timer: one thread for deadlines and repeated calls."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

from commitlog.errors import ClosedError, ForkedError

_logger = logging.getLogger("commitlog.replication")
_FEW = 64


class Entry:
    """A scheduled call, which may be cancelled."""

    __slots__ = ("_timer", "call")

    def __init__(self, timer: Timer, call: Callable[[], None]) -> None:
        self._timer = timer
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Cancel the call, unless it has started."""
        if self.call is not None:
            self.call = None
            self._timer.one_was_cancelled()


class Timer:
    """Makes scheduled calls one after another in its own thread; their errors are logged."""

    def __init__(self, name: str) -> None:
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, Entry]] = []
        self._count = itertools.count()
        self._cancelled = 0  # roughly how many entries of the heap are cancelled
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def after(self, milliseconds: float, call: Callable[[], None]) -> Entry:
        """Make a call once, after this time."""
        entry = Entry(self, call)
        with self._changed:
            item = (time.monotonic() + milliseconds / 1000, next(self._count), entry)
            heapq.heappush(self._heap, item)
            if self._heap[0] is item:
                self._changed.notify()
        return entry

    def every(self, milliseconds: float, call: Callable[[], None]) -> None:
        """Make a call repeatedly, each time this long after it returned."""

        def again() -> None:
            try:
                _called(call)
            finally:
                self.after(milliseconds, again)

        self.after(milliseconds, again)

    def one_was_cancelled(self) -> None:
        """Count it; rebuild the heap once most entries are cancelled, as answers come before deadlines."""
        self._cancelled += 1
        if self._cancelled > _FEW and self._cancelled * 2 > len(self._heap):
            with self._changed:
                self._heap = [item for item in self._heap if item[2].call is not None]
                heapq.heapify(self._heap)
                self._cancelled = 0

    def stop(self) -> None:
        """End the thread after its current call."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._heap = []

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._ended and (wait := self._seconds_to_next()) != 0:
                    self._changed.wait(wait)
                if self._ended:
                    return
                entry = heapq.heappop(self._heap)[2]
            call, entry.call = entry.call, None
            if call is not None:
                _called(call)

    def _seconds_to_next(self) -> float | None:
        return max(self._heap[0][0] - time.monotonic(), 0) if self._heap else None


def _called(call: Callable[[], None]) -> None:
    try:
        call()
    except (ClosedError, ForkedError):  # it merely came too late
        pass
    except Exception:  # the calls after it must still be made
        _logger.exception("a scheduled call failed")
