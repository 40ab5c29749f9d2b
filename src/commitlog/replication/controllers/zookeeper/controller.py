"""ZooKeeperController: the controller for real clusters. One of the nodes is elected to decide.

Every node has an ephemeral znode; the elected node watches who is alive and writes the state, which all read.
docs/controllers.md lists the promises.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import Any

from commitlog.errors import (
    ClosedError,
    CommitLogError,
    MissingDependencyError,
    NoControllerError,
    StaleControllerError,
    WrongClusterError,
)
from commitlog.replication import rules
from commitlog.replication.cluster import ClusterState
from commitlog.replication.commands import ChangeIsr, JoinNode, LeaveNode, Submitted
from commitlog.replication.controllers.notifier import Caller, CallSoon
from commitlog.replication.ports import Changed, Decision, WhenDecided
from commitlog.tasks import Task, TaskHealth

try:
    from kazoo.client import KazooClient
    from kazoo.exceptions import KazooException, SessionExpiredError
    from kazoo.retry import KazooRetry

    from commitlog.replication.controllers.zookeeper.elected import DeposedError, Elected
    from commitlog.replication.controllers.zookeeper.membership import Member
    from commitlog.replication.controllers.zookeeper.requests import Requests
    from commitlog.replication.controllers.zookeeper.znodes import Layout, read_state
except ImportError as missing:
    raise MissingDependencyError("ZooKeeperController", "commitlog[zookeeper]") from missing

_LOOK_SECONDS, _RETRY_SECONDS = 5.0, 0.1  # watches fire sooner; this is for what they might miss
_REFUSED_SECONDS, _PROBE_SECONDS = 1.0, 2.0
_logger = logging.getLogger("commitlog.replication")


class ZooKeeperController:
    """The controller of the nodes that use the same `root` in a ZooKeeper; each node has one.

    A thread of its own handles changes whenever a watch fires; another notifies the node (or `call_soon`, as
    with StaticController). `options` go to kazoo's client: auth_data, default_acl, use_ssl and so on.
    Requests raise NoControllerError if no answer comes in time; they may still have been carried out.
    """

    def __init__(
        self,
        hosts: str,
        *,
        root: str = "/commitlog",
        session_timeout_ms: int = 10_000,
        request_timeout_ms: int = 30_000,
        call_soon: CallSoon | None = None,
        **options: Any,
    ) -> None:
        self._request_timeout_ms = request_timeout_ms
        self._session_seconds = session_timeout_ms / 1000
        self._hosts, self._options = hosts, options
        self._client = self._new_client()
        self._layout = Layout(root.rstrip("/"))
        self._task = Task("zookeeper", self._look)
        self._requests = Requests(self._client, self._layout, self._wake)
        self._changing = threading.Condition()
        self._state = ClusterState()
        self._member: Member | None = None
        self._leaving: Member | None = None
        self._elected: Elected | None = None
        self._session: int | None = None
        self._cut_off_since: float | None = None
        self._passed = False  # the last probe got through
        self._refusal: CommitLogError | None = None  # why the state in ZooKeeper is rejected
        self._decisions: list[tuple[int, WhenDecided, bool]] = []
        self._started = self._closed = False
        self._caller = Caller("zookeeper-calls", call_soon)

    # --- nodes

    def _new_client(self) -> Any:
        retry = KazooRetry(max_tries=-1, delay=0.05, max_delay=1.0)
        seconds, hosts = self._session_seconds, _at_least_two(self._hosts)
        client = KazooClient(hosts, timeout=seconds, connection_retry=retry, **self._options)
        client.add_listener(self._wake)
        return client

    def join(self, node: JoinNode, changed: Changed) -> int:
        """Register the node of this process as alive, and return its incarnation."""
        with self._changing:
            if self._member is not None:
                raise CommitLogError(f"node {self._member.node_id} has joined here already")
            member = self._member = Member(node, changed)
        self._start()
        with self._changing:
            self._wake()
            self._wait_for(lambda: member.alive or self._refusal is not None, self._request_timeout_ms)
            if member.alive:
                return member.incarnation
            if self._refusal is not None:
                self._member = None
                raise self._refusal
        silent = NoControllerError(f"node {node.node_id} was not registered in {self._request_timeout_ms} ms")
        raise self.problem() or silent

    def leave(self, node_id: int, timeout_ms: int) -> bool:
        """Hand over what a node leads; False if no replica could take over all of it in time."""
        node = self.state().nodes.get(node_id)
        if node is None:
            return True
        self.submit(LeaveNode(node_id, node.incarnation))
        with self._changing:
            return self._wait_for(lambda: rules.handed_over(self._state, node_id), timeout_ms)

    def gone(self, node_id: int) -> None:
        """Remove the node of this process, which stops; if it is elected, another node will be."""
        with self._changing:
            if self._member is None or self._member.node_id != node_id:
                return
            self._member, self._leaving = None, self._member
            self._wake()
            self._wait_for(lambda: self._leaving is None, self._request_timeout_ms)

    @property
    def is_elected(self) -> bool:
        """Whether this process is the elected controller, as far as it knows."""
        return self._elected is not None

    def health(self) -> TaskHealth:
        """Return the health of the background thread."""
        return self._task.health()

    # --- requests of callers

    def propose_isr(self, change: ChangeIsr, decided: WhenDecided) -> None:
        """Propose an ISR; the elected controller decides, unless the node is fenced first."""

        def answered(answer: Decision | None) -> None:
            if answer is not None:
                self._decisions.append((answer.version, decided, answer.error is None))

        self._requests.add(change, answered)
        self._wake()

    def state(self) -> ClusterState:
        """Return the newest state known here; without a node, read it from ZooKeeper."""
        with self._changing:
            if self._member is not None:
                return self._state
        self._start()
        with self._changing:
            self._wait_for(lambda: self._client.connected, self._request_timeout_ms)
        if not self._client.connected:
            raise self._out_of_reach()
        try:
            self._layout.make(self._client, None)
            return read_state(self._client, self._layout, None, None)
        except KazooException as error:
            raise NoControllerError(repr(error)) from error

    def problem(self) -> CommitLogError | None:
        """Return why the node receives no new states; None if it does."""
        if self._refusal is not None:
            return self._refusal
        return None if self._client.connected else self._out_of_reach()

    def _out_of_reach(self) -> NoControllerError:
        return NoControllerError(f"cannot reach ZooKeeper at {self._hosts}")

    def submit(self, command: Submitted) -> int:
        """Have a command decided; return the version of the state after it, or raise the refusal."""
        self._start()
        answers: list[Decision | None] = []

        def answered(answer: Decision | None) -> None:
            with self._changing:
                answers.append(answer)
                self._changing.notify_all()

        self._requests.add(command, answered)
        self._wake()
        with self._changing:
            self._wait_for(lambda: bool(answers), self._request_timeout_ms)
        answer = answers[0] if answers else None
        if answer is None:
            silent = NoControllerError("nobody answered; the command may have been carried out")
            raise silent if self._client.connected else self._out_of_reach()
        return answer.version_or_raise()

    # --- the background thread

    def _wake(self, event: Any = None) -> None:
        self._task.wake()

    def _look(self) -> float:
        """Do the pending work; return after how many seconds to look again, if nothing wakes us."""
        try:
            if not self._client.connected:
                self._probe()
                return _RETRY_SECONDS
            self._cut_off_since, self._passed = None, False
            with self._changing:
                self._changing.notify_all()
            session = self._begin_session()
            self._requests.look()
            self._act(session)
            self._take(read_state(self._client, self._layout, self._state, self._wake))
            self._requests.look()
            self._tell_decisions()
        except DeposedError:
            self._elected = None
            return 0.0
        except (WrongClusterError, StaleControllerError) as error:
            self._refuse(error)
            return _REFUSED_SECONDS
        except KazooException:
            return _RETRY_SECONDS  # the connection is lost; only confirmed work counts as done
        return _LOOK_SECONDS

    def _refuse(self, error: CommitLogError) -> None:
        """Reject the state in ZooKeeper, which does not follow the node's; log that once.

        The node behaves as while ZooKeeper cannot be reached.
        """
        if str(error) != str(self._refusal):
            _logger.error("rejecting the state in ZooKeeper at %s: %s", self._hosts, error)
        with self._changing:
            self._refusal, self._elected = error, None
            self._changing.notify_all()

    def _probe(self) -> None:
        """Replace our client if it cannot get through but a new one can.

        A ZooKeeper that has lost its data silently refuses a client that has seen later data. Ours may only
        be slow, so a new client has to get through twice, a session apart.
        """
        now = time.monotonic()
        if self._cut_off_since is None:
            self._cut_off_since = now
        if now - self._cut_off_since < self._session_seconds:
            return
        self._cut_off_since = now
        other = self._new_client()
        other.start_async().wait(_PROBE_SECONDS)
        passed, self._passed = self._passed, bool(other.connected)
        if passed and other.connected and not self._client.connected:
            _logger.warning("ZooKeeper at %s refuses our session; starting another one", self._hosts)
            self._client, other = other, self._client
            self._requests.client = self._client
        other.stop()
        other.close()

    def _begin_session(self) -> int:
        known = self._member.node.known if self._member is not None else None
        session = self._client.client_id
        if session is None:
            raise SessionExpiredError
        if session[0] != self._session:
            self._layout.make(self._client, known)
        refusal = self._layout.refusal(self._client, known, self._wake)
        if refusal is not None:
            raise refusal
        if self._refusal is not None:
            _logger.warning("accepting the state in ZooKeeper at %s again", self._hosts)
            self._refusal = None
        if session[0] != self._session:
            if self._session is not None:
                self._lose()
            self._session = session[0]
        return int(session[0])

    def _lose(self) -> None:
        """Handle the end of the session: the node is fenced until it has joined again."""
        self._elected, self._session = None, None
        self._requests.forget()
        self._decisions.clear()
        member = self._member
        if member is not None:
            member.fence("its session has ended")
            self._tell(member, self._state)

    def _act(self, session: int) -> None:
        """Register the node, stand for election, and govern if elected."""
        leaving, member = self._leaving, self._member
        if leaving is not None:
            leaving.unregister(self._client, self._layout, session)
            self._resign(session)
            with self._changing:
                self._leaving = None
                self._changing.notify_all()
        if member is not None:
            member.register(self._client, self._layout, session, self._wake)
            self._stand(member, session)
            if self._elected is not None:
                self._elected.govern()

    def _resign(self, session: int) -> None:
        """Stop deciding; the znode may remain from an election or deletion whose outcome was lost."""
        self._elected = None
        stat = self._client.exists(self._layout.controller)
        if stat is not None and stat.ephemeralOwner == session:
            self._client.delete(self._layout.controller)

    def _stand(self, member: Member, session: int) -> None:
        if self._elected is not None:
            return
        stat = self._client.exists(self._layout.controller, watch=self._wake)
        if stat is not None and stat.ephemeralOwner == session:
            self._client.delete(self._layout.controller)  # from an election whose outcome was lost
            stat = None
        if stat is None:
            name = f"node {member.node_id}"
            self._elected = Elected.stand(self._client, self._layout, name, self._wake)
            self._wake()

    def _take(self, state: ClusterState) -> None:
        with self._changing:
            self._state = state
        if self._member is not None:
            self._tell(self._member, state)
        with self._changing:
            self._changing.notify_all()

    def _tell(self, member: Member, state: ClusterState) -> None:
        was_alive = member.alive
        shown = member.shown(state)
        if was_alive and not member.alive:
            self._requests.forget()
            self._decisions.clear()
            self._wake()
        if shown is not None:
            self._caller.soon(partial(member.changed, shown))

    def _tell_decisions(self) -> None:
        """Report the decisions whose states the node has received; look again for the others."""
        ready = [one for one in self._decisions if one[0] <= self._state.version]
        self._decisions = [one for one in self._decisions if one[0] > self._state.version]
        for _, decided, counts in ready:
            self._caller.soon(partial(decided, counts))
        if self._decisions:
            self._wake()

    # --- beginning and end

    def _start(self) -> None:
        with self._changing:
            if self._closed:
                raise ClosedError("the controller")
            if self._started:
                return
            self._client.start_async()
            self._started = True
            self._task.start()

    def _wait_for(self, condition: Any, timeout_ms: int) -> bool:
        found = self._changing.wait_for(lambda: self._closed or condition(), timeout_ms / 1000)
        return bool(found and not self._closed)

    def close(self) -> None:
        """End the session, and with it the node if it is still registered; release everything."""
        with self._changing:
            if self._closed:
                return
            self._closed = True
            self._changing.notify_all()
        if self._started:
            self._task.stop()
        self._client.stop()
        self._client.close()
        self._caller.close()


def _at_least_two(hosts: str) -> str:
    """Return the addresses of servers, a single one twice.

    kazoo divides the session's time by their number, and waits that long for the answer of each. A server
    that is just starting may never answer, and with one address that would cost the session.
    """
    addresses, slash, root = hosts.partition("/")
    return hosts if "," in addresses else f"{addresses},{addresses}{slash}{root}"
