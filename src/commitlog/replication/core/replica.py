"""Replica: one partition's replica on this node. The controller's state makes it lead, follow, or do neither.

It applies the effects of its leader or follower to the log, and returns what concerns others: a proposal for
the controller, and whether there is news for those who wait for this partition.

Locks: `_lock` is held while the log is read and changed; the log may take its own lock within it. Nothing
else is called with it held: no transport, no controller, no other replica.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any

from commitlog.errors import FencedEpochError, NotLeaderError, PartitionFailedError, TopicReplacedError
from commitlog.record import TopicPartition
from commitlog.replication.cluster import NodeState, PartitionState, TopicState
from commitlog.replication.commands import ChangeIsr
from commitlog.replication.core.effects import (
    Advance,
    AppendBatches,
    FollowerEffect,
    LeaderEffect,
    Propose,
    RestartAt,
    TrimBefore,
    Truncate,
)
from commitlog.replication.core.follower import Follower
from commitlog.replication.core.leader import Leader
from commitlog.replication.core.replica_log import ReplicaLog
from commitlog.replication.messages import FetchedPart, FetchPart
from commitlog.replication.refusals import refused_part
from commitlog.replication.settings import ReplicationConfig


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is left to do for others once a replica has acted."""

    news: bool = False  # for held fetches and waiting appends
    proposal: ChangeIsr | None = None


NOTHING, NEWS = Outcome(), Outcome(news=True)


@dataclass(frozen=True, slots=True)
class Standing:
    """The standing of a replica at one moment. leader_epoch is None unless it leads."""

    leader: int | None
    leader_epoch: int | None
    high_watermark: int
    isr_size: int
    min_insync_replicas: int


