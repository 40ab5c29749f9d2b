"""Staged files: batches that any process wrote, and that publisher.py appends to their partition later.

A staged file holds batches for one partition, like a segment, with offsets from 0. Each batch names the file
as its producer, which identifies it in the partition, and the number of its first record as its sequence.

The stamps of its batches may hold anything: before a file is adopted it gets the partition's stamps, and a
crash may interrupt that. So the checksum that identifies a file covers everything but the stamps.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from commitlog import files
from commitlog.batches.batch import RecordBatch
from commitlog.batches.columns import NO_NULLS
from commitlog.batches.encode import IN_A_SEGMENT, EncodedBatch
from commitlog.batches.format import MAX_RECORDS, PUBLISHED, STAMP, check_flags, stamp, unstamped
from commitlog.checksum import crc32c
from commitlog.config import TopicConfig
from commitlog.errors import BatchTooLargeError, CorruptionError, InvalidRecordError

FOLDER, SUFFIX = "staging", ".staged"
KEPT_SECONDS = 24 * 60 * 60  # a staged file that is not published by then is removed
_CHUNK_BYTES = 4 << 20  # appended at once, while other appends wait
_CHUNK_BATCHES = 512  # files.write_at() writes this many without a copy
_CRC = Struct("<I")


@dataclass(frozen=True, slots=True)
class StagedFile:
    """Records in a file that CommitLog.publish() can append. It can be pickled and sent between processes."""

    topic: str
    partition: int
    file_id: int
    size_bytes: int
    records: int
    checksum: int
    topic_id: str | None = None  # of the topic it was staged for

    @property
    def path(self) -> str:
        """Its path, relative to the log."""
        return os.path.join(FOLDER, f"{self.file_id:016x}{SUFFIX}")


class StagedBatch(NamedTuple):
    """A batch of a staged file: its place, and what its partition needs to know."""

    position: int
    size: int
    crc: int  # of all but the stamp
    span: int  # the number of offsets it takes
    max_timestamp: int
    producer: tuple[int, int, int]


def chained(checksum: int, crc: int) -> int:
    """Return the checksum of a staged file from that of all batches but the last, and the last one's crc."""
    return crc32c(_CRC.pack(crc), checksum)


# --- reading ---------------------------------------------------------------------------------------


def read_staged(log_path: str, staged: StagedFile) -> list[StagedBatch]:
    """Return the batches of a staged file; CorruptionError if its contents are not what was staged.

    It may be longer: it was adopted and appended to, and then a power cut lost the segment's name.
    """
    path = os.path.join(log_path, staged.path)
    if staged.size_bytes == 0:
        return []
    try:
        view = files.map_file(path)
    except FileNotFoundError:
        raise CorruptionError(path, 0, "the staged file is missing") from None
    if view is None or len(view) < staged.size_bytes:
        raise CorruptionError(path, len(view or b""), f"{staged.size_bytes} bytes were staged")
    found: list[StagedBatch] = []
    flags: dict[int, int] = {}  # and the position of a batch that has them
    position = records = checksum = 0
    while position < staged.size_bytes:
        header, crc = unstamped(view, position, staged.size_bytes, path)
        span = header.last_offset_delta + 1
        if header.producer != (staged.file_id, PUBLISHED, records):
            raise CorruptionError(path, position, f"this is not the batch of record {records}")
        if header.record_count != span or span > MAX_RECORDS:
            raise CorruptionError(path, position, f"{header.record_count} records that take {span} offsets")
        found.append(StagedBatch(position, header.size, crc, span, header.max_timestamp, header.producer))
        flags.setdefault(header.flags, position)
        position += header.size
        records += span
        checksum = chained(checksum, crc)
    if records != staged.records:
        raise CorruptionError(path, position, f"{staged.records} records were staged, there are {records}")
    if checksum != staged.checksum:
        raise CorruptionError(path, 0, "the checksum of the staged file does not match")
    for one, where in flags.items():
        check_flags(one, path, where)
    return found


