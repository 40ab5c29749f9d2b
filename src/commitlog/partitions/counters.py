"""Counters of what a partition did since it was opened. An append counts nothing; that is derived later."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate

from commitlog.compaction import CompactionReport

SYNC_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)  # seconds


@dataclass(frozen=True, slots=True)
class SyncMetrics:
    """The number and the total duration of syncs; `buckets` pairs a bound in seconds with the number of syncs
    that took no longer. Syncs above the last bound are only in `count`.
    """

    count: int
    seconds: float
    buckets: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class WriteMetrics:
    """What this process has written to a partition since it opened it; `appends` counts batches.

    Retention and trim_before() count as trimmed. `producers` is the number of producers remembered.
    """

    appends: int
    records: int
    bytes: int
    rolls: int
    syncs: SyncMetrics
    segments_trimmed: int
    bytes_trimmed: int
    producers: int


@dataclass(frozen=True, slots=True)
class CompactionMetrics:
    """The compaction passes since this process opened a partition.

    `dirty_ratio` is the fraction of the bytes that no pass has read; None if it is not known right now.
    """

    passes: int
    seconds: float
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int
    dirty_ratio: float | None


@dataclass(frozen=True, slots=True)
class PartitionMetrics:
    """A partition at one moment. In a process that only reads it, `written` and `compaction` are None; so is
    `compaction` if the topic is not compacted.
    """

    topic: str
    partition: int
    start_offset: int
    next_offset: int
    durable_offset: int
    high_watermark: int
    last_stable_offset: int
    segments: int
    size_bytes: int
    written: WriteMetrics | None = None
    compaction: CompactionMetrics | None = None


class Counters:
    """The counters of one partition, guarded by its locks.

    Records and bytes follow from the end of the log: appends move it, and moved() is called for everything
    else that does. A single append is one record, so the number of appends is that of the counted batches
    plus that of the records outside them.
    """

    __slots__ = (
        "_batched_records", "_batches", "_first_offset", "_first_position", "_rolls", "_sync_counts",
        "_sync_seconds", "_trimmed_bytes", "_trimmed_segments", "passes",
    )  # fmt: skip

    def __init__(self, next_offset: int, position: int) -> None:
        self._first_offset, self._first_position = next_offset, position
        self._batches = self._batched_records = 0
        self._rolls = 0
        self._trimmed_segments = self._trimmed_bytes = 0
        self._sync_counts = [0] * (len(SYNC_BOUNDS) + 1)
        self._sync_seconds = 0.0
        self.passes = CompactionMetrics(0, 0.0, 0, 0, 0, 0, None)

    def moved(self, offsets: int, size_bytes: int) -> None:
        """Note that the end of the log, and of its last segment, moved other than by an append."""
        self._first_offset += offsets
        self._first_position += size_bytes

    def rolled(self, sealed_bytes: int) -> None:
        """Note a roll: the next append goes to the start of a segment."""
        self._rolls += 1
        self._first_position -= sealed_bytes

    def batched(self, batches: int, records: int) -> None:
        """Note batches other than single records."""
        self._batches += batches
        self._batched_records += records

    @property
    def counts(self) -> tuple[int, ...]:
        """What an append or a roll changes, to restore it if that is undone."""
        return self._first_offset, self._first_position, self._rolls, self._batches, self._batched_records

    @counts.setter
    def counts(self, counts: tuple[int, ...]) -> None:
        self._first_offset, self._first_position, self._rolls, self._batches, self._batched_records = counts

    def synced(self, seconds: float) -> None:
        """Note a sync."""
        self._sync_counts[bisect_left(SYNC_BOUNDS, seconds)] += 1
        self._sync_seconds += seconds

    def trimmed(self, segments: int, size_bytes: int) -> None:
        """Note segments that were removed from the front."""
        self._trimmed_segments += segments
        self._trimmed_bytes += size_bytes

    def compacted(self, report: CompactionReport) -> None:
        """Note a compaction pass."""
        before = self.passes
        self.passes = CompactionMetrics(
            before.passes + 1,
            before.seconds + report.seconds,
            before.bytes_before + report.bytes_before,
            before.bytes_after + report.bytes_after,
            before.records_before + report.records_before,
            before.records_after + report.records_after,
            None,
        )

    def written(self, next_offset: int, position: int, producers: int) -> WriteMetrics:
        """Return what was written, given where the log ends now; with `lock` held."""
        records, counts = next_offset - self._first_offset, list(accumulate(self._sync_counts))
        buckets = tuple(zip(SYNC_BOUNDS, counts, strict=False))
        return WriteMetrics(
            appends=self._batches + records - self._batched_records,
            records=records,
            bytes=position - self._first_position,
            rolls=self._rolls,
            syncs=SyncMetrics(counts[-1], self._sync_seconds, buckets),
            segments_trimmed=self._trimmed_segments,
            bytes_trimmed=self._trimmed_bytes,
            producers=producers,
        )
