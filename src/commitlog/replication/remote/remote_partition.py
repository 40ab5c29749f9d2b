"""RemotePartition: a partition on other machines, read and appended to as if it were here."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from commitlog.aborted_index import AbortedRanges
from commitlog.batches.encode import IN_A_SEGMENT, EncodedBatch, Rules, encode, numbered
from commitlog.batches.format import NO_PRODUCER
from commitlog.config import MIB, IsolationLevel, TopicConfig, reads_committed
from commitlog.errors import (
    BatchTooLargeError,
    CommitLogError,
    ConnectionFailedError,
    CorruptionError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    ReplicationTimeoutError,
)
from commitlog.partitions.layout import Layout
from commitlog.partitions.producer_state import SEQUENCES
from commitlog.partitions.reader import LogReader
from commitlog.partitions.sources import Answer, Piece, ReadSegment
from commitlog.partitions.state import now_ms
from commitlog.record import ArrowData, Buffer, Headers, Record, TopicPartition
from commitlog.replication.messages import (
    Acks,
    Append,
    Appended,
    Bytes,
    FindOffset,
    FoundOffset,
    Message,
    Read,
    ReadBatches,
)
from commitlog.replication.remote.fetched import FetchedSegment
from commitlog.replication.remote.router import PASSING, Deadline, Pending, Router
from commitlog.tasks import Signal

Kind = TypeVar("Kind")
_READ_BYTES = MIB
_LONG_POLL_MS = 10_000
_GRACE_MS = 1000  # beyond the waiting time of a read, for its answer


class RemoteSource:
    """A partition as seen through its nodes. Each property asks the leader for its current value."""

    def __init__(self, router: Router, name: TopicPartition, topic_id: str) -> None:
        self.name = str(name)
        self.router = router
        self.topic_partition = name
        self.topic_id = topic_id
        # the highest ends so far, of committed records and of all: what is below can be read, or will be
        self._seen = {True: 0, False: 0}

    def _standing(self, any_replica: bool | None = None) -> ReadBatches:
        return self.read(0, 0, 0, self.router.deadline(), any_replica)

    @property
    def start_offset(self) -> int:
        """The first offset that may be read."""
        return self._standing().start_offset

    @property
    def next_offset(self) -> int:
        """The offset of the next append."""
        return self._standing().next_offset

    @property
    def durable_offset(self) -> int:
        """The offset below which everything survives a power loss of the leader."""
        return self._standing().durable_offset

    @property
    def high_watermark(self) -> int:
        """The offset at which readers stop."""
        return self._standing().high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The offset at which readers of committed records stop."""
        return self._standing().last_stable_offset

    @property
    def has_transactions(self) -> bool:
        """Whether there ever was a transaction."""
        return self._standing().has_transactions

    def wait_for(self, offset: int, timeout: float | None = None, *, committed: bool = True) -> bool:
        """Wait until `offset` can be read; False after `timeout` seconds."""
        if timeout is None:
            grace_ms = self.router.timeout_ms
            while True:
                deadline = Deadline(_LONG_POLL_MS + grace_ms)
                if self._is_readable(offset, _LONG_POLL_MS, deadline, committed=committed):
                    return True
        whole = Deadline(timeout * 1000)
        while True:
            wait_ms = min(whole.left_ms, _LONG_POLL_MS)
            try:
                deadline = Deadline(wait_ms + _GRACE_MS)
                if self._is_readable(offset, wait_ms, deadline, committed=committed):
                    return True
            except (*PASSING, ConnectionFailedError):  # no leader, but there may be one before the timeout
                self.check_open()
            if whole.left_ms == 0:
                return False

    def _is_readable(self, offset: int, wait_ms: int, deadline: Deadline, *, committed: bool) -> bool:
        answer = self.read(offset, 0, wait_ms, deadline, committed=committed)
        return answer.end_for(committed=committed) > offset

    # --- reading

    def bounds(self, start: int | None, end: int | None, *, committed: bool) -> tuple[int, int]:
        """Return the current bounds for [start, end); OffsetOutOfRangeError if `start` is outside the log."""
        standing = self._standing()
        if start is not None and start > standing.next_offset and self.any_replica:
            standing = self._standing(any_replica=False)  # the leader may have more
        low, high, mark = standing.start_offset, standing.next_offset, standing.end_for(committed=committed)
        start = low if start is None else start
        if not low <= start <= high:
            raise OffsetOutOfRangeError(self.name, start, low, high)
        return start, mark if end is None else min(end, max(mark, self._seen[committed]))

    def pieces(self, start: int, end: int, read: ReadSegment[Piece], *, committed: bool) -> Iterator[Piece]:
        """Read [start, end), requesting the next piece before yielding the current one."""
        ahead: Pending | None = None
        while start < end:
            answer = ahead.wait() if ahead is not None else None
            if not isinstance(answer, ReadBatches) or not answer.data.size:
                answer = self._read_again(start, committed=committed)
            known, after = min(end, answer.end_for(committed=committed)), answer.end_offset
            ahead = self._ask_ahead(after, committed=committed) if after < known else None
            segment = FetchedSegment(self.name, answer.data.read(), start)
            before = start
            for piece, after in read(segment, start, known, aborted_of(answer, committed=committed)):
                start = after
                yield piece
            if start == before:
                raise CorruptionError(self.name, 0, f"the batches read for offset {start} do not contain it")

    def _ask_ahead(self, offset: int, *, committed: bool) -> Pending | None:
        router, any_replica = self.router, self.any_replica
        deadline = router.deadline()
        address, _ = router.place_of(self.topic_partition, self.topic_id, deadline, any_replica=any_replica)
        if address is None:
            return None
        message = Read(self.topic_partition, self.topic_id, offset, _READ_BYTES, 0, any_replica, committed)
        return router.ask_soon(address, message, deadline.try_ms)

    def _read_again(self, offset: int, *, committed: bool) -> ReadBatches:
        """Read from an offset that was readable before; a new leader may not know yet that it still is."""
        deadline = self.router.deadline()
        any_replica: bool | None = None
        while True:
            wait_ms = _LONG_POLL_MS if any_replica is False or not self.any_replica else 0
            answer = self.read(offset, _READ_BYTES, wait_ms, deadline, any_replica, committed=committed)
            if answer.end_for(committed=committed) > offset:
                return answer
            any_replica = False  # that replica is behind; the leader has the offset, or will have it
            if deadline.left_ms == 0:
                raise ReplicationTimeoutError(self.name, deadline.timeout_ms)
            self.router.pause(deadline)

    def read(
        self,
        offset: int,
        max_bytes: int,
        max_wait_ms: int,
        deadline: Deadline,
        any_replica: bool | None = None,
        *,
        committed: bool = True,
    ) -> ReadBatches:
        """Return up to `max_bytes` of batches from `offset` on, and the partition's offsets."""
        from_any = self.any_replica if any_replica is None else any_replica

        def make(try_ms: int) -> Message:
            wait_ms = min(max_wait_ms, max(try_ms - 500, 0))
            return Read(name, self.topic_id, offset, max_bytes, wait_ms, from_any, committed)

        name = self.topic_partition
        answer = self.router.ask_for(name, self.topic_id, make, deadline, any_replica=from_any)
        found = _expected(ReadBatches, answer)
        self._note(found)
        return found

    def _note(self, found: ReadBatches) -> None:
        for committed, seen in self._seen.items():
            self._seen[committed] = max(seen, found.end_for(committed=committed))

    @property
    def any_replica(self) -> bool:
        """Whether reads may go to a follower."""
        return self.router.read_from == "any"

    # --- what only a process with the files can know

    def layout(self) -> Layout:
        """Raise CommitLogError: there are no segments here."""
        raise CommitLogError(f"{self.name} is on another machine; its segments are not accessible from here")

    def ask(self, question: Callable[[Layout], Answer]) -> Answer:
        """Raise CommitLogError: there are no segments here."""
        return question(self.layout())

    changes = truncations = 0

    def changed_since(self, layout: Layout) -> bool:
        """Return False: changes of the layout are not visible here."""
        return False

    def watch(self, signal: Signal) -> bool:
        """Return False: appends cannot be watched, only polled."""
        return False

    def unwatch(self, signal: Signal) -> None:
        """Do nothing: watch() watches nothing."""

    def bell(self) -> None:
        """Return None: no bell can be heard from another machine."""

    def ask_when_readable(
        self, offset: int, answered: Callable[[bool | None], None], *, committed: bool = True
    ) -> None:
        """Call `answered` in another thread: with True once `offset` can be read, with False after some time,
        with None if no node said so, and an ordinary request has to show why. This call does not wait for it.
        """
        router, any_replica = self.router, self.any_replica
        router.check_open()
        deadline = router.deadline()
        address, _ = router.place_of(self.topic_partition, self.topic_id, deadline, any_replica=any_replica)
        if address is None:
            answered(None)
            return

        def tell(answer: Message | None) -> None:
            if isinstance(answer, ReadBatches):
                self._note(answer)
                answered(answer.end_for(committed=committed) > offset)
            else:
                answered(None)

        message = Read(self.topic_partition, self.topic_id, offset, 0, _LONG_POLL_MS, any_replica, committed)
        router.ask_and_go(address, message, _LONG_POLL_MS + _GRACE_MS, tell)

    closed = has_ended = is_at_hand = compresses = False

    def check_open(self) -> None:
        """Raise ClosedError once the log is closed."""
        self.router.check_open()

    check_goes_on = check_open


