"""TlsConfig: the certificates by which both sides of a connection identify each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commitlog.errors import ConfigError
from commitlog.replication.transports.rights import Peer, Role

if TYPE_CHECKING:
    import ssl

_NAMES = ("DNS", "IP Address")  # the kinds of subject alternative names that count


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Paths of PEM files: this side's certificate chain and key, and the certificate of the authority.

    Both sides show a certificate. Unless check_hostname is off, the client also checks that the server's
    certificate names the host that it connected to.

    `node_names` are the names in the nodes' certificates (subject alternative names: hosts or IP addresses).
    A peer whose certificate has none of them is a client, and is not accepted as a server. A mapping gives
    the node id of each name, {"node1.example": 1}, so that no node can speak for another. Without names,
    every certificate of the authority is a node's.
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
        """Return the context for the side that listens."""
        import ssl

        return self._filled(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    def client_context(self) -> ssl.SSLContext:
        """Return the context for the side that connects."""
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.check_hostname
        return self._filled(context)

    def peer(self, sock: ssl.SSLSocket) -> Peer:
        """Return the peer that the other side's certificate identifies."""
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
