"""write_stream: aggregations and other streams reach a log exactly once, in every output mode."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

import commitlog
from commitlog import CommitLog, ConfigError, LogLockedError
from commitlog.errors import NotALogError
from commitlog.spark import stream_writing, write_stream

from .conftest import VERSION
from .queries import refusal, stream
from .sinks import STEPS, answering_with_an_error, dying_after, fill, records

BATCHES = (60, 120, 150)  # how many records the query has read after each of its micro-batches
FIRST = [(b"k%d" % number, b"9" if number < 4 else b"8") for number in range(7)]  # counts after the first


@pytest.fixture
def log(log_path: Path) -> Iterator[CommitLog]:
    """A log that an application shares with Spark."""
    with commitlog.open(log_path, mode="shared") as opened:
        opened.create_topic("in")
        opened.create_topic("out", partitions=2)
        opened.create_topic("table", config={"cleanup_policy": "compact"})
        yield opened


def source(spark: SparkSession, path: Path) -> DataFrame:
    """The topic "in", 60 records at a time."""
    return stream(spark, path, subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger="60")


def counts(spark: SparkSession, path: Path) -> DataFrame:
    """How often each key occurs."""
    return source(spark, path).groupBy("key").count().selectExpr("key", "CAST(count AS STRING) AS value")


def finish(frame: DataFrame, path: Path, checkpoint: str = "checkpoint", **arguments: Any) -> StreamingQuery:
    """Write everything there is, and end the query."""
    place = path.parent / checkpoint
    if VERSION >= (4, 2):
        query = write_stream(frame, path, checkpoint=place, trigger={"availableNow": True}, **arguments)
        query.awaitTermination(120)
    else:  # a run of AvailableNow is one capped batch
        query = write_stream(frame, path, checkpoint=place, **arguments)
        query.processAllAvailable()
        query.stop()
    return query


def written(path: Path, topic: str = "out") -> list[tuple[bytes | None, bytes | None]]:
    """The keys and values of all partitions, sorted."""
    return sorted((one.key or b"", one.value or b"") for part in records(path, topic) for one in part)


def updates() -> list[tuple[bytes, bytes]]:
    """What an aggregation in update mode writes: for each batch, the keys in it and their counts."""
    found: list[tuple[bytes, bytes]] = []
    seen: Counter[bytes] = Counter()
    for start, end in zip((0, *BATCHES), BATCHES, strict=False):
        new = Counter(b"k%d" % (number % 7) for number in range(start, end))
        seen += new
        found += [(key, b"%d" % seen[key]) for key in new]
    return sorted(found)


# --- exactly once --------------------------------------------------------------------------------


def test_an_aggregation_in_update_mode_goes_on_from_its_checkpoint(
    spark: SparkSession, log: CommitLog, log_path: Path
) -> None:
    fill(log, "in", 120)
    query = finish(counts(spark, log_path), log_path, topic="out", output_mode="update")
    log.topic("in").append_many([b"v"] * 30, keys=[b"k%d" % (number % 7) for number in range(120, 150)])
    again = finish(counts(spark, log_path), log_path, topic="out", output_mode="update")
    assert query.id == again.id
    assert log.published(str(query.id)) == again.lastProgress["batchId"]
    assert written(log_path) == updates()


@pytest.mark.parametrize("steps", range(len(STEPS)), ids=STEPS)
def test_an_aggregation_whose_publishing_process_dies_is_written_once(
    spark: SparkSession,
    log: CommitLog,
    log_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
) -> None:
    monkeypatch.setattr(stream_writing, "_FORMAT", "dying")
    spark.dataSource.register(dying_after(steps, tmp_path / "died"))
    fill(log, "in", 150)
    refusal(lambda: finish(counts(spark, log_path), log_path, topic="out", output_mode="update"))
    assert (tmp_path / "died").exists()
    finish(counts(spark, log_path), log_path, topic="out", output_mode="update")
    assert written(log_path) == updates()


def test_an_aggregation_whose_batch_fails_after_publishing_is_written_once(
    spark: SparkSession, log: CommitLog, log_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_writing, "_FORMAT", "failing")
    spark.dataSource.register(answering_with_an_error(tmp_path / "raised"))
    fill(log, "in", 150)
    said = refusal(lambda: finish(counts(spark, log_path), log_path, topic="out", output_mode="update"))
    assert "the answer was lost" in said
    assert len(written(log_path)) == 14
    finish(counts(spark, log_path), log_path, topic="out", output_mode="update")
    assert written(log_path) == updates()


def test_an_aggregation_whose_driver_dies_after_publishing_is_written_once(
    spark: SparkSession, log: CommitLog, log_path: Path
) -> None:
    fill(log, "in", 150)
    died = run_driver("dies", log_path)
    assert died.returncode == 9, died.stderr
    assert len(written(log_path)) == 14
    finish(counts(spark, log_path), log_path, topic="out", output_mode="update")
    assert written(log_path) == updates()


def test_a_client_of_spark_connect_writes_once_too(log: CommitLog, log_path: Path) -> None:
    pytest.importorskip("grpc")
    fill(log, "in", 150)
    done = run_driver("connect", log_path)
    assert done.returncode == 0, done.stderr
    assert written(log_path) == updates()
    ids = done.stdout.split()
    assert len(ids) == 2 and len(set(ids)) == 1  # it ran twice
    assert log.published(ids[0]) == 2


def run_driver(how: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Run driver.py in a process of its own."""
    command = [sys.executable, "-m", "tests.spark.driver", how, str(path)]
    here = Path(__file__).parents[2]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, cwd=here)


