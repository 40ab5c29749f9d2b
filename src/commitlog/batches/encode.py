"""Records to the bytes of a batch. Everything here happens before a lock is taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from commitlog.batches import compression
from commitlog.batches.columns import (
    ALL_NULL,
    CONSTANT,
    DTYPES,
    NO_NULLS,
    U32,
    BytesColumn,
    Int64s,
    IntColumn,
    as_int64,
    most,
    narrow,
    narrow_lengths,
    narrow_within,
    pack_bytes,
    padded,
    total,
    widened,
)
from commitlog.batches.format import (
    CHECKED,
    CODEC_MASK,
    COMPRESSED,
    DELETE_HORIZON,
    DESCRIPTOR,
    HEADER_BYTES,
    HEADERS_DESCRIPTOR,
    HORIZON,
    LOG_APPEND_TIME,
    MAGIC,
    MAX_BODY_BYTES,
    MAX_HEADERS,
    MAX_RECORDS,
    NO_PRODUCER,
    STAMP,
    stamp,
)
from commitlog.batches.plain import encode_plain
from commitlog.batches.single import encode_one, shapes_for
from commitlog.checksum import crc32c
from commitlog.config import TopicConfig
from commitlog.errors import BatchTooLargeError, InvalidRecordError, RecordTooLargeError
from commitlog.record import Buffer, Headers

if TYPE_CHECKING:
    from commitlog.batches.batch import RecordBatch

Item = TypeVar("Item")
SizedItems = TypeVar("SizedItems", bound=Sized)

_PADDING = [bytes(size) for size in range(8)]
_ZEROS = IntColumn(CONSTANT, 0, b"")
NO_STRINGS = BytesColumn(_ZEROS, ALL_NULL, b"", b"")
IN_A_SEGMENT = "bytes on disk (segment_bytes)"  # for BatchTooLargeError, where no segment holds a batch
_OFFSET_BYTES = 4  # of a record, at most
_JOINED_BYTES = 4096  # measured: up to here, one copy costs less than a checksum and a write of each part


class EncodedBatch:
    """A batch that lacks only its stamp; its checksum is computed."""

    __slots__ = ("crc", "max_timestamp", "parts", "producer", "size", "span")

    def __init__(
        self,
        crc: int,
        parts: tuple[Buffer, ...],
        size: int,
        span: int,
        max_timestamp: int,
        producer: tuple[int, int, int] = NO_PRODUCER,
    ) -> None:
        self.crc = crc
        self.parts = parts
        self.size = size
        self.span = span  # the number of offsets that the batch takes
        self.max_timestamp = max_timestamp
        self.producer = producer  # producer_id, producer_epoch, base_sequence

    def stamped(self, base_offset: int, leader_epoch: int) -> tuple[Buffer, ...]:
        """Return the bytes to write, in pieces."""
        return (stamp(base_offset, leader_epoch, self.crc), *self.parts)


def totals(batches: tuple[EncodedBatch, ...]) -> tuple[int, int, int]:
    """Return the number of bytes and of offsets that batches take, and their latest timestamp."""
    if len(batches) == 1:
        batch = batches[0]
        return batch.size, batch.span, batch.max_timestamp
    size = span = latest = 0
    for batch in batches:
        size += batch.size
        span += batch.span
        latest = batch.max_timestamp if batch.max_timestamp > latest else latest
    return size, span, latest


class HeaderColumns(NamedTuple):
    """The headers of all records: the count of each record, and all names and values in order."""

    counts: IntColumn
    names: BytesColumn
    values: BytesColumn


class Columns(NamedTuple):
    """The contents of a batch. `timestamps` and `offsets` are deltas; `offsets` is None if contiguous."""

    keys: BytesColumn
    values: BytesColumn
    timestamps: IntColumn = _ZEROS
    offsets: IntColumn | None = None
    headers: HeaderColumns | None = None


class Rules:
    """What a topic's settings require of every batch."""

    __slots__ = ("flags", "keyed", "log_append_time", "max_message_bytes", "shapes")

    def __init__(self, config: TopicConfig) -> None:
        self.log_append_time = config.message_timestamp_type == "LogAppendTime"
        self.flags = compression.IDS[config.compression_type] | (
            LOG_APPEND_TIME if self.log_append_time else 0
        )
        self.max_message_bytes = config.max_message_bytes
        self.keyed = config.compacts  # every record needs a key
        compressed = self.flags & CODEC_MASK
        self.shapes = None if compressed else shapes_for(self.flags, self.max_message_bytes)

    def packs_alone(self, value: object, key: object, time: int) -> bool:
        """Say whether encode_one() encodes this record: plain bytes, a usual timestamp, and no codec."""
        plain = (value is None or type(value) is bytes) and (
            type(key) is bytes or (key is None and not self.keyed)
        )
        return plain and self.shapes is not None and 0 <= time < 1 << 63

    def check_keys(self, keys: BytesColumn, count: int, first: int = 0) -> None:
        """Raise InvalidRecordError if a record lacks a required key; `first` is the first one's number."""
        if self.keyed and keys.nulls != NO_NULLS:
            present = np.unpackbits(np.frombuffer(keys.bitmap, np.uint8), count=count, bitorder="little")
            index = 0 if keys.nulls == ALL_NULL else int(present.argmin())
            raise InvalidRecordError(first + index, "a compacted topic needs a key in every record")

    def check_sizes(self, columns: Columns, count: int, first: int = 0) -> None:
        """Raise RecordTooLargeError if one exceeds max_message_bytes; `first` is the first one's number."""
        keys, values, headers = columns.keys.lengths, columns.values.lengths, columns.headers
        bound = most(keys) + most(values)
        if headers is not None:
            bound += len(headers.names.blob) + len(headers.values.blob)
        if bound <= self.max_message_bytes:
            return
        sizes = widened(keys, count) + widened(values, count)
        if headers is not None:
            sizes += _header_sizes(headers, count)
        if int(sizes.max()) > self.max_message_bytes:
            index = int(sizes.argmax())
            raise RecordTooLargeError(first + index, int(sizes[index]), self.max_message_bytes)


