from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from commitlog.errors import (
    AssignmentError,
    CommitFailedError,
    ConfigError,
    FencedMemberError,
    InconsistentGroupError,
    RebalanceInProgressError,
)
from commitlog.groups import assignors
from commitlog.groups.assignors import Subscription, register_assignor
from commitlog.groups.state import GroupState, Member
from commitlog.record import TopicPartition

COOPERATIVE, EAGER = "cooperative-sticky", "range"


def parts(names: str) -> tuple[TopicPartition, ...]:
    """The partitions of "a0 a1 b0": topics have one letter here."""
    return tuple(TopicPartition(name[0], int(name[1:])) for name in names.split())


def member(member_id: str, topics: str = "a", *strategies: str, instance: str | None = None) -> Member:
    return Member(
        member_id,
        f"client of {member_id}",
        instance,
        "host:1",
        tuple(topics),
        strategies or (COOPERATIVE,),
        100,
        slot=sum(member_id.encode()),
        token=1,
    )


def group(strategy: str, members: str, **partitions: int) -> GroupState:
    """A group of such members that has settled; each reads all the topics."""
    state = GroupState("boot")
    for name in members.split():
        state.join(member(name, "".join(partitions), strategy), partitions)
    settle(state)
    return state


def settle(state: GroupState, rounds: int = 5) -> None:
    """Let all members go to the target, in turn."""
    for _ in range(rounds):
        for name in state.members:
            state.release(name, state.to_release(name))
            state.take(name)
    assert state.settled


def owned(state: GroupState) -> dict[str, str]:
    return {name: shown(state.owned(name)) for name in state.members}


def shown(partitions: Sequence[TopicPartition]) -> str:
    return " ".join(f"{topic}{number}" for topic, number in sorted(partitions))


# --- coming and going


def test_a_new_group_is_empty_and_settled() -> None:
    state = GroupState("boot")
    assert (state.generation, state.strategy, state.settled, state.topics) == (0, None, True, set())


def test_the_first_member_gets_everything() -> None:
    state = GroupState("boot")
    state.join(member("m", "ab"), {"a": 2, "b": 1})
    assert state.generation == 1
    assert not state.settled
    assert state.owned("m") == ()  # it has to take it
    state.take("m")
    assert owned(state) == {"m": "a0 a1 b0"}
    assert state.settled
    assert state.members["m"].generation == 1


def test_a_member_of_no_existing_topic_settles_with_nothing() -> None:
    state = GroupState("boot")
    state.join(member("m", "x"), {})
    state.take("m")
    assert owned(state) == {"m": ""}
    assert state.settled


def test_more_members_than_partitions_leave_some_with_nothing() -> None:
    state = group(COOPERATIVE, "m n o", a=2)
    assert sorted(owned(state).values()) == ["", "a0", "a1"]


def test_who_leaves_frees_its_partitions_and_a_generation_begins() -> None:
    state = group(COOPERATIVE, "m n", a=4)
    left = state.owned("n")
    state.remove(["n"], {"a": 4})
    assert state.generation == 3
    assert not set(left) & set(state.owners)
    settle(state)
    assert owned(state) == {"m": "a0 a1 a2 a3"}


def test_when_the_last_one_leaves_nothing_remains_but_the_generation() -> None:
    state = group(COOPERATIVE, "m n", a=4)
    state.remove(["m", "n"], {})
    assert (state.members, state.target, state.owners, state.strategy) == ({}, {}, {}, None)
    assert state.generation == 3
    assert state.settled


def test_a_changed_subscription_moves_partitions() -> None:
    state = group(COOPERATIVE, "m", a=1, b=1)
    state.subscribe("m", ("b",), {"a": 1, "b": 1})
    assert state.topics == {"b"}
    settle(state)
    assert owned(state) == {"m": "b0"}


def test_topics_that_nobody_reads_any_more_are_not_counted() -> None:
    """What was counted is compared with what there is: more would mean a rebalance for nothing."""
    state = group(COOPERATIVE, "m", a=1, b=1)
    state.subscribe("m", ("b",), {"a": 1, "b": 1})
    assert state.partitions == {"b": 1}


# --- release and take: cooperative


def test_a_cooperative_member_gives_up_only_what_another_gets() -> None:
    state = group(COOPERATIVE, "m", a=4)
    state.join(member("n"), {"a": 4})
    going = state.to_release("m")
    assert len(going) == 2
    state.take("n")
    assert state.owned("n") == ()  # nothing is free yet
    state.release("m", going)
    state.take("m")
    assert not set(going) & set(state.owned("m"))
    state.take("n")
    assert sorted(state.owned("n")) == sorted(going)
    assert state.settled


