"""Budgets: limits on the connections of strangers, clients and nodes. No I/O."""

from __future__ import annotations

import ipaddress
from collections import Counter
from typing import Generic, TypeVar

from commitlog.replication.transports.rights import Role

Guest = TypeVar("Guest")


class Budgets(Generic[Guest]):
    """Counts connections, and decides which of them has to go.

    A stranger is a peer that has not finished the handshake. When there are too many, the newest is let in
    and the oldest one of the address with the most strangers goes: a handshake takes milliseconds, so silent
    strangers cannot keep others out. Nodes and clients have budgets of their own; a full one admits nobody.
    """

    def __init__(self, strangers: int, connections: int, clients_per_address: int) -> None:
        self._strangers_allowed = strangers
        self._connections = connections
        self._clients_per_address = clients_per_address
        self._strangers: dict[Guest, str] = {}  # in order of arrival
        self._nodes: dict[Guest, str] = {}
        self._clients: dict[Guest, str] = {}

    def meet(self, guest: Guest, address: str) -> Guest | None:
        """Add a stranger; return the one that has to go for it, None if there was room."""
        self._strangers[guest] = source_of(address)
        if len(self._strangers) <= self._strangers_allowed:
            return None
        return self.oldest_stranger()

    def oldest_stranger(self) -> Guest | None:
        """Remove and return the oldest stranger of the address with the most strangers."""
        counts = Counter(self._strangers.values())
        if not counts:
            return None
        most = max(counts.values())
        found = next(one for one, source in self._strangers.items() if counts[source] == most)
        del self._strangers[found]
        return found

    def admit(self, guest: Guest, role: Role) -> str | None:
        """Admit a stranger that has identified itself; return the reason if there is no room."""
        source = self._strangers.pop(guest, None)
        if source is None:
            return "too many others connect"
        admitted = self._nodes if role is Role.NODE else self._clients
        if len(admitted) >= self._connections:
            return "it accepts no more connections"
        of_source = sum(one == source for one in self._clients.values())
        if role is not Role.NODE and of_source >= self._clients_per_address:
            return f"it accepts no more connections from {source}"
        admitted[guest] = source
        return None

    def remove(self, guest: Guest) -> None:
        """Remove a guest."""
        for guests in (self._strangers, self._nodes, self._clients):
            guests.pop(guest, None)


def source_of(address: str) -> str:
    """Return what identifies a machine by its address: with IPv6, the /64 network that it owns."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))
