"""Staged files: batches that any process wrote, and that publisher.py appends to their partition later.

A staged file holds batches for one partition, like a segment, with offsets from 0. Each batch names the file
as its producer, which identifies it in the partition, and the number of its first record as its sequence.

The stamps of its batches may hold anything: before a file is adopted it gets the partition's stamps, and a
crash may interrupt that. So the checksum that identifies a file covers everything but the stamps.

A file that was staged for an epoch of a transaction has a claim in its name. Only that epoch can publish it,
so that what its other attempts left can be removed as soon as it is published or given up.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_128_hexdigest

from commitlog import files
from commitlog.batches.batch import RecordBatch
from commitlog.batches.columns import NO_NULLS
from commitlog.batches.encode import IN_A_SEGMENT, EncodedBatch
from commitlog.batches.format import MAX_RECORDS, PUBLISHED, STAMP, check_flags, stamp, unstamped
from commitlog.checksum import crc32c
from commitlog.config import MAX_INT64, TopicConfig
from commitlog.errors import BatchTooLargeError, ConfigError, CorruptionError, InvalidRecordError

FOLDER, SUFFIX = "staging", ".staged"
RECEIVING_SUFFIX = ".receiving"  # bytes of a staged file that another machine is sending
KEPT_SECONDS = 24 * 60 * 60  # a staged file that is not published by then is removed
_CHUNK_BYTES = 4 << 20  # appended at once, while other appends wait
_CHUNK_BATCHES = 512  # files.write_at() writes this many without a copy
_CRC = Struct("<I")
_NAME = re.compile(r"(?:([0-9a-f]{32})-(0|[1-9][0-9]{0,18})-)?([0-9a-f]{16})")


class Claim(NamedTuple):
    """The epoch of a transaction, as in the names of the files that were staged for it."""

    txn_hash: str
    epoch: int

    @classmethod
    def of(cls, txn_id: str, epoch: int) -> Claim:
        """Return the claim of an epoch; ConfigError if that cannot be one."""
        if not isinstance(txn_id, str) or not txn_id or not _is_utf8(txn_id):
            raise ConfigError("txn_id", txn_id, "must be a non-empty string")
        if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 <= epoch <= MAX_INT64:
            raise ConfigError("epoch", epoch, "must be a non-negative integer of at most 2**63 - 1")
        return cls(hash_of(txn_id), epoch)


def hash_of(txn_id: str) -> str:
    """Return what the claims of a transaction have in common."""
    return xxh3_128_hexdigest(txn_id.encode())


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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
    claim: Claim | None = None  # of the only epoch that may publish it; None for any
    log_id: str | None = None  # of the log it was staged for

    @property
    def name(self) -> str:
        """Its name without the suffix."""
        claim = "" if self.claim is None else f"{self.claim.txn_hash}-{self.claim.epoch}-"
        return f"{claim}{self.file_id:016x}"

    @property
    def path(self) -> str:
        """Its path, relative to the log."""
        return os.path.join(FOLDER, self.name + SUFFIX)


def parse_name(name: str) -> tuple[Claim | None, int]:
    """Return the claim and the file_id in the name of a staged file; ValueError if it is not such a name."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r:.80} names no staged file")
    txn_hash, epoch, file_id = found.groups()
    return None if txn_hash is None else Claim(txn_hash, int(epoch)), int(file_id, 16)


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
    return read_batches(os.path.join(log_path, staged.path), staged)


def read_batches(path: str, staged: StagedFile) -> list[StagedBatch]:
    """Return the batches of a staged file that is at this path, perhaps under another name."""
    if staged.size_bytes == staged.records == 0:
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
    for batch in record_batches(path, batches):
        if batch.body.keys.nulls != NO_NULLS:
            row = batch.header.producer[2] + int(batch.key_lengths.argmin())
            raise InvalidRecordError(row, "a compacted topic needs a key in every record")


def record_batches(path: str, batches: Iterable[StagedBatch]) -> Iterator[RecordBatch]:
    """Iterate over batches of a staged file with their records; their offsets mean nothing."""
    view = memoryview(files.map_file(path) or b"")
    for one in batches:
        header, _ = unstamped(view, one.position, len(view), path)
        yield RecordBatch(header, view[one.position : one.position + one.size], path, one.position)


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
    for one in _entries(log_path):
        with contextlib.suppress(FileNotFoundError):  # another process removed it first
            if one.stat().st_mtime < now - KEPT_SECONDS:
                files.remove(one.path)


def remove_claimed(log_path: str, is_over: Callable[[Claim], bool]) -> None:
    """Remove the files staged for epochs that are over: published, or given up."""
    for one in _entries(log_path):
        try:
            claim, _ = parse_name(one.name.partition(".")[0])
        except ValueError:
            continue
        if claim is not None and is_over(claim):
            files.remove(one.path)


def _entries(log_path: str) -> list[os.DirEntry[str]]:
    """Return the staged files, including those that are still being received."""
    try:
        with os.scandir(os.path.join(log_path, FOLDER)) as found:
            return [one for one in found if one.name.endswith((SUFFIX, RECEIVING_SUFFIX))]
    except FileNotFoundError:  # nothing was ever staged
        return []
