"""How nodes are told of new states: in order, one call at a time, never with a lock held."""

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
    """Call; whatever it raises is logged, for nobody else would hear of it."""
    try:
        call()
    except Exception:
        _logger.exception("a node failed when it was told of the cluster")


class CallingThread:
    """Makes calls one after another in a thread of its own, which never keeps a process alive."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name=f"commitlog-{name}", daemon=True)
        self._thread.start()

    def soon(self, call: Call) -> None:
        """Call this after everything that was to be called before."""
        self._calls.put(call)

    def close(self) -> None:
        """Make the calls that are still waiting, and end."""
        self._calls.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _loop(self) -> None:
        while (call := self._calls.get()) is not None:
            call_logged(call)


class Listeners:
    """The listeners that hear of new states. A state that is overtaken before its turn is left out."""

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
        """Tell a node of the newest state and of those that follow."""
        with self._lock:
            self._changed[node_id] = changed
            self._told.pop(node_id, None)
        self._call_soon(self._tell_all)

    def remove(self, node_id: int) -> None:
        """Tell a node nothing more."""
        with self._lock:
            self._changed.pop(node_id, None)
            self._told.pop(node_id, None)

    def tell(self, state: ClusterState) -> None:
        """Tell all of a new state. Those who call it take care of the order."""
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
