"""Consumers that share topics. Each poll() is made by hand, so that the order of events is known."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import fill, wait_until

import commitlog
from commitlog import CommitLog, Consumer, RebalanceListener, Topic, TopicPartition
from commitlog.errors import (
    CommitFailedError,
    FencedMemberError,
    InconsistentGroupError,
    RebalanceInProgressError,
)
from commitlog.groups.member import GroupMember

T = TopicPartition("t", 0)
EAGER, COOPERATIVE = "range", "cooperative-sticky"
BOTH = pytest.mark.parametrize("strategy", [EAGER, COOPERATIVE])
LONG_AGO = -(10**18)


class Told(RebalanceListener):
    """Writes down what it is told: ("+", partitions) that came, ("-", ...) that went, ("x", ...) lost."""

    def __init__(self) -> None:
        self.events: list[tuple[str, tuple[int, ...]]] = []

    def on_assigned(self, partitions: set[TopicPartition]) -> None:
        self.note("+", partitions)

    def on_revoked(self, partitions: set[TopicPartition]) -> None:
        self.note("-", partitions)

    def on_lost(self, partitions: set[TopicPartition]) -> None:
        self.note("x", partitions)

    def note(self, what: str, partitions: set[TopicPartition]) -> None:
        assert isinstance(partitions, set)
        self.events.append((what, tuple(sorted(one.partition for one in partitions))))

    def since(self) -> list[tuple[str, tuple[int, ...]]]:
        """What it was told since it was asked last."""
        events, self.events = self.events, []
        return events


class Group:
    """Makes members of the group "g" that read "t"; their names tell who comes first."""

    def __init__(self, log: CommitLog, strategy: str) -> None:
        self.log = log
        self.strategy = strategy
        self.told: dict[str, Told] = {}
        self.members: dict[str, Consumer] = {}

    def join(self, name: str, listener: RebalanceListener | None = None, **settings: Any) -> Consumer:
        strategy = settings.pop("partition_assignment_strategy", self.strategy)
        topics, pattern = settings.pop("topics", ["t"]), settings.pop("pattern", None)
        consumer = self.log.consumer(
            group_id="g", client_id=name, partition_assignment_strategy=strategy, **settings
        )
        self.told[name] = Told()
        self.members[name] = consumer
        consumer.subscribe(() if pattern else topics, pattern=pattern, listener=listener or self.told[name])
        return consumer

    def since(self, name: str) -> list[tuple[str, tuple[int, ...]]]:
        return self.told[name].since()

    def settle(self, *names: str) -> None:
        """Let members poll, in turn, until each has what it shall have; they hand out nothing."""
        for _ in range(20):
            for name in names or self.members:
                self.members[name]._poll(0, dict)
            if self.log.describe_group("g").state == "Stable":
                return
        raise AssertionError("the group does not settle")

    def shares(self) -> dict[str, set[int]]:
        return {name: {one.partition for one in member.assignment()} for name, member in self.members.items()}


@pytest.fixture
def topic(log: CommitLog) -> Topic:
    """Four partitions with offsets [0, 10)."""
    topic = log.create_topic("t", partitions=4, config={"flush_ms": -1})
    for partition in topic.partitions:
        fill(partition, 10)
    return topic


@pytest.fixture
def group(log: CommitLog, topic: Topic, strategy: str) -> Group:
    return Group(log, strategy)


@pytest.fixture
def strategy() -> str:
    return COOPERATIVE


def member_of(consumer: Consumer) -> GroupMember:
    assert consumer._session is not None
    return consumer._session.member


def silence(consumer: Consumer) -> None:
    """Let a member be as one whose process hangs: it was last heard of long ago."""
    assert consumer._session is not None
    assert consumer._session._task is not None
    consumer._session._task.stop()
    member = member_of(consumer)
    assert member._member is not None
    assert member.directory.heartbeats.beat(member._member.slot, member._member.token, LONG_AGO)


def values(consumer: Consumer, **how: Any) -> list[tuple[int, int]]:
    return [(one.partition, one.offset) for some in consumer.poll(**how).values() for one in some]


def committed(log: CommitLog, name: tuple[str, int] = T) -> int | None:
    with log.consumer(group_id="g") as consumer:
        return consumer.committed(name)


# --- sharing


def test_a_member_alone_has_everything(group: Group) -> None:
    consumer = group.join("a")
    assert consumer.assignment() == set(), "partitions come in poll()"
    assert len(values(consumer)) == 40
    assert group.since("a") == [("+", (0, 1, 2, 3))]


@pytest.mark.parametrize("strategy", [EAGER])
def test_eager_members_give_everything_up_and_take_their_share(group: Group) -> None:
    a = group.join("a")
    a.poll(max_records=1)
    assert group.since("a") == [("+", (0, 1, 2, 3))]
    b = group.join("b")
    b.poll()
    assert group.since("b") == [], "the other has not let go yet"
    a.poll()
    assert group.since("a") == [("-", (0, 1, 2, 3)), ("+", (0, 1))]
    b.poll()
    assert group.since("b") == [("+", (2, 3))]
    a.poll()
    assert group.since("a") == []
    b.close()
    assert group.since("b") == [("-", (2, 3))]
    a.poll()
    assert group.since("a") == [("-", (0, 1)), ("+", (0, 1, 2, 3))]


def test_cooperative_members_keep_what_stays_theirs(group: Group) -> None:
    a = group.join("a")
    a.poll(max_records=1)
    b = group.join("b")
    b.poll()
    a.poll()
    assert group.since("a") == [("+", (0, 1, 2, 3)), ("-", (2, 3))]
    assert group.since("b") == []
    b.poll()
    assert group.since("b") == [("+", (2, 3))]
    c = group.join("c")
    group.settle()
    moved = group.since("c")
    assert [event for event, _ in moved] == ["+"]
    assert group.since("a") + group.since("b") == [("-", moved[0][1])]
    b.close()
    c.close()
    a.poll()
    assert group.shares()["a"] == {0, 1, 2, 3}
    assert all(event == "+" for event, _ in group.since("a"))


@BOTH
def test_each_partition_has_one_reader_however_members_come_and_go(group: Group) -> None:
    """And with what is committed when partitions move, each record is handed out once."""
    chance = random.Random(group.strategy)
    seen: list[tuple[int, int]] = []
    for step in range(60):
        names = [name for name, one in group.members.items() if not one._closed]
        if len(names) < 2 or (len(names) < 6 and chance.random() < 0.2):
            group.join(f"m{step}")
        elif chance.random() < 0.15:
            group.members[chance.choice(names)].close()
        else:
            seen += values(group.members[chance.choice(names)], max_records=chance.randint(1, 4))
        owned = [one for member in group.members.values() for one in member.assignment()]
        assert len(owned) == len(set(owned))
    while True:
        found = [one for member in group.members.values() if not member._closed for one in values(member)]
        seen += found
        if not found and group.log.describe_group("g").state == "Stable":
            break
    assert sorted(seen) == [(number, offset) for number in range(4) for offset in range(10)]


def test_a_stand_by_takes_over_where_the_other_ended(log: CommitLog) -> None:
    fill(log.create_topic("t").partition(0), 10)
    group = Group(log, COOPERATIVE)
    a, b = group.join("a"), group.join("b")
    assert values(a, max_records=4) == [(0, offset) for offset in range(4)]
    assert values(b) == []
    assert (group.since("b"), b.assignment()) == ([], set())
    a.close()
    assert values(b) == [(0, offset) for offset in range(4, 10)]
    assert group.since("b") == [("+", (0,))]


def test_a_stand_by_that_waits_takes_over(log: CommitLog) -> None:
    partition = log.create_topic("t").partition(0)
    group = Group(log, COOPERATIVE)
    a, b = group.join("a"), group.join("b")
    a.poll()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(values(b, timeout=60)))
    thread.start()
    fill(partition, 1)
    a.close()
    thread.join(30)
    assert found == [(0, 0)]


def test_members_of_several_logs_share_a_group(log: CommitLog, log_path: Path, topic: Topic) -> None:
    with commitlog.open(log_path, mode="r") as reading:
        group, other = Group(log, COOPERATIVE), Group(reading, COOPERATIVE)
        a, b = group.join("a"), other.join("b")
        b.poll(max_records=1)
        a.poll(max_records=1)
        b._poll(0, dict)
        assert (len(a.assignment()), len(b.assignment())) == (2, 2)
        assert a.assignment().isdisjoint(b.assignment())
        b.close()
        assert group.log.describe_group("g").state == "Rebalancing"
        a.poll()
        assert len(a.assignment()) == 4


def test_a_member_tells_who_it_is(group: Group) -> None:
    a = group.join("a")
    assert a.group_metadata().generation == -1
    a.poll()
    about = a.group_metadata()
    assert (about.group_id, about.member_id[:2]) == ("g", "a-")
    group.join("b")
    group.settle()
    assert a.group_metadata() == (about.group_id, about.generation + 1, about.member_id)
    a.unsubscribe()
    assert a.group_metadata() == ("g", -1, "")


def test_what_is_paused_stays_so_while_others_come(group: Group) -> None:
    a = group.join("a")
    a.poll(max_records=1)
    a.pause(("t", 0))
    a.seek(("t", 1), 7)
    group.join("b")
    group.settle()
    assert a.assignment() == {("t", 0), ("t", 1)}
    assert a.paused() == {("t", 0)}
    assert values(a) == [(1, 7), (1, 8), (1, 9)]


# --- listeners


@BOTH
def test_a_listener_may_commit_what_goes(group: Group) -> None:
    class Commits(Told):
        def on_revoked(self, partitions: set[TopicPartition]) -> None:
            super().on_revoked(partitions)
            a.commit()

    listener = Commits()
    a = group.join("a", listener, enable_auto_commit=False)
    assert len(values(a, max_records=40)) == 40
    group.join("b")
    a.poll()
    assert listener.events[1][0] == "-"
    for number in (2, 3):
        assert committed(group.log, ("t", number)) == 10
    a.close()
    for number in range(4):
        assert committed(group.log, ("t", number)) == 10


def test_a_listener_may_seek_in_what_comes(group: Group) -> None:
    class Seeks(RebalanceListener):
        def on_assigned(self, partitions: set[TopicPartition]) -> None:
            for one in partitions:
                a.seek(one, 9)

    a = group.join("a", Seeks())
    assert sorted(values(a)) == [(number, 9) for number in range(4)]


def test_a_listener_may_pause_what_comes(group: Group) -> None:
    class Pauses(RebalanceListener):
        def on_assigned(self, partitions: set[TopicPartition]) -> None:
            a.pause(*partitions)

    a = group.join("a", Pauses())
    assert a.poll() == {}
    a.resume()
    assert len(values(a)) == 40


def test_lost_means_revoked_to_who_does_not_care(group: Group) -> None:
    class Plain(RebalanceListener):
        events: list[int] = []  # noqa: RUF012

        def on_revoked(self, partitions: set[TopicPartition]) -> None:
            self.events.append(len(partitions))

    Plain().on_lost({T})
    assert Plain.events == [1]


@BOTH
def test_what_a_listener_raises_about_what_goes_comes_out_of_poll_once(group: Group) -> None:
    class Raises(Told):
        def on_revoked(self, partitions: set[TopicPartition]) -> None:
            super().on_revoked(partitions)
            raise RuntimeError("not ours")

    listener = Raises()
    a = group.join("a", listener)
    a.poll(max_records=1)
    b = group.join("b")
    with pytest.raises(RuntimeError):
        a.poll()
    went = listener.since()[-1]
    a.poll(max_records=1)
    b.poll(max_records=1)
    assert ("-", ()) not in listener.events and went not in listener.events, "it is told once"
    assert group.shares() == {"a": {0, 1}, "b": {2, 3}}
    with pytest.raises(RuntimeError):
        a.close()
    assert [one.client_id for one in group.log.describe_group("g").members] == ["b"]
    a.close()


def test_what_a_listener_raises_about_what_comes_comes_out_of_poll_once(group: Group) -> None:
    class Raises(RebalanceListener):
        def on_assigned(self, partitions: set[TopicPartition]) -> None:
            raise RuntimeError("not ours")

    a = group.join("a", Raises())
    with pytest.raises(RuntimeError):
        a.poll()
    assert len(values(a)) == 40


@pytest.mark.parametrize("when", ["on_assigned", "on_revoked"])
def test_a_commit_that_a_listener_tries_in_vain_does_not_make_another_member(group: Group, when: str) -> None:
    def vain(partitions: set[TopicPartition]) -> None:
        a.commit({("u", 0): 5})

    group.log.create_topic("u")
    listener = RebalanceListener()
    setattr(listener, when, vain)
    a = group.join("a", listener)
    if when == "on_revoked":
        a.poll(max_records=1)
        group.join("b")
    with pytest.raises(CommitFailedError):
        a.poll()
    listener.on_revoked = lambda partitions: None  # type: ignore[method-assign]
    group.settle()
    members = group.log.describe_group("g").members
    assert len(members) == len(group.members)
    assert len({one for member in group.members.values() for one in member.assignment()}) == 4


@pytest.mark.parametrize("end", ["close", "unsubscribe"])
@BOTH
def test_a_listener_may_end_the_membership(group: Group, end: str) -> None:
    class Ends(Told):
        def on_revoked(self, partitions: set[TopicPartition]) -> None:
            super().on_revoked(partitions)
            getattr(a, end)()

    a = group.join("a", Ends())
    a.poll(max_records=1)
    b = group.join("b")
    assert a.poll() == {}
    group.members.pop("a")
    group.settle()
    assert [one.client_id for one in group.log.describe_group("g").members] == ["b"]
    assert len(b.assignment()) == 4


def test_a_listener_of_before_is_not_told_of_what_is_assigned_by_hand(group: Group) -> None:
    a = group.join("a")
    a.poll()
    a.unsubscribe()
    assert group.since("a") == [("+", (0, 1, 2, 3)), ("-", (0, 1, 2, 3))]
    a.assign([T])
    a.close()
    assert group.since("a") == []


# --- members that fall silent


def test_a_silent_member_is_removed_and_its_partitions_go_to_the_others(group: Group) -> None:
    a, b = group.join("a"), group.join("b")
    group.settle()
    group.since("a")
    before = len(values(a, max_records=3))
    silence(a)
    member_of(b).tick()
    assert [one.client_id for one in group.log.describe_group("g").members] == ["b"]
    b.poll(max_records=1)
    assert group.shares()["b"] == {0, 1, 2, 3}
    with pytest.raises(CommitFailedError, match="removed from the group"):
        a.commit()
    assert before == 3
    assert committed(group.log) is None

    a.poll(max_records=1)
    assert group.since("a") == [("x", (0, 1))]
    group.settle()
    assert group.shares() == {"a": group.shares()["a"], "b": group.shares()["b"]}
    assert [len(share) for share in group.shares().values()] == [2, 2]


def test_a_removed_member_loses_its_partitions_before_it_gets_others(group: Group) -> None:
    a = group.join("a")
    assert len(values(a, max_records=5)) == 5
    silence(a)
    group.log.describe_group("g")  # whoever looks removes who is silent
    assert len(values(a, timeout=30)) == 40, "nothing was committed"
    assert group.since("a") == [("+", (0, 1, 2, 3)), ("x", (0, 1, 2, 3)), ("+", (0, 1, 2, 3))]


def test_a_commit_behind_the_back_of_a_removed_member_is_refused(group: Group) -> None:
    told: list[Any] = []
    a, b = group.join("a"), group.join("b")
    group.settle()
    values(a, max_records=3)
    silence(a)
    a.commit_async({T: 3}, lambda *what: told.append(what[1]))
    member_of(b).tick()
    b.close()
    a.close()
    assert [type(error) for error in told] == [CommitFailedError], "not as one of an empty group"
    assert committed(group.log) in (None, 0)


def test_closing_after_the_removal_commits_nothing(group: Group) -> None:
    a, b = group.join("a"), group.join("b")
    group.settle()
    assert len(values(a, max_records=3)) == 3
    silence(a)
    member_of(b).tick()
    member_of(a).tick()
    group.since("a")
    a.close()
    assert group.since("a") == [("x", (0, 1))]
    assert committed(group.log) is None


def test_a_listener_that_closes_a_lost_consumer_ends_it(group: Group) -> None:
    class Ends(RebalanceListener):
        def on_lost(self, partitions: set[TopicPartition]) -> None:
            a.close()

    a = group.join("a", Ends())
    a.poll()
    silence(a)
    group.log.describe_group("g")
    assert a.poll() == {}
    assert group.log.describe_group("g").members == ()


def neglect(consumer: Consumer) -> None:
    """Let a member be as one that was not polled for a long time."""
    member = member_of(consumer)
    assert member._idle_since_ns is not None
    member._idle_since_ns = LONG_AGO
    member.tick()


def test_a_member_that_does_not_poll_leaves(group: Group) -> None:
    a = group.join("a")
    a.poll(max_records=3)
    neglect(a)
    assert group.log.describe_group("g").members == ()
    with pytest.raises(CommitFailedError):
        a.commit()
    group.since("a")
    assert len(values(a, timeout=30, max_records=3)) == 3
    assert group.since("a") == [("x", (0, 1, 2, 3)), ("+", (0, 1, 2, 3))]


def test_a_member_that_never_polls_leaves(group: Group) -> None:
    """Or its share would be read by nobody."""
    a = group.join("a", max_poll_interval_ms=1, heartbeat_interval_ms=1)
    wait_until(lambda: member_of(a).lost)
    assert group.log.describe_group("g").members == ()


def test_a_member_that_waits_in_poll_stays(group: Group) -> None:
    a = group.join("a")
    assert len(values(a)) == 40
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(values(a, timeout=60)))
    thread.start()
    fetcher: Any = a._fetcher
    wait_until(lambda: any(place.partition._state.waiters.count for place in fetcher.places.values()))
    assert member_of(a)._idle_since_ns is None, "no time is counted"
    member_of(a).tick()
    assert not member_of(a).lost
    group.log.topic("t").partition(0).append(b"v")
    thread.join(30)
    assert found == [(0, 10)]


def test_the_time_before_a_subscription_does_not_count(group: Group) -> None:
    a = group.join("a")
    a.poll()
    a.unsubscribe()
    neglect(a)
    member = member_of(a)
    a.subscribe("t")
    member.tick()
    assert not member.lost


# --- static members


@BOTH
def test_a_static_member_comes_back_without_a_rebalance(group: Group) -> None:
    a, b = group.join("a", group_instance_id="a"), group.join("b", group_instance_id="b")
    group.settle()
    share = group.shares()["a"]
    generation = group.log.describe_group("g").generation
    group.since("b")
    assert len(values(a, max_records=3)) == 3
    a.close()
    b.poll(max_records=1)
    a = group.join("a2", group_instance_id="a")
    del group.members["a"]
    b.poll(max_records=1)
    a.poll(max_records=1)
    assert group.since("b") == []
    assert group.since("a2") == [("+", tuple(sorted(share)))]
    assert group.log.describe_group("g").generation == generation
    first = min(share)
    assert committed(group.log, ("t", first)) == 3


@BOTH
@pytest.mark.parametrize("noticed_by", ["poll", "thread"])
def test_a_static_member_that_is_there_twice_fences_the_older_one(group: Group, noticed_by: str) -> None:
    old = group.join("old", group_instance_id="one")
    assert len(values(old, max_records=3)) == 3
    group.since("old")
    new = group.join("new", group_instance_id="one")
    if noticed_by == "thread":
        member_of(old).tick()
    for _ in range(3):
        with pytest.raises(FencedMemberError):
            old.poll()
    assert group.since("old") == [("x", (0, 1, 2, 3))]
    for call in (lambda: old.commit({T: 3}), lambda: old.subscribe("t")):
        with pytest.raises(FencedMemberError):
            call()
    old.close()
    assert len(values(new)) == 40, "what the old one read was not committed"
    assert [one.client_id for one in group.log.describe_group("g").members] == ["new"]


def test_a_fenced_member_that_never_noticed_closes_quietly(group: Group) -> None:
    old = group.join("old", group_instance_id="one")
    old.poll()
    new = group.join("new", group_instance_id="one")
    old.close()
    assert len(values(new)) == 40


@BOTH
def test_a_static_member_that_comes_back_gives_up_what_was_shared_out_meanwhile(group: Group) -> None:
    a = group.join("a", group_instance_id="a")
    a.poll(max_records=1)
    a.close()
    b = group.join("b")
    b.poll(max_records=1)
    assert group.since("b") == [], "what the static member had waits for it"
    group.members.pop("a")
    group.join("a", group_instance_id="a")
    group.settle()
    assert group.shares() == {"a": {0, 1}, "b": {2, 3}}
    assert group.since("a") == [("+", (0, 1))], "it never had the others"
    assert group.since("b") == [("+", (2, 3))]


@BOTH
def test_a_static_member_may_come_back_for_other_topics(group: Group) -> None:
    group.log.create_topic("u", partitions=2)
    a = group.join("a", group_instance_id="a")
    a.poll(max_records=1)
    a.subscribe("u", listener=group.told["a"])
    group.since("a")
    group.settle()
    assert a.assignment() == {("u", 0), ("u", 1)}
    assert group.since("a") == [("+", (0, 1))]
    a.close()
    group.members.pop("a")
    a = group.join("a", group_instance_id="a", topics=["t"])
    group.settle()
    assert {one.topic for one in a.assignment()} == {"t"}


def test_a_static_member_that_stays_away_is_removed_in_the_end(group: Group) -> None:
    a, b = group.join("a", group_instance_id="a"), group.join("b")
    group.settle()
    member = member_of(a)
    about = member._member
    assert about is not None
    a.close()
    b.poll(max_records=1)
    assert len(b.assignment()) == 2
    member.directory.heartbeats.beat(about.slot, about.token, LONG_AGO)
    member_of(b).tick()
    b.poll(max_records=1)
    assert len(b.assignment()) == 4


def test_a_static_member_that_does_not_poll_keeps_its_place_for_a_while(group: Group) -> None:
    a = group.join("a", group_instance_id="a")
    a.poll(max_records=3)
    neglect(a)
    assert [one.instance_id for one in group.log.describe_group("g").members] == ["a"]
    group.since("a")
    assert len(values(a, timeout=30, max_records=3)) == 3
    assert group.since("a") == [("x", (0, 1, 2, 3)), ("+", (0, 1, 2, 3))]


# --- beside the group


def test_who_assigns_by_hand_beside_members_may_not_commit(group: Group) -> None:
    a = group.join("a")
    a.poll(max_records=1)
    with group.log.consumer(group_id="g") as other:
        other.assign([T])
        assert len(values(other)) == 10
        with pytest.raises(CommitFailedError, match="has members"):
            other.commit()
    a.poll()
    a.close()
    assert committed(group.log) == 10


def test_what_another_member_has_may_not_be_committed(group: Group) -> None:
    a, b = group.join("a"), group.join("b")
    group.settle()
    (theirs, *_) = b.assignment()
    with pytest.raises(CommitFailedError, match="not assigned to this member"):
        a.commit({theirs: 5})
    assert committed(group.log, theirs) is None


def test_a_commit_in_the_middle_of_a_rebalance_is_told_so(group: Group) -> None:
    a = group.join("a")
    a.poll()
    b = group.join("b")
    with pytest.raises(RebalanceInProgressError):
        b.commit({T: 5})
    a.commit()
    assert committed(group.log, ("t", 3)) == 10, "its owner may, until it lets go"


def test_strategies_that_nobody_shares_are_refused_and_the_group_goes_on(group: Group) -> None:
    a = group.join("a", partition_assignment_strategy=["range", "roundrobin"])
    a.poll(max_records=1)
    before = group.log.describe_group("g")
    with pytest.raises(InconsistentGroupError):
        group.join("b", partition_assignment_strategy="sticky")
    assert group.log.describe_group("g") == before
    group.members.pop("b").close()
    group.join("c", partition_assignment_strategy=["sticky", "roundrobin"])
    group.settle()
    assert group.log.describe_group("g").strategy == "roundrobin"
    assert group.shares() == {"a": {0, 2}, "c": {1, 3}}


# --- topics


def test_who_subscribes_to_other_topics_gets_those(group: Group) -> None:
    fill(group.log.create_topic("u").partition(0), 2)
    a, b = group.join("a"), group.join("b")
    group.settle()
    a.poll(max_records=1)
    a.subscribe("u", listener=group.told["a"])
    group.since("a")
    group.settle()
    assert a.assignment() == {("u", 0)}
    assert group.since("a") == [("+", (0,))]
    assert len(b.assignment()) == 4
    assert len(values(a)) == 2
    assert committed(group.log, min(b.assignment())) == 1, "what it read of the old topic was committed"


def test_a_pattern_finds_topics_to_come(group: Group) -> None:
    a = group.join("a", pattern="t.*", heartbeat_interval_ms=1)
    b = group.join("b", pattern="t.*", heartbeat_interval_ms=1)
    group.settle()
    fill(group.log.create_topic("t2", partitions=2).partition(0), 3)
    seen: set[TopicPartition] = set()

    def all_read() -> bool:
        seen.update(a.poll(), b.poll())
        return {one.topic for one in a.assignment() | b.assignment()} == {"t", "t2"} and len(seen) == 5

    wait_until(all_read)
    group.settle()
    assert len(a.assignment()) == len(b.assignment()) == 3


def test_partitions_that_a_topic_gets_later_are_shared_too(group: Group, topic: Topic) -> None:
    a, b = group.join("a"), group.join("b")
    group.settle()
    topic.add_partitions(6)
    member_of(a).tick()
    group.settle()
    assert group.shares()["a"] | group.shares()["b"] == set(range(6))
    assert len(a.assignment()) == len(b.assignment()) == 3


def test_a_deleted_topic_is_given_up(group: Group) -> None:
    fill(group.log.create_topic("u").partition(0), 2)
    a = group.join("a", topics=["t", "u"])
    a.poll()
    group.log.delete_topic("t")
    assert a.poll() == {}
    member_of(a).tick()
    a.poll()
    assert a.assignment() == {("u", 0)}
    assert group.since("a")[-1] == ("-", (0, 1, 2, 3))
    assert committed(group.log) is None


# --- changes that come at the wrong moment


@BOTH
def test_who_finds_nothing_to_give_up_looks_again_before_it_takes(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another member comes between the two, and nothing else happens after that."""
    a = group.join("a")
    a.poll(max_records=1)
    group.join("b").close()
    member = member_of(a)
    real = member.take

    def interrupted() -> Any:
        monkeypatch.setattr(member, "take", real)
        group.join("c")
        return real()

    monkeypatch.setattr(member, "take", interrupted)
    a.poll(max_records=1)
    group.settle("a", "c")
    assert group.shares() == {"a": {0, 1}, "b": set(), "c": {2, 3}}


