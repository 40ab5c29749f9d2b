"""Notifies nodes of new states: in order, one call at a time, never with a lock held."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from commitlog.replication.cluster import ClusterState
from commitlog.replication.ports import Changed

_logger = logging.getLogger("commitlog.replication")
Call = Callable[[], None]
CallSoon = Callable[[Call], None]


def call_logged(call: Call) -> None:
    """Call, and log what it raises: nobody else would report it."""
    try:
        call()
    except Exception:
        _logger.exception("a node failed to handle a new state of the cluster")


class Caller:
    """Makes calls one after another, through `call_soon` or, by default, in a daemon thread of its own."""

    def __init__(self, name: str, call_soon: CallSoon | None = None) -> None:
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self.soon: CallSoon = call_soon or self._calls.put
        self._thread: threading.Thread | None = None
        if call_soon is None:
            self._thread = threading.Thread(target=self._loop, name=f"commitlog-{name}", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Make the pending calls of the thread, and end it."""
        self._calls.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _loop(self) -> None:
        while (call := self._calls.get()) is not None:
            call_logged(call)


class Listeners:
    """Passes new states to listeners. A state that is superseded before its turn is skipped."""

    def __init__(self, call_soon: CallSoon, state: ClusterState) -> None:
        self._call_soon = call_soon
        self._lock = threading.Lock()
        self._changed: dict[int, Changed] = {}
        self._told: dict[int, ClusterState] = {}
        self._newest = state

    def __contains__(self, node_id: int) -> bool:
        with self._lock:
            return node_id in self._changed

    def add(self, node_id: int, changed: Changed) -> None:
        """Notify a node of the newest state and of those that follow."""
        with self._lock:
            self._changed[node_id] = changed
            self._told.pop(node_id, None)
        self._call_soon(self._tell_all)

    def remove(self, node_id: int) -> None:
        """Stop notifying a node."""
        with self._lock:
            self._changed.pop(node_id, None)
            self._told.pop(node_id, None)

    def tell(self, state: ClusterState) -> None:
        """Notify all listeners of a new state. The callers ensure the order."""
        with self._lock:
            self._newest = state
        self._call_soon(self._tell_all)

    def _tell_all(self) -> None:
        with self._lock:
            state = self._newest
            behind = [node_id for node_id in self._changed if self._told.get(node_id) is not state]
        for node_id in behind:
            self._tell_one(node_id, state)

    def _tell_one(self, node_id: int, state: ClusterState) -> None:
        with self._lock:
            changed = self._changed.get(node_id)
            if changed is None:
                return
            self._told[node_id] = state
        call_logged(lambda: changed(state))
