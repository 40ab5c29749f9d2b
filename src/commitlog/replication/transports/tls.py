"""TlsConfig: certificates by which both sides of a connection know one another."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Paths of PEM files: this side's certificate chain and key, and the authority that signs the others'.

    Both sides show a certificate. The client also checks that the server's names the host it connected to,
    unless check_hostname is off: then any certificate of the authority will do.
    """

    certificate: str
    key: str
    ca: str
    check_hostname: bool = True

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
