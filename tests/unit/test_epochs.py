from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from helpers import flip

import commitlog
from commitlog import CommitLog, Partition, Segment
from commitlog.partitions import epochs
from commitlog.partitions.epochs import EpochHistory, EpochStart

HISTORY = EpochHistory((EpochStart(0, 0), EpochStart(3, 17), EpochStart(4, 2**40)))


def history(*starts: tuple[int, int]) -> EpochHistory:
    return EpochHistory(tuple(EpochStart(*one) for one in starts))


@pytest.mark.parametrize("kept", [EpochHistory(), HISTORY])
def test_a_history_is_read_back_as_it_was_stored(kept: EpochHistory, tmp_path: Path) -> None:
    epochs.store(str(tmp_path), kept)
    assert epochs.load(str(tmp_path)) == kept
    assert os.listdir(tmp_path) == ["leader-epoch-checkpoint"]


def test_there_is_no_history_where_none_was_stored(tmp_path: Path) -> None:
    assert epochs.load(str(tmp_path)) is None
    assert not epochs.is_there(str(tmp_path))


def test_the_file_is_text_that_a_person_can_read() -> None:
    assert epochs.to_text(HISTORY).splitlines()[:-1] == ["1", "3", "0 0", "3 17", "4 1099511627776"]


def test_no_bit_of_the_file_rots_unnoticed(tmp_path: Path) -> None:
    epochs.store(str(tmp_path), HISTORY)
    path = tmp_path / epochs.NAME
    for position in range(path.stat().st_size):
        for bit in range(8):
            flip(path, position, 1 << bit)
            assert epochs.load(str(tmp_path)) is None
            flip(path, position, 1 << bit)
    assert epochs.load(str(tmp_path)) == HISTORY


def test_a_file_that_is_cut_off_anywhere_is_not_believed(tmp_path: Path) -> None:
    text = epochs.to_text(HISTORY)
    for size in range(len(text)):
        assert epochs.from_text(text[:size]) is None


# --- at open


@pytest.fixture
def kept(log_path: Path) -> Path:
    """A replicated log of three epochs, closed; returns the partition's directory."""
    with commitlog.open(log_path) as log:
        partition = log.create_topic("t", config={"segment_bytes": 600}).partition(0)
        for epoch in (0, 2, 5):
            partition.lead(epoch)
            for _ in range(6):
                partition.append(b"value " * 10)
        assert len(partition.segments) > 3
    return log_path / "t-0"


def epochs_at_open(directory: Path) -> EpochHistory:
    with commitlog.open(directory.parent) as log:
        found: EpochHistory = log.topic("t").partition(0).epochs
    assert epochs.load(str(directory)) == found, "what was found is stored"
    return found


FOUND = history((0, 0), (2, 6), (5, 12))


def test_the_history_survives_a_restart(kept: Path) -> None:
    assert epochs_at_open(kept) == FOUND


@pytest.mark.parametrize("damage", ["lost", "rotten", "empty"])
def test_a_lost_or_damaged_history_is_read_from_the_batches(kept: Path, damage: str) -> None:
    path = kept / epochs.NAME
    if damage == "lost":
        path.unlink()
    elif damage == "rotten":
        flip(path, 5)
    else:
        path.write_bytes(b"")
    assert epochs_at_open(kept) == FOUND


def test_a_full_disk_keeps_nobody_from_opening_a_log_whose_history_is_lost(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kept / epochs.NAME).unlink()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(epochs, "store", full)
        with commitlog.open(kept.parent) as log:
            assert log.topic("t").partition(0).epochs == FOUND
    assert epochs_at_open(kept) == FOUND


@pytest.mark.parametrize("lacks", [1, 2, 3])
def test_epochs_that_the_file_lacks_are_read_from_the_batches(kept: Path, lacks: int) -> None:
    epochs.store(str(kept), EpochHistory(FOUND.starts[:-lacks]))
    assert epochs_at_open(kept) == FOUND


def test_only_the_batches_after_the_last_known_epoch_are_looked_at(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs.store(str(kept), EpochHistory(FOUND.starts[:-1]))
    asked = []
    real = epochs.headers_between  # type: ignore[attr-defined]

    def noted(segments: Any, start: int, end: int, *, sound: bool) -> object:
        asked.append((start, end))
        return real(segments, start, end, sound=sound)

    monkeypatch.setattr(epochs, "headers_between", noted)
    assert epochs_at_open(kept) == FOUND
    assert asked == [(6, 18)]
    assert epochs_at_open(kept) == FOUND
    assert len(asked) == 1, "a history that is right about the last batch is believed"


def test_epochs_beyond_the_end_of_the_log_are_dropped(kept: Path) -> None:
    epochs.store(str(kept), history(*FOUND.starts, (6, 19), (7, 30)))
    assert epochs_at_open(kept) == FOUND


def test_an_epoch_that_has_no_records_yet_stays(kept: Path) -> None:
    begun = history(*FOUND.starts, (6, 18))
    epochs.store(str(kept), begun)
    assert epochs_at_open(kept) == begun


def test_a_history_that_is_wrong_about_the_last_batch_is_not_believed(kept: Path) -> None:
    epochs.store(str(kept), history((0, 0), (9, 3)))
    assert epochs_at_open(kept) == FOUND


def test_what_was_trimmed_is_not_in_the_history(kept: Path) -> None:
    with commitlog.open(kept.parent) as log:
        partition = log.topic("t").partition(0)
        partition.set_high_watermark(18)
        partition.trim_before(8)
        assert partition.epochs == history((2, 8), (5, 12))
    (kept / epochs.NAME).unlink()
    assert epochs_at_open(kept) == history((2, 8), (5, 12))


def test_an_unreplicated_partition_has_no_such_file_and_no_epochs(
    log: CommitLog, partition: Partition
) -> None:
    partition.append(b"x")
    assert partition.epochs == EpochHistory()
    assert not epochs.is_there(partition.path)
    assert [header.leader_epoch for _, header in partition.segments[0].headers()] == [0]


def test_the_records_of_a_partition_that_becomes_replicated_are_of_epoch_0(partition: Partition) -> None:
    partition.append(b"x")
    partition.lead(4)
    partition.append(b"y")
    assert partition.epochs == history((0, 0), (4, 1))
    assert [header.leader_epoch for _, header in partition.segments[0].headers()] == [0, 4]


@pytest.mark.parametrize("history_file", ["there", "lost"])
def test_an_epoch_that_rotted_in_a_batch_is_not_believed(kept: Path, history_file: str) -> None:
    *_, last = sorted(kept.glob("*.log"))
    segment = Segment.open(last)
    position = segment.position_of(17)
    flip(last, position + 8, 0x40)  # leader_epoch 5 of the last batch becomes 69
    if history_file == "lost":
        (kept / epochs.NAME).unlink()
        epochs.store(str(kept), EpochHistory())
    assert epochs_at_open(kept) == FOUND


def test_an_epoch_whose_only_batch_is_damaged_stays_in_a_history_that_knows_it(kept: Path) -> None:
    with commitlog.open(kept.parent) as log:
        partition = log.topic("t").partition(0)
        partition.lead(9)
        partition.append(b"alone in its epoch")
        path, position = partition.segments[-1].path, partition.segments[-1].position_of(18)
    flip(path, position + 70)
    assert epochs_at_open(kept) == history(*FOUND.starts, (9, 18))