def _header_sizes(headers: HeaderColumns, count: int) -> Int64s:
    ends = np.cumsum(widened(headers.counts, count))
    total = int(ends[-1])
    each = widened(headers.names.lengths, total) + widened(headers.values.lengths, total)
    sums = np.concatenate([[0], np.cumsum(each)])
    return np.diff(sums[ends], prepend=0)


def pure_encode(
    values: Iterable[Buffer | None],
    keys: Iterable[Buffer | None] | None,
    headers: Iterable[Headers] | None,
    timestamps: Iterable[int] | None,
    rules: Rules,
    now_ms: int,
    producer: tuple[int, int, int] = NO_PRODUCER,
    more_flags: int = 0,
) -> tuple[EncodedBatch, ...]:
    """Check records and encode them into one batch; no batch if there are no records."""
    values = listed(values)
    count = len(values)
    if keys is not None:
        keys = _counted(listed(keys), count, "keys")
    if headers is not None:
        headers = _counted(listed(headers), count, "headers")
    times: Int64s | int = now_ms
    if timestamps is not None:
        given = as_int64(timestamps, "timestamp")
        _counted(given, count, "timestamps")
        times = times if rules.log_append_time else given
    if count == 0:
        return ()
    check_count(count)  # before the expensive work
    if count == 1 and not (headers and headers[0]):
        key, time = None if keys is None else keys[0], times if isinstance(times, int) else int(times[0])
        if rules.packs_alone(values[0], key, time):
            return (_alone(values[0], key, time, rules, producer, more_flags),)  # type: ignore[arg-type]
    columns = Columns(
        keys=NO_STRINGS if keys is None else pack_bytes(keys, "key"),
        values=pack_bytes(values, "value"),
        headers=pack_headers(headers) if headers is not None and any(headers) else None,
    )
    rules.check_keys(columns.keys, count)
    rules.check_sizes(columns, count)
    return (assemble(columns, count, times, rules.flags | more_flags, producer=producer),)


def encode(
    values: Iterable[Buffer | None],
    keys: Iterable[Buffer | None] | None,
    headers: Iterable[Headers] | None,
    timestamps: Iterable[int] | None,
    rules: Rules,
    now_ms: int,
    producer: tuple[int, int, int] = NO_PRODUCER,
    more_flags: int = 0,
) -> tuple[EncodedBatch, ...]:
    """Check records and encode them into one batch, as pure_encode() does, a few of them faster."""
    if headers is None and timestamps is None:
        flags, keyed, most_bytes = rules.flags | more_flags, rules.keyed, rules.max_message_bytes
        plain = encode_plain(values, keys, now_ms, flags, producer, keyed, most_bytes)
        if plain is not None:
            crc, body, count = plain
            return (EncodedBatch(crc, (body,), len(body) + STAMP.size, count, now_ms, producer),)
    return pure_encode(values, keys, headers, timestamps, rules, now_ms, producer, more_flags)


