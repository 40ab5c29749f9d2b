"""Producer: sends records from an event loop, which never waits for a disk."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from functools import partial
from typing import Any, Protocol, Self

from commitlog.aio.partition import is_quick
from commitlog.aio.workers import Job, Workers, to_the_end, workers
from commitlog.clients import producer as blocking
from commitlog.clients.accumulator import Accumulator, NotNow
from commitlog.clients.producer import TopicSource
from commitlog.clients.producer_batch import (
    Callback,
    ProducerBatch,
    RecordFuture,
    RecordMetadata,
    call_logged,
)
from commitlog.clients.rate_limit import Throttle
from commitlog.config import ProducerConfig
from commitlog.errors import BufferFullError, ClosedError, TransactionAbortedError, TransactionStateError
from commitlog.groups.member import GroupMetadata
from commitlog.groups.offsets import Committable
from commitlog.record import Headers, TopicPartition
from commitlog.tasks import TaskHealth
from commitlog.transactions.coordinator import Owner
from commitlog.transactions.transaction import Transaction

_logger = logging.getLogger("commitlog.aio")
_RECORD_BYTES = 64  # counted besides key, value and headers


class Log(TopicSource, Protocol):
    """The part of a log that a producer needs."""

    @property
    def exclusive(self) -> bool:
        """Whether this process is the only writer; then topic() does not wait."""

    def own(self, config: ProducerConfig) -> Owner:
        """Take over the transactional id of a producer."""


class OffsetSource(Protocol):
    """The part of a consumer that send_offsets() needs."""

    async def positions(self) -> Mapping[TopicPartition, int]:
        """Return where the consumer goes on in each partition."""

    async def group_metadata(self) -> GroupMetadata:
        """Return its identity in its group."""


class WaitingRecord(RecordFuture):
    """A record that waits for room in the producer's buffer, and its outcome.

    If the coroutine that awaits it is cancelled before there is room, the record is not sent: cancelled() is
    True. If others await it, too, it is sent unless all of them are cancelled.
    """

    __slots__ = (
        "_awaiting", "_leave", "_problem", "_room", "_withdraw", "on_delivery", "send", "size_bytes", "topic",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        size_bytes: int,
        send: Callable[[], RecordFuture],
        on_delivery: Callback | None,
        room: asyncio.Future[None],
        leave: Callable[[WaitingRecord], None],
        withdraw: Callable[[WaitingRecord], None],
    ) -> None:
        """`leave` is called once the record is no longer one that nobody awaits, `withdraw` if it is not to
        be sent.
        """
        self.topic = topic
        self.size_bytes = size_bytes
        self.send = send
        self.on_delivery = on_delivery
        self._room = room  # done once the record is sent, or refused, or withdrawn
        self._leave: Callable[[WaitingRecord], None] | None = leave
        self._withdraw = withdraw
        self._awaiting = 0  # coroutines
        self._problem: Exception | None = None

    @property
    def room(self) -> asyncio.Future[None]:
        """Done once the record is sent, or refused, or withdrawn."""
        return self._room

    def sent_as(self, future: RecordFuture) -> None:
        """Note that the record was sent."""
        self._delivery, self._ticket = future._delivery, future._ticket
        self._end_waiting()

    def refuse(self, problem: Exception) -> None:
        """Note that the record could not be sent."""
        self._problem = problem
        self._end_waiting()
        if self.on_delivery is not None:
            call_logged(partial(self.on_delivery, None, problem), self.topic)

    def cancel(self) -> bool:
        """Withdraw the record; False if it was sent already."""
        self._stop_counting()
        self._withdraw(self)
        return self._room.cancel()

    def cancelled(self) -> bool:
        """Return whether the record was withdrawn, and will never be sent."""
        return self._room.cancelled()

    def done(self) -> bool:
        """Return whether the outcome is known."""
        if not self._room.done():
            return False
        return self._problem is not None or self.cancelled() or super().done()

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Return where the record is stored; raises the error if it failed."""
        self._check_sent()
        return super().result(timeout)

    get = result

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Return the error, or None."""
        if self._problem is not None:
            return self._problem
        self._check_sent()
        return super().exception(timeout)

    def add_done_callback(self, callback: Callable[[RecordFuture], object]) -> None:
        """Call `callback` with this future when it is done: now, or in the event loop."""
        if not self._room.done():
            self._room.add_done_callback(lambda _: self.add_done_callback(callback))
        elif self._problem is not None or self.cancelled():
            call_logged(partial(callback, self), self.topic)
        else:
            super().add_done_callback(callback)

    def _end_waiting(self) -> None:
        self._stop_counting()
        self._room.set_result(None)

    def _stop_counting(self) -> None:
        leave, self._leave = self._leave, None
        if leave is not None:
            leave(self)

    def _check_sent(self) -> None:
        if self._problem is not None:
            raise self._problem
        if self.cancelled():
            raise asyncio.CancelledError("the record was withdrawn before there was room for it")
        if not self._room.done():
            raise asyncio.InvalidStateError("the record waits for room in the buffer: await it")

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self._room.done():
            self._stop_counting()
            self._awaiting += 1
            try:
                yield from asyncio.shield(self._room)
            except asyncio.CancelledError as cancelled:
                if self._awaiting == 1:
                    self.cancel()
                cancelled.add_note(self._standing())
                raise
            finally:
                self._awaiting -= 1
        self._check_sent()
        return (yield from super().__await__())

    def _standing(self) -> str:
        if self.cancelled():
            return "The record was not sent, and will not be."
        if self._room.done():
            return "The record was sent: await its future again to see what became of it."
        return "The record waits for room, and other tasks for it."


class LoopProducer(blocking.Producer):
    """A producer whose sender is an event loop: what may take time is left to the background thread.

    With linger_ms=0, the records that are sent in one turn of the loop become a batch. A record waits if the
    buffer is full, and while a worker looks for its topic. What begins or ends a transaction is for a worker.
    """

    owns_at_once = False  # a worker does

    def __init__(
        self, log: Log, config: ProducerConfig, throttle: Throttle, owner: Owner | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._finds_topics_at_once = log.exclusive
        self._waiting: dict[str, OrderedDict[WaitingRecord, None]] = {}  # by topic, in order
        self._unawaited_bytes = 0  # of those that nobody awaits
        self._ending = False  # whether new records are refused
        self._turn_ends = False  # whether the batches of this turn are handed over at its end
        self._passes = False  # whether the record that is being sent has waited already
        self._take_over = partial(log.own, config)
        super().__init__(log, config, throttle, owner)
        self._appends_each = False

    # --- what the blocking producer would wait for

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
        if self._ending:
            raise ClosedError("the producer")
        if self.config.transactional_id is not None:  # now, not once there is room
            self._check_sendable(self.config.transactional_id)
        return super()._send(topic, value, key, headers, partition, timestamp, on_delivery)

    def _send_bytes(self, topic: str, value: bytes | None, key: bytes | None, *rest: Any) -> RecordFuture:
        if self._finds_topics_at_once or topic in self._lanes:
            return super()._send_bytes(topic, value, key, *rest)
        if topic not in self._waiting:
            found = workers.begin(partial(self._lane_of, topic))
            found.future.add_done_callback(lambda _: self._topic_was_found(topic, found))
        size = len(value or b"") + len(key or b"")
        return self._let_wait(topic, size, partial(super()._send_bytes, topic, value, key, *rest), rest[-1])

    def _add(
        self, lane: Accumulator, value: bytes | None, key: bytes | None, size: int, *rest: Any
    ) -> RecordFuture:
        topic, send = lane.topic.name, partial(super()._add, lane, value, key, size, *rest)
        must_wait = topic in self._waiting or (topic not in self._filling and not self._has_room())
        if must_wait and not self._passes:
            return self._let_wait(topic, size, send, rest[-1])
        return send()

    def _wait_for_room(self) -> None:
        """Do nothing: _add() has looked."""

    def _lane_of(self, name: str) -> Accumulator:
        lane = super()._lane_of(name)
        lane.waits = False
        return lane

    def _open_batch(self, lane: Accumulator, size: int) -> ProducerBatch:
        if self.config.linger_ms == 0 and not self._turn_ends:
            self._turn_ends = True
            self._loop.call_soon(self._end_turn)
        batch = super()._open_batch(lane, size)
        batch.loop = self._loop
        return batch

    def _end_turn(self) -> None:
        """Append what was sent in this turn of the loop; what may take long is left to the thread."""
        self._turn_ends = False
        with self._lock:
            lanes = list(self._lanes.values())
            for lane in lanes:
                self._close_batch(lane)
        for lane in lanes:
            if lane.ready and not (self._is_quick(lane) and self._append_if_free(lane)):
                self._task.wake()

    def _is_quick(self, lane: Accumulator) -> bool:
        if self._throttle.is_limited or self._owner is not None:  # a transaction may wait for its commit
            return False
        size, config = sum(batch.size_bytes for batch in list(lane.ready)), self.config
        compression, numbered = config.compression_type, config.enable_idempotence
        return is_quick(lane.topic.partitions, size, compression=compression, numbered=numbered)

    def _append_if_free(self, lane: Accumulator) -> bool:
        """In the event loop: append what is ready, unless that would wait; False if something is left."""
        try:
            return lane.append_ready_if_free()
        except NotNow:
            return False

    def _append_now(self, lane: Accumulator) -> bool:
        """Append what is ready, without waiting for a full disk; False if something is left."""
        try:
            super()._append_all(lane)
        except NotNow:
            return False
        return True

    def _append_full(self, lane: Accumulator, batch: ProducerBatch) -> None:
        """Leave a full batch to the thread."""
        self._task.wake()

    def _append_all(self, lane: Accumulator) -> None:
        """In a worker: append what is ready."""
        while not self._append_now(lane):
            time.sleep(self.config.retry_backoff_ms / 1000)

    def _work(self) -> float:
        """In the thread: append what is ready, and sync."""
        throttled, retry = self._throttle.seconds_left(), self.config.retry_backoff_ms / 1000
        lanes = [lane for lane in list(self._lanes.values()) if lane.ready]
        done = [self._append_now(lane) for lane in lanes if not throttled]
        try:
            pause = super()._work()
        except NotNow:
            self._sync()  # what was appended before
            return retry
        return pause if all(done) else min(pause, retry)

    # --- records that wait

    def _has_room(self) -> bool:
        ready = sum(batch.size_bytes for lane in list(self._lanes.values()) for batch in list(lane.ready))
        return ready + self._unsynced_bytes <= self.config.buffer_memory

    def _let_wait(
        self, topic: str, size: int, send: Callable[[], RecordFuture], on_delivery: Callback | None
    ) -> WaitingRecord:
        size += _RECORD_BYTES
        # a coroutine that awaits its record can send no more; without such, records would fill the memory
        if self._unawaited_bytes and self._unawaited_bytes + size > self.config.buffer_memory:
            raise BufferFullError(self.config.buffer_memory, 0)
        room = self._loop.create_future()
        record = WaitingRecord(topic, size, send, on_delivery, room, self._forget_unawaited, self._withdraw)
        self._unawaited_bytes += size
        self._waiting.setdefault(topic, OrderedDict())[record] = None
        if self._has_room():  # made while this record was on its way
            self._loop.call_soon(self._send_waiting)
        return record

    def _forget_unawaited(self, record: WaitingRecord) -> None:
        self._unawaited_bytes -= record.size_bytes

    def _withdraw(self, record: WaitingRecord) -> None:
        self._waiting.get(record.topic, OrderedDict()).pop(record, None)

    def _room_was_made(self) -> None:
        if self._waiting:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._send_waiting)

    def _send_waiting(self) -> None:
        """Send what waits while there is room, topic by topic: records of a topic keep their order."""
        for topic, records in list(self._waiting.items()):
            if topic not in self._lanes and not self._finds_topics_at_once:
                continue  # a worker looks for it
            while records:
                if topic not in self._filling and not self._has_room():
                    return
                record, _ = records.popitem(last=False)
                self._send_now(record)
            del self._waiting[topic]

    def _send_now(self, record: WaitingRecord) -> None:
        try:
            future = self._sent(record)
        except Exception as problem:
            self._refuse(record, problem)  # its callback may send: that record waits behind the others
        else:
            record.sent_as(future)

    def _sent(self, record: WaitingRecord) -> RecordFuture:
        self._passes = True
        try:
            return record.send()
        finally:
            self._passes = False

    def _refuse(self, record: WaitingRecord, problem: Exception) -> None:
        if not record.cancelled():
            record.refuse(problem)
            self._undelivered = self._undelivered or problem
            if record.on_delivery is None:
                self._lost = self._lost or problem

    def _topic_was_found(self, topic: str, found: Job[Accumulator]) -> None:
        problem = found.future.exception()
        if problem is None:
            self._send_waiting()
            return
        for record in self._waiting.pop(topic, ()):
            self._refuse(record, problem if isinstance(problem, Exception) else RuntimeError(repr(problem)))

    async def all_sent(self) -> None:
        """Wait until the records that wait now are sent, or refused, or withdrawn."""
        rooms = [record.room for records in self._waiting.values() for record in records]
        if rooms:
            await asyncio.wait(rooms)

    # --- transactions

    def take_id(self) -> None:
        """In a worker: take the transactional id over, if there is one that is not taken."""
        if self._owner is None and self.config.transactional_id is not None:
            self._owner = self._take_over()
            self.producer_id = self._owner.producer_id

    def _transactional(self) -> Owner:
        self._check_not_forked()
        self.take_id()
        return super()._transactional()

    def _check_sendable(self, transactional_id: str) -> None:
        outside = "send() outside a transaction; call begin_transaction() first"
        if self._owner is None:
            raise TransactionStateError(transactional_id, outside)
        self._open_transaction(outside)

    def refuse_waiting(self) -> None:
        """Refuse the records that wait: their transaction is about to be aborted."""
        reason = "abort_transaction() was called"
        for records in list(self._waiting.values()):
            for record in list(records):
                del records[record]
                self._refuse(record, TransactionAbortedError(self.config.transactional_id or "", reason))
        self._loop.call_soon(self._send_waiting)

    @property
    def last_transaction(self) -> Transaction | None:
        """The transaction that began last."""
        return self._transaction

    # --- the end

    def take_no_more(self) -> None:
        """Refuse new records; those that wait are still sent, but not tried again if the disk is full."""
        self._ending = True
        for lane in list(self._lanes.values()):
            lane.closing = True

    def close(self) -> None:
        """Deliver everything sent, and stop. If the event loop has ended, records that wait are not sent."""
        super().close()
        left = sum(not one.cancelled() for records in list(self._waiting.values()) for one in list(records))
        if left and self._loop.is_closed():
            _logger.error("%d records that waited for room were not sent: the event loop has ended", left)


class Producer:
    """Sends records to the topics of a log, from the event loop that made it. Use it as an async context
    manager, or close() it.

    `await producer.send(...)` returns where the record is stored. Without `await`, send() costs what it costs
    in commitlog.Producer, and returns a future to await later. If the buffer is full, the record waits for
    room; send() raises BufferFullError if too many wait that nobody awaits. Callbacks run in the event loop.

    With a transactional_id, records are sent in transactions: `async with producer.transaction():`, or
    begin_transaction() and commit_transaction(). `async with` takes the id over, otherwise the first
    transaction does.
    """

    def __init__(self, underneath: LoopProducer) -> None:
        self._underneath = underneath
        self._thread = Workers(1)  # what it waits for may take long
        self.send = underneath.send
        self.config = underneath.config

    @property
    def producer_id(self) -> int:
        """The id in its batches; with a transactional_id, that of the next transaction."""
        return self._underneath.producer_id

    def __repr__(self) -> str:
        return repr(self._underneath).replace("Producer", "aio.Producer", 1)

    async def flush(self) -> None:
        """Deliver everything sent so far; raises the first failure that no callback has reported."""
        await self._underneath.all_sent()
        await self._thread.whole(self._underneath.flush)

    # --- transactions

    @contextlib.asynccontextmanager
    async def transaction(self, *, sync: bool | None = None) -> AsyncIterator[Self]:
        """Make a block a transaction: commit at its end, abort if it raises or is cancelled."""
        before = self._underneath.last_transaction
        try:
            await self.begin_transaction()
            yield self
            await self.commit_transaction(sync=sync)
        except BaseException:
            begun = self._underneath.last_transaction
            if begun is not None and begun is not before and begun.is_open:
                self._underneath.refuse_waiting()
                await to_the_end(self._thread.begin(self._underneath.abort_transaction))
            raise

    async def begin_transaction(self) -> None:
        """Begin a transaction; everything sent from here on belongs to it."""
        await self._thread.whole(self._underneath.begin_transaction)

    async def commit_transaction(self, *, sync: bool | None = None) -> None:
        """Deliver everything sent and commit it; committing again after that is fine.

        With `sync` the commit survives a power cut; that is the default with acks="all". An error that says
        nothing else means that the transaction is still open: abort it.
        """
        await self._underneath.all_sent()
        await self._thread.whole(self._underneath.commit_transaction, sync=sync)

    async def abort_transaction(self) -> None:
        """Discard everything sent since begin_transaction(); TransactionStateError if it is committed."""
        self._underneath.refuse_waiting()
        await self._thread.whole(self._underneath.abort_transaction)

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, Committable], group_metadata: GroupMetadata
    ) -> None:
        """Commit the offsets of a consumer group with the transaction.

        `group_metadata` is what consumer.group_metadata() returned: CommitFailedError if the group has moved
        on since.
        """
        await self._thread.whole(self._underneath.send_offsets_to_transaction, offsets, group_metadata)

    async def send_offsets(self, consumer: OffsetSource) -> None:
        """Commit the positions of a consumer with the transaction, instead of consumer.commit()."""
        positions = await consumer.positions()
        await self.send_offsets_to_transaction(positions, await consumer.group_metadata())

    # --- the end

    async def close(self) -> None:
        """Deliver everything sent, and stop. Closing twice is fine."""
        self._underneath.take_no_more()
        await self._underneath.all_sent()
        await self._thread.whole(self._underneath.close)

    async def __aenter__(self) -> Self:
        if self.config.transactional_id is not None:
            try:
                await self._thread.whole(self._underneath.take_id)
            except BaseException:
                await self.close()
                raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def health(self) -> tuple[TaskHealth, ...]:
        """Return the health of the background thread."""
        return self._underneath.health()
