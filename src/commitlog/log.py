"""CommitLog: a directory of topics, its lock, and the work done behind the caller's back."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from commitlog.catalog import Catalog, TopicEntry, check_topic_name
from commitlog.config import LogConfig, ProducerConfig, TopicConfig
from commitlog.errors import (
    ClosedError,
    CommitLogError,
    ConfigError,
    ForkedError,
    ReadOnlyError,
    TopicExistsError,
    UnknownTopicError,
)
from commitlog.housekeeping import Health, Housekeeper
from commitlog.lock import MUTEX_NAME, LogLock, ProcessLock
from commitlog.meter import Throttle
from commitlog.opening import Opener, abandon
from commitlog.partition import Partition
from commitlog.producer import Producer
from commitlog.quota import Quota, Quotas
from commitlog.reader import PartitionReader
from commitlog.recovery import RecoveryReport
from commitlog.shared import SharedPartition
from commitlog.topic import Topic

_open_logs: weakref.WeakSet[CommitLog] = weakref.WeakSet()


class CommitLog:
    """Topics in a directory. In mode "w" this process is their only writer, unless it shares them with
    others; in mode "r" it writes nothing but what quotas count.

    Use it as a context manager, or call close(): a log that was not closed is checked at the next open.
    """

    def __init__(
        self, path: str, config: LogConfig, catalog: Catalog, lock: LogLock | None, *, shared: bool = False
    ) -> None:
        self.path = path
        self._shared = shared
        self.config = config
        self._catalog = catalog
        self._lock = lock  # None: opened for reading
        self._make_mutex()
        self._topics: dict[str, Topic] = {}
        self._refusal: CommitLogError | None = None
        self._housekeeper = Housekeeper(self._partitions, config)
        mode: Literal["r", "w", "shared"] = "r" if lock is None else "shared" if shared else "w"
        self._opener = Opener(path, config, catalog, mode, self._housekeeper.wake)
        self._quotas = Quotas(path)
        self._producers: weakref.WeakSet[Producer] = weakref.WeakSet()

    def _make_mutex(self) -> None:
        """Make the lock that guards the catalog, and the topics that are open."""
        name = os.path.join(self.path, MUTEX_NAME)
        self._mutex: threading.RLock | ProcessLock = ProcessLock(name) if self._shared else threading.RLock()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        mode: Literal["r", "w"],
        config: LogConfig | None,
        *,
        shared: bool = False,
    ) -> Self:
        """Open a directory; see commitlog.open."""
        if mode not in ("r", "w"):
            raise ConfigError("mode", mode, "must be 'r' or 'w'")
        if shared and mode == "r":
            raise ConfigError("shared", shared, "is for writers; any number of readers may open a log")
        if config is not None and not isinstance(config, LogConfig):
            raise ConfigError("config", config, "must be a LogConfig")
        name = os.path.abspath(os.fspath(path))
        settings = config or LogConfig()
        if mode == "r":
            reader = cls(name, settings, Catalog.open(name), None)
            _open_logs.add(reader)
            return reader
        catalog, lock = Catalog.open_or_create(name, shared=shared)
        try:
            log = cls(name, settings, catalog, lock, shared=shared)
        except BaseException:
            lock.release()
            raise
        try:
            log._load()
            lock.ready(shared=shared)
            _open_logs.add(log)
            log._housekeeper.start()
        except BaseException:
            log._abandon()
            raise
        return log

    def _abandon(self) -> None:
        """Let everything go of a log that could not be opened."""
        self._housekeeper.stop()
        abandon(self._partitions())
        if self._lock is not None:
            self._lock.release()

    def _load(self) -> None:
        """Open every topic. The clean marker goes first: from here on, a crash means recovery."""
        with self._mutex:
            self._opener.clean = self._catalog.take_clean_marker()
            # crash: no marker -> the next open checks the log from its recovery points on
            self._catalog.finish_deletions()
            for entry in self._catalog.entries():
                self._topics[entry.name] = self._open_topic(entry)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<CommitLog {self.path} mode={'r' if self._lock is None else 'w'}>"

    # --- topics

    def topics(self) -> list[str]:
        """Return the names of the topics, sorted."""
        self._check_open()
        return sorted(entry.name for entry in self._catalog.entries())

    def topic(self, name: str) -> Topic:
        """Return a topic; UnknownTopicError if there is none."""
        self._check_open()
        with self._mutex:
            entry = self._catalog.entry(name)
            if entry is None:
                self._topics.pop(name, None)
                raise UnknownTopicError(name)
            found = self._topics.get(name)
            others_write = self._shared or self._lock is None
            if found is None or (others_write and _outdated(found, entry)):
                found = self._topics[name] = self._open_topic(entry)
            return found

    def create_topic(
        self, name: str, partitions: int = 1, config: TopicConfig | Mapping[str, Any] | None = None
    ) -> Topic:
        """Create a topic; `config` may be a dictionary, over the log's topic_defaults."""
        self._check_writable()
        check_topic_name(name)
        if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= 9999:
            raise ConfigError("partitions", partitions, "must be in [1, 9999]")
        settings = (
            config if isinstance(config, TopicConfig) else self.config.topic_defaults.altered(config or {})
        )
        with self._mutex:
            self._check_open()  # it may have been closed while we waited
            if self._catalog.entry(name) is not None:
                raise TopicExistsError(name)
            entry = TopicEntry(name, partitions, settings.overrides())
            self._catalog.create_partitions(entry, 0)
            topic = self._open_topic(entry)
            # crash: empty partition directories without a topic -> create_topic() takes them over
            self._store_or_abandon(entry, topic.partitions)
            self._topics[name] = topic
            self._housekeeper.wake()  # it may ask for a sync sooner than the others
            return self._topics[name]

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its files; readers that have them open keep what they read."""
        self._check_writable()
        topic = self.topic(name)
        with self._mutex:
            self._check_open()
            del self._topics[name]
            for partition in topic.partitions:
                if isinstance(partition, SharedPartition):
                    partition.mark_gone()
                partition.close()
            self._catalog.delete(name)

    def grow_topic(self, topic: Topic, partitions: int) -> list[PartitionReader]:
        """Create partitions until the topic has so many: what Topic.add_partitions calls."""
        self._check_writable()
        with self._mutex:
            self._check_current(topic)
            count = len(topic.partitions)
            if (
                isinstance(partitions, bool)
                or not isinstance(partitions, int)
                or not count <= partitions <= 9999
            ):
                raise ConfigError("partitions", partitions, f"must be in [{count}, 9999]: they only grow")
            entry = TopicEntry(topic.name, partitions, topic.config.overrides())
            self._catalog.create_partitions(entry, count)
            new = self._opener.open(entry, topic.config, count)
            # crash: empty partition directories beyond the topic's count -> the next call takes them over
            self._store_or_abandon(entry, new)
            self._housekeeper.wake()
            return [*topic.partitions, *new]

    def store_config(self, topic: Topic, config: TopicConfig) -> None:
        """Make a topic's settings durable: what Topic.alter_config calls."""
        self._check_writable()
        with self._mutex:
            self._check_current(topic)
            self._catalog.store(TopicEntry(topic.name, len(topic.partitions), config.overrides()))
            self._housekeeper.wake()

    def _check_current(self, topic: Topic) -> None:
        self._check_open()
        if self._topics.get(topic.name) is not topic:  # deleted since
            raise UnknownTopicError(topic.name)

    def _open_topic(self, entry: TopicEntry) -> Topic:
        config = TopicConfig().altered(entry.config)
        return Topic(entry.name, config, self._opener.open(entry, config), self)

    def _store_or_abandon(self, entry: TopicEntry, opened: Sequence[PartitionReader]) -> None:
        try:
            self._catalog.store(entry)
        except BaseException:
            abandon(opened)
            raise

    def producer(self, **settings: Any) -> Producer:
        """Return a producer; the settings are those of ProducerConfig."""
        self._check_writable()
        config = ProducerConfig.of(settings)
        throttle = Throttle(self._quotas.meter(config.client_id, "produce"))
        producer = Producer(self, config, throttle)
        self._producers.add(producer)
        return producer

    # --- quotas

    def set_quota(
        self,
        client_id: str | None,
        *,
        producer_byte_rate: int | None = None,
        consumer_byte_rate: int | None = None,
    ) -> None:
        """Slow down clients that append or read more bytes a second; within a second, in all processes.

        The quota of None is the default: that of every client id without one of its own. None means no limit.
        """
        self._check_writable()
        self._quotas.set(client_id, Quota(producer_byte_rate, consumer_byte_rate))

    def quotas(self) -> dict[str | None, Quota]:
        """Return the quotas that were set, by client id; the default is that of None."""
        self._check_open()
        return self._quotas.all()

    def remove_quota(self, client_id: str | None) -> None:
        """Remove a quota; the default counts again. One that is not there is fine."""
        self._check_writable()
        self._quotas.remove(client_id)

    # --- what happened, and what happens behind the caller's back

    @property
    def recovery(self) -> tuple[RecoveryReport, ...]:
        """What opening each partition found and did."""
        return tuple(partition.recovery for partition in self._partitions())

    def health(self) -> Health:
        """Tell whether background work and all partitions are well."""
        partitions = self._partitions()
        failed = tuple((one.name, one.failure) for one in partitions if one.failure)
        uncleanable = tuple((one.name, one.compaction_error) for one in partitions if one.compaction_error)
        tasks = () if self._lock is None else self._housekeeper.health()
        return Health(tasks, failed, uncleanable)

    def apply_retention(self, now_ms: int | None = None) -> int:
        """Remove what retention no longer keeps, as the background thread does; returns the segment count."""
        self._check_writable()
        return self._housekeeper.apply_retention(time.time_ns() // 1_000_000 if now_ms is None else now_ms)

    def _partitions(self) -> list[Partition]:
        with self._mutex:
            found = [partition for topic in self._topics.values() for partition in topic.partitions]
        return [partition for partition in found if isinstance(partition, Partition)]

    # --- the end

    def close(self) -> None:
        """Deliver what producers hold, sync everything, stop the threads and let the lock go.

        Closing twice is fine.
        """
        with contextlib.ExitStack() as last:
            last.callback(self._close)
            for producer in list(self._producers):
                last.callback(producer.close)  # one after another, whatever the others raise

    def _close(self) -> None:
        with self._mutex:
            closed, self._refusal = self._refusal is not None, self._refusal or ClosedError(self.path)
        try:
            if not closed:
                self._close_all()
        finally:
            if self._lock is not None:
                # Ctrl-C may have come before a partition was closed: nobody writes without the lock
                abandon(self._partitions())
                self._lock.release()

    def _close_all(self) -> None:
        _open_logs.discard(self)
        if self._lock is None:
            for topic in self._topics.values():
                for partition in topic.partitions:
                    partition.close()
            return
        self._housekeeper.stop()
        self._close_partitions()

    def _close_partitions(self) -> None:
        """Close every partition, and leave the clean marker only if each of them is durable."""
        problem: Exception | None = None
        clean = True
        for partition in self._partitions():
            clean = clean and partition.failure is None
            try:
                partition.close()
            except Exception as error:
                problem = problem or error
        if problem is not None:
            raise problem
        if clean and not self._shared:
            self._catalog.leave_clean_marker()

    def _check_open(self) -> None:
        if self._refusal is not None:
            raise type(self._refusal)(*self._refusal.args)

    def _check_writable(self) -> None:
        self._check_open()
        if self._lock is None:
            raise ReadOnlyError(self.path)

    def _forked(self) -> None:
        """In a forked child: nothing may be written through what the parent opened; reading may go on."""
        self._make_mutex()
        self._producers = weakref.WeakSet()  # what they hold is the parent's to deliver
        self._opener.forked()
        if self._lock is not None:
            self._refusal = ForkedError(self.path)
            self._lock.forget()
        for topic in self._topics.values():
            for partition in topic.partitions:
                partition.forked()


def _outdated(topic: Topic, entry: TopicEntry) -> bool:
    return len(topic.partitions) != entry.partitions or topic.config.overrides() != entry.config


def _after_fork() -> None:
    for log in list(_open_logs):
        log._forked()


os.register_at_fork(after_in_child=_after_fork)
