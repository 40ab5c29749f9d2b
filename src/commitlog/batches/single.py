"""Batches of one record, uncompressed and without headers: what a log of single appends is made of.

Every column of such a batch is constant, so numpy has nothing to do. The bytes are the same as those that
encode.py writes and batch.py reads; this is a fast path for one record: 0.5 us instead of 15 to write, 0.9 us
instead of 4 to read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct

from commitlog.batches.columns import ALL_NULL, NO_NULLS, padded
from commitlog.batches.format import (
    CHECKED,
    DESCRIPTOR,
    LAST_OFFSET,
    LOG_APPEND_TIME,
    MAGIC_BYTES,
    SMALLEST_BATCH_BYTES,
    STAMP,
)
from commitlog.checksum import crc32c
from commitlog.errors import RecordTooLargeError
from commitlog.record import Buffer, Record
from commitlog.speedups import native

# The checked part of header and descriptor, with its constant fields as two byte strings: magic, size,
# producer_id, base_timestamp, max_timestamp, [base_sequence ... has headers], key length, value length.
_CHECKED_ONE = Struct("<4sI8sqq24sII")
_ONE = Struct(STAMP.format + _CHECKED_ONE.format[1:])
_NO_PRODUCER_ID = b"\xff" * 8
_PADDING = [bytes(size) for size in range(8)]
_FIXED = slice(48, 72)  # the second of these strings
_PADDED_ONE = SMALLEST_BATCH_BYTES + 7
_RUN_BYTES = 64 * 1024
_SHAPED_BYTES = 1024  # of key and value together; larger records hardly benefit
_MOST_SHAPES = 4096  # of about a kilobyte each
# pack(front, timestamp, timestamp, back, key, value) returns the batch without its stamp; front; back; the
# size of the batch
Shape = tuple[Callable[..., bytes], bytes, bytes, int]
_new_record = partial(tuple.__new__, Record)


def _constants(flags: int, *, key_is_null: bool, value_is_null: bool) -> bytes:
    """Return the fields from base_sequence to has-headers, which all such batches share."""
    head = CHECKED.pack(0, 0, -1, 0, 0, -1, 1, 0, -1, flags)
    nulls = [ALL_NULL if null else NO_NULLS for null in (key_is_null, value_is_null)]
    return (head + DESCRIPTOR.pack(0, 0, 0, 0, *nulls, 0, 0, 0))[32:56]


_CONSTANTS = {
    (flags, key_is_null, value_is_null): _constants(
        flags, key_is_null=key_is_null, value_is_null=value_is_null
    )
    for flags in (0, LOG_APPEND_TIME)
    for key_is_null in (False, True)
    for value_is_null in (False, True)
}
_PLAIN = _CONSTANTS[0, False, False]
_KINDS = {fixed: kind for kind, fixed in _CONSTANTS.items()}


def encode_one(
    value: bytes | None, key: bytes | None, timestamp: int, flags: int, max_message_bytes: int
) -> tuple[int, bytes, int]:
    """Return the crc32c and the bytes of a batch of one record without its stamp, and the batch's size."""
    if key is None or value is None or flags:
        fixed = _CONSTANTS[flags, key is None, value is None]
        key, value = key or b"", value or b""
    else:
        fixed = _PLAIN
    key_size, value_size = len(key), len(value)
    used = SMALLEST_BATCH_BYTES + key_size + value_size
    if used > SMALLEST_BATCH_BYTES + max_message_bytes:
        raise RecordTooLargeError(0, key_size + value_size, max_message_bytes)
    size = (used + 7) & ~7
    head = _CHECKED_ONE.pack(
        MAGIC_BYTES, size, _NO_PRODUCER_ID, timestamp, timestamp, fixed, key_size, value_size
    )
    body = b"".join((head, key, value, _PADDING[size - used]))
    return crc32c(body), body, size


