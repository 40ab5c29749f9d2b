from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import contents, tree, wait_until

import commitlog
from commitlog import CommitLog, Consumer
from commitlog.errors import (
    ClosedError,
    CommitFailedError,
    ConfigError,
    GroupNotEmptyError,
    InvalidTopicError,
    UnknownGroupError,
    UnknownPartitionError,
    UnknownTopicError,
)
from commitlog.groups.member import GroupMember
from commitlog.groups.offsets import TOPIC, OffsetAndMetadata
from commitlog.record import TopicPartition
from commitlog.tasks import Task

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


@pytest.fixture(autouse=True)
def filled(log: CommitLog) -> None:
    """A topic of three partitions, with 10, 5 and no records."""
    topic = log.create_topic("t", partitions=3)
    for number, count in ((0, 10), (1, 5)):
        for offset in range(count):
            topic.partition(number).append(b"%d" % offset, timestamp=1_000 + offset)


@pytest.fixture(params=["w", "r"])
def opened(log: CommitLog, request: pytest.FixtureRequest) -> Iterator[CommitLog]:
    """The log itself, or the same one opened for reading beside its writer."""
    if request.param == "w":
        yield log
    else:
        with commitlog.open(log.path, mode="r") as reader:
            yield reader


def commit(log: CommitLog, group_id: str = "g", **offsets: int) -> None:
    """Commit t0=5: the offset 5 of partition t-0."""
    with log.consumer(group_id=group_id) as consumer:
        consumer.commit({(name[0], int(name[1:])): offset for name, offset in offsets.items()})


def committed(log: CommitLog, group_id: str = "g") -> dict[str, int | None]:
    found = log.describe_group(group_id).partitions if group_id in log.groups() else ()
    return {f"{one.topic}{one.partition}": one.committed for one in found}


def shown(offsets: dict[TopicPartition, int]) -> dict[str, int]:
    return {f"{topic}{number}": offset for (topic, number), offset in offsets.items()}


def member_of(consumer: Consumer) -> GroupMember:
    assert consumer._session is not None
    return consumer._session.member


# --- which groups there are


def test_a_log_has_no_groups_at_first_and_asking_makes_none(opened: CommitLog) -> None:
    before = tree(opened.path)
    assert opened.groups() == []
    assert tree(opened.path) == before


def test_groups_with_members_and_groups_that_have_committed_are_found(opened: CommitLog) -> None:
    commit(opened, "b", t0=1)
    with opened.consumer("t", group_id="a/☃"):
        assert opened.groups() == ["a/☃", "b"]


def test_a_group_that_was_never_heard_of_is_unknown(opened: CommitLog) -> None:
    before = tree(opened.path)
    for ask in (
        lambda: opened.describe_group("g"),
        lambda: opened.reset_offsets("g", "earliest"),
        lambda: opened.delete_group("g"),
    ):
        with pytest.raises(UnknownGroupError, match="'g'"):
            ask()
    assert tree(opened.path) == before


def test_a_closed_log_tells_nothing(opened: CommitLog) -> None:
    commit(opened, t0=1)
    opened.close()
    for ask in (
        opened.groups,
        lambda: opened.describe_group("g"),
        lambda: opened.reset_offsets("g", "earliest"),
        lambda: opened.delete_group("g"),
    ):
        with pytest.raises(ClosedError):
            ask()


# --- describing one


def test_a_group_that_only_committed_is_empty_and_has_a_lag(opened: CommitLog) -> None:
    commit(opened, t0=4, t1=5)
    found = opened.describe_group("g")
    assert (found.group_id, found.state, found.generation, found.strategy) == ("g", "Empty", 0, None)
    assert found.members == ()
    assert [(one.partition, one.committed, one.end_offset, one.lag) for one in found.partitions] == [
        (0, 4, 10, 6),
        (1, 5, 5, 0),
    ]
    assert {one.member_id for one in found.partitions} == {None}


def test_what_is_committed_beyond_the_end_has_no_lag(opened: CommitLog) -> None:
    commit(opened, t0=99)
    assert opened.describe_group("g").partitions[0].lag == 0


