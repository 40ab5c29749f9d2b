"""Which node has which replica, who leads, who is in sync: the values that a controller keeps.

rules.py tells how they change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from commitlog.record import TopicPartition


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node that is alive. `incarnation` tells one life from the next: it grows whenever one registers."""

    node_id: int
    address: str
    incarnation: int
    leaving: bool = False  # it hands over what it leads, and gets nothing new


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Where a partition's replicas are. The first of them is the preferred leader.

    leader_epoch grows with every election, version with every change at all. isr is within replicas, and in
    their order. Either all its members are alive, and leader is one of them; or none is, and leader is None.
    """

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int | None
    leader_epoch: int
    version: int
    target: tuple[int, ...] | None = None  # the replicas it is being moved to


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic: its settings and its partitions. `topic_id` tells it from an earlier one of the same name."""

    topic_id: int
    config: Mapping[str, Any]
    partitions: tuple[PartitionState, ...]


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Everything a controller keeps. `epoch` is the controller's: it grows when another one takes over.

    `version` grows with every change. Versions of partitions, incarnations and ids of topics are taken from
    it, so that none is ever given twice, even to a topic that is created again.
    """

    nodes: Mapping[int, NodeState] = field(default_factory=dict)
    topics: Mapping[str, TopicState] = field(default_factory=dict)
    epoch: int = 0
    version: int = 0

    def partition(self, name: TopicPartition) -> PartitionState | None:
        """Return a partition's state, None if there is no such partition."""
        topic = self.topics.get(name.topic)
        if topic is None or not 0 <= name.partition < len(topic.partitions):
            return None
        return topic.partitions[name.partition]


@dataclass(frozen=True, slots=True)
class IsrChange:
    """A leader's proposal: who is in sync. It counts only if the partition still has this version.

    `incarnations` are those of the members as the leader heard them: one that has restarted since, and may
    have lost what it had, is not let in.
    """

    name: TopicPartition
    leader: int
    leader_epoch: int
    version: int
    isr: tuple[int, ...]
    incarnations: Mapping[int, int]
