"""What nodes say to a controller that another process serves (server.py). Values only.

| request | answered by | who asks |
|---|---|---|
| Join | Joined | a node, when it starts and when it was fenced |
| Heartbeat | ClusterNow | a node, again and again: it is alive as long as it asks |
| Leave, Gone | Done | a node that stops |
| ProposeIsr | IsrDecided | a leader |
| AlterTopic, AddPartitions, Reassign, ElectPreferred; messages.py: CreateTopic, DeleteTopic | Done | all |

Any of them may be answered by a Refused. `cluster_id` is the cluster that the asking side belongs to, "" if
it belongs to none: a controller of another one refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from commitlog.record import TopicPartition
from commitlog.replication.cluster import ClusterState, IsrChange, Known


@dataclass(frozen=True, slots=True)
class Join:
    """A node is alive. `token` names this attempt: it may be asked again, until an answer comes.

    `disk_id` tells its disk from any other. `known` is the state that it took in last: a controller that does
    not know that one refuses.
    """

    node_id: int
    address: str
    clean: bool
    token: str
    disk_id: str = ""
    known: Known | None = None


@dataclass(frozen=True, slots=True)
class Joined:
    """The node's incarnation, and after how long without a Heartbeat it is gone."""

    incarnation: int
    session_timeout_ms: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A node is still alive, and knows the state of this version.

    Answered as soon as there is another one, or after max_wait_ms. With an incarnation of 0 somebody asks who
    is no node, or none any more. A controller that does not know the state `known` refuses.
    """

    node_id: int
    incarnation: int
    version: int
    max_wait_ms: int
    known: Known | None = None


@dataclass(frozen=True, slots=True)
class ClusterNow:
    """The newest state. A node that is not in it, with the incarnation that it has, is fenced."""

    state: ClusterState


@dataclass(frozen=True, slots=True)
class Leave:
    """A node is about to stop: what it leads is to be handed over."""

    node_id: int
    incarnation: int
    cluster_id: str = ""


@dataclass(frozen=True, slots=True)
class Gone:
    """A node stops."""

    node_id: int
    incarnation: int
    cluster_id: str = ""


@dataclass(frozen=True, slots=True)
class ProposeIsr:
    """A leader's proposal; it may be asked again until an answer comes."""

    change: IsrChange
    cluster_id: str = ""


@dataclass(frozen=True, slots=True)
class IsrDecided:
    """Whether a proposal counts, and the version of the state by which that was decided."""

    counts: bool
    version: int


@dataclass(frozen=True, slots=True)
class AlterTopic:
    """Settings of a topic are to change."""

    name: str
    changes: Mapping[str, Any]
    cluster_id: str = ""


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """A topic is to have so many partitions."""

    name: str
    partitions: int
    cluster_id: str = ""


@dataclass(frozen=True, slots=True)
class Reassign:
    """A partition is to be moved to these nodes."""

    name: TopicPartition
    replicas: tuple[int, ...]
    cluster_id: str = ""


@dataclass(frozen=True, slots=True)
class ElectPreferred:
    """The first replica of each partition is to lead, where it is in sync."""

    cluster_id: str = ""
