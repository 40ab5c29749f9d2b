"""Spark writes to a log: everything once, whatever breaks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers import full_after, stage
from pyspark.sql import DataFrame, SparkSession

import commitlog
from commitlog import CommitLog
from commitlog.errors import UnfinishedPublicationError
from commitlog.spark import sink
from pyspark_commitlog import DefaultSource

from .queries import read, refusal, stream
from .sinks import (
    STEPS,
    answering_with_an_error,
    copy,
    dying_after,
    fill,
    records,
    staging_elsewhere,
    values,
    write,
    writing_twice,
)


@pytest.fixture
def log(log_path: Path) -> Iterator[CommitLog]:
    """A log that an application shares with Spark."""
    with commitlog.open(log_path, mode="shared") as opened:
        opened.create_topic("in", partitions=2)
        opened.create_topic("out", partitions=2)
        opened.create_topic("table", config={"cleanup_policy": "compact"})
        yield opened


def numbers(spark: SparkSession, count: int, tasks: int = 3) -> DataFrame:
    """Keys and values, in order, divided among tasks."""
    return spark.range(0, count, 1, tasks).selectExpr(
        "concat('k', id % 11) AS key", "lpad(id, 5, '0') AS value"
    )


def expected(count: int) -> list[bytes]:
    return [b"%05d" % number for number in range(count)]


# --- batch ---------------------------------------------------------------------------------------


def test_rows_arrive_once_where_the_engine_itself_would_put_them(
    spark: SparkSession, log: CommitLog, log_path: Path
) -> None:
    write(numbers(spark, 1000), log_path, topic="out")
    log.topic("in").append_many(expected(1000), keys=[b"k%d" % (number % 11) for number in range(1000)])
    # rows of a task keep their order, and tasks come in theirs
    assert [[(one.key, one.value) for one in part] for part in records(log_path, "out")] == [
        [(one.key, one.value) for one in part] for part in records(log_path, "in")
    ]


def test_all_columns_make_the_round_trip(spark: SparkSession, log: CommitLog, log_path: Path) -> None:
    source = log.topic("in")
    source.append(
        b"a", key=b"k", headers=[("h", b"1"), ("h", None)], timestamp=1_700_000_000_123, partition=1
    )
    source.append(None, key=b"gone", timestamp=5, partition=1)
    source.append(b"", timestamp=6, partition=0)
    frame = spark.read.format("commitlog").options(subscribe="in", includeHeaders="true").load(str(log_path))
    write(frame.drop("topic"), log_path, topic="out")  # offset and timestampType are the log's to give
    plain = [[one._replace(offset=0) for one in part] for part in records(log_path, "in")]
    assert [[one._replace(offset=0) for one in part] for part in records(log_path, "out")] == plain


def test_times_do_not_depend_on_the_time_zone_of_the_session(
    spark: SparkSession, log: CommitLog, log_path: Path
) -> None:
    log.topic("in").append(b"v", timestamp=1_700_000_000_123, partition=0)
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        frame = read(spark, log_path, subscribe="in")
        assert frame.selectExpr("unix_millis(timestamp)", "date_format(timestamp, 'HH:mm')").first() == (
            1_700_000_000_123,
            "17:13",
        )
        write(frame.drop("topic"), log_path, topic="out")
        at_noon = spark.sql(
            "SELECT 'v' AS value, 0 AS partition, TIMESTAMP '2024-07-01 12:00:00' AS timestamp"
        )
        write(at_noon, log_path, topic="out")
        reader = stream(spark, log_path, subscribe="in", startingOffsets="earliest").drop("topic")
        writer = reader.writeStream.format("commitlog").option("checkpointLocation", f"{log_path}-zone")
        writer.option("topic", "out").trigger(availableNow=True).start(str(log_path)).awaitTermination(120)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    found = [record.timestamp for record in records(log_path, "out")[0]]
    assert found == [1_700_000_000_123, 1_719_849_600_000, 1_700_000_000_123]


def test_topic_and_partition_may_be_columns(spark: SparkSession, log: CommitLog, log_path: Path) -> None:
    frame = numbers(spark, 100).selectExpr(
        "key", "CAST(value AS BINARY) AS Value", "if(value < 50, 'in', 'out') AS topic",
        "if(value % 2 = 0, 1, null) AS partition", "CAST(NULL AS TIMESTAMP) AS timestamp",
    )  # fmt: skip
    write(frame, log_path)
    assert values(log_path, "in") + values(log_path, "out") == expected(100)
    even = [one for one in records(log_path, "in")[1] if int(one.value or b"") % 2 == 0]
    assert len(even) == 25
    odd = [one for one in records(log_path, "in")[1] if int(one.value or b"") % 2]
    chosen = log.topic("in").partition_numbers(pa.array([one.key for one in odd], pa.binary()))
    assert odd and set(chosen.tolist()) == {1}
    assert all(one.timestamp > 1_600_000_000_000 for part in records(log_path, "in") for one in part)
    write(frame, log_path, topic="out")  # the option wins over the column
    assert len(values(log_path, "out")) == 150


def test_a_version_is_written_once(spark: SparkSession, log: CommitLog, log_path: Path) -> None:
    for _ in range(2):
        write(numbers(spark, 50), log_path, topic="out", txnAppId="nightly", txnVersion=7)
    assert values(log_path, "out") == expected(50)
    write(numbers(spark, 50), log_path, topic="out", txnAppId="nightly", txnVersion=6)
    assert values(log_path, "out") == expected(50)
    write(numbers(spark, 50), log_path, topic="out", txnAppId="nightly", txnVersion=8)
    assert len(values(log_path, "out")) == 100
    assert log.published("nightly") == 8
    for _ in range(2):  # without a version each run counts
        write(numbers(spark, 10), log_path, topic="in")
    assert len(values(log_path, "in")) == 20


def test_a_task_that_fails_half_way_leaves_nothing_in_the_log(
    spark: SparkSession, log: CommitLog, log_path: Path, tmp_path: Path
) -> None:
    marker = str(tmp_path / "failed")

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        yield from batches
        if not os.path.exists(marker):
            open(marker, "w").close()
            raise RuntimeError("a worker is lost")

    frame = numbers(spark, 30_000, 2)
    write(frame.mapInArrow(fail_once, frame.schema), log_path, topic="out")
    assert (tmp_path / "failed").exists()
    assert values(log_path, "out") == expected(30_000)


def test_of_two_attempts_that_both_wrote_one_counts(
    spark: SparkSession, log: CommitLog, log_path: Path
) -> None:
    spark.dataSource.register(writing_twice())
    write(numbers(spark, 100), log_path, "twice", topic="out")
    assert values(log_path, "out") == expected(100)
    assert list((log_path / "staging").iterdir()) == []  # the other one's are removed, too
    added = fill(log, "in", 100)
    copy(spark, log_path, "in", "table", "twice")
    assert values(log_path, "table") == added


def test_a_query_that_fails_writes_nothing(spark: SparkSession, log: CommitLog, log_path: Path) -> None:
    frame = numbers(spark, 100).selectExpr("key", "IF(value = 99, raise_error('no'), value) AS value")
    assert "no" in refusal(lambda: write(frame, log_path, topic="out"))
    assert values(log_path, "out") == []
    assert list((log_path / "staging").iterdir()) == []


def test_files_that_only_another_host_has_are_an_error_that_names_it(
    spark: SparkSession, log: CommitLog, log_path: Path
) -> None:
    spark.dataSource.register(staging_elsewhere())
    told = refusal(lambda: write(numbers(spark, 100), log_path, "elsewhere", topic="out"))
    assert f"files that a task staged on host {socket.gethostname()} are missing" in told
    assert "mount the same directory on all hosts" in told
    assert values(log_path, "out") == []


@pytest.mark.parametrize("streaming", [False, True], ids=["batch", "stream"])
def test_a_query_finishes_what_a_killed_writer_had_committed(
    spark: SparkSession, log: CommitLog, log_path: Path, tmp_path: Path, streaming: bool
) -> None:
    staged = [stage(log, "out", number, [b"x"] * 10) for number in range(2)]
    with full_after(1), pytest.raises(UnfinishedPublicationError):
        log.publish("a writer", 0, staged)
    assert len(values(log_path, "out")) == 10
    if streaming:
        frame = stream(spark, log_path, subscribe="out", startingOffsets="earliest")
        writer = frame.writeStream.format("parquet").option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        writer.trigger(availableNow=True).start(str(tmp_path / "data")).awaitTermination()
        frame = spark.read.parquet(str(tmp_path / "data"))
    else:
        frame = read(spark, log_path, subscribe="out")
    assert frame.count() == 20
    assert log.published("a writer") == 0


# --- streaming -----------------------------------------------------------------------------------


def test_a_stream_goes_on_from_its_checkpoint(spark: SparkSession, log: CommitLog, log_path: Path) -> None:
    first = fill(log, "in", 150)
    query = copy(spark, log_path, "in", "out")
    assert values(log_path, "out") == first
    assert log.published(str(query.id)) == query.lastProgress["batchId"]
    added = fill(log, "in", 50, 150)
    copy(spark, log_path, "in", "out", txnId="mine")
    assert values(log_path, "out") == first + added
    assert log.published("mine") is not None


def test_a_commit_that_raises_after_publishing_is_not_repeated(
    spark: SparkSession, log: CommitLog, log_path: Path, tmp_path: Path
) -> None:
    spark.dataSource.register(answering_with_an_error(tmp_path / "raised"))
    added = fill(log, "in", 150)
    assert "the answer was lost" in refusal(lambda: copy(spark, log_path, "in", "out", "failing"))
    before = values(log_path, "out")
    assert 60 < len(before) < 150
    copy(spark, log_path, "in", "out", "failing")
    assert values(log_path, "out") == added


@pytest.mark.parametrize("steps", range(len(STEPS)), ids=STEPS)
def test_a_process_that_dies_while_it_publishes_leaves_all_or_nothing(
    spark: SparkSession, log: CommitLog, log_path: Path, tmp_path: Path, steps: int
) -> None:
    spark.dataSource.register(dying_after(steps, tmp_path / "died"))
    added = fill(log, "in", 150)
    refusal(lambda: copy(spark, log_path, "in", "out", "dying"))
    assert (tmp_path / "died").exists()
    copy(spark, log_path, "in", "out", "dying")
    assert values(log_path, "out") == added


def test_rows_of_spark_4_0_are_taken_too(spark: SparkSession, log: CommitLog, log_path: Path) -> None:
    class Rows(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "rows"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
            return sink.RowStreamWriter(schema, self.options, overwrite)

    spark.dataSource.register(Rows)
    log.topic("in").append(b"a", key=b"k", headers=[("h", b"1")], timestamp=1_700_000_000_123, partition=0)
    log.topic("in").append(None, timestamp=1_700_000_000_124, partition=0)
    reader = spark.readStream.format("commitlog").option("startingOffsets", "earliest")
    frame = reader.options(subscribe="in", includeHeaders="true").load(str(log_path))
    writer = frame.writeStream.format("rows").option("checkpointLocation", f"{log_path}-rows")
    writer.option("topic", "out").trigger(availableNow=True).start(str(log_path)).awaitTermination(120)
    assert records(log_path, "out")[0] == records(log_path, "in")[0]


# --- beside others -------------------------------------------------------------------------------


def test_an_application_appends_meanwhile(spark: SparkSession, log: CommitLog, log_path: Path) -> None:
    added, done = fill(log, "in", 150), threading.Event()
    counts = []

    def append() -> None:
        count = 0
        while not done.is_set():
            log.topic("out").append(b"x", partition=count % 2)
            done.wait(0.005)
            count += 1
        counts.append(count)

    thread = threading.Thread(target=append)
    thread.start()
    try:
        copy(spark, log_path, "in", "out")
    finally:
        done.set()
        thread.join()
    found = values(log_path, "out")
    assert found == added + [b"x"] * counts[0]
    assert [log.topic("out").partition(number).next_offset for number in (0, 1)] == [
        len(part) for part in records(log_path, "out")
    ]


def test_a_log_that_somebody_has_alone_is_refused_before_the_query_runs(
    spark: SparkSession, log_path: Path, tmp_path: Path
) -> None:
    with commitlog.open(log_path) as log:
        log.create_topic("out")
        ran = str(tmp_path / "ran")

        def note(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            open(ran, "w").close()
            yield from batches

        frame = numbers(spark, 10)
        said = refusal(lambda: write(frame.mapInArrow(note, frame.schema), log_path, topic="out"))
        assert f"{log_path} is open for writing in process" in said
        assert not Path(ran).exists()
        log.topic("out").append(b"v")
        assert "is open for writing in process" in refusal(lambda: copy(spark, log_path, "out", "out"))
    write(numbers(spark, 10), log_path, topic="out")
    assert len(values(log_path, "out")) == 11


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (["key"], {"topic": "out"}, "must have a column value, a string or binary"),
        (["1 AS value"], {"topic": "out"}, "'value int': value must be string or binary"),
        (["value", "1L AS partition"], {"topic": "out"}, "'partition bigint': partition must be int"),
        (["value", "'x' AS headers"], {"topic": "out"}, "headers must be array<struct<key:string"),
        (["value", "array(1) AS headers"], {"topic": "out"}, "headers must be array<struct"),
        (["value", "key AS kye"], {"topic": "out"}, "'kye': no such column in a log; the columns are value,"),
        (["value"], {}, "topic = None: must be given, or the frame must have a column topic"),
        (["value"], {"topic": "nowhere"}, "create it with log.create_topic('nowhere', partitions=...)"),
        (["value", "'nowhere' AS topic"], {}, "create it with log.create_topic('nowhere', partitions=...)"),
        (["value", "CAST(NULL AS STRING) AS topic"], {}, "topic must not be null"),
        (["value", "7 AS partition"], {"topic": "out"}, "topic 'out' has no partition 7; it has 2"),
        (["value"], {"topic": "table"}, "'table': is compacted, so the frame must have a column key"),
        (
            ["value", "IF(value = 3, NULL, key) AS key"],
            {"topic": "table"},
            "record 3: topic 'table' is compacted, so every record needs a key",
        ),
        (["value"], {"topic": "out", "topics": "x"}, "did you mean topic?"),
        (["value"], {"topic": ""}, "topic = '': must not be empty"),
        (["value"], {"topic": "out", "txnAppId": "a"}, "txnAppId and txnVersion must be given together"),
        (["value"], {"topic": "out", "txnAppId": "a", "txnVersion": "-1"}, "must be a non-negative integer"),
        (["value"], {"topic": "out", "txnAppId": "a", "txnVersion": "2" * 20}, "must be at most 2**63 - 1"),
        (["value"], {"topic": "out", "txnId": "a"}, "is for streaming queries; use txnAppId and txnVersion"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_said_in_a_sentence(
    spark: SparkSession,
    log: CommitLog,
    log_path: Path,
    columns: list[str],
    options: dict[str, str],
    said: str,
) -> None:
    frame = numbers(spark, 5, 1).selectExpr(*columns)
    assert said in refusal(lambda: write(frame, log_path, **options))
    with commitlog.open(log_path, mode="r") as seen:
        assert [seen.topic(name).partition(0).next_offset for name in ("out", "table")] == [0, 0]


def test_a_log_is_only_appended_to(spark: SparkSession, log: CommitLog, log_path: Path) -> None:
    writer = numbers(spark, 5).write.format("commitlog").option("topic", "out")
    said = refusal(lambda: writer.mode("overwrite").save(str(log_path)))
    assert "mode = 'overwrite': a log can only be appended to; use append" in said
    missing = log_path.parent / "missing"
    assert "not a commitlog directory" in refusal(lambda: writer.mode("append").save(str(missing)))
    assert not missing.exists()
    wrong = {"txnVersion": "3"}
    fill(log, "in", 1)
    assert "is for batch queries" in refusal(lambda: copy(spark, log_path, "in", "out", **wrong))
