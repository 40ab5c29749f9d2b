from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from commitlog.errors import AssignmentError, ConfigError
from commitlog.groups import assignors
from commitlog.groups.assignors import (
    Assignor,
    Subscription,
    assign,
    find_assignor,
    range_assignor,
    register_assignor,
    round_robin_assignor,
    sticky_assignor,
)
from commitlog.record import TopicPartition

ALL = ["range", "roundrobin", "sticky", "cooperative-sticky"]


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(assignors, "_KNOWN", dict(assignors._KNOWN))


def parts(names: str) -> tuple[TopicPartition, ...]:
    """The partitions of "a0 a1 b0": topics have one letter here."""
    return tuple(TopicPartition(name[0], int(name[1:])) for name in names.split())


def member(member_id: str, topics: str, owned: str = "") -> Subscription:
    return Subscription(member_id, tuple(topics), parts(owned))


def counted(call: Callable[[], Any]) -> tuple[Any, int]:
    """Return a result, and how many functions were entered and left for it."""
    events = 0

    def seen(*_: object) -> None:
        nonlocal events
        events += 1

    sys.setprofile(seen)
    try:
        return call(), events
    finally:
        sys.setprofile(None)


def named(assigned: Mapping[str, Sequence[TopicPartition]]) -> dict[str, str]:
    return {one: " ".join(f"{topic}{number}" for topic, number in share) for one, share in assigned.items()}


def given(name: str, members: list[Subscription], **partitions: int) -> dict[str, str]:
    return named(assign(name, members, partitions))


# --- range ---------------------------------------------------------------------------------------


def test_range_gives_runs_of_each_topic_and_the_first_members_one_more() -> None:
    members = [member("m0", "ab"), member("m1", "ab")]
    assert given("range", members, a=3, b=3) == {"m0": "a0 a1 b0 b1", "m1": "a2 b2"}


def test_range_gives_one_more_to_as_many_members_as_there_are_partitions_over() -> None:
    members = [member("m0", "a"), member("m1", "a"), member("m2", "a")]
    assert given("range", members, a=8) == {"m0": "a0 a1 a2", "m1": "a3 a4 a5", "m2": "a6 a7"}


def test_range_leaves_the_last_members_without_partitions_if_there_are_too_few() -> None:
    members = [member("m0", "a"), member("m1", "a"), member("m2", "a")]
    assert given("range", members, a=2) == {"m0": "a0", "m1": "a1", "m2": ""}


def test_range_counts_only_the_subscribers_of_a_topic() -> None:
    members = [member("m0", "a"), member("m1", "ab"), member("m2", "b")]
    assert given("range", members, a=3, b=3) == {"m0": "a0 a1", "m1": "a2 b0 b1", "m2": "b2"}


# --- round robin ---------------------------------------------------------------------------------


def test_round_robin_deals_all_partitions_in_a_circle() -> None:
    members = [member("m0", "ab"), member("m1", "ab")]
    assert given("roundrobin", members, a=3, b=3) == {"m0": "a0 a2 b1", "m1": "a1 b0 b2"}


def test_round_robin_passes_over_members_that_do_not_subscribe() -> None:
    members = [member("m0", "a"), member("m1", "ab"), member("m2", "abc")]
    assert given("roundrobin", members, a=1, b=2, c=3) == {"m0": "a0", "m1": "b0", "m2": "b1 c0 c1 c2"}


def test_round_robin_goes_on_in_the_next_topic_after_the_member_it_served_last() -> None:
    members = [member("m0", "abc"), member("m1", "bc"), member("m2", "abc")]
    assert given("roundrobin", members, a=1, b=1, c=2) == {"m0": "a0 c1", "m1": "b0", "m2": "c0"}


# --- sticky --------------------------------------------------------------------------------------


def test_sticky_without_a_past_deals_in_a_circle() -> None:
    members = [member("m0", "ab"), member("m1", "ab")]
    assert given("sticky", members, a=3, b=3) == {"m0": "a0 a2 b1", "m1": "a1 b0 b2"}


def test_when_a_member_leaves_the_others_keep_everything_and_share_the_rest() -> None:
    members = [member("m0", "a", "a0 a3"), member("m2", "a", "a2 a5")]
    assert given("sticky", members, a=6) == {"m0": "a0 a1 a3", "m2": "a2 a4 a5"}


def test_when_a_member_joins_only_what_it_gets_moves() -> None:
    members = [member("m0", "a", "a0 a2 a4"), member("m1", "a", "a1 a3 a5"), member("m2", "a")]
    assert given("sticky", members, a=6) == {"m0": "a0 a2", "m1": "a1 a3", "m2": "a4 a5"}


def test_new_partitions_go_to_the_members_that_have_fewer() -> None:
    members = [member("m0", "a", "a0 a1"), member("m1", "a", "a2")]
    assert given("sticky", members, a=4) == {"m0": "a0 a1", "m1": "a2 a3"}


