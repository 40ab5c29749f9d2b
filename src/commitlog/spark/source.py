"""Batch queries: what Spark's format "commitlog" does to read, and the slices it hands to tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from commitlog.spark.options import ReadOptions
from commitlog.spark.planning import Range, batch_ranges, cut
from commitlog.spark.readable import ReadableLog
from commitlog.spark.schema import fields_of, full_schema
from commitlog.spark.worker import open_log, read_ranges

if TYPE_CHECKING:
    import pyarrow as pa


class Slice(InputPartition):  # type: ignore[misc]
    """What one task reads: a few ranges of offsets, fixed when the query was planned."""

    def __init__(self, ranges: tuple[Range, ...]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


def slices(tasks: list[tuple[Range, ...]]) -> list[Slice]:
    """Return tasks for Spark; one that reads nothing if there are none, or Spark makes one of its own."""
    return [Slice(ranges) for ranges in tasks or [()]]


def schema_of(options: Mapping[str, str]) -> StructType:
    """Return the columns that a query without a schema gets."""
    return full_schema(headers=ReadOptions.of(options).include_headers)


def plan(log: ReadableLog, options: ReadOptions) -> list[tuple[Range, ...]]:
    """Return what each task of a batch query reads."""
    return [(one,) for one in cut(log, options, batch_ranges(log, options))]


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """Reads ranges that are fixed when Spark plans the query: a DataFrame is a snapshot.

    There is no pushFilters() on purpose: Spark shares what was pushed down between all uses of a DataFrame,
    and gives wrong results.
    """

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        self._options = ReadOptions.of(options).for_batch()
        self._fields = fields_of(schema)

    def partitions(self) -> list[Slice]:
        """Return what each task reads."""
        return slices(plan(open_log(self._options.path), self._options))

    def read(self, partition: Slice) -> Iterator[pa.RecordBatch]:
        """Read a slice, in a worker process."""
        return read_ranges(self._options, self._fields, partition.ranges)
