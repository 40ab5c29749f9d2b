"""TlsConfig: certificates by which both sides of a connection know one another."""

from __future__ import annotations

import socket
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commitlog.errors import ConfigError

if TYPE_CHECKING:
    import ssl

_NAMES = ("DNS", "IP Address")  # what counts of a certificate's subject alternative names


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Paths of PEM files: this side's certificate chain and key, and the authority that signs the others'.

    Both sides show a certificate. The client also checks that the server's names the host it connected to,
    unless check_hostname is off: then any certificate of the authority will do.

    `node_names` are the names in the nodes' certificates (subject alternative names: hosts or IP addresses).
    A peer whose certificate has none of them is a client, and no server. Without them, every certificate of
    the authority is a node's.
    """

    certificate: str
    key: str
    ca: str
    check_hostname: bool = True
    node_names: Collection[str] = ()

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

    def names_a_node(self, sock: ssl.SSLSocket) -> bool:
        """Say whether the peer's certificate is that of a node."""
        if not self.node_names:
            return True
        listed = {name.lower() for name in self.node_names}
        names: Any = (sock.getpeercert() or {}).get("subjectAltName", ())
        return any(name.lower() in listed for kind, name in names if kind in _NAMES)

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
