"""Staged files: batches that any process wrote, and that publishing.py appends to their partition later.

A staged file holds batches as a segment does, with offsets from 0, for one partition. Each names the file as
its producer, by which it is recognised in the partition, and its first record's number as its sequence.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from commitlog import files
from commitlog.active import now_ms
from commitlog.batch import RecordBatch
from commitlog.catalog import typed
from commitlog.columns import NO_NULLS
from commitlog.config import TopicConfig
from commitlog.encode import EncodedBatch, Rules
from commitlog.errors import BatchTooLargeError, ClosedError, CorruptionError, InvalidRecordError
from commitlog.format import PUBLISHED, STAMP, fold
from commitlog.producers import SEQUENCES

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER, SUFFIX = "staging", ".staged"
KEPT_SECONDS = 24 * 60 * 60  # so long a staged file waits for its publication
_TARGET_ROWS, _TARGET_BYTES = 8192, 1 << 20  # of a stored batch; small Arrow batches are put together
_CHUNK_BYTES = 16 << 20  # appended at once; appends of others wait for it
_CHUNK_BATCHES = 512  # files.write_at() writes so many without a copy


@dataclass(frozen=True, slots=True)
class StagedFile:
    """Records that wait in a file for CommitLog.publish(). It pickles, and may come from any process."""

    topic: str
    partition: int
    file_id: int
    size_bytes: int
    records: int

    @property
    def path(self) -> str:
        """Where it lies, relative to the log."""
        return os.path.join(FOLDER, f"{self.file_id:016x}{SUFFIX}")


class StagingWriter:
    """Writes a staged file: append() Arrow data, then finish(). Not for several threads at once.

    As a context manager it leaves nothing behind unless finish() was called.
    """

    def __init__(self, log_path: str, topic: str, partition: int, config: TopicConfig) -> None:
        self._log_path = log_path
        self._config = config
        self._rules = Rules(config)
        self._file = StagedFile(topic, partition, secrets.randbits(63), 0, 0)
        self._path = os.path.join(log_path, self._file.path)
        self._fd: files.Descriptor | None = None
        self._size_bytes = self._records = 0
        self._pending: list[pa.RecordBatch] = []
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def append(self, data: pa.RecordBatch | pa.Table) -> None:
        """Take the columns value, key, timestamp and headers of Arrow data (all but value optional).

        Records are numbered through the file in errors, which may come with a later call.
        """
        from commitlog import arrow

        if self._ended:
            raise ClosedError(self._path)
        chunks = arrow.record_batches(data)
        if self._pending and data.schema != self._pending[0].schema:
            self._write_pending()
        self._pending += chunks
        rows = sum(batch.num_rows for batch in self._pending)
        if rows >= _TARGET_ROWS or sum(batch.nbytes for batch in self._pending) >= _TARGET_BYTES:
            self._write_pending()

    def _write_pending(self) -> None:
        from commitlog import arrow

        data = arrow.put_together(self._pending)
        self._pending = []
        producer = self._file.file_id, PUBLISHED, self._records
        for batch in arrow.to_batches(data, self._rules, now_ms(), producer):
            self._write(batch)

    def _write(self, batch: EncodedBatch) -> None:
        if batch.size > self._config.segment_bytes:
            raise BatchTooLargeError(batch.size, self._config.segment_bytes)
        if self._records + batch.span >= SEQUENCES:
            raise InvalidRecordError(self._records, f"a staged file takes less than {SEQUENCES} records")
        try:
            fd = self._fd or self._create()
            files.write_at(fd.fd, batch.stamped(self._records, 0), batch.size, self._size_bytes)
        except OSError as error:
            raise typed(error, self._path) from error
        self._size_bytes += batch.size
        self._records += batch.span

    def _create(self) -> files.Descriptor:
        files.make_directories(os.path.dirname(self._path))
        self._fd = files.Descriptor(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        return self._fd

    def finish(self) -> StagedFile:
        """Make the file durable, and return what publish() takes."""
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
        one = self._file
        return StagedFile(one.topic, one.partition, one.file_id, self._size_bytes, self._records)

    def discard(self) -> None:
        """Leave nothing behind, unless it is finished."""
        if not self._ended:
            self._ended = True
            self._pending = []
            if self._fd is not None:
                self._fd.close()
                files.remove(self._path)


# --- reading ---------------------------------------------------------------------------------------


def _batches(log_path: str, staged: StagedFile) -> Iterator[RecordBatch]:
    """Iterate over the batches of a staged file; CorruptionError if it is not what was staged."""
    path = os.path.join(log_path, staged.path)
    if staged.size_bytes == 0:
        return
    try:
        view = files.map_file(path)
    except FileNotFoundError:
        raise CorruptionError(path, 0, "the staged file is missing") from None
    size, position, records = len(view or b""), 0, 0
    if view is None or size != staged.size_bytes:
        raise CorruptionError(path, size, f"{staged.size_bytes} bytes were staged")
    while position < size:
        batch = RecordBatch.decode(view, position, size, path)
        if (batch.base_offset, batch.header.producer) != (records, (staged.file_id, PUBLISHED, records)):
            raise CorruptionError(path, position, f"another batch than that of record {records}")
        yield batch
        position += batch.size_bytes
        records = batch.next_offset
    if records != staged.records:
        raise CorruptionError(path, size, f"{staged.records} records were staged, there are {records}")


def check_staged(log_path: str, staged: StagedFile, config: TopicConfig) -> None:
    """Raise what is wrong with a staged file, or keeps it out of a topic with these settings."""
    for batch in _batches(log_path, staged):
        if batch.size_bytes > config.segment_bytes:
            raise BatchTooLargeError(batch.size_bytes, config.segment_bytes)
        if config.compacts and batch.body.keys.nulls != NO_NULLS:
            row = batch.base_offset + int(batch.key_lengths.argmin())
            raise InvalidRecordError(row, "a compacted topic needs a key in every record")


def chunks(
    log_path: str, staged: StagedFile, sequence: int, segment_bytes: int
) -> Iterator[tuple[EncodedBatch, ...]]:
    """Iterate over the batches from `sequence` on, as many at a time as are well appended at once."""
    chunk: list[EncodedBatch] = []
    most, size = min(_CHUNK_BYTES, segment_bytes), 0
    for batch in _batches(log_path, staged):
        if batch.base_offset < sequence:
            continue
        if chunk and (size + batch.size_bytes > most or len(chunk) == _CHUNK_BATCHES):
            yield tuple(chunk)
            chunk, size = [], 0
        chunk.append(_unstamped(batch))
        size += batch.size_bytes
    if chunk:
        yield tuple(chunk)


def _unstamped(batch: RecordBatch) -> EncodedBatch:
    """Return a batch as it was before it was stamped: the partition gives it its offset."""
    header = batch.header
    crc = header.crc ^ fold(header.base_offset, header.leader_epoch)
    span = header.next_offset - header.base_offset
    parts = (batch.raw[STAMP.size :],)
    return EncodedBatch(crc, parts, header.size, span, header.max_timestamp, header.producer)


# --- removing --------------------------------------------------------------------------------------


def remove_staged(log_path: str, staged: Iterable[StagedFile]) -> None:
    """Remove staged files that are published, or never will be."""
    for one in staged:
        files.remove(os.path.join(log_path, one.path))


def remove_leftovers(log_path: str, now: float) -> None:
    """Remove staged files that nobody has touched for a day; `now` is in seconds since the epoch."""
    try:
        with os.scandir(os.path.join(log_path, FOLDER)) as found:
            for one in found:
                if one.name.endswith(SUFFIX) and one.stat().st_mtime < now - KEPT_SECONDS:
                    files.remove(one.path)
    except FileNotFoundError:  # nothing was ever staged, or somebody else removes
        return
