from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers import names

from commitlog import CommitLog
from commitlog.publishing.staging import StagingWriter

SEGMENT_BYTES = 4096


@pytest.fixture
def log(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> CommitLog:
    monkeypatch.setattr("commitlog.publishing.staging._TARGET_ROWS", 1)
    log.create_topic("t", partitions=2, config={"segment_bytes": SEGMENT_BYTES, "flush_ms": -1})
    return log


def writer_of(log: CommitLog) -> Any:
    pytest.importorskip("pyspark")
    from commitlog.spark.task import TaskWriter

    return TaskWriter(log, "t", "query", 0)


def rows(first: int, count: int) -> pa.RecordBatch:
    """Rows for both partitions in turn, of a hundred bytes and more each."""
    numbers = range(first, first + count)
    return pa.record_batch(
        {
            "partition": pa.array([number % 2 for number in numbers], pa.int32()),
            "value": [b"%0100d" % number for number in numbers],
        }
    )


def test_a_large_task_makes_files_that_are_segments_and_keeps_the_order_of_rows(log: CommitLog) -> None:
    writer = writer_of(log)
    for first in range(0, 200, 10):
        writer.append(rows(first, 10))
    staged = writer.finish()
    assert len(staged) == len(names(f"{log.path}/staging")) > 4
    assert all(one.size_bytes <= SEGMENT_BYTES for one in staged)
    found = {os.stat(f"{log.path}/{one.path}").st_ino for one in staged}
    assert log.publish("query", 0, staged)
    for number, partition in enumerate(log.topic("t").partitions):
        assert [int(one.value) for one in partition.records()] == list(range(number, 200, 2))
        found -= {os.stat(segment.path).st_ino for segment in partition.segments}
    assert found == set(), "none was copied"


def test_a_task_that_fails_leaves_no_file_finished_or_not(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_of(log)
    for first in range(0, 100, 10):
        writer.append(rows(first, 10))
    assert len(writer._full) > 1
    real, left = StagingWriter.finish, iter(range(1))

    def finish(self: StagingWriter) -> Any:
        if next(left, None) is None:
            raise ZeroDivisionError
        return real(self)

    monkeypatch.setattr(StagingWriter, "finish", finish)
    with pytest.raises(ZeroDivisionError):
        writer.finish()
    writer.discard()
    assert names(f"{log.path}/staging") == []


def test_what_finish_returned_stays(log: CommitLog) -> None:
    writer = writer_of(log)
    writer.append(rows(0, 10))
    staged = writer.finish()
    writer.discard()
    assert all(Path(log.path, one.path).exists() for one in staged)
