"""StagingWriter: writes a staged file, in any process. staged.py describes staged files.

Where its bytes go is up to its output: a file of the log (LocalOutput), or a node that has the log.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from commitlog import files
from commitlog.batches.encode import IN_A_SEGMENT, EncodedBatch, Rules
from commitlog.batches.format import PUBLISHED
from commitlog.batches.staged import Claim, StagedFile, chained
from commitlog.config import TopicConfig
from commitlog.errors import BatchTooLargeError, ClosedError, InvalidRecordError
from commitlog.partitions.producer_state import SEQUENCES
from commitlog.partitions.state import now_ms
from commitlog.record import ArrowData, Buffer
from commitlog.topics.catalog import typed

if TYPE_CHECKING:
    import pyarrow as pa

_TARGET_ROWS, _TARGET_BYTES = 8192, 1 << 20  # of a stored batch; small Arrow batches are combined
_START_BYTES = 1 << 20  # measured: writing early takes a sixth less for a task of 108 MB


class Output(Protocol):
    """Takes the bytes of one staged file, in order."""

    def write(self, parts: Sequence[Buffer], size: int) -> None:
        """Add bytes; `parts` may be reused afterwards."""

    def finish(self, staged: StagedFile) -> None:
        """Make the file durable, so that it can be published; `staged` says what was written."""

    def discard(self) -> None:
        """Remove what was written."""


class LocalOutput:
    """A file in the log's directory. It is created when the first bytes come."""

    def __init__(self, log_path: str, staged: StagedFile) -> None:
        self._path = os.path.join(log_path, staged.path)
        self._fd: files.Descriptor | None = None
        self._size_bytes = 0
        self._started_bytes = 0  # that the kernel has been asked to write

    def write(self, parts: Sequence[Buffer], size: int) -> None:
        """Append bytes to the file."""
        try:
            fd = self._fd or self._create()
            files.write_at(fd.fd, parts, size, self._size_bytes)
        except OSError as error:
            raise typed(error, self._path) from error
        self._size_bytes += size
        if self._size_bytes - self._started_bytes >= _START_BYTES:
            files.start_writing(fd.fd, self._started_bytes, self._size_bytes)
            self._started_bytes = self._size_bytes

    def _create(self) -> files.Descriptor:
        files.make_directories(os.path.dirname(self._path))
        self._fd = files.Descriptor(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        return self._fd

    def finish(self, staged: StagedFile) -> None:
        """Sync the file and its name."""
        if self._fd is None:
            return
        try:
            files.sync_data(self._fd.fd)
            self._fd.close()
            files.sync_directory(os.path.dirname(self._path))
        except OSError as error:
            raise typed(error, self._path) from error

    def discard(self) -> None:
        """Remove the file if it was created."""
        if self._fd is not None:
            self._fd.close()
            files.remove(self._path)


def new_file(
    topic: str, partition: int, topic_id: str | None, claim: Claim | None, log_id: str | None
) -> StagedFile:
    """Return an empty staged file with an id of its own."""
    file_id = int.from_bytes(os.urandom(8), "little") >> 1
    return StagedFile(topic, partition, file_id, 0, 0, 0, topic_id, claim, log_id)


class StagingWriter:
    """Writes a staged file: append() Arrow data, then finish(). Not thread-safe.

    As a context manager it leaves nothing behind unless finish() was called.
    """

    def __init__(self, file: StagedFile, config: TopicConfig, output: Output) -> None:
        self._file = file
        self._config = config
        self._rules = Rules(config)
        self._output = output
        self._size_bytes = self._records = self._checksum = 0
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
            raise ClosedError(self._file.path)
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
        self._output.write(batch.stamped(self._records, 0), batch.size)
        self._size_bytes += batch.size
        self._records += batch.span
        self._checksum = chained(self._checksum, batch.crc)

    def finish(self) -> StagedFile:
        """Make the file durable and return what publish() takes."""
        if self._ended:
            raise ClosedError(self._file.path)
        if self._pending:
            self._write_pending()
        self._ended = True
        size, records, checksum = self._size_bytes, self._records, self._checksum
        staged = replace(self._file, size_bytes=size, records=records, checksum=checksum)
        self._output.finish(staged)
        # crash: a staged file that nobody was told of -> remove_leftovers() after a day
        return staged

    def discard(self) -> None:
        """Remove the file unless it is finished."""
        if not self._ended:
            self._ended = True
            self._pending = []
            self._output.discard()