def check_staged(log_path: str, staged: StagedFile, config: TopicConfig) -> list[StagedBatch]:
    """Return the batches; raise an error if they are damaged or a topic with these settings refuses them."""
    found = read_staged(log_path, staged)
    for batch in found:
        if batch.size > config.segment_bytes:
            raise BatchTooLargeError(batch.size, config.segment_bytes, IN_A_SEGMENT)
    if config.compacts and found:
        _check_keys(os.path.join(log_path, staged.path), found)
    return found


def _check_keys(path: str, batches: Iterable[StagedBatch]) -> None:
    view = memoryview(files.map_file(path) or b"")
    for one in batches:
        header, _ = unstamped(view, one.position, len(view), path)
        batch = RecordBatch(header, view[one.position : one.position + one.size], path, one.position)
        if batch.body.keys.nulls != NO_NULLS:
            row = one.producer[2] + int(batch.key_lengths.argmin())
            raise InvalidRecordError(row, "a compacted topic needs a key in every record")


def chunks(
    path: str, batches: Iterable[StagedBatch], sequence: int, segment_bytes: int
) -> Iterator[tuple[EncodedBatch, ...]]:
    """Iterate over the batches from `sequence` on, in chunks of a good size for one append.

    A chunk is valid until the next one is requested: they share a buffer.
    """
    most, buffer = min(_CHUNK_BYTES, segment_bytes), bytearray()
    file = files.Descriptor(os.open(path, os.O_RDONLY))
    for chunk in _divided([one for one in batches if one.producer[2] >= sequence], most):
        start, size = chunk[0].position, sum(one.size for one in chunk)
        if size > len(buffer):
            buffer = bytearray(max(size, most))
        view = memoryview(buffer)[:size]
        # measured: twice as fast as writing from a map of the file, which faults in its pages one by one
        if os.preadv(file.fd, [view], start) != size:
            raise CorruptionError(path, start, f"{size} bytes were staged here")
        yield tuple(_encoded(one, view[one.position - start :]) for one in chunk)


def _divided(batches: Iterable[StagedBatch], most_bytes: int) -> Iterator[list[StagedBatch]]:
    chunk: list[StagedBatch] = []
    size = 0
    for batch in batches:
        if chunk and (size + batch.size > most_bytes or len(chunk) == _CHUNK_BATCHES):
            yield chunk
            chunk, size = [], 0
        chunk.append(batch)
        size += batch.size
    if chunk:
        yield chunk


def _encoded(one: StagedBatch, data: memoryview) -> EncodedBatch:
    """Return a batch without its stamp; the partition assigns its offset."""
    parts = (data[STAMP.size : one.size],)
    return EncodedBatch(one.crc, parts, one.size, one.span, one.max_timestamp, one.producer)


# --- changing --------------------------------------------------------------------------------------


def stamp_batches(fd: int, batches: Sequence[StagedBatch], base_offset: int, leader_epoch: int) -> None:
    """Give the batches of a staged file the offsets from `base_offset` on."""
    for one in batches:
        files.write_at(fd, (stamp(base_offset, leader_epoch, one.crc),), STAMP.size, one.position)
        # crash: some batches of a staged file have other stamps -> they are not looked at when it is read
        base_offset += one.span


def remove_staged(log_path: str, staged: Iterable[StagedFile]) -> None:
    """Remove staged files that are published or never will be; an adopted one only loses this name."""
    for one in staged:
        files.remove(os.path.join(log_path, one.path))


def remove_leftovers(log_path: str, now: float) -> None:
    """Remove staged files that were not modified for a day; `now` is in seconds since the epoch."""
    try:
        with os.scandir(os.path.join(log_path, FOLDER)) as found:
            for one in found:
                if one.name.endswith(SUFFIX) and one.stat().st_mtime < now - KEPT_SECONDS:
                    files.remove(one.path)
    except FileNotFoundError:  # nothing was ever staged, or another process removed it first
        return
