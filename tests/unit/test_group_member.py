from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from commitlog import CommitLog, Consumer, ConsumerConfig
from commitlog.errors import (
    CommitFailedError,
    ConfigError,
    FencedMemberError,
    InconsistentGroupError,
    RebalanceInProgressError,
)
from commitlog.groups import member as member_module
from commitlog.groups.directory import GroupDirectory, file_name, known_groups
from commitlog.groups.member import GroupMember
from commitlog.groups.offsets import OffsetAndMetadata
from commitlog.record import TopicPartition
from commitlog.tasks import Task

SESSION, INTERVAL, MAX_POLL = 10_000, 3_000, 60_000
A = [TopicPartition("a", number) for number in range(4)]


class Machine:
    """What processes of a machine share: a clock, the log's directory, its topics and committed offsets."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.now_ms = 1_000_000
        self.topics = {"a": 4}
        self.committed: dict[TopicPartition, int] = {}

    def clock(self) -> int:
        return self.now_ms * 1_000_000

    def count(self, names: Iterable[str]) -> dict[str, int]:
        return {name: self.topics[name] for name in names if name in self.topics}

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.committed.update((name, value.offset) for name, value in offsets.items())

    def directory(self, group_id: str = "g") -> GroupDirectory:
        return GroupDirectory(self.path, group_id)

    def new(self, client: str = "", **settings: Any) -> GroupMember:
        """A member that has not joined, as in a process of its own."""
        offsets: Any = self
        given = ConsumerConfig(
            client_id=client,
            group_instance_id=settings.get("instance"),
            partition_assignment_strategy=settings.get("strategies", ("cooperative-sticky",)),
            session_timeout_ms=settings.get("session_ms", SESSION),
            heartbeat_interval_ms=settings.get("interval_ms", INTERVAL),
            max_poll_interval_ms=settings.get("max_poll_ms", MAX_POLL),
        )
        return GroupMember(self.directory(), offsets, given, self.count, self.clock)

    def member(self, client: str = "", topics: str = "a", **settings: Any) -> GroupMember:
        joined = self.new(client, **settings)
        joined.join(topics)
        return joined

    def pass_by(self, ms: int, *alive: GroupMember, step: int = INTERVAL) -> None:
        """Let time pass, while some members tick."""
        end = self.now_ms + ms
        while self.now_ms < end:
            self.now_ms = min(self.now_ms + step, end)
            for one in alive:
                one.tick()

    @property
    def members(self) -> set[str]:
        """The client ids of those in the group's file."""
        with (group := self.directory()).lock:
            state = group.look()
            return {one.client_id for one in state.members.values()}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def settle(*members: GroupMember, rounds: int = 4) -> list[set[TopicPartition]]:
    """Let members go to the target; returns what each has."""
    for _ in range(rounds):
        for one in members:
            one.release(one.to_release())
            one.take()
    return [one.take() for one in members]


def commit(member: GroupMember, *partitions: TopicPartition, offset: int = 1) -> None:
    member.commit({one: OffsetAndMetadata(offset) for one in partitions})


# --- members share partitions


def test_a_member_takes_everything_and_shares_it_with_the_next(machine: Machine) -> None:
    one = machine.member("one")
    assert settle(one) == [set(A)]
    two = machine.member("two")
    first, second = settle(one, two)
    assert (len(first), len(second)) == (2, 2)
    assert first | second == set(A)


def test_a_member_is_told_that_it_must_look(machine: Machine) -> None:
    one = machine.member()
    assert one.must_look
    settle(one)
    assert not one.must_look
    two = machine.member()
    assert one.must_look
    one.release(one.to_release())
    one.take()
    assert not one.must_look
    two.take()
    assert one.must_look  # whatever it was


def test_taking_again_changes_nothing_and_nobody_must_look(machine: Machine) -> None:
    one, two = machine.member(), machine.member()
    settle(one, two)
    one.take()
    settle(two)
    assert not one.must_look


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_a_rebalance_between_looking_and_taking_is_not_overlooked(machine: Machine, strategy: str) -> None:
    one = machine.member(strategies=(strategy,))
    settle(one)
    assert one.to_release() == ()
    two = machine.member(strategies=(strategy,))
    one.take()
    two.take()  # changes nothing, so that it would tell nobody
    assert one.must_look
    settle(one, two)
    assert not one.must_look


