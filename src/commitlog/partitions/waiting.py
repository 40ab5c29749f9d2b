"""WaitablePartition: who waits for records of this process, and how they are told."""

from __future__ import annotations

from commitlog.partitions.reader import PartitionReader
from commitlog.tasks import Condition, Signal


class WaitablePartition(PartitionReader):
    """Lets threads wait for appends; whoever appends calls _notify() if there are any `_waiters`."""

    def _make_locks(self) -> None:
        self._readable = Condition()
        self._watchers: set[Signal] = set()
        self._waiters = 0  # those who wait and those who watch

    @property
    def _has_ended(self) -> bool:
        """Whether nothing is written any more."""
        raise NotImplementedError

    def wait_for(self, offset: int, timeout: float | None = None) -> bool:
        """Wait until `offset` can be read; False if it cannot after `timeout` seconds, or when closed."""
        if self.high_watermark > offset:
            return True
        with self._readable.mutex:
            self._waiters += 1
            try:
                self._readable.wait_for(lambda: self.high_watermark > offset or self._has_ended, timeout)
            finally:
                self._waiters -= 1
        return self.high_watermark > offset

    def watch(self, event: Signal) -> bool:
        """Set `event` at each append and when the high watermark moves, until unwatch()."""
        with self._readable.mutex:
            self._watchers.add(event)
            self._waiters += 1
        return True

    def unwatch(self, event: Signal) -> None:
        """Leave `event` alone."""
        with self._readable.mutex:
            self._watchers.discard(event)
            self._waiters -= 1

    def _notify(self) -> None:
        with self._readable.mutex:
            self._readable.notify_all()
            for event in self._watchers:
                event.set()
