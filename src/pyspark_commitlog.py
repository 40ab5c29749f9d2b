"""The entry point by whose name Spark finds the format "commitlog".

Spark imports it whenever it looks for a format, so everything else is imported on first use.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

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

    def __reduce__(self) -> tuple[Any, ...]:
        from commitlog.spark.shipping import reduced

        return reduced(self)

    def schema(self) -> StructType:
        """Return the columns. The options are checked here, so that load() raises errors."""
        from commitlog.spark.source import schema_of

        return schema_of(self.options)

    def reader(self, schema: StructType) -> BatchReader:
        """Return the reader of a batch query."""
        from commitlog.spark.source import BatchReader

        return BatchReader(schema, self.options)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        """Return the reader of a streaming query."""
        from commitlog.spark.stream import StreamReader

        return StreamReader(schema, self.options)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer of a batch query; raises errors before the query runs."""
        from commitlog.spark.sink import BatchWriter

        return BatchWriter(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> _StreamWriter:  # noqa: N802
        """Return the writer of a streaming query."""
        from commitlog.spark.sink import StreamWriter

        return StreamWriter(schema, self.options, overwrite)


def _end_quietly(daemon: ModuleType) -> None:
    """Let a helper process of Spark that waits for work end without a traceback at the end of the session.

    Spark closes the connection to it. PySpark would report that over the same connection, fail, and print the
    BrokenPipeError. Its daemon calls `worker` for each piece of work; any other error is raised as before.
    """
    work = daemon.worker

    def worker(*given: Any) -> int:
        try:
            code: int = work(*given)
            return code
        except (BrokenPipeError, ConnectionResetError):
            return 1  # as after any other error: do not use this process again

    daemon.worker = worker  # type: ignore[attr-defined]


_program = sys.modules["__main__"]
if str(getattr(_program, "__file__", None)).endswith("/pyspark/daemon.py"):
    _end_quietly(_program)
