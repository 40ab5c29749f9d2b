"""Positions: the part of a consumer that shows and changes where it reads."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from commitlog.clients.fetcher import Fetcher, Place
from commitlog.config import IsolationLevel
from commitlog.errors import ClosedError, ConfigError, ForkedError
from commitlog.partitions.reader import LogReader
from commitlog.record import TopicPartition
from commitlog.topic import TopicSource


class OffsetAndTimestamp(NamedTuple):
    """The offset and timestamp of the first record at or after a requested time."""

    offset: int
    timestamp: int


class Positions:
    """A position in each assigned partition. Calls from several threads are serialized."""

    def __init__(self, log: TopicSource, fetcher: Fetcher, isolation_level: IsolationLevel) -> None:
        self._log = log
        self._fetcher = fetcher
        self._isolation_level: IsolationLevel = isolation_level
        self._lock = threading.RLock()
        self._closed = False
        self._forked = False

    def _used(self) -> threading.RLock:
        """Return the lock; once it is held, the caller checks _check_usable() again."""
        self._check_usable()
        return self._lock

    def _check_usable(self) -> None:
        if self._forked:
            raise ForkedError("the consumer")
        if self._closed:
            raise ClosedError("the consumer")

    def forked(self) -> None:
        """In a forked child: disable the consumer, which the parent owns, and replace its lock."""
        self._forked = True
        self._lock = threading.RLock()

    def assignment(self) -> set[TopicPartition]:
        """Return the assigned partitions; in a group they change inside poll()."""
        return set(self._fetcher.places)

    def _partition(self, name: tuple[str, int]) -> LogReader:
        found: LogReader = self._log.topic(name[0]).partition(name[1])
        return found

    # --- positions

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Continue at `offset` with the next poll()."""
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise ConfigError("offset", offset, "must be a non-negative integer")
        with self._used():
            self._check_usable()
            self._fetcher.place(TopicPartition(*partition)).seek(offset)

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Continue at the first record of these partitions, or of all."""
        with self._used():
            self._check_usable()
            for place in self._places(partitions):
                place.seek(place.partition.start_offset)

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Continue after the last record of these partitions, or of all."""
        with self._used():
            self._check_usable()
            for place in self._places(partitions):
                place.seek(place.end_offset)

    def position(self, partition: tuple[str, int]) -> int:
        """Return the offset of the next record to be returned; NoOffsetError if it is not known yet."""
        with self._used():
            self._check_usable()
            return self._fetcher.place(TopicPartition(*partition)).found_position()

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Return no records of these partitions, or of any, until resume(); they stay assigned."""
        with self._used():
            self._check_usable()
            for place in self._places(partitions):
                place.seek(place.position)
                place.paused = True

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Resume reading these partitions, or all."""
        with self._used():
            self._check_usable()
            for place in self._places(partitions):
                place.paused = False

    def paused(self) -> set[TopicPartition]:
        """Return the paused partitions."""
        return {name for name, place in self._fetcher.places.items() if place.paused}

    def _places(self, partitions: Iterable[tuple[str, int]]) -> list[Place]:
        named = [self._fetcher.place(TopicPartition(*partition)) for partition in partitions]
        return named or list(self._fetcher.places.values())

    # --- bounds

    def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """Return the first offset of each partition, assigned or not."""
        self._check_usable()
        return {TopicPartition(*one): self._partition(one).start_offset for one in partitions}

    def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """Return the offset after the last record of each partition, assigned or not."""
        self._check_usable()
        return {
            TopicPartition(*one): self._partition(one).end_offset(self._isolation_level) for one in partitions
        }

    def offsets_for_times(
        self, timestamps: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return, for each partition, the first record at or after a timestamp, or None."""
        self._check_usable()
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for name, timestamp in timestamps.items():
            partition = self._partition(name)
            level = self._isolation_level
            offset = partition.offset_for_timestamp(timestamp, isolation_level=level)
            record = None if offset is None else next(partition.records(offset, isolation_level=level), None)
            found[TopicPartition(*name)] = record and OffsetAndTimestamp(record.offset, record.timestamp)
        return found

    def lag(self) -> dict[TopicPartition, int]:
        """Return how far each position is behind: records if few are left, otherwise offsets."""
        with self._used():
            self._check_usable()
            return {name: place.lag for name, place in self._fetcher.places.items()}