def _alone(
    value: bytes | None,
    key: bytes | None,
    time: int,
    rules: Rules,
    producer: tuple[int, int, int],
    more_flags: int,
) -> EncodedBatch:
    """Encode one record; measured, in a quarter of the time that columns of one row take."""
    crc, body, size = encode_one(value, key, time, rules.flags, rules.max_message_bytes)
    batch = EncodedBatch(crc, (body,), size, 1, time)
    if producer == NO_PRODUCER and not more_flags:
        return batch
    return numbered(batch, producer, more_flags)


def check_count(count: int) -> None:
    """Raise BatchTooLargeError if `count` records are too many for one batch."""
    if count > MAX_RECORDS:
        raise BatchTooLargeError(count, MAX_RECORDS, "records")


def listed(items: Iterable[Item]) -> Sequence[Item]:
    """Return a list or tuple as it is, and a list of anything else."""
    return items if isinstance(items, list | tuple) else list(items)


def _counted(items: SizedItems, count: int, what: str) -> SizedItems:
    if len(items) != count:
        raise InvalidRecordError(min(len(items), count), f"{count} values, but {len(items)} {what}")
    return items


def assemble(
    columns: Columns,
    count: int,
    timestamps: Int64s | int,
    flags: int,
    span: int | None = None,
    producer: tuple[int, int, int] = NO_PRODUCER,
    delete_horizon: int | None = None,
) -> EncodedBatch:
    """Assemble a batch of `count` records that takes `span` offsets, by default `count`.

    BatchTooLargeError if it exceeds a limit of the format.
    """
    check_count(count)
    if columns.headers is not None and total(columns.headers.counts, count) > MAX_HEADERS:
        raise BatchTooLargeError(total(columns.headers.counts, count), MAX_HEADERS, "headers")
    if isinstance(timestamps, int):
        low = high = timestamps
    else:
        low, high = int(timestamps.min()), int(timestamps.max())
        columns = columns._replace(timestamps=narrow_within(timestamps - low, 0, high - low))
    body = _lay_out(columns)
    body_size = sum(map(len, body))
    # a new batch leaves room for the column of offsets that it gets when compaction removes records
    limit = MAX_BODY_BYTES - (_OFFSET_BYTES * count + 8 if span is None else 0)
    if body_size > limit:
        raise BatchTooLargeError(body_size, limit, "bytes before compression")
    if flags & CODEC_MASK:
        body, body_size, flags = _compress(body, body_size, flags)
    flags &= ~DELETE_HORIZON
    if delete_horizon is not None:
        body = [HORIZON.pack(delete_horizon), *body]
        body_size, flags = body_size + HORIZON.size, flags | DELETE_HORIZON
    used = HEADER_BYTES + body_size
    size = padded(used)
    span = count if span is None else span
    producer_id, producer_epoch, sequence = producer
    head = CHECKED.pack(MAGIC, size, producer_id, low, high, sequence, count, span - 1, producer_epoch, flags)
    parts: tuple[Buffer, ...] = (head, *body, _PADDING[size - used])
    if size <= _JOINED_BYTES:
        whole = b"".join(parts)
        return EncodedBatch(crc32c(whole), (whole,), size, span, high, producer)
    crc = 0
    for part in parts:
        crc = crc32c(part, crc)
    return EncodedBatch(crc, parts, size, span, high, producer)


def numbered(batch: EncodedBatch, producer: tuple[int, int, int], more_flags: int = 0) -> EncodedBatch:
    """Return a batch of assemble() with another producer; only its header and checksum are new."""
    fields = list(CHECKED.unpack_from(batch.parts[0]))
    fields[2], fields[8], fields[5] = producer  # producer_id, producer_epoch, base_sequence
    fields[9] |= more_flags
    return _with_head(batch, fields, producer)


def retimed(batch: EncodedBatch, timestamp: int) -> EncodedBatch:
    """Return a batch whose records share one timestamp, with another timestamp."""
    fields = list(CHECKED.unpack_from(batch.parts[0]))
    fields[3] = fields[4] = timestamp  # base_timestamp, max_timestamp
    return _with_head(batch, fields, batch.producer)


