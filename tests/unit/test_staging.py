from __future__ import annotations

import errno
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers import CODECS, flip, names, stage

import commitlog
from commitlog import (
    BatchTooLargeError,
    ClosedError,
    CommitLog,
    CorruptionError,
    DiskFullError,
    InvalidRecordError,
    RecordBatch,
    StagedFile,
    TopicConfig,
    UnknownPartitionError,
    UnknownTopicError,
    files,
    staging,
)
from commitlog.format import PUBLISHED
from commitlog.staging import check_staged, chunks, remove_leftovers


@pytest.fixture
def log(log: CommitLog) -> CommitLog:
    log.create_topic("t", partitions=2)
    return log


def batches_of(log: CommitLog, staged: StagedFile) -> list[RecordBatch]:
    data, position, found = Path(log.path, staged.path).read_bytes(), 0, []
    while position < len(data):
        found.append(RecordBatch.decode(data, position))
        position += found[-1].size_bytes
    return found


def column(values: list[Any]) -> pa.Table:
    return pa.table({"value": pa.array(values, pa.binary())})


# --- writing


@pytest.mark.parametrize("codec", CODECS)
def test_a_staged_file_holds_batches_as_a_segment_does_with_offsets_from_0(
    log: CommitLog, codec: str
) -> None:
    log.topic("t").alter_config(compression_type=codec)
    values = [b"%d" % number * 20 for number in range(30_000)]
    with log.stage("t", 1) as writer:
        for first in range(0, 30_000, 10_000):
            writer.append(column(values[first : first + 10_000]))
        staged = writer.finish()
    found = batches_of(log, staged)
    assert [batch.base_offset for batch in found] == [0, 10_000, 20_000]
    assert [value for batch in found for value in batch.values()] == values
    assert [batch.header.producer for batch in found] == [
        (staged.file_id, PUBLISHED, first) for first in (0, 10_000, 20_000)
    ]
    assert staged == StagedFile("t", 1, staged.file_id, os.path.getsize(f"{log.path}/{staged.path}"), 30_000)


def test_keys_timestamps_and_headers_are_staged_too(log: CommitLog) -> None:
    headers = pa.array(
        [[{"key": "h", "value": b"1"}]], pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
    )
    staged = stage(log, "t", 0, [b"v"], key=[b"k"], timestamp=[77], headers=headers)
    ((record,),) = [list(batch.records()) for batch in batches_of(log, staged)]
    assert record == (0, 77, b"k", b"v", (("h", b"1"),))


def test_small_batches_are_put_together_as_long_as_they_look_alike(log: CommitLog) -> None:
    with log.stage("t", 0) as writer:
        for number in range(100):
            writer.append(column([b"%d" % number]).to_batches()[0])
        writer.append(pa.table({"value": ["text"], "key": ["k"]}))
        writer.append(column([]))
        staged = writer.finish()
    assert [len(batch) for batch in batches_of(log, staged)] == [100, 1]
    assert batches_of(log, staged)[1].values() == [b"text"]


def test_a_staged_file_pickles_and_says_where_it_lies(log: CommitLog) -> None:
    staged = stage(log, "t", 0, [b"v"])
    assert pickle.loads(pickle.dumps(staged)) == staged
    assert os.path.exists(os.path.join(log.path, staged.path))


def test_a_reader_of_the_log_may_stage(log: CommitLog) -> None:
    with commitlog.open(log.path, mode="r") as reader:
        staged = stage(reader, "t", 0, [b"v"])
    assert log.publish("q", 0, [staged])


def test_nothing_is_staged_for_partitions_that_are_not_there(log: CommitLog) -> None:
    with pytest.raises(UnknownTopicError):
        log.stage("other", 0)
    with pytest.raises(UnknownPartitionError):
        log.stage("t", 2)
    assert not os.path.exists(f"{log.path}/staging")


