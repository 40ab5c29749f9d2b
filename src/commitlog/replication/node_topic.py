"""NodeTopic and NodePartition: how the application around a node uses a replicated topic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from commitlog.partition import Partition
from commitlog.record import ArrowData, Buffer, Headers, TopicPartition
from commitlog.replication.core.node_core import NodeCore
from commitlog.replication.messages import Acks
from commitlog.topic import Topic


class NodePartition:
    """Appends to a partition that this node leads; otherwise NotLeaderError, which names the leader.

    With acks="all" an append returns once every in-sync replica has the records, with acks=1 once this node
    has them.
    """

    def __init__(self, name: TopicPartition, log: Partition, core: NodeCore, timeout_ms: int) -> None:
        self.name = name
        self.log = log  # to read from, up to the high watermark
        self._core = core
        self._timeout_ms = timeout_ms

    def __repr__(self) -> str:
        return f"<NodePartition {self.name} of node {self._core.node_id}>"

    def append(
        self,
        value: Buffer | None,
        *,
        key: Buffer | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
        sync: bool = False,
        acks: Acks = "all",
        timeout_ms: int | None = None,
    ) -> int:
        """Append a record and return its offset."""
        epoch = self._core.check_can_append(self.name, acks)
        offset = self.log.append(value, key=key, headers=headers, timestamp=timestamp, sync=sync)
        self._acknowledge(offset + 1, epoch, acks, timeout_ms)
        return offset

    def append_many(
        self,
        values: Iterable[Buffer | None],
        *,
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[Headers] | None = None,
        timestamps: Iterable[int] | None = None,
        sync: bool = False,
        acks: Acks = "all",
        timeout_ms: int | None = None,
    ) -> range:
        """Append records as one batch, all or nothing, and return their offsets."""
        epoch = self._core.check_can_append(self.name, acks)
        offsets = self.log.append_many(values, keys=keys, headers=headers, timestamps=timestamps, sync=sync)
        self._acknowledge(offsets.stop, epoch, acks, timeout_ms)
        return offsets

    def append_arrow(
        self, data: ArrowData, *, sync: bool = False, acks: Acks = "all", timeout_ms: int | None = None
    ) -> range:
        """Append the columns value, key, timestamp and headers of Arrow data (all but value optional)."""
        epoch = self._core.check_can_append(self.name, acks)
        offsets = self.log.append_arrow(data, sync=sync)
        self._acknowledge(offsets.stop, epoch, acks, timeout_ms)
        return offsets

    def _acknowledge(self, end_offset: int, epoch: int, acks: Acks, timeout_ms: int | None) -> None:
        if acks == "all":
            limit_ms = self._timeout_ms if timeout_ms is None else timeout_ms
            self._core.wait_acknowledged(self.name, end_offset, limit_ms, leader_epoch=epoch)


class NodeTopic:
    """A replicated topic; this node may lead some of its partitions."""

    def __init__(self, topic: Topic, partitions: Sequence[NodePartition]) -> None:
        self.name = topic.name
        self.config = topic.config
        self.partitions = tuple(partitions)
        self._topic = topic

    def __repr__(self) -> str:
        return f"<NodeTopic {self.name} with {len(self.partitions)} partitions>"

    def partition(self, number: int) -> NodePartition:
        """Return one partition; UnknownPartitionError if there is no such number."""
        self._topic.partition(number)
        return self.partitions[number]

    def append(
        self,
        value: Buffer | None,
        *,
        key: Buffer | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
        sync: bool = False,
        acks: Acks = "all",
    ) -> tuple[int, int]:
        """Append a record to the partition of its key, if this node leads it; returns (partition, offset)."""
        ((number, _),) = self._topic.places([key], {})
        target = self.partitions[number]
        offset = target.append(value, key=key, headers=headers, timestamp=timestamp, sync=sync, acks=acks)
        return number, offset
