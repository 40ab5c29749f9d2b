"""Rights: what a connection may ask for, by the credentials that its other side has shown.

One table has every request and, of a Submit, every command; TcpTransport looks at it for each request
that arrives, before the handler does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from commitlog.errors import AuthorizationError, ProtocolError
from commitlog.replication.commands import (
    AddPartitions,
    AlterTopic,
    ChangeIsr,
    CreateTopic,
    DeleteTopic,
    ElectPreferred,
    LeaveNode,
    Reassign,
    RemoveNode,
)
from commitlog.replication.control_messages import Heartbeat, Join
from commitlog.replication.messages import Append, Describe, Fetch, FindOffset, Message, Read, Submit


class Role(IntEnum):
    """Who the other side of a connection is. Each role may do what those before it may."""

    CLIENT = 1
    ADMINISTRATOR = 2  # a client of a node with clients_may_administer
    NODE = 3


_NAMED = {Role.CLIENT: "a client", Role.ADMINISTRATOR: "an administrator", Role.NODE: "a node"}


@dataclass(frozen=True, slots=True)
class Peer:
    """The other side of a connection; of a node the ids that it may use, None if it may use any."""

    role: Role
    node_ids: frozenset[int] | None = None


REQUIRED: dict[type, Role] = {  # requests, and the commands that a Submit may carry
    Describe: Role.CLIENT,
    Append: Role.CLIENT,
    Read: Role.CLIENT,
    FindOffset: Role.CLIENT,
    CreateTopic: Role.ADMINISTRATOR,
    DeleteTopic: Role.ADMINISTRATOR,
    AlterTopic: Role.ADMINISTRATOR,
    AddPartitions: Role.ADMINISTRATOR,
    Reassign: Role.ADMINISTRATOR,
    ElectPreferred: Role.ADMINISTRATOR,
    Fetch: Role.NODE,
    Join: Role.NODE,
    Heartbeat: Role.NODE,
    ChangeIsr: Role.NODE,
    LeaveNode: Role.NODE,
    RemoveNode: Role.NODE,
}


# as which node a request is made; a Heartbeat of incarnation 0 is nobody's, and asks for the state only
_CLAIMED: dict[type, Callable[[Any], int | None]] = {
    Fetch: lambda fetch: fetch.node_id,
    Join: lambda join: join.node.node_id,
    Heartbeat: lambda beat: beat.node_id if beat.incarnation else None,
    ChangeIsr: lambda change: change.leader,
    LeaveNode: lambda leave: leave.node_id,
    RemoveNode: lambda remove: remove.node_id,
}


def check_right(message: Message, peer: Peer, address: str) -> None:
    """Raise AuthorizationError if a peer may not ask for this; ProtocolError if nobody asks for it."""
    asked = message.command if isinstance(message, Submit) else message
    kind = type(asked)
    required = REQUIRED.get(kind)
    if required is None:
        raise ProtocolError(address, f"a {kind.__name__} is no request")
    if peer.role < required:
        raise AuthorizationError(kind.__name__, _NAMED[peer.role], _NAMED[required])
    if peer.node_ids is not None and kind in _CLAIMED:
        claimed = _CLAIMED[kind](asked)
        if claimed is not None and claimed not in peer.node_ids:
            own = ", ".join(map(str, sorted(peer.node_ids)))
            raise AuthorizationError(kind.__name__, f"node {own}", f"node {claimed}")
