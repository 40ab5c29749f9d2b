"""Tally: what a partition did since it was opened. An append counts nothing: that is worked out later."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate

from commitlog.compaction import CompactionReport

SYNC_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)  # seconds


@dataclass(frozen=True, slots=True)
class SyncMetrics:
    """How many syncs there were, and how long they took: of each bound in seconds, how many took no longer.

    What took longer than the last bound is in `count` only.
    """

    count: int
    seconds: float
    buckets: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class WriteMetrics:
    """What was written to a partition since this process opened it; `appends` are batches.

    What was trimmed went from the front, by retention or trim_before(). `producers` are those that the
    partition remembers, for what they append again.
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
    """The passes of compaction since this process opened a partition, and what there is to gain.

    `dirty_ratio` is the part of the bytes that no pass has seen, None if that cannot be told just now.
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
    """A partition at one moment. A process that only reads it does not know `written` and `compaction`; and
    there is no `compaction` of a partition that is not compacted.
    """

    topic: str
    partition: int
    start_offset: int
    next_offset: int
    durable_offset: int
    high_watermark: int
    segments: int
    size_bytes: int
    written: WriteMetrics | None = None
    compaction: CompactionMetrics | None = None


class Counters:
    """Counts for one partition, under its locks.

    Records and bytes are told by the end of the log: it moves by appends, and moved() hears of all else that
    moves it. A single append is one record, so that appends are the counted batches, and every record that is
    in none of them.
    """

    __slots__ = (
        "_batched_records", "_batches", "_first_offset", "_first_position", "_passes", "_rolls",
        "_sync_counts", "_sync_seconds", "_trimmed_bytes", "_trimmed_segments",
    )  # fmt: skip

    def __init__(self, next_offset: int, position: int) -> None:
        self._first_offset, self._first_position = next_offset, position
        self._batches = self._batched_records = 0
        self._rolls = 0
        self._trimmed_segments = self._trimmed_bytes = 0
        self._sync_counts = [0] * (len(SYNC_BOUNDS) + 1)
        self._sync_seconds = 0.0
        self._passes = CompactionMetrics(0, 0.0, 0, 0, 0, 0, None)

    def moved(self, offsets: int, size_bytes: int) -> None:
        """Note that the end of the log, and the place in its last segment, moved, but not by an append."""
        self._first_offset += offsets
        self._first_position += size_bytes

    def rolled(self, sealed_bytes: int) -> None:
        """Note that the next append, or the one that made the roll, is at the front of a segment."""
        self._rolls += 1
        self._first_position -= sealed_bytes

    def batched(self, batches: int, records: int) -> None:
        """Note batches that are no single records."""
        self._batches += batches
        self._batched_records += records

    @property
    def counts(self) -> tuple[int, ...]:
        """What an append or a roll changes: where an undone one sets it back to."""
        return self._first_offset, self._first_position, self._rolls, self._batches, self._batched_records

    @counts.setter
    def counts(self, counts: tuple[int, ...]) -> None:
        self._first_offset, self._first_position, self._rolls, self._batches, self._batched_records = counts

    def synced(self, seconds: float) -> None:
        """Note a sync."""
        self._sync_counts[bisect_left(SYNC_BOUNDS, seconds)] += 1
        self._sync_seconds += seconds

    def trimmed(self, segments: int, size_bytes: int) -> None:
        """Note segments that went from the front."""
        self._trimmed_segments += segments
        self._trimmed_bytes += size_bytes

    def compacted(self, report: CompactionReport) -> None:
        """Note a pass of compaction."""
        before = self._passes
        self._passes = CompactionMetrics(
            before.passes + 1,
            before.seconds + report.seconds,
            before.bytes_before + report.bytes_before,
            before.bytes_after + report.bytes_after,
            before.records_before + report.records_before,
            before.records_after + report.records_after,
            None,
        )

    @property
    def passes(self) -> CompactionMetrics:
        """The passes of compaction so far."""
        return self._passes

    def written(self, next_offset: int, position: int, producers: int) -> WriteMetrics:
        """Return what was written, with `_lock` held, by where the log ends now."""
        records = next_offset - self._first_offset
        return WriteMetrics(
            appends=self._batches + records - self._batched_records,
            records=records,
            bytes=position - self._first_position,
            rolls=self._rolls,
            syncs=self._syncs(),
            segments_trimmed=self._trimmed_segments,
            bytes_trimmed=self._trimmed_bytes,
            producers=producers,
        )

    def _syncs(self) -> SyncMetrics:
        counts = list(accumulate(self._sync_counts))
        return SyncMetrics(counts[-1], self._sync_seconds, tuple(zip(SYNC_BOUNDS, counts, strict=False)))
