"""Opening: from an address, or a socket that was accepted, to a stream on which frames may be sent."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from commitlog.errors import AuthenticationError, CommitLogError, ConfigError, ConnectionFailedError
from commitlog.replication.transports import handshake
from commitlog.replication.transports.connection import Connection
from commitlog.replication.transports.streams import PlainStream, Stream, TlsStream, prepare, shut_down
from commitlog.replication.transports.timer import Timer
from commitlog.replication.transports.tls import TlsConfig, wrapped

if TYPE_CHECKING:
    import ssl


class Opener:
    """Opens connections, with TLS and the shared secret as they are asked for, within a deadline."""

    def __init__(self, tls: TlsConfig | None, secret: bytes | None, timeout_ms: int, timer: Timer) -> None:
        self._server_tls = tls.server_context() if tls else None
        self._client_tls = tls.client_context() if tls else None
        self._secret = secret
        self._timeout_ms = timeout_ms
        self._timer = timer
        self._lock = threading.Lock()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    @property
    def is_trusting(self) -> bool:
        """Whether anybody is let in."""
        return self._secret is None and self._server_tls is None

    def connect(self, connection: Connection) -> Stream:
        """Open a connection to the address it is named by."""
        host, port = split_address(connection.name)
        with _Deadline(self._timer, self._timeout_ms, connection):
            try:
                raw = self._connected(connection, host, port)
                return self._opened(connection, raw, self._client_tls, host)
            except CommitLogError:
                raise
            except (OSError, EOFError) as error:
                raise self._typed(connection.name, error) from error

    def accept(self, connection: Connection, raw: socket.socket) -> Stream:
        """Open a connection that somebody made to us."""
        with _Deadline(self._timer, self._timeout_ms, connection):
            try:
                return self._opened(connection, raw, self._server_tls, None)
            except CommitLogError:
                raise
            except (OSError, EOFError) as error:
                raise self._typed(connection.name, error) from error

    def refuse(self, raw: socket.socket) -> None:
        """Tell a client that there is no room; within TLS it just sees the end."""
        with contextlib.suppress(OSError):
            if self._server_tls is None:
                raw.send(handshake.refusal(), socket.MSG_DONTWAIT)
        raw.close()

    def forked(self) -> None:
        """In a forked child: let go of the parent's connections, without ending them."""
        for sock in list(self._sockets):
            sock.close()

    def _connected(self, connection: Connection, host: str, port: int) -> socket.socket:
        problem: OSError | None = None
        for family, kind, protocol, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            sock = self._noted(socket.socket(family, kind, protocol))
            connection.may_be_shut_down_with(_shutting_down(sock))
            try:
                sock.connect(place)
            except OSError as error:
                sock.close()
                problem = error
            else:
                return sock
        raise problem or OSError(f"{host} has no address")

    def _opened(
        self, connection: Connection, raw: socket.socket, tls: ssl.SSLContext | None, host: str | None
    ) -> Stream:
        """Make a stream of a socket; `host` is that of the server, None on its own side."""
        sock = self._noted(raw)
        greet = handshake.greet_client if host is None else handshake.greet_server
        try:
            prepare(raw)
            stream: Stream = PlainStream(raw)
            connection.may_be_shut_down_with(_shutting_down(raw))
            if tls is not None:
                secured = wrapped(raw, tls, server_side=host is None, host=host)
                sock = self._noted(secured)
                connection.may_be_shut_down_with(_shutting_down(sock))
                stream = TlsStream(secured)
                stream.greet()
            greet(stream, self._secret, secrets.token_bytes(handshake.NONCE_BYTES), connection.name)
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
        return ConnectionFailedError(address, str(error) or "it ended the connection")


class _Deadline:
    """Ends a connection that takes too long to open."""

    def __init__(self, timer: Timer, timeout_ms: int, connection: Connection) -> None:
        late = ConnectionFailedError(connection.name, f"no handshake within {timeout_ms} ms")
        self._entry = timer.after(timeout_ms, lambda: connection.end(late))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._entry.cancel()


def _shutting_down(sock: socket.socket) -> Callable[[], None]:
    return lambda: shut_down(sock)


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of "host:port" or "[host]:port"."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError("address", address, "must be host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def joined_address(host: str, port: int) -> str:
    """Return "host:port"; an IPv6 address stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Say whether only this machine reaches it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
