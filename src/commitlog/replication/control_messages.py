"""What nodes say to a controller that another process serves (server.py). Values only.

| request | answered by | who asks |
|---|---|---|
| Join | Joined | a node, when it starts and when it was fenced |
| Heartbeat | ClusterNow | a node, again and again: it is alive as long as it asks |
| messages.py: Submit | Decided | nodes, and administrators through a node |

Any of them may be answered by a Refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from commitlog.replication.cluster import ClusterState, Known
from commitlog.replication.commands import JoinNode


@dataclass(frozen=True, slots=True)
class Join:
    """A node is alive. `token` names this attempt, which may be repeated until an answer comes.

    A controller that does not know the state `node.known` refuses.
    """

    node: JoinNode
    token: str


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
