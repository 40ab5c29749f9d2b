"""TopicSet: creates, deletes, grows and finds the topics of an open log."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from commitlog import files
from commitlog.bells import Bell, Bells
from commitlog.config import LogConfig, TopicConfig
from commitlog.errors import (
    ConfigError,
    CorruptionError,
    InvalidTopicError,
    ReadOnlyError,
    TooManyOpenFilesError,
    TopicExistsError,
    UnknownTopicError,
)
from commitlog.ids import new_id
from commitlog.locks import MUTEX_NAME, ProcessLock, writer_is_ready
from commitlog.open_files import OpenFiles
from commitlog.partition import Partition
from commitlog.partitions.recovery import RecoveryReport
from commitlog.progress import Steps
from commitlog.topic import Topic
from commitlog.topics.catalog import (
    ALWAYS_SHARED,
    INTERNAL,
    MOST_PARTITIONS,
    Catalog,
    TopicEntry,
    check_no_links,
    check_topic_name,
    typed,
)

Mode = Literal["r", "w", "shared"]
_logger = logging.getLogger("commitlog.log")
_BELLS_SECONDS = 1.0  # between two looks for bells, where there are none
_OF_THE_LOG = "it is a topic of the log itself"
_FEW_PARTITIONS = 1000  # salvage creates this many without asking whether the count is right
_OF_PARTITION, _OF_SHARED, _SPARE = 4, 8, 32  # descriptors for a partition, a shared one, everything else


class TopicSet:
    """The open topics of a log; the catalog has all topics. `check` raises once the log is closed."""

    def __init__(
        self,
        catalog: Catalog,
        path: str,
        config: LogConfig,
        mode: Mode,
        check: Callable[[], None],
        steps: Steps,
    ) -> None:
        self._catalog = catalog
        self._path = path
        self._config = config
        self._mode = mode
        self._check = check
        self._steps = steps  # the progress of recovery
        self._wake: Callable[[], None] = lambda: None
        self._topics: dict[str, Topic] = {}
        self._joined: dict[str, Topic] = {}  # internal topics that a log in mode "r" writes
        self._shown: dict[str, Topic] = {}  # internal topics as users of a log that is written see them
        self._cache = OpenFiles(config.max_open_segments, writes=mode != "r")
        self._bells: Bells | None = None
        self._look_for_bells_at = 0.0
        self._clean = False
        self._make_mutex()

    def _make_mutex(self) -> None:
        """Create the lock that guards the catalog and the open topics."""
        shared = self._mode == "shared"
        self.mutex: threading.RLock | ProcessLock = self._process_lock() if shared else threading.RLock()

    def _process_lock(self) -> ProcessLock:
        return ProcessLock(os.path.join(self._path, MUTEX_NAME))

    def wake_flusher_with(self, wake: Callable[[], None]) -> None:
        """Call `wake` when a new topic or setting may need a sync sooner than the flusher expects."""
        self._wake = wake

    def load(self) -> None:
        """Open every topic. The clean marker is removed first: from here on, a crash means recovery."""
        self._bells = Bells.open(self._path, create=True)
        with self.mutex:
            self._clean = self._catalog.take_clean_marker()
            # crash: no marker -> the next open checks the log from its recovery points on
            self._catalog.finish_deletions()
            self._catalog.check_internal(salvage=self._config.recovery_mode == "salvage")
            for entry in self._catalog.entries():
                if entry.topic_id is None:  # the topic is older than ids
                    entry = replace(entry, topic_id=new_id())  # noqa: PLW2901
                    self._catalog.store(entry)
                self._topics[entry.name] = self._open_topic(entry, self._mode)
        _log_recovery(self._path, [partition.recovery for partition in self.partitions()])

    # --- finding

    def names(self) -> list[str]:
        """Return the names of the topics, sorted, without internal ones."""
        return sorted(entry.name for entry in self._catalog.entries() if entry.name not in INTERNAL)

    def counts(self, names: Iterable[str]) -> dict[str, int]:
        """Return the partition count of each of `names` that exists."""
        entries = [self._catalog.entry(name) for name in names]
        return {entry.name: entry.partitions for entry in entries if entry is not None}

    def find(self, name: str) -> Topic:
        """Return a topic; UnknownTopicError if it does not exist."""
        if self._mode == "w" and (known := self._topics.get(name)) is not None:
            return known  # only this process changes them: no lock, which others may hold for long
        with self.mutex:
            return self._find(name)

    def _find(self, name: str) -> Topic:
        """Return a topic; the mutex is held."""
        entry = self._catalog.entry(name)
        if entry is None:
            self._topics.pop(name, None)
            raise self._unknown(name)
        found = self._topics.get(name)
        if found is None or (self._mode != "w" and _outdated(found, entry)):
            found = self._topics[name] = self._open_topic(entry, self._mode)
        return found

    def show(self, name: str) -> Topic:
        """Return a topic to a user, who can only read those of the log itself."""
        if name not in INTERNAL or self._mode == "r":
            return self.find(name)
        with self.mutex:
            entry, shown = self._catalog.entry(name), self._shown.get(name)
            if entry is None:
                raise self._unknown(name)
            if shown is None or _outdated(shown, entry):
                shown = self._shown[name] = self._open_topic(entry, "r")
            return shown

    def _unknown(self, name: str) -> UnknownTopicError:
        from difflib import get_close_matches  # few programs need it

        return UnknownTopicError(name, *get_close_matches(name, self.names(), 1))

    def all(self) -> list[Topic]:
        """Return the open topics."""
        with self.mutex:
            return [*self._shown.values(), *self._topics.values(), *self._joined.values()]

    def forget_removed(self) -> None:
        """Unmap the files of removed segments."""
        self._cache.forget_removed()

    @property
    def segments_mapped(self) -> int:
        """The number of mapped segments."""
        return len(self._cache)

    def readers(self) -> list[Partition]:
        """Return all partitions, opened if necessary; those of internal topics only if they are open."""
        topics = {topic.name: topic for topic in self.all()}
        for name in self.names():
            with contextlib.suppress(UnknownTopicError):  # deleted meanwhile
                topics[name] = self.find(name)
        return [partition for _, topic in sorted(topics.items()) for partition in topic.partitions]

    def partitions(self) -> list[Partition]:
        """Return the partitions open for writing."""
        found = [partition for topic in self.all() for partition in topic.partitions]
        return [partition for partition in found if partition.writable]

    # --- changing

    def create(
        self,
        name: str,
        partitions: int,
        config: TopicConfig | Mapping[str, Any] | None,
        topic_id: str | None = None,
    ) -> Topic:
        """Create a topic; a dictionary as `config` overrides the log's topic_defaults.

        A replicated topic has the same `topic_id` on every node; without one, a new id is made.
        """
        check_topic_name(name)
        if name in INTERNAL:
            raise InvalidTopicError(name)
        _check_count(partitions, 1)
        if not isinstance(config, TopicConfig):
            config = self._config.topic_defaults.altered(config or {})
        with self.mutex:
            self._check_writable()  # the log may have been closed while this waited
            if self._catalog.entry(name) is not None:
                raise TopicExistsError(name)
            entry = TopicEntry(name, partitions, config.overrides(), topic_id or new_id())
            topic = self._topics[name] = self._create(entry, self._mode)
            self._wake()
            _logger.info("topic %s is created, with %d partitions", name, partitions)
            return topic

    def _create(self, entry: TopicEntry, mode: Mode) -> Topic:
        self.check_descriptors(entry.name, entry.partitions, mode)
        with self._catalog.new_partitions(entry):
            topic = self._open_topic(entry, mode)
            # crash: empty partition directories without a topic -> create_topic() takes them over
            self._store_or_abandon(entry, topic.partitions)
        return topic

    def check_descriptors(self, name: str, partitions: int, mode: Mode | None = None) -> None:
        """Raise TooManyOpenFilesError if this process cannot open the files of this many more partitions."""
        awake = min(partitions, self._cache.room) * _OF_PARTITION
        needed = (partitions * _OF_SHARED if (mode or self._mode) == "shared" else awake) + _SPARE
        left = files.descriptors_left()
        if needed > left:
            reason = f"{partitions} more partitions need {needed} file descriptors, and {left} are left"
            raise TooManyOpenFilesError(name, reason)

    def delete(self, name: str) -> None:
        """Delete a topic and its files; readers that have them open can read on."""
        if name in INTERNAL:
            raise InvalidTopicError(name)
        with self.mutex:
            self._check_writable()
            topic = self._find(name)
            del self._topics[name]
            for partition in topic.partitions:
                if partition.shared:
                    partition.mark_gone()
                partition.close()
            self._catalog.delete(name)
            _logger.info("topic %s is deleted", name)

    def grow_topic(self, topic: Topic, partitions: int) -> list[Partition]:
        """Grow a topic to this many partitions and return all of them, for Topic.add_partitions()."""
        with self.mutex:
            stored, count = self._stored(topic), len(topic.partitions)
            _check_count(partitions, stored.partitions)
            entry = replace(stored, partitions=partitions)
            self.check_descriptors(topic.name, partitions - count)
            with self._catalog.new_partitions(entry, stored.partitions):
                new = self._open_partitions(entry, topic.config, self._mode, count)
                # crash: empty partition directories beyond the topic's count -> the next call takes them over
                self._store_or_abandon(entry, new)
            self._wake()
            return [*topic.partitions, *new]

    def change_config(self, topic: Topic, changes: Mapping[str, Any]) -> TopicConfig:
        """Change a topic's settings durably and return all of them, for Topic.alter_config()."""
        with self.mutex:
            stored = self._stored(topic)
            config = self._catalog.settings(stored).altered(changes)
            self._catalog.store(replace(stored, config=config.overrides()))
            self._wake()
            return config

    def _check_writable(self) -> None:
        self._check()
        if self._mode == "r":
            raise ReadOnlyError(self._path)

    def _stored(self, topic: Topic) -> TopicEntry:
        """Return the stored topic, which a process that shares the log may have changed."""
        self._check_writable()
        if topic.name in INTERNAL:
            raise ReadOnlyError(topic.name, _OF_THE_LOG)
        stored, current = self._catalog.entry(topic.name), self._topics.get(topic.name)
        if stored is None or stored.topic_id != topic.topic_id or current is not topic:  # deleted meanwhile
            raise UnknownTopicError(topic.name)
        return stored

    def join_internal(self, name: str, config: Mapping[str, Any]) -> Topic:
        """Return an internal topic, shared with other processes for writing; create it if it is new."""
        if self._mode == "shared":
            with self.mutex:
                return self._join_locked(name, config)
        with self._process_lock(), self.mutex:
            return self._join_locked(name, config)

    def _join_locked(self, name: str, config: Mapping[str, Any]) -> Topic:
        self._check()
        joined = self._joined if self._mode == "r" else self._topics
        mode: Mode = "shared" if name in ALWAYS_SHARED else self._mode
        if name not in joined:
            entry = self._catalog.entry(name)
            if entry is None:
                new = TopicEntry(name, 1, TopicConfig().altered(config).overrides(), new_id())
                joined[name] = self._create(new, mode)
            else:
                joined[name] = self._open_topic(entry, mode)
        return joined[name]

    # --- opening

    def _open_topic(self, entry: TopicEntry, mode: Mode) -> Topic:
        config = self._catalog.settings(entry)
        self._check_not_more(entry)
        if self._config.recovery_mode == "salvage":
            self._check_salvageable(entry)
        partitions = self._open_partitions(entry, config, mode)
        return Topic(entry.name, config, partitions, self, entry.topic_id)

    def _open_partitions(
        self, entry: TopicEntry, config: TopicConfig, mode: Mode, first: int = 0
    ) -> list[Partition]:
        """Open partitions [first, entry.partitions), all or none."""
        opened: list[Partition] = []
        try:
            for number in range(first, entry.partitions):
                opened.append(self._open_partition(entry, number, config, mode))
        except BaseException as error:
            abandon(opened)
            raise typed(error, self._path) if isinstance(error, OSError) else error from error
        return opened

    def _open_partition(self, entry: TopicEntry, number: int, config: TopicConfig, mode: Mode) -> Partition:
        name = f"{entry.name}-{number}"
        path = os.path.join(self._path, name)
        if os.path.islink(path):  # made by another process since the log was opened
            check_no_links(self._path)
        if not os.path.isdir(path):
            self._make_again(entry, path, mode)
        check_no_links(path)
        if mode == "r":
            partition = Partition.read_only(
                path, name, config, self._cache,
                writer=partial(writer_is_ready, self._path), clean=self._catalog.has_clean_marker,
                same=partial(self._is_same, entry), steps=self._steps,
                reason=_OF_THE_LOG if entry.name in INTERNAL else ReadOnlyError.reason,
            )  # fmt: skip
        elif mode == "shared" or entry.name in ALWAYS_SHARED:
            partition = Partition.join(path, name, config, self._config, self._cache, self._steps)
        else:
            partition = Partition.open(
                path, name, config, self._config, self._cache, clean=self._clean, steps=self._steps
            )
        if partition.writable:
            partition.wake_flusher_with(self._wake)
        partition.ring_with(partial(self._bell, entry.name, number))
        return partition

    def _bell(self, topic: str, number: int) -> Bell | None:
        """Return the bell of a partition; None where there are none, or before a writer made them."""
        if self._bells is None and self._mode == "r" and time.monotonic() >= self._look_for_bells_at:
            with self.mutex:
                self._bells = self._bells or Bells.open(self._path, create=False)
                self._look_for_bells_at = time.monotonic() + _BELLS_SECONDS
        return None if self._bells is None else self._bells.bell(topic, number)

    def let_go_of_bells(self) -> None:
        """Unmap the bells, once the partitions are closed."""
        self._bells, self._look_for_bells_at = None, float("inf")

    def _check_not_more(self, entry: TopicEntry) -> None:
        """Raise CorruptionError if there are records in a partition beyond the topic's count."""
        beyond = f"{entry.name}-{entry.partitions}"
        if self._catalog.holds_records(beyond) and self._catalog.entry(entry.name) == entry:
            reason = f"topic {entry.name} has {entry.partitions} partitions, but there are records in another"
            if self._config.recovery_mode != "salvage":
                raise CorruptionError(os.path.join(self._path, beyond), 0, reason)
            _logger.error("%s is ignored: %s", beyond, reason)

    def _check_salvageable(self, entry: TopicEntry) -> None:
        """Raise CorruptionError if a topic's partition count is damaged.

        Salvage creates an empty partition for each directory that is missing. If most of a large number are
        missing, they never existed.
        """
        if entry.partitions <= _FEW_PARTITIONS:
            return
        missing = entry.partitions - self._catalog.count_directories(entry)
        damaged = missing > max(_FEW_PARTITIONS, entry.partitions // 2)
        if damaged and self._catalog.entry(entry.name) == entry:  # it has not been deleted meanwhile
            reason = f"it says {entry.partitions} partitions, but {missing} of them have no directory"
            raise CorruptionError(self._catalog.description_of(entry.name), 0, reason)

    def _make_again(self, entry: TopicEntry, path: str, mode: Mode) -> None:
        """Raise CorruptionError for a partition without a directory; mode salvage creates an empty one."""
        if self._catalog.entry(entry.name) is None:  # deleted meanwhile
            raise UnknownTopicError(entry.name)
        if mode == "r" or self._config.recovery_mode != "salvage":
            reason = f"the directory is missing, but topic {entry.name} has {entry.partitions} partitions"
            raise CorruptionError(path, 0, reason)
        _logger.error("%s is missing: the partition starts empty", path)
        files.make_directories(path)

    def _is_same(self, opened: TopicEntry) -> bool:
        """Say, for a reader, whether a topic has not been deleted and created again."""
        stored = self._catalog.entry(opened.name)
        return stored is not None and stored.topic_id == opened.topic_id

    def _store_or_abandon(self, entry: TopicEntry, opened: Sequence[Partition]) -> None:
        try:
            self._catalog.store(entry)
        except BaseException:
            abandon(opened)
            raise

    # --- the end

    def forked(self) -> None:
        """In a forked child: refuse writes through the parent's handles."""
        self._make_mutex()
        self._cache.renew_lock()
        for topic in self.all():
            for partition in topic.partitions:
                partition.forked()


def abandon(partitions: Iterable[Partition]) -> None:
    """Release partitions without syncing."""
    for partition in partitions:
        partition.abandon()


def _log_recovery(path: str, reports: Sequence[RecoveryReport]) -> None:
    count, checked = len(reports), sum(report.bytes_checked for report in reports)
    seconds = sum(report.seconds for report in reports)
    _logger.info("%s is open: %d partitions, %d bytes checked in %.3f s", path, count, checked, seconds)
    for report in reports:
        if report.bytes_cut or report.segments_dropped:
            _logger.warning(
                "%s: %d bytes of unfinished appends were cut, with %d segments",
                report.partition, report.bytes_cut, report.segments_dropped,
            )  # fmt: skip
        for lost in report.salvaged:
            _logger.error("%s: %d bytes of %s are lost", report.partition, lost.bytes_lost, lost.path)


def _check_count(partitions: object, least: int) -> None:
    if type(partitions) is not int or not least <= partitions <= MOST_PARTITIONS:
        grow = "; partitions cannot be removed" if least > 1 else ""
        raise ConfigError("partitions", partitions, f"must be in [{least}, {MOST_PARTITIONS}]{grow}")


def _outdated(topic: Topic, entry: TopicEntry) -> bool:
    known = TopicEntry(topic.name, len(topic.partitions), topic.config.overrides(), topic.topic_id)
    return known != entry
