"""The log's batches as Arrow batches in exactly Spark's types, of a size that Spark likes.

Keys, values and offsets are the log's own buffers; timestamps are widened to microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from commitlog import arrow
from commitlog.batch import RecordBatch
from commitlog.format import LOG_APPEND_TIME
from commitlog.record import TopicPartition
from commitlog.spark.columns import Field

# measured, rows to the JVM a second: 512 a batch 2.8 M, 4,096 3.5 M, 8,192 to 16,384 3.8 M, 65,536 3.2 M
SMALL_ROWS, TARGET_ROWS, MOST_ROWS = 4096, 8192, 16384
MOST_BYTES = 8 << 20  # each batch is held in the JVM's direct memory
_PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])
_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", _PAIR)),
}


@lru_cache(maxsize=64)
def schema_of(fields: tuple[Field, ...]) -> pa.Schema:
    """Return the Arrow schema of these columns, as Spark checks it."""
    return pa.schema([pa.field(field.name, _TYPES[field.name], field.nullable) for field in fields])


def spark_batches(
    batches: Iterable[RecordBatch], name: TopicPartition, fields: tuple[Field, ...]
) -> Iterator[pa.RecordBatch]:
    """Iterate over a partition's batches as Spark wants them."""
    schema = schema_of(fields)
    return even(_converted(batch, name, schema) for batch in batches)


def _converted(batch: RecordBatch, name: TopicPartition, schema: pa.Schema) -> pa.RecordBatch:
    stored = [column for column in schema.names if column in ("key", "value", "offset", "headers")]
    found = dict(zip(stored, arrow.arrays(batch, stored), strict=True))
    count = len(batch)
    for column in schema.names:
        if column == "topic":
            found[column] = _repeated(name.topic, pa.string(), count)
        elif column == "partition":
            found[column] = _repeated(name.partition, pa.int32(), count)
        elif column == "timestampType":
            found[column] = _repeated(int(bool(batch.header.flags & LOG_APPEND_TIME)), pa.int32(), count)
        elif column == "timestamp":
            microseconds = batch.timestamps * 1000
            found[column] = pa.Array.from_buffers(_TYPES[column], count, [None, pa.py_buffer(microseconds)])
        elif column == "headers":
            found[column] = _headers(found[column])
    return pa.RecordBatch.from_arrays([found[column] for column in schema.names], schema=schema)


def _headers(lists: pa.ListArray) -> pa.Array:
    """Return headers as Kafka's connector has them: null for a record without."""
    if len(lists.values) == 0:
        return pa.nulls(len(lists), _TYPES["headers"])
    ends = np.frombuffer(lists.buffers()[1], np.int32, len(lists) + 1, 4 * lists.offset)
    present = np.packbits(np.diff(ends) > 0, bitorder="little").tobytes()
    buffers = [pa.py_buffer(present), pa.py_buffer(np.ascontiguousarray(ends))]
    return pa.Array.from_buffers(
        _TYPES["headers"],
        len(lists),
        buffers,
        children=[pa.StructArray.from_arrays(lists.values.flatten(), fields=list(_PAIR))],
    )


def _repeated(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    size = MOST_ROWS if count <= MOST_ROWS else 1 << (count - 1).bit_length()
    return _constant(value, kind, size)[:count]


@lru_cache(maxsize=64)
def _constant(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


# --- sizes ---------------------------------------------------------------------------------------


def even(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Put small batches together and cut large ones, keeping their order."""
    small: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows >= SMALL_ROWS:
            yield from _together(small)
            small, rows, size = [], 0, 0
            yield from _sliced(batch)
            continue
        small.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= TARGET_ROWS or size >= MOST_BYTES:
            yield from _together(small)
            small, rows, size = [], 0, 0
    yield from _together(small)


def _together(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if len(batches) > 1:
        batches = pa.Table.from_batches(batches).combine_chunks().to_batches()
    for batch in batches:
        yield from _sliced(batch)


def _sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rows, size = batch.num_rows, batch.nbytes
    most = MOST_ROWS if size <= MOST_BYTES else max(min(MOST_ROWS, rows * MOST_BYTES // size), 1)
    if rows <= most:
        yield batch
        return
    step = -(-rows // -(-rows // most))  # even slices
    for start in range(0, rows, step):
        yield batch.slice(start, step)
