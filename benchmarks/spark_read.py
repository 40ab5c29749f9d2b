"""The row of Spark: queries over a log beside the same queries over Parquet, in one local session."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import engine
import numpy as np
import pyarrow as pa
from bench import Bench, best_of, timed
from report import Group, Line, beside_floor
from spark_cpu import processor_lines

import commitlog

PARTITIONS, BATCH_RECORDS, KEYS = 4, 10_000, 100_000
MICRO_BATCHES, MICRO_ROWS = 30, 1_000
# What Spark's own way from Python to rows costs: see spark_floor.py.
FROM_MEMORY = "Spark's Python source, batches from memory"
FASTEST_COUNT, MOST_SHARE = 10_000_000, 0.1


def spark_read(bench: Bench) -> Iterator[Group]:
    """Read to nowhere, group by key, count inside the executors, and run small micro-batches."""
    records = bench.pick(5_000_000, 1_000_000)
    with bench.scratch("spark-log") as log, bench.scratch("spark-parquet") as parquet:
        fill(log, records)
        spark = session(bench)
        try:
            source(spark, log).write.option("compression", "none").parquet(str(parquet))
            yield from queries(bench, spark, log, parquet, records)
            yield micro_batches(bench, spark, log)
        finally:
            spark.stop()
        yield share(bench, log, records)


def fill(path: Path, records: int, partitions: int = PARTITIONS, batch_records: int = BATCH_RECORDS) -> None:
    chance = random.Random(1)
    pool = chance.randbytes(1 << 20)
    with commitlog.open(path) as log:
        topic = log.create_topic("t", partitions, commitlog.TopicConfig(**engine.WRITTEN))
        for number, first in enumerate(range(0, records, batch_records)):
            count = min(batch_records, records - first)
            keys = [b"%010d" % chance.randrange(KEYS) for _ in range(count)]
            starts = np.random.default_rng(number).integers(0, len(pool) - 90, count).tolist()
            table = {"key": keys, "value": [pool[at : at + 90] for at in starts]}
            topic.partition(number % partitions).append_arrow(pa.record_batch(table))


def session(bench: Bench, more: Mapping[str, str] | None = None) -> Any:
    from pyspark.sql import SparkSession
    from spark_floor import Floor

    from commitlog.spark import FAST_CONF, use_java, use_python

    use_java()
    use_python()
    places = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(places)  # where workers find spark_floor
    settings = FAST_CONF | {
        "spark.driver.host": "localhost",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(bench.root),
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **(more or {}),
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    found.dataSource.register(Floor)
    return found


def source(spark: Any, path: Path, schema: str | None = None, format_name: str = "commitlog") -> Any:
    reader = spark.read.format(format_name)
    return (reader.schema(schema) if schema else reader).load(str(path))


def nowhere(frame: Any) -> float:
    return timed(lambda: frame.write.format("noop").mode("overwrite").save())


def queries(bench: Bench, spark: Any, log: Path, parquet: Path, records: int) -> Iterator[Group]:
    of_log, of_parquet = source(spark, log), spark.read.parquet(str(parquet))
    keys = source(spark, log, "key BINARY")
    floor, floor_keys = (source(spark, log, one, "floor") for one in (None, "key BINARY"))
    reads = {
        "commitlog": lambda: nowhere(of_log),
        FROM_MEMORY: lambda: nowhere(floor),
        "commitlog, only keys": lambda: nowhere(keys),
        "Parquet": lambda: nowhere(of_parquet),
    }
    note = (
        f"{records:,} records of 100 bytes, {PARTITIONS} partitions, all columns; Parquet is not compressed."
    )
    lines = beside_floor(warm(bench, reads), records, {"commitlog": FROM_MEMORY})
    yield Group("spark_read", "Spark: read everything", lines, note)
    groups = {
        "commitlog": lambda: nowhere(keys.groupBy("key").count()),
        FROM_MEMORY: lambda: nowhere(floor_keys.groupBy("key").count()),
        "commitlog, all columns": lambda: nowhere(of_log.groupBy("key").count()),
        "commitlog, map_arrow": lambda: nowhere(key_counts(spark, log).groupBy("key").sum("n")),
        "Parquet": lambda: nowhere(of_parquet.groupBy("key").count()),
    }
    seconds = warm(bench, groups)
    note = f'{KEYS:,} keys, read with .schema("key BINARY"): Spark prunes columns of Parquet by itself.'
    lines = beside_floor(seconds, records, {"commitlog": FROM_MEMORY})
    yield Group("spark_read", "Spark: group by key", lines, note)
    yield counted(bench, spark, log, records, records / seconds["Parquet"])
    for title, contenders in (("read everything", reads), ("group by key", groups)):
        chosen = {name: contenders[name] for name in ("commitlog", FROM_MEMORY, "Parquet")}
        lines = processor_lines(spark, bench.repeats, records, chosen)
        yield Group("spark_read", f"Spark: {title}, processor time", lines)


def key_counts(spark: Any, log: Path) -> Any:
    from commitlog.spark import map_arrow

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = pa.Table.from_batches(batches).group_by("key").aggregate([([], "count_all")])
        yield from found.rename_columns(["key", "n"]).combine_chunks().to_batches()

    return map_arrow(spark, str(log), "t", count, "key BINARY, n BIGINT", columns=["key"])


def counted(bench: Bench, spark: Any, log: Path, records: int, grouping: float) -> Group:
    from commitlog.spark import map_arrow

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": [sum(batch.num_rows for batch in batches)]})

    def run() -> None:
        frame = map_arrow(spark, str(log), "t", count, "n BIGINT")
        assert sum(row.n for row in frame.collect()) == records

    rate = records / warm(bench, {"": lambda: timed(run)})[""]
    target = min(FASTEST_COUNT, 5 * grouping)
    line = Line("map_arrow", rate, "rows/s", rate / grouping, f">= {target / 1e6:.3g} M", rate >= target)
    note = "All columns, in the executors; the ratio is to Parquet's group by key."
    return Group("spark_read", "Spark: count in map_arrow", [line], note)


def warm(bench: Bench, contenders: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Measure after two rounds that are not counted: the JVM compiles what it runs."""
    best_of(2, contenders)
    return best_of(bench.repeats, contenders)