def test_balance_wins_over_stickiness() -> None:
    members = [member("m0", "a", "a0 a1 a2 a3 a4"), member("m1", "a", "a5"), member("m2", "a")]
    assert given("sticky", members, a=6) == {"m0": "a0 a1", "m1": "a2 a5", "m2": "a3 a4"}


def test_the_member_that_owned_one_more_keeps_it() -> None:
    members = [member("m0", "a", "a0"), member("m1", "a", "a1 a2 a3"), member("m2", "a")]
    assert given("sticky", members, a=4) == {"m0": "a0", "m1": "a1 a2", "m2": "a3"}


def test_members_with_a_topic_of_their_own_get_less_of_the_common_one() -> None:
    members = [member("m0", "a"), member("m1", "ab"), member("m2", "a")]
    assert given("sticky", members, a=4, b=2) == {"m0": "a0 a2", "m1": "b0 b1", "m2": "a1 a3"}


def test_partitions_that_fewer_members_can_take_are_handed_out_first() -> None:
    members = [member("m0", "ab", "b1"), member("m1", "ab"), member("m2", "b")]
    assert given("sticky", members, a=1, b=2) == {"m0": "b1", "m1": "a0", "m2": "b0"}


def test_a_member_with_a_new_topic_of_its_own_gives_up_some_of_the_common_one() -> None:
    members = [member("m0", "a", "a0 a1"), member("m1", "ab", "a2 a3"), member("m2", "a", "a4 a5")]
    assert given("sticky", members, a=6, b=2) == {"m0": "a0 a1 a3", "m1": "a2 b0 b1", "m2": "a4 a5"}


def test_a_partition_stays_with_a_large_member_if_nobody_else_can_take_it() -> None:
    members = [member("m0", "a", "a0"), member("m1", "ab", "a1 b0 b1 b2 b3")]
    assert given("sticky", members, a=2, b=4) == {"m0": "a0 a1", "m1": "b0 b1 b2 b3"}


def test_what_one_topic_makes_uneven_another_evens_out() -> None:
    members = [member("m0", "a", "a0 a1 a2 a3 a4 a5"), member("m1", "ab", "b0 b1 b2"), member("m2", "b")]
    assert given("sticky", members, a=6, b=3) == {"m0": "a0 a1 a2 a3", "m1": "a4 a5 b0", "m2": "b1 b2"}


@pytest.mark.parametrize("stale", ["a4", "a-1", "z0", "b0"])
def test_owned_partitions_that_cannot_be_assigned_any_more_are_forgotten(stale: str) -> None:
    members = [member("m0", "a", f"{stale} a2 a3"), member("m1", "ab", "a0 a1")]
    assert given("sticky", members, a=4, b=1) == {"m0": "a2 a3", "m1": "a0 a1 b0"}


def test_a_partition_claimed_by_two_goes_to_the_one_that_has_less() -> None:
    members = [member("m0", "a", "a0 a1 a2"), member("m1", "a"), member("m2", "a", "a2")]
    assert given("sticky", members, a=5) == {"m0": "a0 a1", "m1": "a3 a4", "m2": "a2"}


def test_stale_claims_do_not_count_when_two_claim_a_partition() -> None:
    members = [member("m0", "a", "a0 a7 a8 a9"), member("m1", "a", "a0 a1")]
    assert given("sticky", members, a=2) == {"m0": "a0", "m1": "a1"}


def test_partitions_claimed_by_all_are_shared() -> None:
    members = [member("m0", "a", "a0 a1 a2"), member("m1", "a", "a0 a1 a2"), member("m2", "a", "a0 a1 a2")]
    assert given("sticky", members, a=3) == {"m0": "a0", "m1": "a1", "m2": "a2"}


def test_a_partition_that_a_member_claims_twice_is_its_own_once() -> None:
    members = [member("m0", "a", "a0 a0 a0"), member("m1", "a", "a1 a2")]
    assert given("sticky", members, a=3) == {"m0": "a0", "m1": "a1 a2"}


def test_a_hundred_members_share_ten_thousand_partitions_in_a_few_steps_each() -> None:
    topics = {f"t{number}": 1_000 for number in range(10)}
    everything = tuple(TopicPartition(topic, number) for topic in topics for number in range(1_000))
    members = [Subscription(f"m{number}", tuple(topics)) for number in range(99)]
    members.append(Subscription("greedy", tuple(topics), everything))
    assigned, calls = counted(lambda: sticky_assignor(members, topics))
    assert calls < 100 * sum(topics.values())  # it makes 25 to 33 for each partition
    assert {len(share) for share in assigned.values()} == {100}


