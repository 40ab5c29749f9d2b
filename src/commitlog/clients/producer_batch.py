"""ProducerBatch, a batch on its way to the log, and RecordFuture, the outcome of one of its records."""

from __future__ import annotations

import contextlib
import logging
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from commitlog.batches.columns import Int64s
from commitlog.errors import DeliveryTimeoutError
from commitlog.record import Headers
from commitlog.tasks import Condition

if TYPE_CHECKING:
    import asyncio

_RECORD_BYTES = 64  # counted towards batch_size and buffer_memory besides key and value
_FIELDS = 4  # of a record in ProducerBatch.records: value, key, moment, ticket
_SAMPLE = 64  # one record in this many is sampled for its size
_CLOSED = -1  # a limit that every ticket has reached
_logger = logging.getLogger("commitlog.producer")


class RecordMetadata(NamedTuple):
    """Where a record is stored. With acks=0 the partition and the offset are -1: they are not known."""

    topic: str
    partition: int
    offset: int
    timestamp: int


_metadata = partial(tuple.__new__, RecordMetadata)  # measured: half of what calling it takes
Acks = Literal[0, 1, "all"]
Callback = Callable[[RecordMetadata | None, Exception | None], None]
# values, keys (None: there are none), headers (None: none) and timestamps of records
Table = tuple[Sequence[Any], Sequence[Any] | None, Sequence[Headers] | None, Int64s]


class Share(NamedTuple):
    """The records of a batch for one partition: their rows (None: all), and the offset of the first."""

    partition: int
    rows: list[int] | None
    base_offset: int
    error: Exception | None
    leader_epoch: int = 0


