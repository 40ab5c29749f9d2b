"""Runs of small batches that follow one another, checked and read together.

numpy's fixed cost is paid once for a run instead of once for each batch, and a batch of a few records costs
more to set up than to read. A run never crosses damage: it ends before the first batch that is not sound, and
the caller learns what is wrong by reading that batch alone.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from commitlog.batches import compression
from commitlog.batches.batch import (
    LATEST_SAFE_TIME,
    Body,
    HeaderStrings,
    RecordBatch,
    check_names,
    raw_body,
)
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
    SeparateStrings,
    Strings,
)
from commitlog.batches.format import (
    ABORT,
    CODEC_MASK,
    COMMIT,
    CONTROL,
    DELETE_HORIZON,
    DESCRIPTOR,
    HEADER,
    HEADER_BYTES,
    HEADERS_DESCRIPTOR,
    HORIZON,
    KNOWN_FLAGS,
    LAST_OFFSET,
    LOG_APPEND_TIME,
    MAGIC,
    MAX_HEADERS,
    MAX_RECORDS,
    NO_PRODUCER,
    SMALLEST_BATCH_BYTES,
    STAMP,
    TRANSACTIONAL,
    BatchHeader,
)
from commitlog.checksum import crc32c
from commitlog.errors import MissingDependencyError
from commitlog.record import Buffer
from commitlog.speedups import native

_HEADER = np.dtype(
    [
        ("base_offset", "<i8"), ("leader_epoch", "<i4"), ("crc", "<u4"), ("magic", "<u4"), ("size", "<u4"),
        ("producer_id", "<i8"), ("base_timestamp", "<i8"), ("max_timestamp", "<i8"), ("base_sequence", "<i4"),
        ("record_count", "<u4"), ("last_offset_delta", "<u4"), ("producer_epoch", "<i2"), ("flags", "<u2"),
    ]
)  # fmt: skip
_DESCRIPTOR = np.dtype(
    [
        ("key_form", "u1"), ("value_form", "u1"), ("time_form", "u1"), ("offset_form", "u1"),
        ("key_nulls", "u1"), ("value_nulls", "u1"), ("has_headers", "u1"), ("unused", "u1"),
        ("key_length", "<u4"), ("value_length", "<u4"),
    ]
)  # fmt: skip
_COMPRESSED = np.dtype([("raw_size", "<u4"), ("stored_size", "<u4")])
_HEADERS_DESCRIPTOR = np.dtype(
    [
        ("count_form", "u1"), ("name_form", "u1"), ("content_form", "u1"), ("nulls", "u1"),
        ("count", "<u4"), ("name_length", "<u4"), ("content_length", "<u4"),
    ]
)  # fmt: skip
_SIZED = Struct("<16xII")  # magic and size, after the stamp
_WORD = 8  # batches start at multiples of it
# If the first few are smaller on average, batches are searched for by their magic; otherwise each leads to
# the next.
_SEARCHED_BYTES, _SAMPLED = 1024, 8
_MOST_PADDING = 7
_SMALL_ROWS = 1024  # larger batches are read alone: what they cost to set up does not matter
_MOST_ROWS, _LEAST_ROW_BYTES = 16384, 16  # an offset and a timestamp
_MOST_SPAN = 1 << 32  # of offsets: what last_offset_delta can hold
_NOT_REWRITABLE = CODEC_MASK | DELETE_HORIZON | TRANSACTIONAL | CONTROL
_NO_STRINGS = Strings(Ints(0, 0, None), ALL_NULL, None, memoryview(b""))
_NO_RECORDS = Body(None, Ints(0, 0, None), _NO_STRINGS, _NO_STRINGS, None)
_KNOWN_CODECS = np.array([number in compression.NAMES for number in range(CODEC_MASK + 1)])


class AbortedBatches(Protocol):
    """Knows which batches belong to aborted transactions."""

    def covers_each(self, producer_ids: list[int], offsets: list[int]) -> list[bool]:
        """Say of each transactional batch, given by its producer and its offset, whether it does."""


class Joining(NamedTuple):
    """Which batches may be joined: those of fewer than `small_bytes` bytes before compression, up to
    `most_bytes` together, which start before the offset `end_offset`.

    With `rewritable` the records may be stored again as one batch, so that none may name its producer, be
    compressed or have a delete horizon, and all or none of them must end by the offset `apart`. The records
    of transactions that `aborted` has are left out.
    """

    end_offset: int
    small_bytes: int
    most_bytes: int
    rewritable: bool = False
    apart: int = 1 << 63
    aborted: AbortedBatches | None = None

    def kind(self, header: tuple[int, ...]) -> tuple[object, ...] | None:
        """Return what batches that are joined must have in common; None if this one cannot be joined."""
        (offset, epoch, _, magic, size, producer_id, _, _, sequence, count, last, producer_epoch, flags) = (
            header
        )
        if magic != MAGIC or not SMALLEST_BATCH_BYTES <= size < self.small_bytes or count >= _SMALL_ROWS:
            return None
        named = (producer_id, producer_epoch, sequence) != NO_PRODUCER
        if offset >= self.end_offset or (self.rewritable and (named or flags & _NOT_REWRITABLE)):
            return None
        return epoch, flags & LOG_APPEND_TIME, offset + last < self.apart


class Run(NamedTuple):
    """Sound batches, each of which starts where the one before it ends, in bytes and in offsets."""

    starts: Int64s  # where each stands in the buffer
    headers: NDArray[Any]  # with the fields of BatchHeader
    end: int  # where the last one ends

    def first(self, count: int) -> Run:
        """Return the first `count` of these batches."""
        if count >= len(self.starts):
            return self
        end = self.starts[count] if count else self.starts[0]
        return Run(self.starts[:count], self.headers[:count], int(end))

    @property
    def next_offsets(self) -> Int64s:
        """The offset after each batch."""
        found: Int64s = self.headers["base_offset"] + self.headers["last_offset_delta"] + 1
        return found


def sound_run(buffer: Buffer, start: int, end: int) -> Run:
    """Return the sound batches that follow one another from `start` on and end at or before `end`."""
    view = memoryview(buffer)
    return _checked(_plausible_run(view, start, end), view)


def joinable_run(buffer: Buffer, start: int, end: int, wanted: Joining) -> Run:
    """Return the sound batches from `start` on that end at or before `end` and can be joined."""
    view = memoryview(buffer)
    return _checked(_alike(_plausible_run(view, start, end, _MOST_ROWS), wanted), view)


def extent_of_run(buffer: Buffer, start: int, end: int, wanted: Joining, fewest: int) -> tuple[int, int]:
    """Return the bytes of the first `fewest` batches that joinable_run() may take, 0 if there are fewer; and
    how many headers were looked at.
    """
    kind, place = None, start
    for seen in range(fewest):
        if end - place < SMALLEST_BATCH_BYTES:
            return 0, seen
        header = HEADER.unpack_from(buffer, place)
        found = wanted.kind(header)
        if found is None or kind not in (None, found):
            return 0, max(seen, 1)
        kind = found
        place += header[4]  # its size
    return place - start if place <= end else 0, fewest


def _alike(run: Run, wanted: Joining) -> Run:
    headers = run.headers
    if len(headers) == 0:
        return run
    flags, counts, base = headers["flags"], headers["record_count"], headers["base_offset"]
    good = (counts < _SMALL_ROWS) & (headers["size"] < wanted.small_bytes) & (base < wanted.end_offset)
    good &= (flags ^ flags[0]) & LOG_APPEND_TIME == 0
    good &= headers["leader_epoch"] == headers["leader_epoch"][0]
    good &= np.cumsum(counts) <= min(_MOST_ROWS, wanted.most_bytes // _LEAST_ROW_BYTES)
    good &= run.next_offsets - base[0] <= _MOST_SPAN
    if wanted.rewritable:
        ends_early = run.next_offsets <= wanted.apart
        good &= ends_early == ends_early[0]
        producer_id, producer_epoch, sequence = NO_PRODUCER
        good &= (headers["producer_id"] == producer_id) & (headers["producer_epoch"] == producer_epoch)
        good &= (headers["base_sequence"] == sequence) & (flags & _NOT_REWRITABLE == 0)
    return run if good.all() else run.first(int(good.argmin()))


def _plausible_run(view: memoryview, start: int, end: int, most: int | None = None) -> Run:
    """Return what seem to be batches that follow one another and end at or before `end`, at most `most` of
    them; their checksums are not looked at.
    """
    starts = _starts(view, start, end)[:most]
    headers = _gathered(view, starts, _HEADER)
    run = Run(starts, headers, int(starts[-1]) + int(headers["size"][-1]) if len(starts) else start)
    inside = starts + headers["size"] <= end  # a header may have changed since its size was looked at
    return _plausible(run if inside.all() else run.first(int(inside.argmin())))


def pure_starts(view: memoryview, start: int, end: int) -> Int64s:
    """Return where batches seem to start that end at or before `end`."""
    found, place = _walked(view, start, end, _SAMPLED)
    if place - start < _SEARCHED_BYTES * len(found):
        found, place = _searched(view, start, end)
    return np.concatenate([found, _walked(view, place, end)[0]])


def _searched(view: memoryview, start: int, end: int) -> tuple[Int64s, int]:
    """Return the starts of batches found by their magic, and where the last one ends; stop at a magic that is
    not where the sizes lead.
    """
    words = np.frombuffer(view, "<u8", (end - start) // _WORD, start)
    magics = np.flatnonzero((words & 0xFFFF_FFFF) == MAGIC)
    starts = magics - STAMP.size // _WORD
    sizes = (words[magics] >> np.uint64(32)).astype(np.int64)
    ends = starts + sizes // _WORD
    good = (sizes >= SMALLEST_BATCH_BYTES) & (sizes & 7 == 0) & (ends <= len(words))
    good &= starts == np.concatenate([[0], ends[:-1]])
    count = len(starts) if good.all() else int(good.argmin())
    return starts[:count] * _WORD + start, start + int(ends[count - 1]) * _WORD if count else start


def _walked(view: memoryview, start: int, end: int, most: int | None = None) -> tuple[Int64s, int]:
    """Return the starts of at most `most` batches, each found by the size of the one before, and where the
    last one ends.
    """
    starts: list[int] = []
    unpack = _SIZED.unpack_from
    while end - start >= SMALLEST_BATCH_BYTES and len(starts) != most:
        magic, size = unpack(view, start)
        if magic != MAGIC or not SMALLEST_BATCH_BYTES <= size <= end - start or size & 7:
            break
        starts.append(start)
        start += size
    return np.array(starts, np.int64), start


def _native_starts(view: memoryview, start: int, end: int) -> Int64s:
    assert native is not None
    return np.frombuffer(native.batch_starts(view, start, end), np.int64)


_starts = pure_starts if native is None else _native_starts


def _gathered(view: Buffer, places: Int64s, kind: np.dtype[Any]) -> NDArray[Any]:
    """Return what stands at each of these places, which all lie in the buffer."""
    if len(places) == 0:
        return np.empty(0, kind)
    first = int(places[0])
    words = np.frombuffer(view, "<u8", (len(view) - first) // _WORD, first)
    rows = words[((places - first) // _WORD)[:, None] + np.arange(kind.itemsize // _WORD)]
    found: NDArray[Any] = rows.view(kind)[:, 0]
    return found


def _plausible(run: Run) -> Run:
    """Return the batches up to the first whose header cannot be true, or that does not follow."""
    headers = run.headers
    size, flags, count = headers["size"], headers["flags"], headers["record_count"]
    base, last = headers["base_offset"], headers["last_offset_delta"].astype(np.int64)
    good = (size >= SMALLEST_BATCH_BYTES) & (size & 7 == 0) & (count <= MAX_RECORDS) & (count <= last + 1)
    good &= (flags & (0xFFFF ^ KNOWN_FLAGS) == 0) & _KNOWN_CODECS[flags & CODEC_MASK]
    good &= (base >= 0) & (base <= LAST_OFFSET - last)
    if (flags & CONTROL).any():
        good &= (flags & CONTROL == 0) | _possible_markers(headers)
    good[1:] &= base[1:] == base[:-1] + last[:-1] + 1
    return run if good.all() else run.first(int(good.argmin()))


def _possible_markers(headers: NDArray[Any]) -> NDArray[np.bool_]:
    """Say of each control batch whether it is what a marker looks like; is_possible_marker() is for one."""
    good: NDArray[np.bool_] = headers["flags"] & (TRANSACTIONAL | CODEC_MASK) == TRANSACTIONAL
    good &= (headers["record_count"] == 0) & (headers["last_offset_delta"] == 0)
    good &= (headers["producer_id"] >= 0) & (headers["producer_epoch"] >= 0)
    good &= (headers["base_sequence"] == ABORT) | (headers["base_sequence"] == COMMIT)
    return good


def _checked(run: Run, view: memoryview) -> Run:
    """Return the batches up to the first whose checksum does not match."""
    headers, starts = run.headers, run.starts
    crcs = _crcs(view, starts + STAMP.size, starts + headers["size"])
    base = headers["base_offset"]
    folded = (base ^ base >> 32 ^ headers["leader_epoch"]).astype(np.uint32)
    good = crcs ^ folded == headers["crc"]
    return run if good.all() else run.first(int(good.argmin()))


def pure_crcs(view: memoryview, starts: Int64s, ends: Int64s) -> NDArray[np.uint32]:
    """Return the crc32c of each part [start, end) of a buffer."""
    parts = zip(starts.tolist(), ends.tolist(), strict=True)
    return np.array([crc32c(view[start:end]) for start, end in parts], np.uint32)


def _native_crcs(view: memoryview, starts: Int64s, ends: Int64s) -> NDArray[np.uint32]:
    assert native is not None
    return np.frombuffer(native.crc32c_many(view, starts, ends), np.uint32)


_crcs = pure_crcs if native is None else _native_crcs


# --- columns -------------------------------------------------------------------------------------


class _MalformedError(Exception):
    """The run must end before the batch with this number: it, or one before it, is not sound."""

    def __init__(self, number: int) -> None:
        self.number = number


def _refuse(bad: NDArray[np.bool_]) -> None:
    if bad.any():
        raise _MalformedError(int(bad.argmax()))


def joined(
    run: Run, buffer: Buffer, path: str, shift: int, wanted: Joining
) -> tuple[RecordBatch, Run] | None:
    """Return the records of a run as one batch in memory, and the stored batches it stands for.

    These are fewer than the run has where one is malformed or unpacks to too many bytes: None, if that leaves
    no two. The run is one of joinable_run(). `shift` is the file position of the buffer's first byte.
    """
    view = memoryview(buffer)
    packed = run.headers["flags"] & CODEC_MASK != 0
    if packed.any():
        sizes = np.where(packed, _gathered(view, _bodies(run), _COMPRESSED)["raw_size"], run.headers["size"])
        good = (sizes < wanted.small_bytes) & (np.cumsum(sizes, dtype=np.int64) <= wanted.most_bytes)
        run = run if good.all() else run.first(int(good.argmin()))
    while len(run.starts) > 1:
        counts = _counts(run.headers, wanted.aborted)
        try:
            return _joined(run, counts, view, path, shift), run
        except _MalformedError as problem:
            run = run.first(int(np.flatnonzero(counts)[problem.number]))
    return None


def _counts(headers: NDArray[Any], aborted: AbortedBatches | None) -> NDArray[np.bool_]:
    """Say of each batch whether its records count: it is no marker, and its transaction is not aborted."""
    flags = headers["flags"]
    counts: NDArray[np.bool_] = flags & CONTROL == 0
    if aborted is not None and (flags & TRANSACTIONAL).any():
        transactional = np.flatnonzero(counts & (flags & TRANSACTIONAL != 0))
        ids, offsets = headers["producer_id"][transactional], headers["base_offset"][transactional]
        counts[transactional] = np.logical_not(aborted.covers_each(ids.tolist(), offsets.tolist()))
    return counts


def _bodies(run: Run) -> Int64s:
    """Return where the body of each batch starts."""
    horizons = (run.headers["flags"] & DELETE_HORIZON) // DELETE_HORIZON
    return run.starts + HEADER_BYTES + horizons.astype(np.int64) * HORIZON.size


def _joined(run: Run, counts: NDArray[np.bool_], view: memoryview, path: str, shift: int) -> RecordBatch:
    """Return the records of those batches of a run that count, as one that takes the offsets of all."""
    first, after = run.headers[0], int(run.next_offsets[-1])
    base, start = int(first["base_offset"]), int(run.starts[0])
    size, position = run.end - start, shift + start
    if not counts.all():
        run = Run(run.starts[counts], run.headers[counts], run.end)
    headers = run.headers
    if len(headers) == 0:
        low, high = int(first["base_timestamp"]), int(first["max_timestamp"])
        body, body_bytes = _NO_RECORDS, 0
    else:
        low, high = int(headers["base_timestamp"].min()), int(headers["max_timestamp"].max())
        bodies = _raw_bodies(run, view)
        body, body_bytes = _Cursors(bodies).body(headers, low, base), int((bodies.ends - bodies.starts).sum())
    header = BatchHeader(
        base, int(first["leader_epoch"]), 0, MAGIC, size, *(-1, low, high, -1),
        int(headers["record_count"].sum()), after - base - 1, -1, int(first["flags"]) & LOG_APPEND_TIME,
    )  # fmt: skip
    return RecordBatch(header, memoryview(b""), path, position, body, body_bytes)


class _Bodies(NamedTuple):
    """Where the bodies of batches lie in a buffer, before compression, and how much padding each may have."""

    view: memoryview
    starts: Int64s
    ends: Int64s
    most_padding: Int64s


def _raw_bodies(run: Run, view: memoryview) -> _Bodies:
    """Return the bodies of a run, in the buffer itself unless one is compressed."""
    if (run.headers["flags"] & CODEC_MASK).any():
        return _unpacked(run, view)
    ends = run.starts + run.headers["size"]
    return _Bodies(view, _bodies(run), ends, np.full(len(ends), _MOST_PADDING))


def _unpacked(run: Run, view: memoryview) -> _Bodies:
    pieces: list[Buffer] = []
    sizes, paddings = [], []
    for number, (start, fields) in enumerate(zip(run.starts.tolist(), run.headers.tolist(), strict=True)):
        header = BatchHeader(*fields)
        try:
            body, most_padding = raw_body(header, view[start : start + header.size])
        except (ValueError, IndexError, struct_error, MissingDependencyError):
            raise _MalformedError(number) from None
        pieces += (body, bytes(-len(body) % _WORD))
        sizes.append(len(body))
        paddings.append(most_padding)
    lengths = np.array(sizes, np.int64)
    ends = np.cumsum(lengths + 7 & ~7)
    starts = ends - (lengths + 7 & ~7)
    return _Bodies(memoryview(b"".join(pieces)), starts, starts + lengths, np.array(paddings))


def parts(data: bytes, starts: Int64s, ends: Int64s) -> list[bytes]:
    """Return the parts [start, end) of a byte string."""
    return [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def pure_joined_parts(data: bytes, starts: Int64s, ends: Int64s) -> bytes:
    """Return the parts [start, end) of a byte string, one after another."""
    return b"".join(parts(data, starts, ends))


_joined_parts = pure_joined_parts if native is None else native.join_parts


class _Cursors:
    """Walks the columns of many bodies at once; like batch.py's cursor, which walks those of one."""

    def __init__(self, bodies: _Bodies) -> None:
        first, last = int(bodies.starts[0]), int(bodies.ends[-1])
        # measured: a slice of bytes costs half of one of a memoryview
        self._data = bytes(bodies.view[first:last])
        self._at = bodies.starts - first
        self._ends = bodies.ends - first
        self._most_padding = bodies.most_padding

    def body(self, headers: NDArray[Any], base_timestamp: int, base_offset: int) -> Body:
        """Return the columns of all bodies, one after another."""
        counts = headers["record_count"].astype(np.int64)
        _refuse(self._ends - self._at < DESCRIPTOR.size)
        forms = _gathered(self._data, self._at, _DESCRIPTOR)
        has_headers = forms["has_headers"]
        _refuse(has_headers > 1)
        for name in ("key_form", "value_form", "offset_form"):
            _refuse(forms[name] > U32)
        _refuse(forms["time_form"] > U64)
        described = self._at + DESCRIPTOR.size
        self._at = described + HEADERS_DESCRIPTOR.size * has_headers
        _refuse(self._at > self._ends)
        rows = _Rows(counts)
        offsets = self._offsets(forms["offset_form"], headers, base_offset, rows)
        timestamps = self._timestamps(forms["time_form"], headers, base_timestamp, rows)
        key_lengths = self._ints(forms["key_form"], forms["key_length"], rows)
        keys_present = self._present(forms["key_nulls"], rows)
        value_lengths = self._ints(forms["value_form"], forms["value_length"], rows)
        values_present = self._present(forms["value_nulls"], rows)
        with_headers = bool(has_headers.any())
        if with_headers:
            more = np.zeros(len(counts), _HEADERS_DESCRIPTOR)  # no headers, where there is no descriptor
            more[has_headers == 1] = _gathered(self._data, described[has_headers == 1], _HEADERS_DESCRIPTOR)
            for name in ("count_form", "name_form", "content_form"):
                _refuse(more[name] > U32)
            header_counts = self._ints(more["count_form"], more["count"], rows)
            pairs = _Rows(rows.totals(header_counts))
            _refuse(pairs.counts > MAX_HEADERS)
            _refuse(np.cumsum(pairs.counts) > MAX_HEADERS)
            name_lengths = self._ints(more["name_form"], more["name_length"], pairs)
            content_lengths = self._ints(more["content_form"], more["content_length"], pairs)
            contents_present = self._present(more["nulls"], pairs)
        keys = self._strings(key_lengths, forms["key_nulls"], keys_present, rows)
        values = self._strings(value_lengths, forms["value_nulls"], values_present, rows)
        pair_strings = None
        if with_headers:
            nulls = np.full(len(counts), NO_NULLS)
            names = self._strings(name_lengths, nulls, None, pairs)
            try:
                check_names(names)
            except ValueError:
                raise _MalformedError(len(counts) // 2) from None  # one of them is: fewer may be sound
            contents = self._strings(content_lengths, more["nulls"], contents_present, pairs)
            pair_strings = HeaderStrings(header_counts, names, contents)
        left = self._ends - self._at
        _refuse((left < 0) | (left > self._most_padding))
        return Body(offsets, timestamps, keys, values, pair_strings)

    def _take(self, sizes: Int64s) -> list[bytes]:
        """Return the next `sizes` bytes of each body."""
        return parts(self._data, *self._next(sizes))

    def _take_joined(self, sizes: Int64s) -> bytes:
        """Return the next `sizes` bytes of each body, one after another."""
        return _joined_parts(self._data, *self._next(sizes))

    def _next(self, sizes: Int64s) -> tuple[Int64s, Int64s]:
        starts, ends = self._at, self._at + sizes
        _refuse(ends > self._ends)
        self._at = ends
        return starts, ends

    def _ints(self, forms: NDArray[np.uint8], constants: NDArray[Any], rows: _Rows) -> Ints:
        """Return a column of all bodies."""
        form = int(forms[0])
        if (forms == form).all():
            if form != CONSTANT:
                return Ints(rows.total, 0, self._stored(form, rows.counts))
            if (constants == constants[0]).all():
                return Ints(rows.total, int(constants[0]) if rows.total else 0, None)
            return Ints(rows.total, 0, np.repeat(constants.astype(np.int64), rows.counts))
        numbers = np.repeat(np.where(forms == CONSTANT, constants, 0).astype(np.int64), rows.counts)
        for form in range(CONSTANT + 1, U64 + 1):
            chosen = forms == form
            if chosen.any():
                stored = self._stored(form, np.where(chosen, rows.counts, 0))
                numbers[np.repeat(chosen, rows.counts)] = stored
        return Ints(rows.total, 0, numbers)

    def _stored(self, form: int, counts: Int64s) -> NDArray[Any]:
        used = counts * WIDTHS[form]
        data = self._take_joined(used)
        self._at = self._at + (-used & 7)
        return np.frombuffer(data, DTYPES[form])

    def _present(self, nulls: NDArray[np.uint8], rows: _Rows) -> NDArray[np.bool_] | None:
        """Return for each row whether it is there, None if all are; nothing is read but bitmaps."""
        _refuse(nulls > BITMAP)
        if (nulls == NO_NULLS).all():
            return None
        present = np.repeat(nulls == NO_NULLS, rows.counts)
        mapped = nulls == BITMAP
        if mapped.any():
            sizes = np.where(mapped, (rows.counts + 63 & ~63) // 8, 0)
            stored = np.frombuffer(self._take_joined(sizes), np.uint8)
            bits = np.unpackbits(stored, bitorder="little").view(np.bool_)
            wanted = np.repeat(mapped, rows.counts)
            firsts = np.cumsum(sizes * 8) - sizes * 8 - rows.starts
            present[wanted] = bits[(np.repeat(firsts, rows.counts) + np.arange(rows.total))[wanted]]
        return present

    def _strings(
        self, lengths: Ints, nulls: NDArray[Any], present: NDArray[np.bool_] | None, rows: _Rows
    ) -> Strings:
        totals = rows.totals(lengths)
        _refuse((nulls == ALL_NULL) & (totals > 0))
        # measured: a record's strings are made one by one here, or compiled code joins them 10 times faster
        apart = native is None and (rows.counts == 1).all()
        taken = self._take(totals) if apart else self._take_joined(totals)
        if (nulls == ALL_NULL).all():
            return Strings(Ints(rows.total, 0, None), ALL_NULL, None, memoryview(b""))
        kind, bitmap = NO_NULLS, None
        if present is not None:
            kind, bitmap = BITMAP, memoryview(np.packbits(present, bitorder="little").tobytes())
        if isinstance(taken, list):
            return SeparateStrings(lengths, kind, bitmap, taken)
        return Strings(lengths, kind, bitmap, memoryview(taken))

    def _offsets(
        self, forms: NDArray[np.uint8], headers: NDArray[Any], base_offset: int, rows: _Rows
    ) -> Ints | None:
        """Return the offsets of all records, relative to `base_offset`; None if they are contiguous."""
        spans = headers["last_offset_delta"].astype(np.int64) + 1
        bases = headers["base_offset"] - base_offset
        if (forms == CONSTANT).all() and (rows.counts == spans).all() and (bases == rows.starts).all():
            return None
        numbers = np.arange(rows.total)
        numbers += np.repeat(bases - rows.starts, rows.counts)
        for form in range(CONSTANT + 1, U32 + 1):
            chosen = forms == form
            if chosen.any():
                counts = np.where(chosen, rows.counts, 0)
                stored = self._stored(form, counts)
                numbers[np.repeat(chosen, rows.counts)] = stored + np.repeat(bases, counts)
        if (forms != CONSTANT).any():  # otherwise they grow, and no batch has more records than offsets
            self._check_offsets(numbers, bases + spans, rows)
        return Ints(rows.total, 0, numbers)

    def _check_offsets(self, numbers: Int64s, ends: Int64s, rows: _Rows) -> None:
        """Refuse a batch whose offsets do not grow, or leave it."""
        bad = numbers >= np.repeat(ends, rows.counts)
        bad[1:] |= numbers[1:] <= numbers[:-1]
        if bad.any():
            raise _MalformedError(int(np.searchsorted(rows.starts + rows.counts, bad.argmax(), "right")))

    def _timestamps(
        self, forms: NDArray[np.uint8], headers: NDArray[Any], base_timestamp: int, rows: _Rows
    ) -> Ints:
        """Return the timestamps of all records, relative to `base_timestamp`."""
        bases, latest = headers["base_timestamp"], headers["max_timestamp"]
        _refuse((bases < 0) | (latest < bases))
        deltas = self._ints(forms, np.zeros(len(forms), np.int64), rows)
        if (forms == U64).any() or int(bases.max()) > LATEST_SAFE_TIME:
            _refuse(rows.highest(deltas) > (latest - bases).astype(np.uint64))
        if (bases == base_timestamp).all():
            return deltas
        numbers = np.repeat(bases - base_timestamp, rows.counts)
        return Ints(rows.total, 0, numbers if deltas.stored is None else numbers + deltas.array())


class _Rows:
    """How many rows of a column each batch has."""

    def __init__(self, counts: Int64s) -> None:
        ends = np.cumsum(counts)
        self.counts = counts
        self.starts = ends - counts
        self.total = int(ends[-1])

    def totals(self, numbers: Ints) -> Int64s:
        """Return the sum of each batch's rows."""
        if numbers.stored is None:
            return self.counts * numbers.constant
        sums = np.zeros(self.total + 1, np.int64)
        np.cumsum(numbers.stored, out=sums[1:])
        found: Int64s = sums[self.starts + self.counts] - sums[self.starts]
        return found

    def highest(self, numbers: Ints) -> NDArray[np.uint64]:
        """Return the highest number of each batch's rows."""
        highest = np.zeros(len(self.counts), np.uint64)
        if numbers.stored is not None:
            batches = np.repeat(np.arange(len(highest)), self.counts)
            np.maximum.at(highest, batches, numbers.stored.astype(np.uint64))
        return highest
