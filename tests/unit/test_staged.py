from __future__ import annotations

import os
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers import flip, names, stage

import commitlog
from commitlog import CommitLog, CorruptionError, StagedFile, TopicConfig
from commitlog.batches import staged
from commitlog.batches.format import SMALLEST_BATCH_BYTES, STAMP
from commitlog.batches.staged import check_staged, chunks, read_staged, remove_leftovers, stamp_batches
from commitlog.publishing import staging


@pytest.fixture
def log(log: CommitLog) -> CommitLog:
    log.create_topic("t", partitions=2)
    return log


def column(values: list[Any]) -> pa.Table:
    return pa.table({"value": pa.array(values, pa.binary())})


# --- reading


def test_any_byte_that_is_not_what_was_staged_is_noticed(log: CommitLog) -> None:
    one = stage(log, "t", 0, [b"one", b"two"])
    path = f"{log.path}/{one.path}"
    expected = check_staged(log.path, one, TopicConfig())
    for position in range(one.size_bytes):
        flip(path, position, 1 << position % 8)
        if position < STAMP.size:
            assert check_staged(log.path, one, TopicConfig()) == expected, "a stamp may be torn"
        else:
            with pytest.raises(CorruptionError) as caught:
                check_staged(log.path, one, TopicConfig())
            assert path in str(caught.value)
        flip(path, position, 1 << position % 8)


def test_garbage_is_damage_whatever_it_says(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    one, chance = staged_in_batches(log, 5, 3, monkeypatch), random.Random(1)
    path = Path(log.path, one.path)
    whole = path.read_bytes()
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(STAMP.size, SMALLEST_BATCH_BYTES)
            start = chance.randrange(5) * (len(whole) // 5) + place
            data[start : start + 4] = chance.randbytes(4) if chance.random() < 0.7 else b"\xff" * 4
        path.write_bytes(data[: len(whole)])
        with pytest.raises(CorruptionError):
            check_staged(log.path, one, TopicConfig(cleanup_policy="compact"))


def test_a_file_is_known_whatever_its_stamps_say(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    one = staged_in_batches(log, 5, 3, monkeypatch)
    batches = read_staged(log.path, one)
    assert [batch.producer[2] for batch in batches] == [0, 3, 6, 9, 12]
    with open(f"{log.path}/{one.path}", "r+b", buffering=0) as file:
        stamp_batches(file.fileno(), batches[:3], 1 << 40, 0)
    assert read_staged(log.path, one) == batches
    assert log.publish("q", 0, [one])
    assert [record.value for record in log.topic("t").partition(0).records()] == [
        b"%d" % number for number in range(5) for _ in range(3)
    ]


def test_what_follows_the_staged_bytes_is_not_looked_at(log: CommitLog) -> None:
    one = stage(log, "t", 0, [b"one", b"two"])
    expected = read_staged(log.path, one)
    with open(f"{log.path}/{one.path}", "ab") as file:
        file.write(b"appended to it as a segment")
    assert read_staged(log.path, one) == expected
    assert log.publish("q", 0, [one])
    assert [record.value for record in log.topic("t").partition(0).records()] == [b"one", b"two"]


@pytest.mark.parametrize("size", [0, 1, 64])
def test_a_file_that_is_too_short_is_noticed(log: CommitLog, size: int) -> None:
    one = stage(log, "t", 0, [b"one", b"two"])
    os.truncate(f"{log.path}/{one.path}", size)
    with pytest.raises(CorruptionError, match="bytes were staged"):
        check_staged(log.path, one, TopicConfig())


def test_a_missing_file_and_another_one_under_its_name_are_noticed(log: CommitLog) -> None:
    one, other = stage(log, "t", 0, [b"one"]), stage(log, "t", 0, [b"two"])
    shutil.copy(f"{log.path}/{other.path}", f"{log.path}/{one.path}")
    with pytest.raises(CorruptionError, match="not the batch of record 0"):
        check_staged(log.path, one, TopicConfig())
    os.unlink(f"{log.path}/{one.path}")
    with pytest.raises(CorruptionError, match="missing"):
        check_staged(log.path, one, TopicConfig())


def test_a_wrong_count_of_records_is_noticed(log: CommitLog) -> None:
    one = stage(log, "t", 0, [b"one", b"two"])
    with pytest.raises(CorruptionError, match="3 records were staged, there are 2"):
        check_staged(log.path, replace(one, records=3), TopicConfig())


def staged_in_batches(log: CommitLog, count: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> StagedFile:
    monkeypatch.setattr(staging, "_TARGET_ROWS", 1)
    with log.stage("t", 0) as writer:
        for number in range(count):
            writer.append(column([b"%d" % number] * rows))
        return writer.finish()


def test_chunks_hold_as_much_as_fits_and_go_on_at_a_sequence(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = staged_in_batches(log, 10, 3, monkeypatch)
    batches, size = read_staged(log.path, one), one.size_bytes // 10

    def shape(sequence: int, segment_bytes: int) -> list[list[int]]:
        found = chunks(f"{log.path}/{one.path}", batches, sequence, segment_bytes)
        return [[batch.producer[2] for batch in chunk] for chunk in found]

    assert shape(0, 1 << 30) == [list(range(0, 30, 3))]
    assert shape(0, 4 * size) == [[0, 3, 6, 9], [12, 15, 18, 21], [24, 27]]
    assert shape(0, size) == [[sequence] for sequence in range(0, 30, 3)]
    assert shape(15, 2 * size + 7) == [[15, 18], [21, 24], [27]]
    assert shape(30, 1 << 30) == []
    monkeypatch.setattr(staged, "_CHUNK_BATCHES", 4)
    assert shape(0, 1 << 30) == [[0, 3, 6, 9], [12, 15, 18, 21], [24, 27]]
    monkeypatch.setattr(staged, "_CHUNK_BYTES", size)
    assert shape(24, 1 << 30) == [[24], [27]]


def test_a_file_that_shrinks_before_it_is_copied_is_noticed(log: CommitLog) -> None:
    one = stage(log, "t", 0, [b"one", b"two"])
    batches = read_staged(log.path, one)
    os.truncate(f"{log.path}/{one.path}", one.size_bytes - 8)
    with pytest.raises(CorruptionError, match="bytes were staged here"):
        list(chunks(f"{log.path}/{one.path}", batches, 0, 1 << 30))


# --- leftovers


def test_leftovers_are_removed_after_a_day(log: CommitLog) -> None:
    old, young = stage(log, "t", 0, [b"old"]), stage(log, "t", 0, [b"young"])
    now = 1_000_000_000.0
    for one, age in ((old, staged.KEPT_SECONDS + 1), (young, staged.KEPT_SECONDS - 1)):
        os.utime(f"{log.path}/{one.path}", (now - age, now - age))
    foreign = Path(log.path, "staging", "notes.txt")
    foreign.touch()
    os.utime(foreign, (0, 0))
    remove_leftovers(log.path, now)
    assert names(f"{log.path}/staging") == sorted([os.path.basename(young.path), "notes.txt"])


def test_whoever_opens_the_log_for_writing_removes_leftovers(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        log.create_topic("t")
        old, young = stage(log, "t", 0, [b"old"]), stage(log, "t", 0, [b"young"])
    os.utime(log_path / old.path, (0, 0))
    commitlog.open(log_path, mode="r").close()
    assert len(names(log_path / "staging")) == 2
    commitlog.open(log_path).close()
    assert names(log_path / "staging") == [os.path.basename(young.path)]
