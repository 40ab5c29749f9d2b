"""Consumer: reads partitions in order, alone or in a group. Kafka's names, so that code moves over."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from commitlog.batches.batch import RecordBatch
from commitlog.clients.fetcher import NOWHERE, Fetcher, Place
from commitlog.clients.positions import Positions
from commitlog.clients.rate_limit import Throttle
from commitlog.clients.session import GroupSession, OnCommit, RebalanceListener
from commitlog.config import ConsumerConfig
from commitlog.errors import ConfigError, UnknownPartitionError, UnknownTopicError
from commitlog.groups.member import GroupMember, GroupMetadata
from commitlog.groups.offsets import OffsetAndMetadata
from commitlog.record import ConsumerRecord, TopicPartition
from commitlog.tasks import TaskHealth
from commitlog.topic import TopicSource

if TYPE_CHECKING:
    import pyarrow as pa

Found = TypeVar("Found")
Committable = int | tuple[int, str]  # an offset, with a note or without; OffsetAndMetadata is one

_NEVER = float("inf")


class GroupSource(TopicSource, Protocol):
    """What a consumer asks of the log it belongs to."""

    def group_member(self, config: ConsumerConfig) -> GroupMember:
        """Return a place in a group, not taken yet."""


class Consumer(Positions):
    """Reads topics; use it as a context manager, or close() it.

    Threads may share it, but wait for one another: each call is made by one thread at a time. close() ends a
    poll() that waits in another thread.
    """

    def __init__(self, log: GroupSource, config: ConsumerConfig, throttle: Throttle) -> None:
        super().__init__(log, Fetcher(config.key_deserializer, config.value_deserializer, throttle))
        self.config = config
        self._closing = False
        self._subscription: Callable[[], set[str]] | None = None
        self._look_at = 0.0
        self._session: GroupSession | None = None
        if config.group_id is not None:
            member = log.group_member(config)
            self._session = GroupSession(member, config, self._fetcher, self)

    def __repr__(self) -> str:
        group = "" if self.config.group_id is None else f" of group {self.config.group_id!r}"
        if self._closed:
            return f"<Consumer{group}: closed>"
        reads = ", ".join(str(name) for name in sorted(self._fetcher.places))
        return f"<Consumer{group} reads {reads or 'nothing'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what to read

    def subscribe(
        self,
        topics: str | Iterable[str] = (),
        *,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read these topics, or all whose whole name fits a regular expression, those to come included.

        In a group the members share the partitions; alone, the consumer reads all of them.
        """
        names = {topics} if isinstance(topics, str) else set(topics)
        if bool(names) == (pattern is not None):
            raise ConfigError("topics", topics, "give topics, or a pattern")
        if pattern is not None:
            fits = _compiled(pattern).fullmatch
            chosen: Callable[[], set[str]] = lambda: set(filter(fits, self._log.topics()))  # noqa: E731
        else:
            for name in names:
                self._log.topic(name)  # UnknownTopicError, if there is none
            chosen = lambda: names  # noqa: E731
        with self._used():
            self._check_usable()
            self._leave_what_was()
            self._subscription = chosen
            if self._session is not None:
                self._session.subscribe(chosen, listener or RebalanceListener())
            else:
                self._look_at = 0.0
                self._read_all()

    def subscription(self) -> set[str]:
        """Return the topics that are subscribed to."""
        return set() if self._subscription is None else set(self._subscription())

    def unsubscribe(self) -> None:
        """Read nothing; leave the group."""
        with self._used():
            self._check_usable()
            self._leave_what_was()

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read just these partitions, outside of what a group shares out."""
        wanted = [TopicPartition(*partition) for partition in partitions]
        for name in wanted:
            self._partition(name)
        with self._used():
            self._check_usable()
            self._leave_what_was()
            self._begin(wanted)

    def _leave_what_was(self) -> None:
        if self._session is not None:
            self._session.leave()
        self._fetcher.drop(list(self._fetcher.places))
        self._subscription = None

    def _read_all(self) -> None:
        """Without a group: read all partitions of what is subscribed to; new ones are looked for."""
        now = time.monotonic()
        if now < self._look_at or self._subscription is None:
            return
        self._look_at = now + self.config.heartbeat_interval_ms / 1000
        known = set(self._log.topics())
        there = {
            TopicPartition(name, number)
            for name in self._subscription() & known
            for number in range(len(self._log.topic(name).partitions))
        }
        self._fetcher.drop(set(self._fetcher.places) - there)
        self._begin(there - set(self._fetcher.places))

    def _begin(self, names: Iterable[TopicPartition]) -> None:
        """Start to read partitions, where the group has committed or auto_offset_reset says."""
        committed = {} if self._session is None else self._session.committed()
        for name in sorted(names):
            try:
                partition = self._partition(name)
            except (UnknownTopicError, UnknownPartitionError):  # deleted meanwhile
                continue
            start = committed[name].offset if name in committed else NOWHERE
            self._fetcher.places[name] = Place(name, partition, start, self.config.auto_offset_reset)

    # --- reading

    def poll(
        self, timeout: float = 0.0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return records, in order within each partition; wait up to `timeout` seconds if there are none.

        Whatever a group has to do is done in here, so poll() must be called within max_poll_interval_ms.
        """
        limit = _at_least_1("max_records", max_records, self.config.max_poll_records)
        with self._used():
            self._check_usable()
            return self._handed_over(self._poll(timeout, lambda: self._fetcher.records(limit)))

    def poll_batches(
        self, timeout: float = 0.0, max_bytes: int | None = None
    ) -> dict[TopicPartition, list[RecordBatch]]:
        """Return columnar batches, up to fetch_max_bytes or just above; see poll()."""
        limit = _at_least_1("max_bytes", max_bytes, self.config.fetch_max_bytes)
        with self._used():
            self._check_usable()
            return self._handed_over(self._poll(timeout, lambda: self._fetcher.batches(limit)))

    def poll_arrow(
        self, timeout: float = 0.0, max_bytes: int | None = None
    ) -> dict[TopicPartition, pa.Table]:
        """Return Arrow tables over the mapped files, up to fetch_max_bytes or just above; see poll()."""
        from commitlog.batches import arrow

        found = self.poll_batches(timeout, max_bytes)
        return {name: arrow.table(batches) for name, batches in found.items()}

    def _poll(
        self, timeout: float, fetch: Callable[[], dict[TopicPartition, Found]]
    ) -> dict[TopicPartition, Found]:
        deadline = time.monotonic() + timeout
        self._fetcher.rewind()
        with self._at_work():
            while True:
                self._keep_up()
                found = fetch() if self._fetcher.throttle.seconds_left() <= 0 else {}
                left = deadline - time.monotonic()
                if found or left <= 0 or self._closing:
                    return found
                self._fetcher.wait(left, self._must_stop_waiting)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Count the time from poll() to poll(), not within."""
        if self._session is None:
            yield
            return
        self._session.member.polling()
        try:
            yield
        finally:
            self._session.member.idle()

    def _keep_up(self) -> None:
        if self._session is not None:
            gained = self._session.keep_up()
            if gained:
                self._begin(gained)
                self._session.assigned(gained)
        else:
            self._read_all()
        for name in [name for name, place in self._fetcher.places.items() if place.partition.closed]:
            self._find_again(name)

    def _find_again(self, name: TopicPartition) -> None:
        """Drop a topic that was deleted, unless it was assigned by name; one made since is read afresh."""
        if self._subscription is None:
            self._partition(name)  # UnknownTopicError
        self._fetcher.drop([name])
        self._begin([name])

    def _must_stop_waiting(self) -> bool:
        if self._session is not None:
            return self._closing or self._session.must_keep_up
        return self._closing or (self._subscription is not None and time.monotonic() >= self._look_at)

    def _handed_over(self, found: dict[TopicPartition, Found]) -> dict[TopicPartition, Found]:
        for name in found:
            place = self._fetcher.places[name]
            place.position = place.fetched
        return found

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Iterate over records as they come; ends when none has come for consumer_timeout_ms, or by close().

        A record counts as read, for commit(), once it was handed out.
        """
        timeout = self.config.consumer_timeout_ms / 1000 if self.config.consumer_timeout_ms != -1 else _NEVER
        limit = self.config.max_poll_records
        self._check_usable()
        while True:
            with self._lock:
                if self._closed:
                    return
                with self._used():
                    self._check_usable()
                    found = self._poll(timeout, lambda: self._fetcher.records(limit))
                places = [self._fetcher.places[name] for name in found]
                # seek(), pause() or a rebalance moves the version: then the rest does not count
                fetched = [(place, place.version, found[place.name]) for place in places]
            if not found:
                return
            for one in fetched:
                yield from self._one_by_one(*one)

    def _one_by_one(
        self, place: Place, version: int, records: list[ConsumerRecord]
    ) -> Iterator[ConsumerRecord]:
        for record in records:
            if place.version != version:
                return
            place.position = record.offset + 1
            yield record
        if place.version == version:
            place.position = place.fetched  # behind what compaction removed

    # --- committing

    def commit(self, offsets: Mapping[tuple[str, int], Committable] | None = None) -> None:
        """Commit offsets, or else the positions: what the group goes on with after this member.

        CommitFailedError if another member has, or may soon have, the partition.
        """
        with self._used():
            self._check_usable()
            session = self._grouped()
            session.commit(self._to_commit(offsets))

    def commit_async(
        self,
        offsets: Mapping[tuple[str, int], Committable] | None = None,
        callback: OnCommit | None = None,
    ) -> None:
        """Commit in the background.

        `callback` is called with the offsets, and with the error if there was one, from within poll(),
        commit() or close().
        """
        with self._used():
            self._check_usable()
            session = self._grouped()
            session.commit_async(self._to_commit(offsets), callback)

    def committed(self, partition: tuple[str, int]) -> int | None:
        """Return the offset that the group has committed; None if it has none."""
        self._check_usable()
        found = self._grouped().committed().get(TopicPartition(*partition))
        return None if found is None else found.offset

    def group_metadata(self) -> GroupMetadata:
        """Return who the consumer is in its group, for who stores offsets together with results."""
        self._check_usable()
        return self._grouped().member.metadata

    def _to_commit(
        self, offsets: Mapping[tuple[str, int], Committable] | None
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        if offsets is None:
            positions = self._fetcher.positions()
            moved = {name: OffsetAndMetadata(position) for name, position in positions.items()}
            return self._grouped().of_topics_there(moved)
        for name in offsets:
            self._partition(name)  # UnknownTopicError, if there is none
        return {TopicPartition(*name): _committable(value) for name, value in offsets.items()}

    def _grouped(self) -> GroupSession:
        if self._session is None:
            raise ConfigError("group_id", None, "is needed to commit")
        return self._session

    # --- the end

    def health(self) -> tuple[TaskHealth, ...]:
        """Tell how the threads that beat and commit fare."""
        return () if self._session is None else self._session.health()

    def stop(self) -> None:
        """End the threads without committing or leaving: the program ends, maybe amid what it polled."""
        if self._session is not None:
            self._session.stop()

    def close(self) -> None:
        """Commit the positions, if enable_auto_commit says so, and leave the group. Closing twice is fine."""
        if self._forked:  # another thread of the parent may have held any lock
            return
        self._closing = True
        self._fetcher.throttle.stop()
        self._fetcher.event.set()
        with self._lock:
            if self._closed:
                return
            try:
                self._leave_what_was()
            finally:
                self._closed = True
                if self._session is not None:
                    self._session.stop()


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as problem:
        raise ConfigError("pattern", pattern, f"is no regular expression: {problem}") from None


def _at_least_1(name: str, given: int | None, default: int) -> int:
    limit = default if given is None else given
    if not isinstance(limit, int) or limit < 1:
        raise ConfigError(name, given, "must be an integer, 1 or above")
    return limit


def _committable(given: Committable) -> OffsetAndMetadata:
    pair = given if isinstance(given, tuple) else (given, "")
    if len(pair) == 2:
        offset, metadata = pair
        is_number = isinstance(offset, int) and not isinstance(offset, bool)
        if is_number and offset >= 0 and isinstance(metadata, str):
            return OffsetAndMetadata(offset, metadata)
    raise ConfigError("offset", given, "must be a non-negative integer, or an (offset, metadata) pair")
