"""Narrow columns: integers at their smallest width, byte strings as lengths and one blob.

This module knows nothing about batches or files; encode.py and batch.py do.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterable, Sequence, Sized
from functools import lru_cache
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from commitlog.errors import InvalidRecordError
from commitlog.record import Buffer
from commitlog.speedups import native

Int64s = NDArray[np.int64]

# The form of an integer column. A constant column takes no bytes: the descriptor has its value.
CONSTANT, U8, U16, U32, U64 = range(5)
DTYPES = (np.dtype("u1"), np.dtype("u1"), np.dtype("<u2"), np.dtype("<u4"), np.dtype("<u8"))
WIDTHS = (0, 1, 2, 4, 8)

# Where the nulls of a byte column are.
NO_NULLS, ALL_NULL, BITMAP = range(3)


def padded(size: int) -> int:
    """Round up to 8 bytes, the alignment of everything on disk."""
    return (size + 7) & ~7


# --- writing -------------------------------------------------------------------------------------


class IntColumn(NamedTuple):
    """Unsigned integers to write: `constant` if form is CONSTANT, otherwise `data`."""

    form: int
    constant: int
    data: Buffer


class BytesColumn(NamedTuple):
    """Byte strings to write: lengths, the places of nulls, and all bytes in one blob."""

    lengths: IntColumn
    nulls: int
    bitmap: Buffer
    blob: Buffer


def narrow(values: NDArray[Any]) -> IntColumn:
    """Choose the smallest form for non-negative integers."""
    if len(values) == 0:
        return IntColumn(CONSTANT, 0, b"")
    return narrow_within(values, int(values.min()), int(values.max()))


def narrow_within(values: NDArray[Any], low: int, high: int) -> IntColumn:
    """Pack numbers whose minimum and maximum are known."""
    if low == high:
        return IntColumn(CONSTANT, low, b"")
    form = U8 if high < 1 << 8 else U16 if high < 1 << 16 else U32 if high < 1 << 32 else U64
    return IntColumn(form, 0, values.astype(DTYPES[form], copy=False).tobytes())


def narrow_lengths(items: Sequence[Sized]) -> IntColumn:
    """Choose the smallest form for the lengths of `items`; short lengths never become Python integers."""
    try:
        column = bytes(map(len, items))
    except ValueError:  # a length over 255
        return narrow(np.frombuffer(array("Q", map(len, items)), np.uint64))
    if not column:
        return IntColumn(CONSTANT, 0, b"")
    if column.count(column[0]) == len(column):
        return IntColumn(CONSTANT, column[0], b"")
    return IntColumn(U8, 0, column)


def pure_pack_bytes(items: Sequence[Buffer | None], what: str) -> BytesColumn:
    """Pack byte strings and nulls; `what` names the field in an InvalidRecordError."""
    try:
        lengths = narrow_lengths(items)  # type: ignore[arg-type]
        blob = b"".join(items)  # type: ignore[arg-type]
    except TypeError:
        return _pack_nullable(items, what)
    if len(blob) != total(lengths, len(items)):  # a memoryview of wider items: len() is not its size
        return pack_bytes([bytes(item) for item in items], what)  # type: ignore[arg-type]
    return BytesColumn(lengths, NO_NULLS, b"", blob)


def _native_pack_bytes(items: Sequence[Buffer | None], what: str) -> BytesColumn:
    assert native is not None
    packed = native.pack_strings(items)
    if packed is None:
        return pure_pack_bytes(items, what)
    form, constant, lengths, nulls, bitmap, blob = packed
    return BytesColumn(IntColumn(form, constant, lengths), nulls, bitmap, blob)


pack_bytes = pure_pack_bytes if native is None else _native_pack_bytes


def _pack_nullable(items: Sequence[Buffer | None], what: str) -> BytesColumn:
    for index, item in enumerate(items):
        if item is not None and not isinstance(item, bytes | bytearray | memoryview):
            raise InvalidRecordError(index, f"{what} must be bytes-like or None, not {type(item).__name__}")
    present = [item is not None for item in items]
    if not any(present):
        return BytesColumn(IntColumn(CONSTANT, 0, b""), ALL_NULL, b"", b"")
    filled = pack_bytes([b"" if item is None else bytes(item) for item in items], what)
    if all(present):  # the only odd thing was a memoryview with steps
        return filled
    return filled._replace(nulls=BITMAP, bitmap=np.packbits(present, bitorder="little").tobytes())


def total(column: IntColumn, count: int) -> int:
    """Return the sum of a column of `count` numbers."""
    if column.form == CONSTANT:
        return column.constant * count
    return int(np.frombuffer(column.data, DTYPES[column.form]).sum(dtype=np.int64))


def most(column: IntColumn) -> int:
    """Return an upper bound of the column's values, without reading narrow columns."""
    if column.form == CONSTANT:
        return column.constant
    if column.form == U8:
        return 255
    return int(np.frombuffer(column.data, DTYPES[column.form]).max())


def widened(column: IntColumn, count: int) -> Int64s:
    """Return the column as int64."""
    if column.form == CONSTANT:
        return np.full(count, column.constant, np.int64)
    return np.frombuffer(column.data, DTYPES[column.form]).astype(np.int64)


# --- reading -------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def _even_ends(step: int, count: int) -> NDArray[np.int32]:
    """Return where strings of one length end; batches of equal size share the array, to keep tables small."""
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(step)
    ends.flags.writeable = False
    return ends


