"""NodeCore: all replicas of a node, driven by its transport and its controller.

It starts no thread: it acts when the transport delivers a message or calls tick(), when the controller
reports a new state, and when the application appends. These calls may come from any thread, concurrently.

Lock order: a replica's lock, then its log's. The locks of tables (here, and in fetches.py, held.py, acks.py,
throttle.py) are taken alone and briefly. The transport, the controller and waiting threads are called with no
lock held, so they may call back at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Event, Lock
from typing import Protocol

from commitlog.errors import (
    CommitLogError,
    NoControllerError,
    NotEnoughReplicasError,
    NotLeaderError,
    ProtocolError,
    ReplicationTimeoutError,
)
from commitlog.record import TopicPartition
from commitlog.replication import rules
from commitlog.replication.cluster import ClusterState, Known, PartitionState, TopicState
from commitlog.replication.commands import ChangeIsr, JoinNode
from commitlog.replication.core.acks import Acknowledged, Acknowledgements, Awaited
from commitlog.replication.core.fetches import Fetching
from commitlog.replication.core.repeated_warnings import RepeatedWarnings
from commitlog.replication.core.replica import Outcome, Replica
from commitlog.replication.core.replica_log import ReplicaLog
from commitlog.replication.core.serving import Serving
from commitlog.replication.core.throttle import Throttle
from commitlog.replication.messages import Fetch, Message
from commitlog.replication.ports import Controller, Handler, Reply, Transport
from commitlog.replication.refusals import refused
from commitlog.replication.settings import ReplicationConfig

_logger = logging.getLogger("commitlog.replication")

_LAG_CHECK_MS = 1000  # the longest time between two checks for lagging replicas
_FIRST_RETRY_MS, _LONGEST_RETRY_MS = 1000, 10_000  # for a topic that cannot be opened


class Store(Protocol):
    """What a node has on its disk."""

    @property
    def disk_id(self) -> str:
        """The id of the disk."""

    def kept(self) -> ClusterState | None:
        """Return the last state that keep() stored."""

    def keep(self, state: ClusterState) -> None:
        """Store a state durably."""

    def open(self, name: TopicPartition, topic: TopicState) -> ReplicaLog:
        """Return the log of a replica, created if new; called again when the topic's settings change."""

    def tidy(self, state: ClusterState) -> None:
        """Remove the replicas that the state says are deleted, or on other nodes."""


@dataclass(frozen=True, slots=True)
class _Retry:
    """When to retry what failed for a topic."""

    due_ms: int
    wait_ms: int


def _refuse(request: Message, reply: Reply) -> None:
    reply(refused(ProtocolError("this node", f"it does not answer {type(request).__name__}")))


