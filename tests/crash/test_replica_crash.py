"""A replica that is killed, or loses power, in the middle of what replication asks of it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from soak import SEED, SOAK, count

import commitlog
from commitlog import CommitLog, Partition
from commitlog.partitions.epochs import EpochHistory, EpochStart

from .disk import write_image
from .logs import open_partition, value_of
from .power import moments
from .replicas import CONFIG, Replica, check, diverging, rows_in
from .windows import crashed_at

VARIANTS = 8 if SOAK else 4
SAMPLE = 800 if SOAK else 250

pytestmark = pytest.mark.usefixtures("quick_disk")


class Leaders(NamedTuple):
    """Three logs that led one after another.

    `first` has epochs 0 and 2, `second` has the first records of it and then epoch 3, `third` is `second`
    without the records below 20.
    """

    first: Partition
    second: Partition
    third: Partition


def follow(leader: Partition, follower: Partition, end: int) -> None:
    while follower.next_offset < end:
        found = leader.read_replica(follower.next_offset, 1)
        follower.append_replicated(found.data.read(), found.segment_base)


def fill(partition: Partition, end: int) -> None:
    while partition.next_offset < end:
        offset = partition.next_offset
        partition.append(value_of(offset) + b"%d" % partition.epochs.latest, timestamp=offset)


@pytest.fixture
def leaders(tmp_path: Path) -> Iterator[Leaders]:
    logs: list[CommitLog] = [commitlog.open(tmp_path / f"leader{number}") for number in range(3)]
    first, second, third = (one.create_topic("t", config=CONFIG).partition(0) for one in logs)
    first.lead(0)
    fill(first, 9)
    first.lead(2)
    first.append_many([b"nine", b"ten", b"eleven"], producer=(7, 0, 0))
    fill(first, 25)
    second.follow()
    follow(first, second, 15)
    second.lead(3)
    fill(second, 30)
    third.follow()
    follow(second, third, 30)
    for one in (first, second, third):
        one.set_high_watermark(30)
    third.trim_before(20)
    yield Leaders(first, second, third)
    for log in logs:
        log.close()


# --- killed in a window


@pytest.fixture
def live(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def left(tmp_path: Path) -> Path:
    return tmp_path / "left"


def history(*starts: tuple[int, int]) -> EpochHistory:
    return EpochHistory(tuple(EpochStart(*one) for one in starts))


def replica_of(leader: Partition, log: CommitLog, end: int) -> Partition:
    partition: Partition = log.create_topic("t", config=CONFIG).partition(0)
    partition.follow()
    follow(leader, partition, end)
    return partition


def catch_up(partition: Partition, leader: Partition) -> None:
    cut = diverging(leader, partition)
    if cut is not None:
        partition.truncate_from(cut)
    follow(leader, partition, leader.next_offset)
    assert rows_in(partition) == rows_in(leader)
    assert partition.verify().ok


def test_kill_before_the_first_batches_of_an_epoch(live: Path, left: Path, leaders: Leaders) -> None:
    """crash: leader epochs whose batches are not there -> open() drops them"""
    window = "leader epochs whose batches are not there -> open() drops them"
    with commitlog.open(live) as log:
        partition = replica_of(leaders.first, log, 9)
        with crashed_at(window, live, left):
            follow(leaders.first, partition, 12)
    with commitlog.open(left) as log:
        partition = open_partition(log)
        assert partition.next_offset == 9
        assert partition.epochs == history((0, 0), (2, 9)), "one that could begin here"
        partition.follow()
        catch_up(partition, leaders.second)
        assert partition.epochs == leaders.second.epochs


def test_kill_before_batches_of_several_epochs(live: Path, left: Path, leaders: Leaders) -> None:
    """crash: leader epochs whose batches are not there -> open() drops them"""
    window = "leader epochs whose batches are not there -> open() drops them"
    with commitlog.open(live) as log:
        partition = log.create_topic("t", config={**CONFIG, "segment_bytes": 1 << 20}).partition(0)
        partition.follow()
        whole = b"".join(
            bytes(leaders.first.read_replica(one.base_offset, 1 << 20).data.read())
            for one in leaders.first.segments
        )
        with crashed_at(window, live, left):
            partition.append_replicated(whole, 0)
        assert partition.epochs == leaders.first.epochs
    with commitlog.open(left) as log:
        assert open_partition(log).epochs == history((0, 0))
        open_partition(log).follow()
        catch_up(open_partition(log), leaders.second)


def test_kill_after_an_empty_segment_was_given_up(live: Path, left: Path, leaders: Leaders) -> None:
    """crash: the last segment, which was empty, is gone -> open() goes on in the one before"""
    window = "the last segment, which was empty, is gone -> open() goes on in the one before"
    with commitlog.open(live) as log:
        partition = replica_of(leaders.first, log, 5)
        bases = [one.base_offset for one in partition.segments]
        partition.roll()
        with crashed_at(window, live, left):
            follow(leaders.first, partition, 7)
        assert [one.base_offset for one in partition.segments][: len(bases)] == bases
    with commitlog.open(left) as log:
        partition = open_partition(log)
        assert partition.next_offset == 5
        assert [one.base_offset for one in partition.segments] == bases
        partition.follow()
        catch_up(partition, leaders.first)


@pytest.mark.parametrize("cut", [3, 9, 12, 15])
def test_kill_in_a_truncation_after_the_history_was_cut(
    live: Path, left: Path, leaders: Leaders, cut: int
) -> None:
    """crash: records whose leader epochs the file does not tell -> open() reads them from the batches"""
    window = "records whose leader epochs the file does not tell -> open() reads them from the batches"
    with commitlog.open(live) as log:
        partition = replica_of(leaders.second, log, 20)
        with crashed_at(window, live, left):
            partition.truncate_from(cut)
        assert partition.epochs == leaders.second.epochs.truncated_from(cut)
    with commitlog.open(left) as log:
        partition = open_partition(log)
        assert partition.next_offset == 20
        assert partition.epochs == leaders.second.epochs
        partition.follow()
        catch_up(partition, leaders.first)


@pytest.mark.parametrize("window", [
    "the recovery point is lower than it need be -> open() checks more and finds every record",
    "the log ends with the segment that holds `offset` -> open() finds its records again",
    "the copy is still .tmp -> open() removes it, the segment is whole",
    "no indexes -> open() rebuilds them",
])  # fmt: skip
@pytest.mark.parametrize("cut", [3, 9, 12])
def test_kill_later_in_a_truncation(live: Path, left: Path, leaders: Leaders, window: str, cut: int) -> None:
    with commitlog.open(live) as log:
        partition = replica_of(leaders.second, log, 20)
        partition.set_high_watermark(19)
        with crashed_at(window, live, left):
            partition.truncate_from(cut)
    with commitlog.open(left) as log:
        partition = open_partition(log)
        for row in rows_in(partition):
            assert partition.epochs.epoch_of(row.offset) == row.epoch
        assert partition.high_watermark <= cut, "what may be another record soon is not read any more"
        partition.follow()
        catch_up(partition, leaders.first)


OLD = "two empty segments, the page names the old one -> open() goes on in one of them"
NEW = "two empty segments, the page names the new one -> open() removes the old one"


@pytest.mark.parametrize("window", [OLD, NEW])
@pytest.mark.parametrize("trimmed", [0, 7, 20])
@pytest.mark.parametrize("offset", [2, 7, 19, 20, 21, 500])
def test_kill_in_a_restart(
    live: Path, left: Path, leaders: Leaders, window: str, offset: int, trimmed: int
) -> None:
    """The two windows of a restart that are not a truncation's.

    crash: two empty segments, the page names the old one -> open() goes on in one of them
    crash: two empty segments, the page names the new one -> open() removes the old one
    """
    with commitlog.open(live) as log:
        partition = replica_of(leaders.second, log, 20)
        partition.set_high_watermark(20)
        partition.trim_before(trimmed)
        base = partition.segments[0].base_offset
        if offset == base:
            pytest.skip("then there is one segment only")
        with crashed_at(window, live, left):
            partition.restart_at(offset)
    with commitlog.open(left, mode="r") as log:
        assert list(open_partition(log).records()) == []
    with commitlog.open(left) as log:
        partition = open_partition(log)
        end = partition.next_offset
        assert end == offset if window == NEW else end in (base, offset)
        assert partition.start_offset == partition.high_watermark == end
        assert partition.epochs == EpochHistory()
        assert len(partition.segments) == 1 and len(list((left / "t-0").glob("*.log"))) == 1
        partition.restart_at(offset)
        partition.lead(9)
        assert partition.append(b"x") == offset


@pytest.mark.parametrize("offset", [7, 500])
def test_kill_in_a_restart_before_the_records_are_gone(
    live: Path, left: Path, leaders: Leaders, offset: int
) -> None:
    window = "the log ends with the segment that holds `offset` -> open() finds its records again"
    with commitlog.open(live) as log:
        partition = replica_of(leaders.second, log, 20)
        partition.set_high_watermark(20)
        with crashed_at(window, live, left):
            partition.restart_at(offset)
    with commitlog.open(left) as log:
        partition = open_partition(log)
        rows = rows_in(partition)
        assert rows == rows_in(leaders.second)[: len(rows)]
        assert all(partition.epochs.epoch_of(row.offset) == row.epoch for row in rows)
        assert partition.high_watermark == 0
        partition.follow()
        catch_up(partition, leaders.second)


def test_a_killed_leader_knows_its_epoch_and_its_high_watermark(live: Path, left: Path) -> None:
    with commitlog.open(live) as log:
        partition = log.create_topic("t", config=CONFIG).partition(0)
        partition.lead(4)
        fill(partition, 9)
        partition.set_high_watermark(6)
        shutil.copytree(live, left)
    with commitlog.open(left) as log:
        partition = open_partition(log)
        assert (partition.high_watermark, partition.next_offset) == (6, 9)
        with pytest.raises(commitlog.errors.FencedEpochError):
            partition.lead(3)


# --- power cuts


def follows(replica: Replica, leaders: Leaders) -> None:
    replica.create()
    replica.fetch(leaders.first, 1, 4)
    replica.sync()
    replica.mark(3)
    replica.fetch(leaders.first, 300, 2)
    replica.keep()
    replica.mark(5)
    replica.fetch(leaders.first, 1 << 20, 4)
    replica.sync()
    replica.mark(12)


def changes_its_leader(replica: Replica, leaders: Leaders) -> None:
    replica.create()
    replica.fetch(leaders.first, 1 << 20, 9)
    replica.mark(14)
    replica.keep()
    replica.fetch(leaders.second, 300, 3)
    replica.sync()
    replica.fetch(leaders.second, 1 << 20, 9)
    replica.mark(22)
    replica.close_and_open()
    replica.fetch(leaders.first, 1 << 20, 2)
    replica.fetch(leaders.second, 300, 3)


def loses_what_it_had_told(replica: Replica, leaders: Leaders) -> None:
    """As after an unclean election: what readers have seen goes."""
    replica.create()
    replica.fetch(leaders.first, 1 << 20, 9)
    replica.mark(24)
    replica.keep()
    replica.fetch(leaders.second, 300, 4)
    replica.mark(16)
    replica.sync()
    replica.keep()


def restarts(replica: Replica, leaders: Leaders) -> None:
    replica.create()
    replica.fetch(leaders.second, 300, 5)
    replica.mark(8)
    replica.sync()
    replica.fetch(leaders.third, 300, 3)
    replica.mark(24)
    replica.keep()
    replica.restart(3)
    replica.fetch(leaders.second, 300, 3)
    replica.restart(40)


def restarts_what_was_trimmed(replica: Replica, leaders: Leaders) -> None:
    replica.create()
    replica.fetch(leaders.second, 1 << 20, 4)
    replica.mark(12)
    replica.trim(5)
    replica.restart(4)
    replica.fetch(leaders.second, 300, 2)
    replica.restart(0)
    replica.fetch(leaders.second, 300, 2)


def goes_back(replica: Replica, leaders: Leaders) -> None:
    replica.create()
    for _ in range(3):
        replica.fetch(leaders.first, 1, 3)
        replica.roll()
        replica.sync()
        replica.fetch(leaders.first, 1, 1)
        replica.sync()
    replica.close_and_open()
    replica.fetch(leaders.first, 1, 1)


def leads_in_between(replica: Replica, leaders: Leaders) -> None:
    replica.create()
    replica.fetch(leaders.first, 300, 3)
    replica.lead(1, [b"a", b"b"])
    replica.sync()
    replica.lead(4, [])
    replica.kill_and_open()
    replica.lead(4, [b"c"])
    replica.lead(5, [])
    replica.fetch(leaders.second, 300, 5)


STORIES = [
    follows, changes_its_leader, loses_what_it_had_told, restarts, restarts_what_was_trimmed,
    leads_in_between, goes_back,
]  # fmt: skip


@pytest.mark.parametrize("story", STORIES)
def test_a_power_cut_leaves_a_replica_that_can_go_on(
    story: Callable[[Replica, Leaders], None], leaders: Leaders, tmp_path: Path
) -> None:
    root, chance = tmp_path / "live", random.Random(f"{SEED} {story.__name__}")
    root.mkdir()
    replica = Replica(root / "log")
    found = moments(root, lambda one: story(one, leaders), replica, chance, VARIANTS)  # type: ignore[arg-type]
    for number, moment in enumerate(chance.sample(found, min(len(found), SAMPLE))):
        left = tmp_path / f"left-{number}"
        try:
            check(moment, left, leaders.second)
        except BaseException as problem:
            problem.add_note(f"the power went {moment.label}; the log is in {left}\n{moment.promise}")
            raise
        count("power-cut images opened")
        shutil.rmtree(left)


@pytest.mark.parametrize("story", STORIES)
def test_a_second_power_cut_during_recovery_costs_a_replica_nothing_more(
    story: Callable[[Replica, Leaders], None], leaders: Leaders, tmp_path: Path
) -> None:
    def open_again(replica: Replica) -> None:
        replica.log = commitlog.open(replica._path)
        if "t" in replica.log.topics():
            open_partition(replica.log)

    root, chance = tmp_path / "live", random.Random(f"{SEED} {story.__name__}")
    root.mkdir()
    first = moments(root, lambda one: story(one, leaders), Replica(root / "log"), chance, VARIANTS)  # type: ignore[arg-type]
    for number, moment in enumerate(chance.sample(first, min(len(first), 30 if SOAK else 6))):
        again = tmp_path / f"again-{number}"
        write_image(moment.image, again)
        replica = Replica(again / "log")
        replica.promise = moment.promise  # type: ignore[assignment]
        for place, later in enumerate(moments(again, open_again, replica, chance, 2)):  # type: ignore[arg-type]
            check(later, tmp_path / f"left-{number}-{place}", leaders.second)
            count("power-cut images opened")