class Replica:
    """The replica of one partition. Threads may share it."""

    def __init__(
        self,
        name: TopicPartition,
        node_id: int,
        topic: TopicState,
        log: ReplicaLog,
        config: ReplicationConfig,
    ) -> None:
        self.name = name
        self.topic_id = topic.topic_id
        self.log = log
        self._node_id = node_id
        self.topic_config = topic.config
        self._config = config
        self._lock = Lock()
        self._version = -1
        self._role: Leader | Follower | None = None
        self._leader: int | None = None
        self.problem: str | None = None  # why it cannot follow

    # --- the controller -----------------------------------------------------------------------------

    def state_changed(
        self, state: PartitionState, nodes: Mapping[int, NodeState], leader: int | None, now_ms: int
    ) -> Outcome:
        """Apply a state; `leader` is its leader, None if this node's life is not the one in the state."""
        with self._lock:
            if state.version < self._version:
                return NOTHING
            latest = self.log.epochs.latest
            if state.leader_epoch < latest:
                # from a controller that has forgotten decisions: following it would truncate records
                self._retire()
                raise FencedEpochError(self.name, state.leader_epoch, latest)
            self._version, self._leader = state.version, leader
            role = self._role
            if leader == self._node_id:
                if isinstance(role, Leader) and role.epoch == state.leader_epoch:
                    self._carry_out(effects := role.state_changed(state, nodes, now_ms))
                    return Outcome(True, _proposal(effects))
                self._lead(state, nodes, now_ms)
            elif leader is None:
                self._retire()
            elif not (isinstance(role, Follower) and role.epoch == state.leader_epoch):
                self._follow(leader, state.leader_epoch)
            return NEWS

    def configure(self, config: Mapping[str, Any]) -> None:
        """Apply changed settings of the topic, effective with the next fetch or tick."""
        with self._lock:
            self.topic_config = config
            if isinstance(self._role, Leader):
                self._role.configure(config)

    def _lead(self, state: PartitionState, nodes: Mapping[int, NodeState], now_ms: int) -> None:
        self._role = None
        with suppress(PartitionFailedError):  # the leader notices, and resigns
            self.log.lead(state.leader_epoch)
        name, log, topic_config, config = self.name, self.log, self.topic_config, self._config
        self._role = Leader(
            name, self.topic_id, self._node_id, log, state, nodes, topic_config, config, now_ms
        )

    def retire(self) -> None:
        """Stop leading and following."""
        with self._lock:
            self._retire()

    def _retire(self) -> None:
        self._role = None
        self.log.follow()

    def _follow(self, leader: int, leader_epoch: int) -> None:
        self._retire()
        log = self.log
        ends_empty = log.epochs.starts and log.epochs.starts[-1].start_offset >= log.next_offset
        if ends_empty and log.failure is None:  # a failed log accepts no change
            # This replica led an epoch without appending. Records of an older epoch may be stored there next,
            # and would be attributed to that epoch.
            log.truncate_from(log.next_offset)
        backoff_ms = self._config.replica_fetch_backoff_ms
        self._role = Follower(self.name, self.topic_id, log, leader, leader_epoch, backoff_ms)

    def decided(self, change: ChangeIsr, counts: bool, now_ms: int) -> None:
        """Note the outcome of a proposal."""
        with self._lock:
            if isinstance(self._role, Leader) and self._role.epoch == change.leader_epoch:
                self._role.decided(change, counts, now_ms)

    # --- while it leads -----------------------------------------------------------------------------

    def heard(self, node_id: int, incarnation: int, part: FetchPart, now_ms: int) -> Outcome:
        """Note how far a follower is."""
        with self._lock:
            if not isinstance(self._role, Leader) or part.topic_id != self.topic_id:
                return NOTHING
            return self._carry_out(self._role.fetched(node_id, incarnation, part, now_ms))

    def appended(self, now_ms: int) -> Outcome:
        """Note that records were appended here."""
        with self._lock:
            if not isinstance(self._role, Leader):
                return NOTHING
            return self._carry_out(self._role.appended(now_ms))

    def tick(self, now_ms: int) -> Outcome:
        """Check for lagging replicas."""
        with self._lock:
            if not isinstance(self._role, Leader):
                return NOTHING
            return self._carry_out(self._role.tick(now_ms))

    def has_news(self, node_id: int, incarnation: int, part: FetchPart) -> bool:
        """Return whether answer() would return an answer."""
        with self._lock:
            role = self._role
            if not isinstance(role, Leader) or part.topic_id != self.topic_id:
                return True
            return role.has_news(node_id, incarnation, part)

    def answer(self, node_id: int, incarnation: int, part: FetchPart, max_bytes: int) -> FetchedPart | None:
        """Return the answer to a follower, None if there is nothing new."""
        with self._lock:
            if not isinstance(self._role, Leader):
                return refused_part(part, NotLeaderError(part.name, self._leader))
            if part.topic_id != self.topic_id:
                error = TopicReplacedError(part.name.topic, part.topic_id, self.topic_id)
                return refused_part(part, error)
            return self._role.answer(node_id, incarnation, part, max_bytes)

    def in_sync(self, node_id: int) -> bool:
        """Return whether a replica is in the ISR; False unless this one leads."""
        role = self._role
        return isinstance(role, Leader) and role.in_sync(node_id)

    def standing(self) -> Standing:
        """Return a consistent snapshot of this replica's standing."""
        with self._lock:
            role, high_watermark = self._role, self.log.high_watermark
            if not isinstance(role, Leader):
                return Standing(self._leader, None, high_watermark, 0, 1)
            progress = role.progress
            isr_size, needed = len(progress.isr), progress.min_insync_replicas
            return Standing(self._leader, role.epoch, high_watermark, isr_size, needed)

    # --- while it follows ---------------------------------------------------------------------------

    @property
    def followed(self) -> int | None:
        """The node that this replica follows, if any."""
        role = self._role
        return role.leader if isinstance(role, Follower) else None

    def question(self, leader: int, now_ms: int) -> FetchPart | int | None:
        """Return what to ask a node, or when to ask if not now; None if this replica does not follow it."""
        with self._lock:
            role = self._role
            if not isinstance(role, Follower) or role.leader != leader or self.log.failure is not None:
                return None
            if role.asks_after_ms is not None and now_ms < role.asks_after_ms:
                return role.asks_after_ms
            role.asks_after_ms = None
            return role.question()

    def answered(self, asked: FetchPart, part: FetchedPart, now_ms: int) -> None:
        """Apply a leader's answer to a question. If the log raises, the next question waits a while."""
        with self._lock:
            role = self._role
            if not isinstance(role, Follower):
                return
            try:
                self._carry_out(role.step(asked, part, now_ms))
                role.failures, self.problem = 0, None
            except BaseException as error:
                role.failures += 1
                role.back_off(now_ms)
                self.problem = f"{type(error).__name__}: {error}"
                raise

    # --- effects ------------------------------------------------------------------------------------

    def _carry_out(self, effects: tuple[LeaderEffect | FollowerEffect, ...]) -> Outcome:
        if not effects:
            return NOTHING
        log, moved = self.log, False
        for effect in effects:
            match effect:
                case Advance(offset):
                    reached = min(offset, log.next_offset)
                    if reached > log.high_watermark:
                        log.set_high_watermark(reached)
                        moved = True
                case AppendBatches(segment_base, data):
                    log.append_replicated(data.read(), segment_base)
                case Truncate(offset):
                    log.truncate_from(offset)
                case RestartAt(offset):
                    log.restart_at(offset)
                case TrimBefore(offset):
                    log.trim_before(min(offset, log.high_watermark))
        return Outcome(moved, _proposal(effects))


def _proposal(effects: tuple[LeaderEffect | FollowerEffect, ...]) -> ChangeIsr | None:
    for effect in effects:
        if isinstance(effect, Propose):
            return effect.change
    return None
