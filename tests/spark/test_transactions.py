"""What queries of a real Spark see of transactions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from interleaving import Work
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from commitlog import CommitLog
from commitlog.spark import export, map_arrow, verify

from .conftest import needs_admission
from .queries import read, refusal, stream


@pytest.fixture
def work(log: CommitLog) -> Iterator[Work]:
    log.create_topic("t")
    found = Work(log)
    yield found
    found.close()


class Batches:
    """A streaming query that keeps the values of each micro-batch; a repeated one must be the same."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[int, list[bytes]] = {}

    @property
    def found(self) -> list[list[bytes]]:
        """The values of the micro-batches that have any, in order."""
        return [values for _, values in sorted(self._kept.items())]

    def available(self, frame: DataFrame) -> None:
        """Read what there is, and end."""
        self._start(frame, availableNow=True).awaitTermination(120)

    def on(self, frame: DataFrame) -> StreamingQuery:
        """Go on until it is stopped."""
        return self._start(frame, processingTime="0 seconds")

    def _start(self, frame: DataFrame, **trigger: Any) -> StreamingQuery:
        def keep(batch: DataFrame, number: int) -> None:
            rows = values(batch)
            if rows:
                assert self._kept.setdefault(number, rows) == rows

        writer = frame.writeStream.foreachBatch(keep)
        return writer.option("checkpointLocation", str(self._folder)).trigger(**trigger).start()


@pytest.fixture
def batches(spark: SparkSession, tmp_path: Path) -> Iterator[Batches]:
    yield Batches(tmp_path / "checkpoint")
    for query in spark.streams.active:
        query.stop()


def values(frame: DataFrame) -> list[bytes]:
    return [bytes(row.value) for row in frame.select("value").collect()]


def mixed(work: Work) -> None:
    """A record outside transactions, an aborted one, a committed one, and one of an open transaction, "c"."""
    work.send("", b"plain")
    work.send("a", b"aborted")
    work.send("b", b"committed")
    work.end("a", commits=False)
    work.end("b")
    work.send("c", b"open")


def test_a_query_sees_what_is_committed(spark: SparkSession, work: Work, log_path: Path) -> None:
    mixed(work)
    assert values(read(spark, log_path)) == [b"plain", b"committed"]
    everything = [b"plain", b"aborted", b"committed", b"open"]
    for name in ("isolationLevel", "kafka.isolation.level"):
        assert values(read(spark, log_path, **{name: "read_uncommitted"})) == everything
    assert "must be read_committed or read_uncommitted" in refusal(
        lambda: read(spark, log_path, isolationLevel="serializable").collect()
    )
    # markers and aborted records take offsets: a task whose range has nothing else is no loss
    assert values(read(spark, log_path, maxRecordsPerPartition="1")) == [b"plain", b"committed"]
    work.end("c")
    assert values(read(spark, log_path)) == [b"plain", b"committed", b"open"]


def test_work_over_a_whole_log_sees_what_is_committed(
    spark: SparkSession, work: Work, log_path: Path, tmp_path: Path
) -> None:
    mixed(work)

    def sizes(found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in found:
            yield pa.record_batch({"rows": pa.array([batch.num_rows], pa.int64())})

    def mapped(**options: str) -> int:
        frame = map_arrow(spark, str(log_path), "t", sizes, "rows BIGINT", **options)
        return sum(row.rows for row in frame.collect())

    assert (mapped(), mapped(isolationLevel="read_uncommitted")) == (2, 4)
    assert export(spark, str(log_path), "t", str(tmp_path / "committed")) == 2
    everything = str(tmp_path / "everything")
    assert export(spark, str(log_path), "t", everything, isolation_level="read_uncommitted") == 4
    work.end("c")
    assert all(report.ok for report in verify(spark, str(log_path), ["t"]).values())


def test_a_stream_reads_a_transaction_once_when_it_is_committed(
    spark: SparkSession, work: Work, batches: Batches, log_path: Path
) -> None:
    mixed(work)
    query = batches.on(stream(spark, log_path, startingOffsets="earliest"))
    query.processAllAvailable()
    assert batches.found == [[b"plain", b"committed"]]
    work.send("", b"behind the open one")
    query.processAllAvailable()
    assert len(batches.found) == 1
    work.send("c", b"open, too")
    work.end("c")
    query.processAllAvailable()
    assert batches.found[1:] == [[b"open", b"behind the open one", b"open, too"]]
    query.stop()
    work.send("a", b"aborted")
    work.end("a", commits=False)
    work.send("", b"last")
    batches.available(stream(spark, log_path))  # goes on from its checkpoint
    assert batches.found[2:] == [[b"last"]]


def test_a_stream_may_read_what_is_not_committed(
    spark: SparkSession, work: Work, batches: Batches, log_path: Path
) -> None:
    mixed(work)
    options = {"startingOffsets": "earliest", "isolationLevel": "read_uncommitted"}
    batches.available(stream(spark, log_path, **options))
    assert batches.found == [[b"plain", b"aborted", b"committed", b"open"]]
    work.end("c", commits=False)
    work.send("", b"last")
    batches.available(stream(spark, log_path))  # from here on, only what is committed
    assert batches.found[1:] == [[b"last"]]


@needs_admission
@pytest.mark.parametrize("cap", [{"maxOffsetsPerTrigger": "3"}, {"maxBytesPerTrigger": "100"}])
def test_a_cap_cuts_no_transaction(
    spark: SparkSession, work: Work, batches: Batches, log_path: Path, cap: dict[str, str]
) -> None:
    for number in range(4):
        for part in range(5):
            work.send("a", b"a%d" % number)
            if part == number:  # overlaps the first in part
                work.send("b", b"b%d" % number)
        work.end("a", commits=number != 2)
        work.send("", b"plain%d" % number)
        work.end("b")
    # several tasks of one micro-batch may share a transaction
    options = {"startingOffsets": "earliest", "maxRecordsPerPartition": "2", **cap}
    batches.available(stream(spark, log_path, **options))
    seen = [value for batch in batches.found for value in batch]
    expected = {b"a%d" % number: 5 for number in (0, 1, 3)}
    expected |= {b"%s%d" % (name, number): 1 for name in (b"b", b"plain") for number in range(4)}
    assert {value: seen.count(value) for value in set(seen)} == expected
    for value in set(seen):
        assert sum(value in batch for batch in batches.found) == 1
    assert len(batches.found) >= 4