def test_a_cooperative_member_takes_what_is_free_and_the_rest_later() -> None:
    state = group(COOPERATIVE, "m n", a=4)
    state.remove(["n"], {"a": 4})
    state.join(member("o"), {"a": 4})
    target = state.target["o"]
    held = [one for one in target if one in state.owners]
    state.take("o")
    assert set(state.owned("o")) == set(target) - set(held)


def test_taking_marks_a_generation_only_once_all_the_rest_is_released() -> None:
    state = group(COOPERATIVE, "m", a=4)
    state.join(member("n"), {"a": 4})
    state.take("m")  # without releasing first
    assert state.members["m"].generation == 1
    assert not state.settled
    assert len(state.to_release("m")) == 2


def test_only_the_owner_releases() -> None:
    state = group(COOPERATIVE, "m n", a=2)
    before = dict(state.owners)
    state.release("n", state.owned("m"))
    state.release("m", parts("z9"))
    assert state.owners == before


# --- release and take: eager


def test_an_eager_member_gives_up_everything_at_each_generation() -> None:
    state = group(EAGER, "m", a=4)
    state.join(member("n", "a", EAGER), {"a": 4})
    assert shown(state.to_release("m")) == "a0 a1 a2 a3"


def test_an_eager_member_of_the_generation_gives_up_nothing() -> None:
    state = group(EAGER, "m n", a=4)
    assert state.to_release("m") == state.to_release("n") == ()


def test_an_eager_member_takes_all_or_nothing() -> None:
    state = group(EAGER, "m n", a=4)
    state.join(member("l", "a", EAGER), {"a": 4})  # a0 a1 of m go to it
    assert shown(state.target["l"]) == "a0 a1"
    state.release("m", parts("a0"))
    state.take("l")
    assert state.owned("l") == ()
    state.release("m", parts("a1"))
    state.take("l")
    assert shown(state.owned("l")) == "a0 a1"
    assert state.members["l"].generation == state.generation


def test_a_group_can_change_from_eager_to_cooperative_and_back() -> None:
    state = GroupState("boot")
    state.join(member("both", "a", EAGER, COOPERATIVE), {"a": 4})
    assert not state.cooperative
    settle(state)
    state.join(member("new", "a", COOPERATIVE), {"a": 4})
    assert state.cooperative
    settle(state)
    state.remove(["new"], {"a": 4})
    assert not state.cooperative
    settle(state)
    assert owned(state) == {"both": "a0 a1 a2 a3"}


def test_who_took_a_part_before_the_group_became_eager_gives_it_up_where_another_shall_have_it() -> None:
    """A member that has reached no generation may have partitions all the same."""
    state = GroupState("boot")
    state.join(member("z", "a", EAGER, COOPERATIVE), {"a": 3})
    settle(state)
    state.join(member("old", "a", COOPERATIVE), {"a": 3})
    state.join(member("b", "a", EAGER, COOPERATIVE), {"a": 3})
    state.remove(["old"], {"a": 3})
    state.owners = dict.fromkeys(parts("a2"), "b") | dict.fromkeys(parts("a0 a1"), "z")
    assert state.strategy == EAGER
    assert shown(state.target["b"]) == "a0 a1"
    settle(state)
    assert owned(state) == {"z": "a2", "b": "a0 a1"}


# --- static members


@pytest.mark.parametrize("strategy", [COOPERATIVE, EAGER])
def test_a_static_member_that_comes_back_keeps_its_partitions(strategy: str) -> None:
    state = group(strategy, "m", a=4)
    state.join(member("s1", "a", strategy, instance="s"), {"a": 4})
    settle(state)
    kept, generation = state.owned("s1"), state.generation
    state.join(member("s2", "a", strategy, instance="s"), {"a": 4})
    assert state.generation == generation  # the others notice nothing
    assert state.to_release("m") == state.to_release("s2") == ()
    assert state.owned("s2") == kept
    assert set(state.members) == {"m", "s2"}
    state.take("s2")
    assert state.settled


def test_a_static_member_that_comes_back_keeps_its_place_among_the_members() -> None:
    state = GroupState("boot")
    for name in ("x", "y", "z"):
        state.join(member(name + "1", "a", instance=name), {"a": 3})
    state.join(member("x2", "a", instance="x"), {"a": 3})
    assert list(state.members) == ["x2", "y1", "z1"]


def test_whoever_had_the_name_is_fenced() -> None:
    state = group(COOPERATIVE, "m", a=2)
    old = member("s1", instance="s")
    state.join(old, {"a": 2})
    settle(state)
    state.join(member("s2", instance="s"), {"a": 2})
    with pytest.raises(FencedMemberError, match="'s'"):
        state.check_member("g", "s1", "s")
    with pytest.raises(FencedMemberError):
        state.check_commit("g", old, parts("a0"))


