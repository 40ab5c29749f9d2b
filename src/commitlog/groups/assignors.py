"""Assignors: decide which member of a consumer group gets which partition. Members agree on one by name.

Assignors are pure functions: the same members and partitions, in any order, give the same assignment in every
process.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from commitlog.errors import AssignmentError, ConfigError
from commitlog.record import TopicPartition


@dataclass(frozen=True, slots=True)
class Subscription:
    """A member of a group, as an assignor sees it; `owned` is its previous assignment."""

    member_id: str
    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()


# Takes the members and the partition count of each topic; returns the partitions of every member.
Assignor = Callable[[Sequence[Subscription], Mapping[str, int]], Mapping[str, Sequence[TopicPartition]]]


def range_assignor(
    subscriptions: Sequence[Subscription], partitions: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Assign each subscriber of a topic a run of its partitions; the first ones get one more."""
    assigned = _nothing(subscriptions)
    for topic, members in _members_by_topic(subscriptions, partitions).items():
        share, extra = divmod(partitions[topic], len(members))
        start = 0
        for place, member in enumerate(members):
            end = start + share + (place < extra)
            assigned[member] += [TopicPartition(topic, number) for number in range(start, end)]
            start = end
    return assigned


def round_robin_assignor(
    subscriptions: Sequence[Subscription], partitions: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Deal the partitions to the members in turn, skipping those not subscribed to the topic."""
    assigned = _nothing(subscriptions)
    places = {member: place for place, member in enumerate(assigned)}
    turn = 0
    for topic, members in _members_by_topic(subscriptions, partitions).items():
        ring = [places[member] for member in members]
        first = bisect_left(ring, turn)
        for number in range(partitions[topic]):
            member = members[(first + number) % len(members)]
            assigned[member].append(TopicPartition(topic, number))
        turn = places[member] + 1
    return assigned


def sticky_assignor(
    subscriptions: Sequence[Subscription], partitions: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Balance the members, and let them keep as many of their partitions as possible.

    In the result, no partition could move to a member that has at least two fewer. If all members subscribe
    to the same topics, their sizes differ by at most one, and no balanced assignment moves less. With
    different subscriptions it may move a little more than necessary. A balanced assignment stays as it is.

    It takes P log P time for P partitions, and some rounds over the subscriptions: one if they are equal,
    usually a few if they differ. At most members * P partitions are moved.
    """
    pools = _pools(subscriptions, partitions)
    assigned = _nothing(subscriptions)
    sizes = dict.fromkeys(assigned, 0)
    for pool in pools:
        for member, count in pool.counts.items():
            sizes[member] += count
    for pool in pools:
        _hand_out(pool, sizes)
    # This ends: each move reduces the sum of the differences of all pairs of sizes by at least 2, and that
    # sum starts below members * partitions.
    while sum(_even_out(pool, sizes) for pool in pools):
        pass
    for pool in pools:
        _deal(pool, assigned)
    return {member: sorted(share) for member, share in assigned.items()}


def _nothing(subscriptions: Sequence[Subscription]) -> dict[str, list[TopicPartition]]:
    """Return an empty list for every member, ordered by member id."""
    return {member: [] for member in sorted(one.member_id for one in subscriptions)}


def _members_by_topic(
    subscriptions: Sequence[Subscription], partitions: Mapping[str, int]
) -> dict[str, list[str]]:
    """Return the topics to assign and their subscribers, both sorted."""
    members: dict[str, list[str]] = {}
    for one in sorted(subscriptions, key=lambda one: one.member_id):
        for topic in set(one.topics):
            if partitions.get(topic, 0) > 0:
                members.setdefault(topic, []).append(one.member_id)
    return dict(sorted(members.items()))


# --- sticky --------------------------------------------------------------------------------------
# Partitions with the same subscribers differ only in their previous owner. So we first decide how many of
# them each member gets, and then which ones: its own, up to that number.


@dataclass(frozen=True, slots=True)
class _Pool:
    """The partitions of all topics that have the same subscribers.

    `counts` is how many each member gets; once all are handed out, the counts add up to the whole pool.
    """

    owned: dict[str, list[TopicPartition]]
    unowned: list[TopicPartition]
    counts: dict[str, int]


def _pools(subscriptions: Sequence[Subscription], partitions: Mapping[str, int]) -> list[_Pool]:
    """Return the pools, those with the fewest subscribers first, because they leave the least choice."""
    topics: dict[tuple[str, ...], list[str]] = {}
    for topic, members in _members_by_topic(subscriptions, partitions).items():
        topics.setdefault(tuple(members), []).append(topic)
    owners = _owners(subscriptions, partitions)
    pools = []
    for subscribers in sorted(topics, key=lambda members: (len(members), members)):
        owned: dict[str, list[TopicPartition]] = {member: [] for member in subscribers}
        unowned: list[TopicPartition] = []
        for topic in topics[subscribers]:
            for number in range(partitions[topic]):
                one = TopicPartition(topic, number)
                (owned[owners[one]] if one in owners else unowned).append(one)
        pools.append(_Pool(owned, unowned, {member: len(mine) for member, mine in owned.items()}))
    return pools


def _owners(
    subscriptions: Sequence[Subscription], partitions: Mapping[str, int]
) -> dict[TopicPartition, str]:
    """Return the previous owner of each partition that exists and that its owner still subscribes to."""
    claims: dict[TopicPartition, list[str]] = {}
    for member in sorted(subscriptions, key=lambda member: member.member_id):
        topics = set(member.topics)
        for one in member.owned:
            if one.topic in topics and 0 <= one.partition < partitions.get(one.topic, 0):
                claims.setdefault(one, []).append(member.member_id)
    owners = {one: members[0] for one, members in claims.items() if len(members) == 1}
    sizes = Counter(owners.values())
    # Of two claims to a partition neither is better, so the member with fewer partitions gets it.
    for one in sorted(claims.keys() - owners.keys()):
        owners[one] = min(claims[one], key=sizes.__getitem__)
        sizes[owners[one]] += 1
    return owners


def _hand_out(pool: _Pool, sizes: dict[str, int]) -> None:
    """Count each partition without an owner for the member that has the fewest."""
    smallest = [(sizes[member], member) for member in pool.counts]
    heapq.heapify(smallest)
    for _ in pool.unowned:
        member = smallest[0][1]
        pool.counts[member] += 1
        sizes[member] += 1
        heapq.heapreplace(smallest, (sizes[member], member))


def _even_out(pool: _Pool, sizes: dict[str, int]) -> int:
    """Move partitions from the largest member to the smallest until they differ by less than two.

    Returns the number of moves.
    """
    smallest = [(sizes[member], member) for member in pool.counts]
    largest = [(-sizes[member], member) for member, count in pool.counts.items() if count]
    heapq.heapify(smallest)
    heapq.heapify(largest)
    moves = 0
    # A member that took one is within one of the smallest, a member that gave one within one of the largest:
    # none does both. So it does not matter that each heap has stale sizes of members that act in the other.
    while largest and -largest[0][0] - smallest[0][0] >= 2:
        giver, taker = largest[0][1], smallest[0][1]
        pool.counts[giver] -= 1
        pool.counts[taker] += 1
        sizes[giver] -= 1
        sizes[taker] += 1
        heapq.heapreplace(smallest, (sizes[taker], taker))
        if pool.counts[giver]:
            heapq.heapreplace(largest, (-sizes[giver], giver))
        else:
            heapq.heappop(largest)
        moves += 1
    return moves


def _deal(pool: _Pool, assigned: dict[str, list[TopicPartition]]) -> None:
    """Give each member its count of partitions: its own first, then from the rest, in turn."""
    left = list(pool.unowned)
    waiting: deque[tuple[str, int]] = deque()
    for member, owned in pool.owned.items():
        count = pool.counts[member]
        assigned[member] += owned[:count]
        left += owned[count:]
        if count > len(owned):
            waiting.append((member, count - len(owned)))
    for one in left:
        member, missing = waiting.popleft()
        assigned[member].append(one)
        if missing > 1:
            waiting.append((member, missing - 1))


# --- by name -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NamedAssignor:
    """An assignor and its name.

    If it is cooperative, members keep, during a rebalance, the partitions that they are assigned again; a
    partition that moves is revoked in one round and assigned in the next.
    """

    name: str
    assign: Assignor
    cooperative: bool


_KNOWN: dict[str, NamedAssignor] = {}


def register_assignor(name: str, assign: Assignor, *, cooperative: bool = False) -> None:
    """Register an assignor for groups to use; call this in every process that has members."""
    _KNOWN[name] = NamedAssignor(name, assign, cooperative)


register_assignor("range", range_assignor)
register_assignor("roundrobin", round_robin_assignor)
register_assignor("sticky", sticky_assignor)
register_assignor("cooperative-sticky", sticky_assignor, cooperative=True)


def find_assignor(name: str) -> NamedAssignor:
    """Return the assignor registered under a name."""
    if name not in _KNOWN:
        raise ConfigError("assignor", name, f"is not registered here; known: {', '.join(sorted(_KNOWN))}")
    return _KNOWN[name]


def assign(
    name: str, subscriptions: Sequence[Subscription], partitions: Mapping[str, int]
) -> dict[str, tuple[TopicPartition, ...]]:
    """Return the sorted partitions of every member, as assigned by the assignor with this name.

    AssignmentError unless it gives every partition of the subscribed topics to exactly one subscriber.
    """
    found = find_assignor(name).assign(subscriptions, partitions)
    mistake = _mistake(found, subscriptions, partitions)
    if mistake:
        raise AssignmentError(name, mistake)
    return {
        member: tuple(sorted(TopicPartition(*one) for one in found.get(member, ())))
        for member in _nothing(subscriptions)
    }


def _mistake(
    found: Mapping[str, Sequence[TopicPartition]],
    subscriptions: Sequence[Subscription],
    partitions: Mapping[str, int],
) -> str:
    """Return what is wrong with an assignment, or an empty string."""
    if not isinstance(found, Mapping):
        return f"it returned {type(found).__name__}, not a mapping of members to partitions"
    topics = {one.member_id: set(one.topics) for one in subscriptions}
    owners: dict[TopicPartition, str] = {}
    for member, share in found.items():
        if member not in topics:
            return f"{member!r} is not a member of the group"
        for one in share:
            topic, number = one
            if not 0 <= number < partitions.get(topic, 0):
                return f"{topic}-{number}, given to {member!r}, does not exist"
            if topic not in topics[member]:
                return f"{topic}-{number} is given to {member!r}, which does not subscribe to {topic}"
            if one in owners:
                return f"{topic}-{number} is given to {owners[one]!r} and to {member!r}"
            owners[one] = member
    for topic in _members_by_topic(subscriptions, partitions):
        for number in range(partitions[topic]):
            if (topic, number) not in owners:
                return f"{topic}-{number} is given to nobody"
    return ""
