"""Throttle: limits the bytes per second sent to replicas that are not in sync."""

from __future__ import annotations

from threading import Lock


class Throttle:
    """Allows `bytes_per_second`, with bursts of at most a second's worth; -1 means no limit.

    A piece that cannot be divided may exceed what is left; the next one then waits longer. The lock is taken
    last, and nothing is called with it held.
    """

    def __init__(self, bytes_per_second: int, now_ms: int) -> None:
        self._lock = Lock()
        self._rate = bytes_per_second
        self._left = float(max(bytes_per_second, 0))
        self._filled_ms = now_ms

    def change(self, bytes_per_second: int, now_ms: int) -> None:
        """Change the rate."""
        with self._lock:
            self._rate = bytes_per_second
            self._left = min(self._left, 0.0)
            self._filled_ms = now_ms

    def allowed(self, max_bytes: int, now_ms: int) -> int:
        """Return how many bytes may be sent now."""
        if self._rate < 0:
            return max_bytes
        with self._lock:
            passed_ms = now_ms - self._filled_ms
            self._left = min(float(self._rate), self._left + self._rate * passed_ms / 1000)
            self._filled_ms = now_ms
            return max(0, min(max_bytes, int(self._left)))

    def spent(self, size: int) -> None:
        """Count bytes that were sent."""
        if self._rate >= 0:
            with self._lock:
                self._left -= size
