"""What a node needs from outside: a Controller, which decides who leads, and a Transport for messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Event
from typing import Any, Protocol

from commitlog.errors import CommitLogError
from commitlog.record import TopicPartition
from commitlog.replication.cluster import ClusterState, IsrChange, Known
from commitlog.replication.messages import Message

Changed = Callable[[ClusterState], None]
Decided = Callable[[bool], None]


class Controller(Protocol):
    """What a node asks of its controller. Threads may share it.

    Every change is durable, as far as this controller keeps anything, before a node hears of it.
    """

    def join(
        self,
        node_id: int,
        address: str,
        *,
        clean: bool,
        changed: Changed,
        disk_id: str = "",
        known: Known | None = None,
    ) -> int:
        """Make a node known as alive; returns its incarnation.

        NoControllerError if nobody answers in time: then it is tried on and on, and `changed` tells when the
        node is in. `disk_id` tells the node's disk from any other. `known` is the state that it took in last:
        WrongClusterError or StaleControllerError if the controller's own does not follow that one.

        `changed` is called with every state from then on, the newest always and in order, perhaps not each
        one in between; by one thread at a time, never within join() itself. A node that did not stop `clean`
        may have lost records that it had: it leaves every ISR, but where it is the only one in it.

        A state in which the node itself is missing tells it that it is fenced: it leads and follows nothing
        any more, and in that state nobody leads what it led. The controller joins again for it, not clean;
        from the next state in which the node is there on, its incarnation is the one that stands there.
        """

    def leave(self, node_id: int, timeout_ms: int) -> bool:
        """Hand over what a node leads, to replicas in sync; False if that took too long. It stays alive."""

    def gone(self, node_id: int) -> None:
        """Forget a node that stops."""

    def propose_isr(self, change: IsrChange, decided: Decided) -> None:
        """Propose who is in sync; `decided` tells whether it counts, perhaps never. It does not block.

        What it was decided by has come through `changed` before: after a False, the leader knows the state
        that the proposal did not fit. It is never called if the node was fenced meanwhile.
        """

    def state(self) -> ClusterState:
        """Return the newest state that is known here."""

    def problem(self) -> CommitLogError | None:
        """Return what keeps the node of this process from hearing of new states; None if nothing does."""

    def create_topic(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, Any]
    ) -> None:
        """Create a topic, its replicas spread over the nodes that are alive."""

    def alter_topic(self, name: str, changes: Mapping[str, Any]) -> None:
        """Change settings of a topic, on all nodes."""

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""

    def add_partitions(self, name: str, partitions: int) -> None:
        """Let a topic have so many partitions."""

    def reassign(self, name: TopicPartition, replicas: Sequence[int]) -> None:
        """Move a partition to these nodes, while it is written: new ones first catch up, then old ones go."""

    def elect_preferred(self) -> None:
        """Let the first replica of each partition lead, where it is in sync."""

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
