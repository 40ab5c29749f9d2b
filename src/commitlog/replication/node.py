"""Node: a replica of topics inside an application. It leads some partitions and follows others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from commitlog.config import TopicConfig
from commitlog.errors import (
    CommitLogError,
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
from commitlog.replication.core.acks import Acknowledged
from commitlog.replication.core.node_core import NodeCore
from commitlog.replication.local_topics import STATE_NAME, LocalTopics
from commitlog.replication.node_topic import NodePartition, NodeTopic
from commitlog.replication.ports import Controller, Transport
from commitlog.replication.remote.client_service import ClientService
from commitlog.replication.settings import ReplicationConfig

_logger = logging.getLogger("commitlog.replication")
_FIRST_STATE_MS = 1000  # how long start() waits for the state in which the node has joined


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """The state of a node in its cluster."""

    joined: bool
    """Whether it is in the cluster. If not, it leads and follows nothing, and serves what it has."""
    problem: str | None
    """What keeps it from hearing of the cluster: no controller answers, or not the one of its cluster."""
    cluster_id: str | None
    """The cluster that it belongs to; None if it has never joined one."""
    version: int
    """Of the cluster's state that it took in last."""
    not_replicated: Mapping[str, str]
    """Topics that could not be opened or changed here as they should be, and why; they are tried again."""
    not_following: Mapping[TopicPartition, str]
    """Replicas whose disk did not take what the leader sent, and why."""
    unknown_topics: Mapping[str, str]
    """Replicated topics here that the cluster does not have, though nobody deleted them. They stay."""


class Node:
    """One of several nodes that keep the same topics. Threads may share it.

    The log belongs to the application, which opens it before and closes it after the node; so do transport
    and controller. Topics that are not replicated may be in the same log.
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
        self._clients = ClientService(_Host(self._core, controller, self._hosting, self._submit))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Node {self.node_id} at {self.address}>"

    def start(self) -> Self:
        """Serve other nodes and clients, and join the cluster.

        If no controller answers in time, the node has started all the same: others can read here what it has,
        and it joins when there is a controller; see health(). WrongClusterError or StaleControllerError if
        there is one that is not this node's.
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
        """Leave the cluster; first others take over what this node leads, if there is one in sync.

        Close the log afterwards: only a node whose log was closed is believed to have all its records. It
        stops, too, if the controller cannot be reached: then others take over when its session is over.
        Stopping twice is fine.
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
            _logger.warning("node %d stops, and its controller does not know: %s", self.node_id, error)

    def _look_after_files(self) -> None:
        if not self._stopped:  # the transport may outlive the log
            self._hosting.keep_high_watermarks()
            self._hosting.empty_set_aside()

    def _attend(self, name: TopicPartition, partition: Partition) -> None:
        """Hear of the appends to a replica, and let them wait for the others."""
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
        """Create a topic, and wait until it is known here and every partition has a leader."""
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
        """Change settings of a topic, on all nodes: those of segments count from their next roll on."""
        self._submit(AlterTopic(name, changes))

    def delete_topic(self, name: str) -> None:
        """Delete a topic on all nodes."""
        self._submit(DeleteTopic(name))

    def add_partitions(self, name: str, partitions: int) -> None:
        """Grow a topic to this many partitions. Keys hash over the new number from then on."""
        self._submit(AddPartitions(name, partitions))

    def elect_preferred(self) -> None:
        """Let the first replica of each partition lead, where it is in sync: spread leaders as at first."""
        self._submit(ElectPreferred())

    def move(self, name: TopicPartition, replicas: Sequence[int]) -> None:
        """Move a partition to these nodes, while it is written; state() tells when it is there."""
        self._submit(Reassign(name, tuple(replicas)))

    def _submit(self, command: Administrative) -> int:
        """Let the controller decide, unless this process could not open the files of the new partitions."""
        if isinstance(command, CreateTopic | AddPartitions):
            topic = self._core.state.topics.get(command.name)
            there = 0 if topic is None else len(topic.partitions)
            self.log.check_room(command.name, command.partitions - there)
        return self._controller.submit(command)

    def throttle(self, bytes_per_second: int) -> None:
        """Send no more than this a second to replicas that are not in sync; -1 means no limit."""
        self._core.throttle(bytes_per_second)

    # --- the cluster

    def state(self) -> ClusterState:
        """Return the cluster as far as it is known here."""
        return self._controller.state() if self._core.joined else self._core.state

    def health(self) -> NodeHealth:
        """Return the state of the node."""
        core, state = self._core, self._core.state
        problem = self._controller.problem() or core.refusal
        return NodeHealth(
            joined=core.joined,
            problem=None if problem is None else str(problem),
            cluster_id=state.cluster_id or None,
            version=state.version,
            not_replicated={
                str(topic or STATE_NAME): reason for topic, reason in core.complaints.reasons().items()
            },
            not_following={
                replica.name: replica.problem for replica in core.replicas() if replica.problem is not None
            },
            unknown_topics=self._hosting.unknown(),
        )

    def leads(self, name: TopicPartition) -> bool:
        """Say whether this node leads a partition, and takes appends to it."""
        replica = self._core.replica(name)
        return replica is not None and replica.standing().leader_epoch is not None

    def wait_for_leader(self, name: TopicPartition, timeout_ms: int = 10_000) -> int:
        """Wait until a partition has a leader, which takes appends if it is this node; returns its id."""
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
    """What answering clients asks of a node."""

    def __init__(
        self,
        core: NodeCore,
        controller: Controller,
        hosting: LocalTopics,
        submit: Callable[[Administrative], int],
    ) -> None:
        self._core, self._controller, self._hosting = core, controller, hosting
        self.submit = submit

    def state(self) -> ClusterState:
        self._check_joined()
        return self._controller.state()

    def _check_joined(self) -> None:
        if not self._core.joined:
            problem = self._controller.problem() or self._core.refusal or "it waits for its controller"
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
        if not any_replica and replica.standing().leader_epoch is None:
            raise NotLeaderError(name, self._core.leader_of(name))
        return self._hosting.partition(name)

    def leads(self, name: TopicPartition) -> bool:
        replica = self._core.replica(name)
        return replica is not None and replica.standing().leader_epoch is not None

    def check_can_append(self, name: TopicPartition, acks: int | str) -> int:
        return self._core.check_can_append(name, acks)

    def when_acknowledged(
        self, name: TopicPartition, end_offset: int, leader_epoch: int, timeout_ms: int, done: Acknowledged
    ) -> None:
        self._core.when_acknowledged(name, end_offset, leader_epoch, timeout_ms, done)
