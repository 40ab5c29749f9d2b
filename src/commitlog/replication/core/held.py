"""Held fetches: followers' fetches that wait for news."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

from commitlog.record import TopicPartition
from commitlog.replication.messages import Fetch, FetchPart
from commitlog.replication.ports import Reply


@dataclass(frozen=True, slots=True, eq=False)
class HeldFetch:
    """A waiting fetch. `throttled` are the partitions whose data the throttle holds back."""

    fetch: Fetch
    reply: Reply
    deadline_ms: int
    parts: dict[TopicPartition, FetchPart]
    throttled: frozenset[TopicPartition]


class HeldFetches:
    """At most one fetch per follower. Its lock is taken last, and nothing is called with it held."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_node: dict[int, HeldFetch] = {}

    def hold(self, held: HeldFetch) -> HeldFetch | None:
        """Hold a fetch; return the one of the same node that it replaces."""
        with self._lock:
            before = self._by_node.get(held.fetch.node_id)
            self._by_node[held.fetch.node_id] = held
            return before

    def release(self, held: HeldFetch) -> bool:
        """Release a fetch; False if it is no longer held. The caller that gets True answers it."""
        with self._lock:
            if self._by_node.get(held.fetch.node_id) is not held:
                return False
            del self._by_node[held.fetch.node_id]
            return True

    def asking_for(self, name: TopicPartition) -> list[HeldFetch]:
        """Return the fetches that ask for a partition."""
        if not self._by_node:
            return []
        with self._lock:
            return [held for held in self._by_node.values() if name in held.parts]

    def throttled(self) -> list[HeldFetch]:
        """Return the fetches that wait for the throttle."""
        with self._lock:
            return [held for held in self._by_node.values() if held.throttled]

    def release_expired(self, now_ms: int) -> list[HeldFetch]:
        """Release and return the fetches whose deadline has passed."""
        if not self._by_node:
            return []
        with self._lock:
            expired = [held for held in self._by_node.values() if now_ms >= held.deadline_ms]
            for held in expired:
                del self._by_node[held.fetch.node_id]
            return expired

    def release_all(self) -> list[HeldFetch]:
        """Release and return all fetches."""
        with self._lock:
            everything = list(self._by_node.values())
            self._by_node.clear()
            return everything
