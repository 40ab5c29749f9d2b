"""LocalTopics: the replicated topics of a node's log, and the files that belong to them.

replicated-topics.json  the replicated topics, with their ids in the cluster
cluster-state.json      the last state of the cluster that this node accepted
set-aside/              replicas that were removed recently

Only replicated topics are ever changed or removed here; the others belong to the application. A topic is
removed only if a state says that the topic with its id is deleted, or that its replicas are on other nodes.
A topic that is missing from a state is left alone and reported.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from threading import RLock

from commitlog import files
from commitlog.config import TopicConfig
from commitlog.errors import (
    CommitLogError,
    ConfigError,
    FencedEpochError,
    TopicExistsError,
    TopicReplacedError,
    UnknownTopicError,
)
from commitlog.ids import is_id
from commitlog.log import CommitLog
from commitlog.partition import Partition
from commitlog.record import TopicPartition
from commitlog.replication.cluster import ClusterState, TopicState
from commitlog.replication.controllers.stored import StoredState, read_state_file, write_state_file
from commitlog.replication.set_aside import SetAside
from commitlog.topic import Topic
from commitlog.topics.catalog import not_ours, read_json

Attend = Callable[[TopicPartition, Partition], None]
FILE_NAME, STATE_NAME = "replicated-topics.json", "cluster-state.json"
_logger = logging.getLogger("commitlog.replication")


class LocalTopics:
    """Creates and removes topics of the log as the controller's states demand. Threads may share it.

    `attend` is called for every replica that is opened.
    """

    def __init__(self, log: CommitLog, node_id: int, attend: Attend = lambda name, partition: None) -> None:
        if not log.exclusive:
            raise ConfigError("log", log.path, "must be open for exclusive writing to be replicated")
        self._log = log
        self._node_id = node_id
        self._attend = attend
        self._path = os.path.join(log.path, FILE_NAME)
        self._state_path = os.path.join(log.path, STATE_NAME)
        self._lock = RLock()
        self._ids = self._load()
        self._set_aside = SetAside(log.path)
        self._unknown: dict[str, str] = {}
        self._tidied: dict[str, tuple[tuple[int, ...], ...]] = {}  # by topic, the replicas when that was done

    def _load(self) -> dict[str, str]:
        try:
            known = read_json(self._path)
        except FileNotFoundError:
            return {}
        if not all(map(is_id, known.values())):
            raise not_ours(self._path)
        return known

    def _store(self, ids: Mapping[str, str]) -> None:
        files.write_whole(self._path, json.dumps(ids, indent=1).encode(), self._path + ".tmp")
        self._ids = dict(ids)

    @property
    def disk_id(self) -> str:
        """The id of this node's disk."""
        return self._log.log_id or ""

    @property
    def clean(self) -> bool:
        """Whether every replica here was stopped cleanly the last time.

        False if there are no replicas, because the disk may have been replaced; that costs a node nothing
        unless it was in an ISR.
        """
        with self._lock:
            topics = [self._find(name) for name in self._ids]
        partitions = [one for topic in topics if topic is not None for one in topic.partitions]
        return bool(topics) and None not in topics and all(one.recovery.clean for one in partitions)

    def unknown(self) -> dict[str, str]:
        """Return the topics that are here but not in the cluster, with the reason why they are kept."""
        with self._lock:
            return dict(self._unknown)

    def partitions(self) -> list[Partition]:
        """Return all partitions of replicated topics, including those without a replica on this node."""
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

    # --- the Store of NodeCore

    def kept(self) -> ClusterState | None:
        """Return the last state that keep() stored."""
        found = read_state_file(self._state_path)
        return None if found is None else found.state

    def keep(self, state: ClusterState) -> None:
        """Store a state durably."""
        with self._lock:
            write_state_file(self._state_path, StoredState(state))

    def open(self, name: TopicPartition, topic: TopicState) -> Partition:
        """Return the partition of a replica; its topic is created or extended if necessary."""
        with self._lock:
            found = self._open_topic(name.topic, topic)
            partition: Partition = found.partition(name.partition)
        self._attend(name, partition)
        return partition

    def _open_topic(self, name: str, topic: TopicState) -> Topic:
        known, found = self._ids.get(name), self._find(name)
        if found is not None and (known is None or found.topic_id != known):
            raise TopicExistsError(name)  # it belongs to the application
        if known != topic.topic_id:
            if found is not None:
                raise TopicReplacedError(name, topic.topic_id, known)
            self._store(self._ids | {name: topic.topic_id})
            # crash: the id is listed, the topic is not there -> the next start creates it
        count = len(topic.partitions)
        if found is None:
            found = self._log._topics.create(name, count, topic.config, topic.topic_id)
        elif len(found.partitions) < count:
            found.add_partitions(count)
        settings = TopicConfig().altered(topic.config)
        if found.config != settings:
            found.alter_config(**asdict(settings))  # all of them: some may be back to their defaults
        for partition in found.partitions:
            if not partition.replicated:
                partition.follow()  # nobody appends until the controller names a leader
        return found

    def tidy(self, state: ClusterState) -> None:
        """Set aside the replicas that a state says are deleted, or on other nodes.

        A replica that cannot be set aside now stays for the next attempt; the last error is raised.
        """
        problem: Exception | None = None
        with self._lock:
            for name, topic_id in list(self._ids.items()):
                try:
                    self._tidy_topic(name, topic_id, state)
                except (CommitLogError, OSError) as error:
                    problem = error
        if problem is not None:
            raise problem

    def _tidy_topic(self, name: str, topic_id: str, state: ClusterState) -> None:
        topic = state.topics.get(name)
        if topic_id in state.deleted:
            self._remove_topic(name, topic_id)
        elif topic is None or topic.topic_id != topic_id:
            self._leave_alone(name, topic_id)
        else:
            self._unknown.pop(name, None)
            replicas = tuple(one.replicas for one in topic.partitions)
            if self._tidied.get(name) == replicas:
                return
            self._remove_moved(name, topic)
            if not any(self._node_id in some for some in replicas):
                self._remove_topic(name, topic_id)
            else:
                self._tidied[name] = replicas

    def _remove_topic(self, name: str, topic_id: str) -> None:
        """Set a topic aside, then remove it."""
        found = self._find(name)
        if found is not None and found.topic_id == topic_id:
            for partition in found.partitions:
                if partition.next_offset > 0:
                    self._set_aside.keep(partition, topic_id)
            self._log.delete_topic(name)
            _logger.warning("node %d: topic %s, id %s, is removed", self._node_id, name, topic_id)
        # crash: the topic is gone, its id is still listed -> nothing is asked of a topic not there
        self._unknown.pop(name, None)
        self._tidied.pop(name, None)
        self._store({other: one for other, one in self._ids.items() if other != name})

    def _remove_moved(self, name: str, topic: TopicState) -> None:
        found = self._find(name)
        for number, one in enumerate(topic.partitions):
            if found is None or self._node_id in one.replicas or number >= len(found.partitions):
                continue
            partition = found.partition(number)
            if partition.next_offset == 0 or partition.failure is not None:
                continue
            if one.leader_epoch <= partition.epochs.latest:  # every move starts a new epoch
                raise FencedEpochError(partition.name, one.leader_epoch, partition.epochs.latest)
            self._set_aside.keep(partition, topic.topic_id)
            partition.restart_at(0)
            _logger.warning("node %d: %s is on other nodes now", self._node_id, partition.name)

    def _leave_alone(self, name: str, topic_id: str) -> None:
        """Report a topic that is here but not in the cluster: only an explicit deletion removes it."""
        if name not in self._unknown:
            text = "node %d: keeping topic %s, id %s, which the cluster does not know and did not delete"
            _logger.error(text, self._node_id, name, topic_id)
        self._unknown[name] = f"the cluster has no topic with id {topic_id}, and did not delete it"

    def keep_high_watermarks(self) -> None:
        """Store the high watermarks durably."""
        for partition in self.partitions():
            if not partition.closed and partition.failure is None:
                partition.keep_high_watermark()

    def empty_set_aside(self) -> None:
        """Remove the replicas that were set aside long enough ago."""
        with contextlib.suppress(OSError):
            self._set_aside.empty()
