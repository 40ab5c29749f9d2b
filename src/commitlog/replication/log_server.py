"""LogServer: lets programs on other machines use the topics of a log that is open in this process.

It is the service of a node without a cluster: this process has the only replica of every topic, and leads all
of them. commitlog.serve() starts one.
"""

from __future__ import annotations

import contextlib
import os
from typing import Self

from commitlog.errors import ConfigError, NotJoinedError, TopicReplacedError, UnknownTopicError
from commitlog.log import CommitLog
from commitlog.partition import Partition
from commitlog.record import TopicPartition
from commitlog.replication.cluster import ClusterState, NodeState, PartitionState, TopicState
from commitlog.replication.commands import Administrative
from commitlog.replication.core.acks import Acknowledged
from commitlog.replication.local_topics import FILE_NAME
from commitlog.replication.ports import Transport
from commitlog.replication.remote.client_service import ClientService
from commitlog.topics.catalog import INTERNAL

_NODE_ID = 0
_SOLE = PartitionState((_NODE_ID,), (_NODE_ID,), _NODE_ID, leader_epoch=0, version=0)


class LogServer:
    """Serves the topics of a log to clients: commitlog.connect(), and Spark with the path `path`.

    Clients read, append and publish; topics are created and changed where the log is open. Close the server
    before the log.
    """

    def __init__(self, log: CommitLog, transport: Transport) -> None:
        if log.mode == "r":
            raise ConfigError(
                "mode", "r", "a log must be open for writing, exclusively or shared, to be served"
            )
        if os.path.exists(os.path.join(log.path, FILE_NAME)):
            raise ConfigError("log", log.path, "has replicated topics: start a Node, which serves them")
        self.log = log
        self.address = ""
        self._transport = transport
        self._clients = ClientService(self)
        self.address = transport.serve(self._clients.handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LogServer of {self.log.path} at {self.address}>"

    @property
    def path(self) -> str:
        """The path by which Spark finds this log; add ?secret=FILE where the server has a secret."""
        return f"commitlog://{self.address}"

    def close(self) -> None:
        """End all connections. Idempotent."""
        self._transport.close()
        self._clients.close()

    # --- Host

    def state(self) -> ClusterState:
        """Return the topics of the log, as those of a cluster of one node; NotJoinedError at first."""
        if not self.address:  # a client was quicker: it asks again
            raise NotJoinedError(_NODE_ID, "it is starting")
        nodes = {_NODE_ID: NodeState(_NODE_ID, self.address, incarnation=0)}
        topics = {}
        for name in self.log.topics():
            with contextlib.suppress(UnknownTopicError):  # it was deleted just now
                topics[name] = self._topic(name)
        return ClusterState(nodes, topics, cluster_id=self.log.log_id or "")

    def _topic(self, name: str) -> TopicState:
        topic = self.log.topic(name)
        return TopicState(topic.topic_id or "", topic.config.overrides(), (_SOLE,) * len(topic))

    def partition(self, name: TopicPartition, topic_id: str, *, any_replica: bool) -> Partition:
        """Return a partition; TopicReplacedError if the topic has another id."""
        if name.topic in INTERNAL:
            raise UnknownTopicError(name.topic)
        topic = self.log.topic(name.topic)
        if topic_id != (topic.topic_id or ""):
            raise TopicReplacedError(name.topic, topic_id, topic.topic_id)
        return topic.partition(name.partition)

    def leads(self, name: TopicPartition) -> bool:
        """Return True."""
        return True

    def check_can_append(self, name: TopicPartition, acks: int | str) -> int:
        """Return the leader epoch."""
        return _SOLE.leader_epoch

    def check_can_publish(self, name: TopicPartition) -> None:
        """Do nothing: this process has the only replica."""

    def when_acknowledged(
        self, name: TopicPartition, end_offset: int, leader_epoch: int, timeout_ms: int, done: Acknowledged
    ) -> None:
        """Call `done`: the only replica has the records."""
        done(None)

    def submit(self, command: Administrative) -> int:
        """Raise ConfigError: topics are created and changed where the log is open."""
        reason = "this log belongs to the process that serves it; create and change topics there"
        raise ConfigError("command", type(command).__name__, reason)
