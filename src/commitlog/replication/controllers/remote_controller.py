"""RemoteController: uses the controller that a ControllerServer serves in another process."""

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
from commitlog.replication.controllers.notifier import Caller, CallSoon
from commitlog.replication.messages import (
    ClusterNow,
    Decided,
    Heartbeat,
    Join,
    Joined,
    Message,
    Refused,
    Submit,
)
from commitlog.replication.ports import Changed, Transport, WhenDecided
from commitlog.replication.refusals import error_of

NOBODY = -1
_Answer = TypeVar("_Answer", bound=Message)

_logger = logging.getLogger("commitlog.replication")


@dataclass(frozen=True, slots=True)
class _Life:
    """The node of this process: how it joins, and its incarnation, 0 while it is fenced."""

    node: JoinNode
    changed: Changed
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    incarnation: int = 0
    wait_ms: int = 0  # how long a Heartbeat may wait for its answer


@dataclass(slots=True, eq=False)
class _Proposal:
    """A proposed ISR, and the answer."""

    change: ChangeIsr
    decided: WhenDecided
    under_way: bool = False
    decision: Decided | None = None


class RemoteController:
    """The controller served at an address, for one node or none.

    One pending request at a time keeps the node alive and brings new states. The other requests raise
    NoControllerError if no answer comes in time; they may still have been carried out.
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
        self._asking = False  # a Join or Heartbeat is pending
        self._refusal: CommitLogError | None = None  # why this controller's states are rejected
        self._silent = False  # the last request was not answered
        self._proposals: list[_Proposal] = []
        self._closed = False
        self._caller = Caller("remote-controller", call_soon)

    # --- nodes

    def join(self, node: JoinNode, changed: Changed) -> int:
        """Register the node of this process as alive, and return its incarnation."""
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
        """Hand over what a node leads; False if no replica could take over all of it in time."""
        node = self.state().nodes.get(node_id)
        if node is None:
            return True
        self.submit(LeaveNode(node_id, node.incarnation))
        return self._transport.wait_for(lambda: rules.handed_over(self._state, node_id), timeout_ms)

    def gone(self, node_id: int) -> None:
        """Remove a node that stops."""
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
        """Send the next Join or Heartbeat, unless one is pending."""
        with self._lock:
            life = self._life
            if self._closed or self._asking or life is None:
                return
            self._asking = True
            message = self._next_message(life)
        timeout_ms = max(self._request_timeout_ms // 4, 1)
        if isinstance(message, Heartbeat):  # a lost one must not end the session
            timeout_ms = message.max_wait_ms + min(life.wait_ms, timeout_ms)
        self._transport.request(self._address, message, partial(self._answered, life), timeout_ms)

    def _next_message(self, life: _Life) -> Join | Heartbeat:
        node_id, known = life.node.node_id, life.node.known
        replaced = node_id in self._state.nodes and not _is_alive(self._state, life)
        if life.incarnation == 0 and not replaced:
            return Join(life.node, life.token)
        if life.incarnation > self._state.version:  # the state in which it joined has not arrived yet
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
        self._transport.wake()
        if answer is not None and not isinstance(answer, Refused) and self._refusal is None:
            self._go_on()  # otherwise call_every() asks again, a little later

    def _refuse(self, error: CommitLogError) -> None:
        """Reject the controller, which is not the one that this node knows; log that once."""
        if str(error) != str(self._refusal):
            _logger.error("rejecting the controller at %s: %s", self._address, error)
        self._refusal = error

    def _take(self, life: _Life, state: ClusterState) -> None:
        """Accept a state and pass it to the node: without the node itself, if it is fenced."""
        refusal = state.refusal(life.node.known)
        if refusal is not None:
            self._refuse(refusal)
            return
        if self._refusal is not None:
            _logger.warning("accepting the controller at %s again", self._address)
            self._refusal = None
        self._state = state
        life = self._life = replace(life, node=replace(life.node, known=state.known))
        shown = state
        if not _is_alive(state, life):
            shown = rules.without(state, life.node.node_id)
            self._fence(life, replaced=life.node.node_id in state.nodes)
        self._caller.soon(partial(life.changed, shown))
        self._tell_decisions()

    def _fence(self, life: _Life, *, replaced: bool) -> None:
        self._proposals = []
        if life.incarnation:
            reason = "another process has joined under its id" if replaced else "its session has expired"
            _logger.warning("node %s is fenced: %s", life.node.node_id, reason)
            # others went on without it, so it rejoins as not clean
            self._life = _Life(replace(life.node, clean=False), life.changed, wait_ms=life.wait_ms)

    # --- ISR

    def propose_isr(self, change: ChangeIsr, decided: WhenDecided) -> None:
        """Propose an ISR; it is sent again until it is answered, or the node is fenced."""
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
        """Report the decisions whose states the node has received: a first attempt may have succeeded."""
        for one in [*self._proposals]:
            decision = one.decision
            if decision is not None and decision.version <= self._state.version:
                self._proposals.remove(one)
                self._caller.soon(partial(one.decided, decision.refusal is None))

    # --- requests of callers

    def state(self) -> ClusterState:
        """Return the newest state known here; without a node, ask the controller for it."""
        with self._lock:
            if self._life is not None:
                return self._state
        return self._ask(Heartbeat(NOBODY, 0, -1, 0), ClusterNow).state

    def problem(self) -> CommitLogError | None:
        """Return why the node receives no new states; None if it does."""
        with self._lock:
            silent = NoControllerError(f"{self._address} does not answer") if self._silent else None
            return self._refusal or silent

    @property
    def _cluster_id(self) -> str:
        """The cluster that the node belongs to; "" for none, which matches any."""
        life = self._life
        return life.node.known.cluster_id if life is not None and life.node.known is not None else ""

    def submit(self, command: Submitted) -> int:
        """Have a command decided; return the version of the state after it, or raise the refusal."""
        decided = self._ask(Submit(command, self._cluster_id), Decided)
        if decided.refusal is not None:
            raise error_of(decided.refusal)
        return decided.version

    def _ask(self, message: Message, expected: type[_Answer]) -> _Answer:
        """Send a request and return the answer; raises the refusal."""
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
            reason = f"it answered {type(message).__name__} with {type(answer).__name__}"
            raise ProtocolError(self._address, reason)
        return answer

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the controller")

    def close(self) -> None:
        """Make the pending calls, and release everything except the transport."""
        with self._lock:
            self._closed = True
        self._caller.close()


def _is_alive(state: ClusterState, life: _Life) -> bool:
    node = state.nodes.get(life.node.node_id)
    return node is not None and node.incarnation == life.incarnation
