"""What a node needs from outside: a Controller, which decides who leads, and a Transport for messages."""

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
    """What became of a command: the version of the state by which it was decided, and why not, if not."""

    version: int
    error: CommitLogError | None

    def version_or_raise(self) -> int:
        """Return the version, or raise why the command was refused."""
        if self.error is not None:
            raise self.error
        return self.version


class Controller(Protocol):
    """What a node asks of its controller. Threads may share it.

    Every change is durable, as far as this controller keeps anything, before a node hears of it.
    """

    def join(self, node: JoinNode, changed: Changed) -> int:
        """Make a node known as alive; returns its incarnation.

        NoControllerError if nobody answers in time: then it keeps trying, and `changed` is called when the
        node is in. WrongClusterError or StaleControllerError if the controller's state does not follow the
        one that the node knows.

        `changed` is called with every state from then on, the newest always and in order, perhaps not each
        one in between; by one thread at a time, never within join() itself. A node that did not stop cleanly
        may have lost records that it had: it leaves every ISR, but where it is the only one in it.

        A state in which the node itself is missing means that it is fenced: it leads and follows nothing
        any more, and in that state nobody leads what it led. The controller joins again for it, not clean;
        from the next state that has the node, its incarnation is the one in that state.
        """

    def leave(self, node_id: int, timeout_ms: int) -> bool:
        """Hand over what a node leads, to replicas in sync; False if that took too long. It stays alive."""

    def gone(self, node_id: int) -> None:
        """Forget a node that stops."""

    def propose_isr(self, change: ChangeIsr, decided: WhenDecided) -> None:
        """Propose who is in sync; `decided` tells whether it counts, perhaps never. It does not block.

        What it was decided by has come through `changed` before: after a False, the leader knows the state
        that the proposal did not fit. It is never called if the node was fenced meanwhile.
        """

    def state(self) -> ClusterState:
        """Return the newest state that is known here."""

    def problem(self) -> CommitLogError | None:
        """Return what keeps the node of this process from hearing of new states; None if nothing does."""

    def submit(self, command: Submitted) -> int:
        """Let a command be decided; returns the version of the state after it, or raises why it is refused.

        NoControllerError if nobody answers in time: it may have been done all the same.
        """

    def close(self) -> None:
        """Let everything go."""


Reply = Callable[[Message], None]
Handler = Callable[[Message, Reply], None]
Answered = Callable[[Message | None], None]


class Transport(Protocol):
    """How one node, or one client, talks to others. Nothing here blocks but wait(), wait_for(), close()."""

    def serve(self, handle: Handler) -> str:
        """Take requests from now on; returns the address by which others reach this node.

        `handle(request, reply)` may be called by several threads at once. It calls `reply` once, now or
        later, from any thread; nobody minds if the other side is gone by then.
        """

    def request(self, address: str, message: Message, answered: Answered, timeout_ms: int) -> None:
        """Send a request. `answered` is called once: with the answer, or with None if there is none in time.

        It is never called from within request() itself.
        """

    def now_ms(self) -> int:
        """Return the time, in milliseconds from an arbitrary start; it never goes back."""

    def call_every(self, interval_ms: int, call: Callable[[], None]) -> None:
        """Call this now and then, until close(); an error it raises is logged and does not end it."""

    def wait(self, event: Event, timeout_ms: int) -> bool:
        """Wait until an event is set; False if it is not in time. Nobody else is woken by that one."""

    def wait_for(self, condition: Callable[[], bool], timeout_ms: int) -> bool:
        """Wait until a condition holds; False if it does not in time. wake() makes it look again."""

    def wake(self) -> None:
        """Tell those who wait that their conditions may have come true."""

    def close(self) -> None:
        """Stop serving, answer what is under way with None, and let everything go. Closing twice is fine."""
