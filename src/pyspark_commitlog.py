"""Spark finds the format "commitlog" by this module's name, and imports it whenever it looks for a format.

So it is light: what the format does is imported when it is asked to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from commitlog.spark.sink import BatchWriter, _StreamWriter
    from commitlog.spark.source import BatchReader
    from commitlog.spark.stream import StreamReader


class DefaultSource(DataSource):  # type: ignore[misc]
    """The format "commitlog"; docs/spark.md lists its options."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "commitlog"

    def schema(self) -> StructType:
        """Return the columns; the options are checked here, so that load() tells what is wrong."""
        from commitlog.spark.source import schema_of

        return schema_of(self.options)

    def reader(self, schema: StructType) -> BatchReader:
        """Return what reads a batch query."""
        from commitlog.spark.source import BatchReader

        return BatchReader(schema, self.options)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        """Return what reads a streaming query."""
        from commitlog.spark.stream import StreamReader

        return StreamReader(schema, self.options)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return what writes a batch query; an error that forbids it is raised here, before it runs."""
        from commitlog.spark.sink import BatchWriter

        return BatchWriter(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> _StreamWriter:  # noqa: N802
        """Return what writes a streaming query."""
        from commitlog.spark.sink import StreamWriter

        return StreamWriter(schema, self.options, overwrite)
