"""Programs that tests submit to a cluster: spark-submit programs.py NAME ARGUMENTS.

Tasks leave marks, so that a test knows what runs where: a file NAME-BATCH-PARTITION-ATTEMPT with the folder
of the executor. They wait in the middle of their rows until there is a file NAME.go.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

PATIENCE_S = 240
SCHEMA = "key BINARY, value BINARY"

Batches = Iterator[pa.RecordBatch]


def leave_mark(marks: str, name: str) -> str:
    """Leave a mark of the attempt that runs; returns its path."""
    context = TaskContext.get()
    batch = context.getLocalProperty("streaming.sql.batchId") or "0"
    place = f"{marks}/{name}-{batch}-{context.partitionId()}-{context.attemptNumber()}"
    with open(f"{place}.new", "w") as file:
        json.dump({"host": socket.gethostname(), "executor": os.getcwd()}, file)
    os.replace(f"{place}.new", place)
    return place


def wait_for(condition: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited in vain for {what}")
        time.sleep(0.02)


def held(marks: str, name: str, first_batch: int = 0) -> Callable[[Batches], Batches]:
    """Return a function that passes rows on, and waits after the first half of each Arrow batch."""
    go = f"{marks}/{name}.go"

    def pass_on(batches: Batches) -> Batches:
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            leave_mark(marks, name)
            if int(TaskContext.get().getLocalProperty("streaming.sql.batchId") or first_batch) >= first_batch:
                wait_for(lambda: os.path.exists(go), go)
            yield batch.slice(half)

    return pass_on


def read(spark: SparkSession, path: str, topic: str) -> DataFrame:
    return spark.read.format("commitlog").option("subscribe", topic).load(path).select("key", "value")


def write(frame: DataFrame, path: str, topic: str, **options: str) -> None:
    frame.write.format("commitlog").mode("append").options(topic=topic, **options).save(path)


def copies(spark: SparkSession, path: str, checkpoint: str, marks: str) -> None:
    """Copy the topic "in" to "batch", once however often this runs, and to "stream", which goes on."""
    print(spark.sparkContext.master, flush=True)
    frame = read(spark, path, "in").mapInArrow(held(marks, "batch"), SCHEMA)
    write(frame, path, "batch", txnAppId="copies", txnVersion="1")
    reader = spark.readStream.format("commitlog").option("subscribe", "in")
    reader = reader.options(startingOffsets="earliest", maxOffsetsPerTrigger="1600", minPartitions="4")
    rows = reader.load(path).select("key", "value").mapInArrow(held(marks, "stream", 1), SCHEMA)
    writer = rows.writeStream.format("commitlog").options(topic="stream", checkpointLocation=checkpoint)
    query = writer.trigger(processingTime="0 seconds").start(path)
    query.processAllAvailable()
    query.stop()


def registered_copies(spark: SparkSession, *arguments: str) -> None:
    """Make the copies where Spark does not find the format by itself: it asks another interpreter."""
    from commitlog.spark import register

    register(spark)
    copies(spark, *arguments)


def twice(spark: SparkSession, path: str, marks: str) -> None:
    """Copy "in" to "batch" with tasks of which the first is slow until another attempt has come as far."""

    def slow(batches: Batches) -> Batches:
        yield from batches
        if TaskContext.get().partitionId() == 0:
            mark = leave_mark(marks, "end")
            other = mark[:-1] + ("1" if mark.endswith("0") else "0")
            wait_for(lambda: os.path.exists(other), other)

    write(read(spark, path, "in").mapInArrow(slow, SCHEMA), path, "batch")


def come_and_go(spark: SparkSession, path: str, marks: str) -> None:
    """Copy "in" to "batch" and to "stream", each with two executors at once and none in between."""
    executors = spark.sparkContext._jsc.sc().getExecutorIds

    def meeting(name: str) -> Callable[[Batches], Batches]:
        def pass_on(batches: Batches) -> Batches:
            yield from batches
            leave_mark(marks, name)

            def both() -> bool:
                found = [one for one in os.listdir(marks) if one.startswith(name) and ".new" not in one]
                return len({json.load(open(f"{marks}/{one}"))["executor"] for one in found}) == 2

            wait_for(both, "another executor")

        return pass_on

    for topic in ("batch", "stream"):
        frame = read(spark, path, "in").mapInArrow(meeting(topic), SCHEMA)
        wait_for(lambda: executors().size() == 0, "the end of the executors")
        write(frame, path, topic)


def follow(spark: SparkSession, path: str, checkpoint: str, end: str) -> None:
    """Copy the topics "in-..." to "copy-in-..." until a file `end` is there, and then what is left."""
    reader = spark.readStream.format("commitlog").option("subscribePattern", "in-.*")
    rows = reader.option("startingOffsets", "earliest").load(path)
    rows = rows.selectExpr("concat('copy-', topic) AS topic", "key", "value")
    writer = rows.writeStream.format("commitlog").option("checkpointLocation", checkpoint)
    query = writer.trigger(processingTime="1 second").start(path)
    wait_for(lambda: os.path.exists(end) or not query.isActive, end, 600)
    query.processAllAvailable()
    query.stop()


def tries(spark: SparkSession, *paths: str) -> None:
    """Read and write each log, and print the outcomes: how many rows there are, or the error."""
    rows = spark.createDataFrame([(b"a",)] * 8, "value BINARY").repartition(8)

    def outcome(action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Exception as problem:
            return str(problem)

    for path in paths:
        found = outcome(read(spark, path, "in").count), outcome(lambda: write(rows, path, "batch"))  # noqa: B023
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    session = SparkSession.builder.getOrCreate()
    programs: tuple[Callable[..., None], ...] = (copies, registered_copies, twice, come_and_go, follow, tries)
    {program.__name__: program for program in programs}[sys.argv[1]](session, *sys.argv[2:])
    session.stop()
