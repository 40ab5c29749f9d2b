"""The queries: clean-up and enrichment, a table of views by window, and an archive of final windows."""

import events
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

import commitlog.spark

LATE = "15 minutes"  # an event that arrives later than this is rejected
WATERMARK = "1 hour"  # longer than LATE, because partitions are not read at the same pace
VIEW = "id STRING, user STRING, page STRING, time BIGINT, ms INT"
CLEAN = f"{VIEW}, category STRING"
ROWS_A_BATCH = 4_000


def read(spark: SparkSession, log: str, topic: str) -> DataFrame:
    """Read a topic from its beginning, a few thousand records at a time."""
    reader = spark.readStream.format("commitlog").option("subscribe", topic)
    return reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", ROWS_A_BATCH).load(log)


def clean_up(spark: SparkSession, log: str, checkpoints: str) -> StreamingQuery:
    """Put raw events, each once, into "clean", or into "rejected" with a reason."""
    pages = spark.createDataFrame(list(events.PAGES.items()), "page STRING, category STRING")
    raw = read(spark, log, "raw").withColumn("view", f.from_json(f.col("value").cast("string"), VIEW))
    known = raw.join(f.broadcast(pages), f.col("view.page") == pages.page, "left")
    judged = known.withColumn(
        "reason",
        f.expr(
            f"""CASE WHEN view.id IS NULL OR view.user IS NULL OR view.page IS NULL OR view.time IS NULL
                     THEN 'malformed'
                     WHEN timestamp_millis(view.time) < timestamp - INTERVAL {LATE} THEN 'late'
                     WHEN category IS NULL THEN 'unknown page' END"""
        ),
    )
    once = (
        judged.withColumn("id", f.expr("IF(reason IS NULL, view.id, concat_ws(' ', partition, offset))"))
        .withColumn("event_time", f.expr("IF(reason IS NULL, timestamp_millis(view.time), timestamp)"))
        .withWatermark("event_time", WATERMARK)
        .dropDuplicatesWithinWatermark(["id"])
    )
    good = "to_json(struct(view.id, view.user, view.page, view.time, view.ms, category))"
    records = once.select(
        f.expr("IF(reason IS NULL, 'clean', 'rejected') AS topic"),
        "key",
        f.expr(f"IF(reason IS NULL, CAST({good} AS BINARY), value) AS value"),
        f.col("event_time").alias("timestamp"),
        f.expr(
            """IF(reason IS NULL, NULL,
                  array(named_struct('key', 'reason', 'value', CAST(reason AS BINARY)))) AS headers"""
        ),
    )
    return started(records.writeStream.format("commitlog"), f"{checkpoints}/clean", log)


def by_window(spark: SparkSession, log: str) -> DataFrame:
    """Count the clean views of each category per ten minutes."""
    views = read(spark, log, "clean").select(f.from_json(f.col("value").cast("string"), CLEAN).alias("view"))
    return (
        views.select("view.*", f.expr("timestamp_millis(view.time) AS event_time"))
        .withWatermark("event_time", WATERMARK)
        .groupBy(f.window("event_time", "10 minutes"), "category")
        .agg(f.count("*").alias("views"), f.sum("ms").alias("ms"))
        .select(f.expr("unix_millis(window.start) AS start"), "category", "views", "ms", "window")
    )


def keep_table(spark: SparkSession, log: str, checkpoints: str) -> StreamingQuery:
    """Keep the compacted topic "views" up to date: the latest count of each window and category."""
    records = by_window(spark, log).selectExpr(
        "concat_ws(' ', start, category) AS key", "to_json(struct(start, category, views, ms)) AS value"
    )
    return commitlog.spark.write_stream(
        records,
        log,
        topic="views",
        output_mode="update",
        checkpoint=f"{checkpoints}/views",
        trigger={"availableNow": True},
    )


def archive(spark: SparkSession, log: str, checkpoints: str, folder: str) -> StreamingQuery:
    """Write each window to Parquet once, when the watermark has passed it."""
    final = by_window(spark, log).withColumn("start", f.col("window.start")).drop("window")
    return started(final.writeStream.format("parquet"), f"{checkpoints}/archive", folder)


def started(writer: DataStreamWriter, checkpoint: str, target: str) -> StreamingQuery:
    """Start a query over the records that exist now."""
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(target)
