"""Consumer: reads partitions in order, alone or in a group. It uses Kafka's names, to ease porting."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, starmap
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from commitlog.batches.batch import RecordBatch
from commitlog.clients.fetcher import GROUP_SECONDS, NOWHERE, Fetcher, Place
from commitlog.clients.positions import Positions
from commitlog.clients.rate_limit import Throttle
from commitlog.clients.session import GroupSession, OnCommit, RebalanceListener
from commitlog.config import ConsumerConfig
from commitlog.errors import ConfigError, UnknownPartitionError, UnknownTopicError
from commitlog.groups.member import GroupMember, GroupMetadata
from commitlog.groups.offsets import Committable, OffsetAndMetadata, committable
from commitlog.record import ConsumerRecord, TopicPartition
from commitlog.tasks import TaskHealth
from commitlog.topic import TopicSource

if TYPE_CHECKING:
    import pyarrow as pa

Found = TypeVar("Found")
_NEVER = float("inf")


class GroupSource(TopicSource, Protocol):
    """The part of a log that a consumer needs."""

    def group_member(self, config: ConsumerConfig) -> GroupMember:
        """Return a member that has not joined its group yet."""


class Consumer(Positions):
    """Reads topics. Use it as a context manager, or close() it.

    Threads may share it, but their calls are serialized. close() ends a poll() that waits in another thread.
    """

    def __init__(self, log: GroupSource, config: ConsumerConfig, throttle: Throttle) -> None:
        fetcher = Fetcher(config.key_deserializer, config.value_deserializer, throttle)
        super().__init__(log, fetcher, config.isolation_level)
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
        """Subscribe to topics, or to all topics, present and future, whose full name matches `pattern`.

        In a group the members share the partitions; alone, the consumer reads all of them.
        """
        names = {topics} if isinstance(topics, str) else set(topics)
        if bool(names) == (pattern is not None):
            raise ConfigError("topics", topics, "pass either topics or a pattern")
        if pattern is not None:
            fits = _compiled(pattern).fullmatch
            chosen: Callable[[], set[str]] = lambda: set(filter(fits, self._log.topics()))  # noqa: E731
        else:
            for name in names:
                self._log.topic(name)  # UnknownTopicError if it does not exist
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
        """Return the subscribed topics."""
        return set() if self._subscription is None else set(self._subscription())

    def unsubscribe(self) -> None:
        """Stop reading, and leave the group."""
        with self._used():
            self._check_usable()
            self._leave_what_was()

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions, independently of any group assignment."""
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
        """Without a group: read all partitions of the subscribed topics, and look for new ones."""
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
        """Start reading partitions at the committed offset, or where auto_offset_reset says."""
        committed = {} if self._session is None else self._session.decided()
        for name in sorted(names):
            try:
                partition = self._partition(name)
            except (UnknownTopicError, UnknownPartitionError):  # deleted meanwhile
                continue
            start = committed[name].offset if name in committed else NOWHERE
            self._fetcher.places[name] = Place(
                name, partition, start, self.config.auto_offset_reset, self.config.isolation_level
            )

    # --- reading

    def poll(
        self, timeout: float = 0.0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return records, in order within each partition; wait up to `timeout` seconds if there are none.

        Rebalances happen inside poll(), so it must be called at least every max_poll_interval_ms.
        """
        limit = at_least_1("max_records", max_records, self.config.max_poll_records)
        with self._used():
            self._check_usable()
            return self._handed_over(self._poll(timeout, lambda: self._fetcher.records(limit)))

    def poll_batches(
        self, timeout: float = 0.0, max_bytes: int | None = None
    ) -> dict[TopicPartition, list[RecordBatch]]:
        """Return columnar batches, of fetch_max_bytes or just above; see poll()."""
        limit = at_least_1("max_bytes", max_bytes, self.config.fetch_max_bytes)
        with self._used():
            self._check_usable()
            return self._handed_over(self._poll(timeout, lambda: self._fetcher.batches(limit)))

    def poll_arrow(
        self, timeout: float = 0.0, max_bytes: int | None = None
    ) -> dict[TopicPartition, pa.Table]:
        """Return Arrow tables over the mapped files, of fetch_max_bytes or just above; see poll()."""
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
        """Exclude the time inside poll() from max_poll_interval_ms."""
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
        """Drop a deleted topic, unless it was assigned by name; a new topic of that name is read anyway."""
        if self._subscription is None:
            self._partition(name)  # UnknownTopicError
        self._fetcher.drop([name])
        self._begin([name])

    @property
    def has_duties(self) -> bool:
        """Whether the next poll() has more to do than to fetch: for the group, or to find topics again."""
        each_time = self._session is not None and self._session.commits_at_each_poll
        gone = any(place.partition.closed for place in list(self._fetcher.places.values()))
        return each_time or gone or self._must_stop_waiting()

    @property
    def seconds_to_duties(self) -> float:
        """How long a poll() may wait before it has more to do; a change of a group has to be looked for."""
        if self._session is not None:
            return GROUP_SECONDS
        return _NEVER if self._subscription is None else max(self._look_at - time.monotonic(), 0)

    def has_in_memory(self, count: int) -> bool:
        """Say whether the next `count` records to fetch were read from the files already."""
        ready = (place for place in list(self._fetcher.places.values()) if not place.paused)
        first = next(ready, None)
        return first is not None and first.has_in_memory(count)

    def is_little_ahead(self, most_bytes: int) -> bool:
        """Say whether there is hardly anything to read, without a look at the files."""
        for place in list(self._fetcher.places.values()):
            if place.paused:
                continue
            if not place.partition.is_at_hand:
                return False
            if place.is_at_end:
                continue
            size = place.partition.known_bytes_after(place.fetched)
            if size is None or size > most_bytes:
                return False
            most_bytes -= size
        return True

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
        """Iterate over records as they arrive, until none arrives for consumer_timeout_ms, or close().

        commit() counts a record as read once it has been returned.
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
                records = self._one_by_one(found)
            if not found:
                return
            yield from records

    def _one_by_one(self, found: dict[TopicPartition, list[ConsumerRecord]]) -> Iterator[ConsumerRecord]:
        """Return fetched records; each counts as read from then on. The lock is held by the caller."""
        places = [self._fetcher.places[name] for name in found]
        # seek(), pause() and a rebalance change the version: then the rest is dropped
        fetched = [(place, place.version, found[place.name]) for place in places]
        return chain.from_iterable(starmap(_returned, fetched))

    # --- committing

    def commit(self, offsets: Mapping[tuple[str, int], Committable] | None = None) -> None:
        """Commit offsets, by default the positions: where the group continues after this member.

        CommitFailedError if another member owns the partition, or may soon.
        """
        with self._used():
            self._check_usable()
            session = self._grouped()
            session.commit(self._to_commit(offsets))

    def commit_async(
        self, offsets: Mapping[tuple[str, int], Committable] | None = None, callback: OnCommit | None = None
    ) -> None:
        """Commit offsets in the background.

        `callback` is called with the offsets and the error, or None, inside poll(), commit() or close().
        """
        with self._used():
            self._check_usable()
            session = self._grouped()
            session.commit_async(self._to_commit(offsets), callback)

    def committed(self, partition: tuple[str, int]) -> int | None:
        """Return the offset that the group has committed for a partition, or None."""
        self._check_usable()
        found = self._grouped().committed().get(TopicPartition(*partition))
        return None if found is None else found.offset

    def positions(self) -> dict[TopicPartition, int]:
        """Return the position in each assigned partition that has one: what commit() commits."""
        with self._used():
            self._check_usable()
            return self._fetcher.positions()

    def group_metadata(self) -> GroupMetadata:
        """Return the consumer's identity in its group, for programs that store offsets with their results."""
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
            self._partition(name)  # UnknownTopicError if it does not exist
        return {TopicPartition(*name): committable(value) for name, value in offsets.items()}

    def _grouped(self) -> GroupSession:
        if self._session is None:
            raise ConfigError("group_id", None, "is needed to commit")
        return self._session

    # --- the end

    def health(self) -> tuple[TaskHealth, ...]:
        """Return the health of the threads that send heartbeats and commit."""
        return () if self._session is None else self._session.health()

    def stop(self) -> None:
        """End the threads without committing or leaving: the program ends, maybe while processing records."""
        if self._session is not None:
            self._session.stop()

    def close(self) -> None:
        """Commit the positions if enable_auto_commit is set, and leave the group. Closing twice is fine."""
        if self._forked:  # any lock may be held by a thread of the parent
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


def _returned(place: Place, version: int, records: list[ConsumerRecord]) -> Iterator[ConsumerRecord]:
    for record in records:
        if place.version != version:
            return
        place.position = record.offset + 1
        yield record
    if place.version == version:
        place.position = place.fetched  # past offsets that compaction removed


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as problem:
        raise ConfigError("pattern", pattern, f"is not a regular expression: {problem}") from None


def at_least_1(name: str, given: int | None, default: int) -> int:
    """Return a limit, which must be a positive integer."""
    limit = default if given is None else given
    if not isinstance(limit, int) or limit < 1:
        raise ConfigError(name, given, "must be a positive integer")
    return limit
