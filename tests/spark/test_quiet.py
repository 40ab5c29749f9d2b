"""A query that Spark breaks off, because it has enough or is stopped, leaves no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

import commitlog

from .run_programs import run_program

PROGRAM = """
if given == ["sockets"]:
    settings |= commitlog.spark.CONF
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
commitlog.spark.register(spark)
frame = spark.read.format("commitlog").load(path)
frame.show(3)
print("rows", frame.limit(5).count(), len(frame.limit(30_000).collect()))

stream = spark.readStream.format("commitlog").option("startingOffsets", "earliest")
writer = stream.option("maxOffsetsPerTrigger", 200_000).load(path).writeStream.format("noop")
query = writer.option("checkpointLocation", path + "-checkpoint").start()
while query.lastProgress is None:
    query.awaitTermination(0.1)
query.stop()
try:
    late = '{"t": {"0": 9, "1": 9000000}}'
    spark.read.format("commitlog").option("startingOffsets", late).load(path).collect()
except Exception as problem:
    print("error", "DataLossError" in str(problem) or str(problem))
spark.stop()
"""


@pytest.mark.parametrize("transport", ["sockets", "tcp"])
def test_a_query_that_is_broken_off_prints_no_traceback(log_path: Path, transport: str) -> None:
    with commitlog.open(log_path) as log:
        topic = log.create_topic("t", partitions=2)
        for _ in range(5):
            topic.append_many([bytes(100)] * 200_000)
    done = run_program(PROGRAM, log_path, transport)
    assert "rows 5 30000" in done.stdout
    assert "error True" in done.stdout
    assert "BrokenPipe" not in done.stderr
    # Spark 4.3 sometimes closes the connection of its accumulators when a query is stopped
    traces = [one for one in done.stderr.split("Traceback (most")[1:] if "pyspark/accumulators.py" not in one]
    assert traces == []
