"""A batch that its producer appends again is there once."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import contents, copy_as_if_killed, flip, names

import commitlog
from commitlog import CommitLog, Partition
from commitlog.errors import OutOfOrderSequenceError, ProducerFencedError
from commitlog.partitions.producer_state import Producers, snapshots

CONFIG = {"segment_bytes": 1_000, "flush_ms": -1}
LAST = 2**31 - 1


def send(partition: Partition, sequence: int, count: int = 1, producer_id: int = 7, epoch: int = 0) -> range:
    values = [b"%d: %d" % (producer_id, (sequence + more) % 2**31) for more in range(count)]
    return partition.append_many(values, producer=(producer_id, epoch, sequence))


@pytest.fixture
def partition(log: CommitLog) -> Partition:
    partition: Partition = log.create_topic("t", config=CONFIG).partition(0)
    return partition


def test_a_batch_that_is_sent_again_is_answered_with_its_first_offsets(partition: Partition) -> None:
    partition.append(b"somebody else's")
    first = [send(partition, sequence, 3) for sequence in range(0, 15, 3)]
    assert first == [range(start, start + 3) for start in range(1, 16, 3)]
    assert [send(partition, sequence, 3) for sequence in range(0, 15, 3)] == first
    assert partition.next_offset == 16


def test_only_the_last_five_batches_are_recognised(partition: Partition) -> None:
    for sequence in range(8):
        send(partition, sequence)
    assert [send(partition, sequence).start for sequence in range(3, 8)] == [3, 4, 5, 6, 7]
    with pytest.raises(OutOfOrderSequenceError):
        send(partition, 2)


@pytest.mark.parametrize("sequence", [4, 6, 100])
def test_a_gap_is_refused_and_nothing_is_appended(partition: Partition, sequence: int) -> None:
    send(partition, 0, 5)
    with pytest.raises(OutOfOrderSequenceError, match="t-0: producer 7"):
        send(partition, sequence, 2)
    assert partition.next_offset == 5
    assert send(partition, 5) == range(5, 6)


def test_an_old_epoch_is_refused_and_a_new_one_starts_over(partition: Partition) -> None:
    send(partition, 0, 5)
    with pytest.raises(OutOfOrderSequenceError):
        send(partition, 5, epoch=1)
    assert send(partition, 0, 2, epoch=1) == range(5, 7)
    with pytest.raises(ProducerFencedError, match="epoch 0"):
        send(partition, 5)
    assert send(partition, 0, 2, epoch=1) == range(5, 7)
    assert send(partition, 2, epoch=1) == range(7, 8)


def test_sequences_start_over_after_the_last_one(partition: Partition) -> None:
    send(partition, LAST - 1)
    assert send(partition, LAST, 3) == range(1, 4)
    assert send(partition, LAST, 3) == range(1, 4)
    assert send(partition, 2) == range(4, 5)


def test_producers_do_not_see_each_other(partition: Partition) -> None:
    for sequence in range(4):
        for producer_id in (1, 2, 2**62):
            send(partition, sequence, producer_id=producer_id)
    assert partition.next_offset == 12
    assert send(partition, 3, producer_id=2).start == 10


@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("lost", ["nothing", "snapshots", "state"])
def test_a_batch_is_recognised_after_a_restart(log_path: Path, tmp_path: Path, end: str, lost: str) -> None:
    log = commitlog.open(log_path)
    partition = log.create_topic("t", config=CONFIG).partition(0)
    for sequence in range(40):
        send(partition, sequence)
        send(partition, sequence, producer_id=8)
    assert len(partition.segments) > 3
    path = copy_as_if_killed(log, tmp_path / "copy") if end == "killed" else log_path
    log.close()
    for name in names(path / "t-0", {"snapshots": ".snapshot", "state": "state"}.get(lost, "?")):
        (path / "t-0" / name).unlink()
    with commitlog.open(path) as again:
        partition = again.topic("t").partition(0)
        assert [send(partition, sequence).start for sequence in range(35, 40)] == list(range(70, 80, 2))
        assert send(partition, 39, producer_id=8).start == 79
        with pytest.raises(OutOfOrderSequenceError):
            send(partition, 41)
        assert send(partition, 40).start == 80


def test_what_was_truncated_can_be_sent_again(partition: Partition) -> None:
    for sequence in range(40):
        send(partition, sequence)
    partition.truncate_from(25)
    with pytest.raises(OutOfOrderSequenceError):
        send(partition, 26)
    assert send(partition, 24).start == 24
    assert [send(partition, sequence).start for sequence in range(25, 45)] == list(range(25, 45))


def test_a_torn_or_foreign_snapshot_is_not_believed(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        partition = log.create_topic("t", config=CONFIG).partition(0)
        for sequence in range(30):
            send(partition, sequence)
        path = partition.path
    (newest,) = snapshots(path)[-1:]
    for place in range(0, len(Path(newest).read_bytes()), 5):
        flip(newest, place)
        assert Producers.load(newest) is None
        flip(newest, place)
    renamed = newest.replace("30.snapshot", "29.snapshot")
    Path(newest).rename(renamed)
    assert Producers.load(renamed) is None
    with commitlog.open(log_path) as log:
        assert send(log.topic("t").partition(0), 29).start == 29


def test_snapshots_do_not_pile_up(partition: Partition) -> None:
    for sequence in range(300):
        send(partition, sequence)
    assert len(partition.segments) > 20
    assert len(snapshots(partition.path)) == 2


def test_a_log_without_producers_writes_no_snapshot(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        partition = log.create_topic("t", config=CONFIG).partition(0)
        for _ in range(100):
            partition.append(b"x" * 50)
    assert names(log_path / "t-0", ".snapshot") == []


def test_a_compacted_topic_recognises_a_batch_of_which_nothing_is_left(log_path: Path) -> None:
    config = {**CONFIG, "cleanup_policy": "compact", "min_cleanable_dirty_ratio": 1.0}
    with commitlog.open(log_path) as log:
        partition = log.create_topic("t", config=config).partition(0)
        for sequence in range(40):
            partition.append_many([b"%d" % sequence], keys=[b"key"], producer=(7, 0, sequence))
        partition.append_many([b"the latest"], keys=[b"key"], producer=(8, 0, 0))
        partition.roll()
        partition.compact()
        assert [record.value for record in contents(partition)] == [b"the latest"]
    for name in names(log_path / "t-0", ".snapshot"):
        (log_path / "t-0" / name).unlink()
    with commitlog.open(log_path) as log:
        partition = log.topic("t").partition(0)
        assert partition.append_many([b"39"], keys=[b"key"], producer=(7, 0, 39)).start == 39
        assert partition.next_offset == 41


def test_writers_that_share_a_partition_share_what_they_know_of_producers(log_path: Path) -> None:
    with commitlog.open(log_path, mode="shared") as one, commitlog.open(log_path, mode="shared") as other:
        one.create_topic("t", config=CONFIG)
        sides = [log.topic("t").partition(0) for log in (one, other)]
        for sequence in range(60):
            assert send(sides[sequence % 2], sequence).start == sequence
            assert send(sides[(sequence + 1) % 2], sequence).start == sequence
        sides[0].truncate_from(50)
        assert send(sides[1], 49).start == 49
        assert send(sides[1], 50).start == 50
        with pytest.raises(OutOfOrderSequenceError):
            send(sides[0], 52)


def test_producers_that_are_silent_are_forgotten() -> None:
    producers = Producers()
    producers.note((1, 0, 0), 1, 0, 1_000)
    producers.note((2, 0, 0), 1, 1, 5_000)
    producers.forget_before(2_000)
    assert len(producers) == 1
    assert producers.find((2, 0, 0), 1, "t-0") == 1


def test_a_producer_that_rotted_in_a_header_is_not_believed(log_path: Path, tmp_path: Path) -> None:
    with commitlog.open(log_path) as log:
        partition = log.create_topic("t", config={"flush_ms": -1}).partition(0)
        for sequence in range(4):
            send(partition, sequence)
        partition.sync()
        position = partition.segments[0].position_of(2)
        killed = copy_as_if_killed(log, tmp_path / "killed")
    flip(killed / "t-0" / f"{0:020d}.log", position + 48, 0x40)  # base_sequence 2 of the third batch
    with commitlog.open(killed) as log:
        partition = log.topic("t").partition(0)
        assert list(send(partition, 3)) == [3]
        assert list(send(partition, 4)) == [4]
