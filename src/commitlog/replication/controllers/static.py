"""StaticController: keeps the cluster's state inside one process, in memory or in a directory."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from typing import Self

from commitlog import files
from commitlog.errors import ClosedError, CommitLogError, NoControllerError, StaleControllerError
from commitlog.ids import new_id
from commitlog.locks import LogLock
from commitlog.replication import rules
from commitlog.replication.cluster import ClusterState, Known, Reign
from commitlog.replication.commands import ChangeIsr, Command, JoinNode, LeaveNode, RegisterNodes, RemoveNode
from commitlog.replication.controllers.notifier import CallingThread, CallSoon, Listeners
from commitlog.replication.controllers.stored import StoredState, read_state_file, write_state_file
from commitlog.replication.ports import Changed, Decision, WhenDecided

_FILE = "cluster.json"
_logger = logging.getLogger("commitlog.replication")


class StaticController:
    """The controller of nodes in this process; server.py lets others in. It is the only one: see open().

    `call_soon` makes calls later, one after another, never at once; by default a thread of its own does.
    A thread of its own calls the listeners, never while the lock is held.
    """

    def __init__(self, state: ClusterState | None = None, *, call_soon: CallSoon | None = None) -> None:
        self._state = state or ClusterState(cluster_id=new_id(), reigns=(Reign(new_id(), 0),))
        self._thread: CallingThread | None = None
        if call_soon is None:
            self._thread = CallingThread("controller")
            call_soon = self._thread.soon
        self._call_soon = call_soon
        self._listeners = Listeners(call_soon, self._state)
        self._changing = threading.Condition()
        self._keep: Callable[[StoredState], None] = lambda stored: None
        self._superseded: StaleControllerError | None = None
        self._lock: LogLock | None = None
        self._closed = False
        self._failed: BaseException | None = None

    @classmethod
    def open(
        cls,
        directory: str,
        *,
        keep_nodes: bool = False,
        accept_older: bool = False,
        call_soon: CallSoon | None = None,
    ) -> Self:
        """Open the controller of a directory, made if it is new: epochs go on where they were.

        Nodes in this process ended with it, so they are gone; with `keep_nodes` those that were alive are
        taken to be, in processes of their own: server.py finds out. A controller that has met a node which
        knew a later state changes nothing any more, until it is opened with `accept_older`.
        """
        directory = os.path.abspath(directory)
        files.make_directories(directory)
        lock = LogLock.take(directory)
        path = os.path.join(directory, _FILE)
        try:
            found = read_state_file(path) or StoredState(ClusterState(cluster_id=new_id(), reigns=()))
            state = rules.begun(found.state, new_id(), found.state.epoch + 1, found.state.version + 1)
            state = state if keep_nodes else rules.apply(state, RegisterNodes({}))
            superseded = None if accept_older else found.superseded
            if superseded != found.superseded:
                state = rules.epochs_raised(state)
            write_state_file(path, StoredState(state, superseded))
            controller = cls(state, call_soon=call_soon)
        except BaseException:
            lock.release()
            raise
        controller._keep = lambda stored: write_state_file(path, stored)
        controller._lock = lock
        if superseded is not None:
            controller._superseded = StaleControllerError(superseded, state.version)
        return controller

    # --- nodes

    def join(self, node: JoinNode, changed: Changed) -> int:
        """Make a node of this process known as alive; returns its incarnation."""
        with self._changing:
            incarnation = self.register(node)
            self._listeners.add(node.node_id, changed)
        return incarnation

    def register(self, node: JoinNode) -> int:
        """Make a node of another process known as alive; returns its incarnation."""
        with self._changing:
            self.check(node.known)
            self.submit(node)
            return self._state.nodes[node.node_id].incarnation

    def check(self, known: Known | None) -> None:
        """Raise if a node that knows this state must not listen to this controller.

        If the node knows more than this controller, that is an older copy of the real one, and changes
        nothing any more: what it decided would go against what was acknowledged since.
        """
        with self._changing:
            if self._superseded is not None:
                raise self._superseded
            refusal = self._state.refusal(known)
            if known is not None and self._state.is_older_than(known):
                _logger.error("the controller decides nothing any more: %s", refusal)
                self._superseded = StaleControllerError(known.version, self._state.version)
                self._store(StoredState(self._state, known.version))
            if refusal is not None:
                raise refusal

    def leave(self, node_id: int, timeout_ms: int) -> bool:
        """Hand over what a node leads; False if no replica came in sync in time to take it all."""
        with self._changing:
            node = self._state.nodes.get(node_id)
            if node is None:
                return True
            self.submit(LeaveNode(node_id, node.incarnation))
            return self._changing.wait_for(
                lambda: self._closed or rules.handed_over(self._state, node_id), timeout_ms / 1000
            )

    def gone(self, node_id: int) -> None:
        """Forget a node that stops."""
        with self._changing:
            self._listeners.remove(node_id)
            node = self._state.nodes.get(node_id)
            if node is not None:
                self.submit(RemoveNode(node_id, node.incarnation))

    def is_local(self, node_id: int) -> bool:
        """Say whether a node joined in this process."""
        return node_id in self._listeners

    # --- what is to be

    def propose_isr(self, change: ChangeIsr, decided: WhenDecided) -> None:
        """Propose who is in sync; `decided` is called once the proposer has heard of the state."""

        def decide() -> None:
            with contextlib.suppress(StaleControllerError):  # then nothing is ever decided
                counts = self.decide(change).error is None
                self._call_soon(lambda: decided(counts))

        self._call_soon(decide)

    def submit(self, command: Command) -> int:
        """Let a command be decided; returns the version of the state after it, or raises the refusal."""
        return self.decide(command).version_or_raise()

    # --- the state

    def state(self) -> ClusterState:
        """Return the state."""
        with self._changing:
            return self._state

    def problem(self) -> CommitLogError | None:
        """Return why nothing changes any more; None while it does."""
        with self._changing:
            return self._superseded or (self._unkept() if self._failed is not None else None)

    def _unkept(self) -> NoControllerError:
        return NoControllerError(f"its state could not be kept ({self._failed})")

    def listen(self, listener_id: int, changed: Changed) -> None:
        """Tell somebody of every state who is no node; ids below 0 are free for that."""
        self._listeners.add(listener_id, changed)

    def decide(self, command: Command) -> Decision:
        """Return what becomes of a command; raises if this controller decides nothing any more."""
        with self._changing:
            if self._closed:
                raise ClosedError("the controller")
            if self._failed is not None:
                raise self._unkept()
            if self._superseded is not None:
                raise self._superseded
            try:
                after = rules.apply(self._state, command)
            except CommitLogError as error:
                return Decision(self._state.version, error)
            if after is not self._state:
                self._store(StoredState(after))
                self._state = after
                self._listeners.tell(after)
                self._changing.notify_all()
            return Decision(after.version, None)

    def _store(self, stored: StoredState) -> None:
        """Make a state durable before anybody hears of it."""
        try:
            self._keep(stored)
        except OSError as error:
            self._failed = error  # which of the two states is on disk is not known: so it ends here
            raise self._unkept() from error

    def close(self) -> None:
        """Tell what is still to be told, and let everything go."""
        with self._changing:
            if self._closed:
                return
            self._closed = True
            self._changing.notify_all()
        if self._thread is not None:
            self._thread.close()
        if self._lock is not None:
            self._lock.release()
