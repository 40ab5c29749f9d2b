"""map_arrow: apply a function to the log's Arrow batches inside the executors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from commitlog.errors import ConfigError
from commitlog.spark.options import ReadOptions
from commitlog.spark.planning import Range
from commitlog.spark.readable import open_readable
from commitlog.spark.running import planned
from commitlog.spark.schema import fields_of, full_schema
from commitlog.spark.source import plan
from commitlog.spark.worker import read_ranges

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ArrowFunction = Callable[[Iterator["pa.RecordBatch"]], Iterable["pa.RecordBatch"]]


def map_arrow(
    spark: SparkSession,
    path: str,
    topics: str | Sequence[str] | None,
    fn: ArrowFunction,
    schema: StructType | str,
    *,
    columns: Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """Apply `fn` to a log's records; returns the results as a DataFrame of this schema.

    `fn` is called once per task with an iterator of pyarrow batches and returns an iterable of batches, as in
    DataFrame.mapInArrow, but the records do not pass through the JVM first. They have the columns of the
    format "commitlog", or `columns`. The options are those of a batch query; topics=None means all topics.
    """
    given = {name: str(value) for name, value in options.items()}
    if topics is not None:
        given["subscribe"] = topics if isinstance(topics, str) else ",".join(topics)
    parsed = ReadOptions.of({**given, "path": path}).for_batch()
    everything = full_schema(headers=parsed.include_headers or "headers" in (columns or ()))
    unknown = sorted(set(columns or ()) - set(everything.names))
    if unknown:
        known = ", ".join(everything.names)
        raise ConfigError("columns", unknown[0], f"no such column; the columns are {known}")
    chosen = everything.names if columns is None else list(columns)
    fields = fields_of(type(everything)([everything[name] for name in chosen]))

    def planning() -> list[tuple[Range, ...]]:
        with contextlib.closing(open_readable(parsed.path)) as log:
            return plan(log, parsed)

    slices = planned(spark, parsed.path, planning)

    def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ranges = (
            one for batch in numbers for number in batch.column(0).to_pylist() for one in slices[number]
        )
        yield from fn(read_ranges(parsed, fields, ranges))

    count = len(slices)
    return spark.range(0, count, 1, max(count, 1)).mapInArrow(run, schema)
