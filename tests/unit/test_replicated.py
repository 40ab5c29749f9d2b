from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers import encoded, fill, flip, names, stored, wait_until

import commitlog
from commitlog import (
    CommitLog,
    ConfigError,
    CorruptionError,
    DiskFullError,
    NotLeaderError,
    OffsetOutOfRangeError,
    Partition,
    PartitionFailedError,
    ReadOnlyError,
    files,
)
from commitlog.errors import FencedEpochError
from commitlog.partitions.epochs import NAME, EpochHistory, EpochStart
from commitlog.partitions.slices import ReplicaSlice, received
from commitlog.replication.core.replica_log import ReplicaLog
from commitlog.tasks import Signal

CONFIG = {"flush_ms": -1, "file_delete_delay_ms": 0}


@pytest.fixture
def leader(log: CommitLog) -> Partition:
    partition: Partition = log.create_topic("t", config=CONFIG).partition(0)
    partition.lead(1)
    return partition


@pytest.fixture
def other_log(tmp_path: Path) -> Iterator[CommitLog]:
    with commitlog.open(tmp_path / "other") as opened:
        yield opened


@pytest.fixture
def follower(other_log: CommitLog) -> Partition:
    partition: Partition = other_log.create_topic("t", config=CONFIG).partition(0)
    partition.follow()
    return partition


def replicate(leader: Partition, follower: Partition, max_bytes: int = 1 << 20) -> None:
    """Let a follower catch up."""
    while follower.next_offset < leader.next_offset:
        found = leader.read_replica(follower.next_offset, max_bytes)
        assert follower.append_replicated(found.data.read(), found.segment_base) == found.next_offset


def log_files(partition: Partition) -> dict[str, bytes]:
    return {
        os.path.basename(one.path): Path(one.path).read_bytes()[: one.size_bytes]
        for one in partition.segments
    }


def epochs_of(partition: Partition) -> list[int]:
    return [header.leader_epoch for one in partition.segments for _, header in one.headers()]


def history(*starts: tuple[int, int]) -> EpochHistory:
    return EpochHistory(tuple(EpochStart(*one) for one in starts))


def state_of(partition: Partition) -> tuple[Any, ...]:
    bases = [one.base_offset for one in partition.segments]
    return partition.start_offset, partition.next_offset, partition.epochs, bases, log_files(partition)


def test_a_partition_is_a_replica_log(leader: Partition) -> None:
    as_such: ReplicaLog = leader
    assert as_such.next_offset == 0


# --- leading and following


def test_appends_of_every_kind_are_stamped_with_the_leader_epoch(leader: Partition) -> None:
    leader.append(b"the first is written another way")
    leader.append(b"lean")
    leader.append_many([b"a", b"b"])
    leader.append_arrow(pa.table({"value": pa.array([b"c"], pa.binary())}))
    leader.append_many([b"d"], producer=(7, 0, 0))
    leader.lead(5)
    leader.append(b"lean")
    leader.append_many([b"e"])
    assert epochs_of(leader) == [1, 1, 1, 1, 1, 5, 5]
    assert leader.epochs == history((1, 0), (5, 6))
    assert leader.verify().ok


@pytest.mark.parametrize("epoch", [1, 2**31 - 1])
@pytest.mark.parametrize("offset", [0, 2**32 - 2, 2**40])
def test_batches_are_sound_whatever_epoch_and_offset_they_have(
    leader: Partition, epoch: int, offset: int
) -> None:
    leader.restart_at(offset)
    leader.lead(epoch)
    for _ in range(5):
        leader.append(b"x")
    assert leader.verify().ok and leader.next_offset == offset + 5


def test_an_epoch_is_durable_before_lead_returns(leader: Partition, log: CommitLog) -> None:
    leader.append(b"x")
    leader.lead(7)
    assert (Path(leader.path) / NAME).read_text().splitlines()[:-1] == ["1", "2", "1 0", "7 1"]


def test_an_epoch_below_the_latest_is_fenced_and_changes_nothing(leader: Partition) -> None:
    leader.lead(5)
    with pytest.raises(FencedEpochError) as caught:
        leader.lead(4)
    assert caught.value.args == ("t-0", 4, 5)
    leader.append(b"x")
    assert epochs_of(leader) == [5]
    leader.lead(5)