def test_a_member_is_described_with_what_it_reads(opened: CommitLog) -> None:
    with opened.consumer("t", group_id="g", client_id="me", group_instance_id="box") as consumer:
        assert opened.describe_group("g").state == "Rebalancing"
        consumer.poll(max_records=3)
        consumer.commit()
        found = opened.describe_group("g")
        (member,) = found.members
        assert (found.state, found.generation, found.strategy) == ("Stable", 1, "cooperative-sticky")
        assert (member.client_id, member.instance_id, member.topics) == ("me", "box", ("t",))
        assert member.member_id == consumer.group_metadata().member_id
        assert member.partitions == (T0, T1, T2)
        assert {one.member_id for one in found.partitions} == {member.member_id}
        assert [one.lag for one in found.partitions] == [7, 5, 0]
    assert opened.describe_group("g").state == "Stable"  # it is static, and expected back


def test_partitions_nobody_has_yet_are_described_too(opened: CommitLog) -> None:
    with opened.consumer("t", group_id="g"):
        found = opened.describe_group("g")
        assert [(one.partition, one.committed, one.lag, one.member_id) for one in found.partitions] == [
            (0, None, None, None),
            (1, None, None, None),
            (2, None, None, None),
        ]


def test_two_members_are_described_with_their_share(opened: CommitLog) -> None:
    with opened.consumer("t", group_id="g") as one, opened.consumer("t", group_id="g") as two:
        for _ in range(3):
            one.poll()
            two.poll()
        found = opened.describe_group("g")
        assert (found.state, found.generation) == ("Stable", 2)
        assert [set(member.partitions) for member in found.members] == [one.assignment(), two.assignment()]
    assert opened.describe_group("g").state == "Empty"
    assert opened.describe_group("g").generation == 4


def test_partitions_of_a_deleted_topic_are_left_out(log: CommitLog, opened: CommitLog) -> None:
    log.create_topic("u").partition(0).append(b"x")
    with opened.consumer("t", "u", group_id="g") as consumer:
        consumer.poll()
        consumer.commit()
        log.delete_topic("u")
        assert {one.topic for one in opened.describe_group("g").partitions} == {"t"}


# --- members that died


def fall_silent(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> Consumer:
    """A member that has committed, and gives no sign of life for longer than its session_timeout_ms."""
    monkeypatch.setattr(Task, "start", lambda self: None)
    silent = log.consumer("t", group_id="g", enable_auto_commit=False)
    silent.poll(max_records=3)
    silent.commit({T0: 3})
    start, timeout = time.monotonic_ns(), silent.config.session_timeout_ms
    monkeypatch.setattr(time, "monotonic_ns", lambda: start + (timeout + 10_000) * 1_000_000)
    return silent


def test_dead_members_are_not_described(opened: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = fall_silent(opened, monkeypatch)
    found = opened.describe_group("g")
    assert (found.state, found.members) == ("Empty", ())
    with pytest.raises(CommitFailedError):
        silent.commit({T0: 5})


def test_dead_members_do_not_keep_anybody_from_changing_the_group(
    opened: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = fall_silent(opened, monkeypatch)
    assert shown(opened.reset_offsets("g", "latest", topics=["t"])) == {"t0": 10, "t1": 5, "t2": 0}
    opened.delete_group("g")
    assert opened.groups() == []
    with pytest.raises(CommitFailedError):
        silent.commit({T0: 5})
    member_of(silent).tick()
    assert member_of(silent).lost


# --- setting offsets


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"to": "earliest"}, {"t0": 2, "t1": 0}),
        ({"to": "latest"}, {"t0": 10, "t1": 5}),
        ({"offset": 4}, {"t0": 4, "t1": 4}),
        ({"offset": 0}, {"t0": 2, "t1": 0}),
        ({"offset": -7}, {"t0": 2, "t1": 0}),
        ({"offset": 7}, {"t0": 7, "t1": 5}),
        ({"offset": 10**15}, {"t0": 10, "t1": 5}),
        ({"timestamp": 1_003}, {"t0": 3, "t1": 3}),
        ({"timestamp": 0}, {"t0": 2, "t1": 0}),
        ({"timestamp": 1_007}, {"t0": 7, "t1": 5}),
        ({"timestamp": 10**12}, {"t0": 10, "t1": 5}),
        ({"shift_by": 1}, {"t0": 7, "t1": 4}),
        ({"shift_by": 0}, {"t0": 6, "t1": 3}),
        ({"shift_by": -2}, {"t0": 4, "t1": 1}),
        ({"shift_by": -100}, {"t0": 2, "t1": 0}),
        ({"shift_by": 100}, {"t0": 10, "t1": 5}),
    ],
)
def test_offsets_are_set_within_what_the_log_has(
    log: CommitLog, opened: CommitLog, how: dict[str, Any], expected: dict[str, int]
) -> None:
    log.topic("t").partition(0).trim_before(2)
    commit(opened, t0=6, t1=3)
    assert shown(opened.reset_offsets("g", **how, dry_run=True)) == expected
    assert committed(opened) == {"t0": 6, "t1": 3}
    assert shown(opened.reset_offsets("g", **how)) == expected
    assert committed(opened) == expected


