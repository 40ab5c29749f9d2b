"""Writing: tasks stage files; the driver publishes those of the successful attempts, together and once."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from commitlog.batches.staged import StagedFile
from commitlog.errors import CommitLogError, ConfigError, CorruptionError, NotSharedError
from commitlog.locks import LogLock
from commitlog.log import CommitLog
from commitlog.spark.readable import is_remote
from commitlog.spark.schema import check_sink
from commitlog.spark.shipping import Shipped
from commitlog.spark.worker import open_files, open_log
from commitlog.spark.write_options import WriteOptions

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # Spark 4.0 passes streams row by row
    DataSourceStreamArrowWriter = None

if TYPE_CHECKING:
    import pyarrow as pa

    from commitlog.replication.remote.remote_log import RemoteLog

_log = logging.getLogger("commitlog.spark")
QUERY_ID = "sql.streaming.queryId"  # stored in the checkpoint: the same after a restart
_BATCH_ID = "streaming.sql.batchId"
_ROWS = 10_000


@dataclass(frozen=True)
class Written(WriterCommitMessage):  # type: ignore[misc]
    """What a task reports to the driver."""

    staged: tuple[StagedFile, ...]
    host: str
    txn_id: str | None = None


@contextlib.contextmanager
def _writable(path: str) -> Iterator[CommitLog | RemoteLog]:
    """Open a log for publishing: its files here, or the node that has them."""
    if is_remote(path):
        yield cast("RemoteLog", open_log(path))
    else:
        with CommitLog.open(path, "shared", None) as log:
            yield log


def publish(path: str, txn_id: str, epoch: int, messages: Sequence[Written | None]) -> None:
    """Append what tasks have staged, in the order of tasks, unless the epoch is already published."""
    written = [message for message in messages if message is not None]
    staged = [one for message in written for one in message.staged]
    with _writable(path) as log:
        try:
            log.publish(txn_id, epoch, staged)
        except CorruptionError:
            for message in written:
                if not is_remote(path) and not all(_is_here(path, one) for one in message.staged):
                    raise NotSharedError(path, message.host, socket.gethostname()) from None
            raise


def _is_here(path: str, staged: StagedFile) -> bool:
    return staged.size_bytes == 0 or os.path.exists(os.path.join(path, staged.path))


def discard(path: str, txn_id: str, epoch: int) -> None:
    """Remove what tasks have staged for an epoch that failed, unless it is committed.

    What cannot be removed now is removed by a later publication, or after a day.
    """
    try:
        with _writable(path) as log:
            log.discard(txn_id, epoch)
    except (CommitLogError, OSError) as problem:
        _log.warning("%s: staged files of a failed query stay for now: %s", path, problem)


def check(schema: StructType, options: WriteOptions, overwrite: bool) -> str | None:
    """Check columns, topic and lock before a query runs; returns the log_id."""
    if overwrite:
        raise ConfigError("mode", "overwrite", "a log can only be appended to; use append")
    names = check_sink(schema, options.topic)
    log = open_log(options.path)
    if options.topic is not None:
        from commitlog.spark.task import find_topic

        if find_topic(log, options.topic).config.compacts and "key" not in names:
            raise ConfigError("topic", options.topic, "is compacted, so the frame must have a column key")
    if not is_remote(options.path):
        LogLock.take(options.path, shared=True).release()  # LogLockedError if a process has exclusive access
    return log.log_id


class BatchWriter(Shipped, DataSourceArrowWriter):  # type: ignore[misc]
    """Writes a batch query: once per txnVersion of a txnAppId, or, without these, each time it runs."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        self._options = WriteOptions.of(options).for_batch()
        self._log_id = check(schema, self._options, overwrite)
        self._txn_id = self._options.txn_app_id or f"spark-batch-{secrets.token_hex(16)}"
        self._epoch = self._options.txn_version or 0
        self._is_published = self._txn_id == self._options.txn_app_id and self._was_published()

    def _was_published(self) -> bool:
        """Whether there is nothing to write. A node only says so when asked to publish."""
        if is_remote(self._options.path):
            return False
        published = open_files(self._options.path).published(self._txn_id)
        return published is not None and published >= self._epoch

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Stage the rows of a task, in a worker process."""
        from commitlog.spark.task import stage

        if self._is_published:
            for _ in iterator:  # otherwise Spark would write into a closed pipe
                pass
            return Written((), socket.gethostname())
        options = self._options
        staged = stage(options.path, self._log_id, options.topic, self._txn_id, self._epoch, iterator)
        return Written(staged, socket.gethostname())

    def commit(self, messages: list[Written | None]) -> None:
        """Publish what the tasks have staged, on the driver."""
        publish(self._options.path, self._txn_id, self._epoch, messages)

    def abort(self, messages: list[Written | None]) -> None:
        """Remove what the tasks have staged, unless it is committed: commit() may have failed after that."""
        discard(self._options.path, self._txn_id, self._epoch)


class _StreamWriter(Shipped):
    """The common part of both stream writers."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        self._options = WriteOptions.of(options).for_stream()
        self._schema = schema
        self._log_id = check(schema, self._options, overwrite)

    def _stage(self, batches: Iterable[pa.RecordBatch]) -> Written:
        from commitlog.spark.task import stage

        options, context = self._options, TaskContext.get()
        txn_id = options.txn_id or context.getLocalProperty(QUERY_ID)
        if txn_id is None:
            raise ConfigError("txnId", None, "must be given: Spark does not provide the query's id here")
        epoch = int(context.getLocalProperty(_BATCH_ID))
        staged = stage(options.path, self._log_id, options.topic, txn_id, epoch, batches)
        return Written(staged, socket.gethostname(), txn_id)

    def commit(self, messages: list[Written | None], batchId: int) -> None:  # noqa: N803
        """Publish a micro-batch, on the driver; a replayed one is published only once."""
        txn_id = self._txn_id(messages)
        if txn_id is not None:  # otherwise there were no tasks
            publish(self._options.path, txn_id, batchId, messages)

    def abort(self, messages: list[Written | None], batchId: int) -> None:  # noqa: N803
        """Remove what the tasks have staged, unless it is committed: commit() may have failed after that.

        If no task has told the transaction, the next run of the batch removes it.
        """
        txn_id = self._txn_id(messages)
        if txn_id is not None:
            discard(self._options.path, txn_id, batchId)

    def _txn_id(self, messages: Iterable[Written | None]) -> str | None:
        told = (message.txn_id for message in messages if message is not None)
        return self._options.txn_id or next(told, None)


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
