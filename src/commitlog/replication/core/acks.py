"""Acknowledgements: the appends that wait until every in-sync replica has their records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from commitlog.errors import CommitLogError, LeadershipLostError, NotEnoughReplicasAfterAppendError
from commitlog.record import TopicPartition
from commitlog.replication.core.replica import Standing

Acknowledged = Callable[[CommitLogError | None], None]


@dataclass(frozen=True, slots=True, eq=False)
class Awaited:
    """An append that waits: the records below `end_offset`, appended in `leader_epoch`."""

    name: TopicPartition
    end_offset: int
    leader_epoch: int
    timeout_ms: int
    deadline_ms: int
    done: Acknowledged

    def verdict(self, standing: Standing | None) -> CommitLogError | bool:
        """Return True if the records are acknowledged, False if undecided, or why they never will be.

        The epoch must still be that of the append: a leader in between may have put other records there.
        """
        if standing is None or standing.leader_epoch != self.leader_epoch:
            return LeadershipLostError(self.name, standing and standing.leader)
        if standing.high_watermark >= self.end_offset:
            return True
        isr_size, needed = standing.isr_size, standing.min_insync_replicas
        return NotEnoughReplicasAfterAppendError(self.name, isr_size, needed) if isr_size < needed else False

    def settle(self, verdict: CommitLogError | bool) -> bool:
        """Call `done` if the verdict is final; return whether it was."""
        if verdict is False:
            return False
        self.done(None if verdict is True else verdict)
        return True


class Acknowledgements:
    """The waiting appends, by partition. Its lock is taken last, and nothing is called with it held."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_name: dict[TopicPartition, list[Awaited]] = {}

    def __contains__(self, name: TopicPartition) -> bool:
        return name in self._by_name

    def add(self, awaited: Awaited) -> None:
        """Add a waiting append."""
        with self._lock:
            self._by_name.setdefault(awaited.name, []).append(awaited)

    def take_decided(
        self, name: TopicPartition, standing: Standing | None
    ) -> list[tuple[Awaited, CommitLogError | bool]]:
        """Remove and return the appends to a partition that are decided, with their verdicts."""
        with self._lock:
            waiting = [(one, one.verdict(standing)) for one in self._by_name.pop(name, [])]
            left = [one for one, verdict in waiting if verdict is False]
            if left:
                self._by_name[name] = left
            return [(one, verdict) for one, verdict in waiting if verdict is not False]

    def names(self) -> list[TopicPartition]:
        """Return the partitions with waiting appends."""
        with self._lock:
            return list(self._by_name)

    def take_expired(self, now_ms: int) -> list[Awaited]:
        """Remove and return the appends whose deadline has passed."""
        if not self._by_name:
            return []
        with self._lock:
            expired = [one for some in self._by_name.values() for one in some if now_ms >= one.deadline_ms]
            for one in expired:
                self._by_name[one.name].remove(one)
                if not self._by_name[one.name]:
                    del self._by_name[one.name]
            return expired
