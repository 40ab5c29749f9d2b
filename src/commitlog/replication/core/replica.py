"""Replica: one partition's replica on this node. The controller's state makes it lead, follow, or do neither.

It carries the effects of its leader or follower out on the log, and returns what concerns others: a proposal
for the controller, and whether there is news for who waits for this partition.

Locks: `_lock` is held while the log is read and changed, and the log may take its own within it. Nothing else
is called with it held: no transport, no controller, no other replica.
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
from commitlog.replication.refusals import refused
from commitlog.replication.settings import ReplicationConfig


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is left to do once a replica has done its part."""

    news: bool = False  # for held fetches and for who waits for an acknowledgement
    proposal: ChangeIsr | None = None


NOTHING, NEWS = Outcome(), Outcome(news=True)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a replica stands. leader_epoch is None unless it leads."""

    leader: int | None
    leader_epoch: int | None
    high_watermark: int
    isr_size: int
    min_insync_replicas: int


class Replica:
    """Threads may share it."""

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
        """Take in a state; `leader` is who leads by it, as far as this node's life is concerned."""
        with self._lock:
            if state.version < self._version:
                return NOTHING
            latest = self.log.epochs.latest
            if state.leader_epoch < latest:
                # of a controller that has forgotten what was decided: following would cut off records
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
        """Take other settings of the topic; what follows from them is seen with the next fetch or tick."""
        with self._lock:
            self.topic_config = config
            if isinstance(self._role, Leader):
                self._role.configure(config)

    def _lead(self, state: PartitionState, nodes: Mapping[int, NodeState], now_ms: int) -> None:
        self._role = None
        with suppress(PartitionFailedError):  # the leader sees it, and resigns
            self.log.lead(state.leader_epoch)
        self._role = Leader(
            self.name,
            self.topic_id,
            self._node_id,
            self.log,
            state,
            nodes,
            self.topic_config,
            self._config,
            now_ms,
        )

    def retire(self) -> None:
        """Neither lead nor follow from now on."""
        with self._lock:
            self._retire()

    def _retire(self) -> None:
        self._role = None
        self.log.follow()

    def _follow(self, leader: int, leader_epoch: int) -> None:
        self._retire()
        log = self.log
        ends_empty = log.epochs.starts and log.epochs.starts[-1].start_offset >= log.next_offset
        if ends_empty and log.failure is None:  # a failed one takes nothing any more
            # An epoch that it led without a record. Records of an older epoch may come to stand there, and
            # would be taken for its own.
            log.truncate_from(log.next_offset)
        backoff_ms = self._config.replica_fetch_backoff_ms
        self._role = Follower(self.name, self.topic_id, log, leader, leader_epoch, backoff_ms)

    def decided(self, change: ChangeIsr, counts: bool, now_ms: int) -> None:
        """Take in what became of a proposal."""
        with self._lock:
            if isinstance(self._role, Leader) and self._role.epoch == change.leader_epoch:
                self._role.decided(change, counts, now_ms)

    # --- while it leads -----------------------------------------------------------------------------

    def heard(self, node_id: int, incarnation: int, part: FetchPart, now_ms: int) -> Outcome:
        """Take in how far a follower is."""
        with self._lock:
            if not isinstance(self._role, Leader) or part.topic_id != self.topic_id:
                return NOTHING
            return self._carry_out(self._role.fetched(node_id, incarnation, part, now_ms))

    def appended(self, now_ms: int) -> Outcome:
        """Take in that records were appended here."""
        with self._lock:
            if not isinstance(self._role, Leader):
                return NOTHING
            return self._carry_out(self._role.appended(now_ms))

    def tick(self, now_ms: int) -> Outcome:
        """Look at who lags."""
        with self._lock:
            if not isinstance(self._role, Leader):
                return NOTHING
            return self._carry_out(self._role.tick(now_ms))

    def has_news(self, node_id: int, incarnation: int, part: FetchPart) -> bool:
        """Tell whether answer() would have something to say."""
        with self._lock:
            role = self._role
            if not isinstance(role, Leader) or part.topic_id != self.topic_id:
                return True
            return role.has_news(node_id, incarnation, part)

    def answer(self, node_id: int, incarnation: int, part: FetchPart, max_bytes: int) -> FetchedPart | None:
        """Return what there is to tell a follower, None if there is nothing new."""
        with self._lock:
            if not isinstance(self._role, Leader):
                return not_leading(part, self._leader)
            if part.topic_id != self.topic_id:
                refusal = refused(TopicReplacedError(part.name.topic, part.topic_id, self.topic_id))
                return FetchedPart(part.name, part.leader_epoch, part.offset, refusal=refusal)
            return self._role.answer(node_id, incarnation, part, max_bytes)

    def in_sync(self, node_id: int) -> bool:
        """Tell whether a replica is in the ISR; False unless this one leads."""
        role = self._role
        return isinstance(role, Leader) and role.in_sync(node_id)

    def standing(self) -> Standing:
        """Return where this replica stands, all of the same moment."""
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
        """The node that this replica follows, None if it follows none."""
        role = self._role
        return role.leader if isinstance(role, Follower) else None

    def question(self, leader: int, now_ms: int) -> FetchPart | int | None:
        """Return what to ask of a node; when to ask again if not now; None if it is not followed."""
        with self._lock:
            role = self._role
            if not isinstance(role, Follower) or role.leader != leader or self.log.failure is not None:
                return None
            if role.asks_after_ms is not None and now_ms < role.asks_after_ms:
                return role.asks_after_ms
            role.asks_after_ms = None
            return role.question()

    def answered(self, asked: FetchPart, part: FetchedPart, now_ms: int) -> None:
        """Take a leader's answer to a question. If the log raises, nothing is asked for a while."""
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


def not_leading(part: FetchPart, leader: int | None) -> FetchedPart:
    """Return the answer to a follower that asks the wrong node."""
    refusal = refused(NotLeaderError(part.name, leader))
    return FetchedPart(part.name, part.leader_epoch, part.offset, refusal=refusal)
