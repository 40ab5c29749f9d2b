"""Commands: changes to a cluster, as values. rules.apply() decides each one.

A command holds numbers, texts, flags, and tuples and mappings of these, so it can be sent, stored and
replayed. Random values, such as the id of a topic, are chosen when the command is made: applying the same
commands to the same state gives the same result everywhere.
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

    If the answer is lost, the command may arrive twice; `topic_id` makes it count once.
    """

    name: str
    partitions: int = 1
    replication_factor: int = 1
    config: Mapping[str, Any] = field(default_factory=dict)
    topic_id: str = field(default_factory=new_id)


@dataclass(frozen=True, slots=True)
class AlterTopic:
    """Change settings of a topic; the others keep their values."""

    name: str
    changes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Delete a topic on all nodes."""

    name: str


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """Increase a topic's partition count to this number."""

    name: str
    partitions: int


@dataclass(frozen=True, slots=True)
class Reassign:
    """Move a partition to these nodes: the new replicas catch up, then the old ones are removed."""

    name: TopicPartition
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ElectPreferred:
    """Make the first replica of each partition its leader, where it is in sync."""


# --- for nodes ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChangeIsr:
    """A leader's proposed ISR. It is accepted only if the partition still has this version.

    `incarnations` are the members' incarnations known to the leader: a member that has restarted since may
    have lost records, so it is rejected.
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
    """Remove a node, unless it has joined again since."""

    node_id: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class JoinNode:
    """Register a node as alive; the rules choose its incarnation.

    `clean` says whether its last stop was clean. `disk_id` identifies its disk. `known` is the last state
    that it accepted, None if there was none.
    """

    node_id: int
    address: str
    clean: bool
    disk_id: str = ""
    known: Known | None = None


class Registration(NamedTuple):
    """A living node with the incarnation from ZooKeeper; `heard_version` is JoinNode.known.version."""

    address: str
    incarnation: int
    clean: bool
    disk_id: str = ""
    heard_version: int | None = None


@dataclass(frozen=True, slots=True)
class RegisterNodes:
    """Register exactly these nodes as alive; a node with a different incarnation has restarted."""

    alive: Mapping[int, Registration]


Administrative = CreateTopic | AlterTopic | DeleteTopic | AddPartitions | Reassign | ElectPreferred
Submitted = Administrative | ChangeIsr | LeaveNode | RemoveNode  # may be sent to a controller
Command = Submitted | JoinNode | RegisterNodes
