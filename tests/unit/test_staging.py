from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from helpers import CODECS, names, stage

import commitlog
from commitlog import (
    ClosedError,
    CommitLog,
    DiskFullError,
    InvalidRecordError,
    RecordBatch,
    StagedFile,
    UnknownTopicError,
    files,
)
from commitlog.batches.format import PUBLISHED, STAMP
from commitlog.batches.staged import chained
from commitlog.errors import BatchTooLargeError, UnknownPartitionError
from commitlog.publishing import staging


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
    size, checksum = os.path.getsize(f"{log.path}/{staged.path}"), 0
    for batch in found:
        checksum = chained(checksum, crc32c(batch.raw[STAMP.size :]))
    assert staged == StagedFile(
        "t", 1, staged.file_id, size, 30_000, checksum, log.topic("t").topic_id, None, log.log_id
    )


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
    with log.stage("t", 0) as writer, pytest.raises(TypeError, match="expected Arrow data"):
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
    with pytest.raises(InvalidRecordError, match="fewer than 100 records"):
        stage(log, "t", 0, [b"v"] * 100)


def test_the_disk_does_not_wait_for_the_end_of_a_large_file(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[int, int]] = []
    monkeypatch.setattr(staging, "_START_BYTES", 100_000)
    monkeypatch.setattr(files, "start_writing", lambda fd, start, end: started.append((start, end)))
    with log.stage("t", 0) as writer:
        for _ in range(5):
            writer.append(column([b"v" * 60_000] * 20))
        staged = writer.finish()
    assert [start for start, _ in started] == [0, *(end for _, end in started[:-1])]
    assert len(started) == 5
    assert started[-1][1] == staged.size_bytes