def micro_batches(bench: Bench, spark: Any, log: Path) -> Group:
    ours = spark.readStream.format("commitlog").option("maxOffsetsPerTrigger", MICRO_ROWS)
    ours = ours.option("startingOffsets", "earliest").option("assign", '{"t": [0]}').load(str(log))
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", MICRO_ROWS).load()
    taken = {
        name: trigger_ms(bench, frame) for name, frame in (("rate-micro-batch", rate), ("commitlog", ours))
    }
    own = taken["rate-micro-batch"]
    lines = [Line(name, one, "ms", one / own) for name, one in taken.items()]
    note = f"Median of {MICRO_BATCHES} triggers of {MICRO_ROWS} rows to nowhere; most is the checkpoint."
    return Group("spark_read", "Spark: a micro-batch", lines, note)


def trigger_ms(bench: Bench, frame: Any) -> float:
    with bench.scratch("checkpoint") as place:
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(place))
        query = writer.trigger(processingTime="0 seconds").start()
        while len(query.recentProgress) < 2 * MICRO_BATCHES and query.isActive:
            query.awaitTermination(0.1)
        times = [one["durationMs"]["triggerExecution"] for one in query.recentProgress if one["numInputRows"]]
        query.stop()
    return median(times[-MICRO_BATCHES:])


def share(bench: Bench, log: Path, records: int) -> Group:
    """Measure the processor time of what the engine does in a worker; Spark's own part is not counted."""
    from commitlog.spark.options import ReadOptions
    from commitlog.spark.schema import fields_of, full_schema
    from commitlog.spark.source import plan
    from commitlog.spark.worker import read_ranges

    options = ReadOptions.of({"path": str(log)})
    fields = fields_of(full_schema(headers=False))
    with commitlog.open(log, mode="r") as reading:
        tasks = plan(reading, options)

    def run() -> float:
        start = process_time()
        rows = sum(batch.num_rows for task in tasks for batch in read_ranges(options, fields, task))
        assert rows == records
        return process_time() - start

    taken = best_of(bench.repeats, {"": run})[""] / records * 1e6
    line = Line("commitlog", taken, "us a row", None, f"< {MOST_SHARE}", taken < MOST_SHARE)
    return Group("spark_read", "Spark: the engine's share of a Python worker's time", [line])
