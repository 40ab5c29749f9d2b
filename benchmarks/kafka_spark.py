"""The rows of Spark beside Kafka's connector: read, group, stream and write, in one local session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import kafka_clients
import spark_read
from kafka_node import NotMeasuredError, connector_jars
from kafka_turns import DEFAULT, TUNED, Row, Run, Taken, check
from report import OURS
from spark_read import PARTITIONS
from spark_write import create

import commitlog

READER = {
    "kafka.max.poll.records": "10000",
    "kafka.max.partition.fetch.bytes": str(16 << 20),
    "kafka.fetch.max.bytes": str(64 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
}
WRITER = {
    "kafka.batch.size": str(1 << 20),
    "kafka.linger.ms": "20",
    "kafka.buffer.memory": str(128 << 20),
}
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
SMALL = 1_000
WARM_UP = 2  # rounds that are not counted: the JVM compiles what it runs


class Session:
    """The session of Spark, started for the first row that needs it and ended for the first that does not."""

    def __init__(self, run: Run, cache: Path) -> None:
        self._run = run
        self._cache = cache
        self._spark: Any = None

    def get(self) -> Any:
        if find_spec("pyspark") is None:
            raise NotMeasuredError("pyspark is not installed")
        if self._spark is None:
            from commitlog.spark import FAST_CONF

            options = (
                f"{FAST_CONF[JAVA_OPTIONS]} -Djava.io.tmpdir={self._run.bench.root}"  # removed at the end
            )
            settings = {JAVA_OPTIONS: options}
            if self._run.node is not None:
                import pyspark

                jars = connector_jars(self._cache, pyspark.__version__)
                settings["spark.jars"] = ",".join(map(str, jars))
            self._spark = spark_read.session(self._run.bench, settings)
        return self._spark

    def end(self) -> None:
        """Stop the session and its JVM, which would otherwise idle beside what is measured next."""
        if self._spark is None:
            return
        from pyspark import SparkContext

        spark, self._spark = self._spark, None
        gateway = spark.sparkContext._gateway
        try:
            spark.stop()
            gateway.shutdown()
        finally:
            SparkContext._gateway = SparkContext._jvm = None
            gateway.proc.stdin.close()
            try:
                gateway.proc.wait(20)
            finally:
                gateway.proc.kill()
                gateway.proc.wait()


class Stored:
    """The same records in a log and in a topic of Kafka, whose content was compared."""

    def __init__(self, run: Run, spark: Any, path: Path, records: int, partitions: int) -> None:
        self._run = run
        self._spark = spark
        self._path = path
        self.records = records
        batch_records = min(spark_read.BATCH_RECORDS, -(-records // partitions))
        spark_read.fill(path, records, partitions, batch_records)
        if run.node is not None:
            self._topic = copied(run, path, partitions)
        contents = {name: content(self.frame(name)) for name in run.contenders(OURS, TUNED, DEFAULT)}
        for name, found in contents.items():
            check(name, found, contents[OURS])
        check(OURS, contents[OURS][0], records)

    def frame(self, name: str, *, stream: bool = False) -> Any:
        """Return a new frame over all columns, as a program that reads does."""
        reader = self._spark.readStream if stream else self._spark.read
        if name == OURS:
            return reader.format("commitlog").option("startingOffsets", "earliest").load(str(self._path))
        reader = reader.format("kafka").option("kafka.bootstrap.servers", self._run.kafka.address)
        reader = reader.option("subscribe", self._topic).option("startingOffsets", "earliest")
        return reader.options(**(READER if name == TUNED else {})).load()


def copied(run: Run, path: Path, partitions: int) -> str:
    """Copy a log into a topic of Kafka, partition by partition."""
    topic = run.topic(partitions)
    ordered = kafka_clients.PRODUCER | {"enable.idempotence": True}
    producer = kafka_clients.connected(run, topic, ordered)
    with commitlog.open(path, mode="r") as log:
        for number, partition in enumerate(log.topic("t")):
            pairs = ((one.key, one.value) for one in partition.records())
            kafka_clients.produce_all(producer, topic, pairs, partition=number)
    return topic


def content(frame: Any, *columns: str) -> tuple[int, str]:
    """Count rows, and hash them in any order."""
    from pyspark.sql import functions

    names = columns or ("partition", "offset", "key", "value")
    digest = functions.sum(functions.xxhash64(*names).cast("decimal(38, 0)")).cast("string")
    count, found = frame.agg(functions.count("*"), digest).first()
    return count, found


def nowhere(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


# --- read ----------------------------------------------------------------------------------------


def read(run: Run, session: Session) -> Iterator[Row]:
    """Read all columns of four partitions to nowhere, and group by key."""
    spark = session.get()
    with run.bench.scratch("read") as path:
        stored = Stored(run, spark, path, run.size(4_000_000, 200_000), PARTITIONS)
        grouped = {name: content(by_key(stored, name), "key", "count") for name in names_of(run)}
        for name, found in grouped.items():
            check(name, found, grouped[OURS])
        turns = in_turns(run, lambda name: nowhere(stored.frame(name)))
        work = f"Spark: read all columns, {PARTITIONS} partitions"
        yield run.row("spark_read", work, "rows/s", turns, stored.records)
        turns = in_turns(run, lambda name: nowhere(by_key(stored, name)))
        yield run.row("spark_group", "Spark: group by key, all columns", "rows/s", turns, stored.records)


def by_key(stored: Stored, name: str) -> Any:
    return stored.frame(name).groupBy("key").count()


def names_of(run: Run) -> list[str]:
    return list(run.contenders(OURS, TUNED, DEFAULT))


def in_turns(run: Run, work: Callable[[str], object]) -> dict[str, list[Taken]]:
    """Time work(name) of each engine."""
    contenders = {name: partial(run.taken, partial(work, name), kafka=name != OURS) for name in names_of(run)}
    return run.in_turns(contenders, 1 if run.quick else WARM_UP)


# --- stream --------------------------------------------------------------------------------------


def stream(run: Run, session: Session) -> Iterator[Row]:
    """Run a stream over what there is, until it ends."""
    spark = session.get()
    many = run.size(4_000_000, 200_000)
    start = "From `load()` to the end of the query, with a new checkpoint."
    for row, work, records, partitions, note in (
        ("spark_stream", f"Spark: AvailableNow to nowhere, {many:,} rows", many, PARTITIONS, start),
        ("spark_stream_small", f"Spark: AvailableNow, {SMALL:,} rows", SMALL, PARTITIONS, start),
        ("spark_stream_start", "Spark: AvailableNow, one row: the start of a stream", 1, 1, start),
    ):
        with run.bench.scratch("stream") as path:
            stored = Stored(run, spark, path, records, partitions)
            turns = in_turns(run, partial(available_now, run, stored))
        if records == many:
            yield run.row(row, work, "rows/s", turns, records, note)
        else:
            yield run.row(row, work, "s", turns, note=note)


def available_now(run: Run, stored: Stored, name: str) -> None:
    with run.bench.scratch("checkpoint") as place:
        writer = stored.frame(name, stream=True).writeStream.format("noop")
        query = writer.option("checkpointLocation", str(place)).trigger(availableNow=True).start()
        query.awaitTermination()
        check(name, sum(one["numInputRows"] for one in query.recentProgress), stored.records)


# --- write ---------------------------------------------------------------------------------------


def write(run: Run, session: Session) -> Iterator[Row]:
    """Write keys and values, read from Parquet, by key."""
    spark = session.get()
    records = run.size(2_000_000, 200_000)
    with run.bench.scratch("written") as path, run.bench.scratch("parquet") as parquet:
        spark_read.fill(path, records)
        rows = spark_read.source(spark, path, "key BINARY, value BINARY")
        rows.write.option("compression", "none").parquet(str(parquet))
        frame = spark.read.parquet(str(parquet))
        expected = content(frame, "key", "value")
        check("Parquet", expected[0], records)
        for partitions in (1, PARTITIONS):
            contenders = {name: partial(WRITE[name], run, spark, frame, partitions, expected, name)
                          for name in names_of(run)}  # fmt: skip
            turns = run.in_turns(contenders, 1 if run.quick else WARM_UP)
            work = f"Spark: write by key, {partitions} partition{'s' * (partitions > 1)}"
            note = (
                "Ours is synced and exactly once; Kafka's connector writes at least once and does not sync."
            )
            yield run.row(f"spark_write_{partitions}", work, "rows/s", turns, records, note)


def write_ours(run: Run, spark: Any, frame: Any, partitions: int, expected: Any, name: str) -> Taken:
    with run.bench.scratch("sink") as path:
        create(path, partitions)
        writer = frame.write.format("commitlog").mode("append").option("topic", "t")
        taken = run.taken(partial(writer.save, str(path)), kafka=False)
        check(name, content(spark_read.source(spark, path), "key", "value"), expected)
    return taken


def write_kafka(run: Run, spark: Any, frame: Any, partitions: int, expected: Any, name: str) -> Taken:
    topic, address = run.topic(partitions), run.kafka.address
    writer = frame.write.format("kafka").option("kafka.bootstrap.servers", address).option("topic", topic)
    taken = run.taken(writer.options(**(WRITER if name == TUNED else {})).save, kafka=True)
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", address)
    written = reader.option("subscribe", topic).options(**READER).load()
    check(name, content(written, "key", "value"), expected)
    return taken


WRITE = {OURS: write_ours, TUNED: write_kafka, DEFAULT: write_kafka}
