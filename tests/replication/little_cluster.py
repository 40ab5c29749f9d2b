"""A cluster of a few nodes with logs in memory, on a virtual clock, for scenarios."""

from __future__ import annotations

from typing import Any

from commitlog.errors import CommitLogError
from commitlog.record import TopicPartition
from commitlog.replication.cluster import PartitionState, TopicState
from commitlog.replication.config import ReplicationConfig
from commitlog.replication.controllers.simulated import SimulatedController
from commitlog.replication.replicas.core import NodeCore
from commitlog.replication.transports.local import Faults, LocalNetwork

from .memory_log import Disk, MemoryLog

ORDERS = TopicPartition("orders", 0)


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
        self.logs: dict[int, MemoryLog] = {}
        self.numbers = 0
        for node_id in range(1, nodes + 1):
            self.start(node_id)
        self.controller.create_topic("orders", 1, replicas or nodes, topic or {})
        self.network.run_for(50)

    @property
    def state(self) -> PartitionState:
        state = self.controller.state().partition(ORDERS)
        assert state is not None
        return state

    def start(self, node_id: int, *, clean: bool = False) -> None:
        transport = self.network.transport(str(node_id))
        core = NodeCore(
            node_id,
            transport,
            self.controller,
            self.config,
            lambda name, topic: self._open(node_id, topic),
            lambda name: self._remove(node_id),
        )
        self.cores[node_id] = core
        core.start(clean=clean)

    def _open(self, node_id: int, topic: TopicState) -> MemoryLog:
        self.logs[node_id] = MemoryLog(self.disks.setdefault(node_id, Disk()))
        return self.logs[node_id]

    def _remove(self, node_id: int) -> None:
        del self.logs[node_id], self.disks[node_id]

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
