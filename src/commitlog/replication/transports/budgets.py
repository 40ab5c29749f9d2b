"""Budgets: how many connections there may be of strangers, of clients and of nodes. No I/O."""

from __future__ import annotations

import ipaddress
from collections import Counter
from typing import Generic, TypeVar

from commitlog.replication.transports.rights import Role

Guest = TypeVar("Guest")


class Budgets(Generic[Guest]):
    """Who is connected, and who has to go.

    A stranger is a peer that has not finished the handshake. One more stranger than there may be is let in
    all the same, and the oldest one of the address that has most of them goes: so strangers who say nothing
    cannot keep others out, for a handshake takes milliseconds. Nodes and other peers have budgets of their
    own; a full one admits nobody.
    """

    def __init__(self, strangers: int, connections: int, clients_per_address: int) -> None:
        self._strangers_allowed = strangers
        self._connections = connections
        self._clients_per_address = clients_per_address
        self._strangers: dict[Guest, str] = {}  # by arrival
        self._nodes: dict[Guest, str] = {}
        self._clients: dict[Guest, str] = {}

    def meet(self, guest: Guest, address: str) -> Guest | None:
        """Count a stranger; returns the one that has to go in its place, None if there was room."""
        self._strangers[guest] = source_of(address)
        if len(self._strangers) <= self._strangers_allowed:
            return None
        return self.oldest_stranger()

    def oldest_stranger(self) -> Guest | None:
        """Forget and return the oldest stranger of the address that has most of them."""
        counts = Counter(self._strangers.values())
        if not counts:
            return None
        most = max(counts.values())
        found = next(one for one, source in self._strangers.items() if counts[source] == most)
        del self._strangers[found]
        return found

    def admit(self, guest: Guest, role: Role) -> str | None:
        """Count a stranger who has shown who it is; returns why not if there is no room for it."""
        source = self._strangers.pop(guest, None)
        if source is None:
            return "too many others connect"
        admitted = self._nodes if role is Role.NODE else self._clients
        if len(admitted) >= self._connections:
            return "it takes no more connections"
        if role is not Role.NODE and self._of(source) >= self._clients_per_address:
            return f"it takes no more connections from {source}"
        admitted[guest] = source
        return None

    def _of(self, source: str) -> int:
        return sum(one == source for one in self._clients.values())

    def remove(self, guest: Guest) -> None:
        """Forget a guest."""
        for guests in (self._strangers, self._nodes, self._clients):
            guests.pop(guest, None)


def source_of(address: str) -> str:
    """Return what stands for all addresses of one machine: of IPv6 it has 2**64."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))