class Ints:
    """An integer column as stored in a buffer; it is widened only on request."""

    __slots__ = ("constant", "count", "stored")

    def __init__(self, count: int, constant: int, stored: NDArray[Any] | None) -> None:
        self.count = count
        self.constant = constant
        self.stored = stored

    def array(self) -> Int64s:
        """Return the column as int64."""
        if self.stored is None:
            return np.full(self.count, self.constant, np.int64)
        return self.stored.astype(np.int64)

    def total(self) -> int:
        """Return the sum of the column."""
        if self.stored is None:
            return self.constant * self.count
        # measured: a third faster in 32 bits than in 64
        return int(self.stored.sum(dtype=np.uint32 if self.surely_short else np.int64))

    @property
    def surely_short(self) -> bool:
        """Whether the sum fits into 31 bits whatever the values are."""
        return self.stored is not None and self.stored.itemsize == 1 and self.count < 1 << 23

    def running(self) -> NDArray[np.int32]:
        """Return count + 1 sums: of the first 0, 1, 2, ... numbers."""
        if self.stored is None:
            return _even_ends(self.constant, self.count)
        sums = np.empty(self.count + 1, np.int32)
        sums[0] = 0
        np.add.accumulate(self.stored.astype(np.int32), out=sums[1:])
        return sums


class Strings:
    """A byte column as stored in a buffer. `ends` are kept if they were computed already."""

    __slots__ = ("_ends", "bitmap", "blob", "lengths", "nulls")

    def __init__(
        self,
        lengths: Ints,
        nulls: int,
        bitmap: memoryview | None,
        blob: memoryview,
        ends: NDArray[np.int32] | None = None,
    ) -> None:
        self.lengths = lengths
        self.nulls = nulls
        self.bitmap = bitmap
        self.blob = blob
        self._ends = ends

    def ends(self) -> NDArray[np.int32]:
        """Return the count + 1 offsets where strings start and end in the blob, as Arrow expects them."""
        return self.lengths.running() if self._ends is None else self._ends

    def present(self) -> NDArray[np.bool_]:
        """Return for each string whether it is present (True) or null (False)."""
        count = self.lengths.count
        if self.bitmap is not None:
            bits = np.frombuffer(self.bitmap, np.uint8)
            return np.unpackbits(bits, count=count, bitorder="little").view(np.bool_)
        return np.full(count, self.nulls == NO_NULLS)

    def has_bytes_of_nulls(self) -> bool:
        """Say whether a null has a length; no writer stores one."""
        return self.bitmap is not None and bool(self.lengths.array()[~self.present()].any())

    def lengths_or_minus_one(self) -> Int64s:
        """Return the lengths, -1 for a null."""
        lengths = self.lengths.array()
        if self.nulls != NO_NULLS:
            lengths[~self.present()] = -1
        return lengths

    def tolist(self, start: int, end: int) -> list[bytes | None]:
        """Return the strings of rows [start, end) as Python bytes, nulls as None."""
        if self.nulls == ALL_NULL:
            return [None] * (end - start)
        items = self._slices(start, end)
        if self.bitmap is None:
            return items
        return [item if there else None for item, there in zip(items, self.present()[start:end], strict=True)]

    def _slices(self, start: int, end: int) -> list[Any]:
        # measured for a string of 90 bytes: void array 48 ns, BytesIO.read 69 ns, slicing 136 ns
        stored = self.lengths.stored
        if stored is None:
            size = self.lengths.constant
            if size == 0:
                return [b""] * (end - start)
            items: list[Any] = np.frombuffer(self.blob[start * size : end * size], f"V{size}").tolist()
            return items
        first = int(stored[:start].sum(dtype=np.int64)) if start else 0
        chosen = stored[start:end]
        read = BytesIO(self.blob[first : first + int(chosen.sum(dtype=np.int64))]).read
        return list(map(read, chosen.tolist()))

    def item(self, row: int) -> bytes | None:
        """Return one string."""
        return self.tolist(row, row + 1)[0]


class SeparateStrings(Strings):
    """A byte column whose strings are Python objects already; its blob is made on the first access."""

    __slots__ = ("_items", "_joined")

    def __init__(self, lengths: Ints, nulls: int, bitmap: memoryview | None, items: list[bytes]) -> None:
        self.lengths = lengths
        self.nulls = nulls
        self.bitmap = bitmap
        self._ends = None
        self._items = items
        self._joined: memoryview | None = None

    @property
    def blob(self) -> memoryview:  # type: ignore[override]
        """The strings one after another."""
        if self._joined is None:
            self._joined = memoryview(b"".join(self._items))
        return self._joined

    def _slices(self, start: int, end: int) -> list[Any]:
        return self._items[start:end]


def as_int64(values: Iterable[int], what: str) -> Int64s:
    """Convert a caller's integers to int64; InvalidRecordError names one that cannot be converted."""
    given = values if isinstance(values, np.ndarray) and values.dtype.kind == "i" else list(values)
    found: Int64s | None = None
    with contextlib.suppress(TypeError, OverflowError):
        # measured: 17 ns per number; np.array of a list takes 35, and checking the types 25 more
        found = np.array(given, np.int64) if isinstance(given, np.ndarray) else _packed(given)
    if found is not None and found.ndim == 1 and (len(found) == 0 or int(found.min()) > 1):
        return found  # True and False would be 1 and 0
    for index, value in enumerate(given):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < 1 << 63:
            raise InvalidRecordError(index, f"{what} must be milliseconds since the epoch, not {value!r:.80}")
    return np.array(given, np.int64)


def _packed(numbers: Sequence[int]) -> Int64s:
    return np.frombuffer(array("q", numbers), np.int64)
