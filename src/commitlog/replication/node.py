"""Node: replicates topics inside an application. It leads some partitions and follows others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from commitlog.config import TopicConfig
from commitlog.errors import (
    CommitLogError,
    ConfigError,
    NotJoinedError,
    NotLeaderError,
    ReplicationTimeoutError,
    TopicReplacedError,
    UnknownTopicError,
)
from commitlog.log import CommitLog
from commitlog.partition import Partition
from commitlog.record import TopicPartition
from commitlog.replication.cluster import ClusterState
from commitlog.replication.commands import (
    AddPartitions,
    Administrative,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    ElectPreferred,
    Reassign,
)
from commitlog.replication.core.node_core import NodeCore
from commitlog.replication.local_topics import STATE_NAME, LocalTopics
from commitlog.replication.node_topic import NodePartition, NodeTopic
from commitlog.replication.ports import Controller, Transport
from commitlog.replication.remote.client_service import ClientService
from commitlog.replication.settings import ReplicationConfig

_logger = logging.getLogger("commitlog.replication")
_FIRST_STATE_MS = 1000  # how long start() waits for the first state that contains the node


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """The state of a node in its cluster."""

    joined: bool
    """Whether it is in the cluster. If not, it leads and follows nothing, and serves reads of what it has."""
    problem: str | None
    """Why it receives no new states: no controller answers, or the controller is not its cluster's."""
    cluster_id: str | None
    """The cluster that it belongs to; None if it has never joined one."""
    version: int
    """The version of the last cluster state that it accepted."""
    not_replicated: Mapping[str, str]
    """Topics that could not be opened or changed here, and why; the node keeps trying."""
    not_following: Mapping[TopicPartition, str]
    """Replicas that failed to store what the leader sent, and why."""
    unknown_topics: Mapping[str, str]
    """Replicated topics that are here but not in the cluster, though nobody deleted them. They are kept."""


