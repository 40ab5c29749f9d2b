"""Reading a partition: the same code for its writer and for readers in other processes."""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from commitlog.batches.batch import RecordBatch
from commitlog.errors import (
    ClosedError,
    CorruptionError,
    OffsetOutOfRangeError,
    UnknownTopicError,
)
from commitlog.partitions import layout
from commitlog.partitions.counters import PartitionMetrics
from commitlog.partitions.latest import Latest, LatestBuilder
from commitlog.partitions.layout import Layout
from commitlog.progress import Progress
from commitlog.record import ConsumerRecord, Record, TopicPartition
from commitlog.repair import VerifiedPart, VerifyReport, verify_segments
from commitlog.segment import Segment
from commitlog.tasks import Signal

if TYPE_CHECKING:
    import pyarrow as pa

CHANGE_SECONDS = 5.0  # how long a reader waits for a writer in the middle of changing segments


Piece = TypeVar("Piece")
Answer = TypeVar("Answer")
ReadSegment = Callable[
    [Segment, int, int], Iterator[tuple[Piece, int]]
]  # pieces of [start, end), and their ends


class PartitionReader:
    """What can be read from a partition. Ranges are half-open and end at the high watermark.

    A range is fixed when a method is called; records appended later are not in it. wait_for() tells when
    there are more.
    """

    path: str
    name: str
    _closed = False

    # --- what a kind of partition has to tell

    def _layout(self) -> Layout:
        raise NotImplementedError

    @property
    def _changes(self) -> int:
        """A count that moves whenever segments change; odd while they do."""
        raise NotImplementedError

    @property
    def _truncations(self) -> int:
        """A count that moves whenever a truncation begins or ends."""
        raise NotImplementedError

    @property
    def start_offset(self) -> int:
        """The first offset that may be read."""
        raise NotImplementedError

    @property
    def next_offset(self) -> int:
        """The offset that the next append gets."""
        raise NotImplementedError

    @property
    def durable_offset(self) -> int:
        """Everything below it survives power loss."""
        raise NotImplementedError

    @property
    def high_watermark(self) -> int:
        """Readers stop here; next_offset where there are no replicas."""
        raise NotImplementedError

    def wait_for(self, offset: int, timeout: float | None = None) -> bool:
        """Wait until `offset` can be read; False if it cannot after `timeout` seconds."""
        raise NotImplementedError

    @property
    def closed(self) -> bool:
        """Whether it was closed, as it is when its topic is deleted."""
        return self._closed

    def watch(self, event: Signal) -> bool:
        """Set `event` at each append, until unwatch(); False where only looking tells of one."""
        return False

    def unwatch(self, event: Signal) -> None:
        """Leave `event` alone."""

    # --- reading

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments in order; the last one is active."""
        return self._layout().segments

    @property
    def size_bytes(self) -> int:
        """The size of all segments."""
        return sum(segment.size_bytes for segment in self.segments)

    def metrics(self) -> PartitionMetrics:
        """Tell where the partition stands, in plain numbers."""
        self._check_open()
        topic, _, number = self.name.rpartition("-")
        sizes = [segment.size_bytes for segment in self.segments]
        return PartitionMetrics(
            topic, int(number), self.start_offset, self.next_offset, self.durable_offset, self.high_watermark,
            len(sizes), sum(sizes),
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} [{self.start_offset}, {self.next_offset})>"

    def records(self, start: int | None = None, end: int | None = None) -> Iterator[Record]:
        """Iterate over the records with offsets in [start, end)."""
        low, high = self._range(start, end)
        return chain.from_iterable(self._pieces(low, high, Segment.record_runs))

    def consumer_records(
        self, name: TopicPartition, start: int | None = None, end: int | None = None
    ) -> Iterator[ConsumerRecord]:
        """Do the same, for a consumer that knows the partition by this name."""
        low, high = self._range(start, end)
        return chain.from_iterable(self._pieces(low, high, partial(Segment.record_runs, name=name)))

    def batches(
        self, start: int | None = None, end: int | None = None, max_bytes: int | None = None
    ) -> Iterator[RecordBatch]:
        """Iterate over batches cut to [start, end); stop after max_bytes, but not before the first."""
        low, high = self._range(start, end)
        found = filter(len, self._pieces(low, high, _batches_in))
        return found if max_bytes is None else _up_to(found, max_bytes)

    def combined_batches(self, start: int | None = None, end: int | None = None) -> Iterator[RecordBatch]:
        """Iterate over batches cut to [start, end); runs of single records are put together in memory."""
        low, high = self._range(start, end)
        return filter(len, self._pieces(low, high, _combined_in))

    def to_arrow(
        self, start: int | None = None, end: int | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Return [start, end) as an Arrow table over the mapped files; small batches are put together."""
        from commitlog.batches import arrow

        return arrow.table(self.batches(start, end), columns)

    def to_reader(
        self, start: int | None = None, end: int | None = None, columns: Sequence[str] | None = None
    ) -> pa.RecordBatchReader:
        """Do the same batch by batch, as they are asked for: for more than fits in memory."""
        from commitlog.batches import arrow

        return arrow.reader(self.batches(start, end), columns)

    def get(self, offset: int) -> Record | None:
        """Return the record at `offset`; None if compaction removed it."""
        self._check_open()
        if not self.start_offset <= offset < self.high_watermark:
            raise OffsetOutOfRangeError(self.name, offset, self.start_offset, self.high_watermark)
        return next(self.records(offset, offset + 1), None)

    def latest(self) -> Latest:
        """Return the current value of every key, over what compaction has cleaned and what it has not.

        It is made in memory, by reading everything once: what an application needs to restore its state.
        """
        while True:
            try:
                return self._latest()
            except OffsetOutOfRangeError:  # trimmed under the reader's feet
                self._check_open()

    def _latest(self) -> Latest:
        builder, start = LatestBuilder(), self.start_offset
        while True:
            # a pass may remove a record before it is read, for a later one that lies above `end`
            truncations, changes, end = self._truncations, self._changes, self.high_watermark
            builder.add(self._pieces(start, end, _combined_in))
            if self._changes == changes:
                return Latest(builder.finish(), (end,))
            start = end
            if self._truncations != truncations:  # some of what was read may be gone
                builder, start = LatestBuilder(), self.start_offset

    def offset_for_timestamp(self, timestamp: int) -> int | None:
        """Return the first offset whose record is as late as `timestamp`; None if there is none."""
        return self._ask(lambda segments: self._first_as_late(segments, timestamp))

    def _first_as_late(self, segments: Sequence[Segment], timestamp: int) -> int | None:
        end = self.high_watermark
        for segment in segments:
            if not _may_be_as_late(segment, timestamp):
                continue
            for batch in segment.batches_from(segment.position_of_time(timestamp), end):
                if batch.header.max_timestamp < timestamp or batch.base_offset >= end:
                    continue
                part = batch.slice(self.start_offset, end)
                late = (part.timestamps >= timestamp).nonzero()[0]
                if len(late):
                    return int(part.offsets[late[0]])
        return None

    def batch_start(self, offset: int) -> int:
        """Return the first offset of the stored batch that holds `offset`: a good place to cut a range."""
        return self._ask(lambda segments: layout.batch_start(segments, offset))

    def bytes_between(self, start: int, end: int) -> int:
        """Return the size on disk of [start, end), as far as that is whole stored batches; none is read."""
        return self._ask(lambda segments: layout.bytes_between(segments, start, end))

    def offset_after_bytes(self, start: int, max_bytes: int) -> int:
        """Return the end of the stored batches from `start` on that fit in `max_bytes`: of one at least."""
        end = self.high_watermark
        return self._ask(lambda segments: layout.offset_after_bytes(segments, start, end, max_bytes))

    def _ask(self, question: Callable[[Sequence[Segment]], Answer]) -> Answer:
        """Ask something about the segments, again where they were replaced meanwhile."""
        self._check_open()
        deadline: float | None = None
        while True:
            layout = self._layout()
            try:
                return question(layout.segments)
            except (FileNotFoundError, CorruptionError) as problem:
                deadline = self._wait_for_change(layout, problem, deadline)

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """Read everything and list what is damaged; `progress` is told bytes done and bytes in all."""
        return self.verify_part(0, None, progress).report

    def verify_part(self, start: int, end: int | None, progress: Progress | None = None) -> VerifiedPart:
        """Do that for the segments whose base_offset is in [start, end), so that others do the rest."""
        self._check_open()
        deadline: float | None = None
        while True:
            layout = self._layout()
            low = bisect_left(layout.bases, start)
            high = len(layout.bases) if end is None else bisect_left(layout.bases, end)
            following = layout.bases[high] if high < len(layout.bases) else None
            try:
                report = verify_segments(layout.segments[low:high], following, progress)
            except (FileNotFoundError, CorruptionError) as problem:
                deadline = self._wait_for_change(layout, problem, deadline)
                continue
            if report.ok or not self._changed_since(layout):
                # else what looks like damage may be a segment that was just removed
                return VerifiedPart(report, layout.bases[low] if low < high else following, following)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(self.name)

    # --- ranges

    def _range(self, start: int | None, end: int | None) -> tuple[int, int]:
        self._check_open()
        low, high = self.start_offset, self.next_offset
        start = low if start is None else start
        if not low <= start <= high:
            raise OffsetOutOfRangeError(self.name, start, low, high)
        mark = self.high_watermark
        return start, mark if end is None else min(end, mark)

    def _pieces(self, start: int, end: int, read: ReadSegment[Piece]) -> Iterator[Piece]:
        """Read [start, end) segment by segment, going on where segments were replaced meanwhile."""
        deadline: float | None = None
        while start < end:
            end = min(end, self.high_watermark)  # first: a log that was truncated may be growing again
            layout = self._layout()
            if start < self.start_offset:  # trimmed away under the reader's feet
                raise OffsetOutOfRangeError(self.name, start, self.start_offset, self.next_offset)
            number = layout.find(start)
            segment = layout.segments[number]
            following = layout.bases[number + 1] if number + 1 < len(layout.bases) else end
            try:
                for piece, after in read(segment, start, end):
                    start = after
                    yield piece
                end = min(end, self.high_watermark)  # truncated meanwhile
                if start < min(following, end):
                    reason = f"offsets [{start}, {min(following, end)}) are missing"
                    raise CorruptionError(segment.path, segment.size_bytes, reason)
            except (FileNotFoundError, CorruptionError) as problem:
                if start < self.start_offset:
                    raise OffsetOutOfRangeError(
                        self.name, start, self.start_offset, self.next_offset
                    ) from None
                deadline = self._wait_for_change(layout, problem, deadline)
                end = min(end, self.high_watermark)

    def _changed_since(self, layout: Layout) -> bool:
        """Say whether segments have changed; if they are just changing, wait for that."""
        deadline = time.monotonic() + CHANGE_SECONDS
        while self._changes % 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        return self._changes != layout.generation

    def _wait_for_change(self, layout: Layout, problem: Exception, deadline: float | None) -> float:
        """Decide what a failed read means: segments that are just being replaced, or damage."""
        deadline = time.monotonic() + CHANGE_SECONDS if deadline is None else deadline
        while time.monotonic() < deadline:
            changes = self._changes
            if changes != layout.generation and changes % 2 == 0:
                return deadline
            if changes % 2 == 0:
                break
            time.sleep(0.001)
        if isinstance(problem, FileNotFoundError):
            if not os.path.isdir(self.path):
                raise UnknownTopicError(self.name) from None
            raise CorruptionError(problem.filename, 0, "the file is missing") from None
        raise problem


def look_again_after(waited: float) -> float:
    """Return the seconds after which to look for an append of another process, having waited so long."""
    # measured: looking every 50 us sees one after 15 us (p50), every 1 ms after 0.6; then save the processor
    return 50e-6 if waited < 0.05 else 1e-3 if waited < 5 else 5e-3


def _may_be_as_late(segment: Segment, timestamp: int) -> bool:
    """Say whether a segment may hold a record as late as `timestamp`; a damaged one may: reading it tells."""
    try:
        return segment.active or segment.max_timestamp >= timestamp
    except CorruptionError:
        return True


def _batches_in(segment: Segment, start: int, end: int) -> Iterator[tuple[RecordBatch, int]]:
    for batch in segment.batches(start, end):
        yield batch.slice(start, end), batch.next_offset


def _combined_in(segment: Segment, start: int, end: int) -> Iterator[tuple[RecordBatch, int]]:
    for batch, _ in segment.combined_batches(start, end):
        yield batch.slice(start, end), batch.next_offset


def _up_to(batches: Iterator[RecordBatch], max_bytes: int) -> Iterator[RecordBatch]:
    taken = 0
    for batch in batches:
        yield batch
        taken += batch.size_bytes
        if taken >= max_bytes:
            return
