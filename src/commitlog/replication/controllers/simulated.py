"""SimulatedController: a controller beside a LocalNetwork, for tests of what nodes do when leaders change.

Joining and what an administrator asks for happens at once. Everything else takes its time on the network's
clock: proposals and decisions may get lost between a node and CONTROLLER, states come late and newest only,
and a node that cannot be reached for `session_timeout_ms` is taken for gone. If it lives on, it joins again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commitlog.errors import CommitLogError, StaleControllerError
from commitlog.ids import new_id
from commitlog.record import TopicPartition
from commitlog.replication import rules
from commitlog.replication.cluster import ClusterState, IsrChange, Known, Reign
from commitlog.replication.ports import Changed, Decided
from commitlog.replication.transports.local import LocalNetwork

CONTROLLER = "controller"  # its name on the network: network.partition("1", CONTROLLER) cuts a node off it


@dataclass(slots=True)
class _Session:
    address: str
    changed: Changed
    seen_ms: int
    disk_id: str = ""
    known: Known | None = None
    told: ClusterState | None = None
    telling: bool = False


class SimulatedController:
    """Keeps the state in memory, for all nodes of a LocalNetwork.

    A node that was taken for gone and joins again by itself does so as if it had stopped `rejoins_clean`.
    """

    def __init__(
        self, network: LocalNetwork, session_timeout_ms: int = 6000, *, rejoins_clean: bool = False
    ) -> None:
        self._network = network
        self._rejoins_clean = rejoins_clean
        self._session_timeout_ms = session_timeout_ms
        self._state = ClusterState(cluster_id=new_id(), reigns=(Reign(new_id(), 0),))
        self._superseded: CommitLogError | None = None
        self._sessions: dict[int, _Session] = {}
        self.watchers: list[Callable[[ClusterState, ClusterState], None]] = []  # told of every change at once
        network.call_later(self._beat_ms, self._beat)

    @property
    def _beat_ms(self) -> int:
        return max(1, self._session_timeout_ms // 4)

    # --- Controller ---------------------------------------------------------------------------------

    def restart(self, state: ClusterState) -> None:
        """Go on with another state, right or wrong, as one does that was restored from a copy of it."""
        self._state = rules.begun(state, new_id(), state.epoch + 1, state.version + 1)
        self._superseded = None
        for session in self._sessions.values():
            session.told = None
            if self._hears(session) and self._network.reaches(session.address, CONTROLLER):
                self._listens(session)
        if self._superseded is None:
            silent = [node_id for node_id in self._state.nodes if node_id not in self._sessions]
            self._set(rules.gone(self._state, *silent))

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
        """Make a node known as alive; returns its incarnation."""
        session = _Session(address, changed, self._network.now_ms(), disk_id, known)
        if not self._listens(session):
            raise self._superseded or self._state.refusal(known) or AssertionError
        self._sessions[node_id] = session
        self._join(node_id, session, clean)
        return self._state.nodes[node_id].incarnation

    def _join(self, node_id: int, session: _Session, clean: bool) -> None:
        disk_id, known = session.disk_id, session.known
        self._set(
            rules.joined(self._state, node_id, session.address, clean=clean, disk_id=disk_id, known=known)
        )

    def _listens(self, session: _Session) -> bool:
        """Say whether this controller is one for a node; if the node knows more, it is one for nobody."""
        refusal = self._state.refusal(session.known)
        if session.known is not None and self._state.is_older_than(session.known):
            self._superseded = StaleControllerError(session.known.version, self._state.version)
        return refusal is None and self._superseded is None

    def problem(self) -> CommitLogError | None:
        """Return why nothing changes any more; None while it does."""
        return self._superseded

    def leave(self, node_id: int, timeout_ms: int) -> bool:
        """Hand over what a node leads; drives the network until that is done, or takes too long."""
        self._set(rules.leaving(self._state, node_id))
        return self._network.run_until(lambda: rules.handed_over(self._state, node_id), timeout_ms)

    def gone(self, node_id: int) -> None:
        """Forget a node that stops."""
        self._sessions.pop(node_id, None)
        self._set(rules.gone(self._state, node_id))

    def propose_isr(self, change: IsrChange, decided: Decided) -> None:
        """Decide on a proposal when it has come, and tell so when that has gone back."""
        session = self._sessions.get(change.leader)
        if session is None or not self._network.reaches(session.address, CONTROLLER):
            return
        cluster_id = None if session.known is None else session.known.cluster_id

        def decide() -> None:
            if self._superseded is not None or cluster_id != self._state.cluster_id:
                return
            counts = self._decide(change)
            self._network.call_later(self._network.delay_ms(), lambda: tell(counts))

        def tell(counts: bool) -> None:
            if self._sessions.get(change.leader) is session and self._hears(session):
                decided(counts)

        self._network.call_later(self._network.delay_ms(), decide)

    def state(self) -> ClusterState:
        """Return the newest state."""
        return self._state

    def create_topic(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, Any]
    ) -> None:
        """Create a topic, its replicas spread over the nodes that are alive."""
        self._set(rules.topic_created(self._state, name, partitions, replication_factor, config, new_id()))

    def alter_topic(self, name: str, changes: Mapping[str, Any]) -> None:
        """Change settings of a topic, on all nodes."""
        self._set(rules.topic_altered(self._state, name, changes))

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        self._set(rules.topic_deleted(self._state, name))

    def add_partitions(self, name: str, partitions: int) -> None:
        """Let a topic have so many partitions."""
        self._set(rules.partitions_added(self._state, name, partitions))

    def reassign(self, name: TopicPartition, replicas: Sequence[int]) -> None:
        """Move a partition to these nodes."""
        self._set(rules.reassigned(self._state, name, replicas))

    def elect_preferred(self) -> None:
        """Let the first replica of each partition lead, where it is in sync."""
        self._set(rules.preferred_elected(self._state))

    def close(self) -> None:
        """Tell nobody anything any more."""
        self._sessions.clear()

    # --- what takes its time ------------------------------------------------------------------------

    def _decide(self, change: IsrChange) -> bool:
        try:
            self._set(rules.isr_changed(self._state, change))
        except CommitLogError:
            return False
        return True

    def _set(self, state: ClusterState) -> None:
        if self._superseded is not None:
            raise self._superseded
        before, self._state = self._state, state
        if state is before:
            return
        for watch in self.watchers:
            watch(before, state)
        for node_id in self._sessions:
            self._tell_soon(node_id)

    def _tell_soon(self, node_id: int) -> None:
        session = self._sessions[node_id]
        if not session.telling:
            session.telling = True
            self._network.call_later(self._network.delay_ms(), lambda: self._tell(node_id, session))

    def _tell(self, node_id: int, session: _Session) -> None:
        session.telling = False
        if self._sessions.get(node_id) is not session or session.told is self._state:
            return
        if self._hears(session) and self._listens(session):
            session.told, session.known = self._state, self._state.known
            session.changed(self._state)

    def _hears(self, session: _Session) -> bool:
        return self._network.alive(session.address) and self._network.reaches(CONTROLLER, session.address)

    def _beat(self) -> None:
        """Notice who is gone and who is back, and tell again what did not get through."""
        self._network.call_later(self._beat_ms, self._beat)
        now_ms = self._network.now_ms()
        expired = []
        for node_id, session in list(self._sessions.items()):
            if self._network.alive(session.address) and self._network.reaches(session.address, CONTROLLER):
                if not self._listens(session):
                    continue
                session.seen_ms = now_ms
                if node_id not in self._state.nodes:
                    self._join(node_id, session, self._rejoins_clean)
            elif now_ms - session.seen_ms >= self._session_timeout_ms and node_id in self._state.nodes:
                expired.append(node_id)
        if self._superseded is not None:
            return
        if expired:
            self._set(rules.gone(self._state, *expired))
        for node_id, session in self._sessions.items():
            if session.told is not self._state:
                self._tell_soon(node_id)
