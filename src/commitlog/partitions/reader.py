"""LogReader: reads a partition, by the same code in its writer, other processes and other machines."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from commitlog import notebook
from commitlog.aborted_index import AbortedRanges
from commitlog.batches.batch import RecordBatch
from commitlog.batches.format import BatchHeader
from commitlog.batches.markers import first_offset_of
from commitlog.bells import Bell
from commitlog.config import IsolationLevel, reads_committed
from commitlog.errors import CommitLogError, CorruptionError, OffsetOutOfRangeError
from commitlog.partitions.counters import PartitionMetrics
from commitlog.partitions.latest import Latest, LatestBuilder
from commitlog.partitions.layout import Layout, batch_start, bytes_between, offset_after_bytes
from commitlog.partitions.sources import Source
from commitlog.progress import Progress
from commitlog.record import ConsumerRecord, Record, TopicPartition
from commitlog.repair import VerifiedPart, VerifyReport, verify_segments
from commitlog.segment import MOST_RUN_BYTES, Segment, counted
from commitlog.tasks import Signal

if TYPE_CHECKING:
    import pyarrow as pa


_FEW_OFFSETS = 10_000  # up to here, lag() counts records


class LogReader:
    """Reads a partition, wherever it is. Ranges are half-open and end at the last stable offset: readers see
    the records of committed transactions, and those outside transactions. With
    isolation_level="read_uncommitted" they end at the high watermark, and show open and aborted
    transactions, too.

    A range is fixed when the method is called; it does not include later records. wait_for() waits for those.
    """

    def __init__(self, name: str, source: Source) -> None:
        self.name = name
        self._source = source

    # --- offsets

    @property
    def start_offset(self) -> int:
        """The first offset that may be read."""
        return self._source.start_offset

    @property
    def next_offset(self) -> int:
        """The offset of the next append."""
        return self._source.next_offset

    @property
    def durable_offset(self) -> int:
        """Everything below it survives power loss."""
        return self._source.durable_offset

    @property
    def high_watermark(self) -> int:
        """Readers stop here; next_offset if there are no replicas."""
        return self._source.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction, or the high watermark: where readers stop."""
        return self._source.last_stable_offset

    @property
    def has_transactions(self) -> bool:
        """Whether there ever was a transaction here; markers then take offsets, too."""
        return self._source.has_transactions

    def end_offset(self, isolation_level: IsolationLevel = "read_committed") -> int:
        """Return where readers of this level stop: at last_stable_offset or at high_watermark."""
        return self.last_stable_offset if reads_committed(isolation_level) else self.high_watermark

    def wait_for(
        self,
        offset: int,
        timeout: float | None = None,
        *,
        isolation_level: IsolationLevel = "read_committed",
    ) -> bool:
        """Wait until `offset` can be read; False after `timeout` seconds, or when closed."""
        return self._source.wait_for(offset, timeout, committed=reads_committed(isolation_level))

    @property
    def closed(self) -> bool:
        """Whether the partition is closed, for instance because its topic was deleted."""
        return self._source.closed

    @property
    def has_ended(self) -> bool:
        """Whether no more records will arrive: it is closed, has failed, or belongs to a forked parent."""
        return self._source.has_ended

    def check_goes_on(self) -> None:
        """Raise the reason why no more records will arrive, if there is one."""
        self._source.check_goes_on()

    @property
    def is_at_hand(self) -> bool:
        """Whether its offsets and segments are known without a look at the files, or a request."""
        return self._source.is_at_hand

    def watch(self, signal: Signal) -> bool:
        """Set `signal` at each append, until unwatch(); False if appends can only be polled for."""
        return self._source.watch(signal)

    def unwatch(self, signal: Signal) -> None:
        """Stop setting `signal`."""
        self._source.unwatch(signal)

    def bell(self) -> Bell | None:
        """Return the bell that another process rings at each append; None if there is none."""
        return self._source.bell()

    def known_bytes_after(self, offset: int) -> int | None:
        """Return the stored bytes from `offset` to the end, if one of the latest reads ended there; otherwise
        None, because one would have to look at the files, or because they are compressed.
        """
        if not self.is_at_hand or self._source.compresses:
            return None
        try:
            return self._source.layout().segments[-1].unread_bytes(offset)
        except CommitLogError:  # it is on another machine, or gone
            return None

    # --- reading

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments in order; the last is the active one."""
        return self._source.layout().segments

    @property
    def size_bytes(self) -> int:
        """The total size of the segments."""
        return sum(segment.size_bytes for segment in self.segments)

    def metrics(self) -> PartitionMetrics:
        """Return the partition's offsets and sizes."""
        self._source.check_open()
        topic, _, number = self.name.rpartition("-")
        sizes = [segment.size_bytes for segment in self.segments]
        return PartitionMetrics(
            topic, int(number), self.start_offset, self.next_offset, self.durable_offset, self.high_watermark,
            self.last_stable_offset, len(sizes), sum(sizes),
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} [{self.start_offset}, {self.next_offset})>"

    def _repr_html_(self) -> str:
        last = max(self.start_offset, self.last_stable_offset - notebook.ROWS)
        return notebook.records(f"{self!r}: the last records", self.records(last))

    def __iter__(self) -> Iterator[Record]:
        return self.records()

    def records(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        isolation_level: IsolationLevel = "read_committed",
    ) -> Iterator[Record]:
        """Iterate over the records with offsets in [start, end)."""
        committed = reads_committed(isolation_level)
        low, high = self._source.bounds(start, end, committed=committed)
        return chain.from_iterable(self._source.pieces(low, high, Segment.record_runs, committed=committed))

    def consumer_records(
        self,
        name: TopicPartition,
        start: int | None = None,
        end: int | None = None,
        have_read: Callable[[int], None] = lambda end: None,
        *,
        isolation_level: IsolationLevel = "read_committed",
    ) -> Iterator[ConsumerRecord]:
        """Iterate over the records in [start, end) as a consumer gets them from the partition `name`.

        have_read() is called whenever more has been read into memory, with the offset up to which it reaches.
        """

        def runs(
            segment: Segment, start: int, end: int, aborted: AbortedRanges | None
        ) -> Iterator[tuple[Iterable[ConsumerRecord], int]]:
            for records, after in segment.record_runs(start, end, aborted, name):
                have_read(after)
                yield records, after

        committed = reads_committed(isolation_level)
        low, high = self._source.bounds(start, end, committed=committed)
        return chain.from_iterable(self._source.pieces(low, high, runs, committed=committed))

    def batches(
        self,
        start: int | None = None,
        end: int | None = None,
        max_bytes: int | None = None,
        *,
        isolation_level: IsolationLevel = "read_committed",
    ) -> Iterator[RecordBatch]:
        """Iterate over batches, cut to [start, end); stop after max_bytes, but not before the first batch."""
        committed = reads_committed(isolation_level)
        low, high = self._source.bounds(start, end, committed=committed)
        found = filter(len, self._source.pieces(low, high, _batches_in, committed=committed))
        return found if max_bytes is None else _up_to(found, max_bytes)

    def stored_batches(self, start: int | None = None, end: int | None = None) -> Iterator[RecordBatch]:
        """Iterate over all stored batches that hold [start, end), whole: also markers, and transactions that
        are open or aborted.
        """
        low, high = self._source.bounds(start, end, committed=False)
        return self._source.pieces(low, high, _stored_in, committed=False)

    def combined_batches(
        self,
        start: int | None = None,
        end: int | None = None,
        most_bytes: int = MOST_RUN_BYTES,
        *,
        isolation_level: IsolationLevel = "read_committed",
    ) -> Iterator[RecordBatch]:
        """Iterate over batches cut to [start, end); small ones are joined in memory, up to `most_bytes`."""
        committed = reads_committed(isolation_level)
        low, high = self._source.bounds(start, end, committed=committed)
        read = partial(_combined_in, most_bytes=most_bytes)
        return filter(len, self._source.pieces(low, high, read, committed=committed))

    def to_arrow(
        self,
        start: int | None = None,
        end: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        isolation_level: IsolationLevel = "read_committed",
    ) -> pa.Table:
        """Return [start, end) as an Arrow table over the mapped files; small batches are combined."""
        from commitlog.batches import arrow

        return arrow.table(self.combined_batches(start, end, isolation_level=isolation_level), columns)

    def to_reader(
        self,
        start: int | None = None,
        end: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        isolation_level: IsolationLevel = "read_committed",
    ) -> pa.RecordBatchReader:
        """Return [start, end) as a stream of Arrow batches, for more than fits in memory."""
        from commitlog.batches import arrow

        return arrow.reader(self.combined_batches(start, end, isolation_level=isolation_level), columns)

    def get(self, offset: int, *, isolation_level: IsolationLevel = "read_committed") -> Record | None:
        """Return the record at `offset`; None if compaction removed it, it was aborted, or it is a marker."""
        self._source.check_open()
        end = self.end_offset(isolation_level)
        if not self.start_offset <= offset < end:
            raise OffsetOutOfRangeError(self.name, offset, self.start_offset, end)
        return next(self.records(offset, offset + 1, isolation_level=isolation_level), None)

    def count_records(
        self, start: int, end: int | None = None, *, isolation_level: IsolationLevel = "read_committed"
    ) -> int:
        """Return how many records a reader finds in [start, end), from the headers of their batches alone.

        Offsets that markers, aborted transactions and compaction take do not count.
        """
        committed = reads_committed(isolation_level)
        low, high = self._source.bounds(max(start, self.start_offset), end, committed=committed)
        return sum(map(len, self._source.pieces(low, high, _batches_in, committed=committed)))

    def lag(self, offset: int, *, isolation_level: IsolationLevel = "read_committed") -> int:
        """Return how far a reader at `offset` is behind, in records if few are left, otherwise in offsets.

        Where there are transactions, markers take offsets as well: a reader that only has these before it is
        not behind.
        """
        end = self.end_offset(isolation_level)
        left = max(end - max(offset, self.start_offset), 0)
        if 0 < left <= _FEW_OFFSETS and self.has_transactions:
            return self.count_records(offset, end, isolation_level=isolation_level)
        return left

    def latest(self, *, isolation_level: IsolationLevel = "read_committed") -> Latest:
        """Return the current value of every key, whether or not compaction has run.

        For an application that restores its state. It reads everything once and builds the result in memory.
        """
        committed = reads_committed(isolation_level)
        while True:
            try:
                return self._latest(committed=committed)
            except OffsetOutOfRangeError:  # trimmed while it was being read
                self._source.check_open()

    def _latest(self, *, committed: bool) -> Latest:
        builder, start = LatestBuilder(), self.start_offset
        while True:
            # a pass may remove a record before it is read, because of a later one above `end`
            truncations, changes = self._source.truncations, self._source.changes
            end = self.last_stable_offset if committed else self.high_watermark
            builder.add(self._source.pieces(start, end, _combined_in, committed=committed))
            if self._source.changes == changes:
                return Latest(builder.finish(), (end,))
            start = end
            if self._source.truncations != truncations:  # some of what was read may be gone
                builder, start = LatestBuilder(), self.start_offset

    def offset_for_timestamp(
        self, timestamp: int, *, isolation_level: IsolationLevel = "read_committed"
    ) -> int | None:
        """Return the first offset whose record is not earlier than `timestamp`; None if there is none.

        With "read_committed" it is below the last stable offset; an aborted record may be found all the same.
        """
        end = self.end_offset(isolation_level)
        return self._source.ask(lambda layout: self._first_as_late(layout.segments, timestamp, end))

    def _first_as_late(self, segments: Sequence[Segment], timestamp: int, end: int) -> int | None:
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
        """Return the first offset of the stored batch that holds `offset`, a good place to cut a range."""
        return self._source.ask(lambda layout: batch_start(layout.segments, offset))

    def bytes_between(self, start: int, end: int) -> int:
        """Return the size on disk of [start, end), rounded to whole stored batches; no record is read."""
        return self._source.ask(lambda layout: bytes_between(layout.segments, start, end))

    def offset_after_bytes(
        self, start: int, max_bytes: int, *, isolation_level: IsolationLevel = "read_committed"
    ) -> int:
        """Return the end of the stored batches from `start` on that fit into `max_bytes`, at least one."""
        end = self.end_offset(isolation_level)
        return self._source.ask(lambda layout: offset_after_bytes(layout.segments, start, end, max_bytes))

    def whole_transactions_end(self, start: int, end: int | None = None, *, compacted: bool = False) -> int:
        """Return where a range from `start` on may end without cutting a transaction: the first such offset
        from `end` on, or the last one up to the last stable offset, if that comes first or `end` is None.

        Reads the headers of [start, end), and then those until no transaction is open. In a compacted topic
        records no longer show that they are transactional: there, it reads those of all that follows.
        """
        while True:
            try:
                return self._whole_transactions_end(start, end, compacted=compacted)
            except OffsetOutOfRangeError:  # trimmed while it was being read
                self._source.check_open()

    def _whole_transactions_end(self, start: int, end: int | None, *, compacted: bool) -> int:
        stable = self.last_stable_offset
        if not self.has_transactions:
            return stable if end is None else min(end, stable)
        low = max(start, self.start_offset)
        last = self._last_whole(low, stable)
        if end is None or end >= last:
            return last
        found, undecided = end, set[int]()
        for header, first_offset in self._source.pieces(low, last, _headers_in, committed=False):
            if header.base_offset >= found and not (undecided or compacted):
                break
            if first_offset is not None:
                undecided.discard(header.producer_id)
                if first_offset < found <= header.base_offset:
                    found = header.next_offset
            elif header.is_transactional:
                undecided.add(header.producer_id)
        return found

    def _last_whole(self, low: int, stable: int) -> int:
        """Return the last offset in [low, stable] that lies in no transaction.

        One that is decided may have records on both sides of the stable offset, where an open one begins.
        """
        end, after = stable, self.high_watermark
        while low < end < after:
            headers = self._source.pieces(end, after, _headers_in, committed=False)
            firsts = [first_offset for _, first_offset in headers if first_offset is not None]
            end, after = min([end, *firsts]), end
        return max(end, min(low, stable))

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """Check everything and list the damage; `progress` is called with the bytes done and the total."""
        return self.verify_part(0, None, progress).report

    def verify_part(self, start: int, end: int | None, progress: Progress | None = None) -> VerifiedPart:
        """Verify only the segments whose base_offset is in [start, end), so that work can be divided."""

        def verified(layout: Layout) -> tuple[Layout, VerifiedPart]:
            low = bisect_left(layout.bases, start)
            high = len(layout.bases) if end is None else bisect_left(layout.bases, end)
            following = layout.bases[high] if high < len(layout.bases) else None
            report = verify_segments(layout.segments[low:high], following, progress)
            return layout, VerifiedPart(report, layout.bases[low] if low < high else following, following)

        while True:
            layout, found = self._source.ask(verified)
            # apparent damage may be a segment that was just removed
            if found.report.ok or not self._source.changed_since(layout):
                return found


