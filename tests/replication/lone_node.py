"""Nodes without replication: one log, served by one or more transports, of which one at a time leads."""

from __future__ import annotations

from collections.abc import Callable

from commitlog import CommitLog, CommitLogError, Partition
from commitlog.errors import ClosedError, NotLeaderError
from commitlog.record import TopicPartition
from commitlog.replication.cluster import ClusterState, NodeState, PartitionState, TopicState
from commitlog.replication.commands import Administrative, CreateTopic, DeleteTopic
from commitlog.replication.messages import Message
from commitlog.replication.ports import Reply
from commitlog.replication.remote.client_service import ClientService
from commitlog.replication.transports.tcp import TcpTransport


class Cluster:
    """What all nodes here know; they serve the same log."""

    def __init__(self, log: CommitLog) -> None:
        self.log = log
        self.leader: int | None = 0
        self.epoch = 0
        self.acknowledgement: CommitLogError | None = None  # what becomes of acks="all"
        self.nodes: dict[int, LoneNode] = {}
        self.created: set[str] = set()  # ids of topics

    def state(self) -> ClusterState:
        nodes = {number: NodeState(number, node.address, 1) for number, node in self.nodes.items()}
        return ClusterState(nodes, {name: self._topic(name) for name in self.log.topics()})

    def _topic(self, name: str) -> TopicState:
        topic = self.log.topic(name)
        one = PartitionState(tuple(self.nodes), tuple(self.nodes), self.leader, self.epoch, 1)
        return TopicState(topic.topic_id or "", topic.config.overrides(), (one,) * len(topic.partitions))


class LoneNode:
    """A node that answers clients. `intercept` may take a request away from it."""

    def __init__(self, cluster: Cluster, transport: TcpTransport) -> None:
        self.number = len(cluster.nodes)
        self.cluster = cluster
        self.transport = transport
        self.log = cluster.log
        self.service = ClientService(self)
        self.asked: list[Message] = []
        self.intercept: Callable[[Message, Reply], bool] = lambda message, reply: False
        self.address = transport.serve(self._handle)
        cluster.nodes[self.number] = self

    def _handle(self, message: Message, reply: Reply) -> None:
        self.asked.append(message)
        if not self.intercept(message, reply):
            self.service.handle(message, reply)

    def break_connections(self) -> None:
        """Let every client's connection end, with whatever is under way."""
        for connection in list(self.transport._incoming):
            connection.end(ClosedError("a connection of a test"))

    def close(self) -> None:
        self.service.close()
        self.transport.close()

    # --- Host

    def state(self) -> ClusterState:
        return self.cluster.state()

    def leads(self, name: TopicPartition) -> bool:
        return self.cluster.leader == self.number

    def partition(self, name: TopicPartition, topic_id: str, *, any_replica: bool) -> Partition:
        found: Partition = self.cluster.log.topic(name.topic).partition(name.partition)
        if self.cluster.leader != self.number and not any_replica:
            raise NotLeaderError(found.name, self.cluster.leader)
        return found

    def check_can_append(self, name: TopicPartition, acks: int | str) -> int:
        self.partition(name, "", any_replica=False)
        return self.cluster.epoch

    def check_can_publish(self, name: TopicPartition) -> None:
        pass

    def appended(self, name: TopicPartition) -> None:
        pass

    def when_acknowledged(
        self,
        name: TopicPartition,
        end_offset: int,
        leader_epoch: int,
        timeout_ms: int,
        done: Callable[[CommitLogError | None], None],
    ) -> None:
        done(self.cluster.acknowledgement)

    def submit(self, command: Administrative) -> int:
        if isinstance(command, DeleteTopic):
            self.cluster.log.delete_topic(command.name)
        elif isinstance(command, CreateTopic) and command.topic_id not in self.cluster.created:
            self.cluster.log.create_topic(command.name, command.partitions, dict(command.config))
            self.cluster.created.add(command.topic_id)
        return 1
