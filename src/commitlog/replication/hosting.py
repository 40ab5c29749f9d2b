"""Hosting: the topics of a log that are replicated, as files of this node.

A file beside the topics names those that are, with the id by which the controller tells a topic from an
earlier one of the same name. Only they are ever changed or deleted here: other topics are the application's.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from threading import RLock

from commitlog import files
from commitlog.config import TopicConfig
from commitlog.errors import ConfigError, TopicExistsError, UnknownTopicError
from commitlog.log import CommitLog
from commitlog.partitions.partition import Partition
from commitlog.record import TopicPartition
from commitlog.replication.cluster import ClusterState, TopicState
from commitlog.topics.topic import Topic

FILE_NAME = "replicated-topics.json"


class Hosting:
    """Makes the controller's topics into topics of the log. Threads may share it."""

    def __init__(self, log: CommitLog, state: Callable[[], ClusterState]) -> None:
        if not log.exclusive:
            raise ConfigError("log", log.path, "must be open for writing, and not shared, to be replicated")
        self._log = log
        self._state = state
        self._path = os.path.join(log.path, FILE_NAME)
        self._lock = RLock()
        self._ids: dict[str, int] = self._load()

    def _load(self) -> dict[str, int]:
        with contextlib.suppress(FileNotFoundError), open(self._path, encoding="utf-8") as file:
            known: dict[str, int] = json.load(file)
            return known
        return {}

    def _store(self, ids: Mapping[str, int]) -> None:
        files.write_whole(self._path, json.dumps(ids, indent=1).encode(), self._path + ".tmp")
        self._ids = dict(ids)

    @property
    def clean(self) -> bool:
        """Whether every replica here ended its last life by a clean stop.

        Not without any: the disk may be another one. Who was in no ISR loses nothing by that.
        """
        with self._lock:
            topics = [self._find(name) for name in self._ids]
        partitions = [one for topic in topics if topic is not None for one in topic.partitions]
        return bool(topics) and None not in topics and all(one.recovery.clean for one in partitions)

    def partitions(self) -> list[Partition]:
        """Return the partitions of replicated topics, also those of which this node has no replica."""
        with self._lock:
            topics = [topic for name in self._ids if (topic := self._find(name)) is not None]
            return [partition for topic in topics for partition in topic.partitions]

    def partition(self, name: TopicPartition) -> Partition:
        """Return a partition; UnknownTopicError if its topic is not replicated here."""
        with self._lock:
            if name.topic not in self._ids:
                raise UnknownTopicError(name.topic)
            found: Partition = self._log.topic(name.topic).partition(name.partition)
            return found

    def _find(self, name: str) -> Topic | None:
        try:
            return self._log.topic(name)
        except UnknownTopicError:
            return None

    # --- what NodeCore asks

    def open(self, name: TopicPartition, topic: TopicState) -> Partition:
        """Return a partition that is to have a replica here; its topic is created, or grows, if need be."""
        with self._lock:
            found = self._open_topic(name.topic, topic)
            partition: Partition = found.partition(name.partition)
            return partition

    def _open_topic(self, name: str, topic: TopicState) -> Topic:
        known, found = self._ids.get(name), self._find(name)
        if found is not None and known is None:
            raise TopicExistsError(name)  # the application's own
        if known != topic.topic_id:
            if found is not None:
                self._log.delete_topic(name)
                # crash: the earlier topic is gone, its id is still listed -> the next start stores the new id
                found = None
            self._store(self._ids | {name: topic.topic_id})
            # crash: the id is listed, the topic is not there -> the next start creates it
        count = len(topic.partitions)
        if found is None:
            found = self._log.create_topic(name, count, topic.config)
        elif len(found.partitions) < count:
            found.add_partitions(count)
        settings = TopicConfig().altered(topic.config)
        if found.config != settings:
            found.alter_config(**asdict(settings))  # those that are the defaults again, too
        for partition in found.partitions:
            if not partition.replicated:
                partition.follow()  # until the controller says who leads, nobody appends
        return found

    def remove(self, name: TopicPartition) -> None:
        """Remove the records of a replica that is no longer to be here, or the topic, if that is deleted."""
        with self._lock:
            topic = self._state().topics.get(name.topic)
            if topic is not None and topic.topic_id == self._ids.get(name.topic):
                self.partition(name).restart_at(0)
            elif name.topic in self._ids:
                with contextlib.suppress(UnknownTopicError):
                    self._log.delete_topic(name.topic)
                # crash: the topic is gone, its id is still listed -> nothing is asked of a topic not there
                self._store({other: one for other, one in self._ids.items() if other != name.topic})

    def keep_high_watermarks(self) -> None:
        """Make the high watermarks durable."""
        for partition in self.partitions():
            if not partition.closed and partition.failure is None:
                partition.keep_high_watermark()