@BOTH
@pytest.mark.parametrize("moment", ["to_release", "release", "take"])
def test_a_member_that_comes_in_the_middle_of_a_poll_gets_its_share(
    group: Group, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Between two looks at the group it may have changed again."""
    a = group.join("a")
    a.poll(max_records=1)
    b = group.join("b")
    member = member_of(a)
    real = getattr(member, moment)

    def interrupted(*args: Any) -> Any:
        monkeypatch.setattr(member, moment, real)
        group.join("c")
        return real(*args)

    monkeypatch.setattr(member, moment, interrupted)
    for _ in range(6):
        for one in (a, b, group.members.get("c")):
            if one is not None:
                one.poll(max_records=1)
    assert sorted(len(share) for share in group.shares().values()) == [1, 1, 2]
    assert set().union(*group.shares().values()) == {0, 1, 2, 3}


@BOTH
def test_a_member_that_leaves_in_the_middle_of_a_poll_leaves_its_share(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = group.join("a"), group.join("b")
    group.settle()
    c = group.join("c")
    member = member_of(a)
    real = member.take

    def interrupted() -> Any:
        monkeypatch.setattr(member, "take", real)
        b.close()
        return real()

    monkeypatch.setattr(member, "take", interrupted)
    for _ in range(6):
        a.poll(max_records=1)
        c.poll(max_records=1)
    group.members.pop("b")
    assert [len(share) for share in group.shares().values()] == [2, 2]


# --- threads


@BOTH
def test_members_in_threads_hand_out_everything(log: CommitLog, topic: Topic, strategy: str) -> None:
    """They come and go while records are appended; nothing is left out, and each keeps its order."""
    end = 100
    seen: list[list[tuple[int, int]]] = [[] for _ in range(4)]
    total = threading.Event()

    def work(number: int) -> Iterator[None]:
        for _ in range(3):
            settings: dict[str, Any] = {"partition_assignment_strategy": strategy, "heartbeat_interval_ms": 5}
            with log.consumer("t", group_id="g", **settings) as consumer:
                for _ in range(20):
                    seen[number] += values(consumer, max_records=7, timeout=0.002)
                    yield
        with log.consumer("t", group_id="g", partition_assignment_strategy=strategy) as consumer:
            while not total.is_set():
                seen[number] += values(consumer, timeout=0.01)
                yield

    def run(number: int) -> None:
        for _ in work(number):
            if len({one for some in seen for one in some}) == 4 * end:
                total.set()

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(end - 10):
        for partition in topic.partitions:
            fill(partition, 1)
    for thread in threads:
        thread.join(60)
    assert total.is_set()
    everything = sorted(one for some in seen for one in some)
    assert everything == [(number, offset) for number in range(4) for offset in range(end)]
