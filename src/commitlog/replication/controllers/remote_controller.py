"""RemoteController: the controller of another process, which a ControllerServer serves there."""

from __future__ import annotations

import logging
import threading
import uuid
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from commitlog.errors import (
    AuthorizationError,
    ClosedError,
    CommitLogError,
    NoControllerError,
    ProtocolError,
    StaleControllerError,
    WrongClusterError,
)
from commitlog.replication import rules
from commitlog.replication.cluster import ClusterState
from commitlog.replication.commands import ChangeIsr, JoinNode, LeaveNode, RemoveNode, Submitted
from commitlog.replication.control_messages import ClusterNow, Heartbeat, Join, Joined
from commitlog.replication.controllers.notifier import CallingThread, CallSoon
from commitlog.replication.messages import Decided, Message, Refused, Submit
from commitlog.replication.ports import Changed, Transport, WhenDecided
from commitlog.replication.refusals import error_of

NOBODY = -1
_Answer = TypeVar("_Answer", bound=Message)

_logger = logging.getLogger("commitlog.replication")


@dataclass(frozen=True, slots=True)
class _Life:
    """The node of this process: how it joins, and in which incarnation it is alive, 0 while it is fenced."""

    node: JoinNode
    changed: Changed
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    incarnation: int = 0
    wait_ms: int = 0  # how long a Heartbeat may wait for its answer


@dataclass(slots=True, eq=False)
class _Proposal:
    """An ISR that was proposed, and how that was answered."""

    change: ChangeIsr
    decided: WhenDecided
    under_way: bool = False
    decision: Decided | None = None


