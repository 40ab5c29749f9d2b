"""Watcher: looks at a log again and again, and tells what happened between two looks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from commitlog.errors import CommitLogError
from commitlog.log import CommitLog
from commitlog.metrics import LogMetrics
from commitlog.partitions.counters import PartitionMetrics


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition, and how fast it grows."""

    topic: str
    partition: int
    start_offset: int
    high_watermark: int
    records_per_second: float
    bytes_per_second: float
    segments: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GroupRow:
    """How far a group is in a partition, and how fast it goes on."""

    group: str
    state: str
    members: int
    topic: str
    partition: int
    committed: int | None
    lag: int | None
    records_per_second: float


@dataclass(frozen=True, slots=True)
class View:
    """A log at one moment."""

    path: str
    partitions: tuple[PartitionRow, ...]
    groups: tuple[GroupRow, ...]


class Watcher:
    """Rates are those since the look before; the first look has none."""

    def __init__(self, log: CommitLog, clock: Callable[[], float] = monotonic) -> None:
        self._log = log
        self._clock = clock
        self._at: float | None = None
        self._ends: dict[tuple[str, int], int] = {}  # of partitions
        self._committed: dict[tuple[str, str, int], int] = {}

    def look(self) -> View:
        """Look once more."""
        self._log.release_removed()
        now, names, metrics = self._clock(), set(self._log.topics()), self._log.metrics()
        seconds = None if self._at is None else now - self._at
        partitions = [self._partition(one, seconds) for one in metrics.partitions if one.topic in names]
        view = View(self._log.path, tuple(partitions), tuple(self._groups(metrics, seconds)))
        self._at = now
        self._ends = {(one.topic, one.partition): one.next_offset for one in metrics.partitions}
        self._committed = {
            (one.group, one.topic, one.partition): one.committed
            for one in view.groups
            if one.committed is not None
        }
        return view

    def _partition(self, one: PartitionMetrics, seconds: float | None) -> PartitionRow:
        before = self._ends.get((one.topic, one.partition), one.next_offset)
        records = max(one.next_offset - before, 0)  # it may have been truncated
        size_bytes = self._bytes_between(one, before) if records else 0
        return PartitionRow(
            one.topic, one.partition, one.start_offset, one.high_watermark,
            _rate(records, seconds), _rate(size_bytes, seconds), one.segments, one.size_bytes,
        )  # fmt: skip

    def _bytes_between(self, one: PartitionMetrics, start: int) -> int:
        with suppress(CommitLogError, OSError):  # trimmed or deleted meanwhile
            partition = self._log.topic(one.topic).partition(one.partition)
            found: int = partition.bytes_between(max(start, one.start_offset), one.next_offset)
            return found
        return 0

    def _groups(self, metrics: LogMetrics, seconds: float | None) -> list[GroupRow]:
        rows = []
        for group in metrics.groups:
            for one in group.partitions:
                place = (group.group_id, one.topic, one.partition)
                moved = (
                    0 if one.committed is None else one.committed - self._committed.get(place, one.committed)
                )
                rows.append(
                    GroupRow(
                        group.group_id, group.state, len(group.members), one.topic, one.partition,
                        one.committed, one.lag, _rate(max(moved, 0), seconds),
                    )
                )  # fmt: skip
        return rows


def _rate(amount: int, seconds: float | None) -> float:
    return amount / seconds if seconds else 0.0