def test_metadata_tells_group_generation_and_member(machine: Machine) -> None:
    one = machine.new("client")
    assert one.metadata == ("g", -1, "")
    one.join("a")
    settle(one)
    group_id, generation, member_id = one.metadata
    assert (group_id, generation) == ("g", 1)
    assert member_id.startswith("client-")
    one.leave()
    assert one.metadata == ("g", -1, "")


def test_leaving_twice_and_without_having_joined_is_fine(machine: Machine) -> None:
    one = machine.new()
    one.leave()
    one.join("a")
    one.leave()
    one.leave()
    assert not one.joined
    assert machine.members == set()


def test_a_member_may_come_again_after_it_left(machine: Machine) -> None:
    one = machine.member("one")
    settle(one)
    one.leave()
    one.join("a")
    assert settle(one) == [set(A)]


def test_another_subscription_moves_partitions_and_only_once(machine: Machine) -> None:
    machine.topics["b"] = 1
    one = machine.member(topics="a")
    settle(one)
    one.subscribe("b")
    assert settle(one) == [{TopicPartition("b", 0)}]
    one.tick()
    assert not one.must_look


def test_another_subscription_of_who_is_no_member_does_nothing(machine: Machine) -> None:
    one = machine.new("one")
    one.subscribe("a")
    one.join("a")
    one.leave()
    one.subscribe("a")
    assert machine.members == set()


def test_members_see_new_partitions_at_their_next_tick(machine: Machine) -> None:
    one, two = machine.member(), machine.member()
    settle(one, two)
    machine.topics["a"] = 6
    machine.pass_by(INTERVAL, one, two)
    first, second = settle(one, two)
    assert (len(first), len(second)) == (3, 3)


def test_members_drop_a_deleted_topic_at_their_next_tick(machine: Machine) -> None:
    one = machine.member()
    settle(one)
    del machine.topics["a"]
    machine.pass_by(INTERVAL, one)
    assert settle(one) == [set()]
    machine.topics["a"] = 1
    machine.pass_by(INTERVAL, one)
    assert settle(one) == [{A[0]}]


@pytest.mark.parametrize("interval", [1, 2_500, 4_999])
def test_whatever_the_interval_a_lonely_member_sees_new_partitions(machine: Machine, interval: int) -> None:
    one = machine.member(session_ms=5_000, interval_ms=interval)
    settle(one)
    machine.topics["a"] = 6
    machine.pass_by(3 * interval, one, step=interval)
    assert len(settle(one)[0]) == 6


# --- silence


def test_who_is_silent_for_too_long_is_removed_and_not_before(machine: Machine) -> None:
    one, two = machine.member("one"), machine.member("two")
    settle(one, two)
    machine.pass_by(SESSION, one)
    assert machine.members == {"one", "two"}
    machine.pass_by(1, one)
    assert machine.members == {"one"}
    assert settle(one) == [set(A)]


def test_who_beats_stays(machine: Machine) -> None:
    one, two = machine.member("one"), machine.member("two")
    machine.pass_by(5 * SESSION, one, two)
    assert machine.members == {"one", "two"}


def test_each_member_has_a_session_timeout_of_its_own(machine: Machine) -> None:
    alive = machine.member("alive")
    machine.member("patient", session_ms=3 * SESSION)
    machine.member("hasty", session_ms=SESSION)
    machine.pass_by(2 * SESSION, alive)
    assert machine.members == {"alive", "patient"}
    machine.pass_by(2 * SESSION, alive)
    assert machine.members == {"alive"}


def test_a_tick_asks_to_come_back_when_a_member_would_be_silent_for_too_long(machine: Machine) -> None:
    machine.member("silent", session_ms=1_000, interval_ms=500)
    alive = machine.member("alive")
    assert alive.tick() == pytest.approx(1.001)
    machine.pass_by(1_001, alive)
    assert machine.members == {"alive"}
    assert alive.tick() == INTERVAL / 1000


def test_who_joins_removes_the_silent_ones(machine: Machine) -> None:
    machine.member("silent")
    machine.now_ms += SESSION + 1
    new = machine.member("new")
    assert machine.members == {"new"}
    assert settle(new) == [set(A)]


