"""TcpTransport: messages over real sockets. docs/wire.md has the bytes, docs/transports.md the rules."""

from __future__ import annotations

import errno
import hmac
import itertools
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from commitlog.config import MIB
from commitlog.errors import (
    AuthorizationError,
    ClosedError,
    CommitLogError,
    ConfigError,
    ForkedError,
    FrameTooLargeError,
    ProtocolError,
)
from commitlog.replication.messages import Message
from commitlog.replication.ports import Answered, Handler
from commitlog.replication.refusals import refused
from commitlog.replication.transports import wire
from commitlog.replication.transports.budgets import Budgets
from commitlog.replication.transports.connection import Connection, Limits, Question
from commitlog.replication.transports.handshake import NoRoomError
from commitlog.replication.transports.limited_warnings import LimitedWarnings
from commitlog.replication.transports.opener import Opener, is_loopback, joined_address, split_address
from commitlog.replication.transports.rights import Peer, Role, check_right
from commitlog.replication.transports.streams import Stream, shut_down
from commitlog.replication.transports.timer import Timer
from commitlog.replication.transports.tls import TlsConfig

_FIRST_BACKOFF_MS, _LONGEST_BACKOFF_MS = 10, 1000
_CLOSE_SECONDS = 10.0
_PUT_OUT_SECONDS = 1.0
_MOST_UNDER_WAY = 4096  # unanswered requests of one connection
_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_logger = logging.getLogger("commitlog.replication")
_transports: weakref.WeakSet[TcpTransport] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class TcpCounts:
    """Counts of a transport's connections so far, and how many there are now."""

    accepted: int  # after their handshake
    refused: int  # because there were too many
    dropped: int  # for what they sent, or failed to send
    incoming: int  # now
    outgoing: int  # now


@dataclass(slots=True)
class _Failures:
    """The consecutive failures to reach an address, when to try again, and the last error."""

    count: int = 0
    not_before: float = 0.0
    error: CommitLogError | None = None

    def add(self, error: CommitLogError) -> None:
        pause_ms = min(_FIRST_BACKOFF_MS << min(self.count, 10), _LONGEST_BACKOFF_MS)
        self.count += 1
        self.not_before = time.monotonic() + pause_ms / 1000
        self.error = error