def test_members_with_different_subscriptions_are_balanced_in_a_few_steps_each() -> None:
    # each member shares a topic with the next, so what the first has too much passes through all
    topics = {f"t{number:03}": 400 if number < 25 else 10 for number in range(99)}
    names = list(topics)
    members = []
    for number in range(100):
        mine = names[number : number + 1]
        owned = tuple(TopicPartition(topic, one) for topic in mine for one in range(topics[topic]))
        members.append(Subscription(f"m{number:03}", tuple(names[max(0, number - 1) : number + 1]), owned))
    assigned, calls = counted(lambda: sticky_assignor(members, topics))
    assert calls < 100 * sum(topics.values())  # it makes 25 to 33 for each partition
    sizes = [len(assigned[one.member_id]) for one in members]
    assert sum(sizes) == sum(topics.values())
    assert all(abs(sizes[number] - sizes[number + 1]) <= 1 for number in range(25))


# --- all of them ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_a_group_without_members_is_assigned_nothing(name: str) -> None:
    assert assign(name, [], {"a": 3}) == {}


@pytest.mark.parametrize("name", ALL)
def test_members_without_partitions_have_an_empty_share(name: str) -> None:
    members = [member("m0", "a"), member("m1", "z"), member("m2", ""), member("m3", "e")]
    assert assign(name, members, {"a": 1, "b": 9, "e": 0}) == {
        "m0": parts("a0"), "m1": (), "m2": (), "m3": ()
    }  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_a_topic_named_twice_in_a_subscription_counts_once(name: str) -> None:
    members = [member("m0", "aaa"), member("m1", "a")]
    assert {len(share) for share in assign(name, members, {"a": 4}).values()} == {2}


def test_another_process_with_other_hashes_assigns_the_same() -> None:
    program = f"""
from commitlog.groups.assignors import Subscription, assign
from commitlog.record import TopicPartition
topics = {{f"t{{number}}": number % 5 + 1 for number in range(12)}}
owned = tuple(TopicPartition(topic, number) for topic in topics for number in range(3))
members = [Subscription(f"m{{one}}", tuple(topics)[one % 4:], owned[one:]) for one in range(7)]
for name in {ALL}:
    print(list(assign(name, members, topics).items()))
"""
    answers = set()
    for seed in "123":
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
        )
        answers.add(done.stdout)
    assert len(answers) == 1


# --- by name -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "function", "cooperative"),
    [
        ("range", range_assignor, False),
        ("roundrobin", round_robin_assignor, False),
        ("sticky", sticky_assignor, False),
        ("cooperative-sticky", sticky_assignor, True),
    ],
)
def test_kafkas_assignors_have_their_names(name: str, function: Assignor, cooperative: bool) -> None:
    found = find_assignor(name)
    assert (found.name, found.assign, found.cooperative) == (name, function, cooperative)


def test_an_unknown_assignor_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(
        ConfigError, match=r"assignor = 'dice'.* cooperative-sticky, range, roundrobin, sticky"
    ):
        find_assignor("dice")
    with pytest.raises(ConfigError):
        assign("dice", [], {})


def register(answer: Any) -> None:
    register_assignor("mine", lambda subscriptions, partitions: answer)


def test_an_assignor_of_ones_own_is_used_and_its_answer_put_in_order() -> None:
    register({"m1": parts("b1 a0 b0")})
    members = [member("m1", "ab"), member("m0", "ab")]
    found = assign("mine", members, {"a": 1, "b": 2})
    assert list(found.items()) == [("m0", ()), ("m1", parts("a0 b0 b1"))]
    assert not find_assignor("mine").cooperative


def test_an_assignor_of_ones_own_may_be_cooperative() -> None:
    register_assignor("mine", sticky_assignor, cooperative=True)
    assert find_assignor("mine").cooperative


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"m0": parts("a0 a1"), "m1": ()}, "b-0 is given to nobody"),
        ({"m0": parts("a0 a1"), "m1": parts("a0 b0")}, "a-0 is given to 'm0' and to 'm1'"),
        ({"m0": parts("a0 a1 a1"), "m1": parts("b0")}, "a-1 is given to 'm0' and to 'm0'"),
        ({"m0": parts("a0 b0"), "m1": parts("a1")}, "b-0 is given to 'm0', which does not subscribe to b"),
        ({"m0": parts("a0 a1 a2"), "m1": parts("b0")}, "a-2, given to 'm0', does not exist"),
        ({"m0": parts("a0 a1 a-1"), "m1": parts("b0")}, "a--1, given to 'm0', does not exist"),
        ({"m0": parts("a0 a1"), "m1": parts("b0 z0")}, "z-0, given to 'm1', does not exist"),
        ({"m0": parts("a0 a1"), "m1": parts("b0 c0")}, "c-0 is given to 'm1', which does not subscribe to c"),
        ({"m0": parts("a0 a1"), "m1": parts("b0"), "m2": ()}, "'m2' is not a member of the group"),
        (None, "it returned NoneType, not a mapping of members to partitions"),
    ],
)
def test_a_wrong_assignment_is_refused_and_the_mistake_named(answer: Any, reason: str) -> None:
    register(answer)
    members = [member("m0", "a"), member("m1", "ab")]
    with pytest.raises(AssignmentError) as caught:
        assign("mine", members, {"a": 2, "b": 1, "c": 1})
    assert caught.value.args == ("mine", reason)
