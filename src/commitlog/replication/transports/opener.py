"""Opener: turns an address, or an accepted socket, into a stream on which frames may be sent."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from commitlog.errors import AuthenticationError, CommitLogError, ConfigError, ConnectionFailedError
from commitlog.replication.transports import handshake
from commitlog.replication.transports.connection import Connection
from commitlog.replication.transports.rights import Peer, Role
from commitlog.replication.transports.streams import Stream, TlsStream, prepare, shut_down
from commitlog.replication.transports.timer import Timer
from commitlog.replication.transports.tls import TlsConfig

if TYPE_CHECKING:
    import ssl


class Opener:
    """Opens connections within a deadline, with TLS and secrets if they are configured.

    `secrets` are those that a peer may prove to know, by the role that each confers. The first one is this
    side's own, which it proves when it connects.
    """

    def __init__(
        self, tls: TlsConfig | None, secrets: Mapping[Role, bytes], timeout_ms: int, timer: Timer
    ) -> None:
        self._tls = tls
        self._server_tls = tls.server_context() if tls else None
        self._client_tls = tls.client_context() if tls else None
        self._secrets = secrets
        self._timeout_ms = timeout_ms
        self._timer = timer
        self._lock = threading.Lock()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    @property
    def is_trusting(self) -> bool:
        """Whether everybody is admitted."""
        return not self._secrets and self._tls is None

    def connect(self, connection: Connection) -> Stream:
        """Open a connection to the address that is its name."""
        host, port = split_address(connection.name)

        def greet(stream: Stream, peer: Peer) -> None:
            if peer.role is not Role.NODE:
                raise AuthenticationError(connection.name, "its certificate does not name a node")
            secret = next(iter(self._secrets.values()), None)
            handshake.greet_server(stream, secret, _nonce(), connection.name)

        with self._opening(connection):
            raw = self._connected(connection, host, port)
            return self._opened(connection, raw, self._client_tls, host, greet)

    def accept(
        self, connection: Connection, raw: socket.socket, admit: Callable[[Connection, Peer], str | None]
    ) -> Stream:
        """Open a connection that another side made to us.

        `admit` gets the peer that the other side proved to be, and returns the reason if there is no room.
        """

        def greet(stream: Stream, peer: Peer) -> None:
            def admit_as(role: Role) -> str | None:
                return admit(connection, replace(peer, role=min(role, peer.role)))

            handshake.greet_client(stream, self._secrets, _nonce(), connection.name, admit_as)

        with self._opening(connection):
            return self._opened(connection, raw, self._server_tls, None, greet)

    @contextlib.contextmanager
    def _opening(self, connection: Connection) -> Iterator[None]:
        late = ConnectionFailedError(connection.name, f"no handshake within {self._timeout_ms} ms")
        entry = self._timer.after(self._timeout_ms, lambda: connection.end(late))
        try:
            yield
        except CommitLogError:
            raise
        except (OSError, EOFError) as error:
            raise self._typed(connection.name, error) from error
        finally:
            entry.cancel()

    def forked(self) -> None:
        """Close the parent's sockets in a forked child, without ending the connections."""
        for sock in list(self._sockets):
            sock.close()

    def _connected(self, connection: Connection, host: str, port: int) -> socket.socket:
        problem: OSError | None = None
        for family, kind, protocol, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            sock = self._noted(socket.socket(family, kind, protocol))
            connection.may_be_shut_down_with(partial(shut_down, sock))
            try:
                sock.connect(place)
            except OSError as error:
                sock.close()
                problem = error
            else:
                return sock
        raise problem or OSError(f"{host} has no address")

    def _opened(
        self,
        connection: Connection,
        raw: socket.socket,
        tls: ssl.SSLContext | None,
        host: str | None,
        greet: Callable[[Stream, Peer], None],
    ) -> Stream:
        """Return the stream of a socket; `host` is the server's, None on the server's own side.

        `greet` performs the handshake; it gets the peer that TLS has identified.
        """
        sock = self._noted(raw)
        peer = Peer(Role.NODE)
        try:
            prepare(raw)
            stream = Stream(raw)
            connection.may_be_shut_down_with(partial(shut_down, raw))
            if tls is not None:
                secured = tls.wrap_socket(raw, host is None, False, server_hostname=host)  # no handshake yet
                sock = self._noted(secured)
                connection.may_be_shut_down_with(partial(shut_down, sock))
                stream = encrypted = TlsStream(secured)
                encrypted.greet()
                assert self._tls is not None
                peer = self._tls.peer(secured)
            greet(stream, peer)
        except BaseException:
            connection.may_be_shut_down_with(lambda: None)
            sock.close()
            raise
        return stream

    def _noted(self, sock: socket.socket) -> socket.socket:
        with self._lock:
            self._sockets.add(sock)
        return sock

    def _typed(self, address: str, error: Exception) -> CommitLogError:
        if self._client_tls is not None:
            import ssl

            if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
                return AuthenticationError(address, f"TLS: {error.reason or error}")
        return ConnectionFailedError(address, str(error) or "it closed the connection")


def _nonce() -> bytes:
    return secrets.token_bytes(handshake.NONCE_BYTES)


def split_address(address: str) -> tuple[str, int]:
    """Return the host and the port of "host:port" or "[host]:port"."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError("address", address, "must be host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def joined_address(host: str, port: int) -> str:
    """Return "host:port", with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    return ipaddress.ip_address(host).is_loopback
