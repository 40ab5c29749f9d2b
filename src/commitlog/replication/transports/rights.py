"""Rights: which requests a peer may make, according to the credentials it has shown.

One table lists every request and, for Submit, every command; TcpTransport checks each request against it
before the handler sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from commitlog.errors import AuthorizationError, ProtocolError
from commitlog.replication import commands, messages


class Role(IntEnum):
    """The role of a peer. Each role includes the rights of those before it."""

    CLIENT = 1
    ADMINISTRATOR = 2  # a client of a node with clients_may_administer
    NODE = 3


_NAMED = {Role.CLIENT: "a client", Role.ADMINISTRATOR: "an administrator", Role.NODE: "a node"}


@dataclass(frozen=True, slots=True)
class Peer:
    """The other side of a connection, and the node ids that it may use (None for any)."""

    role: Role
    node_ids: frozenset[int] | None = None


REQUIRED: dict[type, Role] = {  # requests, and the commands that a Submit may carry
    messages.Describe: Role.CLIENT,
    messages.Append: Role.CLIENT,
    messages.Read: Role.CLIENT,
    messages.FindOffset: Role.CLIENT,
    messages.Stage: Role.CLIENT,
    messages.Publish: Role.CLIENT,
    messages.Discard: Role.CLIENT,
    commands.CreateTopic: Role.ADMINISTRATOR,
    commands.DeleteTopic: Role.ADMINISTRATOR,
    commands.AlterTopic: Role.ADMINISTRATOR,
    commands.AddPartitions: Role.ADMINISTRATOR,
    commands.Reassign: Role.ADMINISTRATOR,
    commands.ElectPreferred: Role.ADMINISTRATOR,
    messages.Fetch: Role.NODE,
    messages.Join: Role.NODE,
    messages.Heartbeat: Role.NODE,
    commands.ChangeIsr: Role.NODE,
    commands.LeaveNode: Role.NODE,
    commands.RemoveNode: Role.NODE,
}


# the node id that a request claims; a Heartbeat with incarnation 0 claims none, and only asks for the state
_CLAIMED: dict[type, Callable[[Any], int | None]] = {
    messages.Fetch: lambda fetch: fetch.node_id,
    messages.Join: lambda join: join.node.node_id,
    messages.Heartbeat: lambda beat: beat.node_id if beat.incarnation else None,
    commands.ChangeIsr: lambda change: change.leader,
    commands.LeaveNode: lambda leave: leave.node_id,
    commands.RemoveNode: lambda remove: remove.node_id,
}


def check_right(message: messages.Message, peer: Peer, address: str) -> None:
    """Raise AuthorizationError if a peer may not make this request, ProtocolError if it is not a request."""
    asked = message.command if isinstance(message, messages.Submit) else message
    kind = type(asked)
    required = REQUIRED.get(kind)
    if required is None:
        raise ProtocolError(address, f"a {kind.__name__} is not a request")
    if peer.role < required:
        raise AuthorizationError(kind.__name__, _NAMED[peer.role], _NAMED[required])
    if peer.node_ids is not None and kind in _CLAIMED:
        claimed = _CLAIMED[kind](asked)
        if claimed is not None and claimed not in peer.node_ids:
            own = ", ".join(map(str, sorted(peer.node_ids)))
            raise AuthorizationError(kind.__name__, f"node {own}", f"node {claimed}")
