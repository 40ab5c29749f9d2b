"""Progress: what the leader of an epoch knows about the other replicas, and what follows from it.

No I/O, no clock: the time comes with each call. Invariants:

- A replica's `next_offset` is an offset up to which its log agreed with the leader's, in this epoch and in
  the replica's newest known life. Within both it only grows, because a replica that agrees never truncates.
- `counted` contains every member of the controller's current ISR: the ISR last received, and all members of
  proposals that may still be accepted. (On its own the controller only removes members.)
- high_watermark <= next_offset of the leader and of every counted member at the moment it moves, so every
  record below it is on all of them. It never goes down, and does not move while the ISR is smaller than
  min_insync_replicas.
- A replica that is proposed for the ISR has every record that was ever acknowledged: it has reached the high
  watermark and the start of this epoch, below which everything lies that earlier leaders acknowledged. It is
  counted at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from commitlog.replication.cluster import NodeState, PartitionState

_NEVER = -(1 << 62)


@dataclass(slots=True)
class ReplicaProgress:
    """What is known about one other replica in this epoch."""

    incarnation: int = -1
    next_offset: int | None = None  # None until it has fetched in this epoch
    caught_up_ms: int = _NEVER
    fetched_ms: int = _NEVER  # its last fetch; reset when it leaves the ISR
    end_when_fetched: int | None = None  # the leader's next_offset at that time

    def fetched(self, incarnation: int, offset: int, end_offset: int, now_ms: int) -> None:
        """Note a fetch from `offset`, up to which the logs agree; fetches of earlier lives are ignored."""
        if incarnation < self.incarnation:
            return
        if incarnation > self.incarnation:
            if self.incarnation >= 0:  # it has restarted: what was known about it no longer holds
                self.next_offset, self.end_when_fetched, self.caught_up_ms = None, None, _NEVER
            self.incarnation = incarnation
        if offset >= end_offset:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif self.end_when_fetched is not None and offset >= self.end_when_fetched:
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        # a fetch may arrive after later ones
        self.next_offset = offset if self.next_offset is None else max(self.next_offset, offset)
        self.fetched_ms, self.end_when_fetched = now_ms, end_offset


class Progress:
    """The replicas of one partition, as its leader sees them in one epoch."""

    def __init__(
        self,
        node_id: int,
        epoch_start: int,
        state: PartitionState,
        nodes: Mapping[int, NodeState],
        min_insync_replicas: int,
        lag_max_ms: int,
        now_ms: int,
    ) -> None:
        self._node_id = node_id
        self._epoch_start = epoch_start
        self._lag_max_ms = lag_max_ms
        self._state, self._nodes = state, nodes
        self._proposed: frozenset[int] = frozenset()  # members of all proposals that may still be accepted
        self.min_insync_replicas = min_insync_replicas
        self.others: dict[int, ReplicaProgress] = {}
        self.isr: frozenset[int] = frozenset()
        self.counted: frozenset[int] = frozenset()
        self.state_changed(state, nodes, now_ms)

    def state_changed(self, state: PartitionState, nodes: Mapping[int, NodeState], now_ms: int) -> None:
        """Apply a state of this epoch: a new version decides every proposal for an older one."""
        before = self.isr
        self._nodes = nodes
        if state.version != self._state.version:
            self._proposed = frozenset()
        self._state, self.isr = state, frozenset(state.isr)
        self.counted = self.isr | self._proposed
        wanted = (set(state.replicas) | self.isr) - {self._node_id}
        self.others = {node_id: self.others.get(node_id) or ReplicaProgress() for node_id in wanted}
        for node_id in self.isr - before - {self._node_id}:
            # a new member may be far behind if min_insync_replicas is low: give it time to catch up
            self.others[node_id].caught_up_ms = max(self.others[node_id].caught_up_ms, now_ms)
        for node_id in (before - self.isr) & self.others.keys():
            self.others[node_id].fetched_ms = _NEVER  # or a silent replica could rejoin at once

    def advanced(self, high_watermark: int, end_offset: int, now_ms: int) -> int:
        """Return how far the high watermark may move; `high_watermark` itself if it may not.

        It also waits for a replica that keeps up but is not in the ISR yet. Otherwise, under a constant
        stream of appends, that replica would always be slightly below it and never get in.
        """
        if len(self.isr) < self.min_insync_replicas:
            return high_watermark
        lowest = end_offset
        for node_id, replica in self.others.items():
            counts = node_id in self.counted
            if not counts and not self._comes_in(node_id, replica, now_ms):
                continue
            if replica.next_offset is None:
                return high_watermark  # it has not fetched in this epoch
            lowest = min(lowest, replica.next_offset)
        return max(high_watermark, lowest)

    def wanted_isr(self, high_watermark: int, end_offset: int, now_ms: int) -> tuple[int, ...] | None:
        """Return the ISR to propose, in the order of the replicas; None if it would not change."""
        kept = {node_id for node_id in self.isr if not self._lags(node_id, end_offset, now_ms)}
        needed = max(high_watermark, self._epoch_start)
        joining = {node_id for node_id in self.others if self._may_join(node_id, needed)}
        wanted = kept | (joining - self.isr)
        if wanted == self.isr:
            return None
        return tuple(node_id for node_id in self._state.replicas if node_id in wanted)

    def isr_without_leader(self) -> tuple[int, ...]:
        """Return the other in-sync replicas, in the order of the replicas."""
        others = self.isr - {self._node_id}
        return tuple(node_id for node_id in self._state.replicas if node_id in others)

    def proposed(self, isr: tuple[int, ...]) -> None:
        """Count the members of a proposal from now on."""
        self._proposed |= frozenset(isr)
        self.counted = self.isr | self._proposed

    def withdrawn(self) -> None:
        """Forget all proposals: none of them will be accepted."""
        self._proposed = frozenset()
        self.counted = self.isr

    def incarnations(self, isr: tuple[int, ...]) -> dict[int, int]:
        """Return members' incarnations: new members' from their fetches, others' from the controller."""
        known = {node_id: node.incarnation for node_id, node in self._nodes.items() if node_id in isr}
        return known | {
            node_id: self.others[node_id].incarnation for node_id in isr if node_id not in self.isr
        }

    def _eligible(self, node_id: int, replica: ReplicaProgress) -> bool:
        """Return whether the controller would accept a replica: it is alive in this life, and not leaving."""
        node = self._nodes.get(node_id)
        return node is not None and node.incarnation == replica.incarnation and not node.leaving

    def _may_join(self, node_id: int, needed: int) -> bool:
        replica = self.others[node_id]
        if replica.next_offset is None or replica.fetched_ms == _NEVER:
            return False
        return replica.next_offset >= needed and self._eligible(node_id, replica)

    def _comes_in(self, node_id: int, replica: ReplicaProgress, now_ms: int) -> bool:
        return now_ms - replica.caught_up_ms <= self._lag_max_ms and self._eligible(node_id, replica)

    def _lags(self, node_id: int, end_offset: int, now_ms: int) -> bool:
        replica = self.others.get(node_id)
        if replica is None or replica.next_offset == end_offset:
            return False
        return now_ms - replica.caught_up_ms > self._lag_max_ms
