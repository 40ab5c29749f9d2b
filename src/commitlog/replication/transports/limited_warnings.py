"""LimitedWarnings: logs warnings about strangers, at most one a second."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

_logger = logging.getLogger("commitlog.replication")
_SECONDS = 1.0


class LimitedWarnings:
    """Logs the first warning at once, then at most one a second: the last one, and how many were skipped."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._quiet_until = 0.0
        self._left_out = 0
        self._last = ""

    def warn(self, text: str) -> None:
        """Log a warning, or count it as skipped."""
        with self._lock:
            if self._clock() < self._quiet_until:
                self._left_out += 1
                self._last = text
                return
            line = self._line(text)
        _logger.warning("%s", line)

    def catch_up(self) -> None:
        """Log the skipped warnings, once the second is over."""
        with self._lock:
            if not self._left_out or self._clock() < self._quiet_until:
                return
            self._left_out -= 1
            line = self._line(self._last)
        _logger.warning("%s", line)

    def _line(self, text: str) -> str:
        others, self._left_out = self._left_out, 0
        self._quiet_until = self._clock() + _SECONDS
        return f"{text} (and {others} more in the last second)" if others else text
