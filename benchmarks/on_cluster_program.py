"""What on_cluster.py submits: prints the seconds of each round as JSON in its last line."""

from __future__ import annotations

import json
import sys
from time import perf_counter
from typing import Any

from pyspark.sql import SparkSession

import commitlog.spark

WARM_UP = 12  # rounds: each of two executors compiles for itself what one JVM compiles in local mode


def seconds(work: Any) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began


def nowhere(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def warm(spark: SparkSession, log: str, parquet: str, sink: str, served: str, rounds: str) -> Any:
    """Read a log, and write a frame into a log by its directory and through its server, in turns."""
    frame = spark.read.parquet(parquet)
    writer = frame.write.format("commitlog").mode("append").option("topic", "t")
    jobs = {
        "read": lambda: nowhere(spark.read.format("commitlog").load(log)),
        "write": lambda: writer.save(sink),
        "served": lambda: writer.save(served),
    }
    found: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(WARM_UP + int(rounds)):
        for name, job in jobs.items():
            taken = seconds(job)
            if number >= WARM_UP:
                found[name].append(taken)
    return found


def first(spark: SparkSession, source: str, path: str, options: str) -> float:
    """Read everything once: nothing has run on the executors before."""
    reader = spark.read.format(source).option("startingOffsets", "earliest").options(**json.loads(options))
    return seconds(lambda: nowhere(reader.load(path) if path else reader.load()))


if __name__ == "__main__":
    session = SparkSession.builder.config(map=commitlog.spark.CONF).getOrCreate()
    commitlog.spark.register(session)
    job, *arguments = sys.argv[1:]
    result = {"warm": warm, "first": first}[job](session, *arguments)
    session.stop()
    print(json.dumps(result))