def test_two_queries_write_to_one_topic(spark: SparkSession, log: CommitLog, log_path: Path) -> None:
    fill(log, "in", 150)
    running = [
        write_stream(
            counts(spark, log_path), log_path, topic="out", output_mode="update",
            checkpoint=log_path.parent / name, query_name=name,
        )
        for name in ("one", "other")
    ]  # fmt: skip
    for query in running:
        query.processAllAvailable()
        query.stop()
    assert [query.name for query in running] == ["one", "other"]
    assert written(log_path) == sorted(2 * updates())


def test_batches_may_be_numbered_under_a_name(spark: SparkSession, log: CommitLog, log_path: Path) -> None:
    fill(log, "in", 60)
    for checkpoint in ("first", "second"):  # the name counts, not the checkpoint
        finish(
            counts(spark, log_path), log_path, checkpoint, topic="out", output_mode="update", txn_id="counts"
        )
    assert written(log_path) == FIRST
    assert log.published("counts") == 0


# --- output modes --------------------------------------------------------------------------------


def test_complete_mode_writes_the_whole_result_each_time(
    spark: SparkSession, log: CommitLog, log_path: Path
) -> None:
    fill(log, "in", 60)
    finish(counts(spark, log_path), log_path, topic="table", output_mode="complete")
    log.topic("in").append(b"v", key=b"k0")
    finish(counts(spark, log_path), log_path, topic="table", output_mode="complete")
    assert written(log_path, "table") == sorted([*FIRST, (b"k0", b"10"), *FIRST[1:]])
    latest = {one.key: one.value for one in records(log_path, "table")[0]}
    assert latest == dict(FIRST) | {b"k0": b"10"}


def test_append_mode_writes_a_window_once_when_the_watermark_has_passed_it(
    spark: SparkSession, log: CommitLog, log_path: Path
) -> None:
    minute = 60_000

    def add(*minutes: int) -> None:
        for one in minutes:
            log.topic("in").append(b"v", timestamp=one * minute)

    frame = source(spark, log_path).withWatermark("timestamp", "1 minute")
    windows = frame.groupBy(f.window("timestamp", "10 minutes")).count()
    closed = windows.selectExpr("date_format(window.start, 'mm') AS key", "CAST(count AS STRING) AS value")
    add(1, 2, 3, 10)
    finish(closed, log_path, topic="out")
    assert written(log_path) == []
    add(12)
    finish(closed, log_path, topic="out")
    assert written(log_path) == [(b"00", b"3")]
    add(25, 21)
    finish(closed, log_path, topic="out")
    assert written(log_path) == [(b"00", b"3"), (b"10", b"2")]


