"""StagingWriter: writes a staged file, in any process. staged.py describes staged files."""

from __future__ import annotations

import os
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

from commitlog import files
from commitlog.batches.encode import IN_A_SEGMENT, EncodedBatch, Rules
from commitlog.batches.format import PUBLISHED
from commitlog.batches.staged import StagedFile, chained
from commitlog.config import TopicConfig
from commitlog.errors import BatchTooLargeError, ClosedError, InvalidRecordError
from commitlog.partitions.producer_state import SEQUENCES
from commitlog.partitions.state import now_ms
from commitlog.record import ArrowData
from commitlog.topics.catalog import typed

if TYPE_CHECKING:
    import pyarrow as pa

_TARGET_ROWS, _TARGET_BYTES = 8192, 1 << 20  # of a stored batch; small Arrow batches are combined
_START_BYTES = 1 << 20  # measured: writing early takes a sixth less for a task of 108 MB


class StagingWriter:
    """Writes a staged file: append() Arrow data, then finish(). Not thread-safe.

    As a context manager it leaves nothing behind unless finish() was called.
    """

    def __init__(
        self, log_path: str, topic: str, partition: int, config: TopicConfig, topic_id: str | None
    ) -> None:
        self._log_path = log_path
        self._config = config
        self._rules = Rules(config)
        self._file = StagedFile(
            topic, partition, int.from_bytes(os.urandom(8), "little") >> 1, 0, 0, 0, topic_id
        )
        self._path = os.path.join(log_path, self._file.path)
        self._fd: files.Descriptor | None = None
        self._size_bytes = self._records = self._checksum = 0
        self._started_bytes = 0  # that the kernel has been asked to write
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def append(self, data: ArrowData) -> None:
        """Add the columns value, key, timestamp and headers of Arrow data (all but value are optional).

        Errors number records from the start of the file, and may be raised by a later call.
        """
        from commitlog.batches import arrow

        if self._ended:
            raise ClosedError(self._path)
        table = arrow.tabular(data)
        chunks = arrow.record_batches(table)
        if self._pending and table.schema != self._pending[0].schema:
            self._write_pending()
        self._pending += chunks
        self._pending_bytes += table.nbytes
        rows = sum(batch.num_rows for batch in self._pending)
        if rows >= _TARGET_ROWS or self._pending_bytes >= _TARGET_BYTES:
            self._write_pending()

    def has_room(self, data: pa.RecordBatch | pa.Table) -> bool:
        """Say whether the file still fits into a segment with this data; a larger one is copied later."""
        size: int = self._size_bytes + self._pending_bytes + data.nbytes
        return size <= self._config.segment_bytes

    def _write_pending(self) -> None:
        from commitlog.batches import arrow

        data = arrow.put_together(self._pending)
        self._pending, self._pending_bytes = [], 0
        producer = self._file.file_id, PUBLISHED, self._records
        for batch in arrow.to_batches(data, self._rules, now_ms(), producer):
            self._write(batch)

    def _write(self, batch: EncodedBatch) -> None:
        if batch.size > self._config.segment_bytes:
            raise BatchTooLargeError(batch.size, self._config.segment_bytes, IN_A_SEGMENT)
        if self._records + batch.span >= SEQUENCES:
            raise InvalidRecordError(self._records, f"a staged file takes fewer than {SEQUENCES} records")
        try:
            fd = self._fd or self._create()
            files.write_at(fd.fd, batch.stamped(self._records, 0), batch.size, self._size_bytes)
        except OSError as error:
            raise typed(error, self._path) from error
        self._size_bytes += batch.size
        if self._size_bytes - self._started_bytes >= _START_BYTES:
            files.start_writing(fd.fd, self._started_bytes, self._size_bytes)
            self._started_bytes = self._size_bytes
        self._records += batch.span
        self._checksum = chained(self._checksum, batch.crc)

    def _create(self) -> files.Descriptor:
        files.make_directories(os.path.dirname(self._path))
        self._fd = files.Descriptor(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        return self._fd

    def finish(self) -> StagedFile:
        """Make the file durable and return what publish() takes."""
        if self._ended:
            raise ClosedError(self._path)
        if self._pending:
            self._write_pending()
        self._ended = True
        if self._fd is not None:
            try:
                files.sync_data(self._fd.fd)
                self._fd.close()
                files.sync_directory(os.path.dirname(self._path))
            except OSError as error:
                raise typed(error, self._path) from error
        # crash: a staged file that nobody was told of -> remove_leftovers() after a day
        size, records, checksum = self._size_bytes, self._records, self._checksum
        return replace(self._file, size_bytes=size, records=records, checksum=checksum)

    def discard(self) -> None:
        """Remove the file unless it is finished."""
        if not self._ended:
            self._ended = True
            self._pending = []
            if self._fd is not None:
                self._fd.close()
                files.remove(self._path)