class NodeCore:
    """The replicas of one node."""

    def __init__(
        self,
        node_id: int,
        transport: Transport,
        controller: Controller,
        config: ReplicationConfig,
        store: Store,
    ) -> None:
        self.node_id = node_id
        self.incarnation = -1
        self.joined = False  # it is alive in the last state that it accepted
        self.state = ClusterState()  # the last one accepted
        self.refusal: CommitLogError | None = None  # why the newest one was rejected
        self.complaints = RepeatedWarnings()  # about topics that are not replicated here properly
        self._transport, self._controller, self._config = transport, controller, config
        self._store = store
        self._known: Known | None = None
        self._retries: dict[str, _Retry] = {}  # by topic; "" is the state itself
        self._lock = Lock()  # guards the three below
        self._newest: ClusterState | None = None
        self._applying = True  # until joined
        self._closed = False
        self._replicas: dict[TopicPartition, Replica] = {}
        self._logged: dict[TopicPartition, tuple[int | None, int, tuple[int, ...]]] = {}
        self._acks = Acknowledgements()
        self._throttle = Throttle(config.replication_throttle_bytes_per_second, transport.now_ms())
        self._serving = Serving(self._replicas, self._throttle, transport.now_ms, self._settle)
        self._fetching = Fetching(node_id, lambda: self.incarnation, self._replicas, transport, config)
        self._lag_check_ms = transport.now_ms()
        self._others: Handler = _refuse
        self._told: Callable[[], None] = lambda: None

    def start(
        self, *, clean: bool, others: Handler = _refuse, told: Callable[[], None] = lambda: None
    ) -> str:
        """Serve, join the cluster, and return the address. `others` handles every request except Fetch.

        `clean` says whether the node's last stop was clean, so that it has lost nothing. `told` is called
        when something may have changed in the cluster.

        If no controller answers, the node serves what it has, as a fenced one does, until it has joined.
        WrongClusterError or StaleControllerError if the controller is not the one that this node knows.
        """
        self._others, self._told = others, told
        kept = self._store.kept()
        if kept is not None:
            self._apply(rules.without(kept, self.node_id), is_kept=True)
        address = self._transport.serve(self.handle)
        try:
            joining = JoinNode(self.node_id, address, clean, self._store.disk_id, self._known)
            self.incarnation = self._controller.join(joining, self.changed)
        except NoControllerError as error:
            _logger.warning("node %d has not joined yet and keeps trying: %s", self.node_id, error)
        self._transport.call_every(self._config.tick_ms, self.tick)
        self._apply_newest()
        return address

    def close(self) -> None:
        """Stop; waiting appends fail with LeadershipLostError."""
        with self._lock:
            self._closed = True
        self._fetching.close()
        self._serving.close()
        for replica in list(self._replicas.values()):
            replica.retire()
        for name in self._acks.names():
            for awaited, verdict in self._acks.take_decided(name, None):
                awaited.settle(verdict)

    # --- for the application ------------------------------------------------------------------------

    def replicas(self) -> list[Replica]:
        """Return this node's replicas."""
        return list(self._replicas.values())

    def replica(self, name: TopicPartition) -> Replica | None:
        """Return this node's replica of a partition, None if it has none."""
        return self._replicas.get(name)

    def leads(self, name: TopicPartition) -> bool:
        """Return whether this node leads a partition and accepts appends to it."""
        replica = self._replicas.get(name)
        return replica is not None and replica.standing().leader_epoch is not None

    def check_can_append(self, name: TopicPartition, acks: int | str) -> int:
        """Return the leader epoch, for wait_acknowledged(); raises if an append cannot be accepted now."""
        replica = self._replicas.get(name)
        if replica is None:
            raise NotLeaderError(name, self.leader_of(name))
        standing = replica.standing()
        if standing.leader_epoch is None:
            raise NotLeaderError(name, standing.leader)
        if acks == "all" and standing.isr_size < standing.min_insync_replicas:
            raise NotEnoughReplicasError(name, standing.isr_size, standing.min_insync_replicas)
        return standing.leader_epoch

    def leader_of(self, name: TopicPartition) -> int | None:
        """Return who leads a partition, according to the newest accepted state."""
        state = self.state.partition(name)
        return state.leader if state is not None else None

    def appended(self, name: TopicPartition) -> None:
        """Note an append to a partition here: answers waiting followers, and does little else."""
        replica = self._replicas.get(name)
        if replica is None:
            return
        outcome = replica.appended(self._transport.now_ms())
        self._serving.wake(name)
        if outcome.news and name in self._acks:
            self._settle_acks(name)

    def when_acknowledged(
        self, name: TopicPartition, end_offset: int, leader_epoch: int, timeout_ms: int, done: Acknowledged
    ) -> None:
        """Call `done` once: with None when all in-sync replicas have what is below end_offset, or an error.

        `leader_epoch` is what check_can_append() returned before the append. `done` may be called at once, or
        by any thread; it must not block.
        """
        deadline_ms = self._transport.now_ms() + timeout_ms
        awaited = Awaited(name, end_offset, leader_epoch, timeout_ms, deadline_ms, done)
        replica = self._replicas.get(name)
        standing = replica.standing() if replica is not None else None
        if not awaited.settle(awaited.verdict(standing)):
            self._acks.add(awaited)
            self._settle_acks(name)  # for what happened in between

    def wait_acknowledged(
        self, name: TopicPartition, end_offset: int, timeout_ms: int, *, leader_epoch: int
    ) -> None:
        """Wait until all in-sync replicas have all records below end_offset; raises if they may not."""
        told: list[CommitLogError | None] = []
        decided = Event()

        def done(error: CommitLogError | None) -> None:
            told.append(error)
            decided.set()

        self.when_acknowledged(name, end_offset, leader_epoch, timeout_ms, done)
        if not self._transport.wait(decided, timeout_ms):
            raise ReplicationTimeoutError(name, timeout_ms)
        if told[0] is not None:
            raise told[0]

    def throttle(self, bytes_per_second: int) -> None:
        """Limit the bytes per second sent to replicas that are not in sync; -1 means no limit."""
        self._throttle.change(bytes_per_second, self._transport.now_ms())

    # --- what the transport calls -------------------------------------------------------------------

    def handle(self, request: Message, reply: Reply) -> None:
        """Answer a request."""
        if isinstance(request, Fetch):
            self._serving.serve(request, reply)
        else:
            self._others(request, reply)

    def tick(self) -> None:
        """Do what is due."""
        now_ms = self._transport.now_ms()
        self._serving.tick(now_ms)
        self._fetching.tick(now_ms)
        for awaited in self._acks.take_expired(now_ms):
            awaited.settle(ReplicationTimeoutError(awaited.name, awaited.timeout_ms))
        if now_ms >= self._lag_check_ms:
            self._lag_check_ms = now_ms + min(self._config.replica_lag_time_max_ms // 4, _LAG_CHECK_MS)
            for name, replica in list(self._replicas.items()):
                try:
                    self._settle(name, replica.tick(now_ms))
                except Exception:  # its log is being closed, for instance; go on with the others
                    _logger.exception("%s: the periodic check failed", name)
            self._finish()

    # --- what the controller calls ------------------------------------------------------------------

    def changed(self, state: ClusterState) -> None:
        """Apply a new state of the cluster."""
        with self._lock:
            self._newest = state
            if self._applying:
                return  # the thread that applies a state now takes this one next
            self._applying = True
        self._apply_newest()

    def _finish(self) -> None:
        """Apply the current state again if a failed part of it is due: there may be room by now."""
        now_ms = self._transport.now_ms()
        with self._lock:
            if self._applying or not any(one.due_ms <= now_ms for one in list(self._retries.values())):
                return
            self._newest, self._applying = self.state, True
        self._apply_newest()

    def _apply_newest(self) -> None:
        while True:
            with self._lock:
                state, self._newest = self._newest, None
                if state is None or self._closed:
                    self._applying = False
                    return
            try:
                self._apply(state)
            except Exception:
                _logger.exception("node %d failed to apply version %d", self.node_id, state.version)
            self._told()
            self._transport.wake()

    def _apply(self, state: ClusterState, *, is_kept: bool = False) -> None:
        """Apply a state. The kept one removes nothing: if later states were not kept, replicas are newer."""
        refusal = state.refusal(self._known)
        if refusal is not None:
            if str(refusal) != str(self.refusal):
                _logger.error("node %d rejects a state: %s", self.node_id, refusal)
            self.refusal = refusal
            return
        self.refusal, self._known, self.state = None, state.known, state
        node = state.nodes.get(self.node_id)
        if node is not None:
            # its session may have ended and begun again unnoticed by this process
            self.incarnation = max(self.incarnation, node.incarnation)
        alive = node is not None and node.incarnation == self.incarnation
        self.joined = alive
        wanted = {
            TopicPartition(topic_name, number): (topic, one)
            for topic_name, topic in state.topics.items()
            for number, one in enumerate(topic.partitions)
            if self.node_id in one.replicas
        }
        retired = [
            name
            for name, replica in self._replicas.items()
            if name not in wanted or wanted[name][0].topic_id != replica.topic_id
        ]
        for name in retired:  # all before a log is removed: the first takes its topic along
            self._logged.pop(name, None)
            self._replicas.pop(name).retire()
            self._settle(name, Outcome(news=True))
        began_ms = self._transport.now_ms()
        if not is_kept and self._is_due("", began_ms):
            self._keep(state, alive)
        outcomes = [
            (name, self._apply_one(name, topic, one, state, alive)) for name, (topic, one) in wanted.items()
        ]
        self._forget_retries(began_ms)
        self._follow(state, {name: one for name, (_, one) in wanted.items()})
        for name, outcome in outcomes:
            self._settle(name, outcome)

    def _keep(self, state: ClusterState, alive: bool) -> None:
        """Remove what the state deletes, then store it: a stored state has no pending deletions.

        The states shown to a fenced node are incomplete, so they are not stored. Errors are retried later:
        even if the disk accepts nothing, the node has to learn who leads.
        """
        try:
            self._store.tidy(state)
            if alive:
                self._store.keep(state)
        except Exception as error:
            self._try_again("", error)

    def _apply_one(
        self, name: TopicPartition, topic: TopicState, one: PartitionState, state: ClusterState, alive: bool
    ) -> Outcome:
        # A fenced node leads and follows nothing. A state from before this life may name it as the leader of
        # an epoch in which it had more records than it has now.
        leader = one.leader if alive and not self._closed else None
        outcome = Outcome(news=True)
        try:
            replica = self._replicas.get(name)
            if replica is None:
                if not self._is_due(name.topic, self._transport.now_ms()):
                    return Outcome(True, self._resignation(name, topic, one, state, leader))
                replica = Replica(name, self.node_id, topic, self._store.open(name, topic), self._config)
                self._replicas[name] = replica
            is_stored = replica.topic_config == topic.config and name.topic not in self._retries
            replica.configure(topic.config)
            outcome = replica.state_changed(one, state.nodes, leader, self._transport.now_ms())
            self._log_leader(name, leader, one)
            if not is_stored and self._is_due(name.topic, self._transport.now_ms()):
                # last: a replica that cannot store settings still applies them, and learns who leads
                self._store.open(name, topic)
        except Exception as error:
            self._try_again(name.topic, error)
            if name not in self._replicas:
                outcome = Outcome(True, self._resignation(name, topic, one, state, leader))
        return outcome

    def _resignation(
        self,
        name: TopicPartition,
        topic: TopicState,
        one: PartitionState,
        state: ClusterState,
        leader: int | None,
    ) -> ChangeIsr | None:
        """Return a proposal that another node leads what cannot be opened here; None if none can."""
        lives = {
            other: state.nodes[other].incarnation
            for other in one.isr
            if other != self.node_id and other in state.nodes
        }
        if leader != self.node_id or not lives:
            return None
        epoch, version = one.leader_epoch, one.version
        return ChangeIsr(name, topic.topic_id, self.node_id, epoch, version, tuple(lives), lives)

    # --- what cannot be done now ----------------------------------------------------------------------

    def _is_due(self, topic: str, now_ms: int) -> bool:
        retry = self._retries.get(topic)
        return retry is None or retry.due_ms <= now_ms

    def _try_again(self, topic: str, error: Exception) -> None:
        """Note that something failed for a topic, and when to retry it."""
        now_ms, before = self._transport.now_ms(), self._retries.get(topic)
        wait_ms = _FIRST_RETRY_MS if before is None else min(before.wait_ms * 2, _LONGEST_RETRY_MS)
        self._retries[topic] = _Retry(now_ms + wait_ms, wait_ms)
        if self.complaints.is_news(topic, error, now_ms):
            trace = None if isinstance(error, CommitLogError | OSError) else error
            what = f"topic {topic} is not replicated properly" if topic else "a state could not be stored"
            _logger.error("node %d: %s: %s; retrying", self.node_id, what, error, exc_info=trace)

    def _forget_retries(self, began_ms: int) -> None:
        """Forget the retries that succeeded."""
        for topic, retry in list(self._retries.items()):
            if retry.due_ms <= began_ms:
                del self._retries[topic]
                self.complaints.settled(topic)

    def _log_leader(self, name: TopicPartition, leader: int | None, one: PartitionState) -> None:
        news = leader, one.leader_epoch, one.isr
        if self._logged.get(name) == news:
            return
        self._logged[name] = news
        who = "nobody" if leader is None else "this node" if leader == self.node_id else f"node {leader}"
        isr = ", ".join(map(str, sorted(one.isr)))
        text = "node %d: %s leads %s in epoch %d; in sync: %s"
        _logger.info(text, self.node_id, who, name, one.leader_epoch, isr)

    def _follow(self, state: ClusterState, wanted: dict[TopicPartition, PartitionState]) -> None:
        followed: dict[int, set[tuple[TopicPartition, int]]] = {}
        for name, one in wanted.items():
            replica = self._replicas.get(name)
            leader = replica.followed if replica is not None else None
            if leader is not None and leader in state.nodes:
                followed.setdefault(leader, set()).add((name, one.leader_epoch))
        self._fetching.follow(
            {leader: (state.nodes[leader].address, frozenset(names)) for leader, names in followed.items()}
        )

    # --- what is left to do -------------------------------------------------------------------------

    def _settle(self, name: TopicPartition, outcome: Outcome) -> None:
        """Carry out what a replica left to do. No lock is held."""
        if outcome.proposal is not None:
            if self.node_id not in outcome.proposal.isr:
                _logger.warning("node %d resigns as leader of %s: its replica has failed", self.node_id, name)
            self._controller.propose_isr(outcome.proposal, partial(self._decided, outcome.proposal))
        if outcome.news:
            self._serving.wake(name)
            if name in self._acks:
                self._settle_acks(name)

    def _decided(self, change: ChangeIsr, counts: bool) -> None:
        with self._lock:
            if self._applying:
                return  # another thread may still have to apply the state that decided it: treat it as lost
        replica = self._replicas.get(change.name)
        if replica is not None:
            replica.decided(change, counts, self._transport.now_ms())

    def _settle_acks(self, name: TopicPartition) -> None:
        replica = self._replicas.get(name)
        standing = replica.standing() if replica is not None else None
        for awaited, verdict in self._acks.take_decided(name, standing):
            awaited.settle(verdict)
