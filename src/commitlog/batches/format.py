"""The layout of a batch on disk: structs, flags and the header. docs/format.md describes it in words.

encode.py writes this layout and batch.py reads it; single.py does both for batches of one record.
"""

from __future__ import annotations

from functools import partial
from struct import Struct
from typing import NamedTuple

import numpy as np

from commitlog.batches import compression
from commitlog.batches.columns import Int64s
from commitlog.checksum import crc32c
from commitlog.errors import CorruptionError, UnsupportedFormatError
from commitlog.record import Buffer

MAGIC = int.from_bytes(b"CLB1", "little")

# flags
CODEC_MASK = 0b111
LOG_APPEND_TIME = 1 << 3
TRANSACTIONAL = 1 << 4  # its records count only once a marker commits the transaction
CONTROL = 1 << 5  # a marker: it has no records, and ends a transaction
DELETE_HORIZON = 1 << 6  # before the body is the time from which its tombstones, or a marker, may be removed
# Bits 8 to 10 name the encoding of the body; 0, columnar, is the only one so far. A reader refuses a batch
# with any bit it does not know.
KNOWN_FLAGS = CODEC_MASK | LOG_APPEND_TIME | TRANSACTIONAL | CONTROL | DELETE_HORIZON

# The crc32c does not cover the stamp, so that a log can place a batch without touching its body.
STAMP = Struct("<qiI")  # base_offset, leader_epoch, checksum
# magic, size, producer_id, base_timestamp, max_timestamp,
# base_sequence, record_count, last_offset_delta, producer_epoch, flags
CHECKED = Struct("<IIqqqiIIhH")
HEADER = Struct(STAMP.format + CHECKED.format[1:])
# The body starts with the forms of key lengths, value lengths, timestamps, offsets; nulls of keys, values;
# whether there are headers; constant key length; constant value length.
DESCRIPTOR = Struct("<BBBBBBBxII")
# With headers, this follows: forms of counts, name lengths, value lengths; nulls of values; their constants.
HEADERS_DESCRIPTOR = Struct("<BBBBIII")
HORIZON = Struct("<q")  # before the body, with DELETE_HORIZON: milliseconds since the epoch
COMPRESSED = Struct("<II")  # before a compressed body: its raw size, its stored size
_FLAGS = Struct("<62xH")
_PEEK = Struct("<q8xII32xI")  # base_offset, magic, size, last_offset_delta

HEADER_BYTES = HEADER.size
MAGIC_BYTES, MAGIC_POSITION = MAGIC.to_bytes(4, "little"), STAMP.size  # for finding a batch after damage
SMALLEST_BATCH_BYTES = HEADER.size + DESCRIPTOR.size
# The limits of a batch. Writers stay within them, and a reader that meets a batch beyond one raises
# CorruptionError: nothing is allocated because of a count that no bytes back up.
MAX_RECORDS = 1 << 20  # constant columns take no bytes, so this bounds the rows that 80 bytes can hold
MAX_HEADERS = 1 << 20  # of all records together, for the same reason
MAX_BODY_BYTES = (1 << 31) - 1  # before compression: Arrow counts the bytes of a column in 31 bits
LAST_OFFSET = (1 << 63) - 2
NO_PRODUCER = (-1, -1, -1)  # producer_id, producer_epoch, base_sequence
PUBLISHED = -2  # a producer_epoch: the batch was staged elsewhere, and producer_id names the staged file
MAX_EPOCH = (1 << 15) - 1  # of a producer
ABORT, COMMIT = 0, 1  # the base_sequence of a marker: what it decides


class BatchHeader(NamedTuple):
    """The first 64 bytes of a batch."""

    base_offset: int
    leader_epoch: int
    crc: int
    magic: int
    size: int
    producer_id: int
    base_timestamp: int
    max_timestamp: int
    base_sequence: int
    record_count: int
    last_offset_delta: int
    producer_epoch: int
    flags: int

    @property
    def next_offset(self) -> int:
        """The first offset after this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def producer(self) -> tuple[int, int, int]:
        """Its producer: producer_id, producer_epoch, base_sequence; NO_PRODUCER if it has none."""
        return self.producer_id, self.producer_epoch, self.base_sequence

    @property
    def is_published(self) -> bool:
        """Whether it was staged elsewhere and published."""
        return self.producer_epoch == PUBLISHED

    @property
    def is_transactional(self) -> bool:
        """Whether its records belong to a transaction, which a marker after it commits or aborts."""
        return self.flags & (TRANSACTIONAL | CONTROL) == TRANSACTIONAL

    @property
    def is_marker(self) -> bool:
        """Whether it ends a transaction of its producer; then it has no records."""
        return bool(self.flags & CONTROL)

    @property
    def commits(self) -> bool:
        """Whether a marker commits its transaction; otherwise it aborts it."""
        return self.base_sequence == COMMIT

    @property
    def compression_type(self) -> str:
        """The name of the body's codec."""
        return compression.NAMES.get(self.flags & CODEC_MASK, "unknown")


_new_header = partial(tuple.__new__, BatchHeader)  # measured: 4 times faster than BatchHeader._make


def stamp(base_offset: int, leader_epoch: int, crc: int) -> bytes:
    """Return the first 16 bytes of a batch whose other bytes have this crc32c.

    The checksum covers offset and epoch too, so that a rotten bit in them is detected.
    """
    folded = (base_offset ^ base_offset >> 32 ^ leader_epoch) & 0xFFFF_FFFF  # what fold() returns
    return STAMP.pack(base_offset, leader_epoch, crc ^ folded)


