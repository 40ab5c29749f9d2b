"""A cluster of a few nodes with logs in memory, on a virtual clock, for scenarios."""

from __future__ import annotations

from typing import Any

from commitlog.errors import CommitLogError
from commitlog.record import TopicPartition
from commitlog.replication.cluster import ClusterState, PartitionState, TopicState
from commitlog.replication.commands import CreateTopic
from commitlog.replication.controllers.simulated import SimulatedController
from commitlog.replication.core.node_core import NodeCore
from commitlog.replication.settings import ReplicationConfig
from commitlog.replication.transports.local import Faults, LocalNetwork

from .memory_log import Disk, MemoryLog

ORDERS = TopicPartition("orders", 0)


class LittleStore:
    """The disk of a node."""

    def __init__(self, cluster: LittleCluster, node_id: int) -> None:
        self.cluster, self.node_id = cluster, node_id

    @property
    def disk_id(self) -> str:
        return f"disk {self.cluster.replaced_disks.get(self.node_id, 0)} of {self.node_id}"

    def kept(self) -> ClusterState | None:
        return self.cluster.kept.get(self.node_id)

    def keep(self, state: ClusterState) -> None:
        self.cluster.kept[self.node_id] = state

    def open(self, name: TopicPartition, topic: TopicState) -> MemoryLog:
        cluster, node_id = self.cluster, self.node_id
        if node_id not in cluster.logs:
            cluster.logs[node_id] = MemoryLog(cluster.disks.setdefault(node_id, Disk()))
        return cluster.logs[node_id]

    def tidy(self, state: ClusterState) -> None:
        topic = state.topics.get("orders")
        moved = topic is not None and self.node_id not in topic.partitions[0].replicas
        if moved or state.deleted:
            self.cluster.logs.pop(self.node_id, None)
            self.cluster.disks.pop(self.node_id, None)


class LittleCluster:
    """Nodes 1, 2, 3, ...; the topic "orders" has one partition, which node 1 leads first."""

    def __init__(
        self,
        nodes: int = 3,
        replicas: int | None = None,
        topic: dict[str, Any] | None = None,
        **settings: int,
    ) -> None:
        self.network = LocalNetwork(faults=Faults((1, 1)))
        self.controller = SimulatedController(self.network, session_timeout_ms=1000)
        self.config = ReplicationConfig(**{"request_timeout_ms": 1000, **settings})
        self.cores: dict[int, NodeCore] = {}
        self.disks: dict[int, Disk] = {}
        self.kept: dict[int, ClusterState] = {}
        self.replaced_disks: dict[int, int] = {}
        self.logs: dict[int, MemoryLog] = {}
        self.numbers = 0
        for node_id in range(1, nodes + 1):
            self.start(node_id)
        self.controller.submit(CreateTopic("orders", 1, replicas or nodes, topic or {}))
        self.network.run_for(50)

    @property
    def state(self) -> PartitionState:
        state = self.controller.state().partition(ORDERS)
        assert state is not None
        return state

    @property
    def topic_id(self) -> str:
        return self.controller.state().topics["orders"].topic_id

    def start(self, node_id: int, *, clean: bool = False) -> None:
        transport = self.network.transport(str(node_id))
        self.logs.pop(node_id, None)
        core = NodeCore(node_id, transport, self.controller, self.config, LittleStore(self, node_id))
        self.cores[node_id] = core
        core.start(clean=clean)

    def lose_disk(self, node_id: int) -> None:
        """Let a node that is down come back with another disk, an empty one."""
        self.replaced_disks[node_id] = self.replaced_disks.get(node_id, 0) + 1
        for on_disk in (self.disks, self.kept, self.logs):
            on_disk.pop(node_id, None)

    def append(self, node_id: int, records: int = 1) -> tuple[int, int]:
        """Append a batch at a node, whoever leads."""
        self.numbers += 1
        offsets = self.logs[node_id].append(self.numbers, records)
        self.cores[node_id].appended(ORDERS)
        return offsets

    def append_to_all(self, node_id: int, timeout_ms: int = 5000) -> list[CommitLogError | None]:
        """Append with acks="all"; the list gets what becomes of it."""
        told: list[CommitLogError | None] = []
        epoch = self.cores[node_id].check_can_append(ORDERS, "all")
        _, end = self.append(node_id)
        self.cores[node_id].when_acknowledged(ORDERS, end, epoch, timeout_ms, told.append)
        return told

    def run(self, ms: int = 50) -> None:
        self.network.run_for(ms)

    def positions(self) -> dict[int, tuple[int, int]]:
        """Return the high watermark and next_offset of every replica."""
        return {node_id: (log.high_watermark, log.next_offset) for node_id, log in self.logs.items()}

    def bytes_of(self, node_id: int) -> bytes:
        return b"".join(self.logs[node_id].disk.batches)
