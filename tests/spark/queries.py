"""Queries that several tests make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession


def text(value: Any) -> str:
    """An option as Spark takes it."""
    return value if isinstance(value, str) else json.dumps(value)


def read(spark: SparkSession, path: Path | str, schema: str | None = None, **options: Any) -> DataFrame:
    """A batch query over a log."""
    reader = spark.read.format("commitlog").options(**{name: text(one) for name, one in options.items()})
    return (reader.schema(schema) if schema else reader).load(str(path))


def stream(spark: SparkSession, path: Path, schema: str | None = None, **options: Any) -> DataFrame:
    """A streaming query over a log."""
    reader = spark.readStream.format("commitlog").options(
        **{name: text(one) for name, one in options.items()}
    )
    return (reader.schema(schema) if schema else reader).load(str(path))


def offsets(frame: DataFrame) -> dict[tuple[str, int], list[int]]:
    """The offsets that a query found in each partition, in the order it found them."""
    found: dict[tuple[str, int], list[int]] = {}
    for row in frame.select("topic", "partition", "offset").collect():
        found.setdefault((row.topic, row.partition), []).append(row.offset)
    return found


def refusal(frame: Any) -> str:
    """What Spark says about a query that cannot be; `frame` makes it and reads it."""
    with pytest.raises(PySparkException) as caught:
        frame()
    return str(caught.value)