def test_the_file_and_its_name_are_synced_before_it_is_reported(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(files, "sync_data", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    monkeypatch.setattr(files, "sync_directory", synced.append)
    staged = stage(log, "t", 0, [b"v"])
    assert synced == [log.path, f"{log.path}/{staged.path}", f"{log.path}/staging"]


def test_what_is_not_finished_leaves_nothing_behind(log: CommitLog) -> None:
    with pytest.raises(ZeroDivisionError), log.stage("t", 0) as writer:
        writer.append(column([b"v"] * 10_000))
        assert names(f"{log.path}/staging")
        raise ZeroDivisionError
    assert names(f"{log.path}/staging") == []
    with pytest.raises(ClosedError):
        writer.finish()


def test_a_finished_file_takes_no_more(log: CommitLog) -> None:
    with log.stage("t", 0) as writer:
        writer.finish()
        with pytest.raises(ClosedError):
            writer.append(column([b"v"]))
        with pytest.raises(ClosedError):
            writer.finish()


def test_a_staged_file_without_records_is_no_file(log: CommitLog) -> None:
    with log.stage("t", 0) as writer:
        staged = writer.finish()
    assert (staged.size_bytes, staged.records) == (0, 0)
    assert log.publish("q", 0, [staged])
    assert log.topic("t").partition(0).next_offset == 0


def test_a_wrong_record_is_told_by_its_number_in_the_file(log: CommitLog) -> None:
    log.topic("t").alter_config(cleanup_policy="compact")
    with log.stage("t", 0) as writer:
        writer.append(pa.table({"value": [b"v"] * 9_000, "key": [b"k"] * 9_000}))
        with pytest.raises(InvalidRecordError, match="record 9001: a compacted topic needs a key"):
            writer.append(pa.table({"value": [b"v"] * 9_000, "key": [b"k", None] * 4_500}))
    with log.stage("t", 0) as writer, pytest.raises(TypeError, match="RecordBatch or Table"):
        writer.append([b"v"])  # type: ignore[arg-type]


def test_a_batch_that_fits_in_no_segment_is_refused(log: CommitLog) -> None:
    log.topic("t").alter_config(segment_bytes=1_000)
    with pytest.raises(BatchTooLargeError):
        stage(log, "t", 0, [b"v" * 2_000])
    assert not os.path.exists(f"{log.path}/staging")


def test_a_full_disk_is_a_typed_error(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no room")

    for name in ("write_at", "sync_data"):
        with monkeypatch.context() as patch, pytest.raises(DiskFullError):
            patch.setattr(files, name, full)
            stage(log, "t", 0, [b"v"])


def test_a_staged_file_takes_no_more_records_than_there_are_sequences(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "SEQUENCES", 100)
    with pytest.raises(InvalidRecordError, match="less than 100 records"):
        stage(log, "t", 0, [b"v"] * 100)


# --- reading


def test_any_byte_that_is_not_what_was_staged_is_noticed(log: CommitLog) -> None:
    staged = stage(log, "t", 0, [b"one", b"two"])
    path = f"{log.path}/{staged.path}"
    check_staged(log.path, staged, TopicConfig())
    for position in range(staged.size_bytes):
        flip(path, position, 1 << position % 8)
        with pytest.raises(commitlog.CommitLogError) as caught:
            check_staged(log.path, staged, TopicConfig())
        assert path in str(caught.value)
        flip(path, position, 1 << position % 8)


@pytest.mark.parametrize("size", [0, 1, 64, 100_000])
def test_a_file_of_another_size_is_noticed(log: CommitLog, size: int) -> None:
    staged = stage(log, "t", 0, [b"one", b"two"])
    os.truncate(f"{log.path}/{staged.path}", size)
    with pytest.raises(CorruptionError, match="bytes were staged"):
        check_staged(log.path, staged, TopicConfig())


def test_a_missing_file_and_another_one_under_its_name_are_noticed(log: CommitLog) -> None:
    staged, other = stage(log, "t", 0, [b"one"]), stage(log, "t", 0, [b"two"])
    shutil.copy(f"{log.path}/{other.path}", f"{log.path}/{staged.path}")
    with pytest.raises(CorruptionError, match="another batch"):
        check_staged(log.path, staged, TopicConfig())
    os.unlink(f"{log.path}/{staged.path}")
    with pytest.raises(CorruptionError, match="missing"):
        check_staged(log.path, staged, TopicConfig())


def test_a_wrong_count_of_records_is_noticed(log: CommitLog) -> None:
    one = stage(log, "t", 0, [b"one", b"two"])
    with pytest.raises(CorruptionError, match="3 records were staged, there are 2"):
        check_staged(log.path, StagedFile("t", 0, one.file_id, one.size_bytes, 3), TopicConfig())


def staged_in_batches(log: CommitLog, count: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> StagedFile:
    monkeypatch.setattr(staging, "_TARGET_ROWS", 1)
    with log.stage("t", 0) as writer:
        for number in range(count):
            writer.append(column([b"%d" % number] * rows))
        return writer.finish()


def test_chunks_hold_as_much_as_fits_and_go_on_at_a_sequence(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = staged_in_batches(log, 10, 3, monkeypatch)
    size = staged.size_bytes // 10

    def shape(sequence: int, segment_bytes: int) -> list[list[int]]:
        found = chunks(log.path, staged, sequence, segment_bytes)
        return [[batch.producer[2] for batch in chunk] for chunk in found]

    assert shape(0, 1 << 30) == [list(range(0, 30, 3))]
    assert shape(0, 4 * size) == [[0, 3, 6, 9], [12, 15, 18, 21], [24, 27]]
    assert shape(0, size) == [[sequence] for sequence in range(0, 30, 3)]
    assert shape(15, 2 * size + 7) == [[15, 18], [21, 24], [27]]
    assert shape(30, 1 << 30) == []
    monkeypatch.setattr(staging, "_CHUNK_BATCHES", 4)
    assert shape(0, 1 << 30) == [[0, 3, 6, 9], [12, 15, 18, 21], [24, 27]]
    monkeypatch.setattr(staging, "_CHUNK_BYTES", size)
    assert shape(24, 1 << 30) == [[24], [27]]


# --- leftovers


def test_leftovers_are_removed_after_a_day(log: CommitLog) -> None:
    old, young = stage(log, "t", 0, [b"old"]), stage(log, "t", 0, [b"young"])
    now = 1_000_000_000.0
    for staged, age in ((old, staging.KEPT_SECONDS + 1), (young, staging.KEPT_SECONDS - 1)):
        os.utime(f"{log.path}/{staged.path}", (now - age, now - age))
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
