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
from commitlog.replication.controllers.notifier import Caller, CallSoon, Listeners
from commitlog.replication.controllers.stored import StoredState, read_state_file, write_state_file
from commitlog.replication.ports import Changed, Decision, WhenDecided

_FILE = "cluster.json"
_logger = logging.getLogger("commitlog.replication")


class StaticController:
    """The only controller of the nodes in this process; server.py lets other processes use it.

    `call_soon` calls the listeners later, one call after another, never with the lock held; by default a
    thread of its own does that.
    """

    def __init__(self, state: ClusterState | None = None, *, call_soon: CallSoon | None = None) -> None:
        self._state = state or ClusterState(cluster_id=new_id(), reigns=(Reign(new_id(), 0),))
        self._caller = Caller("controller", call_soon)
        self._listeners = Listeners(self._caller.soon, self._state)
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
        """Open the controller in a directory, created if it is new; epochs continue where they were.

        Nodes of the last process ended with it, so they are gone. With `keep_nodes` they count as alive, in
        processes of their own, until server.py finds otherwise. A controller that has met a node with a
        later state decides nothing until it is opened with `accept_older`.
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
        """Register a node of this process as alive, and return its incarnation."""
        with self._changing:
            incarnation = self.register(node)
            self._listeners.add(node.node_id, changed)
        return incarnation

    def register(self, node: JoinNode) -> int:
        """Register a node of another process as alive, and return its incarnation."""
        with self._changing:
            self.check(node.known)
            self.submit(node)
            return self._state.nodes[node.node_id].incarnation

    def check(self, known: Known | None) -> None:
        """Raise if a node that knows `known` must reject this controller.

        If the node knows a later state, this controller is an older copy of the real one and stops deciding:
        its decisions could contradict what has been acknowledged since.
        """
        with self._changing:
            if self._superseded is not None:
                raise self._superseded
            refusal = self._state.refusal(known)
            if known is not None and self._state.is_older_than(known):
                _logger.error("the controller stops deciding: %s", refusal)
                self._superseded = StaleControllerError(known.version, self._state.version)
                self._store(StoredState(self._state, known.version))
            if refusal is not None:
                raise refusal

    def leave(self, node_id: int, timeout_ms: int) -> bool:
        """Hand over what a node leads; False if no replica could take over all of it in time."""
        with self._changing:
            node = self._state.nodes.get(node_id)
            if node is None:
                return True
            self.submit(LeaveNode(node_id, node.incarnation))
            return self._changing.wait_for(
                lambda: self._closed or rules.handed_over(self._state, node_id), timeout_ms / 1000
            )

    def gone(self, node_id: int) -> None:
        """Remove a node that stops."""
        with self._changing:
            self._listeners.remove(node_id)
            node = self._state.nodes.get(node_id)
            if node is not None:
                self.submit(RemoveNode(node_id, node.incarnation))

    def is_local(self, node_id: int) -> bool:
        """Return whether a node joined in this process."""
        return node_id in self._listeners

    # --- commands and states

    def propose_isr(self, change: ChangeIsr, decided: WhenDecided) -> None:
        """Propose an ISR; `decided` is called once the proposer has received the state that decided."""

        def decide() -> None:
            with contextlib.suppress(StaleControllerError):  # then nothing is ever decided
                counts = self.decide(change).error is None
                self._caller.soon(lambda: decided(counts))

        self._caller.soon(decide)

    def submit(self, command: Command) -> int:
        """Decide a command; return the version of the state after it, or raise the refusal."""
        return self.decide(command).version_or_raise()

    def state(self) -> ClusterState:
        """Return the state."""
        with self._changing:
            return self._state

    def problem(self) -> CommitLogError | None:
        """Return why this controller has stopped deciding; None if it has not."""
        with self._changing:
            return self._superseded or (self._unkept() if self._failed is not None else None)

    def _unkept(self) -> NoControllerError:
        return NoControllerError(f"its state could not be stored ({self._failed})")

    def listen(self, listener_id: int, changed: Changed) -> None:
        """Call `changed` with every new state, for a listener that is not a node; its id is negative."""
        self._listeners.add(listener_id, changed)

    def decide(self, command: Command) -> Decision:
        """Return the outcome of a command; raises if this controller has stopped deciding."""
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
        """Store a state durably, before anybody is notified of it."""
        try:
            self._keep(stored)
        except OSError as error:
            self._failed = error  # either state may be on disk, so nothing can be decided from here on
            raise self._unkept() from error

    def close(self) -> None:
        """Make the pending calls, and release everything."""
        with self._changing:
            if self._closed:
                return
            self._closed = True
            self._changing.notify_all()
        self._caller.close()
        if self._lock is not None:
            self._lock.release()
