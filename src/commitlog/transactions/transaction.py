"""Transaction: records for several partitions, and offsets of a consumer group, all or nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from commitlog.batches.encode import EncodedBatch, numbered, pack_headers
from commitlog.batches.format import TRANSACTIONAL
from commitlog.errors import (
    BatchTooLargeError,
    InvalidRecordError,
    RecordTooLargeError,
    TransactionAbortedError,
    TransactionStateError,
    TransactionTimeoutError,
)
from commitlog.groups.member import GroupMetadata
from commitlog.groups.offsets import TOPIC as OFFSETS_TOPIC
from commitlog.groups.offsets import OffsetAndMetadata
from commitlog.partition import Partition
from commitlog.partitions.producer_state import SEQUENCES
from commitlog.record import ArrowData, Buffer, Headers, TopicPartition
from commitlog.topic import Topic, check_key
from commitlog.transactions.state_log import Place

if TYPE_CHECKING:
    from commitlog.transactions.coordinator import Coordinator, Owner

_MOST_HELD_BYTES = 1 << 20  # then batches are appended before the commit
_MOST_HELD_RECORDS = 8192
_MARKER_BYTES = 128  # at most
_OFFSETS = TopicPartition(OFFSETS_TOPIC, 0)


class _Part:
    """What a transaction does in one partition."""

    __slots__ = ("end", "held", "partition", "sequence", "topic_id", "written")

    def __init__(self, topic_id: str | None, partition: Partition) -> None:
        self.topic_id = topic_id
        self.partition = partition
        self.sequence = 0  # of the next record
        self.end = 0  # the offset after its last batch
        self.held: list[EncodedBatch] = []  # to be appended at the commit, or when there is more
        self.written = False


_Next = tuple[_Part, tuple[EncodedBatch, ...]]  # what is next in a partition


class _Rows:
    """Records of one topic that are not encoded yet; `most_bytes` is the largest one allowed."""

    __slots__ = (
        "headers", "keyed", "keys", "most_bytes", "most_held_bytes", "partition", "size_bytes", "timestamps",
        "topic", "values",
    )  # fmt: skip

    def __init__(self, topic: Topic, partition: int | None) -> None:
        self.topic = topic
        self.partition = partition
        self.values: list[Buffer | None] = []
        self.keys: list[Buffer | None] = []
        self.headers: list[Headers] | None = None  # where any record has some
        self.timestamps: list[int] | None = None  # where any was given
        self.size_bytes = 0
        self.keyed = topic.config.compacts  # every record needs a key
        self.most_bytes = topic.config.max_message_bytes
        self.most_held_bytes = min(_MOST_HELD_BYTES, topic.config.segment_bytes // 4)  # they are one batch

    def add(self, value: Buffer | None, key: Buffer | None, headers: Headers, timestamp: int | None) -> None:
        """Add a record of any kind, after checking it."""
        size = _checked_size(self.topic, value, key, headers, timestamp)
        count = len(self.values)
        if headers and self.headers is None:
            self.headers = [()] * count
        if timestamp is not None and self.timestamps is None:
            self.timestamps = [_now_ms()] * count
        if self.headers is not None:
            self.headers.append(tuple(headers))
        if self.timestamps is not None:
            self.timestamps.append(_now_ms() if timestamp is None else timestamp)
        self.values.append(None if value is None else bytes(value))  # the caller may use its buffer again
        self.keys.append(None if key is None else bytes(key))
        self.size_bytes += size


class Transaction:
    """A transaction of one owner, committed at the end of a `with` block, or aborted if that raises.

    Its methods may be called by several threads; commit() and abort() end it before the block does. Small
    amounts of records are held until then, so that a partition gets them as one batch.
    """

    def __init__(self, coordinator: Coordinator, owner: Owner, epoch: int, *, sync: bool = False) -> None:
        """`sync` is for a transaction that is used as a context manager."""
        self.owner = owner
        self._sync = sync
        self.producer_id = owner.owned.producer_id
        self.epoch = epoch
        self._coordinator = coordinator
        self._began = time.monotonic()
        self._lock = threading.RLock()
        self._parts: dict[tuple[str, int], _Part] = {}  # by topic and number
        self._rows: dict[str, _Rows] = {}
        self._held_bytes = 0
        self._outcome: bool | None = None  # whether it was committed; None while it is open
        self._problem: Exception | None = None  # why it was aborted from outside
        self._failed = False  # whether a commit failed before it was decided, or records were lost

    def __enter__(self) -> Self:
        self.check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Commit, unless the block raised: then abort."""
        try:
            if kind is None and (self._outcome is None or self._problem is not None):
                self.commit(sync=self._sync)  # which raises the problem, if there is one
        finally:
            self.give_up()

    def __repr__(self) -> str:
        state = "open" if self._outcome is None else "committed" if self._outcome else "aborted"
        return f"<Transaction {self.owner.transactional_id} epoch {self.epoch}: {state}>"

    @property
    def is_open(self) -> bool:
        """Whether it is neither committed nor aborted."""
        return self._outcome is None

    @property
    def is_committed(self) -> bool:
        """Whether it is committed."""
        return self._outcome is True

    @property
    def age_ms(self) -> int:
        """How long ago it began, in milliseconds."""
        return int((time.monotonic() - self._began) * 1000)

    def check_open(self) -> None:
        """Raise the reason why it cannot go on, if there is one."""
        if self._outcome is None:
            return
        if self._problem is not None:
            raise type(self._problem)(*self._problem.args)
        done = "committed" if self._outcome else "aborted"
        raise TransactionStateError(self.owner.transactional_id, f"the transaction is {done} already")

    # --- records

    def append(
        self,
        topic: str,
        value: Buffer | None,
        *,
        key: Buffer | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> None:
        """Append a record to the partition of its key, or to `partition`, when the transaction commits."""
        with self._lock:
            rows = self._rows.get(topic)
            if rows is None or rows.partition != partition or self._outcome is not None:
                rows = self._new_rows(topic, partition)
            if (
                type(value) is bytes
                and (type(key) is bytes or (key is None and not rows.keyed))
                and headers == ()
                and timestamp is None
                and rows.timestamps is None
                and rows.headers is None
                and (size := len(value) + len(key or b"")) <= rows.most_bytes
            ):  # measured: 0.5 us, where checking any kind of record takes 1.5
                rows.values.append(value)
                rows.keys.append(key)
                rows.size_bytes += size
            else:
                rows.add(value, key, headers, timestamp)
            if rows.size_bytes >= rows.most_held_bytes or len(rows.values) >= _MOST_HELD_RECORDS:
                self._encode(topic)

    def append_many(
        self,
        topic: str,
        values: Iterable[Buffer | None],
        *,
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[Headers] | None = None,
        timestamps: Iterable[int] | None = None,
        partition: int | None = None,
    ) -> None:
        """Append records to the partitions of their keys, or all to `partition`."""
        with self._lock:
            self.check_open()
            if topic in self._rows:
                self._encode(topic)
            found = self._coordinator.topic(topic)
            self._hold_all(self._encoded(found, values, keys, headers, timestamps, partition))

    def append_arrow(self, topic: str, data: ArrowData, *, partition: int | None = None) -> None:
        """Append Arrow data as Topic.append_arrow() does."""
        with self._lock:
            self.check_open()
            self._encode(topic)
            found = self._coordinator.topic(topic)
            for number, target, batches in found.encoded_arrow(data, partition):
                part = self._part((topic, number), target)
                self._hold(part, self._numbered(part, batches)[0])
            self._write_if_much()

    def _new_rows(self, topic: str, partition: int | None) -> _Rows:
        self.check_open()
        self._encode(topic)
        found = self._coordinator.topic(topic)
        found.writable(partition or 0)
        rows = self._rows[topic] = _Rows(found, partition)
        return rows

    def _encode(self, topic: str) -> None:
        """Encode the records of a topic that were appended one by one."""
        rows = self._rows.pop(topic, None)
        if rows is not None and rows.values:
            failed, self._failed = self._failed, True  # until they are held
            self._encode_rows(rows, 0, len(rows.values))
            self._failed = failed

    def _encode_rows(self, rows: _Rows, start: int, end: int) -> None:
        """Encode some records, as one batch of each partition, or as several if a segment holds no more."""
        part = slice(start, end)
        values, keys = rows.values[part], rows.keys[part]
        headers = None if rows.headers is None else rows.headers[part]
        times = None if rows.timestamps is None else rows.timestamps[part]
        given = keys if rows.keyed or keys.count(None) < len(keys) else None
        try:
            ready = self._encoded(rows.topic, values, given, headers, times, rows.partition)
        except BatchTooLargeError:
            if end - start == 1:
                raise
            middle = (start + end) // 2
            self._encode_rows(rows, start, middle)
            self._encode_rows(rows, middle, end)
        else:
            self._hold_all(ready)

    def _encoded(
        self,
        topic: Topic,
        values: Iterable[Buffer | None],
        keys: Iterable[Buffer | None] | None,
        headers: Iterable[Headers] | None,
        timestamps: Iterable[int] | None,
        partition: int | None,
    ) -> list[_Next]:
        """Encode records, each partition's as its next batch."""
        name = topic.name
        if partition is not None:  # measured: 1 us less than with Topic.encoded()
            part = self._parts.get((name, partition))
            if part is None:
                part = self._part((name, partition), topic.writable(partition))
            producer = self.producer_id, self.epoch, part.sequence
            batches = part.partition.encode(values, keys, headers, timestamps, producer, TRANSACTIONAL)
            return [(part, batches)]

        def numbering(number: int, target: Partition) -> tuple[int, int, int]:
            return self.producer_id, self.epoch, self._part((name, number), target).sequence

        shares = topic.encoded(values, keys, headers, timestamps, None, numbering, TRANSACTIONAL)
        return [(self._parts[name, number], batches) for number, _, batches in shares]

    def _hold_all(self, ready: Iterable[_Next]) -> None:
        """Hold encoded records."""
        for part, batches in ready:
            self._hold(part, batches)
        self._write_if_much()

    def _hold(self, part: _Part, batches: Iterable[EncodedBatch]) -> None:
        """Hold the next batches of a partition."""
        for batch in batches:
            part.held.append(batch)
            part.sequence = (part.sequence + batch.span) % SEQUENCES
            self._held_bytes += batch.size

    def _write_if_much(self) -> None:
        """Append what is held if it is much."""
        if self._held_bytes >= _MOST_HELD_BYTES:
            self._coordinator.check(self)
            failed, self._failed = self._failed, True  # a caller that is told of an error may append again
            self._write_held()
            self._failed = failed

    def _part(self, name: tuple[str, int], target: Partition) -> _Part:
        part = self._parts.get(name)
        if part is None:
            part = self._parts[name] = _Part(self._coordinator.topic(name[0]).topic_id, target)
        return part

    def _numbered(self, part: _Part, batches: Iterable[EncodedBatch]) -> tuple[list[EncodedBatch], int]:
        """Return batches as the next ones of a partition, and the sequence after them."""
        found, sequence = [], part.sequence
        for batch in batches:
            found.append(numbered(batch, (self.producer_id, self.epoch, sequence), TRANSACTIONAL))
            sequence = (sequence + batch.span) % SEQUENCES
        return found, sequence

    def flush(self) -> None:
        """Append what is held now: readers of "read_uncommitted" see it, and memory is free again."""
        with self._lock:
            self.check_open()
            self._coordinator.check(self)
            for topic in list(self._rows):
                self._encode(topic)
            self._write_held()

    def _write_held(self) -> None:
        for part in self._parts.values():
            if part.held:
                part.written = True  # first: if the append is interrupted, it may have succeeded
                part.end = part.partition.append_transactional(tuple(part.held)).stop
                # crash: some of the records, no decision -> aborted
                part.held = []
        self._held_bytes = 0

    def append_encoded(
        self, name: TopicPartition, target: Partition, batches: tuple[EncodedBatch, ...]
    ) -> range:
        """Append a producer's batches now and return their offsets; after an error, append the same again."""
        with self._lock:
            self.check_open()
            self._coordinator.check(self)
            return self._append(self._part(name, target), batches)

    def _append(self, part: _Part, batches: tuple[EncodedBatch, ...]) -> range:
        ready, after = self._numbered(part, batches)
        part.written = True  # first: if the append is interrupted, it may have succeeded
        offsets = part.partition.append_transactional(tuple(ready))
        part.sequence, part.end = after, offsets.stop
        return offsets

    # --- offsets

    def send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata) -> None:
        """Commit a group's offsets with the transaction; CommitFailedError if the group has moved on."""
        with self._lock:
            self.check_open()
            self._coordinator.check(self)
            if offsets:
                self._coordinator.groups.commit_with(self._append_offsets, group, offsets)

    def _append_offsets(self, partition: Partition, keys: list[bytes], values: list[bytes]) -> None:
        self._append(self._part(_OFFSETS, partition), partition.encode(values, keys))

    # --- the end

    def commit(self, *, sync: bool = False) -> None:
        """Make all records visible, and offsets valid; with `sync` also after a power cut."""
        with self._lock:
            self.check_open()
            if self._failed:
                reason = "a call has failed, and some records may be missing: abort the transaction"
                raise TransactionStateError(self.owner.transactional_id, reason)
            self._failed = True  # until it has succeeded
            try:
                for topic in list(self._rows):
                    self._encode(topic)
                self._coordinator.commit(self, sync=sync)
            except TransactionAbortedError as problem:
                self._abort(problem)
                raise
            finally:
                if self._outcome is not None:  # whatever came after the decision
                    self._let_go()
                    self._coordinator.release(self)

    def abort(self) -> None:
        """Discard all records and offsets. Aborting twice is fine, aborting what is committed is not."""
        with self._lock:
            self.give_up()
            if self._outcome is True:
                reason = "the transaction is committed already"
                raise TransactionStateError(self.owner.transactional_id, reason)

    def give_up(self) -> None:
        """Abort it if it is neither committed nor aborted."""
        with self._lock:
            if self._outcome is None:
                self._abort(None)

    def end_from_outside(self, problem: Exception, *, wait: bool = False) -> bool:
        """Abort it, unless a thread is using it and `wait` is not set; its owner learns of the problem.

        Returns whether it did.
        """
        if not self._lock.acquire(blocking=wait):
            return False
        try:
            if self._outcome is not None:
                return False
            self._abort(problem)
            return True
        finally:
            self._lock.release()

    def time_out(self) -> bool:
        """Abort it because it has been open for too long; returns whether it was."""
        owned = self.owner.owned
        return self.end_from_outside(TransactionTimeoutError(owned.transactional_id, owned.timeout_ms))

    def _abort(self, problem: Exception | None) -> None:
        self._let_go()
        self._problem = problem
        if self._coordinator.abort(self):
            self._coordinator.release(self)

    def _let_go(self) -> None:
        """Free the records that were held."""
        self._rows = {}
        for part in self._parts.values():
            part.held = []

    # --- for the coordinator

    def ended(self, *, committed: bool) -> None:
        """Note that it was decided."""
        self._outcome = committed

    def parts(self) -> dict[tuple[str, int], Partition]:
        """Return the partitions that it has written to or will write to, by topic and number."""
        return {name: part.partition for name, part in self._parts.items() if part.written or part.held}

    def written(self) -> dict[tuple[str, int], Partition]:
        """Return the partitions that it has written to, by topic and number."""
        return {name: part.partition for name, part in self._parts.items() if part.written}

    def ends(self) -> list[tuple[Partition, int]]:
        """Return the partitions that it has written to, each with the offset after its last batch."""
        return [(part.partition, part.end) for part in self._parts.values() if part.written]

    def places(self) -> tuple[Place, ...]:
        """Return the partitions that it has written to, as the state log names them."""
        parts = self._parts.items()
        return tuple([Place(topic, part.topic_id, number) for (topic, number), part in parts if part.written])

    def only_part(self) -> tuple[Partition, tuple[EncodedBatch, ...]] | None:
        """Return the partition, and what is to be appended, if it is the only one; otherwise None."""
        used = [part for part in self._parts.values() if part.written or part.held]
        if len(used) != 1:
            return None
        used[0].written = True  # first: if the append is interrupted, it may have succeeded
        partition = used[0].partition
        if self._held_bytes + _MARKER_BYTES > partition.config.segment_bytes:
            self._coordinator.check(self)  # together they are more than one write can append
            self._write_held()
        return partition, tuple(used[0].held)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _checked_size(topic: Topic, value: Any, key: Any, headers: Headers, timestamp: int | None) -> int:
    """Return the size of a record; refuse one that the topic cannot take."""
    if (
        type(value) is not bytes
        and value is not None
        and not isinstance(value, bytes | bytearray | memoryview)
    ):
        raise InvalidRecordError(0, f"value must be bytes-like or None, not {type(value).__name__}")
    check_key(0, key)
    if key is None and topic.config.compacts:
        raise InvalidRecordError(0, "a compacted topic needs a key in every record")
    if timestamp is not None and not (type(timestamp) is int and 0 <= timestamp < 1 << 63):
        reason = f"timestamp must be milliseconds since the epoch, not {timestamp!r:.80}"
        raise InvalidRecordError(0, reason)
    size = len(value or b"") + len(key or b"")
    if headers:
        packed = pack_headers([headers])
        size += len(packed.names.blob) + len(packed.values.blob)
    if size > topic.config.max_message_bytes:
        raise RecordTooLargeError(0, size, topic.config.max_message_bytes)
    return size
