"""Convert the log's batches to Arrow batches in Spark's types, of a size that suits Spark.

Keys, values and offsets are the log's own buffers; timestamps are converted to microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from commitlog.batches import arrow
from commitlog.batches.batch import RecordBatch
from commitlog.batches.format import LOG_APPEND_TIME
from commitlog.record import TopicPartition
from commitlog.spark.schema import Field

# measured, by rows per batch, rows per second to the JVM: 512: 2.8 M, 4,096: 3.5 M, 8,192 to 16,384: 3.8 M,
# 65,536: 3.2 M
SMALL_ROWS, TARGET_ROWS, MOST_ROWS = 4096, 8192, 16384
MOST_BYTES = 8 << 20  # each batch is held in the JVM's direct memory
_LAST_MS = (1 << 63) // 1000  # in the year 294247: Spark stores microseconds in 64 bits
_STORED = ("key", "value", "offset", "timestamp", "headers")
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
    """Return the Arrow schema that Spark expects for these columns."""
    return pa.schema([pa.field(field.name, _TYPES[field.name], field.nullable) for field in fields])


def spark_batches(
    batches: Iterable[RecordBatch], name: TopicPartition, fields: tuple[Field, ...]
) -> Iterator[pa.RecordBatch]:
    """Iterate over a partition's batches for Spark: small ones are combined, large ones split."""
    schema = schema_of(fields)
    for group in arrow.grouped(batches, SMALL_ROWS, TARGET_ROWS, MOST_BYTES):
        yield from sliced(_converted(group, name, schema))


def _converted(batches: list[RecordBatch], name: TopicPartition, schema: pa.Schema) -> pa.RecordBatch:
    count = sum(map(len, batches))
    names = schema.names
    stored = [column for column in names if column in _STORED]
    found = dict(zip(stored, arrow.joined_arrays(batches, stored), strict=True))
    for column in names:
        if column == "topic":
            found[column] = _repeated(name.topic, pa.string(), count)
        elif column == "partition":
            found[column] = _repeated(name.partition, pa.int32(), count)
        elif column == "timestampType":
            found[column] = _timestamp_types(batches, count)
        elif column == "timestamp":
            found[column] = _times(batches, found[column])
        elif column == "headers":
            found[column] = _headers(found[column])
    return pa.RecordBatch.from_arrays([found[column] for column in names], schema=schema)


def _times(batches: list[RecordBatch], stored: pa.Array) -> pa.Array:
    """Return times in microseconds; one too large for Spark becomes the largest that it can hold."""
    milliseconds = np.frombuffer(stored.buffers()[1], np.int64, len(stored), 8 * stored.offset)
    if max(batch.header.max_timestamp for batch in batches) > _LAST_MS:
        milliseconds = np.minimum(milliseconds, _LAST_MS)
    content = pa.py_buffer(milliseconds * 1000)
    return pa.Array.from_buffers(_TYPES["timestamp"], len(milliseconds), [None, content])


def _timestamp_types(batches: list[RecordBatch], count: int) -> pa.Array:
    kinds = [int(bool(batch.header.flags & LOG_APPEND_TIME)) for batch in batches]
    if len(set(kinds)) == 1:
        return _repeated(kinds[0], pa.int32(), count)
    return pa.array(np.repeat(np.array(kinds, np.int32), [len(batch) for batch in batches]))


def _headers(lists: pa.ListArray) -> pa.Array:
    """Return headers as in Kafka's connector: null for a record without any."""
    pairs = lists.values
    if len(pairs) == 0:
        return pa.nulls(len(lists), _TYPES["headers"])
    ends = np.frombuffer(lists.buffers()[1], np.int32, len(lists) + 1, 4 * lists.offset)
    present = np.packbits(ends[1:] > ends[:-1], bitorder="little").tobytes()
    content = pa.StructArray.from_arrays(pairs.flatten(), fields=list(_PAIR))
    buffers = [pa.py_buffer(present), pa.py_buffer(ends)]
    return pa.Array.from_buffers(_TYPES["headers"], len(lists), buffers, children=[content])


def _repeated(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    size = MOST_ROWS if count <= MOST_ROWS else 1 << (count - 1).bit_length()
    return _constant(value, kind, size)[:count]


@lru_cache(maxsize=64)
def _constant(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


# --- sizes ---------------------------------------------------------------------------------------


def sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a large batch into even slices, and split these again if large values are close together."""
    rows, size = batch.num_rows, batch.nbytes
    most = MOST_ROWS if size <= MOST_BYTES else max(min(MOST_ROWS, rows * MOST_BYTES // size), 1)
    if rows <= most:
        yield batch
        return
    step = -(-rows // -(-rows // most))
    for start in range(0, rows, step):
        piece = batch.slice(start, step)
        if size <= MOST_BYTES:
            yield piece
        else:
            yield from sliced(piece)
