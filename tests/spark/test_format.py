"""How the format is found, what it refuses, and functions over Arrow."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import commitlog.spark
from commitlog import CommitLog, ConfigError, Topic
from commitlog.spark import map_arrow
from commitlog.spark.python import local_python

from .queries import read, refusal


@pytest.fixture
def topic(log: CommitLog) -> Topic:
    found = log.create_topic("t", partitions=3)
    for number in range(3):
        found.append_many(
            [b"%d" % one for one in range(20_000)], keys=[b"k%d" % number] * 20_000, partition=number
        )
    return found


def test_the_format_can_be_registered(spark: SparkSession, topic: Topic, log_path: Path) -> None:
    commitlog.spark.register(spark)
    assert read(spark, log_path, "offset BIGINT").count() == 60_000


def test_looking_for_formats_does_not_import_the_engine() -> None:
    program = "import sys, pyspark_commitlog; print('commitlog' in sys.modules, 'pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_workers_run_this_interpreter_unless_told_otherwise(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON")
    commitlog.spark.register(spark)
    assert os.environ["PYSPARK_PYTHON"] == spark.sparkContext.pythonExec == local_python()
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr(spark.sparkContext, "master", "spark://somewhere:7077")
    commitlog.spark.register(spark)  # another machine has the interpreter, perhaps, but no program of ours
    assert os.environ["PYSPARK_PYTHON"] == spark.sparkContext.pythonExec == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "another")
    commitlog.spark.register(spark)
    assert spark.sparkContext.pythonExec == sys.executable
    spark.sparkContext.pythonExec = local_python()


def test_what_is_wrong_is_told_when_the_query_is_made(
    spark: SparkSession, topic: Topic, log_path: Path
) -> None:
    def said(**options: Any) -> str:
        return refusal(lambda: read(spark, log_path, **options))

    assert "ConfigError: minPartitions = 'x': must be a positive integer" in said(minPartitions="x")
    assert "no such option; did you mean startingOffsets?" in said(startingOffset="latest")
    assert "no topic 'ordres'" in refusal(lambda: read(spark, log_path, subscribe="ordres").collect())
    nowhere = refusal(lambda: read(spark, log_path / "nowhere").collect())
    assert f"{log_path}/nowhere is not a commitlog directory: it does not exist" in nowhere
    assert read(spark, log_path, "offset BIGINT", **{"kafka.bootstrap.servers": "a:1"}).count() == 60_000


def test_a_path_that_only_the_driver_sees_is_told_with_the_host(
    spark: SparkSession, log: CommitLog, topic: Topic, log_path: Path
) -> None:
    frame = read(spark, log_path)
    assert frame.rdd.getNumPartitions() == 3  # planned
    log.close()
    log_path.rename(log_path.with_name("moved"))
    assert f"PathNotMountedError: {log_path} cannot be read on host {os.uname().nodename}" in refusal(
        frame.collect
    )


# --- map_arrow


def test_a_function_sees_the_logs_batches_in_the_executor(
    spark: SparkSession, topic: Topic, log_path: Path
) -> None:
    def by_key(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            counts = pc.value_counts(batch.column("key"))
            yield pa.record_batch({"key": counts.field("values"), "n": counts.field("counts")})

    frame = map_arrow(spark, str(log_path), "t", by_key, "key BINARY, n BIGINT", columns=["key"])
    found = frame.groupBy("key").sum("n").collect()
    assert {bytes(row[0]): row[1] for row in found} == {b"k%d" % number: 20_000 for number in range(3)}


def test_it_takes_the_options_of_a_batch_query(
    spark: SparkSession, log: CommitLog, topic: Topic, log_path: Path
) -> None:
    log.create_topic("u").append_many([b"v"] * 7)
    path = str(log_path)

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": [sum(batch.num_rows for batch in batches)]})

    def counts(topics: Any, **options: Any) -> list[int]:
        return [row.n for row in map_arrow(spark, path, topics, count, "n BIGINT", **options).collect()]

    assert counts(None) == [20_000, 20_000, 20_000, 7]
    assert counts(["t", "u"], minPartitions=8, includeHeaders=True)[-1] == 7
    assert counts("u", startingOffsets='{"u": {"0": 3}}') == [4]
    assert [row.n for row in map_arrow(spark, f"file://{path}", "u", count, "n BIGINT").collect()] == [7]
    assert counts("u", startingOffsets="latest") == []
    with pytest.raises(ConfigError, match="columns = 'valu': no such column; the columns are key"):
        map_arrow(spark, path, "u", count, "n BIGINT", columns=["valu"])
    with pytest.raises(ConfigError, match="must have a column; the columns are key"):
        map_arrow(spark, path, "u", count, "n BIGINT", columns=[])
    with pytest.raises(ConfigError, match="did you mean minPartitions"):
        map_arrow(spark, path, "u", count, "n BIGINT", minPartition=3)
