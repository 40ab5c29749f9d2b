"""Drivers that run in a process of their own: python -m tests.spark.driver dies|connect LOG"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from commitlog.spark import register, stream_writing, use_java, use_python

from .conftest import SETTINGS
from .test_write_stream import counts, finish


def session(remote: bool) -> SparkSession:
    """Start Spark here, or a server of Spark Connect."""
    use_java()
    use_python()
    builder: Any = SparkSession.builder.config(map=SETTINGS)
    spark: SparkSession = (builder.remote("local[2]") if remote else builder.master("local[2]")).getOrCreate()
    register(spark)
    return spark


def die_after_the_second_batch() -> None:
    """End this process when the second micro-batch is published, before Spark takes note of that."""
    write = stream_writing._MicroBatches.__call__

    def write_and_die(self: Any, rows: Any, number: int) -> None:
        write(self, rows, number)
        if number == 1:
            os._exit(9)

    stream_writing._MicroBatches.__call__ = write_and_die  # type: ignore[method-assign]


if __name__ == "__main__":
    how, path = sys.argv[1], Path(sys.argv[2])
    if how == "dies":
        die_after_the_second_batch()
    spark = session(how == "connect")
    for _ in range(2):
        query = finish(counts(spark, path), path, "check[point]" if how == "connect" else "checkpoint",
                       topic="out", output_mode="update")  # fmt: skip
        print(query.id)
    spark.stop()