@pytest.mark.parametrize("epoch", [-1, 2**31])
def test_an_epoch_that_no_header_could_hold_is_refused(leader: Partition, epoch: int) -> None:
    with pytest.raises(ConfigError, match="epoch"):
        leader.lead(epoch)


USERS: list[Callable[[Partition], object]] = [
    lambda partition: partition.append(b"x"),
    lambda partition: partition.append(b"x", headers=[("a", b"b")]),
    lambda partition: partition.append_many([b"x"]),
    lambda partition: partition.append_many([]),
    lambda partition: partition.append_many([b"x"], producer=(1, 0, 0)),
    lambda partition: partition.append_arrow(pa.table({"value": pa.array([b"c"], pa.binary())})),
    lambda partition: partition.append_encoded((encoded([b"x"]),)),
    lambda partition: partition.append_published((encoded([b"x"]),)),
]


@pytest.mark.parametrize("append", USERS)
def test_a_follower_refuses_what_users_append(leader: Partition, append: Callable[[Partition], Any]) -> None:
    fill(leader, 3)
    leader.append_many([b"x"], producer=(1, 0, 0))
    leader.follow()
    before = state_of(leader)
    with pytest.raises(NotLeaderError):
        append(leader)
    assert state_of(leader) == before
    leader.lead(2)
    append(leader)


def test_a_producer_hears_that_nobody_leads_here(log: CommitLog, leader: Partition) -> None:
    leader.follow()
    producer = log.producer(linger_ms=0)
    with pytest.raises(NotLeaderError):
        producer.send("t", b"x").get(30)
    with pytest.raises(NotLeaderError):
        producer.close()
    assert leader.next_offset == 0


def test_a_follower_does_everything_else(leader: Partition) -> None:
    fill(leader, 9)
    leader.set_high_watermark(8)
    leader.follow()
    leader.sync()
    leader.trim_before(3)
    leader.truncate_from(7)
    assert leader.durable_offset == 7
    assert [record.offset for record in leader.records()] == [3, 4, 5, 6]


def test_no_append_comes_through_once_follow_has_returned(leader: Partition) -> None:
    stop, refused = threading.Event(), []

    def append() -> None:
        while not stop.is_set():
            try:
                leader.append(b"x")
            except NotLeaderError:
                refused.append(True)

    threads = [threading.Thread(target=append) for _ in range(3)]
    for thread in threads:
        thread.start()
    for epoch in range(2, 30):
        leader.follow()
        end = leader.next_offset
        wait_until(lambda: len(refused) > 3)
        assert leader.next_offset == end
        refused.clear()
        leader.lead(epoch)
    stop.set()
    for thread in threads:
        thread.join()
    assert epochs_of(leader) == sorted(epochs_of(leader))
    for epoch, start in leader.epochs.starts:
        assert epochs_of(leader)[start : start + 1] in ([epoch], [])


def test_a_replicated_partition_is_opened_as_a_follower(
    log_path: Path, leader: Partition, log: CommitLog
) -> None:
    fill(leader, 2)
    log.close()
    with commitlog.open(log_path) as again:
        partition = again.topic("t").partition(0)
        with pytest.raises(NotLeaderError):
            partition.append(b"x")
        partition.lead(2)
        assert partition.append(b"x") == 2


