"""Queries over a log that other machines have: a node serves it, and Spark has none of its files."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import commitlog
from commitlog.replication import Node, StaticController, TcpTransport
from commitlog.spark import doctor, map_arrow
from commitlog.spark.readable import open_readable

from .queries import offsets, read, refusal

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


def test_writing_needs_the_files(spark: SparkSession, place: str) -> None:
    frame = spark.createDataFrame([(b"x",)], "value BINARY")
    told = refusal(
        lambda: frame.write.format("commitlog").mode("append").option("topic", "orders").save(place)
    )
    assert "over the network only reading works" in told


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
