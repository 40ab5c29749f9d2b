from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.groups.assignors import Subscription, assign
from commitlog.record import TopicPartition

ALL = ["range", "roundrobin", "sticky", "cooperative-sticky"]
TOPICS = ["a", "b", "c", "d"]
Assignment = Mapping[str, Sequence[TopicPartition]]
Group = tuple[list[Subscription], dict[str, int]]

counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 6))
member_ids = st.lists(st.text("mn0", min_size=1, max_size=3), min_size=1, max_size=6, unique=True)
# partitions and topics that are not there, too, and claimed by whoever likes
claims = st.lists(st.builds(TopicPartition, st.sampled_from([*TOPICS, "z"]), st.integers(-1, 7))).map(tuple)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    """Members with different subscriptions, and anything for a past."""
    topics = st.lists(st.sampled_from([*TOPICS, "z"]), max_size=5).map(tuple)
    members = [Subscription(member, draw(topics), draw(claims)) for member in draw(member_ids)]
    return members, draw(counts)


@st.composite
def equal_groups(draw: st.DrawFn) -> Group:
    """Members with the same subscriptions, and anything for a past."""
    partitions = draw(counts)
    members = [Subscription(member, tuple(TOPICS), draw(claims)) for member in draw(member_ids)]
    return members, partitions


@st.composite
def small_groups(draw: st.DrawFn) -> Group:
    """Few enough to try all assignments: equal subscriptions, and a past without two owners of one thing."""
    partitions = {"a": draw(st.integers(0, 3)), "b": draw(st.integers(0, 3))}
    names = ["m0", "m1", "m2", "m3"][: draw(st.integers(1, 4))]
    owned: dict[str, list[TopicPartition]] = {name: [] for name in names}
    for one in every_partition(partitions):
        owner = draw(st.sampled_from([*names, None]))
        if owner:
            owned[owner].append(one)
    return [Subscription(name, ("a", "b"), tuple(owned[name])) for name in names], partitions


def every_partition(partitions: Mapping[str, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic in partitions for number in range(partitions[topic])]


def settled(members: Sequence[Subscription], assigned: Assignment) -> list[Subscription]:
    """The members, after they were assigned this."""
    return [replace(member, owned=tuple(assigned[member.member_id])) for member in members]


def kept(members: Sequence[Subscription], assigned: Assignment) -> int:
    """How many partitions stay where they were."""
    return sum(len(set(member.owned) & set(assigned[member.member_id])) for member in members)


def spread(assigned: Assignment) -> int:
    sizes = [len(share) for share in assigned.values()]
    return max(sizes) - min(sizes)


# --- all of them ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@given(group=groups())
def test_every_subscribed_partition_has_one_owner_and_it_subscribes(name: str, group: Group) -> None:
    members, partitions = group
    assigned = assign(name, members, partitions)
    topics = {member.member_id: member.topics for member in members}
    assert assigned.keys() == topics.keys()
    assert all(one.topic in topics[member] for member, share in assigned.items() for one in share)
    subscribed = {topic for each in topics.values() for topic in each}
    wanted = [one for one in every_partition(partitions) if one.topic in subscribed]
    assert sorted(one for share in assigned.values() for one in share) == sorted(wanted)


@pytest.mark.parametrize("name", ALL)
@given(group=groups(), data=st.data())
def test_the_order_of_what_is_given_does_not_matter(name: str, group: Group, data: st.DataObject) -> None:
    members, partitions = group
    shuffled = [
        Subscription(
            member.member_id,
            tuple(data.draw(st.permutations(member.topics))),
            tuple(data.draw(st.permutations(member.owned))),
        )
        for member in data.draw(st.permutations(members))
    ]
    other = dict(data.draw(st.permutations(list(partitions.items()))))
    assert list(assign(name, shuffled, other).items()) == list(assign(name, members, partitions).items())


@given(groups())
def test_range_gives_runs_that_differ_by_one_and_the_longer_ones_first(group: Group) -> None:
    members, partitions = group
    assigned = assign("range", members, partitions)
    for topic, count in partitions.items():
        subscribers = sorted(member.member_id for member in members if topic in member.topics)
        runs = [[one.partition for one in assigned[name] if one.topic == topic] for name in subscribers]
        if runs:
            assert list(itertools.chain(*runs)) == list(range(count))
            lengths = [len(run) for run in runs]
            assert lengths == sorted(lengths, reverse=True)
            assert lengths[0] - lengths[-1] <= 1


@given(groups())
def test_round_robin_is_a_walk_around_the_circle(group: Group) -> None:
    members, partitions = group
    walked: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
    circle = itertools.cycle(sorted(members, key=lambda member: member.member_id))
    for one in sorted(every_partition(partitions)):
        if any(one.topic in member.topics for member in members):
            taker = next(member for member in circle if one.topic in member.topics)
            walked[taker.member_id].append(one)
    assert {name: list(share) for name, share in assign("roundrobin", members, partitions).items()} == walked


# --- sticky --------------------------------------------------------------------------------------


@given(groups())
def test_no_partition_could_move_to_a_member_that_has_two_fewer(group: Group) -> None:
    members, partitions = group
    assigned = assign("sticky", members, partitions)
    for share in assigned.values():
        for topic in {one.topic for one in share}:
            able = [len(assigned[member.member_id]) for member in members if topic in member.topics]
            assert len(share) - min(able) <= 1


@given(equal_groups())
def test_members_with_equal_subscriptions_differ_by_one_at_most(group: Group) -> None:
    assert spread(assign("sticky", *group)) <= 1


@given(groups())
def test_nothing_moves_if_nothing_changes(group: Group) -> None:
    members, partitions = group
    assigned = assign("sticky", members, partitions)
    assert assign("sticky", settled(members, assigned), partitions) == assigned


@given(equal_groups(), st.data())
def test_when_a_member_leaves_the_others_keep_everything(group: Group, data: st.DataObject) -> None:
    members, partitions = group
    before = settled(members, assign("sticky", members, partitions))
    before.remove(data.draw(st.sampled_from(before)))
    after = assign("sticky", before, partitions)
    assert all(set(member.owned) <= set(after[member.member_id]) for member in before)


@given(equal_groups(), st.text("mn0", min_size=4, max_size=4))
def test_when_a_member_joins_only_its_share_moves(group: Group, newcomer: str) -> None:
    members, partitions = group
    before = settled(members, assign("sticky", members, partitions))
    after = assign("sticky", [*before, Subscription(newcomer, tuple(TOPICS))], partitions)
    moved = [one for member in before for one in member.owned if one not in after[member.member_id]]
    assert sorted(moved) == list(after[newcomer])
    assert spread(after) <= 1


@given(equal_groups(), st.sampled_from(TOPICS), st.integers(1, 5))
def test_when_a_topic_grows_nothing_moves(group: Group, topic: str, more: int) -> None:
    members, partitions = group
    before = settled(members, assign("sticky", members, partitions))
    after = assign("sticky", before, partitions | {topic: partitions.get(topic, 0) + more})
    assert kept(before, after) == sum(partitions.values())


@given(small_groups())
def test_no_balanced_assignment_keeps_more(group: Group) -> None:
    members, partitions = group
    names = [member.member_id for member in members]
    everything = every_partition(partitions)
    best = 0
    for owners in itertools.product(names, repeat=len(everything)):
        possible = {
            name: [one for one, owner in zip(everything, owners, strict=True) if owner == name]
            for name in names
        }
        if spread(possible) <= 1:
            best = max(best, kept(members, possible))
    assert kept(members, assign("sticky", members, partitions)) == best
