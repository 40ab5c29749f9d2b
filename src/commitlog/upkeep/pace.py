"""Pace: how fast a pass of compaction may go, and whether it is to end."""

from __future__ import annotations

import time

from commitlog.background import Signal


class Pace:
    """Holds a pass to cleaner_io_max_bytes_per_second, and ends it when it is cancelled."""

    def __init__(self, bytes_per_second: int, cancelled: Signal) -> None:
        self._rate = bytes_per_second
        self._cancelled = cancelled
        self._began = time.monotonic()
        self._spent = 0

    def spend(self, size_bytes: int) -> None:
        """Account for bytes read or written; waits if they come too fast."""
        self._spent += size_bytes
        if self._rate > 0:
            ahead = self._spent / self._rate - (time.monotonic() - self._began)
            self._cancelled.wait(max(ahead, 0.0))
        if self._cancelled.is_set():
            raise CancelledError


class CancelledError(Exception):
    """The pass was cancelled; what it has put in place stays."""