def test_a_batch_without_rows_counts(spark: SparkSession, log: CommitLog, log_path: Path) -> None:
    fill(log, "in", 10)
    nothing = source(spark, log_path).where("value = 'never'").select("key", "value")
    query = finish(nothing, log_path, topic="out")
    assert written(log_path) == []
    assert log.published(str(query.id)) == query.lastProgress["batchId"] == 0


def test_each_row_may_name_its_topic(spark: SparkSession, log: CommitLog, log_path: Path) -> None:
    fill(log, "in", 4)
    frame = source(spark, log_path).selectExpr("IF(offset < 2, 'out', 'table') AS topic", "key", "value")
    finish(frame, log_path)
    assert [value for _, value in written(log_path)] == [b"00000", b"00001"]
    assert [value for _, value in written(log_path, "table")] == [b"00002", b"00003"]


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"output_mode": "upsert"}, "output_mode = 'upsert': must be append or update or complete"),
        ({"checkpoint": ""}, "checkpoint = '': must be a directory"),
        ({"checkpoint": None}, "checkpoint = None: must be a directory"),
        ({"topic": "nowhere"}, "create it with log.create_topic('nowhere', partitions=...)"),
        ({"topic": None}, "topic = None: must be given, or the frame must have a column topic"),
        ({"topic": ""}, "topic = '': must not be empty"),
        ({"txn_id": ""}, "txnId = '': must not be empty"),
        ({"trigger": {}}, "must have exactly one of availableNow, once, processingTime"),
        ({"trigger": {"availableNow": True, "once": True}}, "must have exactly one of"),
        ({"trigger": {"continuous": "1 second"}}, "must have exactly one of"),
    ],
)
def test_wrong_arguments_are_refused_before_the_query_starts(
    spark: SparkSession, log: CommitLog, log_path: Path, arguments: dict[str, Any], said: str
) -> None:
    given: dict[str, Any] = {
        "topic": "out",
        "checkpoint": log_path.parent / "checkpoint",
        "output_mode": "update",
    }
    with pytest.raises(ConfigError) as caught:
        write_stream(counts(spark, log_path), log_path, **(given | arguments))
    assert said in str(caught.value)
    assert not (log_path.parent / "checkpoint").exists()


@pytest.mark.parametrize(
    ("columns", "topic", "said"),
    [
        (["key", "offset"], "out", "must have a column value, a string or binary; to_json(struct(*)) AS"),
        (["offset AS value"], "out", "'value bigint': value must be string or binary"),
        (["value"], "table", "'table': is compacted, so the frame must have a column key"),
        (["value", "1 AS count"], "out", "'count': no such column in a log; the columns are value, key,"),
    ],
)
def test_a_frame_that_is_no_record_is_refused_before_the_query_starts(
    spark: SparkSession, log: CommitLog, log_path: Path, columns: list[str], topic: str, said: str
) -> None:
    frame = source(spark, log_path).selectExpr(*columns)
    with pytest.raises(ConfigError) as caught:
        write_stream(frame, log_path, topic=topic, checkpoint=log_path.parent / "checkpoint")
    assert said in str(caught.value)
    assert not (log_path.parent / "checkpoint").exists()


def test_a_frame_that_is_no_stream_is_refused(spark: SparkSession, log: CommitLog, log_path: Path) -> None:
    frame = spark.range(5).selectExpr("CAST(id AS STRING) AS value")
    with pytest.raises(ConfigError, match="is not a stream"):
        write_stream(frame, log_path, topic="out", checkpoint=log_path.parent / "checkpoint")


def test_a_log_that_cannot_be_written_is_refused_before_the_query_starts(
    spark: SparkSession, log_path: Path
) -> None:
    with commitlog.open(log_path) as log:
        log.create_topic("in")
        log.create_topic("out")
        frame, checkpoint = counts(spark, log_path), log_path.parent / "checkpoint"
        with pytest.raises(LogLockedError):
            write_stream(frame, log_path, topic="out", output_mode="update", checkpoint=checkpoint)
        with pytest.raises(NotALogError):
            write_stream(frame, log_path.parent / "no", topic="out", checkpoint=checkpoint)
    assert not checkpoint.exists()
