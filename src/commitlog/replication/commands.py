"""Commands: the changes of a cluster that a controller decides, as values. rules.apply() decides each one.

A command holds numbers, texts, flags, and tuples and mappings of these, so it can be sent, stored and
replayed. Whatever is random, such as the id of a topic, is chosen when the command is made. Applying the
same commands to the same state therefore gives the same result everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from commitlog.ids import new_id
from commitlog.record import TopicPartition
from commitlog.replication.cluster import Known

# --- for administrators -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Create a topic and spread its replicas over the living nodes.

    The same command may arrive twice, because its answer was lost: by `topic_id` it counts once.
    """

    name: str
    partitions: int = 1
    replication_factor: int = 1
    config: Mapping[str, Any] = field(default_factory=dict)
    topic_id: str = field(default_factory=new_id)


@dataclass(frozen=True, slots=True)
class AlterTopic:
    """Change settings of a topic; settings that are not named stay as they are."""

    name: str
    changes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Delete a topic on all nodes."""

    name: str


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """Grow a topic to this number of partitions."""

    name: str
    partitions: int


@dataclass(frozen=True, slots=True)
class Reassign:
    """Move a partition to these nodes: new replicas catch up first, then the old ones go."""

    name: TopicPartition
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ElectPreferred:
    """Make the first replica of each partition its leader, where it is in sync."""


# --- for nodes ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChangeIsr:
    """A leader's proposal for the in-sync replicas. It counts only if the partition still has this version.

    `incarnations` are those of the members as the leader knows them: a member that has restarted since,
    and may have lost records, is not let in.
    """

    name: TopicPartition
    topic_id: str
    leader: int
    leader_epoch: int
    version: int
    isr: tuple[int, ...]
    incarnations: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class LeaveNode:
    """Hand over what a node leads, because it is about to stop. It stays alive."""

    node_id: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class RemoveNode:
    """Count a node as gone, unless it has begun another life since."""

    node_id: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class JoinNode:
    """Count a node as alive, in a new life; the rules choose its incarnation.

    `clean` says whether it stopped cleanly the last time. `disk_id` identifies its disk. `known` is the
    last state that it took in, None if it has none.
    """

    node_id: int
    address: str
    clean: bool
    disk_id: str = ""
    known: Known | None = None


class Registration(NamedTuple):
    """A living node with the incarnation that ZooKeeper chose; `heard_version` is that of JoinNode.known."""

    address: str
    incarnation: int
    clean: bool
    disk_id: str = ""
    heard_version: int | None = None


@dataclass(frozen=True, slots=True)
class RegisterNodes:
    """Count exactly these nodes as alive; one with another incarnation than before has begun a new life."""

    alive: Mapping[int, Registration]


Administrative = CreateTopic | AlterTopic | DeleteTopic | AddPartitions | Reassign | ElectPreferred
Submitted = Administrative | ChangeIsr | LeaveNode | RemoveNode  # what a controller can be sent
Command = Submitted | JoinNode | RegisterNodes
