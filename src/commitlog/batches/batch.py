"""RecordBatch: a stored batch, read in place. Nothing is copied until Python objects are requested."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat
from struct import error as struct_error
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from commitlog import notebook
from commitlog.batches import compression
from commitlog.batches.columns import (
    ALL_NULL,
    BITMAP,
    CONSTANT,
    DTYPES,
    NO_NULLS,
    U32,
    U64,
    WIDTHS,
    Int64s,
    Ints,
    Strings,
    padded,
)
from commitlog.batches.format import (
    CODEC_MASK,
    COMPRESSED,
    DELETE_HORIZON,
    DESCRIPTOR,
    HEADER_BYTES,
    HEADERS_DESCRIPTOR,
    HORIZON,
    MAX_BODY_BYTES,
    MAX_HEADERS,
    BatchHeader,
    check,
)
from commitlog.batches.single import read_ones
from commitlog.errors import CorruptionError
from commitlog.record import Buffer, ConsumerRecord, Header, Record, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


_MOST_PADDING = 7  # everything on disk starts at a multiple of 8
_LEAST_ROW_BYTES = 16  # an offset and a timestamp, which every reader makes
LATEST_SAFE_TIME = (1 << 63) - (1 << 32)  # no delta of 32 bits leads from here beyond 63 bits


class HeaderStrings(NamedTuple):
    """The headers of all records of a batch: the count of each record, names and values."""

    counts: Ints
    names: Strings
    values: Strings


class Body(NamedTuple):
    """The columns of a batch, as stored in its buffer."""

    offsets: Ints | None
    timestamps: Ints
    keys: Strings
    values: Strings
    headers: HeaderStrings | None


class RecordBatch:
    """A batch, or the part of it that lies in an offset range; reads from the buffer it was decoded from.

    It may also stand for several stored ones, joined in memory: it has their columns, and no buffer.

    Invariant: `header.base_offset <= base_offset <= every offset < next_offset <= header.next_offset`.
    """

    __slots__ = (
        "_body",
        "_body_bytes",
        "_buffer",
        "_high",
        "_low",
        "_path",
        "base_offset",
        "header",
        "next_offset",
        "position",
    )

    def __init__(
        self,
        header: BatchHeader,
        buffer: memoryview,
        path: str,
        position: int,
        body: Body | None = None,
        body_bytes: int | None = None,
    ) -> None:
        self.header = header
        self.base_offset = header.base_offset
        self.next_offset = header.next_offset
        self.position = position
        self._low, self._high = 0, header.record_count  # the rows in the range
        self._buffer = buffer
        self._path = path
        self._body = body  # read already, or still to be read from the buffer
        self._body_bytes = body_bytes  # of several that were joined

    @classmethod
    def decode(
        cls, buffer: Buffer, position: int = 0, end: int | None = None, path: str = "<memory>", shift: int = 0
    ) -> Self:
        """Read the batch at `position`; CorruptionError if it is not whole and sound.

        `path` and `shift` (the file position of the buffer's first byte) only serve the error.
        """
        view = memoryview(buffer)
        header = check(view, position, len(view) if end is None else end, path, shift)
        return cls(header, view[position : position + header.size], path, position + shift)

    def __len__(self) -> int:
        return self._high - self._low

    def __repr__(self) -> str:
        return f"<RecordBatch [{self.base_offset}, {self.next_offset}) of {len(self)} at {self.position}>"

    def _repr_html_(self) -> str:
        return notebook.records(repr(self), self.records())

    @property
    def first_row(self) -> int:
        """The row of the stored batch where this part of it starts."""
        return self._low

    @property
    def size_bytes(self) -> int:
        """The size of the whole stored batch, or of those that were joined."""
        return self.header.size

    @property
    def body_bytes(self) -> int:
        """The size of the body before compression, as the batch states it; nothing is unpacked."""
        header = self.header
        if self._body_bytes is not None:
            return self._body_bytes
        if not header.flags & CODEC_MASK:
            return header.size - _body_start(header)
        return int(COMPRESSED.unpack_from(self._buffer, _body_start(header))[0])

    @property
    def unpacked_bytes(self) -> int:
        """Roughly the memory its records take: the batch before compression, at least 16 bytes per record."""
        return max(self.header.size, self.body_bytes, _LEAST_ROW_BYTES * len(self))

    @property
    def delete_horizon(self) -> int | None:
        """When its tombstones may be removed, in milliseconds; None before the first compaction of it."""
        if not self.header.flags & DELETE_HORIZON:
            return None
        return int(HORIZON.unpack_from(self._buffer, HEADER_BYTES)[0])

    @property
    def raw(self) -> memoryview:
        """The stored bytes of the whole batch; none if it was joined in memory from several."""
        return self._buffer

    @property
    def body(self) -> Body:
        """The columns of the whole stored batch, at their stored widths."""
        return self._body or self._read(want_ends=False)

    def body_with_ends(self) -> Body:
        """Return the body with the ends of its strings, which are computed while it is checked."""
        return self._body or self._read(want_ends=True)

    def _read(self, *, want_ends: bool) -> Body:
        try:
            raw, most_padding = raw_body(self.header, self._buffer)
            self._body = _read_body(self.header, raw, most_padding, want_ends)
        except (ValueError, IndexError, struct_error) as problem:
            raise CorruptionError(self._path, self.position, f"a malformed batch: {problem}") from None
        return self._body

    def check_contents(self) -> None:
        """Raise CorruptionError unless all of the batch follows the format: for batches from another machine.

        Columns are checked whenever they are read. This checks what readers do not rely on: that the header
        has the lowest and the highest timestamp, and that a null has no bytes.
        """
        header, body = self.header, self.body
        deltas = body.timestamps.stored
        spread = (0, 0) if deltas is None or len(deltas) == 0 else (int(deltas.min()), int(deltas.max()))
        if spread != (0, header.max_timestamp - header.base_timestamp):
            raise CorruptionError(
                self._path, self.position, "its header has other timestamps than its records"
            )
        columns = [body.keys, body.values] + ([] if body.headers is None else [body.headers.values])
        if any(column.has_bytes_of_nulls() for column in columns):
            raise CorruptionError(self._path, self.position, "a null that has bytes")

    def without_records(self) -> RecordBatch:
        """Return the batch as one that only takes its offsets."""
        part = RecordBatch(self.header, self._buffer, self._path, self.position, self._body, self._body_bytes)
        part._high = 0
        return part

    def slice(self, start: int, end: int) -> RecordBatch:
        """Return the records with offsets in [start, end), sharing this batch's buffer."""
        if start <= self.base_offset and end >= self.next_offset:
            return self
        body = self.body
        part = RecordBatch(self.header, self._buffer, self._path, self.position, body, self._body_bytes)
        part.base_offset = max(start, self.base_offset)
        part.next_offset = max(min(end, self.next_offset), part.base_offset)
        low, high = part.base_offset - self.header.base_offset, part.next_offset - self.header.base_offset
        if body.offsets is not None:
            low, high = np.searchsorted(body.offsets.array(), [low, high]).tolist()
        count = self.header.record_count  # a batch may span more offsets than it has records
        part._low, part._high = min(low, count), min(high, count)
        return part

    # --- columns as numpy arrays

    @property
    def offsets(self) -> Int64s:
        """The offset of each record."""
        deltas = self.body.offsets
        if deltas is None:
            return np.arange(self.header.base_offset + self._low, self.header.base_offset + self._high)
        return deltas.array()[self._low : self._high] + self.header.base_offset

    @property
    def timestamps(self) -> Int64s:
        """The timestamp of each record, in milliseconds since the epoch."""
        deltas = self.body.timestamps
        if deltas.stored is None:
            return np.full(len(self), self.header.base_timestamp)
        timestamps: Int64s = deltas.stored[self._low : self._high].astype(np.int64)
        timestamps += self.header.base_timestamp  # measured: a fifth less than np.add() into int64
        return timestamps

    @property
    def key_lengths(self) -> Int64s:
        """The length of each key, -1 for a null."""
        return self.body.keys.lengths_or_minus_one()[self._low : self._high]

    @property
    def value_lengths(self) -> Int64s:
        """The length of each value, -1 for a null."""
        return self.body.values.lengths_or_minus_one()[self._low : self._high]

    # --- columns as Python objects

    def keys(self) -> list[bytes | None]:
        """Return the keys."""
        return self.body.keys.tolist(self._low, self._high)

    def values(self) -> list[bytes | None]:
        """Return the values."""
        return self.body.values.tolist(self._low, self._high)

    def headers(self) -> list[tuple[Header, ...]]:
        """Return the headers of each record."""
        columns = self.body.headers
        if columns is None:
            return [()] * len(self)
        ends = np.cumsum(columns.counts.array())
        first = int(ends[self._low - 1]) if self._low else 0
        last = int(ends[self._high - 1]) if self._high else 0
        names = (bytes(name).decode() for name in columns.names.tolist(first, last))  # type: ignore[arg-type]
        pairs = zip(names, columns.values.tolist(first, last), strict=True)
        return [
            tuple(islice(pairs, count)) for count in columns.counts.array()[self._low : self._high].tolist()
        ]

    def records(self) -> Iterator[Record]:
        """Iterate over the records."""
        if self.header.record_count == 1 and len(self):
            found, _ = read_ones(self._buffer, 0, len(self._buffer), self.next_offset)
            if found:
                return iter(found)
        # measured per record: 160 ns; Record._make takes 241
        return map(tuple.__new__, repeat(Record), self._rows())

    def consumer_records(self, name: TopicPartition) -> Iterator[ConsumerRecord]:
        """Iterate over the records as ConsumerRecords of the partition `name`."""
        return map(tuple.__new__, repeat(ConsumerRecord), self._rows(*name))

    def _rows(self, *before: Any) -> Iterator[tuple[Any, ...]]:
        """Iterate over the fields of each record, preceded by these constants."""
        header, body = self.header, self.body
        offsets: Iterable[int]
        if body.offsets is None:
            offsets = range(header.base_offset + self._low, header.base_offset + self._high)
        else:
            offsets = self.offsets.tolist()
        constant_time = body.timestamps.stored is None
        timestamps = repeat(header.base_timestamp) if constant_time else self.timestamps.tolist()
        headers = repeat(()) if body.headers is None else self.headers()
        columns = (offsets, timestamps, self.keys(), self.values(), headers)
        return zip(*map(repeat, before), *columns, strict=False)

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return the records as an Arrow batch whose keys and values are this batch's own bytes."""
        from commitlog.batches import arrow

        return arrow.from_batch(self, columns)


# --- the bytes of the body -----------------------------------------------------------------------


def _body_start(header: BatchHeader) -> int:
    return HEADER_BYTES + HORIZON.size if header.flags & DELETE_HORIZON else HEADER_BYTES


def raw_body(header: BatchHeader, buffer: memoryview) -> tuple[memoryview, int]:
    """Return the uncompressed body, and how many bytes of padding may follow its last column."""
    body = buffer[_body_start(header) :]
    codec_id = header.flags & CODEC_MASK
    if codec_id == compression.NONE:
        if len(body) > MAX_BODY_BYTES + _MOST_PADDING:
            raise ValueError(f"a body of {len(body)} bytes")
        return body, _MOST_PADDING
    raw_size, stored_size = COMPRESSED.unpack_from(body)
    if raw_size > MAX_BODY_BYTES:
        raise ValueError(f"a body of {raw_size} bytes")
    if not 0 <= len(body) - COMPRESSED.size - stored_size <= _MOST_PADDING:
        raise ValueError(f"{stored_size} compressed bytes in a body of {len(body)}")
    raw = compression.unpack(codec_id, body[COMPRESSED.size : COMPRESSED.size + stored_size], raw_size)
    return memoryview(raw), 0


class _Cursor:
    """Walks through the columns of a body, each of which is padded to 8 bytes."""

    __slots__ = ("body", "position", "want_ends")

    def __init__(self, body: memoryview, position: int, want_ends: bool) -> None:
        self.body = body
        self.position = position
        self.want_ends = want_ends

    def take(self, size: int) -> memoryview:
        start = self.skip(size)
        return self.body[start : start + size]

    def skip(self, size: int) -> int:
        """Return the position of the next column, which takes `size` bytes."""
        start = self.position
        self.position = end = start + size
        if end > len(self.body):
            raise ValueError(f"a column of {size} bytes ends after the body")
        return start

    def ints(self, form: int, constant: int, count: int) -> Ints:
        if form == CONSTANT:
            return Ints(count, constant if count else 0, None)
        start = self.skip(padded(count * WIDTHS[form]))
        return Ints(count, 0, np.frombuffer(self.body, DTYPES[form], count, start))

    def bitmap(self, nulls: int, count: int) -> memoryview | None:
        return self.take(padded((count + 7) // 8)) if nulls == BITMAP else None

    def strings(self, lengths: Ints, nulls: int, bitmap: memoryview | None) -> Strings:
        if self.want_ends and lengths.surely_short:
            ends = lengths.running()
            found = Strings(lengths, nulls, bitmap, self.take(int(ends[-1])), ends)
        else:
            found = Strings(lengths, nulls, bitmap, self.take(lengths.total()))
        if nulls == ALL_NULL and len(found.blob):
            raise ValueError("nulls that have bytes")
        return found


def _read_body(header: BatchHeader, body: memoryview, most_padding: int, want_ends: bool) -> Body:
    """Return the columns of a body; ValueError if it does not follow docs/format.md.

    Whatever the bytes are, this allocates no more than MAX_RECORDS and MAX_HEADERS rows take.
    """
    count = header.record_count
    (key_form, value_form, time_form, offset_form, key_nulls, value_nulls, has_headers,
     key_length, value_length) = DESCRIPTOR.unpack_from(body)  # fmt: skip
    if key_form > U32 or value_form > U32 or offset_form > U32 or time_form > U64:
        raise ValueError("a column in a form that it cannot have")
    if key_nulls > BITMAP or value_nulls > BITMAP or has_headers > 1:
        raise ValueError("a column in a form that it cannot have")
    cursor = _Cursor(body, DESCRIPTOR.size + HEADERS_DESCRIPTOR.size * has_headers, want_ends)
    offsets = cursor.ints(offset_form, 0, count) if offset_form != CONSTANT else None
    if offsets is not None:
        _check_offsets(offsets, header.last_offset_delta)
    timestamps = cursor.ints(time_form, 0, count)
    if time_form == U64 or header.base_timestamp > LATEST_SAFE_TIME:
        _check_timestamps(timestamps, header)
    key_lengths = cursor.ints(key_form, key_length, count)
    key_bitmap = cursor.bitmap(key_nulls, count)
    value_lengths, value_bitmap = (
        cursor.ints(value_form, value_length, count),
        cursor.bitmap(value_nulls, count),
    )
    if has_headers:
        forms = HEADERS_DESCRIPTOR.unpack_from(body, DESCRIPTOR.size)
        count_form, name_form, content_form, nulls, *constants = forms
        if count_form > U32 or name_form > U32 or content_form > U32 or nulls > BITMAP:
            raise ValueError("a column of headers in a form that it cannot have")
        counts = cursor.ints(count_form, constants[0], count)
        total = counts.total()
        if total > MAX_HEADERS:
            raise ValueError(f"{total} headers")
        names = cursor.ints(name_form, constants[1], total)
        contents, bitmap = cursor.ints(content_form, constants[2], total), cursor.bitmap(nulls, total)
    keys = cursor.strings(key_lengths, key_nulls, key_bitmap)
    values = cursor.strings(value_lengths, value_nulls, value_bitmap)
    headers = None
    if has_headers:
        name_strings = cursor.strings(names, NO_NULLS, None)
        check_names(name_strings)
        headers = HeaderStrings(counts, name_strings, cursor.strings(contents, nulls, bitmap))
    if len(body) - cursor.position > most_padding:
        raise ValueError(f"{len(body) - cursor.position} bytes after the last column")
    return Body(offsets, timestamps, keys, values, headers)


def _check_offsets(deltas: Ints, last_delta: int) -> None:
    """Refuse offsets that do not increase or are beyond the batch."""
    stored = deltas.stored
    if stored is None or len(stored) == 0:
        return
    if int(stored[-1]) > last_delta or not (stored[1:] > stored[:-1]).all():
        raise ValueError("offsets that are not in order")


def _check_timestamps(deltas: Ints, header: BatchHeader) -> None:
    """Refuse timestamps that do not fit into 63 bits."""
    if deltas.stored is not None and len(deltas.stored):
        latest = header.base_timestamp + int(deltas.stored.max())
        if latest > header.max_timestamp:
            raise ValueError(f"a timestamp of {latest}")


def check_names(names: Strings) -> None:
    """Refuse header names that are not UTF-8; UnicodeDecodeError is a ValueError."""
    blob = bytes(names.blob)
    if blob.isascii():
        return
    blob.decode()
    starts = names.ends()[:-1]
    starts = starts[starts < len(blob)]
    # the whole is UTF-8, so each name is, unless one begins inside a character
    if ((np.frombuffer(blob, np.uint8)[starts] & 0xC0) == 0x80).any():
        raise ValueError("a header name begins inside a character")