def test_a_full_disk_keeps_an_epoch_from_beginning(
    leader: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_whole", full)
        with pytest.raises(DiskFullError):
            leader.lead(2)
    leader.append(b"still in epoch 1")
    assert epochs_of(leader) == [1] and leader.epochs == history((1, 0))
    leader.lead(2)


def test_an_epoch_that_could_not_be_synced_ends_the_partition(
    leader: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "write_whole", broken)
    with pytest.raises(PartitionFailedError):
        leader.lead(2)
    with pytest.raises(PartitionFailedError):
        leader.append(b"x")


# --- sending and receiving


def test_a_follower_has_the_same_files_as_its_leader(leader: Partition, follower: Partition) -> None:
    fill(leader, 40)
    leader.roll()
    leader.append_many([b"a", b"b"])
    leader.lead(3)
    fill(leader, 3)
    replicate(leader, follower, 500)
    assert log_files(follower) == log_files(leader)
    assert follower.epochs == leader.epochs
    assert follower.verify().ok


def test_a_slice_has_whole_batches_of_one_segment_as_many_as_fit(leader: Partition) -> None:
    fill(leader, 10)
    leader.roll()
    fill(leader, 10)
    (size,) = {header.size for one in leader.segments for _, header in one.headers()}
    for offset in range(20):
        room = (10 if offset < 10 else 20) - offset
        for fitting in range(12):
            found = leader.read_replica(offset, fitting * size + 7)
            count = min(max(fitting, 1), room)
            assert (found.segment_base, found.next_offset) == (offset // 10 * 10, offset + count)
            assert found.data.size == count * size
            raw = log_files(leader)[f"{found.segment_base:020d}.log"]
            start = offset % 10 * size
            assert found.data.read() == raw[start : start + count * size]


@pytest.mark.parametrize("interval", [0, 100, 4096])
def test_slices_of_batches_of_all_sizes_follow_one_another(log: CommitLog, interval: int) -> None:
    config = {**CONFIG, "index_interval_bytes": interval}
    partition = log.create_topic("sizes", config=config).partition(0)
    for number in range(60):
        partition.append_many([b"x" * (number * 37 % 900)] * (1 + number % 5))
    whole = log_files(partition)[f"{0:020d}.log"]
    for max_bytes in (0, 1, 500, 3_000, 20_000):
        offset, data = 0, b""
        while offset < partition.next_offset:
            found = partition.read_replica(offset, max_bytes)
            offset, data = found.next_offset, data + bytes(found.data.read())
        assert data == whole


def test_a_slice_starts_with_the_batch_that_holds_the_offset(leader: Partition) -> None:
    leader.append_many([b"a"] * 3)
    leader.append_many([b"b"] * 3)
    found = leader.read_replica(4, 1)
    assert found.next_offset == 6
    assert found.data.read() == log_files(leader)[f"{0:020d}.log"][-found.data.size :]


def test_there_is_nothing_after_the_last_batch(leader: Partition) -> None:
    assert leader.read_replica(0, 1000)[:2] == (0, 0)
    fill(leader, 3)
    found = leader.read_replica(3, 1000)
    assert (found.segment_base, found.next_offset, found.data.size, found.data.read()) == (0, 3, 0, b"")


def test_what_is_not_in_the_log_cannot_be_sent(leader: Partition) -> None:
    fill(leader, 9)
    leader.set_high_watermark(9)
    leader.trim_before(4)
    for offset in (3, 10):
        with pytest.raises(OffsetOutOfRangeError):
            leader.read_replica(offset, 1000)


def test_records_above_the_high_watermark_are_sent(leader: Partition) -> None:
    fill(leader, 3)
    assert leader.high_watermark == 0
    assert leader.read_replica(0, 1 << 20).next_offset == 3


def change_nothing(partition: Partition) -> None:
    pass


def truncate(partition: Partition) -> None:
    partition.truncate_from(2)
    fill(partition, 8, size=31)


def trim(partition: Partition) -> None:
    partition.set_high_watermark(partition.next_offset)
    partition.trim_before(partition.next_offset)
    partition.empty_trash(float("inf"))


def restart(partition: Partition) -> None:
    partition.restart_at(0)
    fill(partition, 9, size=31)


@pytest.mark.parametrize("change", [change_nothing, truncate, trim, restart, Partition.roll])
@pytest.mark.parametrize("sealed", [False, True])
def test_a_slice_stays_as_it_is_whatever_becomes_of_the_segment(
    leader: Partition, change: Callable[[Partition], object], sealed: bool
) -> None:
    fill(leader, 10)
    if sealed:
        leader.roll()
    before = log_files(leader)[f"{0:020d}.log"]
    found = leader.read_replica(0, 1 << 20)
    change(leader)
    assert found.data.read() == before


def test_a_slice_is_sent_without_being_read(leader: Partition) -> None:
    fill(leader, 10)
    data: Any = leader.read_replica(3, 1 << 20).data
    one, other = socket.socketpair()
    with one, other:
        assert os.sendfile(one.fileno(), data.file.fd, data.position, data.size) == data.size
        assert other.recv(data.size, socket.MSG_WAITALL) == data.read()


def test_slices_let_their_files_go(leader: Partition) -> None:
    fill(leader, 10)
    leader.roll()
    fill(leader, 10)
    for offset in range(20):
        leader.read_replica(offset, 100)  # its indexes stay open
    before = len(os.listdir("/proc/self/fd"))
    for offset in [*range(20)] * 20:
        leader.read_replica(offset, 100)
    assert len(os.listdir("/proc/self/fd")) == before


def test_records_above_the_followers_own_limits_are_taken(leader: Partition, other_log: CommitLog) -> None:
    small = {**CONFIG, "max_message_bytes": 10, "segment_bytes": 512, "segment_index_bytes": 64}
    follower = other_log.create_topic("small", config=small).partition(0)
    follower.follow()
    for number in range(50):
        leader.append(b"x" * 3_000, timestamp=number)
    replicate(leader, follower, 10_000)
    assert log_files(follower) == log_files(leader)
    assert follower.verify().ok
    follower.set_high_watermark(50)
    assert follower.get(40) == leader_record(leader, 40)
    follower.lead(2)
    follower.append(b"small", timestamp=99)
    assert [one.base_offset for one in follower.segments] == [0, 50], "its own rules count again"


def leader_record(leader: Partition, offset: int) -> Any:
    leader.set_high_watermark(leader.next_offset)
    return leader.get(offset)


def test_a_follower_does_not_roll_by_time_either(leader: Partition, other_log: CommitLog) -> None:
    follower = other_log.create_topic("quick", config={**CONFIG, "segment_ms": 1}).partition(0)
    follower.follow()
    for number in range(5):
        leader.append(b"x", timestamp=number * 1000)
    replicate(leader, follower, 1)
    assert [one.base_offset for one in follower.segments] == [0]


def test_a_follower_rolls_where_no_segment_could_hold_more(
    leader: Partition, follower: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commitlog.segment_writer._MOST_BYTES", 400)
    fill(leader, 10)
    replicate(leader, follower, 1)
    assert len(follower.segments) > 2 and len(leader.segments) == 1
    follower.set_high_watermark(10)
    assert len(list(follower.records())) == 10


def test_a_follower_goes_back_where_it_rolled_and_its_new_leader_did_not(
    leader: Partition, follower: Partition
) -> None:
    fill(leader, 5)
    replicate(leader, follower)
    leader.roll()
    fill(leader, 3)
    leader.follow()
    follower.lead(2)
    fill(follower, 4, size=33)
    leader.truncate_from(5)
    assert [one.base_offset for one in leader.segments] == [0, 5]
    replicate(follower, leader)
    assert [one.base_offset for one in leader.segments] == [0]
    assert log_files(leader) == log_files(follower)
    assert leader.verify().ok
    assert names(leader.path, ".log") == [f"{0:020d}.log"]


def test_a_follower_that_restarted_inside_a_segment_goes_on_in_its_own(
    leader: Partition, follower: Partition
) -> None:
    fill(leader, 10)
    leader.set_high_watermark(10)
    leader.trim_before(4)
    follower.restart_at(4)
    replicate(leader, follower)
    assert [one.base_offset for one in follower.segments] == [4]
    follower.set_high_watermark(10)
    assert list(follower.records()) == list(leader.records())
    leader.roll()
    fill(leader, 2)
    replicate(leader, follower)
    assert [one.base_offset for one in follower.segments] == [4, 10]


def test_a_follower_takes_the_rest_of_a_batch_that_begins_before_its_end(
    log: CommitLog, follower: Partition
) -> None:
    config = {**CONFIG, "cleanup_policy": "compact"}
    leader = log.create_topic("compacted", config=config).partition(0)
    leader.lead(1)
    for number in range(12):
        leader.append(b"%d" % number, key=b"%d" % (number % 7), timestamp=number)
    for max_bytes in (1, 1, 1, 1, 1, 1):  # six records
        found = leader.read_replica(follower.next_offset, max_bytes)
        follower.append_replicated(found.data.read(), found.segment_base)
    leader.roll()
    leader.append(b"z", key=b"z", timestamp=12)
    leader.set_high_watermark(13)
    leader.compact()
    assert leader.read_replica(6, 1).next_offset > 7, "small batches were put together"
    replicate(leader, follower, 1)
    follower.set_high_watermark(13)
    assert follower.verify().ok
    kept = {record.offset: record for record in leader.records()}
    assert [record for record in follower.records() if record.offset in kept] == list(kept.values())


def received_by(leader: Partition) -> tuple[bytes, int]:
    found = leader.read_replica(0, 1 << 20)
    return bytes(found.data.read()), found.segment_base


@pytest.mark.parametrize("position", [0, 9, 13, 20, 40, 70, 90, -1])
def test_damaged_batches_change_nothing(leader: Partition, follower: Partition, position: int) -> None:
    fill(leader, 3)
    data, base = received_by(leader)
    for place in (position, position + len(data) // 3 * 2 if position >= 0 else position):
        bad = bytearray(data)
        bad[place] ^= 1
        before = state_of(follower)
        with pytest.raises(CorruptionError):
            follower.append_replicated(bytes(bad), base)
        assert state_of(follower) == before
    assert follower.append_replicated(data, base) == 3


@pytest.mark.parametrize("base", [1, 99])
def test_a_segment_that_would_leave_a_hole_is_refused(
    leader: Partition, follower: Partition, base: int
) -> None:
    fill(leader, 3)
    with pytest.raises(CorruptionError):
        follower.append_replicated(received_by(leader)[0], base)
    assert follower.next_offset == 0


def test_batches_that_are_there_already_are_refused(leader: Partition, follower: Partition) -> None:
    fill(leader, 3)
    follower.append_replicated(*received_by(leader))
    before = state_of(follower)
    with pytest.raises(CorruptionError):
        follower.append_replicated(*received_by(leader))
    assert state_of(follower) == before


def test_epochs_may_not_go_down_from_one_append_to_the_next(follower: Partition) -> None:
    follower.append_replicated(stored(encoded([b"x"]), 0, 5), 0)
    before = state_of(follower)
    with pytest.raises(CorruptionError, match="leader epoch 4 follows 5"):
        follower.append_replicated(stored(encoded([b"x"]), 1, 4), 0)
    assert state_of(follower) == before


def test_an_own_epoch_without_records_gives_way_to_the_leaders(follower: Partition) -> None:
    follower.append_replicated(stored(encoded([b"x"]), 0, 3), 0)
    follower.lead(5)
    follower.follow()
    assert follower.epochs == history((3, 0), (5, 1))
    follower.append_replicated(stored(encoded([b"x"]), 1, 4), 0)
    assert follower.epochs == history((3, 0), (4, 1))


def test_who_leads_takes_no_batches_of_another_leader(leader: Partition) -> None:
    with pytest.raises(FencedEpochError):
        leader.append_replicated(stored(encoded([b"x"]), 0, 0), 0)
    assert leader.next_offset == 0


def test_nothing_at_all_is_fine(follower: Partition) -> None:
    assert follower.append_replicated(b"", 0) == 0


def test_what_is_known_of_producers_comes_with_their_batches(
    leader: Partition, follower: Partition, other_log: CommitLog, tmp_path: Path
) -> None:
    leader.append_many([b"a", b"b"], producer=(7, 0, 0))
    leader.append_many([b"c"], producer=(7, 0, 2))
    leader.append_published((encoded([b"p"]),))
    replicate(leader, follower, 1)
    follower.lead(2)
    assert follower.append_many([b"a", b"b"], producer=(7, 0, 0)) == range(2)
    assert follower.append_many([b"c"], producer=(7, 0, 2)) == range(2, 3)
    with pytest.raises(commitlog.errors.OutOfOrderSequenceError):
        follower.append_many([b"e"], producer=(7, 0, 4))
    other_log.close()
    with commitlog.open(tmp_path / "other") as again:
        partition = again.topic("t").partition(0)
        partition.lead(3)
        assert partition.append_many([b"c"], producer=(7, 0, 2)) == range(2, 3)


def test_a_full_disk_leaves_a_follower_as_it_was(
    leader: Partition, follower: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(leader, 3)
    replicate(leader, follower)
    leader.lead(2)
    fill(leader, 3)
    leader.lead(3)
    fill(leader, 3)
    before = state_of(follower)
    real = files.write_at

    def full(fd: int, pieces: Any, size: int, position: int) -> None:
        if size > 100:
            real(fd, [bytes(pieces[0])[:50]], 50, position)
            raise OSError(28, "No space left on device")
        real(fd, pieces, size, position)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_at", full)
        with pytest.raises(DiskFullError):
            replicate(leader, follower)
    assert state_of(follower) == before
    replicate(leader, follower)
    assert log_files(follower) == log_files(leader)


def test_a_leader_is_read_while_it_appends_rolls_and_truncates(
    leader: Partition, follower: Partition
) -> None:
    stop = threading.Event()
    problems: list[BaseException] = []

    def read() -> None:
        try:
            while not stop.is_set():
                for offset in range(0, leader.next_offset, 7):
                    try:
                        found = leader.read_replica(offset, 2_000)
                    except OffsetOutOfRangeError:
                        continue
                    check_slice(found, offset)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(60):
        fill(leader, 30, size=20 + number % 9)
        if number % 5 == 0:
            leader.roll()
        if number % 7 == 0:
            leader.truncate_from(leader.next_offset - 11)
    stop.set()
    for thread in threads:
        thread.join()
    assert problems == []


def check_slice(found: ReplicaSlice, offset: int) -> None:
    data = found.data.read()
    if data:
        assert received(data, offset, "slice").next_offset == found.next_offset


# --- the high watermark


def test_readers_stop_at_the_high_watermark(leader: Partition, log_path: Path) -> None:
    fill(leader, 5)
    with commitlog.open(log_path, mode="r") as reading:
        reader = reading.topic("t").partition(0)
        for mark in (0, 2, 5):
            leader.set_high_watermark(mark)
            for side in (leader, reader):
                assert side.high_watermark == mark
                assert [record.offset for record in side.records()] == list(range(mark))
                assert side.next_offset == 5
        fill(leader, 1)
        assert (leader.high_watermark, reader.high_watermark) == (5, 5)
        with pytest.raises(OffsetOutOfRangeError):
            leader.get(5)


def test_the_high_watermark_does_not_exceed_the_log_and_does_not_go_down(leader: Partition) -> None:
    fill(leader, 5)
    leader.set_high_watermark(99)
    assert leader.high_watermark == 5
    leader.set_high_watermark(3)
    assert leader.high_watermark == 5


def test_a_truncation_takes_the_high_watermark_along(leader: Partition, log_path: Path) -> None:
    fill(leader, 5)
    leader.set_high_watermark(5)
    leader.truncate_from(3)
    assert leader.high_watermark == 3
    fill(leader, 4)
    assert leader.high_watermark == 3
    with commitlog.open(log_path, mode="r") as reading:
        assert reading.topic("t").partition(0).high_watermark == 3


def test_those_who_wait_are_woken_by_the_high_watermark(leader: Partition) -> None:
    woken, watched = threading.Event(), Signal()

    def wait() -> None:
        if leader.wait_for(1, 60):
            woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    fill(leader, 2)
    assert not leader.wait_for(0, 0)
    leader.watch(watched)
    leader.set_high_watermark(1)
    assert leader.wait_for(0, 0)
    assert watched.is_set()
    assert not woken.is_set()
    leader.set_high_watermark(2)
    thread.join()
    assert woken.is_set()
    leader.unwatch(watched)


def test_the_high_watermark_survives_a_restart(log_path: Path, leader: Partition, log: CommitLog) -> None:
    fill(leader, 5)
    leader.set_high_watermark(3)
    log.close()
    with commitlog.open(log_path, mode="r") as reading:
        assert len(list(reading.topic("t").partition(0).records())) == 3
    with commitlog.open(log_path) as again:
        assert again.topic("t").partition(0).high_watermark == 3
        again.topic("t").partition(0).lead(2)
        assert again.topic("t").partition(0).high_watermark == 3


def test_without_a_state_page_a_replicated_partition_starts_low(
    log_path: Path, leader: Partition, log: CommitLog
) -> None:
    fill(leader, 5)
    leader.set_high_watermark(5)
    log.close()
    os.unlink(log_path / "t-0" / "state")
    with commitlog.open(log_path, mode="r") as reading:
        assert list(reading.topic("t").partition(0).records()) == []
    with commitlog.open(log_path) as again:
        assert again.topic("t").partition(0).high_watermark == 0


def test_without_its_epochs_a_replicated_partition_is_one_all_the_same(
    log_path: Path, leader: Partition, log: CommitLog
) -> None:
    fill(leader, 5)
    leader.set_high_watermark(2)
    log.close()
    os.unlink(log_path / "t-0" / NAME)
    with commitlog.open(log_path, mode="r") as reading:
        assert reading.topic("t").partition(0).high_watermark == 2
    with commitlog.open(log_path) as again:
        assert again.topic("t").partition(0).high_watermark == 2


def test_one_high_watermark_that_rots_leaves_the_other(
    log_path: Path, leader: Partition, log: CommitLog
) -> None:
    fill(leader, 5)
    leader.set_high_watermark(4)
    log.close()
    for slot in (1536, 2048):
        flip(log_path / "t-0" / "state", slot + 9)
        with commitlog.open(log_path, mode="r") as reading:
            assert reading.topic("t").partition(0).high_watermark == 4
        flip(log_path / "t-0" / "state", slot + 9)


def test_the_records_of_a_partition_that_becomes_replicated_are_hidden_at_first(partition: Partition) -> None:
    fill(partition, 3)
    assert partition.high_watermark == 3
    partition.lead(1)
    assert partition.high_watermark == 0


def test_a_high_watermark_is_nothing_to_an_unreplicated_partition(partition: Partition) -> None:
    fill(partition, 3)
    partition.set_high_watermark(1)
    assert partition.high_watermark == 3
    assert Path(partition.path, "state").read_bytes()[1536:] == bytes(4096 - 1536)


def test_nothing_above_the_high_watermark_is_trimmed(leader: Partition) -> None:
    fill(leader, 5)
    leader.set_high_watermark(3)
    with pytest.raises(OffsetOutOfRangeError):
        leader.trim_before(4)
    leader.trim_before(3)
    assert leader.start_offset == 3


@pytest.mark.parametrize(("mark", "start"), [(0, 0), (3, 0), (4, 4), (9, 8), (10, 10)])
def test_retention_stays_below_the_high_watermark(log: CommitLog, mark: int, start: int) -> None:
    config = {**CONFIG, "retention_ms": 1}
    partition = log.create_topic("old", config=config).partition(0)
    partition.lead(1)
    for _ in range(3):
        fill(partition, 4 if partition.next_offset < 8 else 2)
        partition.roll()
    partition.truncate_from(10)
    partition.set_high_watermark(mark)
    partition.apply_retention(10**9)
    assert partition.start_offset == start


def test_a_followers_retention_leaves_the_active_segment_to_its_leader(
    leader: Partition, other_log: CommitLog
) -> None:
    follower = other_log.create_topic("old", config={**CONFIG, "retention_ms": 1}).partition(0)
    follower.follow()
    fill(leader, 4)
    leader.roll()
    fill(leader, 4)
    replicate(leader, follower)
    follower.set_high_watermark(8)
    assert follower.apply_retention(10**9) == 1
    assert follower.start_offset == 4
    follower.trim_before(8)
    fill(leader, 1)
    replicate(leader, follower)
    assert [one.base_offset for one in follower.segments] == [4], "it rolls where the leader does"


def test_compaction_stays_below_the_high_watermark(log: CommitLog) -> None:
    partition = log.create_topic("c", config={**CONFIG, "cleanup_policy": "compact"}).partition(0)
    partition.lead(1)
    for _ in range(3):
        for _ in range(2):
            partition.append(b"x", key=b"same")
        partition.roll()
    partition.set_high_watermark(3)
    assert partition.compact().clean_offset == 2
    partition.set_high_watermark(6)
    assert [record.offset for record in partition.records()] == [1, 2, 3, 4, 5]


# --- truncating


def test_a_truncation_cuts_the_history_too(leader: Partition) -> None:
    fill(leader, 4)
    leader.lead(3)
    fill(leader, 4)
    leader.lead(6)
    leader.truncate_from(8)
    assert leader.epochs == history((1, 0), (3, 4)), "an epoch that has no records goes, too"
    leader.truncate_from(5)
    assert leader.epochs == history((1, 0), (3, 4))
    leader.truncate_from(4)
    assert leader.epochs == history((1, 0))
    assert (Path(leader.path) / NAME).read_text().splitlines()[1:-1] == ["1", "1 0"]


def test_a_truncation_for_which_there_is_no_room_changes_nothing(
    leader: Partition, monkeypatch: pytest.MonkeyPatch, log_path: Path, log: CommitLog
) -> None:
    fill(leader, 4)
    leader.lead(3)
    fill(leader, 4)
    leader.set_high_watermark(7)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    for function in ("write_whole", "copy_start"):
        before = state_of(leader)
        with monkeypatch.context() as patch:
            patch.setattr(files, function, full)
            with pytest.raises(DiskFullError):
                leader.truncate_from(2)
        assert state_of(leader) == before
        assert leader.high_watermark == 7
    log.close()
    with commitlog.open(log_path) as again:
        assert again.topic("t").partition(0).epochs == history((1, 0), (3, 4))


# --- restarting


@pytest.mark.parametrize("start", [0, 3, 5, 12])
@pytest.mark.parametrize("offset", [0, 2, 3, 4, 5, 8, 12, 1000])
def test_a_restart_leaves_an_empty_log_at_another_offset(
    leader: Partition, log: CommitLog, log_path: Path, start: int, offset: int
) -> None:
    for _ in range(4):
        fill(leader, 3)
        leader.roll()
    leader.append_many([b"x"], producer=(5, 0, 0))
    leader.truncate_from(12)
    leader.set_high_watermark(12)
    leader.trim_before(start)
    with commitlog.open(log_path, mode="r") as reading:
        reader = reading.topic("t").partition(0)
        leader.restart_at(offset)
        for side in (leader, reader):
            assert (side.start_offset, side.high_watermark, side.next_offset) == (offset,) * 3
            assert side.durable_offset == offset
            assert list(side.records()) == []
        assert leader.epochs == EpochHistory()
        leader.lead(4)
        assert leader.append_many([b"x"], producer=(5, 0, 7)) == range(offset, offset + 1)
        fill(leader, 3)
        leader.set_high_watermark(offset + 3)
        assert list(leader.records()) == list(reader.records())
    assert names(leader.path, ".log") == [f"{offset:020d}.log"]
    log.close()
    with commitlog.open(log_path) as again:
        partition = again.topic("t").partition(0)
        assert again.recovery[0].clean
        assert (partition.start_offset, partition.high_watermark, partition.next_offset) == (
            offset, offset + 3, offset + 4,
        )  # fmt: skip
        assert partition.epochs == history((4, offset))
        assert partition.verify().ok


def test_a_restart_forgets_producers_for_good(leader: Partition, log: CommitLog, log_path: Path) -> None:
    leader.append_many([b"x"], producer=(5, 0, 0))
    leader.roll()
    assert names(leader.path, ".snapshot")
    fill(leader, 3)
    leader.set_high_watermark(4)
    leader.trim_before(2)
    leader.restart_at(9)
    log.close()
    with commitlog.open(log_path) as again:
        partition = again.topic("t").partition(0)
        partition.lead(2)
        assert partition.append_many([b"x"], producer=(5, 0, 3)) == range(9, 10)


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_a_restart_needs_an_offset(leader: Partition, offset: int) -> None:
    with pytest.raises(OffsetOutOfRangeError):
        leader.restart_at(offset)


# --- who may not


def test_a_shared_partition_has_no_replicas(tmp_path: Path) -> None:
    with commitlog.open(tmp_path / "shared", mode="shared") as log:
        partition = log.create_topic("t").partition(0)
        for change in (lambda: partition.lead(1), partition.follow):
            with pytest.raises(ConfigError, match="shared"):
                change()
        partition.append(b"x")


def test_a_replicated_partition_is_not_shared(log_path: Path, leader: Partition, log: CommitLog) -> None:
    log.close()
    with pytest.raises(ConfigError, match="shared"):
        commitlog.open(log_path, mode="shared")


def test_a_reader_neither_leads_nor_follows(leader: Partition, log_path: Path) -> None:
    with commitlog.open(log_path, mode="r") as reading:
        reader = reading.topic("t").partition(0)
        for change in (lambda: reader.lead(1), reader.follow, lambda: reader.set_high_watermark(3)):
            with pytest.raises(ReadOnlyError):
                change()


def test_a_closed_partition_neither_leads_nor_follows(leader: Partition, log: CommitLog) -> None:
    log.close()
    for change in (
        lambda: leader.lead(2), leader.follow, lambda: leader.read_replica(0, 1),
        lambda: leader.restart_at(3), lambda: leader.set_high_watermark(3), leader.keep_high_watermark,
        lambda: leader.append_replicated(stored(encoded([b"x"]), 0, 1), 0),
    ):  # fmt: skip
        with pytest.raises(commitlog.ClosedError):
            change()
