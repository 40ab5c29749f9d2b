"""Accumulator: appends a producer's batches of one topic to its partitions."""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from commitlog.batches.encode import EncodedBatch, Rules, encode, totals
from commitlog.batches.format import NO_PRODUCER
from commitlog.clients.producer_batch import ProducerBatch, Share, Table, usual_bytes
from commitlog.clients.rate_limit import Throttle
from commitlog.config import MAX_INT32, ProducerConfig, TopicConfig
from commitlog.errors import BatchTooLargeError, CommitLogError, DiskFullError
from commitlog.partition import Partition
from commitlog.partitions.producer_state import SEQUENCES
from commitlog.record import TopicPartition
from commitlog.tasks import Condition
from commitlog.topic import Topic, pick

AppendInTransaction = Callable[[TopicPartition, Partition, tuple[EncodedBatch, ...]], int]


class Written(NamedTuple):
    """A partition that records were appended to, and its leader epoch at the time."""

    partition: Partition
    leader_epoch: int


class NotNow(BaseException):
    """The disk is full, and the caller does not want to wait; what was not appended stays ready."""


class _Unfinished(NamedTuple):
    """A partly appended batch: what is still to be appended, and the outcome of the rest."""

    batch: ProducerBatch
    table: Table
    places: list[tuple[int, list[int] | None]]
    shares: list[Share]


