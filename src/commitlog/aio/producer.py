"""Producer: sends records from an event loop, which never waits for a disk."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Generator
from typing import Any, Self

from commitlog.aio.partition import is_quick
from commitlog.aio.workers import whole
from commitlog.clients import producer as blocking
from commitlog.clients.accumulator import Accumulator, NotNow
from commitlog.clients.producer import TopicSource
from commitlog.clients.producer_batch import Callback, ProducerBatch, RecordFuture, RecordMetadata
from commitlog.clients.rate_limit import Throttle
from commitlog.config import ProducerConfig
from commitlog.errors import BufferFullError, ClosedError
from commitlog.record import Headers
from commitlog.tasks import TaskHealth

_logger = logging.getLogger("commitlog.aio")
_RECORD_BYTES = 64  # counted besides key and value


class WaitingRecord(RecordFuture):
    """A record that waits for room in the producer's buffer, and its outcome.

    If the coroutine that awaits it is cancelled before there is room, the record is not sent: cancelled() is
    True.
    """

    __slots__ = ("_problem", "_room", "given", "size_bytes")

    def __init__(self, given: tuple[Any, ...], room: asyncio.Future[None]) -> None:
        self.given = given
        self.size_bytes = _RECORD_BYTES + sum(len(one) for one in given[1:3] if isinstance(one, bytes))
        self._room = room  # done once the record is sent, or refused, or withdrawn
        self._problem: BaseException | None = None

    def sent_as(self, future: RecordFuture) -> None:
        """Note that the record was sent."""
        self._delivery, self._ticket = future._delivery, future._ticket
        self._room.set_result(None)

    def refuse(self, problem: BaseException) -> None:
        """Note that the record could not be sent."""
        self._problem = problem
        self._room.set_result(None)

    def cancel(self) -> bool:
        """Withdraw the record; False if it was sent already."""
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
        if isinstance(self._problem, Exception):
            return self._problem
        self._check_sent()
        return super().exception(timeout)

    def _check_sent(self) -> None:
        if self._problem is not None:
            raise self._problem
        if self.cancelled():
            raise asyncio.CancelledError("the record was withdrawn before there was room for it")
        if not self._room.done():
            raise asyncio.InvalidStateError("the record waits for room in the buffer: await it")

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self._room.done():
            try:
                yield from self._room  # cancelling the task cancels it
            except asyncio.CancelledError as cancelled:
                if self.cancelled():
                    cancelled.add_note("The record was not sent, and will not be.")
                raise
        self._check_sent()
        return (yield from super().__await__())


class LoopProducer(blocking.Producer):
    """A producer whose sender is an event loop: the background thread appends every batch.

    With linger_ms=0, the records that are sent in one turn of the loop become a batch.
    """

    def __init__(self, log: TopicSource, config: ProducerConfig, throttle: Throttle) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, deque[WaitingRecord]] = {}  # by topic, in order
        self._waiting_bytes = 0
        self._none_waits = asyncio.Event()
        self._none_waits.set()
        self._turn_ends = False  # whether the batches of this turn are handed over at its end
        super().__init__(log, config, throttle)
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
        given = (topic, value, key, headers, partition, timestamp, on_delivery)
        if topic in self._waiting or (topic not in self._filling and not self._has_room()):
            return self._let_wait(given)
        return super()._send(*given)

    def _wait_for_room(self) -> None:
        """Do nothing: _send() has looked."""

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
        """Append what was sent in this turn of the loop; a large batch is left to the thread."""
        self._turn_ends = False
        with self._lock:
            for lane in self._lanes.values():
                self._close_batch(lane)
        for lane in list(self._lanes.values()):
            if lane.ready and not (self._is_quick(lane) and self._append_now(lane)):
                self._task.wake()

    def _is_quick(self, lane: Accumulator) -> bool:
        size = sum(batch.size_bytes for batch in list(lane.ready))
        return is_quick(lane.topic.partition(0), size) and not self._throttle.is_limited

    def _append_now(self, lane: Accumulator) -> bool:
        """Append what is ready, without waiting for a full disk; False if something is left."""
        try:
            lane.append_ready()
        except NotNow:
            return False
        return True

    def _append_full(self, lane: Accumulator, batch: ProducerBatch) -> None:
        """Leave a full batch to the thread."""
        self._task.wake()

    def _append_all(self, lane: Accumulator) -> None:
        """In a worker: append what is ready."""
        while lane.ready and not self._append_now(lane):
            time.sleep(self.config.retry_backoff_ms / 1000)

    def _work(self) -> float:
        """In the thread: append what is ready, and sync."""
        throttled, retry = self._throttle.seconds_left(), self.config.retry_backoff_ms / 1000
        lanes = [lane for lane in list(self._lanes.values()) if lane.ready]
        done = [self._append_now(lane) for lane in lanes if not throttled]
        try:
            pause = super()._work()
        except NotNow:
            return retry
        return min([pause, *([throttled] if throttled and lanes else []), *([] if all(done) else [retry])])

    # --- records that wait for room

    def _has_room(self) -> bool:
        ready = sum(batch.size_bytes for lane in list(self._lanes.values()) for batch in list(lane.ready))
        return ready + self._unsynced_bytes <= self.config.buffer_memory

    def _let_wait(self, given: tuple[Any, ...]) -> WaitingRecord:
        if self._closed:
            raise ClosedError("the producer")
        record = WaitingRecord(given, self._loop.create_future())
        if self._waiting_bytes + record.size_bytes > self.config.buffer_memory:  # nobody awaits them
            raise BufferFullError(self.config.buffer_memory, 0)
        self._waiting.setdefault(given[0], deque()).append(record)
        self._waiting_bytes += record.size_bytes
        self._none_waits.clear()
        return record

    def _room_was_made(self) -> None:
        if self._waiting:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._send_waiting)

    def _send_waiting(self) -> None:
        """Send what waits, topic by topic: records of a topic keep their order."""
        for topic in list(self._waiting):
            if topic not in self._filling and not self._has_room():
                return
            records = self._waiting.pop(topic)
            for record in records:
                self._waiting_bytes -= record.size_bytes
                if record.cancelled():
                    continue
                try:
                    record.sent_as(super()._send(*record.given))
                except BaseException as problem:
                    record.refuse(problem)
        self._none_waits.set()

    async def all_sent(self) -> None:
        """Wait until no record waits for room."""
        await self._none_waits.wait()

    def close(self) -> None:
        """Deliver everything sent, and stop."""
        left = sum(len(records) for records in self._waiting.values())
        if left:
            _logger.error("%d records that waited for room were not sent: the producer was closed", left)
        super().close()


class Producer:
    """Sends records to the topics of a log, from the event loop that made it. Use it as an async context
    manager, or close() it.

    `await producer.send(...)` returns where the record is stored. Without `await`, send() costs what it costs
    in commitlog.Producer, and returns a future to await later. If the buffer is full, the record waits for
    room.
    """

    def __init__(self, underneath: LoopProducer) -> None:
        self._underneath = underneath
        self.send = underneath.send
        self.config = underneath.config
        self.producer_id = underneath.producer_id

    def __repr__(self) -> str:
        return repr(self._underneath).replace("Producer", "aio.Producer", 1)

    async def flush(self) -> None:
        """Deliver everything sent so far; raises the first failure that no callback has reported."""
        await self._underneath.all_sent()
        await whole(self._underneath.flush)

    async def close(self) -> None:
        """Deliver everything sent, and stop. Closing twice is fine."""
        await self._underneath.all_sent()
        await whole(self._underneath.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def health(self) -> tuple[TaskHealth, ...]:
        """Return the health of the background thread."""
        return self._underneath.health()