def test_a_group_goes_on_where_it_was_set(opened: CommitLog) -> None:
    commit(opened, t0=10, t1=5)
    opened.reset_offsets("g", offset=8, topics=[("t", 0)])
    with opened.consumer("t", group_id="g") as consumer:
        found = consumer.poll(timeout=30)
        assert [record.offset for record in found[T0]] == [8, 9]
        assert T1 not in found


def test_offsets_of_some_topics_and_partitions_are_set(log: CommitLog, opened: CommitLog) -> None:
    log.create_topic("u").partition(0).append(b"x")
    commit(opened, t0=6, t1=3, u0=0)
    assert shown(opened.reset_offsets("g", "latest", topics=["u"])) == {"u0": 1}
    assert shown(opened.reset_offsets("g", "latest", topics=[("t", 1)])) == {"t1": 5}
    assert committed(opened) == {"t0": 6, "t1": 5, "u0": 1}


def test_a_topic_means_all_its_partitions_committed_or_not(opened: CommitLog) -> None:
    commit(opened, t0=6)
    assert shown(opened.reset_offsets("g", shift_by=1, topics=["t", ("t", 0)])) == {"t0": 7, "t1": 1, "t2": 0}


def test_a_new_group_is_given_offsets_before_anybody_joins(opened: CommitLog) -> None:
    opened.reset_offsets("new", "latest", topics=["t"], dry_run=True)
    assert opened.groups() == []
    opened.reset_offsets("new", "latest", topics=["t"])
    assert opened.groups() == ["new"]
    with opened.consumer("t", group_id="new") as consumer:
        assert consumer.poll() == {}
        assert consumer.position(T0) == 10


def test_no_topics_are_no_offsets(opened: CommitLog) -> None:
    commit(opened, t0=6)
    assert opened.reset_offsets("g", "latest", topics=[]) == {}
    assert committed(opened) == {"t0": 6}


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"to": "middle"},
        {"to": "earliest", "offset": 3},
        {"offset": 3, "shift_by": 3},
        {"timestamp": 3, "offset": 0},
    ],
)
def test_one_way_must_be_given_and_no_other(opened: CommitLog, how: dict[str, Any]) -> None:
    commit(opened, t0=6)
    with pytest.raises(ConfigError, match="exactly one of"):
        opened.reset_offsets("g", **how)
    assert committed(opened) == {"t0": 6}


def test_topics_and_partitions_must_be_there(opened: CommitLog) -> None:
    commit(opened, t0=6)
    with pytest.raises(UnknownTopicError):
        opened.reset_offsets("g", "latest", topics=["t", "nowhere"])
    with pytest.raises(UnknownPartitionError):
        opened.reset_offsets("g", "latest", topics=[("t", 0), ("t", 3)])
    assert committed(opened) == {"t0": 6}


def test_a_group_with_members_is_left_alone(opened: CommitLog) -> None:
    commit(opened, t0=6)
    with opened.consumer("t", group_id="g") as consumer:
        for change in (
            lambda: opened.reset_offsets("g", "latest"),
            lambda: opened.reset_offsets("g", "latest", topics=["t"], dry_run=True),
            lambda: opened.delete_group("g"),
        ):
            with pytest.raises(GroupNotEmptyError, match="'g' has 1 members"):
                change()
        consumer.poll()
        assert consumer.assignment() == {T0, T1, T2}
        assert committed(opened)["t0"] == 6
    opened.reset_offsets("g", "earliest")


def test_offsets_committed_for_a_topic_that_is_gone_keep_nobody_from_setting_the_rest(
    log: CommitLog, opened: CommitLog
) -> None:
    """One who read it may commit after it was deleted; and nobody asks whether a partition is there."""
    log.create_topic("u")
    commit(opened, t0=6, u0=1)
    log.delete_topic("u")
    names = [("u", 0), ("t", 3), ("t", -1), ("no/name", 0)]
    opened._groups.offsets().commit("g", {TopicPartition(*name): OffsetAndMetadata(1) for name in names})
    assert committed(opened) == {"t0": 6}
    assert shown(opened.reset_offsets("g", "earliest")) == {"t0": 0}
    assert committed(opened) == {"t0": 0}
    opened.delete_group("g")
    assert opened.groups() == []


