"""Fetching: how a node fetches from the leaders of the partitions that it follows.

There is one pending fetch per leader node, for all partitions followed there. If these change, a new fetch is
sent at once and replaces the old one; the answer to the old one is ignored.

Locks: `_lock` guards the table. It is never held while a replica or the transport is called.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Lock

from commitlog.errors import CommitLogError
from commitlog.record import TopicPartition
from commitlog.replication.core.repeated_warnings import RepeatedWarnings
from commitlog.replication.core.replica import Replica
from commitlog.replication.messages import Fetch, Fetched, FetchedPart, FetchPart, Message
from commitlog.replication.ports import Transport
from commitlog.replication.settings import ReplicationConfig

_logger = logging.getLogger("commitlog.replication")

Followed = frozenset[tuple[TopicPartition, int]]  # the partitions, and the leader epoch of each


@dataclass(slots=True)
class _Leader:
    address: str
    followed: Followed
    names: tuple[TopicPartition, ...]
    generation: int = 0  # of the newest fetch
    due_ms: int | None = None  # when to fetch again, if a fetch failed or left partitions out


class Fetching:
    """The fetches of one node."""

    def __init__(
        self,
        node_id: int,
        incarnation: Callable[[], int],
        replicas: Mapping[TopicPartition, Replica],
        transport: Transport,
        config: ReplicationConfig,
    ) -> None:
        self._node_id = node_id
        self._incarnation = incarnation
        self._replicas = replicas
        self._transport = transport
        self._config = config
        self._complaints = RepeatedWarnings()
        self._lock = Lock()
        self._leaders: dict[int, _Leader] = {}

    def follow(self, followed: Mapping[int, tuple[str, Followed]]) -> None:
        """Fetch from exactly these nodes from now on."""
        changed = []
        with self._lock:
            for gone in self._leaders.keys() - followed.keys():
                del self._leaders[gone]
            for node_id, (address, partitions) in followed.items():
                known = self._leaders.get(node_id)
                if known is not None and known.address == address and known.followed == partitions:
                    continue
                generation = known.generation if known is not None else 0
                names = tuple(sorted(name for name, _ in partitions))
                self._leaders[node_id] = _Leader(address, partitions, names, generation)
                changed.append(node_id)
        for node_id in changed:
            self._ask(node_id)

    def tick(self, now_ms: int) -> None:
        """Send the fetches that are due."""
        for node_id, leader in list(self._leaders.items()):
            if leader.due_ms is not None and now_ms >= leader.due_ms:
                self._ask(node_id)

    def close(self) -> None:
        """Stop fetching."""
        with self._lock:
            self._leaders.clear()

    def _ask(self, node_id: int) -> None:
        with self._lock:
            leader = self._leaders.get(node_id)
            if leader is None:
                return
            leader.generation += 1
            leader.due_ms = None
            generation, names, address = leader.generation, leader.names, leader.address
        parts, due_ms = self._questions(node_id, names, generation)
        with self._lock:
            if leader.generation != generation:
                return  # another thread is asking already
            leader.due_ms = due_ms
        if parts:
            config = self._config
            max_bytes, max_wait_ms = config.replica_fetch_max_bytes, config.replica_fetch_wait_max_ms
            fetch = Fetch(self._node_id, self._incarnation(), max_bytes, max_wait_ms, tuple(parts))
            answered = partial(self._answered, node_id, generation, {part.name: part for part in parts})
            self._transport.request(address, fetch, answered, config.request_timeout_ms)

    def _questions(
        self, node_id: int, names: tuple[TopicPartition, ...], generation: int
    ) -> tuple[list[FetchPart], int | None]:
        """Return the questions, another partition's first each time, and when to ask for the rest."""
        now_ms = self._transport.now_ms()
        parts: list[FetchPart] = []
        due: list[int] = []
        turn = generation % len(names) if names else 0
        for name in names[turn:] + names[:turn]:
            replica = self._replicas.get(name)
            question = replica.question(node_id, now_ms) if replica is not None else None
            if isinstance(question, FetchPart):
                parts.append(question)
            elif question is not None:
                due.append(question)
        return parts, min(due, default=None)

    def _answered(
        self, node_id: int, generation: int, asked: dict[TopicPartition, FetchPart], answer: Message | None
    ) -> None:
        if isinstance(answer, Fetched):
            for part in answer.parts:
                if part.name in asked:
                    self._take(asked[part.name], part)
        again_ms = self._transport.now_ms() + self._config.replica_fetch_backoff_ms
        with self._lock:
            leader = self._leaders.get(node_id)
            if leader is None or leader.generation != generation:
                return
            if not isinstance(answer, Fetched):
                leader.due_ms = again_ms
                return
        self._ask(node_id)

    def _take(self, asked: FetchPart, part: FetchedPart) -> None:
        replica = self._replicas.get(part.name)
        if replica is None:
            return
        now_ms = self._transport.now_ms()
        try:
            replica.answered(asked, part, now_ms)
        except Exception as error:
            if self._complaints.is_news(part.name, error, now_ms):
                trace = None if isinstance(error, CommitLogError | OSError) else error
                _logger.error("%s cannot follow: %s; retrying", part.name, error, exc_info=trace)
        else:
            if self._complaints.settled(part.name):
                _logger.warning("%s follows again", part.name)
