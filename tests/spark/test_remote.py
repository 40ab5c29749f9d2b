"""Queries over a log that other machines have: a node serves it, and Spark has none of its files."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from helpers import names
from pyspark.sql import DataFrame, SparkSession

import commitlog
from commitlog import CommitLog
from commitlog.replication import Node, StaticController, TcpTransport
from commitlog.spark import doctor, map_arrow
from commitlog.spark.readable import open_readable

from .queries import offsets, read, refusal
from .sinks import answering_with_an_error, write, writing_twice

SECRET = b"between us"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n")
    return path


@pytest.fixture
def place(tmp_path: Path, secret: Path) -> Iterator[str]:
    """The path of a log behind a node, with 300 records in two partitions."""
    transport, controller = TcpTransport(secret=SECRET), StaticController()
    with commitlog.open(tmp_path / "log") as log, Node(log, transport, controller, 1) as node:
        node.create_topic("orders", partitions=2)
        for number, partition in enumerate(node.topic("orders").partitions):
            partition.append_many(
                [b"%d" % n for n in range(100 + 100 * number)], timestamps=range(100 + 100 * number)
            )
        yield f"commitlog://{node.address}?secret={secret}"
    controller.close()
    transport.close()


def test_a_query_reads_through_the_network(spark: SparkSession, place: str) -> None:
    frame = read(spark, place, startingOffsets='{"orders": {"0": 90, "1": 195}}')
    expected = {("orders", 0): list(range(90, 100)), ("orders", 1): list(range(195, 200))}
    assert offsets(frame) == expected
    assert {bytes(row.value) for row in frame.collect()} >= {b"99", b"199"}


def test_ranges_are_cut_and_times_are_found_there_too(spark: SparkSession, place: str) -> None:
    frame = read(spark, place, maxRecordsPerPartition="30", startingTimestamp="50")
    expected = {("orders", 0): list(range(50, 100)), ("orders", 1): list(range(50, 200))}
    assert offsets(frame) == expected
    assert frame.rdd.getNumPartitions() == 7


def test_arrow_batches_come_straight_from_the_node(spark: SparkSession, place: str) -> None:
    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": [sum(batch.num_rows for batch in batches)]})

    assert sum(row.n for row in map_arrow(spark, place, "orders", count, "n BIGINT").collect()) == 300


def test_a_stream_goes_on_where_its_checkpoint_says(spark: SparkSession, place: str, tmp_path: Path) -> None:
    def run() -> int:
        stream = spark.readStream.format("commitlog").option("startingOffsets", "earliest").load(place)
        writer = stream.select("value").writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        writer.start(str(tmp_path / "data")).awaitTermination()
        return spark.read.parquet(str(tmp_path / "data")).count()

    assert run() == 300
    assert run() == 300


# --- writing -----------------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[CommitLog, str]]:
    """A log that this process has for itself, and the path by which others write to it."""
    with commitlog.open(tmp_path / "log") as log, commitlog.serve(log) as server:
        for topic in ("in", "out"):
            log.create_topic(topic, partitions=3)
        yield log, server.path


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 3).selectExpr(
        "CAST(id % 7 AS STRING) AS key", "CAST(id AS STRING) AS value"
    )


def found(log: CommitLog, topic: str = "out") -> list[int]:
    return sorted(int(record.value or b"") for record in log.topic(topic).records())


def staged_names(log: CommitLog) -> list[str]:
    return names(f"{log.path}/staging")


def test_a_frame_is_written_through_the_network(spark: SparkSession, served: tuple[CommitLog, str]) -> None:
    log, place = served
    write(numbers(spark, 5_000), place, topic="out")
    assert found(log) == list(range(5_000))
    keys = {
        number: {record.key for record in partition.records()}
        for number, partition in enumerate(log.topic("out"))
    }
    assert all(log.topic("out").partition_numbers(pa.array(sorted(some))).tolist() == [number] * len(some)
               for number, some in keys.items() if some)  # fmt: skip
    assert staged_names(log) == []


def test_a_version_is_written_once_through_the_network(
    spark: SparkSession, served: tuple[CommitLog, str]
) -> None:
    log, place = served
    for version in (1, 1, 2, 1):
        write(numbers(spark, 10), place, topic="out", txnAppId="daily", txnVersion=version)
    assert found(log) == sorted([*range(10)] * 2)
    assert staged_names(log) == []


def test_of_two_attempts_one_counts_and_a_failed_query_leaves_nothing_on_the_node(
    spark: SparkSession, served: tuple[CommitLog, str]
) -> None:
    log, place = served
    spark.dataSource.register(writing_twice())
    write(numbers(spark, 100), place, "twice", topic="out")
    assert found(log) == list(range(100))
    assert staged_names(log) == []
    frame = numbers(spark, 100).selectExpr("key", "IF(value = 99, raise_error('no'), value) AS value")
    assert "no" in refusal(lambda: write(frame, place, topic="out"))
    assert found(log) == list(range(100))
    assert staged_names(log) == []


@pytest.mark.parametrize("format_name", ["commitlog", "failing"])
def test_a_stream_is_copied_exactly_once_through_the_network(
    spark: SparkSession, served: tuple[CommitLog, str], tmp_path: Path, format_name: str
) -> None:
    log, place = served
    spark.dataSource.register(answering_with_an_error(tmp_path / "failed"))
    log.topic("in").append_many([b"%d" % number for number in range(200)])

    def run() -> None:
        stream = spark.readStream.format("commitlog").option("subscribe", "in")
        stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "60").load(place)
        writer = stream.select("key", "value").writeStream.format(format_name).option("topic", "out")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(processingTime="0 seconds").start(place)
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    if format_name == "failing":
        assert "the answer was lost" in refusal(run)
    run()
    assert found(log) == list(range(200))
    log.topic("in").append_many([b"%d" % number for number in range(200, 250)])
    run()
    assert found(log) == list(range(250))
    assert staged_names(log) == []


def test_a_query_that_cannot_be_written_through_the_network_says_why_before_it_runs(
    spark: SparkSession, served: tuple[CommitLog, str]
) -> None:
    _, place = served
    frame = numbers(spark, 10)
    assert "no such topic" in refusal(lambda: write(frame, place, topic="missing"))
    assert "no such column" in refusal(lambda: write(frame.withColumn("x", frame.key), place, topic="out"))


def test_a_wrong_path_says_what_is_wrong(spark: SparkSession, place: str) -> None:
    told = refusal(lambda: read(spark, place.replace("secret=", "password=")).count())
    assert "unknown parameter password" in told


def test_doctor_says_whether_each_place_reaches_the_nodes(
    spark: SparkSession, place: str, tmp_path: Path
) -> None:
    found = doctor(spark, place)
    assert found.ok, str(found)
    (log_id,) = {row.log_id for row in found.rows}
    with contextlib.closing(open_readable(place)) as log:
        assert log_id == log.log_id
    (tmp_path / "secret").write_bytes(b"another")
    assert ["AuthenticationError" in one.what for one in doctor(spark, place).problems] == [True, True]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = taken.getsockname()[1]
    said = [one.what for one in doctor(spark, f"commitlog://127.0.0.1:{nobody}").problems]
    assert said == [f"no node can be reached (127.0.0.1:{nobody}: [Errno 111] Connection refused)"] * 2
