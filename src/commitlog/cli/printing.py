"""Records on their way out: where a consumer begins, what is printed, and what is committed."""

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
from commitlog.errors import CommitFailedError, OffsetOutOfRangeError, UnknownTopicError
from commitlog.log import CommitLog
from commitlog.partitions.reader import LogReader
from commitlog.record import TopicPartition

_POLL_SECONDS = 1.0
_POLL_BYTES = 8 << 20
_JOIN_SECONDS = 10.0  # a group with other members may take some seconds to share out its partitions


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin in each partition: one of these, or else at the beginning."""

    end: bool = False
    offset: int | None = None
    timestamp: int | None = None
    last: int | None = None

    def in_partition(self, partition: LogReader) -> int:
        """Return the offset; OffsetOutOfRangeError for one that is not there."""
        low, high = partition.start_offset, partition.high_watermark
        if self.offset is not None:
            if not low <= self.offset <= high:
                raise OffsetOutOfRangeError(partition.name, self.offset, low, high)
            return self.offset
        if self.timestamp is not None:
            found = partition.offset_for_timestamp(self.timestamp)
            return high if found is None else found
        if self.last is not None:
            return max(low, high - self.last)
        return high if self.end else low


Found = Mapping[TopicPartition, list[RecordBatch]]


class Printer:
    """Prints batches, up to a number of records."""

    def __init__(self, form: RecordFormat, limit: int | None) -> None:
        self._form = form
        self._left = limit
        self.cut_at: dict[TopicPartition, int] = {}  # where batches were cut, by the limit

    @property
    def done(self) -> bool:
        """Whether the limit is reached."""
        return self._left == 0

    def print(self, found: Found) -> None:
        """Print what was read, as far as the limit allows."""
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


class StillThere:
    """Watches a topic that is followed: files of one that was deleted can be read on, but nothing comes."""

    def __init__(self, log: CommitLog, topic: str) -> None:
        self._log = log
        self._topic = topic
        self._topic_id = log.topic(topic).topic_id

    def check(self) -> None:
        """End with an error if the topic was deleted, also if there is another by its name."""
        with suppress(UnknownTopicError):
            if self._log.topic(self._topic).topic_id == self._topic_id:
                return
        raise click.ClickException(f"topic {self._topic!r} was deleted")


def print_alone(
    log: CommitLog, consumer: Consumer, topic: str, partition: int | None, start: Start, printer: Printer, *,
    follow: bool,
) -> None:  # fmt: skip
    """Print the partitions of a topic, or one of them, up to where they end now; or for ever."""
    if partition is None:
        consumer.subscribe(topic)
    else:
        consumer.assign([(topic, partition)])
    ends = consumer.end_offsets(sorted(consumer.assignment()))
    for name in ends:
        consumer.seek(name, start.in_partition(log.topic(topic).partition(name.partition)))
    there = StillThere(log, topic)
    while not printer.done and (follow or _is_behind(consumer, ends)):
        before = {name: consumer.position(name) for name in consumer.assignment()}
        found = consumer.poll_batches(_POLL_SECONDS, _POLL_BYTES)
        _tell_of_trimmed(consumer, before, found)
        if follow:
            printer.print(found)
            flush_output()
            there.check()
        else:
            printer.print({name: _below(found[name], end) for name, end in ends.items() if name in found})


def _is_behind(consumer: Consumer, ends: Mapping[TopicPartition, int]) -> bool:
    """Say whether there is something to read below the ends; a log may have been truncated meanwhile."""
    lag = consumer.lag()
    return any(lag.get(name, 0) and consumer.position(name) < end for name, end in ends.items())


def _below(batches: list[RecordBatch], end: int) -> list[RecordBatch]:
    return [batch.slice(batch.base_offset, end) for batch in batches if batch.base_offset < end]


def _tell_of_trimmed(consumer: Consumer, before: Mapping[TopicPartition, int], found: Found) -> None:
    for name, batches in found.items():
        expected, first = before.get(name), batches[0].base_offset
        if expected is not None and expected < min(first, consumer.beginning_offsets([name])[name]):
            say(f"{name}: offsets [{expected}, {first}) were trimmed before they were read", err=True)


def print_in_group(log: CommitLog, consumer: Consumer, topic: str, printer: Printer, *, follow: bool) -> None:
    """Print what a member of a group is given, and commit what was printed."""
    consumer.subscribe(topic)
    there = StillThere(log, topic)
    deadline = time.monotonic() + _JOIN_SECONDS
    while not printer.done:
        found = consumer.poll_batches(_POLL_SECONDS, _POLL_BYTES)
        printer.print(found)
        flush_output()
        there.check()
        idle = not found and not any(consumer.lag().values())
        if found:
            with suppress(CommitFailedError):  # whoever reads the partition now begins before it
                consumer.commit(_printed(consumer, found, printer.cut_at))
        elif idle and not follow and (consumer.assignment() or time.monotonic() > deadline):
            return


def _printed(
    consumer: Consumer, found: Found, cut_at: Mapping[TopicPartition, int]
) -> dict[tuple[str, int], int | tuple[int, str]]:
    return {name: cut_at.get(name, consumer.position(name)) for name in found}
