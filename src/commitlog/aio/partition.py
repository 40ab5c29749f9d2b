"""Partition: appends, reads and follows a partition from an event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from commitlog.aio.reading import INLINE, Following, Pieces, Read
from commitlog.aio.turns import give_way
from commitlog.aio.watcher import watcher
from commitlog.aio.workers import Workers, whole, workers
from commitlog.batches.batch import RecordBatch
from commitlog.compaction import CompactionReport
from commitlog.config import IsolationLevel, reads_committed
from commitlog.errors import CommitLogError
from commitlog.partition import Partition as BlockingPartition
from commitlog.partitions.latest import Latest
from commitlog.partitions.reader import LogReader
from commitlog.record import ArrowData, Buffer, Headers, Record
from commitlog.repair import VerifyReport

if TYPE_CHECKING:
    import pyarrow as pa

Item = TypeVar("Item")

# An append of less runs in the event loop, where it takes 2 to 50 us; a worker costs about 80 us.
INLINE_BYTES = 64 * 1024
_BATCH_BYTES = 1 << 20  # of batches that are read at a time
_RECORD_BYTES, _HEADER_BYTES = 64, 128  # the most that a small record, and a batch, take besides their data
_MOST_PARTITIONS = 16  # that are looked at before an append to any of them


class ReadablePartition:
    """The coroutines of a partition that read. `blocking` is the partition that they use."""

    def __init__(self, partition: LogReader, by: Workers = workers) -> None:
        self.blocking = partition
        self._workers = by

    def __repr__(self) -> str:
        return f"<aio.{repr(self.blocking).removeprefix('<')}"

    @property
    def name(self) -> str:
        """The topic and the number."""
        return self.blocking.name

    # --- reading what is there

    def records(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        isolation_level: IsolationLevel = "read_committed",
    ) -> Pieces[Record]:
        """Iterate over the records with offsets in [start, end)."""
        begin = partial(self.blocking.records, start, end, isolation_level=isolation_level)
        return Pieces(begin, by=self._workers)

    def __aiter__(self) -> Pieces[Record]:
        return self.records()

    def batches(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        isolation_level: IsolationLevel = "read_committed",
    ) -> Pieces[RecordBatch]:
        """Iterate over batches, cut to [start, end)."""
        begin = partial(self.blocking.batches, start, end, isolation_level=isolation_level)
        return Pieces(begin, 1, self._workers)

    def to_reader(
        self,
        start: int | None = None,
        end: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        isolation_level: IsolationLevel = "read_committed",
    ) -> Pieces[pa.RecordBatch]:
        """Iterate over [start, end) as Arrow batches, for more than fits in memory."""
        begin = partial(self.blocking.to_reader, start, end, columns, isolation_level=isolation_level)
        return Pieces(lambda: iter(begin()), 1, self._workers)

    async def to_arrow(
        self,
        start: int | None = None,
        end: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        isolation_level: IsolationLevel = "read_committed",
    ) -> pa.Table:
        """Return [start, end) as an Arrow table over the mapped files; small batches are combined."""
        return await self._workers.in_a_worker(
            self.blocking.to_arrow, start, end, columns, isolation_level=isolation_level
        )

    async def get(self, offset: int, *, isolation_level: IsolationLevel = "read_committed") -> Record | None:
        """Return the record at `offset`; None if compaction removed it, it was aborted, or it is a marker."""
        return await self._workers.in_a_worker(self.blocking.get, offset, isolation_level=isolation_level)

    async def latest(self, *, isolation_level: IsolationLevel = "read_committed") -> Latest:
        """Return the current value of every key, whether or not compaction has run."""
        return await self._workers.in_a_worker(self.blocking.latest, isolation_level=isolation_level)

    async def offset_for_timestamp(
        self, timestamp: int, *, isolation_level: IsolationLevel = "read_committed"
    ) -> int | None:
        """Return the first offset whose record is not earlier than `timestamp`; None if there is none."""
        return await self._workers.in_a_worker(
            self.blocking.offset_for_timestamp, timestamp, isolation_level=isolation_level
        )

    async def count_records(
        self, start: int, end: int | None = None, *, isolation_level: IsolationLevel = "read_committed"
    ) -> int:
        """Return how many records a reader finds in [start, end), from the headers of their batches alone."""
        return await self._workers.in_a_worker(
            self.blocking.count_records, start, end, isolation_level=isolation_level
        )

    async def lag(self, offset: int, *, isolation_level: IsolationLevel = "read_committed") -> int:
        """Return how far a reader at `offset` is behind, in records if few are left, otherwise in offsets."""
        return await self._workers.in_a_worker(self.blocking.lag, offset, isolation_level=isolation_level)

    async def verify(self) -> VerifyReport:
        """Check everything and list the damage."""
        return await self._workers.in_a_worker(self.blocking.verify)

    # --- reading what arrives

    async def wait_for(self, offset: int, *, isolation_level: IsolationLevel = "read_committed") -> None:
        """Wait until `offset` can be read, or the partition is closed."""
        committed = reads_committed(isolation_level)
        await watcher.wait([(self.blocking, offset)], committed=committed, until_truncated=False)

    def follow(
        self, from_offset: int | None = None, *, isolation_level: IsolationLevel = "read_committed"
    ) -> Following[Record]:
        """Iterate over the records from an offset on (by default from now on), and over those that arrive."""
        end_offset = partial(self.blocking.end_offset, isolation_level)

        def read(offset: int, wanted: int) -> tuple[list[Record], int]:
            end = end_offset()
            found: list[Record] = []
            try:
                rows = self.blocking.records(offset, end, isolation_level=isolation_level)
                found.extend(islice(rows, wanted))
            except CommitLogError:
                if not found:
                    raise
                return found, found[-1].offset + 1
            if len(found) == wanted:
                return found, found[-1].offset + 1
            return found, min(end, end_offset())  # it may have been truncated meanwhile

        return self._following(from_offset, read, lambda one: one.offset + 1, isolation_level)

    def follow_batches(
        self, from_offset: int | None = None, *, isolation_level: IsolationLevel = "read_committed"
    ) -> Following[RecordBatch]:
        """Iterate over batches from an offset on (by default from now on), and over those that arrive."""
        end_offset = partial(self.blocking.end_offset, isolation_level)

        def read(offset: int, wanted: int) -> tuple[list[RecordBatch], int]:
            end, found, size = end_offset(), list[RecordBatch](), 0
            try:
                for batch in self.blocking.combined_batches(offset, end, isolation_level=isolation_level):
                    found.append(batch)
                    size += batch.unpacked_bytes
                    if size >= _BATCH_BYTES:
                        return found, batch.next_offset
            except CommitLogError:
                if not found:
                    raise
                return found, found[-1].next_offset
            return found, min(end, end_offset())

        return self._following(from_offset, read, lambda one: one.next_offset, isolation_level)

    def _following(
        self,
        offset: int | None,
        read: Read[Item],
        end_of: Callable[[Item], int],
        isolation_level: IsolationLevel,
    ) -> Following[Item]:
        end_offset = partial(self.blocking.end_offset, isolation_level)
        if offset is None and self.blocking.is_at_hand:
            offset = end_offset()
        begin = partial(self._workers.in_a_worker, end_offset)
        return Following(offset, begin, self._waiting(isolation_level), read, end_of, self._workers)

    def _waiting(self, isolation_level: IsolationLevel) -> Callable[[int], Awaitable[bool]]:
        """Return what a follower waits with: see Following."""
        return partial(self._wait, isolation_level)

    async def _wait(self, isolation_level: IsolationLevel, offset: int) -> bool:
        partition = self.blocking
        await watcher.wait([(partition, offset)], committed=reads_committed(isolation_level))
        if partition.has_ended and partition.end_offset(isolation_level) <= offset:
            partition.check_goes_on()
        size = partition.known_bytes_after(offset)
        return size is not None and size <= INLINE_BYTES


class Partition(ReadablePartition):
    """The coroutines of commitlog.Partition."""

    blocking: BlockingPartition

    def __init__(self, partition: BlockingPartition) -> None:
        super().__init__(partition)

    @property
    def start_offset(self) -> int:
        """The first offset that may be read."""
        return self.blocking.start_offset

    @property
    def next_offset(self) -> int:
        """The offset of the next append."""
        return self.blocking.next_offset

    @property
    def durable_offset(self) -> int:
        """Everything below it survives power loss."""
        return self.blocking.durable_offset

    @property
    def high_watermark(self) -> int:
        """Readers stop here; next_offset if there are no replicas."""
        return self.blocking.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction, or the high watermark: where readers stop."""
        return self.blocking.last_stable_offset

    @property
    def has_transactions(self) -> bool:
        """Whether there ever was a transaction here; markers then take offsets, too."""
        return self.blocking.has_transactions

    # --- appending

    async def append(
        self,
        value: Buffer | None,
        *,
        key: Buffer | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
        sync: bool = False,
    ) -> int:
        """Append a record and return its offset once readers see it, or with `sync` once it is durable."""
        given: dict[str, Any] = {"key": key, "headers": headers, "timestamp": timestamp}
        if not sync:
            await give_way()
            if is_quick([self.blocking], size_of([value], [key], [headers])):
                return self.blocking.append(value, **given)
        return await whole(self.blocking.append, value, sync=sync, **given)

    async def append_many(
        self,
        values: Iterable[Buffer | None],
        *,
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[Headers] | None = None,
        timestamps: Iterable[int] | None = None,
        sync: bool = False,
    ) -> range:
        """Append up to 1,048,576 records as one batch, all or nothing, and return their offsets."""
        given: dict[str, Any] = {"keys": keys, "headers": headers, "timestamps": timestamps}
        if not sync:
            await give_way()
            if is_quick([self.blocking], size_of(values, keys, headers)):
                return self.blocking.append_many(values, **given)
        return await whole(self.blocking.append_many, values, sync=sync, **given)

    async def append_arrow(self, data: ArrowData, *, sync: bool = False) -> range:
        """Append the columns value, key, timestamp and headers of Arrow data (all but value are optional)."""
        return await whole(self.blocking.append_arrow, data, sync=sync)

    async def sync(self) -> None:
        """Make everything appended so far durable."""
        await whole(self.blocking.sync)

    async def roll(self) -> None:
        """Seal the active segment, unless it is empty, and start another."""
        await whole(self.blocking.roll)

    async def trim_before(self, offset: int) -> None:
        """Remove the records below `offset`; a file is removed once all its records are."""
        await whole(self.blocking.trim_before, offset)

    async def truncate_from(self, offset: int) -> None:
        """Remove the records and leader epochs from `offset` on; the next append gets `offset`."""
        await whole(self.blocking.truncate_from, offset)

    async def compact(self) -> CompactionReport:
        """Keep only the latest record of each key, below the active segment."""
        return await whole(self.blocking.compact)