def test_a_machine_that_stood_still_does_not_expire_others_at_once(machine: Machine) -> None:
    one, two = machine.member("one"), machine.member("two")
    machine.now_ms += 100 * SESSION
    assert one.tick() == INTERVAL / 1000
    machine.now_ms += INTERVAL - 1  # until it ticks again, the other may be heard
    two.tick()
    machine.now_ms += 1
    one.tick()
    assert machine.members == {"one", "two"}


def test_after_a_machine_stood_still_the_dead_are_removed_all_the_same(machine: Machine) -> None:
    one = machine.member("one")
    machine.member("dead")
    machine.now_ms += 100 * SESSION
    one.tick()
    machine.now_ms += INTERVAL
    one.tick()
    assert machine.members == {"one"}


def test_who_was_removed_learns_it_at_its_tick(machine: Machine) -> None:
    one, two = machine.member("one"), machine.member("two")
    settle(one, two)
    machine.pass_by(SESSION + 1, one)
    assert not two.lost
    two.tick()
    assert two.lost
    assert two.must_look
    two.tick()
    assert machine.members == {"one"}


def test_who_was_removed_learns_it_when_it_commits_takes_or_releases(machine: Machine) -> None:
    one, two = machine.member("one"), machine.member("two")
    _, had = settle(one, two)
    machine.pass_by(SESSION + 1, one)
    settle(one)
    for attempt in (lambda: commit(two, *had), two.take, two.to_release, lambda: two.release(had)):
        with pytest.raises(CommitFailedError, match="removed"):
            attempt()
    assert machine.committed == {}
    assert one.take() == set(A)


def test_who_was_removed_may_join_again(machine: Machine) -> None:
    one, two = machine.member("one"), machine.member("two")
    settle(one, two)
    machine.pass_by(SESSION + 1, one)
    two.tick()
    two.join("a")
    assert not two.lost
    first, second = settle(one, two)
    assert (len(first), len(second)) == (2, 2)
    assert not first & second


def test_a_silent_member_that_nobody_has_removed_is_still_one(machine: Machine) -> None:
    one = machine.member("one")
    settle(one)
    machine.now_ms += 100 * SESSION
    commit(one, *A)
    one.tick()
    assert not one.lost
    assert set(machine.committed) == set(A)


def test_a_tick_that_comes_too_late_does_not_lose_who_has_joined_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tick() runs beside poll(): what it learns of the former self does not count any more."""
    one, two = machine.member("one"), machine.member("two")
    machine.pass_by(SESSION + 1, one)
    beat = two.directory.heartbeats.beat

    def joined_meanwhile(slot: int, token: int, now_ns: int) -> bool:
        monkeypatch.setattr(two.directory.heartbeats, "beat", beat)
        two.join("a")
        return beat(slot, token, now_ns)

    # the slot must not be the one that it gets again
    machine.member("three")
    monkeypatch.setattr(two.directory.heartbeats, "beat", joined_meanwhile)
    two.tick()
    assert not two.lost
    assert machine.members == {"one", "two", "three"}


# --- slots


def slots(machine: Machine) -> dict[str, int]:
    with (group := machine.directory()).lock:
        state = group.look()
        return {one.client_id: one.slot for one in state.members.values()}


def test_the_slot_of_who_has_left_is_used_again(machine: Machine) -> None:
    one = machine.member("one")
    machine.member("two")
    one.leave()
    machine.member("three")
    assert slots(machine) == {"two": 1, "three": 0}


def test_a_zombie_does_not_beat_for_who_has_its_slot_now(machine: Machine) -> None:
    zombie, alive = machine.member("zombie"), machine.member("alive")
    machine.pass_by(SESSION + 1, alive)
    machine.member("new")
    assert slots(machine) == {"alive": 1, "new": 0}
    machine.pass_by(SESSION + 1, zombie, alive)
    assert zombie.lost
    assert machine.members == {"alive"}


def test_a_full_group_takes_nobody_else(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_module, "SLOTS", 2)
    one = machine.member("one", instance="static")
    two = machine.member("two")
    refused = machine.new("three")
    with pytest.raises(ConfigError, match="2 members"):
        refused.join("a")
    assert not refused.joined
    machine.member("one again", instance="static")  # is no third one
    two.leave()
    refused.join("a")
    assert machine.members == {"one again", "three"}
    assert not one.lost


def test_in_a_full_group_the_silent_ones_make_room(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_module, "SLOTS", 1)
    machine.member("silent")
    machine.now_ms += SESSION + 1
    machine.member("new")
    assert machine.members == {"new"}


# --- max_poll_interval_ms


def test_who_is_not_polled_leaves(machine: Machine) -> None:
    slow, other = machine.member("slow"), machine.member("other")
    settle(slow, other)
    slow.polling()
    slow.idle()
    machine.pass_by(MAX_POLL, slow, other)
    assert machine.members == {"slow", "other"}
    machine.pass_by(1, slow, other)
    assert machine.members == {"other"}
    assert slow.lost
    assert settle(other) == [set(A)]
    with pytest.raises(CommitFailedError):
        commit(slow, A[0])


def test_a_long_poll_is_no_idleness(machine: Machine) -> None:
    one = machine.member("one")
    one.idle()
    one.polling()
    machine.pass_by(2 * MAX_POLL, one)
    assert not one.lost


def test_a_static_member_that_is_not_polled_falls_silent(machine: Machine) -> None:
    slow, other = machine.member("slow", instance="s"), machine.member("other")
    settle(slow, other)
    slow.idle()
    machine.pass_by(MAX_POLL + 1, slow, other)
    assert slow.lost
    assert machine.members == {"slow", "other"}
    machine.pass_by(SESSION + 1, slow, other)
    assert machine.members == {"other"}


def test_a_static_member_that_is_polled_again_in_time_keeps_its_partitions(machine: Machine) -> None:
    slow, other = machine.member("slow", instance="s"), machine.member("other")
    had, _ = settle(slow, other)
    slow.idle()
    machine.pass_by(MAX_POLL + 1, slow, other)
    slow.polling()
    slow.join("a")
    assert slow.take() == had
    assert other.to_release() == ()


def clocked(consumer: Consumer, seconds: float) -> GroupMember:
    """A consumer's member, so much later; nothing ticks but the test."""
    assert consumer._session is not None
    member = consumer._session.member
    member._clock = lambda: time.monotonic_ns() + int(seconds * 1e9)
    return member


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Task, "start", lambda self: None)


