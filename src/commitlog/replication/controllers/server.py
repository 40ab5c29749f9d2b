"""ControllerServer: lets nodes in other processes use the StaticController of this one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from commitlog.errors import (
    CommitLogError,
    ProtocolError,
    StaleControllerError,
    StaleNodeError,
    WrongClusterError,
)
from commitlog.replication.cluster import ClusterState
from commitlog.replication.commands import JoinNode, RemoveNode
from commitlog.replication.controllers.static import StaticController
from commitlog.replication.messages import ClusterNow, Decided, Heartbeat, Join, Joined, Message, Submit
from commitlog.replication.ports import Reply, Transport
from commitlog.replication.refusals import refused

_LISTENER = -1
_TOKENS = 64  # remembered per node: a Join that is delivered again, late, must not count again


@dataclass(slots=True)
class _Session:
    """A life of a node, and when its last heartbeat arrived."""

    incarnation: int
    heard_ms: int


@dataclass(slots=True)
class _Attempts:
    """The attempts of a node to join, the newest last, and the answer to that one."""

    tokens: deque[str] = field(default_factory=lambda: deque(maxlen=_TOKENS))
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A Heartbeat that waits for its answer."""

    reply: Reply
    version: int
    deadline_ms: int


class ControllerServer:
    """Serves a controller over a transport. A node without a heartbeat for session_timeout_ms is gone.

    It answers Join, Heartbeat and Submit; another handler may pass them on to handle(). Closing it closes
    neither the controller nor the transport.
    """

    def __init__(
        self, controller: StaticController, transport: Transport, *, session_timeout_ms: int = 10_000
    ) -> None:
        self._controller = controller
        self._transport = transport
        self._session_timeout_ms = session_timeout_ms
        self._lock = threading.Lock()
        self._sessions: dict[int, _Session] = {}
        self._attempts: dict[int, _Attempts] = {}
        self._waiting: list[_Waiting] = []
        self._state = controller.state()
        self._looked_ms = 0
        self._closed = False

    def serve(self) -> str:
        """Start to accept requests, and return the address for RemoteController."""
        self.start()
        return self._transport.serve(self.handle)

    def start(self) -> None:
        """Start the sessions of other processes' nodes; each living node has a whole session to report."""
        self._looked_ms = now_ms = self._transport.now_ms()
        self._controller.listen(_LISTENER, self._changed)
        for node_id, node in self._controller.state().nodes.items():
            if not self._controller.is_local(node_id):
                self._sessions[node_id] = _Session(node.incarnation, now_ms)
        self._transport.call_every(max(self._session_timeout_ms // 10, 1), self._look)

    def close(self) -> None:
        """Answer the waiting heartbeats, and end all sessions."""
        with self._lock:
            self._closed = True
        self._answer_waiting(lambda one: True)

    # --- requests

    def handle(self, message: Message, reply: Reply) -> None:
        """Answer a request, now or later."""
        try:
            self._check_cluster(message)
            if isinstance(message, Heartbeat):
                self._heartbeat(message, reply)
            else:
                reply(self._answer(message))
        except CommitLogError as error:
            reply(refused(error))

    def _check_cluster(self, message: Message) -> None:
        """Refuse a request for another cluster, or of a node whose state the controller does not follow."""
        ours = self._controller.state().cluster_id
        match message:
            case Submit(_, theirs) if theirs not in ("", ours):
                raise WrongClusterError(theirs, ours)
            case Join(node):
                self._controller.check(node.known)
            case Heartbeat(node_id, known=known) if node_id >= 0:
                self._controller.check(known)

    def _answer(self, message: Message) -> Message:
        match message:
            case Join(node, token):
                return self._join(node, token)
            case Submit(command):
                version, error = self._controller.decide(command)
                return Decided(version, None if error is None else refused(error))
            case _:
                raise ProtocolError("the controller", f"it does not answer {type(message).__name__}")

    def _join(self, node: JoinNode, token: str) -> Joined:
        with self._lock:
            attempts = self._attempts.setdefault(node.node_id, _Attempts())
            session = self._sessions.get(node.node_id)
            if attempts.tokens and attempts.tokens[-1] == token:
                if session is not None and session.incarnation == attempts.incarnation:
                    return Joined(attempts.incarnation, self._session_timeout_ms)
            elif token in attempts.tokens:
                raise StaleNodeError(node.node_id)
            incarnation = self._controller.register(node)
            if token not in attempts.tokens:
                attempts.tokens.append(token)
            attempts.incarnation = incarnation
            self._sessions[node.node_id] = _Session(incarnation, self._transport.now_ms())
        return Joined(incarnation, self._session_timeout_ms)

    def _heartbeat(self, message: Heartbeat, reply: Reply) -> None:
        now_ms = self._transport.now_ms()
        with self._lock:
            session = self._sessions.get(message.node_id)
            if session is not None and session.incarnation == message.incarnation:
                session.heard_ms = now_ms
            state = self._controller.state()
            if message.version >= state.version and not self._closed:
                wait_ms = min(message.max_wait_ms, self._session_timeout_ms // 3)
                self._waiting.append(_Waiting(reply, message.version, now_ms + wait_ms))
                return
        reply(ClusterNow(state))

    # --- events

    def _changed(self, state: ClusterState) -> None:
        with self._lock:
            self._state = state
        self._answer_waiting(lambda one: one.version < state.version)

    def _answer_waiting(self, is_due: Callable[[_Waiting], bool]) -> None:
        with self._lock:
            due = [one for one in self._waiting if is_due(one)]
            self._waiting = [one for one in self._waiting if not is_due(one)]
        for one in due:
            one.reply(ClusterNow(self._state))

    def _look(self) -> None:
        """Answer the heartbeats that are due, and remove the nodes whose session has expired."""
        now_ms = self._transport.now_ms()
        self._answer_waiting(lambda one: one.deadline_ms <= now_ms)
        with self._lock:
            if self._closed:
                return
            self._excuse(now_ms)
            missed = {
                node_id: session.incarnation
                for node_id, session in self._sessions.items()
                if now_ms - session.heard_ms > self._session_timeout_ms
            }
            for node_id in missed:
                del self._sessions[node_id]
        for node_id, incarnation in missed.items():
            with suppress(StaleControllerError):  # it no longer decides anything, and has logged that
                self._controller.submit(RemoveNode(node_id, incarnation))

    def _excuse(self, now_ms: int) -> None:
        """Renew all sessions if this process itself was stopped for a while: it missed the heartbeats."""
        if now_ms - self._looked_ms > self._session_timeout_ms // 2:
            for session in self._sessions.values():
                session.heard_ms = now_ms
        self._looked_ms = now_ms