def _with_head(batch: EncodedBatch, fields: list[int], producer: tuple[int, int, int]) -> EncodedBatch:
    head, *rest = batch.parts
    parts = (CHECKED.pack(*fields), memoryview(head)[CHECKED.size :], *rest)
    crc = 0
    for part in parts:
        crc = crc32c(part, crc)
    return EncodedBatch(crc, parts, batch.size, batch.span, fields[4], producer)


def _lay_out(columns: Columns) -> list[Buffer]:
    keys, values, headers = columns.keys, columns.values, columns.headers
    offsets = columns.offsets or _ZEROS
    small: list[Buffer] = [
        DESCRIPTOR.pack(
            keys.lengths.form, values.lengths.form, columns.timestamps.form, offsets.form,
            keys.nulls, values.nulls, headers is not None, keys.lengths.constant, values.lengths.constant,
        )
    ]  # fmt: skip
    stored = [
        offsets.data, columns.timestamps.data,
        keys.lengths.data, keys.bitmap, values.lengths.data, values.bitmap,
    ]  # fmt: skip
    blobs = [keys.blob, values.blob]
    if headers is not None:
        counts, names, contents = headers
        small.append(
            HEADERS_DESCRIPTOR.pack(
                counts.form, names.lengths.form, contents.lengths.form, contents.nulls,
                counts.constant, names.lengths.constant, contents.lengths.constant,
            )
        )  # fmt: skip
        stored += [counts.data, names.lengths.data, contents.lengths.data, contents.bitmap]
        blobs += [names.blob, contents.blob]
    for column in stored:
        small += (column, _PADDING[-len(column) % 8])
    return [b"".join(small), *blobs]


def _compress(body: list[Buffer], size: int, flags: int) -> tuple[list[Buffer], int, int]:
    """Compress the body unless that would make it larger."""
    packed = compression.get(flags & CODEC_MASK).compress(body)
    if COMPRESSED.size + len(packed) >= size:
        return body, size, flags & ~CODEC_MASK
    return [COMPRESSED.pack(size, len(packed)), packed], COMPRESSED.size + len(packed), flags


def reencode(
    batch: RecordBatch,
    span: int,
    base_offset: int | None = None,
    producer: tuple[int, int, int] | None = None,
) -> EncodedBatch:
    """Encode the records of a slice again, as a batch that takes `span` offsets.

    It keeps its base_offset and producer unless others are given.
    """
    header = batch.header
    columns = Columns(
        keys=pack_bytes(batch.keys(), "key"),
        values=pack_bytes(batch.values(), "value"),
        offsets=offset_deltas(batch.offsets - (header.base_offset if base_offset is None else base_offset)),
        headers=pack_headers(batch.headers()) if batch.body.headers else None,
    )
    timestamps = batch.timestamps if len(batch) else header.base_timestamp
    return assemble(
        columns, len(batch), timestamps, header.flags, span, producer or header.producer, batch.delete_horizon
    )


def encode_empty(span: int, timestamp: int) -> EncodedBatch:
    """Return an empty batch that takes `span` offsets: a placeholder for removed records."""
    return assemble(Columns(NO_STRINGS, NO_STRINGS), 0, timestamp, 0, span)


def offset_deltas(deltas: Int64s) -> IntColumn | None:
    """Return the column of offsets relative to the batch's; None if they are contiguous."""
    if len(deltas) == 0 or int(deltas[-1]) == len(deltas) - 1:  # they increase, so none is missing
        return None
    column = narrow(deltas)
    # a constant offset column means contiguous, so a lone record after a gap is written out
    return column if column.form != CONSTANT else IntColumn(U32, 0, deltas.astype(DTYPES[U32]).tobytes())


def pack_headers(headers: Sequence[Headers]) -> HeaderColumns:
    """Pack the headers of each record."""
    headers = [_checked_headers(index, of_record) for index, of_record in enumerate(headers)]
    flat = list(chain.from_iterable(headers))
    return HeaderColumns(
        counts=narrow_lengths(headers),
        names=pack_bytes([name.encode() for name, _ in flat], "header name"),
        values=pack_bytes([content for _, content in flat], "header value"),
    )


def _checked_headers(index: int, headers: Any) -> Headers:
    try:
        pairs = [(name, content) for name, content in headers]
        for name, content in pairs:
            name.encode()
            if content is not None:
                memoryview(content)
    except (TypeError, ValueError, AttributeError):
        reason = f"headers must be (str, bytes or None) pairs, not {headers!r:.80}"
        raise InvalidRecordError(index, reason) from None
    return pairs