@pytest.mark.usefixtures("no_threads")
def test_who_subscribes_and_never_polls_leaves(log: CommitLog) -> None:
    log.create_topic("t")
    with log.consumer("t", group_id="g", max_poll_interval_ms=100_000) as consumer:
        clocked(consumer, 99).tick()
        assert log.describe_group("g").state == "Rebalancing"
        clocked(consumer, 101).tick()
        assert log.describe_group("g").state == "Empty"
        consumer.poll()  # joins again
        consumer.poll()
        assert consumer.assignment() == {("t", 0)}


@pytest.mark.usefixtures("no_threads")
def test_the_time_between_two_subscriptions_is_no_idleness(log: CommitLog) -> None:
    log.create_topic("t")
    with log.consumer("t", group_id="g", max_poll_interval_ms=100_000) as consumer:
        consumer.poll()
        consumer.unsubscribe()
        member = clocked(consumer, 101)
        consumer.subscribe("t")
        member.tick()
        assert not member.lost


# --- static members


def test_a_static_member_that_starts_again_gets_its_partitions_back(machine: Machine) -> None:
    old, other = machine.member("old", instance="s"), machine.member("other")
    had, _ = settle(old, other)
    old.stop()
    machine.pass_by(SESSION, other)
    new = machine.member("new", instance="s")
    assert new.take() == had
    assert not other.to_release()
    assert machine.members == {"new", "other"}


def test_a_static_member_of_the_same_name_fences_the_old_one(machine: Machine) -> None:
    old = machine.member("old", instance="s")
    settle(old)
    new = machine.member("new", instance="s")
    for attempt in (lambda: commit(old, A[0]), old.take, old.to_release, lambda: old.release(A)):
        with pytest.raises(FencedMemberError):
            attempt()
    commit(new, *A)
    old.leave()
    assert machine.members == {"new"}


@pytest.mark.parametrize("before", [0, 1])
def test_a_fenced_member_notices_at_its_tick_and_beats_for_nobody(machine: Machine, before: int) -> None:
    """Whether the new one has the slot of the old one or another."""
    others = [machine.member() for _ in range(before)]
    old = machine.member("old", instance="s")
    for one in others:
        one.leave()
    machine.member("new", instance="s")
    old.tick()
    assert old.lost
    with pytest.raises(FencedMemberError):  # and not as one that may join again
        old.to_release()


