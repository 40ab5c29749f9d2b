"""Leader: the state machine of one partition's leader, in one epoch.

It reads its log and changes nothing: it returns effects. The time comes with each call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from commitlog.errors import FencedEpochError, OffsetOutOfRangeError, UnknownEpochError
from commitlog.partitions.epochs import NO_EPOCH
from commitlog.partitions.slices import ReplicaSlice
from commitlog.record import TopicPartition
from commitlog.replication.cluster import NodeState, PartitionState
from commitlog.replication.commands import ChangeIsr
from commitlog.replication.core.effects import Advance, LeaderEffect, Propose
from commitlog.replication.core.progress import Progress
from commitlog.replication.core.replica_log import ReplicaLog
from commitlog.replication.messages import NO_DATA, EpochEnd, FetchedPart, FetchPart
from commitlog.replication.refusals import refused_part
from commitlog.replication.settings import ReplicationConfig


class Leader:
    """Answers followers, moves the high watermark, and proposes ISRs.

    It waits for one proposal at a time. If that one is not decided in time it makes another, and counts the
    members of both until a state shows which was accepted.
    """

    def __init__(
        self,
        name: TopicPartition,
        topic_id: str,
        node_id: int,
        log: ReplicaLog,
        state: PartitionState,
        nodes: Mapping[int, NodeState],
        topic_config: Mapping[str, Any],
        config: ReplicationConfig,
        now_ms: int,
    ) -> None:
        self.name = name
        self._topic_id = topic_id
        self.epoch = state.leader_epoch
        self._node_id = node_id
        self._log = log
        self._config = config
        self._version = state.version
        self._undecided: list[ChangeIsr] = []  # proposals for this version; it waits for the last one
        self._propose_after_ms = now_ms
        self._starts_told: dict[tuple[int, int], int] = {}  # by node and incarnation
        needed, lag_ms = _needed(topic_config), config.replica_lag_time_max_ms
        self.progress = Progress(node_id, log.next_offset, state, nodes, needed, lag_ms, now_ms)

    def configure(self, topic_config: Mapping[str, Any]) -> None:
        """Apply changed settings of the topic."""
        self.progress.min_insync_replicas = _needed(topic_config)

    # --- events -------------------------------------------------------------------------------------

    def state_changed(
        self, state: PartitionState, nodes: Mapping[int, NodeState], now_ms: int
    ) -> tuple[LeaderEffect, ...]:
        """Apply a state with the same leader epoch."""
        if state.version != self._version:
            self._version, self._undecided, self._propose_after_ms = state.version, [], now_ms
        self.progress.state_changed(state, nodes, now_ms)
        return self.tick(now_ms)

    def fetched(
        self, node_id: int, incarnation: int, part: FetchPart, now_ms: int
    ) -> tuple[LeaderEffect, ...]:
        """Note how far a follower is, once per fetch, if its log agrees with this one."""
        if self._log.failure is not None:
            return self._resigned(now_ms)
        replica = self.progress.others.get(node_id)
        if replica is None or self._disagreement(part) is not None:
            return ()
        replica.fetched(incarnation, part.offset, self._log.next_offset, now_ms)
        return self.appended(now_ms) if node_id in self.progress.isr else self.tick(now_ms)

    def tick(self, now_ms: int) -> tuple[LeaderEffect, ...]:
        """Return what follows from what is known now: a higher high watermark, an ISR to propose."""
        if self._log.failure is not None:
            return self._resigned(now_ms)
        before, end_offset = self._log.high_watermark, self._log.next_offset
        high_watermark = self.progress.advanced(before, end_offset, now_ms)
        moved = (Advance(high_watermark),) if high_watermark > before else ()
        if now_ms < self._propose_after_ms:
            return moved
        isr = self.progress.wanted_isr(high_watermark, end_offset, now_ms)
        return moved if isr is None else (*moved, self._propose(isr, now_ms))

    def _resigned(self, now_ms: int) -> tuple[LeaderEffect, ...]:
        """Propose the ISR without this replica, whose disk has failed, so that another one leads."""
        isr = self.progress.isr_without_leader()
        return () if now_ms < self._propose_after_ms or not isr else (self._propose(isr, now_ms),)

    def appended(self, now_ms: int) -> tuple[LeaderEffect, ...]:
        """Check only the high watermark: after an append it moves if no other replica is counted."""
        before = self._log.high_watermark
        high_watermark = self.progress.advanced(before, self._log.next_offset, now_ms)
        return (Advance(high_watermark),) if high_watermark > before else ()

    def decided(self, change: ChangeIsr, counts: bool, now_ms: int) -> None:
        """Note the outcome of a proposal. An accepted one stays counted until a state shows it."""
        if change not in self._undecided or counts:
            return
        self._undecided.remove(change)
        if not self._undecided:
            self.progress.withdrawn()
            self._propose_after_ms = now_ms + self._config.replica_fetch_backoff_ms

    def _propose(self, isr: tuple[int, ...], now_ms: int) -> Propose:
        incarnations = self.progress.incarnations(isr)
        change = ChangeIsr(
            self.name, self._topic_id, self._node_id, self.epoch, self._version, isr, incarnations
        )
        self._undecided.append(change)
        self._propose_after_ms = now_ms + self._config.request_timeout_ms
        self.progress.proposed(isr)
        return Propose(change)

    # --- answers ------------------------------------------------------------------------------------

    def has_news(self, node_id: int, incarnation: int, part: FetchPart) -> bool:
        """Return, at little cost, whether answer() would return an answer."""
        if part.leader_epoch != self.epoch or part.offset != self._log.next_offset:
            return True
        return self._has_to_tell(node_id, incarnation, part)

    def _has_to_tell(self, node_id: int, incarnation: int, part: FetchPart) -> bool:
        """Return whether the follower has to learn a new high watermark or start offset."""
        if min(self._log.high_watermark, part.offset) > part.high_watermark:
            return True
        return self._log.start_offset > self._starts_told.get((node_id, incarnation), -1)

    def answer(self, node_id: int, incarnation: int, part: FetchPart, max_bytes: int) -> FetchedPart | None:
        """Return the answer to a follower, None if nothing is new; without data if max_bytes is 0."""
        disagreement = self._disagreement(part)
        if disagreement is not None:
            return disagreement
        log, found = self._log, None
        if part.offset < log.next_offset and max_bytes > 0:
            try:
                found = log.read_replica(part.offset, max_bytes)
            except OffsetOutOfRangeError:  # trimmed meanwhile
                return self._told(part)
        if (found is None or not found.data.size) and not self._has_to_tell(node_id, incarnation, part):
            return None
        self._starts_told[node_id, incarnation] = log.start_offset
        return self._told(part, found=found)

    def in_sync(self, node_id: int) -> bool:
        """Return whether a replica is in the ISR last received."""
        return node_id in self.progress.isr

    def _disagreement(self, part: FetchPart) -> FetchedPart | None:
        """Return the answer if the epochs or the logs differ, None if they agree."""
        if part.leader_epoch != self.epoch:
            kind = FencedEpochError if part.leader_epoch < self.epoch else UnknownEpochError
            return refused_part(part, kind(part.name, part.leader_epoch, self.epoch))
        log = self._log
        if part.offset < log.start_offset:
            # before the epochs are compared: all its records lie below the start, and have to go
            return self._told(part)
        next_offset = log.next_offset
        if part.last_epoch == NO_EPOCH:
            epoch, end = NO_EPOCH, next_offset
        else:
            epoch, end = log.epochs.end_of(part.last_epoch, next_offset)
        if epoch != part.last_epoch or end < part.offset:
            return self._told(part, EpochEnd(epoch, end))
        return None

    def _told(
        self, part: FetchPart, diverging: EpochEnd | None = None, found: ReplicaSlice | None = None
    ) -> FetchedPart:
        base, data = (0, NO_DATA) if found is None else (found.segment_base, found.data)
        mark, start = self._log.high_watermark, self._log.start_offset
        return FetchedPart(part.name, self.epoch, part.offset, None, mark, start, diverging, base, data)


def _needed(topic_config: Mapping[str, Any]) -> int:
    needed: int = topic_config.get("min_insync_replicas", 1)
    return needed
