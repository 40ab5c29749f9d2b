"""Fetcher: reads the partitions of a consumer, and keeps its position in each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Literal, TypeVar

from commitlog.batches.batch import RecordBatch
from commitlog.bells import FIRST_PAUSE, LONGEST_PAUSE, Listener
from commitlog.clients.rate_limit import Throttle
from commitlog.config import IsolationLevel
from commitlog.errors import (
    CommitLogError,
    DeserializationError,
    NoOffsetError,
    NotAssignedError,
    OffsetOutOfRangeError,
)
from commitlog.partitions.reader import LogReader
from commitlog.partitions.sources import look_again_after
from commitlog.record import ConsumerRecord, TopicPartition
from commitlog.speedups import native

Deserializer = Callable[[bytes | None], Any]
Reset = Literal["earliest", "latest", "none"]

Item = TypeVar("Item")

NOWHERE = -1
GROUP_SECONDS = 0.02  # an append ends a wait, but changes of a group have to be polled
_MANY = 2_000  # measured: from here on it pays to make records that the garbage collector does not visit


def take_records(found: list[ConsumerRecord], rows: Iterator[ConsumerRecord], limit: int) -> None:
    """Add up to `limit` records to a list; after an error it holds what came before."""
    if native is None or limit < _MANY:
        found.extend(islice(rows, limit))
    else:
        native.take_records(ConsumerRecord, found, rows, limit)


class Place:
    """The position of a consumer in a partition.

    `position` is the offset of the next record to return, `fetched` that of the next one to read: they differ
    while records are returned one by one. NOWHERE is a position that is not known yet.
    """

    __slots__ = (
        "_end", "_in_memory", "_reset", "_rows", "fetched", "isolation_level", "name", "partition", "paused",
        "position", "version",
    )  # fmt: skip

    def __init__(
        self,
        name: TopicPartition,
        partition: LogReader,
        position: int,
        reset: Reset,
        isolation_level: IsolationLevel = "read_committed",
    ) -> None:
        self.name = name
        self.partition = partition
        self.isolation_level: IsolationLevel = isolation_level
        self.position = self.fetched = position
        self.paused = False
        self.version = 0  # changes when records that were fetched must not be returned any more
        self._reset = reset
        self._rows: Iterator[ConsumerRecord] | None = None  # [fetched, _end), kept from poll to poll
        self._end = self._in_memory = position
        if reset != "none":
            self._settle()  # "latest" means now

    def seek(self, offset: int) -> None:
        """Continue at `offset`."""
        self.position = self.fetched = offset
        self.version += 1
        self._rows = None

    def unread(self, offset: int) -> None:
        """Read again from `offset`, which was fetched already."""
        self.fetched = offset
        self._rows = None

    def _have_read(self, end: int) -> None:
        self._in_memory = end

    def has_in_memory(self, count: int) -> bool:
        """Say whether the next `count` records were read from the files already; if compaction has left
        gaps, there may be fewer.
        """
        return self._rows is not None and self.fetched + count <= self._in_memory

    @property
    def end_offset(self) -> int:
        """Where this consumer stops for now."""
        partition = self.partition
        if self.isolation_level == "read_committed":
            return partition.last_stable_offset
        return partition.high_watermark

    @property
    def is_at_end(self) -> bool:
        """Whether there is nothing to read and the position is valid; it may lie in an open transaction."""
        return self.end_offset <= self.fetched <= self.partition.next_offset

    @property
    def lag(self) -> int:
        """How far this consumer is behind; see LogReader.lag()."""
        return self.partition.lag(max(self.position, 0), isolation_level=self.isolation_level)

    def records(self, limit: int) -> list[ConsumerRecord]:
        """Return up to `limit` records, none at the end, and move past them.

        Damage in the log is raised after all records before it have been returned.
        """
        found: list[ConsumerRecord] = []
        while not found and self._has_more():
            problem: CommitLogError | None = None
            rows, self._rows = self._rows, None  # whatever interrupts the read, it starts again
            try:
                if rows is None:
                    self._end = self.end_offset
                    rows = self.partition.consumer_records(
                        self.name, self.fetched, self._end, self._have_read,
                        isolation_level=self.isolation_level,
                    )  # fmt: skip
                take_records(found, rows, limit)
            except CommitLogError as error:
                problem = error
            if len(found) == limit:
                self.fetched = found[-1].offset + 1
                self._rows = rows
            else:
                self._range_is_over(found[-1].offset + 1 if found else None, problem)
        if not found:
            self.position = self.fetched
        return found

    def _range_is_over(self, after: int | None, problem: CommitLogError | None) -> None:
        if problem is None:
            self.fetched = min(self._end, self.end_offset)  # truncated meanwhile
        elif after is not None:
            self.fetched = after
        elif not isinstance(problem, OffsetOutOfRangeError):  # trimmed meanwhile: see _has_more()
            raise problem

    def batches(self, max_bytes: int) -> list[RecordBatch]:
        """Return batches of `max_bytes` or just above, none at the end, and move past them."""
        found: list[RecordBatch] = []
        self._rows = None
        while not found and self._has_more():
            end, size = self.end_offset, 0
            try:
                for batch in self.partition.combined_batches(
                    self.fetched, end, max_bytes // 4, isolation_level=self.isolation_level
                ):
                    found.append(batch)
                    self.fetched = batch.next_offset
                    size += batch.unpacked_bytes
                    if size >= max_bytes:
                        return found
                self.fetched = min(end, self.end_offset)
            except OffsetOutOfRangeError:  # trimmed meanwhile: see _has_more()
                continue
            except CommitLogError:
                if not found:
                    raise
        if not found:
            self.position = self.fetched
        return found

    def found_position(self) -> int:
        """Return the position; NoOffsetError if it is not known yet."""
        if self.position == NOWHERE:
            raise NoOffsetError(*self.name)
        return self.position

    def _has_more(self) -> bool:
        self._settle()
        return self.fetched < self.end_offset

    def _settle(self) -> None:
        """If the position is outside the log, apply auto_offset_reset."""
        low, high = self.partition.start_offset, self.partition.next_offset
        if low <= self.fetched <= high:
            return
        if self._reset == "none":
            if self.fetched == NOWHERE:
                raise NoOffsetError(*self.name)
            raise OffsetOutOfRangeError(self.partition.name, self.fetched, low, high)
        self.seek(low if self._reset == "earliest" else self.end_offset)


class Fetcher:
    """Reads the partitions of a consumer in turn, so that none of them starves the others."""

    def __init__(
        self,
        key_deserializer: Deserializer | None,
        value_deserializer: Deserializer | None,
        throttle: Throttle,
    ) -> None:
        self.throttle = throttle
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self.places: dict[TopicPartition, Place] = {}  # the next one to read comes first
        self.event = Listener()  # ends a wait
        self._pause = FIRST_PAUSE  # after a bell that was rung for another partition

    def place(self, name: TopicPartition) -> Place:
        """Return the place in a partition; NotAssignedError if it is not assigned."""
        found = self.places.get(TopicPartition(*name))
        if found is None:
            raise NotAssignedError(*name)
        return found

    def drop(self, names: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions; records already fetched from them are not returned."""
        for name in names:
            place = self.places.pop(name, None)
            if place is not None:
                place.version += 1

    def rewind(self) -> None:
        """Go back to the position of each partition: an iteration may have ended before its last record."""
        for place in self.places.values():
            if place.fetched != place.position:
                place.seek(place.position)

    def positions(self) -> dict[TopicPartition, int]:
        """Return the position in each open partition that has one."""
        return {
            name: place.position
            for name, place in self.places.items()
            if place.position != NOWHERE and not place.partition.closed
        }

    # --- reading

    def records(self, limit: int) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return up to `limit` records, by partition."""
        return self._in_turn(self._read, limit, len)

    def batches(self, max_bytes: int) -> dict[TopicPartition, list[RecordBatch]]:
        """Return batches of `max_bytes` or just above, by partition."""
        found = self._in_turn(Place.batches, max_bytes, _unpacked_bytes)
        self.throttle.take(sum(batch.size_bytes for batches in found.values() for batch in batches))
        return found

    def _in_turn(
        self, read: Callable[[Place, int], list[Item]], budget: int, cost: Callable[[list[Item]], int]
    ) -> dict[TopicPartition, list[Item]]:
        """Read one partition after another while the budget lasts; those read move to the end."""
        found: dict[TopicPartition, list[Item]] = {}
        for place in list(self.places.values()):
            try:
                items = [] if place.paused else read(place, budget)
            except Exception:
                if not found:
                    raise
                break  # it comes first the next time, and nothing read so far is lost
            if items:
                found[place.name] = items
                self.places[place.name] = self.places.pop(place.name)
                budget -= cost(items)
                if budget <= 0:
                    break
        return found

    def _read(self, place: Place, limit: int) -> list[ConsumerRecord]:
        records = place.records(limit)
        if self.throttle.is_limited:
            self.throttle.take(sum(len(one.key or b"") + len(one.value or b"") for one in records))
        if self._key_deserializer is None and self._value_deserializer is None:
            return records
        for row, record in enumerate(records):
            try:
                records[row] = record._replace(**self._deserialized(record))
            except Exception as problem:
                place.unread(record.offset)
                if row:
                    return records[:row]  # return those before it first
                raise DeserializationError(*place.name, record.offset, repr(problem)) from problem
        return records

    def _deserialized(self, record: ConsumerRecord) -> dict[str, Any]:
        of_key, of_value = self._key_deserializer, self._value_deserializer
        return {
            "key": record.key if of_key is None else of_key(record.key),
            "value": record.value if of_value is None else of_value(record.value),
        }

    # --- waiting

    def wait(self, seconds: float, ended: Callable[[], bool]) -> None:
        """Wait until there is something to read, `event` is set, `ended()` is true, or `seconds` have passed.

        A consumer over its quota waits for that first.
        """
        slow_down = self.throttle.seconds_left()
        if slow_down > 0:
            self.event.wait(min(slow_down, seconds, GROUP_SECONDS))
            return
        waiting = [place for place in self.places.values() if not place.paused]
        watched: list[Place] = []
        try:
            for place in waiting:
                if place.partition.watch(self.event):
                    watched.append(place)
            self._wait(waiting, time.monotonic() + seconds, ended, notified=len(watched) == len(waiting))
        finally:
            for place in watched:
                place.partition.unwatch(self.event)
            self.event.ignore_bells()  # Ctrl-C may have come before one was in the list
            self.event.clear()

    def _wait(
        self, waiting: list[Place], deadline: float, ended: Callable[[], bool], *, notified: bool
    ) -> None:
        began = time.monotonic()
        while all(place.is_at_end for place in waiting) and not ended():
            now = time.monotonic()
            if now >= deadline:
                return
            pause = GROUP_SECONDS if notified else look_again_after(now - began)
            if self.event.wait(min(pause, deadline - now)):
                if self.event.is_set() or not all(place.is_at_end for place in waiting):
                    self._pause = FIRST_PAUSE
                else:
                    time.sleep(self._pause)
                    self._pause = min(2 * self._pause, LONGEST_PAUSE)
                return


def _unpacked_bytes(batches: list[RecordBatch]) -> int:
    return sum(batch.unpacked_bytes for batch in batches)