class ProducerBatch:
    """Records of one topic that are appended together.

    While the batch is open, threads add records, most of them without a lock (Producer.send). The invariants:

    - `records` grows by a whole record: `+=` of a tuple is one call of C code that runs no Python, so no
      other thread comes in between. The order there becomes the order in the log.
    - A record's ticket is drawn before the record is added, and its future identifies it by the ticket. If a
      thread is delayed in between, its record comes after those with higher tickets: usually the ticket is
      the row, and row_of() handles the rest.
    - close() lowers `limit`, then counts; the counted records are the batch. A thread that has added a record
      reads `limit`. If it is above the ticket, close() had not begun, and will count the record. If
      not, row_of() says whether it was counted; if it was not, it is sent again. So none is lost or doubled.

    `limit` is also the ticket that fills the batch: sizes are not added up record by record. Each counts as
    `small_bytes`; the excess of a larger one is charged to the batch under the producer's lock. So size_bytes
    is never less than what the records take.

    A moment is a float, seconds of the clock, or an int, a timestamp given by the caller.
    """

    __slots__ = (
        "_acks", "_awaited", "_batch_size", "_callbacks", "_charged_bytes", "_count", "_ended", "_headers",
        "_partitions", "_rows", "_shares", "_tickets", "_times", "_waiting", "created", "done",
        "has_given_times", "keyed_bytes", "limit", "loop", "records", "small_bytes", "tickets", "topic",
        "unkeyed_bytes",
    )  # fmt: skip

    def __init__(
        self, topic: str, ended: Condition, *, acks: Acks, batch_size: int, small_bytes: int
    ) -> None:
        self.topic = topic
        self.created = time.monotonic()
        self.done = acks == 0  # then nobody waits for the outcome
        self.records: list[Any] = []
        self.tickets = count()
        self.small_bytes = small_bytes
        self.keyed_bytes = self.unkeyed_bytes = -1  # the largest record that may be added without the lock
        self._acks = acks
        self._ended = ended
        self._batch_size = batch_size
        self._charged_bytes = 0
        self._count: int | None = None  # not known while it is open
        self._tickets: list[int] = []
        self._rows: dict[int, int] | None = None
        self._times: Int64s | None = None
        self.has_given_times = False
        self.loop: asyncio.AbstractEventLoop | None = None  # of the sender, if it is one
        # by ticket, because most records have none of these
        self._headers: dict[int, Headers] = {}
        self._partitions: dict[int, int] = {}
        self._callbacks: dict[int, Callback] = {}
        self._shares: list[Share] = []
        self._waiting: list[Callable[[], object]] = []  # callbacks for the end
        self._awaited: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        self._set_limit()

    # --- open: for all of this, the producer's lock is held

    def add(
        self,
        value: bytes | None,
        key: bytes | None,
        moment: float | int,
        size: int,
        headers: Headers | None,
        partition: int | None,
        callback: Callback | None,
    ) -> int:
        """Add a record of any kind, of `size` bytes; returns its ticket."""
        ticket = next(self.tickets)
        if headers:
            self._headers[ticket] = headers
        if partition is not None:
            self._partitions[ticket] = partition
        if type(moment) is int:
            self.has_given_times = True
        if callback is not None:
            self._callbacks[ticket] = callback
        if size > self.small_bytes:
            self._charged_bytes += size - self.small_bytes
            self._set_limit()
        self.records += (value, key, moment, ticket)
        return ticket

    def _set_limit(self) -> None:
        left, each = self._batch_size - self._charged_bytes, self.small_bytes + _RECORD_BYTES
        self.limit = -(-left // each) - 1  # tickets start at 0

    def close(self) -> None:
        """Fix the records of the batch. Closing twice is fine."""
        if self._count is None:
            self.limit = _CLOSED
            self._count = len(self.records) // _FIELDS
            self._tickets = self._column(3)

    # --- on its way

    @property
    def size_bytes(self) -> int:
        """An upper bound of the memory that the records take."""
        return len(self._tickets) * (self.small_bytes + _RECORD_BYTES) + self._charged_bytes

    @property
    def has_callbacks(self) -> bool:
        """Whether every record has a callback."""
        return len(self._callbacks) == self._count

    @property
    def has_records(self) -> bool:
        """Whether there is anything to append: Ctrl-C may have prevented the first record."""
        return bool(self._tickets)

    @property
    def is_unanswered(self) -> bool:
        """Whether nobody waits for the outcome: acks=0."""
        return self._acks == 0

    @property
    def is_appended(self) -> bool:
        """Whether the append has ended, successfully or not."""
        return bool(self._shares)

    def columns(self) -> Table:
        """Return values, keys, headers and timestamps, in the order in which to append them."""
        keys: list[Any] | None = self._column(1)
        if keys and keys[0] is None and keys.count(None) == len(keys):
            keys = None
        headers = None
        if self._headers:
            headers = [self._headers.get(ticket, ()) for ticket in self._tickets]
        moments = self._column(2)
        if self.has_given_times:
            self._times = np.array(list(map(_milliseconds, moments)), np.int64)
        else:
            # measured: converting all at once takes half the time of time_ns() // 1_000_000 for each
            self._times = (np.frombuffer(array("d", moments)) * 1000).astype(np.int64)
        return self._column(0), keys, headers, self._times

    def _column(self, field: int) -> list[Any]:
        assert self._count is not None
        return self.records[field : self._count * _FIELDS : _FIELDS]  # without records that came too late

    def chosen(self) -> dict[int, int]:
        """Return the partitions chosen by senders, by row."""
        if not self._partitions or self._in_order():
            return self._partitions
        return {self._row(ticket): number for ticket, number in self._partitions.items()}

    def _in_order(self) -> bool:
        """Return whether each ticket equals its row."""
        return self._tickets == list(range(len(self._tickets)))

    def appended(self, shares: list[Share]) -> None:
        """Note where the records were stored, and let go of them."""
        self._shares = shares
        self.records = []

    def fail(self, error: Exception) -> None:
        """Note that the appended records could not be made durable."""
        self._shares = [share._replace(error=share.error or error) for share in self._shares]

    def end(self) -> Exception | None:
        """Complete the futures and call the callbacks; returns the first error."""
        with self._ended.mutex:
            self.done = True
            self._ended.notify_all()
            waiting, self._waiting = self._waiting, []
            awaited, self._awaited = self._awaited, {}
        for loop, futures in awaited.items():
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_release, futures)
        self._call(waiting)
        self._call([partial(callback, *self.outcome(ticket)) for ticket, callback in self._callbacks.items()])
        return next((share.error for share in self._shares if share.error is not None), None)

    def _call(self, calls: list[Callable[[], object]]) -> None:
        """Call an application's callbacks: in the event loop of the sender, if it is one."""
        if calls and self.loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: they are called here
                self.loop.call_soon_threadsafe(_call_all, calls, self.topic)
                return
        _call_all(calls, self.topic)

    # --- outcome

    def row_of(self, ticket: int) -> int | None:
        """Return the row of a record in this closed batch, or None if it came too late."""
        tickets = self._tickets
        if ticket < len(tickets) and tickets[ticket] == ticket:
            return ticket
        if self._rows is None:  # threads overtook one another
            self._rows = dict(zip(tickets, range(len(tickets)), strict=True))
        return self._rows.get(ticket)

    def _row(self, ticket: int) -> int:
        row = self.row_of(ticket)
        assert row is not None, "a ticket that nobody holds"
        return row

    def outcome(self, ticket: int) -> tuple[RecordMetadata | None, Exception | None]:
        """Return where a record is stored, or the error."""
        if self._acks == 0:
            return RecordMetadata(self.topic, -1, -1, self._timestamp(ticket)), None
        row = self._row(ticket)
        for number, rows, base_offset, error, _ in self._shares:
            place = row if rows is None else bisect_left(rows, row)
            if rows is None or (place < len(rows) and rows[place] == row):
                if error is not None:
                    return None, error
                assert self._times is not None
                return _metadata((self.topic, number, base_offset + place, self._times.item(row))), None
        raise AssertionError("a record without a share")

    def _timestamp(self, ticket: int) -> int:
        records, times = self.records, self._times
        if times is not None:
            return times.item(self._row(ticket))
        # with acks=0 the caller may ask before the batch is appended
        return _milliseconds(records[records[3::_FIELDS].index(ticket) * _FIELDS + 2])

    def when_done(self, call: Callable[[], object]) -> None:
        """Call `call` at the end, or now if the batch is done."""
        with self._ended.mutex:
            if not self.done:
                self._waiting.append(call)
                return
        call_logged(call, self.topic)

    def awaiting(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Return a future of the batch's end; all coroutines of an event loop are woken by one call."""
        future = loop.create_future()
        with self._ended.mutex:
            if self.done:
                future.set_result(None)
            else:
                self._awaited.setdefault(loop, []).append(future)
        return future

    def wait(self, timeout: float | None) -> bool:
        """Wait until the batch is done; False if it is not after `timeout` seconds."""
        if not self.done:
            self._check_may_wait()
            with self._ended.mutex:
                return self._ended.wait_for(lambda: self.done, timeout)
        return True

    def _check_may_wait(self) -> None:
        """Raise InvalidStateError in the event loop of the sender, which would wait for itself."""
        if self.loop is not None:
            import asyncio

            if asyncio._get_running_loop() is self.loop:
                raise asyncio.InvalidStateError("the record is on its way: await the future")


def call_logged(call: Callable[[], object], topic: str) -> None:
    """Call an application's callback, and log what it raises."""
    try:
        call()
    except Exception:
        _logger.exception("a delivery callback of %s failed", topic)


def _call_all(calls: list[Callable[[], object]], topic: str) -> None:
    for call in calls:
        call_logged(call, topic)


def _release(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():  # cancelled
            future.set_result(None)


def _milliseconds(moment: float | int) -> int:
    """Return the timestamp for a moment (see ProducerBatch)."""
    return moment if type(moment) is int else int(moment * 1000)


def usual_bytes(values: Sequence[Any], keys: Sequence[Any] | None) -> int:
    """Return a size that few records exceed, judging by a sample."""
    pairs = zip(values[::_SAMPLE], (keys or values)[::_SAMPLE], strict=True)
    sizes = [len(value or b"") + (len(key or b"") if keys else 0) for value, key in pairs]
    return min(max(sizes), 2 * sum(sizes) // len(sizes))  # a few large ones must not close batches early


class RecordFuture:
    """The outcome of a sent record: call result(), or await it.

    It holds only its batch and a ticket; everything else is computed on demand.
    """

    __slots__ = ("_delivery", "_ticket")  # Producer.send() fills them
    _delivery: ProducerBatch
    _ticket: int

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self._delivery.done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the outcome and return where the record is stored; raises the error if it failed."""
        metadata, error = self._outcome(timeout)
        if error is not None:
            raise error
        assert metadata is not None
        return metadata

    get = result  # kafka-python's name

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Wait for the outcome and return the error, or None."""
        return self._outcome(timeout)[1]

    def add_done_callback(self, callback: Callable[[RecordFuture], object]) -> None:
        """Call `callback` with this future when it is done: now, or in the thread that completes it, or in
        the event loop of the sender.
        """
        self._delivery.when_done(partial(callback, self))

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        delivery = self._delivery
        if not delivery.done or delivery.is_unanswered:
            import asyncio

            try:
                if delivery.done:
                    yield  # let others run
                else:
                    yield from delivery.awaiting(delivery.loop or asyncio.get_running_loop())
            except asyncio.CancelledError as cancelled:
                cancelled.add_note("The record was sent: await its future again to see what became of it.")
                raise
        metadata, error = delivery.outcome(self._ticket)
        if error is not None:
            raise error
        assert metadata is not None
        return metadata

    def cancelled(self) -> bool:
        """Return False: a record that was sent is delivered, or fails, even if nobody waits for it."""
        return False

    def _outcome(self, timeout: float | None) -> tuple[RecordMetadata | None, Exception | None]:
        if not self._delivery.wait(timeout):
            raise DeliveryTimeoutError(self._delivery.topic, timeout)
        return self._delivery.outcome(self._ticket)
