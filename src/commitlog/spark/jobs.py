"""Work over a whole log as one Spark job: verify, export, compact."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from commitlog.compaction import CompactionReport
from commitlog.errors import ConfigError
from commitlog.lock import LogLock
from commitlog.log import CommitLog
from commitlog.record import TopicPartition
from commitlog.repair import VerifyReport
from commitlog.spark.options import log_path
from commitlog.spark.planning import find
from commitlog.spark.progress import bar
from commitlog.spark.worker import log_here, open_log, settle_down

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def verify(
    spark: SparkSession, path: str, topics: Sequence[str] | None = None
) -> dict[TopicPartition, VerifyReport]:
    """Read every byte of a log and check it, a task for each partition; returns what Partition.verify() does.

    It takes no lock. Topics may be named; by default it is all of them.
    """
    place = log_path(path)
    reports = _run(spark, "verify", _partitions(place, topics), lambda name: _verify(place, name))
    return dict(reports)


def compact(spark: SparkSession, path: str, topic: str) -> dict[TopicPartition, CompactionReport]:
    """Run a pass of compaction over the closed segments of a topic, a task for each partition.

    A pass is not divided any further. Each task opens the log as one of several writers, so that nobody may
    have it open alone: that is a LogLockedError. Such a log compacts by itself what is due, too: a report
    may say that nothing was left to clean.
    """
    place = log_path(path)
    config = open_log(place).topic(topic).config
    if not config.compacts:
        raise ConfigError("cleanup_policy", config.cleanup_policy, "must contain compact")
    LogLock.take(place, shared=True).release()
    reports = _run(spark, "compact", _partitions(place, [topic]), lambda name: _compact(place, name))
    return dict(reports)


def export(spark: SparkSession, path: str, topics: str | Sequence[str], target: str) -> int:
    """Write topics to Parquet, in folders topic=.../date=... of a new folder; returns the count of records.

    The date is that of a record's timestamp, in the session's time zone.
    """
    from pyspark.sql import functions

    names = topics if isinstance(topics, str) else ",".join(topics)
    reader = spark.read.format("commitlog").option("subscribe", names).option("includeHeaders", "true")
    frame = reader.load(log_path(path)).withColumn("date", functions.to_date("timestamp"))
    with bar(spark, "export"):
        frame.write.partitionBy("topic", "date").parquet(target)
    count: int = spark.read.schema(frame.schema).parquet(target).count()
    return count


# --- one task for each partition -----------------------------------------------------------------


def _partitions(path: str, topics: Sequence[str] | None) -> list[TopicPartition]:
    log = open_log(path)
    names = log.topics() if topics is None else list(topics)
    return [TopicPartition(name, part) for name in names for part in range(len(log.topic(name).partitions))]


def _verify(path: str, name: TopicPartition) -> VerifyReport:
    return find(log_here(path), name).verify()


def _compact(path: str, name: TopicPartition) -> CompactionReport:
    with CommitLog.open(path, "w", None, shared=True) as log:
        report: CompactionReport = log.topic(name.topic).partition(name.partition).compact()
        return report


def _run(
    spark: SparkSession, title: str, items: list[TopicPartition], work: Callable[[TopicPartition], Any]
) -> list[tuple[TopicPartition, Any]]:
    """Do some work for each partition, in a task of its own."""

    def task(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        settle_down()
        for batch in numbers:
            done = [
                pickle.dumps((items[number], work(items[number]))) for number in batch.column(0).to_pylist()
            ]
            yield pa.record_batch({"done": pa.array(done, pa.binary())})

    if not items:
        return []
    with bar(spark, title):
        found = spark.range(0, len(items), 1, len(items)).mapInArrow(task, "done BINARY").collect()
    return [pickle.loads(row.done) for row in found]