def fold(base_offset: int, leader_epoch: int) -> int:
    """Return 32 bits that change with every bit of offset and epoch."""
    return (base_offset ^ base_offset >> 32 ^ leader_epoch) & 0xFFFF_FFFF


def peek(buffer: Buffer, position: int, path: str, shift: int = 0) -> tuple[int, int, int]:
    """Return base_offset, next_offset and size of the batch at `position` without checking its checksum.

    `shift` is the file position of the buffer's first byte, for the error.
    """
    if len(buffer) - position < HEADER_BYTES:
        raise CorruptionError(path, position + shift, "the file ends inside a batch header")
    base_offset, magic, size, last_delta = _PEEK.unpack_from(buffer, position)
    if magic != MAGIC or size < SMALLEST_BATCH_BYTES or size & 7:
        raise CorruptionError(path, position + shift, "no batch starts here")
    return base_offset, base_offset + last_delta + 1, size


def header_at(buffer: Buffer, position: int) -> BatchHeader | None:
    """Return the header at `position` if there seems to be one; its checksum is not checked."""
    header = claimed_header(buffer, position)
    if header is None or header.magic != MAGIC or header.size < SMALLEST_BATCH_BYTES or header.size & 7:
        return None
    return header


def claimed_header(buffer: Buffer, position: int) -> BatchHeader | None:
    """Return the bytes at `position` as a header, whatever they are: to find the way past damage."""
    if len(buffer) - position < HEADER_BYTES:
        return None
    return _new_header(HEADER.unpack_from(buffer, position))


def batches_start_at(buffer: Buffer, positions: Int64s, offsets: Int64s) -> bool:
    """Say whether batches with these base_offsets seem to start at these positions."""
    words = np.frombuffer(buffer, "<i8", len(buffer) // 8)
    starts = positions // 8
    magics = words[starts + STAMP.size // 8] & 0xFFFF_FFFF
    return bool((words[starts] == offsets).all() and (magics == MAGIC).all())


def check(buffer: Buffer, position: int, end: int, path: str, shift: int = 0) -> BatchHeader:
    """Return the header of the batch at `position`; CorruptionError if the batch is incomplete or damaged."""
    header, crc = unstamped(buffer, position, end, path, shift)
    if crc ^ fold(header.base_offset, header.leader_epoch) != header.crc:
        raise CorruptionError(path, position + shift, "the checksum of a batch does not match")
    check_flags(header.flags, path, position + shift)
    count, last_delta, base_offset = header.record_count, header.last_offset_delta, header.base_offset
    if count > MAX_RECORDS or count > last_delta + 1:
        reason = f"a batch of {count} records that takes {last_delta + 1} offsets"
        raise CorruptionError(path, position + shift, reason)
    if base_offset < 0 or base_offset + last_delta > LAST_OFFSET:
        raise CorruptionError(path, position + shift, f"a batch with the offset {base_offset}")
    if header.flags & CONTROL and not is_possible_marker(header):
        raise CorruptionError(path, position + shift, "a marker of no transaction")
    return header


def marker_at(buffer: Buffer, position: int, end: int) -> BatchHeader | None:
    """Return the header of the marker at `position`; None if something else is there, or damage."""
    if end - position < SMALLEST_BATCH_BYTES or not _FLAGS.unpack_from(buffer, position)[0] & CONTROL:
        return None
    try:
        return check(buffer, position, end, "")
    except (CorruptionError, UnsupportedFormatError):
        return None


def is_possible_marker(header: BatchHeader) -> bool:
    """Say whether a control batch is what a marker looks like."""
    transactional = header.flags & (TRANSACTIONAL | CODEC_MASK) == TRANSACTIONAL
    alone = (header.record_count, header.last_offset_delta) == (0, 0)
    named = header.producer_id >= 0 and header.producer_epoch >= 0
    return transactional and alone and named and header.base_sequence in (ABORT, COMMIT)


def check_flags(flags: int, path: str, position: int) -> None:
    """Refuse a batch written by a later version."""
    if flags & ~KNOWN_FLAGS or flags & CODEC_MASK not in compression.NAMES:
        place = f"{path}, byte {position}"
        raise UnsupportedFormatError(place, f"batch flags {flags:#x}", f"{KNOWN_FLAGS:#x}")


def unstamped(buffer: Buffer, position: int, end: int, path: str, shift: int = 0) -> tuple[BatchHeader, int]:
    """Return the header of the batch at `position`, and the crc32c of everything but its stamp.

    The stamp is not checked. CorruptionError if there seems to be no complete batch.
    """
    if end - position < SMALLEST_BATCH_BYTES:
        raise CorruptionError(path, position + shift, f"a batch cut off after {end - position} bytes")
    header = _new_header(HEADER.unpack_from(buffer, position))
    size = header.size
    if header.magic != MAGIC or size < SMALLEST_BATCH_BYTES or size & 7:
        raise CorruptionError(path, position + shift, "no batch starts here")
    if size > end - position:
        raise CorruptionError(path, position + shift, f"a batch of {size} bytes cut off at {end - position}")
    return header, crc32c(memoryview(buffer)[position + STAMP.size : position + size])