class Shapes(dict[tuple[int | None, int | None], Shape | None]):
    """Maps the lengths of key and value (None for a null) to a way to pack such records; filled on demand.

    None for records above `most_bytes`, and for new lengths once the table is full: use encode_one() for
    these. Measured for 10 and 90 bytes: 0.2 us per record, and 0.35 with encode_one().
    """

    def __init__(self, flags: int, most_bytes: int) -> None:
        self._flags = flags
        self._most_bytes = most_bytes

    def __missing__(self, sizes: tuple[int | None, int | None]) -> Shape | None:
        key_size, value_size = sizes[0] or 0, sizes[1] or 0
        if key_size + value_size > self._most_bytes or len(self) >= _MOST_SHAPES:
            return None
        fixed = _CONSTANTS[self._flags, sizes[0] is None, sizes[1] is None]
        used = SMALLEST_BATCH_BYTES + key_size + value_size
        size = padded(used)
        head = _CHECKED_ONE.pack(MAGIC_BYTES, size, _NO_PRODUCER_ID, 0, 0, fixed, key_size, value_size)
        pack = Struct(f"<16sqq32s{key_size}s{value_size}s{size - used}x").pack
        shape = self[sizes] = pack, head[:16], head[32:], size
        return shape


_SHARED = {flags: Shapes(flags, _SHAPED_BYTES) for flags in (0, LOG_APPEND_TIME)}


def shapes_for(flags: int, max_message_bytes: int) -> Shapes:
    """Return the shapes for a topic with these flags and this limit."""
    return _SHARED[flags] if max_message_bytes >= _SHAPED_BYTES else Shapes(flags, max_message_bytes)


def pure_read_ones(view: Buffer, position: int, limit: int, end_offset: int) -> tuple[list[Record], int]:
    """Return the records of the consecutive such batches from `position` on, and the position after them.

    They share a leader epoch and a timestamp type. It stops at anything else, including damage: the caller
    finds out what it is by reading on from there.
    """
    records: list[Record] = []
    run = expected = None
    source = memoryview(view)
    if bytes(source[position + _FIXED.start : position + _FIXED.stop]) not in _KINDS:
        return records, position  # before anything is copied
    chunk = bytes(source[position : min(position + _RUN_BYTES, limit)])
    place, end_offset = 0, min(end_offset, LAST_OFFSET + 1)
    last = len(chunk) - _ONE.size
    while place <= last:
        (offset, epoch, checksum, magic, size, producer, timestamp, _, fixed, key_size, value_size) = (
            _ONE.unpack_from(chunk, place)
        )
        kind = _KINDS.get(fixed)
        end = place + size
        key_start = place + SMALLEST_BATCH_BYTES
        value_start = key_start + key_size
        if kind is None or magic != MAGIC_BYTES or producer != _NO_PRODUCER_ID:
            break
        if not 0 <= offset < end_offset:
            break
        if end > len(chunk) or size != (key_size + value_size + _PADDED_ONE) & ~7:
            break
        if crc32c(chunk[place + 16 : end]) ^ (offset ^ offset >> 32 ^ epoch) & 0xFFFF_FFFF != checksum:
            break
        flags, key_is_null, value_is_null = kind
        if offset != expected or (epoch, flags) != run:
            if records:
                break
            run = epoch, flags
        if (key_is_null and key_size) or (value_is_null and value_size):
            break
        key = None if key_is_null else chunk[key_start:value_start]
        value = None if value_is_null else chunk[value_start : value_start + value_size]
        records.append(_new_record((offset, timestamp, key, value, ())))
        place, expected = end, offset + 1
    return records, position + place


def pure_walk_ones(
    view: memoryview, place: int, end: int, offset: int, epoch: int, places: list[tuple[int, int, int]]
) -> tuple[int, int]:
    """Step over such batches of one leader epoch; add the offset, place and timestamp of each to `places`.

    Stops at lengths that do not fill the batch. Measured: 1.0 us a batch.
    """
    last = end - _ONE.size
    unpack, known, add, folded_epoch = _ONE.unpack_from, _KINDS, places.append, epoch & 0xFFFF_FFFF
    while place <= last:
        base, found, checksum, magic, size, producer, timestamp, latest, fixed, key_size, value_size = unpack(
            view, place
        )
        after = place + size
        kind = known.get(fixed)
        if (
            base != offset
            or offset > LAST_OFFSET
            or magic != MAGIC_BYTES
            or kind is None
            or producer != _NO_PRODUCER_ID
        ):
            break
        if found != epoch or size != (key_size + value_size + _PADDED_ONE) & ~7 or after > end:
            break
        if timestamp != latest or (kind[1] and key_size) or (kind[2] and value_size):
            break
        if crc32c(view[place + 16 : after]) ^ (base ^ base >> 32) & 0xFFFF_FFFF ^ folded_epoch != checksum:
            break
        add((offset, place, timestamp))
        place, offset = after, offset + 1
    return place, offset


read_ones = pure_read_ones if native is None else partial(native.read_ones, Record)
walk_ones = pure_walk_ones if native is None else native.walk_ones
