"""Accumulator: a topic's batches on their way from a producer into partitions."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from commitlog.batches.encode import EncodedBatch, Rules, encode, totals
from commitlog.batches.format import NO_PRODUCER
from commitlog.clients.producer_batch import ProducerBatch, Share, Table, usual_bytes
from commitlog.clients.rate_limit import Throttle
from commitlog.config import MAX_INT32, ProducerConfig, TopicConfig
from commitlog.errors import BatchTooLargeError, CommitLogError, DiskFullError
from commitlog.partition import Partition
from commitlog.partitions.producer_state import SEQUENCES
from commitlog.tasks import Condition
from commitlog.topic import Topic, pick


class Written(NamedTuple):
    """A partition that took records, in the leader epoch that it had."""

    partition: Partition
    leader_epoch: int


class _Unfinished(NamedTuple):
    """A batch on its way: what is still to be appended of it, and what became of the rest."""

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
    ) -> None:
        self.topic = topic
        self.ready: deque[ProducerBatch] = deque()  # closed, in order; to be appended
        self.closing = False  # no time for another try
        self._config = config
        self._producer_id = producer_id
        self._throttle = throttle
        self._tell = tell
        self._appending = threading.RLock()  # a callback may send, and fill a batch
        self._sequences: dict[int, int] = {}
        self._small_bytes: int | None = None  # a size that hardly a record was above
        self._rules: tuple[TopicConfig, Rules] | None = None  # the second is made of the first
        self._unfinished: _Unfinished | None = None
        self._in_doubt = False  # whether a share may be appended without anybody knowing

    def open_batch(self, ended: Condition, size: int) -> ProducerBatch:
        """Begin a batch for a record of `size` bytes, and for those that follow."""
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
        """Append what is ready, in turn, up to the `last` batch that concerns the caller.

        A batch stays ready until all of it is appended: after Ctrl-C the next call goes on with it.
        """
        with self._appending:
            while self.ready and not (last and last.is_appended):
                batch = self.ready[0]
                if batch.has_records and not batch.is_appended:
                    self._append(batch)
                else:
                    self.ready.popleft()

    def _append(self, batch: ProducerBatch) -> None:
        """Append a batch, each partition's share of it; each record's future learns what failed."""
        topic = self.topic
        try:
            unfinished = self._begun(batch)
        except Exception as error:  # a partitioner's, say
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
        """Divide a batch by partition, once: Ctrl-C may have come when some of them had their share."""
        if self._unfinished is None or self._unfinished.batch is not batch:
            table = batch.columns()
            values, keys, *_ = table
            self._small_bytes = usual_bytes(values, keys)
            places = self.topic.places(keys or [None] * len(values), batch.chosen())
            self._unfinished = _Unfinished(batch, table, list(places), [])
        return self._unfinished

    def _append_share(self, unfinished: _Unfinished) -> None:
        """Append what goes to one partition: one batch, or halves of it where segments are small."""
        _, table, places, shares = unfinished
        number, rows = places[0]
        sequence, self._in_doubt = self._sequences.get(number, 0), False
        try:
            share, after = self._appended_share(table, number, rows, sequence)
        except BatchTooLargeError as error:
            each = rows or list(range(len(table[0])))
            if len(each) > 1:
                places[:1] = [(number, each[: len(each) // 2]), (number, each[len(each) // 2 :])]
                return
            share, after = Share(number, rows, -1, error), sequence
        except Exception as error:  # told by the future, the callback, flush() and close()
            share, after = Share(number, rows, -1, error), sequence
        except BaseException:  # Ctrl-C: what may be there must not be appended again
            if self._in_doubt:
                reason = f"the append to {self.topic.name}-{number} was interrupted: it is there, or not"
                shares += [Share(number, rows, -1, CommitLogError(reason))]
                del places[0]
            raise
        # no call in between: nothing interrupts this
        shares += [share]
        self._sequences[number] = after
        del places[0]

    def _appended_share(
        self, table: Table, number: int, rows: list[int] | None, sequence: int
    ) -> tuple[Share, int]:
        """Append to a partition; returns where the records are, and the sequence that comes next."""
        producer = (self._producer_id, 0, sequence) if self._config.enable_idempotence else NO_PRODUCER
        target = self.topic.partition(number)
        epoch = target.leader_epoch  # before the append: another leader may come at any time
        columns = table if rows is None else _picked(table, rows)
        batches = encode(*columns, self._current_rules(), time.time_ns() // 1_000_000, producer)
        first = self._append_and_retry(target, batches)
        self._throttle.take(totals(batches)[0])  # waited for by who sends, when no lock is held
        return Share(number, rows, first, None, epoch), (sequence + batches[0].span) % SEQUENCES

    def _append_and_retry(self, target: Partition, batches: tuple[EncodedBatch, ...]) -> int:
        """Append; a disk that is full is tried again for delivery_timeout_ms."""
        deadline = time.monotonic() + self._config.delivery_timeout_ms / 1000
        while True:
            try:
                self._in_doubt = not self._config.enable_idempotence  # or the partition knows it again
                return target.append_encoded(batches).start
            except DiskFullError:
                self._in_doubt = False
                if time.monotonic() >= deadline or self.closing:
                    raise
                time.sleep(self._config.retry_backoff_ms / 1000)

    def _current_rules(self) -> Rules:
        """Return how to encode; the topic's settings may have been altered since the last batch."""
        settings, compression = self.topic.config, self._config.compression_type
        if self._rules is None or self._rules[0] is not settings:
            codec = settings.compression_type if compression == "topic" else compression
            # each record was checked when it was sent: what is asked for since must not fail its neighbours
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
        times[rows],
    )