class Node:
    """One of the nodes that replicate the same topics. Threads may share it.

    Log, transport and controller belong to the application, which opens them before the node and closes
    them after it. The log may also hold topics that are not replicated.
    """

    def __init__(
        self,
        log: CommitLog,
        transport: Transport,
        controller: Controller,
        node_id: int,
        config: ReplicationConfig | Mapping[str, Any] | None = None,
    ) -> None:
        self.log = log
        self.node_id = node_id
        self.address: str | None = None
        self.config = config if isinstance(config, ReplicationConfig) else ReplicationConfig.of(config or {})
        self._transport = transport
        self._controller = controller
        self._stopped = False
        self._hosting = LocalTopics(log, node_id, self._attend)
        self._core = NodeCore(node_id, transport, controller, self.config, self._hosting)
        self._clients = ClientService(_Host(log, self._core, controller, self._hosting, self._submit))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Node {self.node_id} at {self.address}>"

    def start(self) -> Self:
        """Serve other nodes and clients, and join the cluster.

        If no controller answers in time, the node starts anyway: it serves reads, and joins as soon as a
        controller answers; see health(). WrongClusterError or StaleControllerError if the controller that
        answers is not this node's.
        """
        self._hosting.empty_set_aside()
        try:
            self.address = self._core.start(
                clean=self._hosting.clean, others=self._clients.handle, told=self._clients.look_again
            )
        except BaseException:
            self._end()
            raise
        if self._core.incarnation >= 0:
            self._transport.wait_for(lambda: self._core.joined, _FIRST_STATE_MS)
        self._transport.call_every(self.config.high_watermark_checkpoint_interval_ms, self._look_after_files)
        return self

    def stop(self, *, hand_over: bool = True, timeout_ms: int = 10_000) -> None:
        """Hand over what this node leads to in-sync replicas, and leave the cluster. Idempotent.

        Close the log afterwards: only a node whose log was closed is trusted to have all its records. If the
        controller cannot be reached the node stops anyway; others take over when its session expires.
        """
        if self._stopped:
            return
        self._stopped = True
        if hand_over and self._core.joined:
            self._tell_controller(lambda: self._controller.leave(self.node_id, timeout_ms))
        self._core.close()
        self._tell_controller(lambda: self._controller.gone(self.node_id))
        self._end()

    def _end(self) -> None:
        self._stopped = True
        self._core.close()
        self._clients.close()
        for partition in self._hosting.partitions():
            partition.attend(None, None)
            partition.follow()
        self._hosting.keep_high_watermarks()

    def _tell_controller(self, call: Callable[[], object]) -> None:
        try:
            call()
        except CommitLogError as error:
            _logger.warning("node %d stops without telling its controller: %s", self.node_id, error)

    def _look_after_files(self) -> None:
        if not self._stopped:  # the transport may outlive the log
            self._hosting.keep_high_watermarks()
            self._hosting.empty_set_aside()

    def _attend(self, name: TopicPartition, partition: Partition) -> None:
        """Observe the appends to a replica, and let them wait for acknowledgement."""
        limit_ms = self.config.request_timeout_ms

        def wait(end_offset: int, leader_epoch: int) -> None:
            self._core.wait_acknowledged(name, end_offset, limit_ms, leader_epoch=leader_epoch)

        partition.attend(lambda: self._core.appended(name), wait)

    # --- topics

    def topic(self, name: str) -> NodeTopic:
        """Return a replicated topic; UnknownTopicError if this node has no replica of any partition of it."""
        self._hosting.partition(TopicPartition(name, 0))
        topic = self.log.topic(name)
        timeout_ms = self.config.request_timeout_ms
        partitions = [
            NodePartition(TopicPartition(name, number), partition, self._core, timeout_ms)
            for number, partition in enumerate(topic.partitions)
        ]
        return NodeTopic(topic, partitions)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = 1,
        config: TopicConfig | Mapping[str, Any] | None = None,
        timeout_ms: int = 10_000,
    ) -> None:
        """Create a topic, and wait until this node knows it and every partition has a leader."""
        settings = config.overrides() if isinstance(config, TopicConfig) else config or {}
        self._submit(CreateTopic(name, partitions, replication_factor, dict(settings)))
        self._wait(name, timeout_ms, lambda state: self._is_ready(state, name))

    def _is_ready(self, state: ClusterState, name: str) -> bool:
        topic = state.topics.get(name)
        if topic is None or any(one.leader is None for one in topic.partitions):
            return False
        led = [number for number, one in enumerate(topic.partitions) if one.leader == self.node_id]
        return all(self.leads(TopicPartition(name, number)) for number in led)

    def alter_topic(self, name: str, **changes: Any) -> None:
        """Change settings of a topic on all nodes; segment settings apply from the next roll on."""
        self._submit(AlterTopic(name, changes))

    def delete_topic(self, name: str) -> None:
        """Delete a topic on all nodes."""
        self._submit(DeleteTopic(name))

    def add_partitions(self, name: str, partitions: int) -> None:
        """Increase a topic's partition count. From then on keys hash over the new count."""
        self._submit(AddPartitions(name, partitions))

    def elect_preferred(self) -> None:
        """Make the first replica of each partition its leader, where it is in sync."""
        self._submit(ElectPreferred())

    def move(self, name: TopicPartition, replicas: Sequence[int]) -> None:
        """Start to move a partition to these nodes; it is done when its `target` in state() is None."""
        self._submit(Reassign(name, tuple(replicas)))

    def _submit(self, command: Administrative) -> int:
        """Submit a command, unless this process could not open the files of its new partitions."""
        if isinstance(command, CreateTopic | AddPartitions):
            topic = self._core.state.topics.get(command.name)
            there = 0 if topic is None else len(topic.partitions)
            self.log.check_room(command.name, command.partitions - there)
        return self._controller.submit(command)

    def throttle(self, bytes_per_second: int) -> None:
        """Limit the bytes per second sent to replicas that are not in sync; -1 means no limit."""
        self._core.throttle(bytes_per_second)

    # --- the cluster

    def state(self) -> ClusterState:
        """Return the newest cluster state known here."""
        return self._controller.state() if self._core.joined else self._core.state

    def health(self) -> NodeHealth:
        """Return the health of the node."""
        core, state = self._core, self._core.state
        problem = self._controller.problem() or core.refusal
        return NodeHealth(
            joined=core.joined,
            problem=None if problem is None else str(problem),
            cluster_id=state.cluster_id or None,
            version=state.version,
            not_replicated={str(name or STATE_NAME): why for name, why in core.complaints.reasons().items()},
            not_following={one.name: one.problem for one in core.replicas() if one.problem is not None},
            unknown_topics=self._hosting.unknown(),
        )

    def leads(self, name: TopicPartition) -> bool:
        """Return whether this node leads a partition and accepts appends to it."""
        return self._core.leads(name)

    def wait_for_leader(self, name: TopicPartition, timeout_ms: int = 10_000) -> int:
        """Wait until a partition has a leader, and accepts appends if that is this node; returns its id."""
        found: list[int] = []

        def is_led(state: ClusterState) -> bool:
            one = state.partition(name)
            if one is None or one.leader is None or (one.leader == self.node_id and not self.leads(name)):
                return False
            found.append(one.leader)
            return True

        self._wait(name, timeout_ms, is_led)
        return found[-1]

    def _wait(self, what: object, timeout_ms: int, holds: Callable[[ClusterState], bool]) -> None:
        if not self._transport.wait_for(lambda: holds(self.state()), timeout_ms):
            raise ReplicationTimeoutError(what, timeout_ms)


class _Host:
    """The Host of the ClientService of a node."""

    def __init__(
        self,
        log: CommitLog,
        core: NodeCore,
        controller: Controller,
        hosting: LocalTopics,
        submit: Callable[[Administrative], int],
    ) -> None:
        self.log = log
        self._core, self._controller, self._hosting = core, controller, hosting
        self.leads, self.check_can_append = core.leads, core.check_can_append
        self.when_acknowledged, self.submit = core.when_acknowledged, submit

    def state(self) -> ClusterState:
        self._check_joined()
        return self._controller.state()

    def _check_joined(self) -> None:
        if not self._core.joined:
            problem = self._controller.problem() or self._core.refusal or "it is waiting for its controller"
            raise NotJoinedError(self._core.node_id, str(problem))

    def partition(self, name: TopicPartition, topic_id: str, *, any_replica: bool) -> Partition:
        replica = self._core.replica(name)
        if replica is None:
            self._check_joined()
            if self._core.state.partition(name) is None:
                raise UnknownTopicError(name.topic)
            raise NotLeaderError(name, self._core.leader_of(name))
        if topic_id != replica.topic_id:
            raise TopicReplacedError(name.topic, topic_id, replica.topic_id)
        if not any_replica and not self.leads(name):
            raise NotLeaderError(name, self._core.leader_of(name))
        return self._hosting.partition(name)

    def check_can_publish(self, name: TopicPartition) -> None:
        found = self.state().partition(name)
        if found is None or len(found.replicas) > 1 or found.target is not None:
            reason = "has replicas on other nodes, which would not know what was published: use one replica"
            raise ConfigError("topic", name.topic, reason)
