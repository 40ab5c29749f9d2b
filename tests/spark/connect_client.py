"""A client of Spark Connect that does not have the log: python connect_client.py ADDRESS LOG TARGET."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from commitlog import CommitLogError
from commitlog.spark import compact, export, map_arrow, verify


def lengths(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch({"rows": [batch.num_rows]})


def refusal(action: Callable[[], Any]) -> str:
    try:
        action()
    except CommitLogError as problem:
        return f"{type(problem).__name__}: {problem}"
    return "nothing"


def main(address: str, path: str, target: str) -> dict[str, Any]:
    """Read, write and work over the log; returns what came of it."""
    spark = SparkSession.builder.remote(address).getOrCreate()
    rows = spark.read.format("commitlog").option("subscribe", "in").load(path).select("key", "value")
    rows.write.format("commitlog").mode("append").option("topic", "batch").save(path)
    reader = spark.readStream.format("commitlog").options(subscribe="in", startingOffsets="earliest")
    writer = reader.load(path).select("key", "value").writeStream.format("commitlog")
    writer = writer.options(topic="stream", checkpointLocation=f"{target}/checkpoint")
    writer.trigger(availableNow=True).start(path).awaitTermination()
    mapped = map_arrow(spark, path, "in", lengths, "rows BIGINT", columns=["key"]).collect()
    nowhere = f"{target}/nowhere"
    return {
        "here": os.listdir(path),
        "mapped": sum(row.rows for row in mapped),
        "verified": sum(report.records for report in verify(spark, path, ["in"]).values()),
        "exported": export(spark, path, "in", f"{target}/exported"),
        "compacted": sorted(name.partition for name in compact(spark, path, "table")),
        "refused": [
            refusal(lambda: compact(spark, path, "in")),
            refusal(lambda: verify(spark, nowhere)),
            refusal(lambda: map_arrow(spark, nowhere, "in", lengths, "rows BIGINT")),
        ],
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
