"""Serving: answers the fetches of a node's followers, at once or when there is news.

Locks: none is held while a replica is called or a reply is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from commitlog.errors import CommitLogError, NotLeaderError, PartitionFailedError
from commitlog.record import TopicPartition
from commitlog.replication.core.held import HeldFetch, HeldFetches
from commitlog.replication.core.replica import NOTHING, Outcome, Replica
from commitlog.replication.core.throttle import Throttle
from commitlog.replication.messages import Fetch, Fetched, FetchedPart, FetchPart
from commitlog.replication.ports import Reply
from commitlog.replication.refusals import refused_part

_logger = logging.getLogger("commitlog.replication")

NOTHING_NEW = Fetched(())


class Serving:
    """Serves the fetches of all followers of a node."""

    def __init__(
        self,
        replicas: Mapping[TopicPartition, Replica],
        throttle: Throttle,
        now_ms: Callable[[], int],
        settle: Callable[[TopicPartition, Outcome], None],
    ) -> None:
        self._replicas = replicas
        self._throttle = throttle
        self._now_ms = now_ms
        self._settle = settle
        self._held = HeldFetches()

    def serve(self, fetch: Fetch, reply: Reply) -> None:
        """Note how far a follower is, and answer or hold its fetch."""
        now_ms = self._now_ms()
        outcomes: list[tuple[TopicPartition, Outcome]] = []
        for part in fetch.parts:
            outcome = self._heard(fetch, part, now_ms)
            if outcome is not NOTHING:
                outcomes.append((part.name, outcome))
        answers, throttled = self._answers(fetch, fetch.parts, now_ms)
        if answers or fetch.max_wait_ms <= 0:
            reply(Fetched(tuple(answers)))
        else:
            self._hold(fetch, reply, throttled, now_ms)
        for name, outcome in outcomes:
            self._settle(name, outcome)

    def wake(self, name: TopicPartition) -> None:
        """Answer the held fetches for which a partition now has news."""
        for held in self._held.asking_for(name):
            self._try(held, (held.parts[name],))

    def tick(self, now_ms: int) -> None:
        """Answer the held fetches that have expired, and those that the throttle now allows."""
        for held in self._held.release_expired(now_ms):
            held.reply(NOTHING_NEW)
        for held in self._held.throttled():
            self._try(held, tuple(held.parts[name] for name in held.throttled))

    def close(self) -> None:
        """Answer all held fetches."""
        for held in self._held.release_all():
            held.reply(NOTHING_NEW)

    def _heard(self, fetch: Fetch, part: FetchPart, now_ms: int) -> Outcome:
        replica = self._replicas.get(part.name)
        if replica is None:
            return NOTHING
        try:
            return replica.heard(fetch.node_id, fetch.incarnation, part, now_ms)
        except (CommitLogError, OSError):  # answer() fails as well, and reports it to the follower
            _logger.exception("%s cannot process a fetch", part.name)
            return NOTHING

    def _hold(self, fetch: Fetch, reply: Reply, throttled: frozenset[TopicPartition], now_ms: int) -> None:
        parts = {part.name: part for part in fetch.parts}
        held = HeldFetch(fetch, reply, now_ms + fetch.max_wait_ms, parts, throttled)
        before = self._held.hold(held)
        if before is not None:
            before.reply(NOTHING_NEW)
        # news from before it was held has not woken it
        news = [part for part in fetch.parts if part.name not in throttled and self._has_news(fetch, part)]
        if news:
            self._try(held, tuple(news))

    def _has_news(self, fetch: Fetch, part: FetchPart) -> bool:
        replica = self._replicas.get(part.name)
        return replica is None or replica.has_news(fetch.node_id, fetch.incarnation, part)

    def _try(self, held: HeldFetch, parts: tuple[FetchPart, ...]) -> None:
        answers, _ = self._answers(held.fetch, parts, self._now_ms())
        if answers and self._held.release(held):
            held.reply(Fetched(tuple(answers)))

    def _answers(
        self, fetch: Fetch, parts: tuple[FetchPart, ...], now_ms: int
    ) -> tuple[list[FetchedPart], frozenset[TopicPartition]]:
        """Return the answers, within the requested bytes, and the throttled partitions."""
        answers: list[FetchedPart] = []
        throttled: list[TopicPartition] = []
        left = fetch.max_bytes
        for part in parts:
            replica = self._replicas.get(part.name)
            in_sync = replica is not None and replica.in_sync(fetch.node_id)
            allowed = left if in_sync else self._throttle.allowed(left, now_ms)
            answer = _answer(replica, fetch, part, allowed)
            if answer is not None:
                answers.append(answer)
                left = max(0, left - answer.data.size)
                if not in_sync:
                    self._throttle.spent(answer.data.size)
            elif allowed < left:
                throttled.append(part.name)
        return answers, frozenset(throttled)


def _answer(replica: Replica | None, fetch: Fetch, part: FetchPart, max_bytes: int) -> FetchedPart | None:
    """Return the answer for one partition. A failure must not hold up the others."""
    if replica is None:
        return refused_part(part, NotLeaderError(part.name, None))
    try:
        return replica.answer(fetch.node_id, fetch.incarnation, part, max_bytes)
    except (CommitLogError, OSError) as error:
        if not isinstance(error, PartitionFailedError):  # permanent, and would be logged with every fetch
            _logger.exception("%s cannot be read for a follower", part.name)
        told = error if isinstance(error, CommitLogError) else PartitionFailedError(part.name, str(error))
        return refused_part(part, told)