class Accumulator:
    """Appends the batches of one topic in turn, and reports where each was written."""

    def __init__(
        self,
        topic: Topic,
        config: ProducerConfig,
        producer_id: int,
        throttle: Throttle,
        tell: Callable[[ProducerBatch, list[Written]], None],
        append: AppendInTransaction | None = None,
    ) -> None:
        """`append` appends what belongs to a transaction, which numbers its batches itself."""
        self.topic = topic
        self.ready: deque[ProducerBatch] = deque()  # closed batches to append, in order
        self.closing = False  # then there are no more retries
        self.waits = True  # for room on a full disk; otherwise append_ready() raises NotNow
        self._config = config
        self._producer_id = producer_id
        self._throttle = throttle
        self._tell = tell
        self._append_in_transaction = append
        self._appending = threading.RLock()  # reentrant: a callback may send and fill a batch
        self._sequences: dict[int, int] = {}
        self._small_bytes: int | None = None  # a size that few records exceeded
        self._rules: tuple[TopicConfig, Rules] | None = None  # the config, and the rules made from it
        self._unfinished: _Unfinished | None = None
        self._in_doubt = False  # whether an interrupted append may have succeeded

    def open_batch(self, ended: Condition, size: int) -> ProducerBatch:
        """Return a new batch for a record of `size` bytes and those that follow."""
        config, settings = self._config, self.topic.config
        small = size if self._small_bytes is None else self._small_bytes
        batch = ProducerBatch(
            self.topic.name, ended, acks=config.acks, batch_size=config.batch_size, small_bytes=small
        )
        if config.key_serializer is None and config.value_serializer is None:
            batch.keyed_bytes = min(small, settings.max_message_bytes)
            batch.unkeyed_bytes = -1 if settings.compacts else batch.keyed_bytes
        return batch

    def append_ready(self, last: ProducerBatch | None = None) -> None:
        """Append the ready batches in order, up to `last`, the batch that the caller needs.

        A batch stays ready until all of it is appended: after Ctrl-C the next call continues with it.
        """
        with self._appending:
            while self.ready and not (last and last.is_appended):
                batch = self.ready[0]
                if batch.has_records and not batch.is_appended:
                    self._append(batch)
                else:
                    self.ready.popleft()

    def discard(self, error: Exception) -> None:
        """Let the batches fail that are ready but not appended: their transaction is aborted."""
        with self._appending:
            while self.ready:
                batch = self.ready[0]
                if batch.has_records and not batch.is_appended:
                    batch.appended([Share(-1, None, -1, error)])
                    self._unfinished = None
                    self._tell(batch, [])
                self.ready.popleft()

    def append_ready_if_free(self) -> bool:
        """Append the ready batches, unless another thread is appending: then returns False."""
        if not self._appending.acquire(blocking=False):
            return False
        try:
            self.append_ready()
        finally:
            self._appending.release()
        return True

    def _append(self, batch: ProducerBatch) -> None:
        """Append a batch, share by share; the futures of its records report failures."""
        topic = self.topic
        try:
            unfinished = self._begun(batch)
        except Exception as error:  # for example, of a custom partitioner
            shares = [Share(-1, None, -1, error)]
        else:
            shares = unfinished.shares
            while unfinished.places:
                self._append_share(unfinished)
        batch.appended(shares)
        done = [share for share in shares if share.error is None]
        try:
            self.ready.popleft()
        finally:
            self._tell(batch, [Written(topic.partition(one.partition), one.leader_epoch) for one in done])

    def _begun(self, batch: ProducerBatch) -> _Unfinished:
        """Divide a batch by partition, once: after Ctrl-C some shares may be appended already."""
        if self._unfinished is None or self._unfinished.batch is not batch:
            table = batch.columns()
            values, keys, *_ = table
            self._small_bytes = usual_bytes(values, keys)
            places = self.topic.places(keys or [None] * len(values), batch.chosen())
            self._unfinished = _Unfinished(batch, table, list(places), [])
        return self._unfinished

    def _append_share(self, unfinished: _Unfinished) -> None:
        """Append the share of one partition; it is halved if it does not fit into a segment."""
        batch, table, places, shares = unfinished
        number, rows = places[0]
        sequence, self._in_doubt = self._sequences.get(number, 0), False
        try:
            share, after = self._appended_share(batch, table, number, rows, sequence)
        except BatchTooLargeError as error:
            each = rows or list(range(len(table[0])))
            if len(each) > 1:
                places[:1] = [(number, each[: len(each) // 2]), (number, each[len(each) // 2 :])]
                return
            share, after = Share(number, rows, -1, error), sequence
        except Exception as error:  # reported by the future, the callback, flush() and close()
            share, after = Share(number, rows, -1, error), sequence
        except BaseException:  # Ctrl-C: what may have been appended must not be appended again
            if self._in_doubt:
                reason = f"the append to {self.topic.name}-{number} was interrupted and may have succeeded"
                shares += [Share(number, rows, -1, CommitLogError(reason))]
                del places[0]
            raise
        # there is no call in between, so nothing can interrupt this
        shares += [share]
        self._sequences[number] = after
        del places[0]

    def _appended_share(
        self, batch: ProducerBatch, table: Table, number: int, rows: list[int] | None, sequence: int
    ) -> tuple[Share, int]:
        """Append to a partition; returns the share with its offset, and the next sequence number."""
        numbers_itself = self._config.enable_idempotence and self._append_in_transaction is None
        producer = (self._producer_id, 0, sequence) if numbers_itself else NO_PRODUCER
        target = self.topic.partition(number)
        epoch = target.leader_epoch  # before the append: the leader may change at any time
        columns = table if rows is None else _picked(table, rows)
        batches = encode(*columns, self._current_rules(), time.time_ns() // 1_000_000, producer)
        first = self._append_and_retry(number, target, batches, batch.created)
        self._throttle.take(totals(batches)[0])  # the sender waits for it later, without a lock
        return Share(number, rows, first, None, epoch), (sequence + batches[0].span) % SEQUENCES

    def _append_and_retry(
        self, number: int, target: Partition, batches: tuple[EncodedBatch, ...], created: float
    ) -> int:
        """Append; while the disk is full, retry until the batch is older than delivery_timeout_ms."""
        while True:
            try:
                self._in_doubt = not self._config.enable_idempotence  # otherwise duplicates are recognized
                if self._append_in_transaction is not None:
                    return self._append_in_transaction(
                        TopicPartition(self.topic.name, number), target, batches
                    )
                return target.append_encoded(batches).start
            except DiskFullError:
                self._in_doubt, age = False, time.monotonic() - created
                if age >= self._config.delivery_timeout_ms / 1000 or self.closing:
                    raise
                if not self.waits:
                    raise NotNow from None
                time.sleep(self._config.retry_backoff_ms / 1000)

    def _current_rules(self) -> Rules:
        """Return the encoding rules; the topic's settings may have changed since the last batch."""
        settings, compression = self.topic.config, self._config.compression_type
        if self._rules is None or self._rules[0] is not settings:
            codec = settings.compression_type if compression == "topic" else compression
            # each record was checked when it was sent: rules made stricter since must not fail the batch
            unchecked = replace(
                settings, compression_type=codec, cleanup_policy="delete", max_message_bytes=MAX_INT32
            )
            self._rules = settings, Rules(unchecked)
        return self._rules[1]


def _picked(table: Table, rows: list[int]) -> Table:
    values, keys, headers, times = table
    return (
        pick(values, rows),
        None if keys is None else pick(keys, rows),
        None if headers is None else pick(headers, rows),
        times[np.frombuffer(array("q", rows), np.int64)],  # measured: a list would take 40 ns a row more
    )
