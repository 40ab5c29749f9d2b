"""Print records with a consumer: where to start, where to stop, and what to commit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import click

from commitlog.batches.batch import RecordBatch
from commitlog.cli.output import flush_output, say, write_bytes
from commitlog.cli.record_format import RecordFormat
from commitlog.clients.consumer import Consumer
from commitlog.config import IsolationLevel
from commitlog.errors import CommitFailedError, OffsetOutOfRangeError, UnknownTopicError
from commitlog.log import CommitLog
from commitlog.partitions.reader import LogReader
from commitlog.record import TopicPartition

_POLL_SECONDS = 1.0
_POLL_BYTES = 8 << 20
_JOIN_SECONDS = 10.0  # a group with other members may need some seconds to assign partitions


@dataclass(frozen=True, slots=True)
class Start:
    """Where to start in each partition: one of these, or the beginning if none is set."""

    end: bool = False
    offset: int | None = None
    timestamp: int | None = None
    last: int | None = None

    def in_partition(self, partition: LogReader, level: IsolationLevel) -> int:
        """Return the start offset in a partition; OffsetOutOfRangeError if the partition does not have it."""
        low, high = partition.start_offset, partition.high_watermark
        if self.offset is not None:
            if not low <= self.offset <= high:
                raise OffsetOutOfRangeError(partition.name, self.offset, low, high)
            return self.offset
        end = partition.end_offset(level)
        if self.timestamp is not None:
            found = partition.offset_for_timestamp(self.timestamp, isolation_level=level)
            return end if found is None else found
        if self.last is not None:
            return _start_of_last(partition, self.last, end, level)
        return end if self.end else low


def _start_of_last(partition: LogReader, count: int, end: int, level: IsolationLevel) -> int:
    """Return where the last `count` records below `end` begin; some offsets have no record."""
    low = partition.start_offset
    span, found = count, 0
    while True:
        start = max(low, end - span)
        if start < end:
            found = partition.count_records(start, end, isolation_level=level)
        if found >= count or start == low:
            break
        span *= 4
    surplus = found - count
    for batch in partition.batches(start, end, isolation_level=level) if surplus > 0 else ():
        if surplus < len(batch):
            return int(batch.offsets[surplus])
        surplus -= len(batch)
    return start


Found = Mapping[TopicPartition, list[RecordBatch]]


class Printer:
    """Prints batches, up to a limit of records."""

    def __init__(self, form: RecordFormat, limit: int | None) -> None:
        self._form = form
        self._left = limit
        self.cut_at: dict[TopicPartition, int] = {}  # where the limit cut a batch

    @property
    def done(self) -> bool:
        """Whether the limit is reached."""
        return self._left == 0

    def print(self, found: Found) -> None:
        """Print batches, as far as the limit allows."""
        for name, batches in found.items():
            for batch in batches:
                self._print(name, batch)

    def _print(self, name: TopicPartition, batch: RecordBatch) -> None:
        if self._left is not None and len(batch) > self._left:
            end = int(batch.offsets[self._left])
            self.cut_at.setdefault(name, end)
            batch = batch.slice(batch.base_offset, end)
        if len(batch):
            write_bytes(self._form.render(name, batch))
        if self._left is not None:
            self._left -= len(batch)


def _check_not_deleted(log: CommitLog, topic: str, topic_id: str | None) -> None:
    """Raise an error if a topic was deleted, even if a new one has its name: its open files never grow."""
    with suppress(UnknownTopicError):
        if log.topic(topic).topic_id == topic_id:
            return
    raise click.ClickException(f"topic {topic!r} was deleted")


def print_alone(
    log: CommitLog, consumer: Consumer, topic: str, partition: int | None, start: Start, printer: Printer, *,
    follow: bool,
) -> None:  # fmt: skip
    """Print the partitions of a topic, or one of them, up to their present end; with `follow`, forever."""
    if partition is None:
        consumer.subscribe(topic)
    else:
        consumer.assign([(topic, partition)])
    ends = consumer.end_offsets(sorted(consumer.assignment()))
    for name in ends:
        reader = log.topic(topic).partition(name.partition)
        consumer.seek(name, start.in_partition(reader, consumer.config.isolation_level))
    topic_id = log.topic(topic).topic_id
    while not printer.done and (follow or _is_behind(consumer, ends)):
        before = {name: consumer.position(name) for name in consumer.assignment()}
        found = consumer.poll_batches(_POLL_SECONDS, _POLL_BYTES)
        _report_trimmed(consumer, before, found)
        if follow:
            printer.print(found)
            flush_output()
            _check_not_deleted(log, topic, topic_id)
        else:
            printer.print({name: _below(found[name], end) for name, end in ends.items() if name in found})


def _is_behind(consumer: Consumer, ends: Mapping[TopicPartition, int]) -> bool:
    """Return whether records are left below the ends; the log may have been truncated meanwhile."""
    lag = consumer.lag()
    return any(lag.get(name, 0) and consumer.position(name) < end for name, end in ends.items())


def _below(batches: list[RecordBatch], end: int) -> list[RecordBatch]:
    return [batch.slice(batch.base_offset, end) for batch in batches if batch.base_offset < end]


def _report_trimmed(consumer: Consumer, before: Mapping[TopicPartition, int], found: Found) -> None:
    for name, batches in found.items():
        expected, first = before.get(name), batches[0].base_offset
        if expected is not None and expected < min(first, consumer.beginning_offsets([name])[name]):
            say(f"{name}: offsets [{expected}, {first}) were trimmed before they were read", err=True)


def print_in_group(log: CommitLog, consumer: Consumer, topic: str, printer: Printer, *, follow: bool) -> None:
    """Print as a member of a group, and commit what was printed."""
    consumer.subscribe(topic)
    topic_id = log.topic(topic).topic_id
    deadline = time.monotonic() + _JOIN_SECONDS
    while not printer.done:
        found = consumer.poll_batches(_POLL_SECONDS, _POLL_BYTES)
        printer.print(found)
        flush_output()
        _check_not_deleted(log, topic, topic_id)
        idle = not found and not any(consumer.lag().values())
        if found:
            with suppress(CommitFailedError):  # the partition moved; its new owner reads these records again
                consumer.commit({name: printer.cut_at.get(name, consumer.position(name)) for name in found})
        elif idle and not follow and (consumer.assignment() or time.monotonic() > deadline):
            return
