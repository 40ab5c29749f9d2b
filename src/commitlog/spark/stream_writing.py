"""write_stream: start a streaming query that writes to a log, in any output mode.

Spark offers Python sinks append mode only. So each micro-batch is written as a batch query, under the query's
id and the number of the micro-batch, which make it exactly once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from commitlog.errors import ConfigError
from commitlog.spark import parsing
from commitlog.spark.schema import check_sink
from commitlog.spark.sink import QUERY_ID, check
from commitlog.spark.write_options import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_FORMAT = "commitlog"
_output_mode = parsing.one_of("append", "update", "complete")
_TRIGGERS = ("availableNow", "once", "processingTime")  # Spark allows no other for micro-batches of this kind
_GLOB = re.compile(r"[\[\]{}*?\\]")  # characters that have a meaning in paths to read, but not in checkpoints


def write_stream(
    frame: DataFrame,
    path: str | os.PathLike[str],
    *,
    checkpoint: str | os.PathLike[str],
    topic: str | None = None,
    output_mode: str = "append",
    trigger: Mapping[str, Any] | None = None,
    query_name: str | None = None,
    txn_id: str | None = None,
) -> StreamingQuery:
    """Start a query that writes a streaming frame to a log exactly once, and return it.

    `output_mode` is Spark's: "append", "update" or "complete". `trigger` has the argument of Spark's
    DataStreamWriter.trigger(), as in {"availableNow": True} or {"processingTime": "10 seconds"}. Columns,
    `topic` and `txn_id` are as for the format "commitlog". `checkpoint` is the directory that makes a
    restarted query continue: it belongs to this query alone.

    ConfigError, NotALogError or LogLockedError if the frame cannot be written to the log. With Spark Connect
    only the server sees the log, so an error about the log ends the query at its first batch.
    """
    spark = frame.sparkSession
    options = _options(os.fspath(path), topic, txn_id)
    mode = _output_mode("output_mode", output_mode)
    place = os.fspath(checkpoint) if checkpoint else ""
    if not place:
        reason = (
            "must be a directory: the query's id and progress, which make it exactly once, are kept there"
        )
        raise ConfigError("checkpoint", checkpoint, reason)
    if not frame.isStreaming:
        raise ConfigError("frame", str(frame), "is not a stream; write it with frame.write")
    _check_trigger(trigger)
    if _has_driver(spark):
        check(frame.schema, options, overwrite=False)
    else:
        check_sink(frame.schema, options.topic)
    writer = frame.writeStream.outputMode(mode).option("checkpointLocation", place)
    if trigger is not None:
        writer = writer.trigger(**trigger)
    if query_name is not None:
        writer = writer.queryName(query_name)
    return writer.foreachBatch(_MicroBatches(options, place)).start()


def _options(path: str, topic: str | None, txn_id: str | None) -> WriteOptions:
    given = {"path": path, "topic": topic, "txnId": txn_id}
    return WriteOptions.of({name: one for name, one in given.items() if one is not None}).for_stream()


def _check_trigger(trigger: Mapping[str, Any] | None) -> None:
    if trigger is not None and (len(trigger) != 1 or not set(trigger) <= set(_TRIGGERS)):
        raise ConfigError("trigger", dict(trigger), f"must have exactly one of {', '.join(_TRIGGERS)}")


def _has_driver(spark: SparkSession) -> bool:
    """Say whether this process is Spark's driver; a client of Spark Connect is not."""
    return getattr(spark, "sparkContext", None) is not None


class _MicroBatches:
    """Writes micro-batches: on the driver, or, with Spark Connect, in a Python process of the server."""

    def __init__(self, options: WriteOptions, checkpoint: str) -> None:
        self._options = options
        self._checkpoint = checkpoint
        self._txn_id = options.txn_id

    def __call__(self, rows: DataFrame, number: int) -> None:
        """Write a micro-batch, unless it is already published.

        Even then the rows have to be computed: the tasks that do so also store the state of aggregations.
        """
        if self._txn_id is None:
            self._txn_id = _query_id(rows.sparkSession, self._checkpoint)
        writer = rows.write.format(_FORMAT).mode("append")
        if self._options.topic is not None:
            writer = writer.option("topic", self._options.topic)
        writer.option("txnAppId", self._txn_id).option("txnVersion", number).save(self._options.path)


def _query_id(spark: SparkSession, checkpoint: str) -> str:
    """Return the id of the query whose micro-batch is being written."""
    if _has_driver(spark):
        known = spark.sparkContext.getLocalProperty(QUERY_ID)
        if known is not None:
            return str(known)
    # With Spark Connect, or PYSPARK_PIN_THREAD=false, this is not the query's thread. Spark stores the id
    # before the first micro-batch.
    place = _GLOB.sub(r"\\\g<0>", checkpoint)
    stored = spark.read.schema("id STRING").json(f"{place}/metadata").first()
    return str(stored["id"])
