"""Producer: records sent one by one, appended in batches. Kafka's names, so that code moves over.

Whoever sends the record that fills a batch appends it, there and then: no other thread has to be waited for,
and a producer that is too fast is slowed down by its own work. A thread of the producer appends what has
waited for linger_ms, and syncs what is to be durable.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, Self

from commitlog.background import Task, TaskHealth
from commitlog.columns import Buffer
from commitlog.config import ProducerConfig
from commitlog.delivery import Callback, Delivery, RecordFuture, Share
from commitlog.encode import EncodedBatch, Rules, encode, pack_headers, totals
from commitlog.errors import (
    BufferFullError,
    ClosedError,
    CommitLogError,
    DiskFullError,
    InvalidRecordError,
    RecordTooLargeError,
)
from commitlog.format import NO_PRODUCER
from commitlog.meter import Throttle
from commitlog.partition import Partition
from commitlog.producers import SEQUENCES
from commitlog.record import Headers
from commitlog.topic import Topic

_RECORD_BYTES = 64  # what a record takes of buffer_memory beside key and value
_IDLE_SECONDS = 60.0
_logger = logging.getLogger("commitlog")
_future = partial(tuple.__new__, RecordFuture)


class TopicSource(Protocol):
    """What a producer asks of the log it belongs to."""

    def topic(self, name: str) -> Topic:
        """Return a topic."""


class _Lane:
    """The way of a topic's records: the batch that is being filled, and those that are to be appended."""

    def __init__(self, topic: Topic, config: ProducerConfig) -> None:
        self.topic = topic
        settings = topic.config
        if config.compression_type != "topic":
            settings = replace(settings, compression_type=config.compression_type)
        self.rules = Rules(settings)
        self.max_message_bytes = settings.max_message_bytes
        self.filling: Delivery | None = None
        self.ready: deque[Delivery] = deque()
        self.appending = threading.Lock()
        self.sequences: dict[int, int] = {}


class _Unsynced(NamedTuple):
    delivery: Delivery
    partitions: list[Partition]


