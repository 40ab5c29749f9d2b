"""BatchReader: plans a batch query, and reads the slices of its tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from commitlog.spark.options import ReadOptions
from commitlog.spark.planning import Range, batch_ranges, cut
from commitlog.spark.readable import ReadableLog
from commitlog.spark.schema import fields_of, full_schema
from commitlog.spark.shipping import Shipped
from commitlog.spark.unfinished import finish_publications
from commitlog.spark.worker import open_log, read_ranges

if TYPE_CHECKING:
    import pyarrow as pa


class Slice(InputPartition):  # type: ignore[misc]
    """The ranges that one task reads, fixed when the query is planned."""

    def __init__(self, ranges: tuple[Range, ...]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


def slices(tasks: list[tuple[Range, ...]]) -> list[Slice]:
    """Return the slices for Spark; at least an empty one, or Spark would make its own."""
    return [Slice(ranges) for ranges in tasks or [()]]


def schema_of(options: Mapping[str, str]) -> StructType:
    """Return the columns of a query that names none."""
    return full_schema(headers=ReadOptions.of(options).include_headers)


def plan(log: ReadableLog, options: ReadOptions) -> list[tuple[Range, ...]]:
    """Return the ranges that each task of a batch query reads."""
    return [(one,) for one in cut(log, options, batch_ranges(log, options))]


class BatchReader(Shipped, DataSourceReader):  # type: ignore[misc]
    """Reads ranges that are fixed when Spark plans the query: a DataFrame is a snapshot.

    It has no pushFilters(), because Spark shares pushed filters between all uses of a DataFrame, with wrong
    results.
    """

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        self._options = ReadOptions.of(options).for_batch()
        self._fields = fields_of(schema)

    def partitions(self) -> list[Slice]:
        """Return the slices of the tasks."""
        finish_publications(self._options.path)
        return slices(plan(open_log(self._options.path), self._options))

    def read(self, partition: Slice) -> Iterator[pa.RecordBatch]:
        """Read a slice, in a worker process."""
        return read_ranges(self._options, self._fields, partition.ranges)
