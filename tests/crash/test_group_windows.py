"""A kill in each window of consumer groups that the source marks `# crash:`.

Each docstring quotes the comment it tests. The machine does not boot meanwhile, so that members that live in
other processes go on.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import commitlog
from commitlog import CommitLog, Consumer, ConsumerConfig
from commitlog.errors import CommitFailedError
from commitlog.groups.directory import GroupDirectory
from commitlog.groups.member import GroupMember
from commitlog.record import TopicPartition

from .windows import crashed_at

pytestmark = pytest.mark.usefixtures("quick_disk")

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def live(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """Where the kill leaves its copy."""
    return tmp_path / "left"


@pytest.fixture(autouse=True)
def filled(live: Path) -> None:
    with commitlog.open(live) as log:
        for partition in log.create_topic("t", partitions=2).partitions:
            partition.append_many([b"0", b"1", b"2"])


def joined(log: CommitLog, client_id: str = "") -> Consumer:
    consumer = log.consumer("t", group_id="g", client_id=client_id, enable_auto_commit=False)
    consumer.poll()
    return consumer


def clients(log: CommitLog) -> list[str]:
    return [member.client_id for member in log.describe_group("g").members]


def check_goes_on(path: Path) -> None:
    """A new member gets its share, commits and leaves, whatever the killed one left."""
    with commitlog.open(path) as log:
        if "g" in log.groups():
            log.reset_offsets("g", "earliest", topics=["t"])
        with joined(log) as consumer:
            assert consumer.assignment() == {T0, T1}
            consumer.commit({T0: 2})
            assert consumer.committed(T0) == 2
        log.delete_group("g")
        assert log.groups() == []


# --- directory.py


@pytest.mark.parametrize(
    "window",
    [
        "counted, not replaced -> the others read the old state once more",
        "the new state beside the old one -> overwritten by the next change",
    ],
)
def test_kill_before_a_changed_group_is_in_place(live: Path, left: Path, window: str) -> None:
    """The two windows before the group's file is replaced.

    crash: counted, not replaced -> the others read the old state once more
    crash: the new state beside the old one -> overwritten by the next change
    """
    with commitlog.open(live) as log, joined(log, "one"):
        with crashed_at(window, live, left):
            log.consumer("t", group_id="g", client_id="two").close()
        with commitlog.open(left) as again:
            assert clients(again) == ["one"]
            assert again.describe_group("g").state == "Stable"
            again.consumer("t", group_id="g", client_id="three")
            assert clients(again) == ["one", "three"]


@pytest.mark.parametrize("hit", [1, 2])
def test_kill_before_a_groups_first_state_is_in_place(live: Path, left: Path, hit: int) -> None:
    window = "the new state beside the old one -> overwritten by the next change"
    with commitlog.open(live) as log, crashed_at(window, live, left, hit):
        joined(log).close()
    if hit == 1:
        with commitlog.open(left) as again:
            assert again.groups() == []
        check_goes_on(left)
    else:  # it was to be noted that the target is reached
        with commitlog.open(left) as again:
            assert again.describe_group("g").state == "Rebalancing"


def test_others_that_live_read_the_old_state_once_more(live: Path) -> None:
    """crash: counted, not replaced -> the others read the old state once more"""
    here, dying = GroupDirectory(str(live), "g"), GroupDirectory(str(live), "g")
    with here.lock, here.changing() as state:
        state.generation = 7
    dying.heartbeats.count_change()  # and no more
    assert here.heartbeats.changes == 2
    with here.lock, here.changing() as state:
        assert state.generation == 7
        state.generation = 8
    with dying.lock:
        state = dying.look()
        assert state.generation == 8


class Alone:
    """A group whose members have a clock that the test moves."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.now_ns = 10**15

    def member(self, client_id: str, join: bool = True) -> GroupMember:
        settings = ConsumerConfig(
            client_id=client_id,
            session_timeout_ms=1_000,
            heartbeat_interval_ms=100,
            max_poll_interval_ms=10_000,
        )
        directory = GroupDirectory(self.path, "g")
        member = GroupMember(directory, None, settings, lambda names: {"t": 2}, lambda: self.now_ns)
        if join:
            member.join(["t"])
        return member

    def clients(self) -> list[str]:
        with (group := GroupDirectory(self.path, "g")).lock:
            state = group.look()
            return [one.client_id for one in state.members.values()]


def settle(*members: GroupMember) -> list[set[TopicPartition]]:
    for member in members * 3:
        member.release(member.to_release())
        member.take()
    return [member.take() for member in members]


def test_kill_before_the_slots_of_who_has_gone_are_vacated(live: Path, left: Path) -> None:
    """crash: replaced, slots of removed members not vacated -> their heartbeats have no effect"""
    window = "replaced, slots of removed members not vacated -> their heartbeats have no effect"
    group = Alone(live)
    gone, stays = group.member("gone"), group.member("stays")
    settle(gone, stays)
    was = gone._member
    with crashed_at(window, live, left):
        gone.leave()
    after = Alone(left)
    assert after.clients() == ["stays"]
    zombie = after.member("gone", join=False)
    zombie._member = was
    zombie.tick()
    assert not zombie.lost  # its slot is still its own, but that is of no use to it
    for attempt in (zombie.to_release, zombie.take, lambda: zombie.commit({})):
        with pytest.raises(CommitFailedError):
            attempt()
    after.member("new")
    zombie.tick()
    assert zombie.lost


def test_kill_before_a_new_member_has_its_slot(live: Path, left: Path) -> None:
    """crash: a new member whose slot is empty or has an old token -> removed as a silent one"""
    window = "a new member whose slot is empty or has an old token -> removed as a silent one"
    group = Alone(live)
    one = group.member("one")
    settle(one)
    with crashed_at(window, live, left):
        group.member("two")
    after = Alone(left)
    assert after.clients() == ["one", "two"]
    new = after.member("new")
    assert after.clients() == ["one", "new"]
    new.tick()
    assert not new.lost


# --- admin.py and log.py


def test_kill_in_the_deletion_of_a_group(live: Path, left: Path) -> None:
    """crash: a group without offsets whose file remains -> delete it again"""
    window = "a group without offsets whose file remains -> delete it again"
    with commitlog.open(live) as log:
        with joined(log) as consumer:
            consumer.commit({T0: 2, T1: 1})
        with crashed_at(window, live, left):
            log.delete_group("g")
    with commitlog.open(left) as log:
        assert log.groups() == ["g"]
        found = log.describe_group("g")
        assert (found.state, found.partitions) == ("Empty", ())
        log.delete_group("g")
        assert log.groups() == []
    check_goes_on(left)


def test_kill_in_the_deletion_of_a_topic_that_groups_read(live: Path, left: Path) -> None:
    """crash: no offsets of a topic that is still there -> groups read it from where auto_offset_reset says"""
    window = "no offsets of a topic that is still there -> groups read it from where auto_offset_reset says"
    with commitlog.open(live) as log:
        log.create_topic("other").partition(0).append(b"x")
        with log.consumer(group_id="g") as consumer:
            consumer.commit({T0: 2, T1: 1, ("other", 0): 1})
        with crashed_at(window, live, left):
            log.delete_topic("t")
    with commitlog.open(left) as log:
        assert log.topics() == ["other", "t"]
        assert [(one.topic, one.committed) for one in log.describe_group("g").partitions] == [("other", 1)]
        with joined(log) as consumer:
            assert (consumer.position(T0), consumer.position(T1)) == (3, 3)  # read from the first on
        log.delete_topic("t")
    with commitlog.open(left) as log:
        assert log.topics() == ["other"]
