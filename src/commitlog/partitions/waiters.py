"""Waiters: wakes the threads of this process that wait for records of a partition."""

from __future__ import annotations

from collections.abc import Callable

from commitlog.tasks import Condition, Signal


class Waiters:
    """Lets threads wait for appends; the thread that appends calls notify() if `count` is not 0."""

    __slots__ = ("_changed", "_watchers", "count")

    def __init__(self) -> None:
        self._changed = Condition()
        self._watchers: set[Signal] = set()
        self.count = 0  # of threads, signals and nodes that must be notified

    def wait_until(self, reached: Callable[[], bool], timeout: float | None) -> None:
        """Wait until `reached` returns True, at most `timeout` seconds."""
        with self._changed.mutex:
            self.count += 1
            try:
                self._changed.wait_for(reached, timeout)
            finally:
                self.count -= 1

    def watch(self, signal: Signal) -> None:
        """Set `signal` at each notify(), until unwatch()."""
        with self._changed.mutex:
            self._watchers.add(signal)
            self.count += 1

    def unwatch(self, signal: Signal) -> None:
        """Stop setting `signal`."""
        with self._changed.mutex:
            self._watchers.discard(signal)
            self.count -= 1

    def attended(self, more: int) -> None:
        """Change the number of nodes that are called after every append by `more`."""
        with self._changed.mutex:
            self.count += more

    def notify(self) -> None:
        """Wake all waiting threads and set all watching signals."""
        with self._changed.mutex:
            self._changed.notify_all()
            for signal in self._watchers:
                signal.set()
