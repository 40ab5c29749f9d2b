"""What Spark itself takes: a source that has its batches in memory, and a sink that throws them away.

Nothing that is written in Python, as a source or a sink of Spark, can be faster than these.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from commitlog.spark.options import ReadOptions
from commitlog.spark.planning import Range
from commitlog.spark.schema import fields_of, full_schema
from commitlog.spark.source import Slice, plan, slices
from commitlog.spark.worker import open_log, read_ranges, settle_down

_built: dict[tuple[Any, tuple[Range, ...]], list[pa.RecordBatch]] = {}  # by schema and ranges, in a worker


class Floor(DataSource):
    """The same batches as the format commitlog, of the same schema and sizes, but made only once."""

    @classmethod
    def name(cls) -> str:
        return "floor"

    def schema(self) -> Any:
        return full_schema(headers=False)

    def reader(self, schema: Any) -> DataSourceReader:
        return FromMemory(schema, self.options["path"])

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return Discarded()


class FromMemory(DataSourceReader):
    def __init__(self, schema: Any, path: str) -> None:
        self._options, self._fields = ReadOptions.of({"path": path}), fields_of(schema)

    def partitions(self) -> list[Slice]:
        return slices(plan(open_log(self._options.path), self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        settle_down()
        known = self._fields, partition.ranges
        if known not in _built:
            batches = read_ranges(self._options, self._fields, partition.ranges)
            _built[known] = [copied(batch) for batch in batches]
        return iter(_built[known])


def copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy a batch into memory of its own."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


class Discarded(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        settle_down()
        for _ in iterator:
            pass
        return WriterCommitMessage()