def test_a_fenced_consumer_ends_and_does_not_fence_the_other_in_turn(log: CommitLog) -> None:
    log.create_topic("t")
    with log.consumer(group_id="g", group_instance_id="s") as old:
        old.subscribe("t")
        old.poll()
        with log.consumer("t", group_id="g", group_instance_id="s") as new:
            new.poll()
            assert old._session is not None
            old._session.member.tick()  # before it polls again
            for _ in range(2):
                with pytest.raises(FencedMemberError):
                    old.poll()
            new.poll()
            assert new.assignment() == {("t", 0)}
            assert old.assignment() == set()


# --- commits


def test_offsets_of_owners_are_committed(machine: Machine) -> None:
    one, two = machine.member(), machine.member()
    first, second = settle(one, two)
    commit(one, *first, offset=7)
    commit(two, *second, offset=8)
    assert machine.committed == {**dict.fromkeys(first, 7), **dict.fromkeys(second, 8)}
    with pytest.raises(CommitFailedError, match="not assigned"):
        commit(one, *second)


def test_a_commit_in_a_rebalance_is_told_so(machine: Machine) -> None:
    one = machine.member()
    settle(one)
    two = machine.member()
    going = one.to_release()
    commit(one, *going)  # it may finish what it has
    one.release(going)
    with pytest.raises(RebalanceInProgressError):
        commit(one, *going)
    with pytest.raises(RebalanceInProgressError):
        commit(two, *going)
    two.take()
    commit(two, *going, offset=2)
    assert set(machine.committed.values()) == {2}


def test_an_outsider_commits_only_to_a_group_without_members(machine: Machine) -> None:
    outsider = machine.new()
    commit(outsider, A[0])
    member = machine.member()
    with pytest.raises(CommitFailedError, match="has members"):
        commit(outsider, A[1])
    member.leave()
    commit(outsider, A[2])
    assert set(machine.committed) == {A[0], A[2]}


# --- joining that fails


def test_who_is_refused_has_not_joined(machine: Machine) -> None:
    machine.member("one", strategies=("range",))
    refused = machine.new("two", strategies=("sticky",))
    with pytest.raises(InconsistentGroupError):
        refused.join("a")
    assert not refused.joined
    assert machine.members == {"one"}
    assert refused.tick() == INTERVAL / 1000


