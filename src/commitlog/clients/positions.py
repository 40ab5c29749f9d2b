"""Positions: where a consumer reads, which its caller may look at and change."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from commitlog.clients.fetcher import Fetcher, Place
from commitlog.errors import ClosedError, ConfigError, ForkedError
from commitlog.partitions.reader import LogReader
from commitlog.record import TopicPartition
from commitlog.topic import TopicSource


class OffsetAndTimestamp(NamedTuple):
    """The first record as late as asked for."""

    offset: int
    timestamp: int


class Positions:
    """A position in each assigned partition. One thread at a time calls a method; the others wait."""

    def __init__(self, log: TopicSource, fetcher: Fetcher) -> None:
        self._log = log
        self._fetcher = fetcher
        self._lock = threading.RLock()
        self._closed = False
        self._forked = False

    def _used(self) -> threading.RLock:
        """Return the lock to hold, and then to call _check_usable() again."""
        self._check_usable()
        return self._lock

    def _check_usable(self) -> None:
        if self._forked:
            raise ForkedError("the consumer")
        if self._closed:
            raise ClosedError("the consumer")

    def forked(self) -> None:
        """In a forked child: the consumer is the parent's, and so is who holds its lock."""
        self._forked = True
        self._lock = threading.RLock()

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions that are read now; those of a group change in poll()."""
        return set(self._fetcher.places)

    def _partition(self, name: tuple[str, int]) -> LogReader:
        found: LogReader = self._log.topic(name[0]).partition(name[1])
        return found

    # --- where to read

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Go on at `offset`; the next poll() reads there."""
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise ConfigError("offset", offset, "must be an integer, 0 or above")
        with self._used():
            self._check_usable()
            self._fetcher.place(TopicPartition(*partition)).seek(offset)

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Go to the first record of these partitions, or of all."""
        with self._used():
            self._check_usable()
            for place in self._places(partitions):
                place.seek(place.partition.start_offset)

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Go behind the last record of these partitions, or of all."""
        with self._used():
            self._check_usable()
            for place in self._places(partitions):
                place.seek(place.partition.high_watermark)

    def position(self, partition: tuple[str, int]) -> int:
        """Return the offset of the next record that is handed out; NoOffsetError if there is none yet."""
        with self._used():
            self._check_usable()
            return self._fetcher.place(TopicPartition(*partition)).found_position()

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Hand out nothing of these partitions (or of any) until resume(); they stay assigned."""
        with self._used():
            self._check_usable()
            for place in self._places(partitions):
                place.seek(place.position)
                place.paused = True

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Go on with these partitions, or with all."""
        with self._used():
            self._check_usable()
            for place in self._places(partitions):
                place.paused = False

    def paused(self) -> set[TopicPartition]:
        """Return the partitions that are paused."""
        return {name for name, place in self._fetcher.places.items() if place.paused}

    def _places(self, partitions: Iterable[tuple[str, int]]) -> list[Place]:
        named = [self._fetcher.place(TopicPartition(*partition)) for partition in partitions]
        return named or list(self._fetcher.places.values())

    # --- what is there

    def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """Return the first offset of each partition, assigned or not."""
        self._check_usable()
        return {TopicPartition(*one): self._partition(one).start_offset for one in partitions}

    def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """Return the offset behind the last record of each partition, assigned or not."""
        self._check_usable()
        return {TopicPartition(*one): self._partition(one).high_watermark for one in partitions}

    def offsets_for_times(
        self, timestamps: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record of each partition as late as its timestamp; None if there is none."""
        self._check_usable()
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for name, timestamp in timestamps.items():
            partition = self._partition(name)
            offset = partition.offset_for_timestamp(timestamp)
            record = None if offset is None else next(partition.records(offset), None)
            found[TopicPartition(*name)] = record and OffsetAndTimestamp(record.offset, record.timestamp)
        return found

    def lag(self) -> dict[TopicPartition, int]:
        """Return how many offsets lie between each position and the end."""
        with self._used():
            self._check_usable()
            return {
                name: max(place.partition.high_watermark - max(place.position, 0), 0)
                for name, place in self._fetcher.places.items()
            }
