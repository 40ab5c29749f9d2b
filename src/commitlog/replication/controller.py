"""Controller: who keeps the cluster's state and decides who leads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from commitlog.errors import CommitLogError
from commitlog.record import TopicPartition
from commitlog.replication.cluster import ClusterState, IsrChange, Known

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
