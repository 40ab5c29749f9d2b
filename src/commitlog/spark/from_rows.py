"""Convert rows to Arrow, for Spark 4.0, which passes streams to a sink row by row."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructType, TimestampType

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TYPES = {
    StringType: pa.string(),
    BinaryType: pa.binary(),
    IntegerType: pa.int32(),
    TimestampType: pa.timestamp("us", "UTC"),
    ArrayType: _HEADERS,
}


def batches_of(rows: Iterator[Any], schema: StructType, count: int) -> Iterator[pa.RecordBatch]:
    """Iterate over rows as Arrow batches of up to `count`, without columns that a log does not store."""
    while chunk := list(itertools.islice(rows, count)):
        found = {}
        for number, field in enumerate(schema.fields):
            kind = _TYPES.get(type(field.dataType))
            if kind is not None:
                found[field.name] = pa.array([_plain(row[number]) for row in chunk], kind)
        yield pa.RecordBatch.from_pydict(found)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):  # without a zone, Spark means local time
        return value.astimezone(UTC)
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list):
        return [None if pair is None else {"key": pair[0], "value": _plain(pair[1])} for pair in value]
    return value
