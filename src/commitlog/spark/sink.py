"""Writing: tasks stage files; the driver publishes those of the successful attempts, together and once."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from commitlog.batches.staged import StagedFile
from commitlog.errors import ConfigError
from commitlog.locks import LogLock
from commitlog.log import CommitLog
from commitlog.spark.schema import check_sink
from commitlog.spark.worker import open_files
from commitlog.spark.write_options import WriteOptions

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # Spark 4.0 passes streams row by row
    DataSourceStreamArrowWriter = None

if TYPE_CHECKING:
    import pyarrow as pa

QUERY_ID = "sql.streaming.queryId"  # stored in the checkpoint: the same after a restart
_ROWS = 10_000


@dataclass(frozen=True)
class Written(WriterCommitMessage):  # type: ignore[misc]
    """What a task reports to the driver."""

    staged: tuple[StagedFile, ...]
    query_id: str | None = None


def publish(path: str, txn_id: str, epoch: int, messages: Sequence[Written | None]) -> None:
    """Append what tasks have staged, in the order of tasks, unless the epoch is already published."""
    staged = [one for message in messages if message is not None for one in message.staged]
    with CommitLog.open(path, "shared", None) as log:
        log.publish(txn_id, epoch, staged)


def check(schema: StructType, options: WriteOptions, overwrite: bool) -> str | None:
    """Check columns, topic and lock before a query runs; returns the log_id."""
    if overwrite:
        raise ConfigError("mode", "overwrite", "a log can only be appended to; use append")
    names = check_sink(schema, options.topic)
    log = open_files(options.path)
    if options.topic is not None:
        from commitlog.spark.task import find_topic

        if find_topic(log, options.topic).config.compacts and "key" not in names:
            raise ConfigError("topic", options.topic, "is compacted, so the frame must have a column key")
    LogLock.take(options.path, shared=True).release()  # LogLockedError if a process has exclusive access
    return log.log_id


class BatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes a batch query: once per txnVersion of a txnAppId, or, without these, each time it runs."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        self._options = WriteOptions.of(options).for_batch()
        self._log_id = check(schema, self._options, overwrite)
        self._txn_id = self._options.txn_app_id or f"spark-batch-{secrets.token_hex(16)}"
        self._epoch = self._options.txn_version or 0
        published = open_files(self._options.path).published(self._txn_id)
        self._is_published = published is not None and published >= self._epoch

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Stage the rows of a task, in a worker process."""
        from commitlog.spark.task import stage

        if self._is_published:
            for _ in iterator:  # otherwise Spark would write into a closed pipe
                pass
            return Written(())
        return Written(stage(self._options.path, self._log_id, self._options.topic, iterator))

    def commit(self, messages: list[Written | None]) -> None:
        """Publish what the tasks have staged, on the driver."""
        publish(self._options.path, self._txn_id, self._epoch, messages)

    def abort(self, messages: list[Written | None]) -> None:
        """Leave all files: if commit() failed, they may be published. Unused ones are removed after a day."""


class _StreamWriter:
    """The common part of both stream writers."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        self._options = WriteOptions.of(options).for_stream()
        self._schema = schema
        self._log_id = check(schema, self._options, overwrite)

    def _stage(self, batches: Iterable[pa.RecordBatch]) -> Written:
        from commitlog.spark.task import stage

        query_id = TaskContext.get().getLocalProperty(QUERY_ID)
        return Written(stage(self._options.path, self._log_id, self._options.topic, batches), query_id)

    def commit(self, messages: list[Written | None], batchId: int) -> None:  # noqa: N803
        """Publish a micro-batch, on the driver; a replayed one is published only once."""
        txn_id = self._options.txn_id
        for message in messages:
            txn_id = txn_id or (message and message.query_id)
        if txn_id is None:
            raise ConfigError("txnId", None, "must be given: Spark does not provide the query's id here")
        publish(self._options.path, txn_id, batchId, messages)

    def abort(self, messages: list[Written | None], batchId: int) -> None:  # noqa: N803
        """Leave all files: if commit() failed, they may be published."""


class RowStreamWriter(_StreamWriter, DataSourceStreamWriter):  # type: ignore[misc]
    """Writes a streaming query on Spark 4.0, which passes single rows."""

    def write(self, iterator: Iterator[Any]) -> Written:
        """Stage the rows of a task, in a worker process."""
        from commitlog.spark.from_rows import batches_of

        return self._stage(batches_of(iterator, self._schema, _ROWS))


if DataSourceStreamArrowWriter is None:
    ArrowStreamWriter = None
else:

    class ArrowStreamWriter(_StreamWriter, DataSourceStreamArrowWriter):  # type: ignore[misc,no-redef]
        """Writes a streaming query."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
            """Stage the rows of a task, in a worker process."""
            return self._stage(iterator)


StreamWriter = ArrowStreamWriter or RowStreamWriter
