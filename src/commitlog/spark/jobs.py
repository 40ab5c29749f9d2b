"""Verify, export or compact a whole log as one Spark job."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from commitlog.compaction import CompactionReport
from commitlog.errors import ConfigError
from commitlog.locks import LogLock
from commitlog.log import CommitLog
from commitlog.record import TopicPartition
from commitlog.repair import VerifiedPart, VerifyReport
from commitlog.spark.dividing import Part, divided, joined, task_count
from commitlog.spark.options import log_path
from commitlog.spark.planning import find
from commitlog.spark.progress_bar import bar
from commitlog.spark.worker import log_here, open_files, settle_down

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_PASSES = 10  # the most attempts at a pass
_SLOTS = 8  # concurrent tasks, if Spark does not say, as in Spark Connect
Item = TypeVar("Item")
Done = TypeVar("Done")


def verify(
    spark: SparkSession, path: str, topics: Sequence[str] | None = None
) -> dict[TopicPartition, VerifyReport]:
    """Read and check every byte of a log, or of some topics; returns the report of each partition.

    A task checks several segments. No lock is taken.
    """
    place = log_path(path)
    names = _partitions(place, topics)
    segments = {name: find(open_files(place), name).segments for name in names}
    sizes = {name: [(one.base_offset, one.size_bytes) for one in some] for name, some in segments.items()}
    size = sum(one for some in sizes.values() for _, one in some)
    found = _verified(spark, place, divided(sizes, task_count(size, _slots(spark))))
    reports = {name: joined(found[name]) for name in names}
    again = [[Part(name)] for name, report in reports.items() if report is None]
    whole = _verified(spark, place, again)
    return {name: report or whole[name][0].report for name, report in reports.items()}


def compact(spark: SparkSession, path: str, topic: str) -> dict[TopicPartition, CompactionReport]:
    """Compact the sealed segments of a topic, with one task per partition.

    A pass cannot be divided further, because it must know all keys that it cleans. Each task opens the log in
    shared mode: LogLockedError if a process has exclusive access. A shared log also compacts in the
    background, so a report may say that nothing was left to clean.
    """
    place = log_path(path)
    config = open_files(place).topic(topic).config
    if not config.compacts:
        raise ConfigError("cleanup_policy", config.cleanup_policy, "must contain compact")
    LogLock.take(place, shared=True).release()
    names, log_id = _partitions(place, [topic]), open_files(place).log_id
    done = _run(spark, "compact", names, lambda name: _compact(place, log_id, name))
    return dict(zip(names, done, strict=True))


def export(spark: SparkSession, path: str, topics: str | Sequence[str], target: str) -> int:
    """Write topics as Parquet to a new folder, in topic=.../date=...; returns the number of records.

    The date is that of the record's timestamp in the session's time zone.
    """
    from pyspark.sql import Observation, functions

    place = log_path(path)
    names = topics.split(",") if isinstance(topics, str) else topics
    size = sum(find(open_files(place), name).size_bytes for name in _partitions(place, names))
    reader = spark.read.format("commitlog").option("subscribe", ",".join(names))
    reader = reader.option("includeHeaders", "true").option("minPartitions", task_count(size, _slots(spark)))
    frame = reader.load(place).withColumn("date", functions.to_date("timestamp"))
    counted = Observation()
    frame = frame.observe(counted, functions.count(functions.lit(1)).alias("records"))
    with bar(spark, "export"):
        frame.write.partitionBy("topic", "date").parquet(target)
    return int(counted.get["records"])


# --- pieces of work ------------------------------------------------------------------------------


def _partitions(path: str, topics: Sequence[str] | None) -> list[TopicPartition]:
    log = open_files(path)
    names = log.topics() if topics is None else [name.strip() for name in topics]
    return [TopicPartition(name, part) for name in names for part in range(len(log.topic(name).partitions))]


def _slots(spark: SparkSession) -> int:
    context = getattr(spark, "sparkContext", None)
    return _SLOTS if context is None else int(context.defaultParallelism)


def _verified(
    spark: SparkSession, path: str, groups: list[list[Part]]
) -> dict[TopicPartition, list[VerifiedPart]]:
    """Check parts, with one task per group; returns the results of each partition, in order."""
    log_id = open_files(path).log_id

    def check(group: list[Part]) -> list[VerifiedPart]:
        log = log_here(path, log_id)
        return [find(log, part.name).verify_part(part.start, part.end) for part in group]

    found: dict[TopicPartition, list[VerifiedPart]] = {}
    for group, done in zip(groups, _run(spark, "verify", groups, check), strict=True):
        for part, verified in zip(group, done, strict=True):
            found.setdefault(part.name, []).append(verified)
    return found


def _compact(path: str, log_id: str | None, name: TopicPartition) -> CompactionReport:
    """Run a pass; retry if the background compaction of another task's log came first."""
    log_here(path, log_id)
    with CommitLog.open(path, "shared", None) as log:
        partition = log.topic(name.topic).partition(name.partition)
        report: CompactionReport = partition.compact()
        for _ in range(_PASSES - 1):
            if report.stopped_by != "changed":
                break
            report = partition.compact()
        return report


def _run(spark: SparkSession, title: str, items: list[Item], work: Callable[[Item], Done]) -> list[Done]:
    """Call `work` for each item in its own task; returns the results in order."""

    def task(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        settle_down()
        for batch in numbers:
            done = [pickle.dumps((number, work(items[number]))) for number in batch.column(0).to_pylist()]
            yield pa.record_batch({"done": pa.array(done, pa.binary())})

    if not items:
        return []
    with bar(spark, title):
        rows = spark.range(0, len(items), 1, len(items)).mapInArrow(task, "done BINARY").collect()
    found: dict[int, Done] = dict(pickle.loads(row.done) for row in rows)
    return [found[number] for number in range(len(items))]
