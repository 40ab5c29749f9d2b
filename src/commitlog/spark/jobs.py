"""Verify, export or compact a whole log as one Spark job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from commitlog.compaction import CompactionReport
from commitlog.config import IsolationLevel
from commitlog.errors import ConfigError
from commitlog.locks import LogLock
from commitlog.log import CommitLog
from commitlog.record import TopicPartition
from commitlog.repair import VerifiedPart, VerifyReport
from commitlog.spark.dividing import Part, Sizes, divided, joined, task_count
from commitlog.spark.options import log_path
from commitlog.spark.planning import find
from commitlog.spark.progress_bar import bar
from commitlog.spark.running import planned, run
from commitlog.spark.worker import log_here, open_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PASSES = 10  # the most attempts at a pass
_SLOTS = 8  # concurrent tasks, if Spark does not say, as in Spark Connect


def verify(
    spark: SparkSession, path: str, topics: Sequence[str] | None = None
) -> dict[TopicPartition, VerifyReport]:
    """Read and check every byte of a log, or of some topics; returns the report of each partition.

    A task checks several segments. No lock is taken.
    """
    place = log_path(path)

    def listed() -> tuple[str | None, dict[TopicPartition, Sizes]]:
        log = open_files(place)
        segments = {name: find(log, name).segments for name in _partitions(log, topics)}
        return log.log_id, {
            name: [(one.base_offset, one.size_bytes) for one in some] for name, some in segments.items()
        }

    log_id, sizes = planned(spark, place, listed)
    size = sum(one for some in sizes.values() for _, one in some)
    found = _verified(spark, place, log_id, divided(sizes, task_count(size, _slots(spark))))
    reports = {name: joined(found[name]) for name in sizes}
    again = [[Part(name)] for name, report in reports.items() if report is None]
    whole = _verified(spark, place, log_id, again)
    return {name: report or whole[name][0].report for name, report in reports.items()}


def compact(spark: SparkSession, path: str, topic: str) -> dict[TopicPartition, CompactionReport]:
    """Compact the sealed segments of a topic, with one task per partition.

    A pass cannot be divided further, because it must know all keys that it cleans. Each task opens the log in
    shared mode: LogLockedError if a process has exclusive access. A shared log also compacts in the
    background, so a report may say that nothing was left to clean.
    """
    place = log_path(path)

    def checked() -> tuple[str | None, list[TopicPartition]]:
        log = open_files(place)
        config = log.topic(topic).config
        if not config.compacts:
            raise ConfigError("cleanup_policy", config.cleanup_policy, "must contain compact")
        LogLock.take(place, shared=True).release()
        return log.log_id, _partitions(log, [topic])

    log_id, names = planned(spark, place, checked)
    done = run(spark, "compact", names, lambda name: _compact(place, log_id, name))
    return dict(zip(names, done, strict=True))


def export(
    spark: SparkSession,
    path: str,
    topics: str | Sequence[str],
    target: str,
    *,
    isolation_level: IsolationLevel = "read_committed",
) -> int:
    """Write topics as Parquet to a new folder, in topic=.../date=...; returns the number of records.

    The date is that of the record's timestamp in the session's time zone. Transactions that are open or
    aborted are left out, unless isolation_level is "read_uncommitted".
    """
    from pyspark.sql import Observation, functions

    place = log_path(path)
    names = topics.split(",") if isinstance(topics, str) else topics

    def size() -> int:
        log = open_files(place)
        return sum(find(log, name).size_bytes for name in _partitions(log, names))

    tasks = task_count(planned(spark, place, size), _slots(spark))
    reader = spark.read.format("commitlog").option("subscribe", ",".join(names))
    reader = reader.option("includeHeaders", "true").option("minPartitions", tasks)
    reader = reader.option("isolationLevel", isolation_level)
    frame = reader.load(place).withColumn("date", functions.to_date("timestamp"))
    counted = Observation()
    frame = frame.observe(counted, functions.count(functions.lit(1)).alias("records"))
    with bar(spark, "export"):
        frame.write.partitionBy("topic", "date").parquet(target)
    return int(counted.get["records"])


# --- pieces of work ------------------------------------------------------------------------------


def _partitions(log: CommitLog, topics: Sequence[str] | None) -> list[TopicPartition]:
    names = log.topics() if topics is None else [name.strip() for name in topics]
    return [TopicPartition(name, part) for name in names for part in range(len(log.topic(name).partitions))]


def _slots(spark: SparkSession) -> int:
    context = getattr(spark, "sparkContext", None)
    return _SLOTS if context is None else int(context.defaultParallelism)


def _verified(
    spark: SparkSession, path: str, log_id: str | None, groups: list[list[Part]]
) -> dict[TopicPartition, list[VerifiedPart]]:
    """Check parts, with one task per group; returns the results of each partition, in order."""

    def check(group: list[Part]) -> list[VerifiedPart]:
        log = log_here(path, log_id)
        return [find(log, part.name).verify_part(part.start, part.end) for part in group]

    found: dict[TopicPartition, list[VerifiedPart]] = {}
    for group, done in zip(groups, run(spark, "verify", groups, check), strict=True):
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