class Producer:
    """Sends records to the topics of a log; threads may share it. Use it as a context manager, or close() it.

    acks says when a record counts as delivered: 0 at once, 1 when it is written and readers see it, "all"
    when it is synced (and replicated, where there are replicas). With enable_idempotence, batches carry the
    producer's number and theirs, so that one which is appended again after an error is not there twice.
    """

    def __init__(self, log: TopicSource, config: ProducerConfig, throttle: Throttle) -> None:
        self.config = config
        self._batch_size = config.batch_size
        self.producer_id = int.from_bytes(os.urandom(8), "little") >> 1
        self._log = log
        self._throttle = throttle
        self._lock = threading.Lock()
        self._lanes: dict[str, _Lane] = {}
        self._unsynced: deque[_Unsynced] = deque()
        self._unsynced_bytes = 0
        self._ended = threading.Condition()
        self._lost: Exception | None = None
        self._closed = False
        self._task = Task("producer", self._work)
        self._task.start()

    # --- sending

    def send(
        self,
        topic: str,
        value: Buffer | None = None,
        key: Buffer | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: Callback | None = None,
    ) -> RecordFuture:
        """Put a record on its way; returns what tells, when asked, where it is.

        A record that cannot be sent is refused here. Whoever fills a batch waits until it is appended.
        """
        lane = self._lanes.get(topic) or self._lane_of(topic)
        extras = headers is not None or partition is not None or on_delivery is not None
        if type(value) is bytes and type(key) is bytes and not extras:
            size = len(value) + len(key)
        else:
            value, key, size = _checked(lane.topic, value, key, headers, partition)
        if size > lane.max_message_bytes:
            raise RecordTooLargeError(0, size, lane.max_message_bytes)
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        elif type(timestamp) is not int or not 0 <= timestamp < 1 << 63:
            reason = f"timestamp must be milliseconds since the epoch, not {timestamp!r:.80}"
            raise InvalidRecordError(0, reason)
        with self._lock:
            delivery = lane.filling or self._start(lane)
            row = len(delivery.values)
            delivery.values.append(value)
            delivery.keys.append(key)
            delivery.timestamps.append(timestamp)
            delivery.size_bytes += size + _RECORD_BYTES
            if extras:
                delivery.add_extras(row, headers, partition, on_delivery)
            if delivery.size_bytes >= self._batch_size:
                lane.ready.append(delivery)
                lane.filling = None
        if lane.ready:
            self._append_ready(lane)
            self._wait_for_room()
            self._throttle.wait()
        return _future((delivery, row))

    def _lane_of(self, name: str) -> _Lane:
        topic = self._log.topic(name)
        with self._lock:
            return self._lanes.setdefault(name, _Lane(topic, self.config))

    def _start(self, lane: _Lane) -> Delivery:
        if self._closed:
            raise ClosedError("the producer")
        delivery = lane.filling = Delivery(lane.topic.name, self._ended, acks=self.config.acks)
        self._task.wake()
        return delivery

    def _wait_for_room(self) -> None:
        """Hold back who sends faster than records become durable."""
        limit, seconds = self.config.buffer_memory, self.config.max_block_ms / 1000
        if self._unsynced_bytes > limit:
            with self._ended:
                if not self._ended.wait_for(lambda: self._unsynced_bytes <= limit, seconds):
                    raise BufferFullError(limit, self.config.max_block_ms)

    # --- appending

    def _append_ready(self, lane: _Lane) -> None:
        with lane.appending:
            while lane.ready:
                self._append(lane, lane.ready.popleft())

    def _append(self, lane: _Lane, delivery: Delivery) -> None:
        """Append a batch, each partition's share of it; whatever fails is told to those it concerns."""
        shares = [self._append_share(lane, delivery, *share) for share in delivery.shares(lane.topic)]
        delivery.appended(shares)
        written = [lane.topic.partition(share.partition) for share in shares if share.error is None]
        if self.config.acks == "all" and written:
            with self._ended:
                self._unsynced.append(_Unsynced(delivery, written))
                self._unsynced_bytes += delivery.size_bytes
            self._task.wake()
        else:
            self._end(delivery)

    def _append_share(self, lane: _Lane, delivery: Delivery, number: int, rows: list[int] | None) -> Share:
        sequence = lane.sequences.get(number, 0)
        producer = (self.producer_id, 0, sequence) if self.config.enable_idempotence else NO_PRODUCER
        try:
            target = lane.topic.partition(number)
            columns = delivery.columns(rows)
            batches = encode(*columns, lane.rules, time.time_ns() // 1_000_000, producer)
            first = self._append_and_retry(target, batches)
        except Exception as error:  # told by the future, the callback, flush() and close()
            return Share(number, rows, -1, error)
        lane.sequences[number] = (sequence + batches[0].span) % SEQUENCES
        self._throttle.take(totals(batches)[0])  # waited for by who sends, when no lock is held
        return Share(number, rows, first, None)

    def _append_and_retry(self, target: Partition, batches: tuple[EncodedBatch, ...]) -> int:
        """Append; a disk that is full is tried again for delivery_timeout_ms."""
        deadline = time.monotonic() + self.config.delivery_timeout_ms / 1000
        while True:
            try:
                return target.append_encoded(batches).start
            except DiskFullError:
                if time.monotonic() >= deadline or self._closed:
                    raise
                time.sleep(self.config.retry_backoff_ms / 1000)

    def _end(self, delivery: Delivery) -> None:
        error = delivery.end()
        if error is not None and not delivery.has_callbacks:
            _logger.error("records for %s were not delivered: %s", delivery.topic, error)
            self._lost = self._lost or error

    # --- behind the sender's back

    def _work(self) -> float:
        """Append what has waited long enough, and sync; returns when to come again.

        A throttled producer's batches wait longer, until they are full: then it is the sender who waits.
        """
        linger = self.config.linger_ms / 1000
        pause, throttled = _IDLE_SECONDS, self._throttle.seconds_left()
        for lane in list(self._lanes.values()):
            due = None
            with self._lock:
                delivery = lane.filling
                if delivery is not None:
                    due = max(delivery.created + linger - time.monotonic(), throttled)
                    if due <= 0:
                        lane.ready.append(delivery)
                        lane.filling = None
            if due is not None and due > 0:
                pause = min(pause, due)
            self._append_ready(lane)
        self._sync()
        return pause

    def _sync(self) -> None:
        """Make durable what was appended; those who share a partition share a sync."""
        with self._ended:
            waiting = list(self._unsynced)
        for partition in {partition for one in waiting for partition in one.partitions}:
            try:
                partition.sync()
            except CommitLogError as error:
                for one in waiting:
                    if partition in one.partitions:
                        one.delivery.fail(error)
        for one in waiting:
            self._end(one.delivery)
            with self._ended:
                self._unsynced.popleft()
                self._unsynced_bytes -= one.delivery.size_bytes
                self._ended.notify_all()

    def health(self) -> tuple[TaskHealth, ...]:
        """Tell how the producer's thread fares."""
        return (self._task.health(),)

    # --- the end

    def forked(self) -> None:
        """In a forked child: what the producer holds is the parent's to deliver."""

    def flush(self) -> None:
        """Deliver everything that was sent so far; raises what went wrong, if nobody has been told of it."""
        for lane in list(self._lanes.values()):
            with self._lock:
                if lane.filling is not None:
                    lane.ready.append(lane.filling)
                    lane.filling = None
            self._append_ready(lane)
        self._task.wake()
        with self._ended:
            self._ended.wait_for(lambda: not self._unsynced)
        self._throttle.wait()
        lost, self._lost = self._lost, None
        if lost is not None:
            raise lost

    def close(self) -> None:
        """Deliver what was sent, and stop. Closing twice is fine."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._throttle.stop()
        try:
            self.flush()
        finally:
            self._task.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _checked(
    topic: Topic, value: Any, key: Any, headers: Headers | None, partition: int | None
) -> tuple[bytes | None, bytes | None, int]:
    """Return value and key as bytes that nobody changes, and the record's size; or refuse the record."""
    value, key = _as_bytes(value, "value"), _as_bytes(key, "key")
    if partition is not None:
        topic.partition(partition)
    if key is None and topic.config.compacts:
        raise InvalidRecordError(0, "a compacted topic needs a key in every record")
    size = len(value or b"") + len(key or b"")
    if headers:
        packed = pack_headers([headers])
        size += len(packed.names.blob) + len(packed.values.blob)
    return value, key, size


def _as_bytes(given: Any, what: str) -> bytes | None:
    if given is None or type(given) is bytes:
        return given
    if isinstance(given, bytearray | memoryview | bytes):
        return bytes(given)
    raise InvalidRecordError(0, f"{what} must be bytes-like or None, not {type(given).__name__}")