def _may_be_as_late(segment: Segment, timestamp: int) -> bool:
    """Say whether a segment may hold a record as late as `timestamp`; a damaged one may."""
    try:
        return segment.active or segment.max_timestamp >= timestamp
    except CorruptionError:
        return True


def _batches_in(
    segment: Segment, start: int, end: int, aborted: AbortedRanges | None
) -> Iterator[tuple[RecordBatch, int]]:
    for batch in segment.batches(start, end):
        kept = counted(batch, aborted)
        yield kept.slice(start, end) if len(kept) else kept, batch.next_offset


def _stored_in(
    segment: Segment, start: int, end: int, aborted: AbortedRanges | None
) -> Iterator[tuple[RecordBatch, int]]:
    for batch in segment.batches(start, end):
        yield batch, batch.next_offset


def _headers_in(
    segment: Segment, start: int, end: int, aborted: AbortedRanges | None
) -> Iterator[tuple[tuple[BatchHeader, int | None], int]]:
    """Iterate over headers, those of markers with the first offset of their transaction."""
    for position, header in segment.headers(segment.position_of(start)):
        if header.base_offset >= end:
            return
        first_offset = None
        if header.is_marker:
            marker = next(segment.batches_from(position))
            first_offset = first_offset_of(marker.header, marker.raw, 0)
        yield (header, first_offset), header.next_offset


def _combined_in(
    segment: Segment,
    start: int,
    end: int,
    aborted: AbortedRanges | None,
    most_bytes: int = MOST_RUN_BYTES,
) -> Iterator[tuple[RecordBatch, int]]:
    for batch, after in segment.combined_batches(start, end, most_bytes=most_bytes, aborted=aborted):
        yield batch.slice(start, end) if len(batch) else batch, after


def _up_to(batches: Iterator[RecordBatch], max_bytes: int) -> Iterator[RecordBatch]:
    taken = 0
    for batch in batches:
        yield batch
        taken += batch.size_bytes
        if taken >= max_bytes:
            return
