"""Roles: what a connection may ask for, by the credentials that its other side has shown.

One table has every request; TcpTransport looks at it for each request that arrives, before the handler does.
"""

from __future__ import annotations

from enum import IntEnum

from commitlog.errors import AuthorizationError, ProtocolError
from commitlog.replication.controllers.control import (
    AddPartitions,
    AlterTopic,
    ElectPreferred,
    Gone,
    Heartbeat,
    Join,
    Leave,
    ProposeIsr,
    Reassign,
)
from commitlog.replication.messages import (
    Append,
    CreateTopic,
    DeleteTopic,
    Describe,
    Fetch,
    FindOffset,
    Message,
    Read,
)


class Role(IntEnum):
    """Who the other side of a connection is. Each role may do what those before it may."""

    CLIENT = 1
    ADMINISTRATOR = 2  # a client of a node with clients_may_administer
    NODE = 3


REQUIRED: dict[type, Role] = {
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
    Leave: Role.NODE,
    Gone: Role.NODE,
    ProposeIsr: Role.NODE,
}


def check_right(message: Message, role: Role, address: str) -> None:
    """Raise AuthorizationError if a role may not ask for this; ProtocolError if nobody asks for it."""
    name = type(message).__name__
    required = REQUIRED.get(type(message))
    if required is None:
        raise ProtocolError(address, f"a {name} is no request")
    if role < required:
        raise AuthorizationError(name, role.name.lower(), required.name.lower())