def full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_on_a_full_disk_nobody_joins_and_nobody_is_lost(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = machine.member("one"), machine.new("two")
    settle(one)
    with monkeypatch.context() as patch:
        patch.setattr("commitlog.files.write_unsynced", full_disk)
        with pytest.raises(OSError, match="No space"):
            two.join("a")
    assert not two.joined
    assert machine.members == {"one"}
    assert settle(one) == [set(A)]
    two.join("a")
    assert len(settle(one, two)[1]) == 2


def test_on_a_full_disk_who_cannot_leave_is_still_a_member(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = machine.member("one")
    settle(one)
    with monkeypatch.context() as patch:
        patch.setattr("commitlog.files.write_unsynced", full_disk)
        with pytest.raises(OSError, match="No space"):
            one.leave()
    assert one.joined
    one.tick()
    assert not one.lost
    assert one.take() == set(A)
    one.leave()
    assert machine.members == set()


# --- the files of a group

ODD_NAMES = ["a/b", "../../etc/passwd", ".", "..", "...", ".json", "g.json", "g.lock", "Ünïcode ☃", "%",
             "%2F", "a b\n\0", "x" * 249, "☃" * 27]  # fmt: skip


@pytest.mark.parametrize("group_id", ODD_NAMES)
def test_a_group_may_have_an_odd_name(machine: Machine, group_id: str) -> None:
    with machine.directory(group_id).changing() as state:
        state.generation = 5
    with (group := machine.directory(group_id)).lock:
        state = group.look()
        assert state.generation == 5
    assert known_groups(machine.path) == {group_id}
    assert os.listdir(machine.path) == ["groups"]


def test_odd_names_do_not_meet_in_one_file(machine: Machine) -> None:
    for number, group_id in enumerate(ODD_NAMES, 1):
        with machine.directory(group_id).changing() as state:
            state.generation = number
    for number, group_id in enumerate(ODD_NAMES, 1):
        with (group := machine.directory(group_id)).lock:
            state = group.look()
            assert state.generation == number
    assert known_groups(machine.path) == set(ODD_NAMES)


@pytest.mark.parametrize("group_id", ["", "x" * 250, "☃" * 28, 5, None, b"bytes", "\ud800"])
def test_what_can_name_no_file_names_no_group(machine: Machine, group_id: Any) -> None:
    with pytest.raises(ConfigError, match="group_id"):
        file_name(group_id)
    with pytest.raises(ConfigError, match="group_id"):
        machine.directory(group_id)


def test_a_log_without_groups_knows_none(tmp_path: Path) -> None:
    assert known_groups(str(tmp_path)) == set()


def state_file(machine: Machine) -> Path:
    return Path(machine.path, "groups", "g.json")


def shapes() -> list[bytes]:
    """What stands in the file of a group, and things that do not belong there."""
    whole: dict[str, Any] = {"boot": "", "generation": 1, "strategy": None, "members": [], "target": {},
                             "owners": [], "partitions": {}}  # fmt: skip
    wrong: list[Any] = [None, 5, "text", [1], {"a": 1}]
    found: list[Any] = [*wrong, {}]
    found += [{key: value for key, value in whole.items() if key != left_out} for left_out in whole]
    found += [{**whole, name: one} for name in whole for one in wrong]
    return [b"", b"{", b"\0" * 100, b"\xff\xfe", *(json.dumps(one).encode() for one in found)]


def test_garbage_in_the_file_of_a_group_is_a_group_without_members(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commitlog.groups.directory.boot_id", lambda: "")
    machine.directory()
    for raw in shapes():
        state_file(machine).write_bytes(raw)
        with (group := machine.directory()).lock:
            state = group.look()
            assert (state.members, state.owners, state.target) == ({}, {}, {}), raw
        one = machine.member("one")
        assert settle(one) == [set(A)], raw


def test_who_thinks_to_be_a_member_is_told_otherwise_by_a_lost_file(machine: Machine) -> None:
    one = machine.member("one")
    settle(one)
    state_file(machine).write_bytes(b"half of")
    machine.member("two")
    assert one.must_look
    with pytest.raises(CommitFailedError):
        one.to_release()
    one.tick()
    assert one.lost


def test_two_directories_see_each_others_changes(machine: Machine) -> None:
    here, there = machine.directory(), machine.directory()
    for generation in range(1, 5):
        with here.lock, here.changing() as state:
            state.generation = generation
        with there.lock:
            state = there.look()
            assert state.generation == generation
        here, there = there, here


def test_a_state_that_nobody_has_changed_is_not_read_again(machine: Machine) -> None:
    directory = machine.directory()
    with directory.lock, directory.changing() as state:
        state.generation = 1
    with directory.lock:
        again = directory.look()
        assert again is state


def test_after_an_exception_nothing_has_changed(machine: Machine) -> None:
    directory = machine.directory()
    with pytest.raises(KeyError), directory.changing() as state:
        state.generation = 5
        raise KeyError
    with directory.lock:
        state = directory.look()
        assert state.generation == 0
    assert directory.heartbeats.changes == 0


def test_a_change_that_changes_nothing_is_told_to_nobody(machine: Machine) -> None:
    directory = machine.directory()
    with directory.changing():
        pass
    assert directory.heartbeats.changes == 0
    assert known_groups(machine.path) == set()


def test_a_removed_group_is_gone_and_may_come_again(machine: Machine) -> None:
    here, there = machine.directory(), machine.directory()
    with here.lock, here.changing() as state:
        state.generation = 5
    with there.lock:
        state = there.look()
        assert state.generation == 5
    here.remove()
    assert known_groups(machine.path) == set()
    with there.lock, there.changing() as state:
        assert state.generation == 0
        state.generation = 1
    with here.lock:
        state = here.look()
        assert state.generation == 1
    here.remove()
    here.remove()


def test_another_boot_has_no_members(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    one = machine.member("one")
    settle(one)
    monkeypatch.setattr("commitlog.groups.directory.boot_id", lambda: "after a power cut")
    machine.now_ms = 5  # its clock starts anew
    new = machine.member("new")
    assert machine.members == {"new"}
    assert settle(new) == [set(A)]
    assert new.metadata.generation == 2
    machine.pass_by(2 * SESSION, new)
    assert machine.members == {"new"}
