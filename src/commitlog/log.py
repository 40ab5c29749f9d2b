"""CommitLog: a directory of topics, its lock, and the work done behind the caller's back."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from commitlog.background import Task, TaskHealth
from commitlog.catalog import Catalog, TopicEntry, check_topic_name, typed
from commitlog.config import LogConfig, TopicConfig
from commitlog.errors import (
    ClosedError,
    CommitLogError,
    ConfigError,
    ForkedError,
    ReadOnlyError,
    TopicExistsError,
    UnknownTopicError,
)
from commitlog.handles import HandleCache
from commitlog.lock import LogLock, writer_is_ready
from commitlog.partition import Partition
from commitlog.read_only import ReadOnlyPartition
from commitlog.reader import PartitionReader
from commitlog.recovery import RecoveryReport
from commitlog.topic import Topic

_IDLE_SECONDS = 60.0
_open_logs: weakref.WeakSet[CommitLog] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Health:
    """Whether everything behind the caller's back works: tasks, and partitions that a disk error stopped."""

    tasks: tuple[TaskHealth, ...]
    failed_partitions: tuple[tuple[str, str], ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.failed_partitions and all(task.alive and task.error is None for task in self.tasks)


class CommitLog:
    """Topics in a directory. In mode "w" this process is their only writer; in mode "r" it never writes.

    Use it as a context manager, or call close(): a log that was not closed is checked at the next open.
    """

    def __init__(self, path: str, config: LogConfig, catalog: Catalog, lock: LogLock | None) -> None:
        self.path = path
        self.config = config
        self._catalog = catalog
        self._lock = lock  # None: opened for reading
        self._mutex = threading.RLock()
        self._topics: dict[str, Topic] = {}
        self._cache = HandleCache(config.max_open_segments)
        self._clean = False
        self._refusal: CommitLogError | None = None
        self._synced_at: dict[str, float] = {}
        self._retained_at = time.monotonic()
        self._tasks = (Task("flusher", self._flush), Task("retention", self._housekeep))

    @classmethod
    def open(cls, path: str | os.PathLike[str], mode: Literal["r", "w"], config: LogConfig | None) -> Self:
        """Open a directory; see commitlog.open."""
        if mode not in ("r", "w"):
            raise ConfigError("mode", mode, "must be 'r' or 'w'")
        if config is not None and not isinstance(config, LogConfig):
            raise ConfigError("config", config, "must be a LogConfig")
        name = os.path.abspath(os.fspath(path))
        settings = config or LogConfig()
        if mode == "r":
            reader = cls(name, settings, Catalog.open(name), None)
            _open_logs.add(reader)
            return reader
        catalog, lock = Catalog.open_or_create(name)
        try:
            log = cls(name, settings, catalog, lock)
        except BaseException:
            lock.release()
            raise
        try:
            log._load()
            lock.ready()
            _open_logs.add(log)
            for task in log._tasks:
                task.start()
        except BaseException:
            log._abandon()
            raise
        return log

    def _abandon(self) -> None:
        """Let everything go of a log that could not be opened."""
        for task in self._tasks:
            task.stop()
        _abandon(self._partitions())
        if self._lock is not None:
            self._lock.release()

    def _load(self) -> None:
        """Open every topic. The clean marker goes first: from here on, a crash means recovery."""
        self._clean = self._catalog.take_clean_marker()
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
            if found is None or (self._lock is None and _outdated(found, entry)):
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
            self._tasks[0].wake()  # it may ask for a sync sooner than the others
            return self._topics[name]

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its files; readers that have them open keep what they read."""
        self._check_writable()
        topic = self.topic(name)
        with self._mutex:
            self._check_open()
            del self._topics[name]
            for partition in topic.partitions:
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
            new = self._open_partitions(entry, topic.config, count)
            # crash: empty partition directories beyond the topic's count -> the next call takes them over
            self._store_or_abandon(entry, new)
            self._tasks[0].wake()
            return [*topic.partitions, *new]

    def store_config(self, topic: Topic, config: TopicConfig) -> None:
        """Make a topic's settings durable: what Topic.alter_config calls."""
        self._check_writable()
        with self._mutex:
            self._check_current(topic)
            self._catalog.store(TopicEntry(topic.name, len(topic.partitions), config.overrides()))
            self._tasks[0].wake()

    def _check_current(self, topic: Topic) -> None:
        self._check_open()
        if self._topics.get(topic.name) is not topic:  # deleted since
            raise UnknownTopicError(topic.name)

    def _open_topic(self, entry: TopicEntry) -> Topic:
        config = TopicConfig().altered(entry.config)
        return Topic(entry.name, config, self._open_partitions(entry, config, 0), self)

    def _open_partitions(self, entry: TopicEntry, config: TopicConfig, first: int) -> list[PartitionReader]:
        """Open partitions [first, entry.partitions), all or none."""
        opened: list[PartitionReader] = []
        try:
            for number in range(first, entry.partitions):
                opened.append(self._open_partition(entry, number, config))
        except BaseException as error:
            _abandon(opened)
            raise typed(error, self.path) if isinstance(error, OSError) else error from error
        return opened

    def _store_or_abandon(self, entry: TopicEntry, opened: Sequence[PartitionReader]) -> None:
        try:
            self._catalog.store(entry)
        except BaseException:
            _abandon(opened)
            raise

    def _open_partition(self, entry: TopicEntry, number: int, config: TopicConfig) -> PartitionReader:
        name = f"{entry.name}-{number}"
        path = os.path.join(self.path, name)
        if self._lock is None:
            return ReadOnlyPartition.open(
                path, name, config, self._cache,
                writer=self._has_writer, clean=self._catalog.has_clean_marker,
            )  # fmt: skip
        partition = Partition.open(path, name, config, self.config, self._cache, clean=self._clean)
        partition.wake_flusher_with(self._tasks[0].wake)
        return partition

    def _has_writer(self) -> bool:
        """Say, for a reader, whether a writer keeps the state pages true."""
        return writer_is_ready(self.path)

    # --- what happened, and what happens behind the caller's back

    @property
    def recovery(self) -> tuple[RecoveryReport, ...]:
        """What opening each partition found and did."""
        return tuple(partition.recovery for partition in self._partitions())

    def health(self) -> Health:
        """Tell whether background work and all partitions are well."""
        failed = [(one.name, one.failure) for one in self._partitions() if one.failure is not None]
        tasks = () if self._lock is None else tuple(task.health() for task in self._tasks)
        return Health(tasks, tuple((name, str(cause)) for name, cause in failed))

    def apply_retention(self, now_ms: int | None = None) -> int:
        """Remove what retention no longer keeps, as the background thread does; returns the segment count."""
        self._check_writable()
        now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        removed = 0
        for partition in self._partitions():
            if partition.failure is None:
                with contextlib.suppress(ClosedError):  # a topic deleted meanwhile
                    removed += partition.apply_retention(now_ms)
        return removed

    def _partitions(self) -> list[Partition]:
        with self._mutex:
            found = [partition for topic in self._topics.values() for partition in topic.partitions]
        return [partition for partition in found if isinstance(partition, Partition)]

    def _flush(self) -> float:
        """Sync the partitions that flush_ms or flush_messages call for; returns when to come again."""
        pause = _IDLE_SECONDS
        for partition in self._partitions():
            config, now = partition.config, time.monotonic()
            waiting = partition.next_offset - partition.durable_offset
            due_in = _IDLE_SECONDS
            if config.flush_ms != -1:
                due_in = self._synced_at.get(partition.name, 0.0) + config.flush_ms / 1000 - now
            if due_in <= 0 or 0 < config.flush_messages <= waiting:
                self._synced_at[partition.name] = now
                due_in = config.flush_ms / 1000 if config.flush_ms != -1 else _IDLE_SECONDS
                if waiting and partition.failure is None:
                    with contextlib.suppress(ClosedError):  # a topic deleted meanwhile
                        partition.sync()
            pause = min(pause, due_in)
        return pause

    def _housekeep(self) -> float:
        """Unlink removed files whose time has come, and apply retention every retention_check_ms."""
        now, every = time.monotonic(), self.config.retention_check_ms / 1000
        for partition in self._partitions():
            partition.empty_trash(now)
        if now - self._retained_at >= every:
            self._retained_at = now
            self.apply_retention()
        return min(1.0, every)

    # --- the end

    def close(self) -> None:
        """Sync everything, stop the threads and let the lock go. Closing twice is fine."""
        with self._mutex:
            closed, self._refusal = self._refusal is not None, self._refusal or ClosedError(self.path)
        try:
            if not closed:
                self._close_all()
        finally:
            if self._lock is not None:
                # Ctrl-C may have come before a partition was closed: nobody writes without the lock
                _abandon(self._partitions())
                self._lock.release()

    def _close_all(self) -> None:
        _open_logs.discard(self)
        if self._lock is None:
            for topic in self._topics.values():
                for partition in topic.partitions:
                    partition.close()
            return
        for task in self._tasks:
            task.stop()
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
        if clean:
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
        self._mutex = threading.RLock()
        self._cache.renew_lock()
        if self._lock is not None:
            self._refusal = ForkedError(self.path)
            self._lock.forget()
        for topic in self._topics.values():
            for partition in topic.partitions:
                partition.forked()


def _abandon(partitions: Iterable[PartitionReader]) -> None:
    for partition in partitions:
        if isinstance(partition, Partition):
            partition.abandon()


def _outdated(topic: Topic, entry: TopicEntry) -> bool:
    return len(topic.partitions) != entry.partitions or topic.config.overrides() != entry.config


def _after_fork() -> None:
    for log in list(_open_logs):
        log._forked()


os.register_at_fork(after_in_child=_after_fork)