class TcpTransport:
    """A Transport over TCP: one connection to each address that is asked, and those that others open here.

    With `tls` both sides show certificates; with `secret` both prove that they know it. With neither,
    everybody who reaches the port is admitted, and only a loopback address can be served.

    `secret` is the nodes' secret, or a client's own. A node may also have a `client_secret`: peers that know
    only that one are clients. With TLS, TlsConfig.node_names distinguishes nodes from clients. Clients append
    and read; with clients_may_administer they also create, change and delete topics. The rest is for nodes.

    Threads: one for deadlines, one that accepts, two for each connection. The receiving thread calls the
    handlers, so a slow handler delays the other requests of its connection.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tls: TlsConfig | None = None,
        secret: bytes | None = None,
        client_secret: bytes | None = None,
        clients_may_administer: bool = False,
        advertised_host: str | None = None,
        max_frame_bytes: int = 100 * MIB,
        max_connections: int = 256,
        max_client_connections_per_address: int = 128,
        max_handshakes: int = 64,
        max_waiting_bytes: int = 256 * MIB,
        handshake_timeout_ms: int = 10_000,
        stall_timeout_ms: int = 30_000,
        idle_timeout_ms: int = 600_000,
    ) -> None:
        secrets = _checked_secrets(secret, client_secret)
        self._host, self._port, self._advertised_host = host, port, advertised_host or host
        self._limits = Limits(max_frame_bytes, max_waiting_bytes, stall_timeout_ms)
        self._idle_timeout_ms = idle_timeout_ms
        self._clients_may_administer = clients_may_administer
        self._budgets: Budgets[Connection] = Budgets(
            max_handshakes, max_connections, max_client_connections_per_address
        )
        self._complaints = LimitedWarnings(time.monotonic)
        self._lock = threading.Lock()
        self._awake = threading.Condition()
        self._wakes = 0
        self._refusal: CommitLogError | None = None
        self._ids = itertools.count(1)
        self._outgoing: dict[str, Connection] = {}
        self._incoming: set[Connection] = set()
        self._ending: set[Connection] = set()  # over, but their threads have not ended yet
        self._failures: dict[str, _Failures] = {}
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self._handle: Handler | None = None
        self._accepted = self._refused = self._dropped = 0
        self._timer = Timer("commitlog-timer")
        self._opener = Opener(tls, secrets, handshake_timeout_ms, self._timer)
        self._timer.every(min(1000, stall_timeout_ms / 4), self._check_progress)
        _transports.add(self)

    # --- Transport

    def serve(self, handle: Handler) -> str:
        """Start to accept requests, and return the address at which others reach this node.

        ConfigError if other machines could reach it and neither TLS nor a secret keeps them out.
        """
        self._check_open()
        if self._listener is not None:
            raise ConfigError("host", self._host, "this transport serves already")
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.create_server((self._host, self._port), family=family, backlog=512)
        if self._opener.is_trusting and not is_loopback(listener.getsockname()[0]):
            listener.close()
            reason = "needs `secret` or `tls`, or everybody who reaches this address could delete topics"
            raise ConfigError("host", self._host, reason)
        self._handle, self._listener = handle, listener
        port = listener.getsockname()[1]
        accept = partial(self._accept, listener)
        self._acceptor = threading.Thread(target=accept, name=f"commitlog-accept-{port}", daemon=True)
        self._acceptor.start()
        return joined_address(self._advertised_host, port)

    def request(self, address: str, message: Message, answered: Answered, timeout_ms: int) -> None:
        """Send a request; `answered` gets the answer, or None after timeout_ms.

        FrameTooLargeError if it exceeds max_frame_bytes, ClosedError once the transport is closed.
        """
        request_id = next(self._ids)
        frame = wire.encode(message, wire.REQUEST, request_id, self._limits.max_frame_bytes)
        question = Question(answered)
        asked = False
        while not asked:
            connection, is_new = self._connection_to(address)
            try:
                asked = connection.ask(request_id, frame, question)
            finally:
                if is_new:  # only now, because it may be over at once
                    connection.start()
            if not asked:
                self._forget(connection)
        question.set_deadline(self._timer.after(timeout_ms, partial(connection.answer, request_id, None)))

    def now_ms(self) -> int:
        """Return a monotonic time in milliseconds, from an arbitrary start."""
        return time.monotonic_ns() // 1_000_000

    def call_every(self, interval_ms: int, call: Callable[[], None]) -> None:
        """Call `call` repeatedly until close(); deadlines wait while it runs."""
        self._check_open()
        self._timer.every(interval_ms, call)

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        """Wait until an event is set; False after timeout_ms."""
        return event.wait(timeout_ms / 1000)

    def wait_for(self, condition: Callable[[], bool], timeout_ms: int) -> bool:
        """Wait until a condition holds; False after timeout_ms, or when closed."""
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            wakes = self._wakes
            if condition():  # with no lock held: it may take a lock that the caller of wake() holds
                return True
            with self._awake:
                left = deadline - time.monotonic()
                woken = self._awake.wait_for(partial(self._was_woken_since, wakes), left)
            if self._refusal is not None or not woken:
                return condition()

    def _was_woken_since(self, wakes: int) -> bool:
        return self._wakes != wakes or self._refusal is not None

    def wake(self) -> None:
        """Make every wait_for() check its condition again."""
        with self._awake:
            self._wakes += 1
            self._awake.notify_all()

    def close(self) -> None:
        """Stop serving, answer pending requests with None, and end all threads. Idempotent."""
        with self._lock:
            if self._refusal is not None:
                return
            self._refusal = ClosedError("the transport")
            connections = [*self._outgoing.values(), *self._incoming, *self._ending]
        if self._listener is not None:
            shut_down(self._listener)  # wakes the accepting thread, which closes it
        for connection in connections:
            connection.end(ClosedError("the transport"))
        self.wake()
        deadline = time.monotonic() + _CLOSE_SECONDS
        for connection in connections:
            if not connection.join(max(deadline - time.monotonic(), 0)):
                _logger.warning("%s: a handler does not return; abandoning its thread", connection.name)
        if self._acceptor is not None and self._acceptor is not threading.current_thread():
            self._acceptor.join()
        self._timer.stop()

    # --- observing

    @property
    def counts(self) -> TcpCounts:
        """The counts of connections."""
        with self._lock:
            now = len(self._incoming), len(self._outgoing)
            return TcpCounts(self._accepted, self._refused, self._dropped, *now)

    def last_error(self, address: str) -> CommitLogError | None:
        """Return why the last attempt to reach an address failed; None if it succeeded."""
        failures = self._failures.get(address)
        return failures.error if failures is not None else None

    def _check_open(self) -> None:
        if self._refusal is not None:
            raise type(self._refusal)(*self._refusal.args)

    def _check_progress(self) -> None:
        with self._lock:
            incoming = list(self._incoming)
            connections = [*self._outgoing.values(), *incoming]
        now = time.monotonic()
        for connection in connections:
            connection.check_progress(now)
        for connection in incoming:
            connection.check_idle(now, self._idle_timeout_ms)
        self._complaints.catch_up()

    # --- connections to others

    def _connection_to(self, address: str) -> tuple[Connection, bool]:
        """Return the connection to an address, and whether it is new and must be started."""
        with self._lock:
            self._check_open()
            found = self._outgoing.get(address)
            if found is not None:
                return found, False
            split_address(address)
            made = Connection(address, self._limits, self._connect, self._take_answer, self._outgoing_ended)
            self._outgoing[address] = made
            return made, True

    def _connect(self, connection: Connection) -> Stream:
        failures = self._failures.get(connection.name)
        if failures is not None:
            connection.pause(failures.not_before - time.monotonic())
        try:
            stream = self._opener.connect(connection)
        except CommitLogError as error:
            cause = connection.error if isinstance(connection.error, CommitLogError) else error
            self._failures.setdefault(connection.name, _Failures()).add(cause)
            raise
        self._failures.pop(connection.name, None)
        return stream

    def _take_answer(self, connection: Connection, head: wire.Head, message: Message) -> None:
        if head.role != wire.ANSWER:
            raise ProtocolError(connection.name, "it sent a request, but only the connecting side may")
        connection.answer(head.request_id, message)

    def _forget(self, connection: Connection) -> None:
        with self._lock:
            if self._outgoing.get(connection.name) is connection:
                del self._outgoing[connection.name]
                self._ending.add(connection)

    def _outgoing_ended(self, connection: Connection, error: Exception) -> None:
        self._forget(connection)
        with self._lock:
            self._ending.discard(connection)
        if isinstance(error, CommitLogError) and not isinstance(error, ClosedError):
            _logger.info("the connection to %s ended: %s", connection.name, error)

    # --- connections of others

    def _accept(self, listener: socket.socket) -> None:
        with listener:
            while self._refusal is None:
                try:
                    raw, place = listener.accept()
                except OSError as error:
                    if self._refusal is None and error.errno in _NO_ROOM:
                        self._complaints.warn(f"cannot accept a connection: {error}")
                        with self._lock:
                            stranger = self._budgets.oldest_stranger()
                        self._put_out(stranger)  # to free its descriptor
                        if stranger is None:
                            self.wait_for(lambda: False, timeout_ms=100)
                    continue
                try:
                    self._accept_one(raw, *place[:2])
                except RuntimeError as error:  # no more threads
                    raw.close()
                    self._complaints.warn(f"cannot accept a connection: {error}")

    def _accept_one(self, raw: socket.socket, host: str, port: int) -> None:
        name, accept = joined_address(host, port), partial(self._opener.accept, raw=raw, admit=self._admit)
        connection = Connection(name, self._limits, accept, self._take_request, self._incoming_ended)
        with self._lock:
            if self._refusal is not None:
                raw.close()
                return
            connection.start()
            self._incoming.add(connection)
            too_many = self._budgets.meet(connection, host)
        self._put_out(too_many)

    def _put_out(self, connection: Connection | None) -> None:
        """End a connection in its handshake, and wait for its threads, which must not pile up."""
        if connection is not None:
            with self._lock:
                self._refused += 1
            connection.end(NoRoomError(connection.name, "too many others connect"))
            connection.join(_PUT_OUT_SECONDS)

    def _admit(self, connection: Connection, peer: Peer) -> str | None:
        with self._lock:
            refusal = self._budgets.admit(connection, peer.role)
            self._accepted += refusal is None
            self._refused += refusal is not None
        if peer.role is Role.CLIENT and self._clients_may_administer:
            peer = Peer(Role.ADMINISTRATOR)
        connection.peer = peer
        return refusal

    def _take_request(self, connection: Connection, head: wire.Head, message: Message) -> None:
        if head.role != wire.REQUEST or self._handle is None:
            raise ProtocolError(connection.name, "it sent an answer, but the connecting side only asks")
        if connection.frames_received - connection.frames_sent > _MOST_UNDER_WAY:
            raise ProtocolError(connection.name, f"more than {_MOST_UNDER_WAY} of its requests wait")
        reply = _Reply(connection, head.request_id, self._limits.max_frame_bytes)
        try:
            check_right(message, connection.peer, connection.name)
        except AuthorizationError as error:
            self._complaints.warn(f"{connection.name}: {error}")
            reply(refused(error))
            return
        try:
            self._handle(message, reply)
        except CommitLogError as error:
            reply(refused(error))
        except Exception as error:  # the handler's mistake must only affect this request
            _logger.exception("handling a %s of %s failed", type(message).__name__, connection.name)
            reply(refused(CommitLogError(f"the node failed to handle it: {type(error).__name__}")))

    def _incoming_ended(self, connection: Connection, error: Exception) -> None:
        is_refused = isinstance(error, NoRoomError)
        is_ours = isinstance(error, CommitLogError)  # otherwise the peer died
        is_usual = isinstance(error, ClosedError) or (isinstance(error, OSError) and not is_ours)
        if not is_usual:
            self._complaints.warn(f"the connection of {connection.name} was dropped: {error}")
        with self._lock:
            self._incoming.discard(connection)
            self._budgets.remove(connection)
            self._dropped += not is_usual and not is_refused

    # --- forks

    def forked(self) -> None:
        """Disable the transport in a forked child: its threads and connections belong to the parent."""
        self._refusal = ForkedError("the transport")
        self._lock = threading.Lock()
        self._awake = threading.Condition()
        if self._listener is not None:
            self._listener.close()
        self._opener.forked()


class _Reply:
    """Sends the answer to a request; further answers are dropped."""

    __slots__ = ("_connection", "_limit", "_request_id")

    def __init__(self, connection: Connection, request_id: int, limit: int) -> None:
        self._connection: Connection | None = connection
        self._request_id = request_id
        self._limit = limit

    def __call__(self, message: Message) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            frame = wire.encode(message, wire.ANSWER, self._request_id, self._limit)
        except FrameTooLargeError as error:
            _logger.warning("an answer to %s is not sent: %s", connection.name, error)
            frame = wire.encode(refused(error), wire.ANSWER, self._request_id, self._limit)
        connection.send(frame)


def _checked_secrets(secret: bytes | None, client_secret: bytes | None) -> dict[Role, bytes]:
    """Return the secrets by the role that each confers; no error shows a secret."""
    for name, given in (("secret", secret), ("client_secret", client_secret)):
        if given is not None and (not isinstance(given, bytes) or not given):
            raise ConfigError(name, type(given), "must be non-empty bytes")
    if client_secret is None:
        return {} if secret is None else {Role.NODE: secret}
    if secret is None or hmac.compare_digest(secret, client_secret):
        raise ConfigError("client_secret", bytes, "needs a `secret` for nodes, and must differ from it")
    return {Role.NODE: secret, Role.CLIENT: client_secret}


def _after_fork() -> None:
    for transport in list(_transports):
        transport.forked()


os.register_at_fork(after_in_child=_after_fork)
