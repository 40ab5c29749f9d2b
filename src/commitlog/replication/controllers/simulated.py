"""SimulatedController: a controller on a LocalNetwork, for tests of how nodes react to leader changes.

Joins and administrators' commands happen at once. Everything else takes time on the network's clock:
proposals and decisions may get lost between a node and CONTROLLER, states arrive late and may be skipped, and
a node that cannot be reached for `session_timeout_ms` counts as gone. If it is still alive, it joins again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from commitlog.errors import CommitLogError, StaleControllerError
from commitlog.ids import new_id
from commitlog.replication import rules
from commitlog.replication.cluster import ClusterState, Reign
from commitlog.replication.commands import ChangeIsr, Command, JoinNode, LeaveNode, RegisterNodes, Submitted
from commitlog.replication.ports import Changed, WhenDecided
from commitlog.replication.transports.local import LocalNetwork

CONTROLLER = "controller"  # its name on the network: network.partition("1", CONTROLLER) cuts a node off


@dataclass(slots=True)
class _Session:
    node: JoinNode
    changed: Changed
    seen_ms: int
    told: ClusterState | None = None
    telling: bool = False


class SimulatedController:
    """Keeps the state in memory, for all nodes of a LocalNetwork.

    `rejoins_clean` says whether a node that counted as gone and joins again by itself counts as clean.
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
        self.watchers: list[Callable[[ClusterState, ClusterState], None]] = []  # called with every change
        network.call_later(self._beat_ms, self._beat)

    @property
    def _beat_ms(self) -> int:
        return max(1, self._session_timeout_ms // 4)

    # --- Controller ---------------------------------------------------------------------------------

    def restart(self, state: ClusterState) -> None:
        """Continue with another state, right or wrong, as a controller restored from a copy does."""
        self._state = rules.begun(state, new_id(), state.epoch + 1, state.version + 1)
        self._superseded = None
        for session in self._sessions.values():
            session.told = None
            if self._hears(session) and self._network.reaches(session.node.address, CONTROLLER):
                self._listens(session)
        if self._superseded is None:
            silent = [node_id for node_id in self._state.nodes if node_id not in self._sessions]
            self._lose(silent)

    def join(self, node: JoinNode, changed: Changed) -> int:
        """Register a node as alive, and return its incarnation."""
        session = _Session(node, changed, self._network.now_ms())
        if not self._listens(session):
            raise self._superseded or self._state.refusal(node.known) or AssertionError
        self._sessions[node.node_id] = session
        self._apply(node)
        return self._state.nodes[node.node_id].incarnation

    def _listens(self, session: _Session) -> bool:
        """Return whether a node accepts this controller; if the node knows a later state, nobody does."""
        known = session.node.known
        refusal = self._state.refusal(known)
        if known is not None and self._state.is_older_than(known):
            self._superseded = StaleControllerError(known.version, self._state.version)
        return refusal is None and self._superseded is None

    def problem(self) -> CommitLogError | None:
        """Return why this controller has stopped deciding; None if it has not."""
        return self._superseded

    def leave(self, node_id: int, timeout_ms: int) -> bool:
        """Hand over what a node leads; drives the network until that is done, or timeout_ms has passed."""
        node = self._state.nodes.get(node_id)
        if node is None:
            return True
        self._apply(LeaveNode(node_id, node.incarnation))
        return self._network.run_until(lambda: rules.handed_over(self._state, node_id), timeout_ms)

    def gone(self, node_id: int) -> None:
        """Remove a node that stops."""
        self._sessions.pop(node_id, None)
        self._lose([node_id])

    def propose_isr(self, change: ChangeIsr, decided: WhenDecided) -> None:
        """Decide on a proposal after one network delay, and report the decision after another."""
        session = self._sessions.get(change.leader)
        if session is None or not self._network.reaches(session.node.address, CONTROLLER):
            return
        known = session.node.known
        cluster_id = None if known is None else known.cluster_id

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

    def submit(self, command: Submitted) -> int:
        """Decide a command at once; return the version after it, or raise the refusal."""
        return self._apply(command).version

    def close(self) -> None:
        """Stop notifying nodes."""
        self._sessions.clear()

    # --- what takes time ----------------------------------------------------------------------------

    def _decide(self, change: ChangeIsr) -> bool:
        try:
            self._apply(change)
        except CommitLogError:
            return False
        return True

    def _lose(self, node_ids: Iterable[int]) -> None:
        alive = rules.alive(self._state)
        self._apply(RegisterNodes({key: one for key, one in alive.items() if key not in node_ids}))

    def _apply(self, command: Command) -> ClusterState:
        if self._superseded is not None:
            raise self._superseded
        before, state = self._state, rules.apply(self._state, command)
        if state is before:
            return state
        self._state = state
        for watch in self.watchers:
            watch(before, state)
        for node_id in self._sessions:
            self._tell_soon(node_id)
        return state

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
            session.told = self._state
            session.node = replace(session.node, known=self._state.known)
            session.changed(self._state)

    def _hears(self, session: _Session) -> bool:
        return self._network.alive(session.node.address) and self._network.reaches(
            CONTROLLER, session.node.address
        )

    def _beat(self) -> None:
        """Notice which nodes are gone or back, and repeat notifications that did not get through."""
        self._network.call_later(self._beat_ms, self._beat)
        now_ms = self._network.now_ms()
        expired = []
        for node_id, session in list(self._sessions.items()):
            if self._network.alive(session.node.address) and self._network.reaches(
                session.node.address, CONTROLLER
            ):
                if not self._listens(session):
                    continue
                session.seen_ms = now_ms
                if node_id not in self._state.nodes:
                    self._apply(replace(session.node, clean=self._rejoins_clean))
            elif now_ms - session.seen_ms >= self._session_timeout_ms and node_id in self._state.nodes:
                expired.append(node_id)
        if self._superseded is not None:
            return
        if expired:
            self._lose(expired)
        for node_id, session in self._sessions.items():
            if session.told is not self._state:
                self._tell_soon(node_id)
