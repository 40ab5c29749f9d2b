"""The row of writing from Spark: the same frame into a log and into Parquet, in one local session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import engine
from bench import Bench, timed
from report import Group, beside_floor
from spark_read import PARTITIONS, fill, session, source, warm

import commitlog

SINK = "Spark's Python sink, batches discarded"


def spark_write(bench: Bench) -> Iterator[Group]:
    """Write keys and values, read from Parquet, by key into partitions."""
    records = bench.pick(5_000_000, 1_000_000)
    with bench.scratch("spark-log") as log, bench.scratch("spark-parquet") as parquet:
        fill(log, records)
        spark = session(bench)
        try:
            source(spark, log, "key BINARY, value BINARY").write.option("compression", "none").parquet(
                str(parquet)
            )
            frame = spark.read.parquet(str(parquet))
            contenders = {
                "commitlog": lambda: into_log(bench, frame),
                "commitlog, a partition": lambda: into_log(bench, frame, 1),
                SINK: lambda: into_nothing(bench, frame),
                "Parquet": lambda: into_parquet(bench, frame),
            }
            seconds = warm(bench, contenders)
        finally:
            spark.stop()
    note = (
        f"{records:,} records of 100 bytes from Parquet, by key into {PARTITIONS} partitions, published and "
        "synced; Parquet is not compressed, and not synced."
    )
    floors = dict.fromkeys(["commitlog", "commitlog, a partition"], SINK)
    yield Group("spark_write", "Spark: write", beside_floor(seconds, records, floors), note)


def into_log(bench: Bench, frame: Any, partitions: int = PARTITIONS) -> float:
    with bench.scratch("spark-sink") as path:
        create(path, partitions)
        writer = frame.write.format("commitlog").mode("append").option("topic", "t")
        return timed(lambda: writer.save(str(path)))


def create(path: Path, partitions: int) -> None:
    with commitlog.open(path) as log:
        log.create_topic("t", partitions, commitlog.TopicConfig(**engine.WRITTEN))


def into_nothing(bench: Bench, frame: Any) -> float:
    return timed(lambda: frame.write.format("floor").mode("append").save(str(bench.root)))


def into_parquet(bench: Bench, frame: Any) -> float:
    with bench.scratch("spark-sink") as path:
        return timed(lambda: frame.write.option("compression", "none").parquet(str(path)))