def test_a_static_member_with_another_subscription_rebalances() -> None:
    state = group(COOPERATIVE, "m", a=2, b=2)
    state.join(member("s1", "a", instance="s"), {"a": 2, "b": 2})
    settle(state)
    state.join(member("s2", "b", instance="s"), {"a": 2, "b": 2})
    assert state.generation == 3
    settle(state)
    assert {one.topic for one in state.owned("s2")} == {"b"}


def test_a_static_member_with_another_strategy_rebalances() -> None:
    state = GroupState("boot")
    state.join(member("s1", "a", EAGER, instance="s"), {"a": 2})
    settle(state)
    state.join(member("s2", "a", COOPERATIVE, instance="s"), {"a": 2})
    assert (state.strategy, state.generation) == (COOPERATIVE, 2)
    settle(state)
    assert owned(state) == {"s2": "a0 a1"}


@pytest.mark.parametrize("strategy", [COOPERATIVE, EAGER])
def test_a_static_member_that_comes_back_in_a_rebalance_gives_up_what_goes_to_others(strategy: str) -> None:
    """It was to release something when it went; whoever waits for that must not wait for ever."""
    state = GroupState("boot")
    state.join(member("s1", "a", strategy, instance="s"), {"a": 4})
    settle(state)
    state.join(member("t", "a", strategy), {"a": 4})
    state.join(member("s2", "a", strategy, instance="s"), {"a": 4})
    settle(state)
    assert owned(state) == {"s2": "a0 a1", "t": "a2 a3"}


def test_two_static_members_are_two_members() -> None:
    state = GroupState("boot")
    state.join(member("s1", instance="s"), {"a": 2})
    state.join(member("t1", instance="t"), {"a": 2})
    assert set(state.members) == {"s1", "t1"}
    assert state.instance("t") == state.members["t1"]
    assert state.instance("u") is None


def test_members_without_a_name_are_never_taken_for_one_another() -> None:
    state = group(COOPERATIVE, "m n", a=2)
    assert state.instance(None) is None
    assert len(state.members) == 2


# --- strategies


def test_the_oldest_member_chooses_among_the_strategies_that_all_know() -> None:
    state = GroupState("boot")
    state.join(member("m", "a", "range", "roundrobin", "sticky"), {"a": 2})
    state.join(member("n", "a", "sticky", "roundrobin"), {"a": 2})
    assert state.strategy == "roundrobin"


def test_a_member_with_no_strategy_in_common_is_refused_and_nothing_has_changed() -> None:
    state = GroupState("boot")
    state.join(member("m", "a", "range", "sticky"), {"a": 2})
    state.join(member("n", "a", "sticky"), {"a": 2})
    before = state.to_json()
    with pytest.raises(InconsistentGroupError, match="range"):
        state.join(member("o", "a", "range", "roundrobin"), {"a": 2})
    assert state.to_json() == before


def test_a_static_member_needs_nothing_in_common_with_its_former_self() -> None:
    state = GroupState("boot")
    state.join(member("s1", "a", EAGER, instance="s"), {"a": 2})
    state.join(member("s2", "a", "sticky", instance="s"), {"a": 2})
    assert state.strategy == "sticky"


def test_a_static_member_needs_a_strategy_in_common_with_the_others() -> None:
    state = GroupState("boot")
    state.join(member("s1", "a", EAGER, instance="s"), {"a": 2})
    state.join(member("n", "a", EAGER), {"a": 2})
    with pytest.raises(InconsistentGroupError):
        state.join(member("s2", "a", "sticky", instance="s"), {"a": 2})
    assert set(state.members) == {"s1", "n"}


def test_a_strategy_that_is_not_registered_here_is_refused() -> None:
    with pytest.raises(ConfigError, match="not registered"):
        GroupState("boot").join(member("m", "a", "of another process"), {"a": 1})


def use(monkeypatch: pytest.MonkeyPatch, assign: Any) -> None:
    monkeypatch.setattr(assignors, "_KNOWN", dict(assignors._KNOWN))
    register_assignor("own", assign)


def test_an_assignor_that_is_wrong_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, lambda subscriptions, partitions: {})
    with pytest.raises(AssignmentError, match="nobody"):
        GroupState("boot").join(member("m", "a", "own"), {"a": 1})


