"""What a node needs from outside: a Controller that decides who leads, and a Transport for messages."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import NamedTuple, Protocol

from commitlog.errors import CommitLogError
from commitlog.replication.cluster import ClusterState
from commitlog.replication.commands import ChangeIsr, JoinNode, Submitted
from commitlog.replication.messages import Message

Changed = Callable[[ClusterState], None]
WhenDecided = Callable[[bool], None]


class Decision(NamedTuple):
    """The outcome of a command: the version of the state that decided it, and the error if it was refused."""

    version: int
    error: CommitLogError | None

    def version_or_raise(self) -> int:
        """Return the version, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.version


class Controller(Protocol):
    """What a node asks of its controller. Threads may share it.

    A controller that stores its state makes every change durable before it notifies a node.
    """

    def join(self, node: JoinNode, changed: Changed) -> int:
        """Register a node as alive and return its incarnation.

        If no controller answers in time, this raises NoControllerError and keeps trying in the background;
        `changed` is called once the node has joined. WrongClusterError or StaleControllerError if the
        controller's state does not follow the one that the node knows.

        From then on `changed` is called with new states: in order, always up to the newest, possibly
        skipping some; by one thread at a time, never within join() itself. A node that did not stop cleanly
        may have lost records, so it leaves every ISR of which it is not the only member.

        A state without the node itself means that the node is fenced: it stops leading and following, and
        in that state nobody leads what it led. The controller rejoins on its behalf, as not clean; the next
        state that contains the node has its new incarnation.
        """

    def leave(self, node_id: int, timeout_ms: int) -> bool:
        """Hand over what a node leads to in-sync replicas; False if that took too long. It stays alive."""

    def gone(self, node_id: int) -> None:
        """Remove a node that stops."""

    def propose_isr(self, change: ChangeIsr, decided: WhenDecided) -> None:
        """Propose an ISR without blocking; `decided` may be called with whether it was accepted.

        By then `changed` has been called with the state that decided: after a False, the leader knows the
        state that the proposal did not fit. If the node is fenced first, `decided` is never called.
        """

    def state(self) -> ClusterState:
        """Return the newest state known here."""

    def problem(self) -> CommitLogError | None:
        """Return what keeps the node of this process from receiving new states; None if nothing does."""

    def submit(self, command: Submitted) -> int:
        """Have a command decided; return the version of the state after it, or raise the refusal.

        NoControllerError if nobody answers in time; the command may still have been carried out.
        """

    def close(self) -> None:
        """Release everything."""


Reply = Callable[[Message], None]
Handler = Callable[[Message, Reply], None]
Answered = Callable[[Message | None], None]


class Transport(Protocol):
    """How a node or a client talks to others. Only wait(), wait_for() and close() block."""

    def serve(self, handle: Handler) -> str:
        """Start to accept requests, and return the address at which others reach this node.

        `handle(request, reply)` may be called by several threads at once. It calls `reply` once, now or
        later, from any thread; the other side may be gone by then.
        """

    def request(self, address: str, message: Message, answered: Answered, timeout_ms: int) -> None:
        """Send a request. `answered` is called once: with the answer, or with None after timeout_ms.

        It is never called from within request() itself.
        """

    def now_ms(self) -> int:
        """Return a monotonic time in milliseconds, from an arbitrary start."""

    def call_every(self, interval_ms: int, call: Callable[[], None]) -> None:
        """Call `call` repeatedly until close(); errors that it raises are logged."""

    def wait(self, event: Event, timeout_ms: int) -> bool:
        """Wait until an event is set, without waking other waiters; False after timeout_ms."""

    def wait_for(self, condition: Callable[[], bool], timeout_ms: int) -> bool:
        """Wait until a condition holds, checking it again after each wake(); False after timeout_ms."""

    def wake(self) -> None:
        """Make every wait_for() check its condition again."""

    def close(self) -> None:
        """Stop serving, answer pending requests with None, and release everything. Idempotent."""