class RemoteController:
    """The controller that is served at an address; for one node, or for none.

    One request at a time keeps the node alive and brings new states. What is asked by a caller raises
    NoControllerError if no answer comes in time: it may have been done all the same.
    """

    def __init__(
        self,
        transport: Transport,
        address: str,
        *,
        request_timeout_ms: int = 10_000,
        retry_ms: int = 100,
        call_soon: CallSoon | None = None,
    ) -> None:
        self._transport = transport
        self._address = address
        self._request_timeout_ms = request_timeout_ms
        self._retry_ms = retry_ms
        self._lock = threading.Lock()
        self._state = ClusterState()
        self._life: _Life | None = None
        self._asking = False  # Join or Heartbeat is under way
        self._refusal: CommitLogError | None = None  # why this controller is not to be listened to
        self._silent = False  # the last request was not answered
        self._proposals: list[_Proposal] = []
        self._closed = False
        self._thread: CallingThread | None = None
        if call_soon is None:
            self._thread = CallingThread("remote-controller")
            call_soon = self._thread.soon
        self._call_soon = call_soon

    # --- nodes

    def join(self, node: JoinNode, changed: Changed) -> int:
        """Make the node of this process known as alive; returns its incarnation."""
        with self._lock:
            self._check_open()
            if self._life is not None:
                raise CommitLogError(f"node {self._life.node.node_id} has joined here already")
            self._refusal = None
            self._life = _Life(node, changed)
        self._transport.call_every(self._retry_ms, self._ask_again)
        self._go_on()
        self._transport.wait_for(lambda: self._is_in() or self._refusal is not None, self._request_timeout_ms)
        with self._lock:
            if self._life is not None and _is_alive(self._state, self._life):
                return self._life.incarnation
            if self._refusal is not None:
                self._life = None
                raise self._refusal
        raise NoControllerError(f"{self._address} did not answer in {self._request_timeout_ms} ms")

    def _is_in(self) -> bool:
        with self._lock:
            return self._life is not None and _is_alive(self._state, self._life)

    def leave(self, node_id: int, timeout_ms: int) -> bool:
        """Hand over what a node leads; False if no replica came in sync in time to take it all."""
        node = self.state().nodes.get(node_id)
        if node is None:
            return True
        self.submit(LeaveNode(node_id, node.incarnation))
        return self._transport.wait_for(lambda: self._handed_over(node_id), timeout_ms)

    def _handed_over(self, node_id: int) -> bool:
        with self._lock:
            node = self._state.nodes.get(node_id)
            return (node is None or node.leaving) and rules.handed_over(self._state, node_id)

    def gone(self, node_id: int) -> None:
        """Forget a node that stops."""
        with self._lock:
            cluster_id = self._cluster_id
            life, self._life = self._life, None
            self._proposals = []
        if life is not None and life.incarnation:
            self._ask(Submit(RemoveNode(node_id, life.incarnation), cluster_id), Decided)

    # --- what keeps the node alive

    def _ask_again(self) -> None:
        self._go_on()
        self._propose_again()

    def _go_on(self) -> None:
        """Ask what is to be asked next, unless something is under way."""
        with self._lock:
            life = self._life
            if self._closed or self._asking or life is None:
                return
            self._asking = True
            message = self._next_message(life)
        timeout_ms = max(self._request_timeout_ms // 4, 1)
        if isinstance(message, Heartbeat):  # one that is lost must not end the session
            timeout_ms = message.max_wait_ms + min(life.wait_ms, timeout_ms)

        def answered(answer: Message | None) -> None:
            self._answered(life, answer)

        self._transport.request(self._address, message, answered, timeout_ms)

    def _next_message(self, life: _Life) -> Join | Heartbeat:
        node_id, known = life.node.node_id, life.node.known
        replaced = node_id in self._state.nodes and not _is_alive(self._state, life)
        if life.incarnation == 0 and not replaced:
            return Join(life.node, life.token)
        if life.incarnation > self._state.version:  # the state in which it joined is not known here yet
            return Heartbeat(node_id, life.incarnation, -1, 0, known)
        return Heartbeat(node_id, life.incarnation, self._state.version, life.wait_ms, known)

    def _answered(self, life: _Life, answer: Message | None) -> None:
        with self._lock:
            self._asking = False
            self._silent = answer is None
            current = self._life is life
            if current and isinstance(answer, Joined):
                wait_ms = max(answer.session_timeout_ms // 3, 1)
                self._life = replace(life, incarnation=answer.incarnation, wait_ms=wait_ms)
            elif current and isinstance(answer, ClusterNow):
                self._take(life, answer.state)
            elif current and isinstance(answer, Refused):
                error = error_of(answer)
                if isinstance(error, WrongClusterError | StaleControllerError | AuthorizationError):
                    self._refuse(error)
        if answer is None or isinstance(answer, Refused) or self._refusal is not None:
            self._transport.wake()
            return  # call_every() asks again, a little later
        self._transport.wake()
        self._go_on()

    def _refuse(self, error: CommitLogError) -> None:
        """Do not listen to the controller, which is not the one that this node knows; say so once."""
        if str(error) != str(self._refusal):
            _logger.error("not listening to the controller at %s: %s", self._address, error)
        self._refusal = error

    def _take(self, life: _Life, state: ClusterState) -> None:
        """Take a state over and pass it to the node: without the node itself, if it is fenced."""
        refusal = state.refusal(life.node.known)
        if refusal is not None:
            self._refuse(refusal)
            return
        if self._refusal is not None:
            _logger.warning("listening to the controller at %s again", self._address)
            self._refusal = None
        self._state = state
        life = self._life = replace(life, node=replace(life.node, known=state.known))
        shown = state
        if not _is_alive(state, life):
            shown = rules.without(state, life.node.node_id)
            self._fence(life, replaced=life.node.node_id in state.nodes)
        self._call_soon(partial(life.changed, shown))
        self._tell_decisions()

    def _fence(self, life: _Life, *, replaced: bool) -> None:
        self._proposals = []
        if life.incarnation:
            reason = (
                "another process has joined under its id" if replaced else "it was not heard of for too long"
            )
            _logger.warning("node %s is fenced: %s", life.node.node_id, reason)
            # others went on without it: it joins again, not clean
            self._life = _Life(replace(life.node, clean=False), life.changed, wait_ms=life.wait_ms)

    # --- ISR

    def propose_isr(self, change: ChangeIsr, decided: WhenDecided) -> None:
        """Propose who is in sync; it is asked again until there is an answer, or the node is fenced."""
        proposal = _Proposal(change, decided)
        with self._lock:
            self._proposals.append(proposal)
        self._send(proposal)

    def _send(self, proposal: _Proposal) -> None:
        def answered(answer: Message | None) -> None:
            with self._lock:
                proposal.under_way = False
                if isinstance(answer, Decided):
                    proposal.decision = answer
                    self._tell_decisions()

        proposal.under_way = True
        request = Submit(proposal.change, self._cluster_id)
        self._transport.request(self._address, request, answered, self._request_timeout_ms)

    def _propose_again(self) -> None:
        with self._lock:
            lost = [one for one in self._proposals if one.decision is None and not one.under_way]
        for proposal in lost:
            self._send(proposal)

    def _tell_decisions(self) -> None:
        """Tell those by whose state the node has been told: that of a first attempt may have counted."""
        for one in [*self._proposals]:
            decision = one.decision
            if decision is not None and decision.version <= self._state.version:
                self._proposals.remove(one)
                self._call_soon(partial(one.decided, decision.refusal is None))

    # --- what callers ask for

    def state(self) -> ClusterState:
        """Return the newest state that is known here; who is no node asks for it."""
        with self._lock:
            if self._life is not None:
                return self._state
        return self._ask(Heartbeat(NOBODY, 0, -1, 0), ClusterNow).state

    def problem(self) -> CommitLogError | None:
        """Return why the node does not hear of new states; None if it does."""
        with self._lock:
            silent = NoControllerError(f"{self._address} does not answer") if self._silent else None
            return self._refusal or silent

    @property
    def _cluster_id(self) -> str:
        """The cluster that the node belongs to; "" without one, for then any will do."""
        life = self._life
        return life.node.known.cluster_id if life is not None and life.node.known is not None else ""

    def submit(self, command: Submitted) -> int:
        """Let a command be decided; returns the version of the state after it, or raises the refusal."""
        decided = self._ask(Submit(command, self._cluster_id), Decided)
        if decided.refusal is not None:
            raise error_of(decided.refusal)
        return decided.version

    def _ask(self, message: Message, expected: type[_Answer]) -> _Answer:
        """Ask, and wait for the answer; raises what it was refused with."""
        with self._lock:
            self._check_open()
        answers: list[Message | None] = []
        is_there = threading.Event()

        def answered(answer: Message | None) -> None:
            answers.append(answer)
            is_there.set()

        self._transport.request(self._address, message, answered, self._request_timeout_ms)
        self._transport.wait(is_there, self._request_timeout_ms)
        answer = answers[0] if answers else None
        if answer is None:
            raise NoControllerError(f"{self._address} did not answer")
        if isinstance(answer, Refused):
            raise error_of(answer)
        if not isinstance(answer, expected):
            raise ProtocolError(
                self._address, f"it answers {type(message).__name__} by {type(answer).__name__}"
            )
        return answer

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the controller")

    def close(self) -> None:
        """Tell what is still to be told, and let everything go but the transport."""
        with self._lock:
            self._closed = True
        if self._thread is not None:
            self._thread.close()


def _is_alive(state: ClusterState, life: _Life) -> bool:
    node = state.nodes.get(life.node.node_id)
    return node is not None and node.incarnation == life.incarnation
