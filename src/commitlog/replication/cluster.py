"""The state of a cluster: which nodes are alive, where replicas are, who leads and who is in sync.

rules.py has the rules by which it changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from commitlog.errors import CommitLogError, StaleControllerError, WrongClusterError
from commitlog.record import TopicPartition


@dataclass(frozen=True, slots=True)
class NodeState:
    """A living node. Its `incarnation` grows each time it registers, and so identifies one life of it."""

    node_id: int
    address: str
    incarnation: int
    leaving: bool = False  # it is handing over what it leads, and is given nothing new


@dataclass(frozen=True, slots=True)
class Member:
    """A node that has ever joined, alive or not.

    A node that returns with a different `disk_id` has lost all its records. It has seen every deletion up
    to `heard_version`. Its last life began with `joined_version`: if it returns knowing only earlier states,
    its disk may be an older copy.
    """

    disk_id: str
    heard_version: int
    joined_version: int


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The replicas of a partition; the first one is the preferred leader.

    leader_epoch grows with every election, version with every change. isr is a subset of replicas, in their
    order. Either all its members are alive and leader is one of them, or none is alive and leader is None.
    The exception is `awaits`: the only member of the ISR returned with another disk than the one of this id,
    which has the records. Nobody leads until that disk is back, or the topic allows an unclean election.
    """

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int | None
    leader_epoch: int
    version: int
    target: tuple[int, ...] | None = None  # the replicas it is being moved to
    awaits: str | None = None


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic: its settings and its partitions. `topic_id` is random and never reused."""

    topic_id: str
    config: Mapping[str, Any]
    partitions: tuple[PartitionState, ...]


@dataclass(frozen=True, slots=True)
class Deletion:
    """A topic that the state of this version deleted."""

    name: str
    version: int


@dataclass(frozen=True, slots=True)
class Reign:
    """One life of a controller, with a random id; its first state has `first_version`."""

    reign_id: str
    first_version: int


class Known(NamedTuple):
    """Identifies the last state that a node accepted, to check whether another state follows it."""

    cluster_id: str
    reign_id: str
    version: int


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Everything a controller keeps. `epoch` is the controller's: it grows when another one takes over.

    `version` grows with every change. Partition versions and incarnations are taken from it, so none is ever
    reused, even by a topic that is created again.

    `cluster_id` is random and chosen once. `reigns` are the last lives of controllers, the current one last.
    A state follows another only if it is of the same reign and not older, or if its controller started from
    that state or a later one. `deleted` lists deleted topics by id until every member has seen the deletion:
    a topic that is merely absent is not deleted.
    """

    nodes: Mapping[int, NodeState] = field(default_factory=dict)
    topics: Mapping[str, TopicState] = field(default_factory=dict)
    epoch: int = 0
    version: int = 0
    cluster_id: str = ""
    reigns: tuple[Reign, ...] = (Reign("", 0),)
    members: Mapping[int, Member] = field(default_factory=dict)
    deleted: Mapping[str, Deletion] = field(default_factory=dict)

    @property
    def known(self) -> Known:
        """What a node that accepts this state remembers of it."""
        return Known(self.cluster_id, self.reigns[-1].reign_id, self.version)

    def refusal(self, known: Known | None) -> CommitLogError | None:
        """Return why a node that knows `known` must reject this state; None if it may accept it."""
        if known is None:
            return None
        if known.cluster_id != self.cluster_id:
            return WrongClusterError(known.cluster_id, self.cluster_id)
        ends = [*(reign.first_version for reign in self.reigns[1:]), self.version + 1]
        for reign, end in zip(self.reigns, ends, strict=True):
            if reign.reign_id == known.reign_id and known.version < end:
                return None
        return StaleControllerError(known.version, self.version)

    def is_older_than(self, known: Known) -> bool:
        """Return whether a node knows a later state, which proves that this one is an older copy.

        A node whose state precedes all remembered reigns is refused but proves nothing: it may only have
        been away for a long time.
        """
        is_refused = isinstance(self.refusal(known), StaleControllerError)
        return is_refused and known.version >= self.reigns[0].first_version

    def partition(self, name: TopicPartition) -> PartitionState | None:
        """Return the state of a partition, None if it does not exist."""
        topic = self.topics.get(name.topic)
        if topic is None or not 0 <= name.partition < len(topic.partitions):
            return None
        return topic.partitions[name.partition]