class RemotePartition(LogReader):
    """A partition of a RemoteLog, with the methods of Partition that read and append. Threads may share it.

    Each append carries a producer id and a sequence: if its answer is lost it is sent again, and still stored
    once. Appends of several threads are made one after another.
    """

    def __init__(self, router: Router, name: TopicPartition, topic_id: str, config: TopicConfig) -> None:
        self._remote = RemoteSource(router, name, topic_id)
        super().__init__(self._remote.name, self._remote)
        self.config = config
        self._rules = Rules(config)
        self._appending = threading.Lock()
        self._producer_id, self._sequence = 0, 0
        self._begin_again()

    def __repr__(self) -> str:
        return f"<RemotePartition {self.name}>"

    # --- reading

    def readable_range(self, *, isolation_level: IsolationLevel = "read_committed") -> tuple[int, int]:
        """Return the first offset that may be read, and the one at which readers stop, in one request."""
        return self._remote.bounds(None, None, committed=reads_committed(isolation_level))

    def ask_when_readable(
        self,
        offset: int,
        answered: Callable[[bool | None], None],
        *,
        isolation_level: IsolationLevel = "read_committed",
    ) -> None:
        """Call `answered` in another thread: with True once `offset` can be read, with False after some time,
        with None if no node said so, and an ordinary request has to show why. This call does not wait for it.
        """
        self._remote.ask_when_readable(offset, answered, committed=reads_committed(isolation_level))

    def get(self, offset: int, *, isolation_level: IsolationLevel = "read_committed") -> Record | None:
        """Return the record at `offset`; None if compaction removed it, it was aborted, or it is a marker."""
        source, committed = self._remote, reads_committed(isolation_level)
        answer = source.read(offset, 1, 0, source.router.deadline(), committed=committed)
        if answer.end_for(committed=committed) <= offset and source.any_replica:  # the leader may have more
            deadline = source.router.deadline()
            answer = source.read(offset, 1, 0, deadline, any_replica=False, committed=committed)
        end = answer.end_for(committed=committed)
        if not answer.start_offset <= offset < end:
            raise OffsetOutOfRangeError(self.name, offset, answer.start_offset, end)
        segment = FetchedSegment(self.name, answer.data.read(), offset)
        runs = segment.record_runs(offset, offset + 1, aborted_of(answer, committed=committed))
        return next((record for records, _ in runs for record in records), None)

    def offset_for_timestamp(
        self, timestamp: int, *, isolation_level: IsolationLevel = "read_committed"
    ) -> int | None:
        """Return the first offset whose timestamp is at or after `timestamp`; None if there is none."""
        source, committed = self._remote, reads_committed(isolation_level)
        question = FindOffset(source.topic_partition, source.topic_id, timestamp, committed)
        deadline = source.router.deadline()
        answer = source.router.ask_for(question.name, question.topic_id, lambda try_ms: question, deadline)
        return _expected(FoundOffset, answer).offset

    def batch_start(self, offset: int) -> int:
        """Return `offset`: only a process with the files knows where batches begin."""
        return offset

    # --- appending

    def append(
        self,
        value: Buffer | None,
        *,
        key: Buffer | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
        sync: bool = False,
        acks: Acks = "all",
    ) -> int:
        """Append a record; return its offset once all in-sync replicas (with acks=1, the leader) have it."""
        times = None if timestamp is None else [timestamp]
        return self.append_encoded(self.encode([value], [key], [headers], times), sync=sync, acks=acks).start

    def append_many(
        self,
        values: Iterable[Buffer | None],
        *,
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[Headers] | None = None,
        timestamps: Iterable[int] | None = None,
        sync: bool = False,
        acks: Acks = "all",
    ) -> range:
        """Append records as one batch, all or nothing, and return their offsets."""
        return self.append_encoded(self.encode(values, keys, headers, timestamps), sync=sync, acks=acks)

    def append_arrow(self, data: ArrowData, *, sync: bool = False, acks: Acks = "all") -> range:
        """Append the columns value, key, timestamp and headers of Arrow data as one batch."""
        from commitlog.batches import arrow

        table = arrow.tabular(data)
        chunks = arrow.record_batches(table)
        if len(chunks) > 1:
            table = arrow.put_together(chunks)
        batches = tuple(arrow.to_batches(table, self._rules, now_ms()))
        return self.append_encoded(batches, sync=sync, acks=acks)

    def encode(
        self,
        values: Iterable[Buffer | None],
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[Headers] | None = None,
        timestamps: Iterable[int] | None = None,
        producer: tuple[int, int, int] = NO_PRODUCER,
        more_flags: int = 0,
    ) -> tuple[EncodedBatch, ...]:
        """Check records and encode them as one batch; returns no batch if there are no records."""
        return encode(values, keys, headers, timestamps, self._rules, now_ms(), producer, more_flags)

    def append_encoded(
        self, batches: tuple[EncodedBatch, ...], *, sync: bool = False, acks: Acks = "all"
    ) -> range:
        """Append the batches that encode() returned, and return the offsets.

        ReplicationTimeoutError or ConnectionFailedError if no confirmation came in time; the records may have
        been appended, so appending them again may duplicate them.
        """
        if not batches:
            end = self.next_offset
            return range(end, end)
        batch = batches[0]
        if len(batches) > 1:  # Arrow data that exceed a limit of the format
            records = sum(one.span for one in batches)
            raise BatchTooLargeError(records, batch.span, "records, divided among several batches")
        if batch.size > self.config.segment_bytes:
            raise BatchTooLargeError(batch.size, self.config.segment_bytes, IN_A_SEGMENT)
        with self._appending:
            try:
                return self._append(batch, sync, acks)
            except BaseException:  # it may have been appended, so its sequence cannot be reused
                self._begin_again()
                raise

    def _append(self, batch: EncodedBatch, sync: bool, acks: Acks) -> range:
        source = self._remote
        deadline = source.router.deadline()
        while True:
            stamped = numbered(batch, (self._producer_id, 0, self._sequence)).stamped(0, 0)
            data = Bytes(b"".join(stamped))

            def make(try_ms: int, data: Bytes = data) -> Message:
                return Append(source.topic_partition, source.topic_id, acks, try_ms, data, sync)

            try:
                answer = source.router.ask_for(source.topic_partition, source.topic_id, make, deadline)
            except OutOfOrderSequenceError:
                # this leader has lost earlier batches, so it cannot have this one
                if self._sequence == 0:
                    raise
                self._begin_again()
                continue
            self._sequence = (self._sequence + batch.span) % SEQUENCES
            found = _expected(Appended, answer)
            return range(found.start, found.end)

    def _begin_again(self) -> None:
        self._producer_id = int.from_bytes(os.urandom(8), "little") >> 1
        self._sequence = 0


def aborted_of(answer: ReadBatches, *, committed: bool) -> AbortedRanges | None:
    """Return what a reader of these data leaves out; None if nothing is."""
    return AbortedRanges(answer.aborted) if committed and answer.aborted else None


def _expected(kind: type[Kind], answer: Message) -> Kind:
    if not isinstance(answer, kind):
        raise CommitLogError(f"expected {kind.__name__} as the answer, not {type(answer).__name__}")
    return answer