def is_quick(
    partitions: Sequence[BlockingPartition],
    size_bytes: int | None,
    *,
    compression: str = "topic",
    numbered: bool = False,
) -> bool:
    """Say whether an append of this size to some of these partitions takes no longer than handing it to a
    worker, and does not wait for anybody. `compression` and `numbered` are the producer's.
    """
    if size_bytes is None or size_bytes > INLINE_BYTES or len(partitions) > _MOST_PARTITIONS:
        return False
    first = partitions[0]
    return (
        first.writable
        and not first.shared  # another process may hold the lock
        and (first.config.compression_type if compression == "topic" else compression) == "none"
        and all(one.appends_at_once(size_bytes + _HEADER_BYTES, numbered=numbered) for one in partitions)
    )


def size_of(
    values: Iterable[Buffer | None],
    keys: Iterable[Buffer | None] | None,
    headers: Iterable[Headers] | None,
) -> int | None:
    """Return the most bytes that some records take; None if they are many, or if that is not known."""
    if not isinstance(values, list | tuple) or len(values) > INLINE:
        return None
    size = len(values) * _RECORD_BYTES
    for column in (values, keys):
        if column is not None:
            if not isinstance(column, list | tuple):
                return None
            size += sum(len(one) for one in column if isinstance(one, bytes | bytearray | memoryview))
    if headers is not None:
        if not isinstance(headers, list | tuple) or not all(isinstance(one, list | tuple) for one in headers):
            return None
        try:
            size += sum(
                _RECORD_BYTES + len(name) + len(value or b"") for one in headers for name, value in one
            )
        except (TypeError, ValueError):  # the append refuses them
            return None
    return size