# --- deleting


def test_a_deleted_group_is_forgotten(opened: CommitLog) -> None:
    commit(opened, t0=6)
    with opened.consumer("t", group_id="g", enable_auto_commit=False) as consumer:
        consumer.poll()
    opened.delete_group("g")
    assert opened.groups() == []
    with pytest.raises(UnknownGroupError):
        opened.delete_group("g")
    with opened.consumer("t", group_id="g") as consumer:
        consumer.poll()
        assert consumer.committed(T0) is None


def test_deleting_a_group_leaves_the_others(opened: CommitLog) -> None:
    commit(opened, "g", t0=6)
    commit(opened, "h", t0=7)
    opened.delete_group("g")
    assert opened.groups() == ["h"]
    assert committed(opened, "h") == {"t0": 7}


def test_a_group_whose_members_never_committed_can_be_deleted(opened: CommitLog) -> None:
    with opened.consumer("t", group_id="g", enable_auto_commit=False):
        pass
    assert opened.groups() == ["g"]
    opened.delete_group("g")
    assert opened.groups() == []


def test_deleting_a_topic_forgets_what_groups_have_committed_for_it(log: CommitLog) -> None:
    log.create_topic("u")
    commit(log, "g", t0=6, t1=3, u0=0)
    commit(log, "h", t2=0)
    log.delete_topic("t")
    assert committed(log, "g") == {"u0": 0}
    assert log.groups() == ["g"]
    log.create_topic("t", partitions=3)
    assert committed(log, "g") == {"u0": 0}


def test_deleting_a_topic_nobody_has_committed_for_makes_no_internal_topic(log: CommitLog) -> None:
    log.delete_topic("t")
    assert not Path(log.path, f"{TOPIC}-0").exists()


# --- the internal topic


def test_the_internal_topic_is_not_among_the_topics(opened: CommitLog) -> None:
    commit(opened, t0=1)
    assert opened.topics() == ["t"]
    with opened.consumer() as consumer:
        consumer.subscribe(pattern=".*")
        assert consumer.subscription() == {"t"}


@pytest.mark.parametrize("there", [True, False])
def test_the_internal_topic_is_neither_created_nor_deleted_by_anybody_else(
    log: CommitLog, there: bool
) -> None:
    if there:
        commit(log, t0=1)
    with pytest.raises(InvalidTopicError):
        log.create_topic(TOPIC)
    with pytest.raises((InvalidTopicError, UnknownTopicError)):
        log.delete_topic(TOPIC)
    if there:
        assert committed(log) == {"t0": 1}


def test_the_internal_topic_is_read_like_any_other(opened: CommitLog) -> None:
    commit(opened, t0=1)
    commit(opened, t0=2)
    (first, second) = contents(opened.topic(TOPIC).partition(0))
    assert first.key == second.key == b'["g", "t", 0]'
    assert second.value == b'{"offset": 2, "metadata": ""}'


# --- other processes

CHILD = """
import sys, commitlog
with commitlog.open(sys.argv[1], mode="r") as log, log.consumer("t", group_id="g") as consumer:
    while len(consumer.assignment()) < 3:
        consumer.poll(timeout=0.1)
    consumer.seek(("t", 0), 7)
    consumer.commit({("t", 0): 7})
    print("ready", flush=True)
    sys.stdin.readline()
"""


def test_a_member_in_another_process_is_seen_beside_the_writer(log: CommitLog) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, log.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(Path(commitlog.__file__).parent.parent)},
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        found = log.describe_group("g")
        (member,) = found.members
        assert member.process.endswith(f":{child.pid}")
        assert (found.state, found.partitions[0].committed, found.partitions[0].lag) == ("Stable", 7, 3)
        with pytest.raises(GroupNotEmptyError):
            log.reset_offsets("g", "earliest")
        log.topic("t").add_partitions(4)
        assert len(log.describe_group("g").partitions) >= 3
    finally:
        child.communicate("end\n", timeout=60)
    assert child.returncode == 0
    wait_until(lambda: log.describe_group("g").state == "Empty")
    log.reset_offsets("g", "earliest")
    assert committed(log)["t0"] == 0


def test_a_group_whose_heartbeats_have_a_byte_more_is_described_as_ever(log: CommitLog) -> None:
    with log.consumer("t", group_id="g") as consumer:
        consumer.poll(0)
        with open(os.path.join(log.path, "groups", "g.beats"), "ab") as file:
            file.write(b"\0")
        assert log.describe_group("g").state == "Stable"