def test_an_assignor_may_name_partitions_with_plain_tuples(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(subscriptions: Sequence[Subscription], partitions: Mapping[str, int]) -> Any:
        return {subscriptions[0].member_id: [("a", 0), ("a", 1)]}

    use(monkeypatch, plain)
    state = GroupState("boot")
    state.join(member("m", "a", "own"), {"a": 2})
    state.take("m")
    assert [one.topic for one in state.owned("m")] == ["a", "a"]


# --- partitions that come and go


@pytest.mark.parametrize("strategy", [COOPERATIVE, EAGER])
def test_new_partitions_are_shared_out(strategy: str) -> None:
    state = group(strategy, "m n", a=2)
    state.rebalance({"a": 5})
    assert state.partitions == {"a": 5}
    settle(state)
    assert sorted(state.owners) == list(parts("a0 a1 a2 a3 a4"))


@pytest.mark.parametrize("strategy", [COOPERATIVE, EAGER])
def test_partitions_of_a_deleted_topic_are_given_up(strategy: str) -> None:
    state = group(strategy, "m n", a=2, b=2)
    state.rebalance({"a": 2})
    assert any(one.topic == "b" for name in state.members for one in state.to_release(name))
    settle(state)
    assert sorted(state.owners) == list(parts("a0 a1"))


def test_a_topic_deleted_and_made_again_with_fewer_partitions_is_shared_out_anew() -> None:
    state = group(COOPERATIVE, "m n", a=4)
    state.rebalance({"a": 1})
    settle(state)
    assert list(state.owners) == list(parts("a0"))


# --- who may commit


def test_the_owner_commits() -> None:
    state = group(COOPERATIVE, "m", a=2)
    state.check_commit("g", state.members["m"], parts("a0 a1"))


def test_the_owner_commits_while_the_group_rebalances() -> None:
    state = group(COOPERATIVE, "m", a=2)
    state.join(member("n"), {"a": 2})
    state.check_commit("g", state.members["m"], parts("a0 a1"))


def test_one_who_was_removed_does_not_commit() -> None:
    state = group(COOPERATIVE, "m n", a=2)
    gone = state.members["m"]
    state.remove(["m"], {"a": 2})
    with pytest.raises(CommitFailedError, match="was removed from the group"):
        state.check_commit("g", gone, parts("a0"))


def test_one_who_was_removed_does_not_commit_even_nothing() -> None:
    state = group(COOPERATIVE, "m", a=2)
    gone = state.members["m"]
    state.remove(["m"], {})
    with pytest.raises(CommitFailedError):
        state.check_commit("g", gone, ())


def test_a_commit_of_what_is_on_its_way_is_told_of_the_rebalance() -> None:
    state = group(COOPERATIVE, "m", a=2)
    state.join(member("n"), {"a": 2})
    with pytest.raises(RebalanceInProgressError) as told:
        state.check_commit("g", state.members["n"], state.target["n"])
    assert told.value.args == ("g", 2)
    state.release("m", state.to_release("m"))
    with pytest.raises(RebalanceInProgressError):
        state.check_commit("g", state.members["m"], state.target["n"])


def test_a_commit_of_anothers_partition_is_refused() -> None:
    state = group(COOPERATIVE, "m n", a=2)
    with pytest.raises(CommitFailedError, match="is not assigned") as refused:
        state.check_commit("g", state.members["m"], state.owned("n"))
    assert not isinstance(refused.value, RebalanceInProgressError)


def test_one_partition_that_is_not_owned_refuses_the_whole_commit() -> None:
    state = group(COOPERATIVE, "m", a=2)
    with pytest.raises(CommitFailedError, match="b-7"):
        state.check_commit("g", state.members["m"], parts("a0 b7"))


def test_outsiders_commit_while_there_are_no_members() -> None:
    state = GroupState("boot")
    state.check_commit("g", None, parts("a0"))
    state.join(member("m"), {"a": 1})
    with pytest.raises(CommitFailedError, match="has members"):
        state.check_commit("g", None, parts("b0"))
    state.remove(["m"], {})
    state.check_commit("g", None, parts("a0"))


# --- the file


def in_the_middle() -> GroupState:
    """A group in the middle of a rebalance."""
    state = group(COOPERATIVE, "m n", a=3, b=2)
    state.join(member("s1", "a", instance="Ünïcode ☃"), {"a": 3, "b": 2})
    state.take("s1")
    return state


def test_what_is_stored_is_what_was_there() -> None:
    state = in_the_middle()
    again = GroupState.from_json(state.to_json(), "boot")
    assert vars(again) == vars(state)
    assert list(again.members) == list(state.members)
    assert again.to_json() == state.to_json()


def test_a_stored_group_goes_on() -> None:
    state = GroupState.from_json(in_the_middle().to_json(), "boot")
    settle(state)
    assert len(state.owners) == 5


def test_an_empty_group_is_stored() -> None:
    state = GroupState("boot")
    assert vars(GroupState.from_json(state.to_json(), "boot")) == vars(state)


def test_of_another_boot_only_the_generation_is_left() -> None:
    state = GroupState.from_json(in_the_middle().to_json(), "another boot")
    assert (state.boot, state.generation) == ("another boot", 3)
    assert (state.members, state.target, state.owners, state.strategy) == ({}, {}, {}, None)
    state.join(member("m"), {"a": 1})
    assert state.generation == 4
