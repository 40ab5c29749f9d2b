"""Producer: takes records one by one and appends them in batches. It uses Kafka's names, to ease porting.

The thread whose record fills a batch appends the batch at once: it waits for no other thread, and a producer
that is too fast is slowed down by its own work. A background thread appends batches that are older than
linger_ms, and syncs those that have to be durable.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from time import time as now  # saves send() one lookup
from typing import Any, NamedTuple, Protocol, Self

from commitlog.batches.encode import EncodedBatch, pack_headers
from commitlog.clients.accumulator import Accumulator, Written
from commitlog.clients.producer_batch import Callback, ProducerBatch, RecordFuture
from commitlog.clients.rate_limit import Throttle
from commitlog.config import ProducerConfig
from commitlog.errors import (
    BufferFullError,
    ClosedError,
    CommitLogError,
    ConfigError,
    ForkedError,
    InvalidRecordError,
    RecordTooLargeError,
    TransactionAbortedError,
    TransactionStateError,
)
from commitlog.groups.member import GroupMetadata
from commitlog.groups.offsets import committable
from commitlog.partition import Partition
from commitlog.record import Headers, TopicPartition
from commitlog.speedups import native
from commitlog.tasks import Condition, Task, TaskHealth
from commitlog.topic import Topic
from commitlog.transactions.coordinator import Owner
from commitlog.transactions.transaction import Transaction

_IDLE_SECONDS = 60.0
_logger = logging.getLogger("commitlog.producer")


class TopicSource(Protocol):
    """The part of a log that a producer needs."""

    def topic(self, name: str) -> Topic:
        """Return a topic."""


class OffsetSource(Protocol):
    """The part of a consumer that send_offsets() needs."""

    def positions(self) -> Mapping[TopicPartition, int]:
        """Return where the consumer goes on in each partition."""

    def group_metadata(self) -> GroupMetadata:
        """Return its identity in its group."""


class _Unsynced(NamedTuple):
    delivery: ProducerBatch
    written: list[Written]


class Producer:
    """Sends records to the topics of a log; threads may share it. Use it as a context manager, or close() it.
    A producer left open is closed when the program ends.

    acks says when a record counts as delivered: 0 at once, 1 when it is written and visible to readers, "all"
    when it is synced (and replicated, if there are replicas). With enable_idempotence, batches carry a
    producer id and a sequence number, so that a batch appended again after an error is stored only once.

    With a transactional_id, records are sent in transactions: `with producer.transaction():`, or
    begin_transaction() and commit_transaction().
    """

    owns_at_once = True  # whether the log takes the transactional id over before it makes the producer

    def __init__(
        self, log: TopicSource, config: ProducerConfig, throttle: Throttle, owner: Owner | None = None
    ) -> None:
        """`owner` has the transactional id, if there is one."""
        self.config = config
        self._throttle = throttle
        self.producer_id = (
            int.from_bytes(os.urandom(8), "little") >> 1 if owner is None else owner.producer_id
        )
        self._owner = owner
        self._transaction: Transaction | None = None  # the last one that began
        self._log = log
        self._lock = threading.Lock()
        self._lanes: dict[str, Accumulator] = {}
        self._filling: dict[str, ProducerBatch] = {}  # the open batch of each topic that has one
        self._unsynced: deque[_Unsynced] = deque()
        self._unsynced_bytes = 0
        self._ended = Condition()
        self._lost: Exception | None = None
        self._undelivered: Exception | None = None  # a failure since the transaction began
        self._turn = threading.RLock()  # of the thread that begins or ends a transaction
        self._closed = self._forked = False
        self._opened = False  # whether a batch was opened since the thread last looked
        self._resting = True  # whether the thread sleeps until it is woken
        self._appends_each = config.linger_ms == 0
        if native is not None and type(self).send is _SEND:
            self.send = native.fast_send(  # type: ignore[method-assign]
                self.send, self._filling, self._settle, RecordFuture, globals()
            )
        self._task = Task("producer", self._work)
        self._task.start()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"acks={self.config.acks!r}, {len(self._filling)} open batches"
        return f"<Producer {self.config.client_id or self.producer_id}: {state}>"

    # --- sending

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: Callback | None = None,
    ) -> RecordFuture:
        """Send a record; returns a future of its partition and offset.

        Value and key are bytes-like or None, or whatever the serializers turn into that. An invalid record is
        refused here. The caller whose record fills a batch waits until the batch is appended.
        """
        # Small plain records join the open batch without a lock; ProducerBatch says why none is lost, doubled
        # or out of order. Measured until the record is written: 1,140 ns with a lock, three lists and a sum
        # of sizes, 570 ns like this; a lock alone takes 100 to 170.
        try:
            batch = self._filling[topic]
        except KeyError:
            return self._send(topic, value, key, headers, partition, timestamp, on_delivery)
        if (
            type(value) is bytes
            and (
                len(value) + len(key) <= batch.keyed_bytes
                if type(key) is bytes
                else key is None and len(value) <= batch.unkeyed_bytes
            )
            and headers is None
            and partition is None
            and on_delivery is None
            and (timestamp is None or _is_timestamp(timestamp))
        ):
            records = batch.records
            ticket = next(batch.tickets)
            if timestamp is not None:
                batch.has_given_times = True
            records += (value, key, now() if timestamp is None else timestamp, ticket)
            if ticket < batch.limit or self._settle(batch, ticket):
                future = RecordFuture()  # measured: 65 ns; with an __init__ 105, as a tuple 125
                future._delivery = batch
                future._ticket = ticket
                return future
        return self._send(topic, value, key, headers, partition, timestamp, on_delivery)

    def _settle(self, batch: ProducerBatch, ticket: int) -> bool:
        """Append a full batch; returns whether the record is in it (it may have come too late)."""
        lane = self._lanes[batch.topic]
        with self._lock:
            if self._filling.get(batch.topic) is batch:
                self._close_batch(lane)
        self._append_full(lane, batch)
        return batch.row_of(ticket) is not None

    def _append_all(self, lane: Accumulator) -> None:
        """Append what is ready, in flush(); others may go on sending meanwhile."""
        ready = list(lane.ready)
        lane.append_ready(
            ready[-1] if ready else None
        )  # if there is none, it waits for a thread that appends

    def _append_full(self, lane: Accumulator, batch: ProducerBatch) -> None:
        """Append a batch that is full, and wait as a quota demands."""
        lane.append_ready(batch)
        self._throttle.wait()

    def _send(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp: int | None,
        on_delivery: Callback | None,
    ) -> RecordFuture:
        """Send a record of any kind."""
        self._check_not_forked()
        if self.config.key_serializer is not None:
            key = self.config.key_serializer(key)
        if self.config.value_serializer is not None:
            value = self.config.value_serializer(value)
        value, key = _as_bytes(value, "value"), _as_bytes(key, "key")
        if timestamp is not None and not _is_timestamp(timestamp):
            reason = f"timestamp must be milliseconds since the epoch, not {timestamp!r:.80}"
            raise InvalidRecordError(0, reason)
        return self._send_bytes(topic, value, key, headers, partition, timestamp, on_delivery)

    def _send_bytes(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        partition: int | None,
        timestamp: int | None,
        on_delivery: Callback | None,
    ) -> RecordFuture:
        """Send a record that is serialized."""
        if self._owner is not None:
            self._open_transaction("send() outside a transaction; call begin_transaction() first")
        lane = self._lanes.get(topic) or self._lane_of(topic)
        size = _checked_size(lane.topic, value, key, headers, partition)
        return self._add(lane, value, key, size, headers, partition, timestamp, on_delivery)

    def _add(
        self,
        lane: Accumulator,
        value: bytes | None,
        key: bytes | None,
        size: int,
        headers: Headers | None,
        partition: int | None,
        timestamp: int | None,
        on_delivery: Callback | None,
    ) -> RecordFuture:
        """Add a record that was checked to the open batch of its topic, under the lock."""
        topic = lane.topic.name
        if topic not in self._filling:
            self._wait_for_room()
        future = RecordFuture()
        with self._lock:
            batch = self._filling.get(topic) or self._open_batch(lane, size)
            moment = now() if timestamp is None else timestamp
            ticket = batch.add(value, key, moment, size, headers, partition, on_delivery)
        if ticket >= batch.limit or self._appends_each:
            self._settle(batch, ticket)
        future._delivery, future._ticket = batch, ticket
        return future

    def _lane_of(self, name: str) -> Accumulator:
        topic = self._log.topic(name)
        topic.writable(0)  # or the reason why not
        append = None if self._owner is None else self._append_in_transaction
        lane = Accumulator(topic, self.config, self.producer_id, self._throttle, self._appended, append)
        with self._lock:
            return self._lanes.setdefault(name, lane)

    def _wait_for_room(self) -> None:
        """Block a caller that sends faster than records become durable."""
        limit, seconds = self.config.buffer_memory, self.config.max_block_ms / 1000
        if self._unsynced_bytes > limit:
            with self._ended.mutex:
                if not self._ended.wait_for(lambda: self._unsynced_bytes <= limit, seconds):
                    raise BufferFullError(limit, self.config.max_block_ms)

    # --- transactions

    @contextlib.contextmanager
    def transaction(self, *, sync: bool | None = None) -> Iterator[Self]:
        """Make a block a transaction: commit at its end, abort if it raises. See commit_transaction()."""
        self.begin_transaction()
        try:
            yield self
            self.commit_transaction(sync=sync)
        except BaseException:
            self._give_up_transaction()
            raise

    def begin_transaction(self) -> None:
        """Begin a transaction; everything sent from here on belongs to it."""
        owner = self._transactional()
        with self._turn:
            before = self._transaction
            if before is not None and not before.is_open and not before.is_committed:
                # what is left of one that was aborted from outside belongs to no other
                self._discard(TransactionAbortedError(owner.transactional_id, "it was not sent in time"))
            self._transaction = owner.begin()
            self._lost = self._undelivered = None

    def commit_transaction(self, *, sync: bool | None = None) -> None:
        """Deliver everything sent and commit it; committing again after that is fine.

        With `sync` the commit survives a power cut; that is the default with acks="all". An error that says
        nothing else means that the transaction is still open: abort it.
        """
        self._transactional()
        with self._turn:
            transaction = self._transaction
            if transaction is not None and transaction.is_committed:
                return
            transaction = self._open_transaction("commit_transaction() without begin_transaction()")
            self.flush()
            if self._undelivered is not None:  # even if a callback has heard of it
                raise self._undelivered
            transaction.commit(sync=self.config.acks == "all" if sync is None else sync)

    def abort_transaction(self) -> None:
        """Discard everything sent since begin_transaction(); TransactionStateError if it is committed."""
        owner = self._transactional()
        with self._turn:
            transaction = self._transaction
            if transaction is None:
                reason = "abort_transaction() without begin_transaction()"
                raise TransactionStateError(owner.transactional_id, reason)
            self._discard(TransactionAbortedError(owner.transactional_id, "abort_transaction() was called"))
            transaction.abort()

    def _give_up_transaction(self) -> None:
        """Abort the transaction if there is one that is not committed."""
        transaction, owner = self._transaction, self._owner
        if owner is not None and transaction is not None and not transaction.is_committed:
            self._discard(TransactionAbortedError(owner.transactional_id, "it was given up"))
            transaction.give_up()

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | tuple[int, str]],
        group_metadata: GroupMetadata,
    ) -> None:
        """Commit the offsets of a consumer group with the transaction.

        `group_metadata` is what consumer.group_metadata() returned: CommitFailedError if the group has moved
        on since.
        """
        self._transactional()
        transaction = self._open_transaction("send_offsets_to_transaction() outside a transaction")
        stored = {TopicPartition(*name): committable(offset) for name, offset in offsets.items()}
        transaction.send_offsets(stored, group_metadata)

    def send_offsets(self, consumer: OffsetSource) -> None:
        """Commit the positions of a consumer with the transaction, instead of consumer.commit()."""
        self.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata())

    def _transactional(self) -> Owner:
        self._check_not_forked()
        if self._owner is None:
            raise ConfigError("transactional_id", None, "is needed for transactions")
        return self._owner

    def _open_transaction(self, otherwise: str) -> Transaction:
        """Return the open transaction; TransactionStateError if there is none."""
        assert self._owner is not None
        transaction = self._transaction
        if transaction is None or transaction.is_committed:
            raise TransactionStateError(self._owner.transactional_id, otherwise)
        transaction.check_open()
        return transaction

    def _append_in_transaction(
        self, name: TopicPartition, partition: Partition, batches: tuple[EncodedBatch, ...]
    ) -> int:
        return (
            self._open_transaction("the transaction has ended").append_encoded(name, partition, batches).start
        )

    def _discard(self, error: Exception) -> None:
        """Let the records fail that are not appended yet."""
        for lane in list(self._lanes.values()):
            with self._lock:
                self._close_batch(lane)
            lane.discard(error)
        self._lost = None

    # --- batches, opened and closed under the lock

    def _open_batch(self, lane: Accumulator, size: int) -> ProducerBatch:
        if self._closed:
            raise ClosedError("the producer")
        batch = self._filling[lane.topic.name] = lane.open_batch(self._ended, size)
        self._opened = True
        if self._resting and self.config.linger_ms:  # without linger_ms the sender appends it
            self._resting = False
            self._task.wake()
        return batch

    def _close_batch(self, lane: Accumulator) -> None:
        """Close the topic's open batch, if there is one, and queue it for appending."""
        batch = self._filling.get(lane.topic.name)
        if batch is not None:
            batch.close()
            lane.ready.append(batch)
            del self._filling[lane.topic.name]

    def _appended(self, delivery: ProducerBatch, written: list[Written]) -> None:
        if self.config.acks == "all" and written:
            with self._ended.mutex:
                self._unsynced.append(_Unsynced(delivery, written))
                self._unsynced_bytes += delivery.size_bytes
            self._task.wake()
        else:
            self._end(delivery)
            self._room_was_made()

    def _room_was_made(self) -> None:
        """Called after records have left the producer's buffer."""

    def _end(self, delivery: ProducerBatch) -> None:
        error = delivery.end()
        self._undelivered = self._undelivered or error
        if error is not None and not delivery.has_callbacks:
            _logger.error("records for %s were not delivered: %s", delivery.topic, error)
            self._lost = self._lost or error

    # --- in the background

    def _work(self) -> float:
        """Append batches that have waited long enough, and sync; returns the seconds until the next run.

        Senders append the batches they fill: measured, a thread that takes these over while senders wait
        costs them a third of their time. If the producer is throttled, batches wait until they are full, and
        then the sender waits.
        """
        linger, began = self.config.linger_ms / 1000, time.monotonic()
        throttled = self._throttle.seconds_left()
        lanes = list(self._lanes.values())
        due = []
        with self._lock:
            for lane in lanes:
                batch = self._filling.get(lane.topic.name)
                if batch is not None and not throttled and batch.created + linger <= began:
                    self._close_batch(lane)
                    due.append(lane)
            waits = [max(batch.created + linger - began, throttled) for batch in self._filling.values()]
            rest = self._resting = not waits and not self._opened
            self._opened = False
        for lane in lanes if rest and not throttled else due:  # at rest, also what Ctrl-C left behind
            lane.append_ready()
        self._sync()
        if rest and not throttled:
            return _IDLE_SECONDS
        return min([max(linger, throttled), _IDLE_SECONDS, *waits])

    def _sync(self) -> None:
        """Wait until appended batches are durable; batches in the same partition share one sync."""
        with self._ended.mutex:
            waiting = list(self._unsynced)
        for place in {place for one in waiting for place in one.written}:
            try:
                place.partition.acknowledge(place.leader_epoch)
            except CommitLogError as error:
                for one in waiting:
                    if place in one.written:
                        one.delivery.fail(error)
        for one in waiting:
            self._end(one.delivery)
            with self._ended.mutex:
                self._unsynced.popleft()
                self._unsynced_bytes -= one.delivery.size_bytes
                self._ended.notify_all()
            self._room_was_made()

    def health(self) -> tuple[TaskHealth, ...]:
        """Return the health of the background thread."""
        return (self._task.health(),)

    # --- the end

    def forked(self) -> None:
        """In a forked child: disable the producer; the parent delivers the records it holds."""
        self._forked = True
        self._filling.clear()  # send() may be compiled, and holds it
        self._lanes = {}
        # threads of the parent may hold the old ones
        self._lock, self._turn, self._ended = threading.Lock(), threading.RLock(), Condition()

    def _check_not_forked(self) -> None:
        if self._forked:
            raise ForkedError("the producer")

    def flush(self) -> None:
        """Deliver everything sent so far; raises the first failure that no callback has reported."""
        self._check_not_forked()
        if self._task.is_current:
            raise CommitLogError("flush() in a delivery callback would wait for that callback itself")
        for lane in list(self._lanes.values()):
            with self._lock:
                self._close_batch(lane)
            self._append_all(lane)
        if self._task.stopped:  # Ctrl-C ended close()
            self._task.stop()
            self._sync()
        else:
            self._task.wake()
            with self._ended.mutex:  # others may go on sending
                last = self._unsynced[-1] if self._unsynced else None
                self._ended.wait_for(lambda: last not in self._unsynced)
        self._throttle.wait()
        lost, self._lost = self._lost, None
        if lost is not None:
            raise lost

    def close(self) -> None:
        """Deliver everything sent, and stop. Closing twice is fine; after Ctrl-C, close again to finish."""
        if self._forked or (self._closed and self._task.is_current):
            return
        with self._lock:
            self._closed = True
            for lane in self._lanes.values():
                lane.closing = True
        self._throttle.stop()
        try:
            self._give_up_transaction()  # as Kafka's producers do
            self.flush()
        finally:
            self._task.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_SEND = Producer.send  # a test may replace it, to see what is sent


def _checked_size(
    topic: Topic, value: bytes | None, key: bytes | None, headers: Headers | None, partition: int | None
) -> int:
    """Return the size of a record; refuse one that the topic cannot take."""
    if partition is not None:
        topic.partition(partition)
    if key is None and topic.config.compacts:
        raise InvalidRecordError(0, "a compacted topic needs a key in every record")
    size = len(value or b"") + len(key or b"")
    if headers:
        packed = pack_headers([headers])
        size += len(packed.names.blob) + len(packed.values.blob)
    if size > topic.config.max_message_bytes:
        raise RecordTooLargeError(0, size, topic.config.max_message_bytes)
    return size


def _is_timestamp(given: Any) -> bool:
    return type(given) is int and 0 <= given < 1 << 63


def _as_bytes(given: Any, what: str) -> bytes | None:
    if given is None or type(given) is bytes:
        return given
    if isinstance(given, bytearray | memoryview | bytes):
        return bytes(given)
    raise InvalidRecordError(0, f"{what} must be bytes-like or None, not {type(given).__name__}")
