"""Which node has which replica, who leads, who is in sync: the values that a controller keeps.

rules.py tells how they change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from commitlog.errors import CommitLogError, StaleControllerError, WrongClusterError
from commitlog.record import TopicPartition


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node that is alive. `incarnation` tells one life from the next: it grows whenever one registers."""

    node_id: int
    address: str
    incarnation: int
    leaving: bool = False  # it hands over what it leads, and gets nothing new


@dataclass(frozen=True, slots=True)
class Member:
    """A node that has joined once, alive or not.

    `disk_id` tells its disk from any other: one that comes back with another disk has lost all it had.
    It has heard of every deletion up to `heard_version`. Its last life began with `joined_version`: one that
    comes back and knows only earlier states has not kept that life; it may be an older copy of the disk.
    """

    disk_id: str
    heard_version: int
    joined_version: int


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Where a partition's replicas are. The first of them is the preferred leader.

    leader_epoch grows with every election, version with every change at all. isr is within replicas, and in
    their order. Either all its members are alive, and leader is one of them; or none is, and leader is None.

    `awaits` is set when the only member of the ISR came back with another disk: the records were on the disk
    of that id. Nobody leads until that disk is back, or the topic allows an unclean election.
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
    """A topic: its settings and its partitions. `topic_id` is random: no other topic ever has it."""

    topic_id: str
    config: Mapping[str, Any]
    partitions: tuple[PartitionState, ...]


@dataclass(frozen=True, slots=True)
class Deletion:
    """A topic that was deleted, by the state of this version."""

    name: str
    version: int


@dataclass(frozen=True, slots=True)
class Reign:
    """One life of a controller, with a random id: its states begin with `first_version`."""

    reign_id: str
    first_version: int


class Known(NamedTuple):
    """Which state a node took in last: enough to tell whether another one follows it."""

    cluster_id: str
    reign_id: str
    version: int


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Everything a controller keeps. `epoch` is the controller's: it grows when another one takes over.

    `version` grows with every change. Versions of partitions and incarnations are taken from it, so that none
    is ever given twice, even to a topic that is created again.

    `cluster_id` is random and made once. `reigns` are the last lives of controllers, the current one last: a
    state follows another only if it is of the same reign and not older, or if its controller knew that state
    when it began. `deleted` has the topics that were deleted, by id, for as long as a member may still have
    to hear of it: a topic that is merely absent is not deleted.
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
        """What is kept by a node that takes in this state."""
        return Known(self.cluster_id, self.reigns[-1].reign_id, self.version)

    def refusal(self, known: Known | None) -> CommitLogError | None:
        """Return why a node that knows an earlier state must not take this one; None if it may."""
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
        """Say whether a node knows a later state than this, so that this is an older copy of the real one.

        A node whose state lies before all reigns that are remembered is refused, but proves nothing: it may
        only have been away for long.
        """
        is_refused = isinstance(self.refusal(known), StaleControllerError)
        return is_refused and known.version >= self.reigns[0].first_version

    def partition(self, name: TopicPartition) -> PartitionState | None:
        """Return a partition's state, None if there is no such partition."""
        topic = self.topics.get(name.topic)
        if topic is None or not 0 <= name.partition < len(topic.partitions):
            return None
        return topic.partitions[name.partition]
