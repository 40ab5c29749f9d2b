"""TlsConfig: certificates by which both sides of a connection know one another."""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commitlog.errors import ConfigError
from commitlog.replication.transports.rights import Peer, Role

if TYPE_CHECKING:
    import ssl

_NAMES = ("DNS", "IP Address")  # what counts of a certificate's subject alternative names


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Paths of PEM files: this side's certificate chain and key, and the authority that signs the others'.

    Both sides show a certificate. The client also checks that the server's names the host it connected to,
    unless check_hostname is off: then any certificate of the authority will do.

    `node_names` are the names in the nodes' certificates (subject alternative names: hosts or IP addresses).
    A peer whose certificate has none of them is a client, and no server. A mapping says which node each name
    is, {"node1.example": 1}: then no node can speak for another. Without names, every certificate of the
    authority is a node's.
    """

    certificate: str
    key: str
    ca: str
    check_hostname: bool = True
    node_names: Collection[str] | Mapping[str, int] = ()

    def __post_init__(self) -> None:
        if isinstance(self.node_names, str):
            raise ConfigError("node_names", self.node_names, "must be a collection of names")

    def server_context(self) -> ssl.SSLContext:
        """Return the context of the side that listens."""
        import ssl

        return self._filled(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    def client_context(self) -> ssl.SSLContext:
        """Return the context of the side that connects."""
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.check_hostname
        return self._filled(context)

    def peer(self, sock: ssl.SSLSocket) -> Peer:
        """Return who the other side is, by its certificate."""
        if not self.node_names:
            return Peer(Role.NODE)
        names: Any = (sock.getpeercert() or {}).get("subjectAltName", ())
        shown = {name.lower() for kind, name in names if kind in _NAMES}
        found = [name for name in self.node_names if name.lower() in shown]
        if not found:
            return Peer(Role.CLIENT)
        ids = self.node_names
        return Peer(Role.NODE, frozenset(ids[name] for name in found) if isinstance(ids, Mapping) else None)

    def _filled(self, context: ssl.SSLContext) -> ssl.SSLContext:
        import ssl

        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(self.certificate, self.key)
        context.load_verify_locations(self.ca)
        return context


def wrapped(
    raw: socket.socket, context: ssl.SSLContext, *, server_side: bool, host: str | None
) -> ssl.SSLSocket:
    """Return a socket with TLS around it, not greeted yet and not blocking; see TlsStream."""
    sock = context.wrap_socket(
        raw, server_side=server_side, server_hostname=host, do_handshake_on_connect=False
    )
    sock.setblocking(False)
    return sock
