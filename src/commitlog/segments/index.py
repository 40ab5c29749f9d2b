"""Sparse indexes: from an offset, or a timestamp, to the position of a batch at or before it.

An index is derived from its .log file: it may be lost, and then it is rebuilt. Its file is longer than
its entries, padded with zeros, and is never cut while somebody may have it mapped. An entry never has
position 0 (the segment's start needs none), so the first zero position is the end of the index.

The first 24 bytes are the seal, zero while the segment is active: size and next_offset of the sealed
segment, and count and checksum of the entries. A sealed index whose seal does not hold is not believed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from bisect import bisect_left, bisect_right
from struct import Struct
from typing import NamedTuple, Self

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from commitlog import files

_LOW = 0xFFFF_FFFF
_NO_LIMIT = 1 << 62
_FIRST_BYTES, _STEP_BYTES = 4096, 64 * 1024
_SEAL = Struct("<3Q")  # size_bytes, next_offset, digest
_SEAL_BYTES = _SEAL.size


def base_offset_of(path: str) -> int:
    """Return the base_offset that a segment's file is named by; ValueError if it is not one."""
    return int(os.path.basename(path).partition(".")[0])


def sealed_end(path: str, size_bytes: int) -> int | None:
    """Return the offset after a sealed segment of this size, as its index at `path` says, unchecked."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        raw = os.pread(fd, _SEAL_BYTES, 0)
    finally:
        os.close(fd)
    if len(raw) < _SEAL_BYTES:
        return None
    sealed_bytes, next_offset, _ = _SEAL.unpack(raw)
    return int(next_offset) if sealed_bytes == size_bytes else None


class IndexEntry(NamedTuple):
    """`offset` is the base_offset of the batch at `position`; `timestamp` is None in an offset index."""

    offset: int
    position: int
    timestamp: int | None = None


class Index:
    """Entries in a mapped file, sorted by what they are looked up by; safe to read while it grows.

    On disk an entry is `words` little-endian 64-bit words; the last holds the offset relative to the
    segment's base (high half) and the position (low half), and is stored last, so that a reader in
    another process never sees half an entry.
    """

    words = 1
    suffix = ".index"

    def __init__(self, path: str, base_offset: int, view: mmap.mmap | None, limit_bytes: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self._limit_bytes = limit_bytes  # 0: opened for reading
        self._anonymous = False
        self._remap(view)
        self._count = 0
        self._count = self._find_count()

    @classmethod
    def open(cls, path: str) -> Self:
        """Open for reading; FileNotFoundError if there is none."""
        return cls(path, base_offset_of(path), files.map_file(path), 0)

    @classmethod
    def open_writable(cls, path: str, limit_bytes: int) -> Self:
        """Open for appending, creating it if need be."""
        return cls(path, base_offset_of(path), files.map_writable(path, _FIRST_BYTES), limit_bytes)

    @classmethod
    def in_memory(cls, path: str) -> Self:
        """Make an empty index that is never written to disk."""
        index = cls(path, base_offset_of(path), mmap.mmap(-1, _FIRST_BYTES), _NO_LIMIT)
        index._anonymous = True
        return index

    def _remap(self, view: mmap.mmap | None) -> None:
        width = 8 * self.words
        whole = memoryview(view or b"")
        self._map = view
        self._capacity = max(len(whole) - _SEAL_BYTES, 0) // width
        self._seal = whole[:_SEAL_BYTES].cast("Q") if len(whole) >= _SEAL_BYTES else None
        self._cells = whole[_SEAL_BYTES : _SEAL_BYTES + self._capacity * width].cast("Q")

    def _find_count(self) -> int:
        """Count the entries up to the first zero position; positions only grow, so a bisection finds it."""
        cells, words = self._cells, self.words
        low, high = self._count, self._capacity
        while low < high:
            middle = (low + high) // 2
            if cells[middle * words + words - 1] & _LOW:
                low = middle + 1
            else:
                high = middle
        return low

    # --- reading

    def __len__(self) -> int:
        if self._limit_bytes == 0:  # somebody else may be writing it
            self._count = self._find_count()
            while self._count == self._capacity and os.path.getsize(self.path) > len(self._map or b""):
                self._remap(files.map_file(self.path))
                self._count = self._find_count()
        return self._count

    def __getitem__(self, number: int) -> IndexEntry:
        if not 0 <= number < self._count:
            raise IndexError(f"{self.path} has {self._count} entries, not {number + 1}")
        place = self._cells[number * self.words + self.words - 1]
        return IndexEntry(self.base_offset + (place >> 32), place & _LOW)

    def last(self) -> IndexEntry | None:
        """Return the last entry, None if there is none."""
        count = len(self)
        return self[count - 1] if count else None

    def places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return offsets and positions of all entries."""
        count = len(self)  # first: it may map the file anew
        cells = np.frombuffer(self._cells, np.uint64)[self.words - 1 : count * self.words : self.words]
        return (cells >> np.uint64(32)).astype(np.int64) + self.base_offset, (cells & np.uint64(_LOW)).astype(
            np.int64
        )

    def in_order(self) -> bool:
        """Say whether offsets and positions only grow, as they must."""
        offsets, positions = self.places()
        grows = (np.diff(offsets) > 0).all() and (np.diff(positions) > 0).all()
        return bool(grows and not (positions & 7).any())

    def seal_holds(self, size_bytes: int) -> bool:
        """Say whether the index is complete and unharmed for a sealed segment of this size."""
        seal = self._seal
        return seal is not None and seal[0] == size_bytes and seal[2] == self._digest(seal[0], seal[1])

    def _digest(self, size_bytes: int, next_offset: int) -> int:
        """Return the count of entries, and a checksum of them and of the seal, in one word."""
        count = len(self)
        entries = crc32c(self._cells[: count * self.words].cast("B"))
        return crc32c(_SEAL.pack(size_bytes, next_offset, count), entries) << 32 | count

    # --- writing

    def seal(self, size_bytes: int, next_offset: int) -> None:
        """Say that the segment is complete, with its size and the offset after it, and this index too."""
        assert self._seal is not None
        self._seal[1], self._seal[2] = next_offset, self._digest(size_bytes, next_offset)
        self._seal[0] = size_bytes

    def unseal(self) -> None:
        """Say that entries may come."""
        assert self._seal is not None
        self._seal[0] = self._seal[1] = self._seal[2] = 0

    def catch_up(self) -> None:
        """Take note of the entries that another process wrote."""
        self._count = self._find_count()
        while self._count == self._capacity and os.path.getsize(self.path) > len(self._map or b""):
            self._remap(files.map_writable(self.path, 0))
            self._count = self._find_count()

    def has_room(self, entries: int) -> bool:
        """Say whether so many entries more fit in segment_index_bytes."""
        return (self._count + entries) * 8 * self.words <= self._limit_bytes

    def make_room(self, entries: int = 1) -> None:
        """Reserve blocks for so many entries more; the only step of an append to an index that can fail."""
        while self._count + entries > self._capacity:
            size = len(self._map or b"")
            if self._anonymous:
                larger = mmap.mmap(-1, 2 * size)
                larger[:size] = (self._map or b"")[:]
            else:
                larger = files.map_writable(self.path, size + min(size, _STEP_BYTES))
            self._remap(larger)

    def _push(self, offset: int, position: int, *before: int) -> None:
        """Store an entry: the words `before` its place first, the place, which makes it count, last."""
        cells, relative, first = self._cells, offset - self.base_offset, self._count * self.words
        last = cells[first - 1] if first else 0
        if first and (relative <= last >> 32 or position <= last & _LOW):
            raise ValueError(f"{self.path}: entry {offset} at {position} is not after {self.last()}")
        if not self.has_room(1):
            raise ValueError(f"{self.path} is full")
        if self._count == self._capacity:
            self.make_room()
            cells = self._cells
        for word in before:
            cells[first] = word
            first += 1
        cells[first] = relative << 32 | position
        self._count += 1

    def clear(self) -> None:
        """Remove everything, whatever it is."""
        if self._map is not None:
            self._map[:] = bytes(len(self._map))
        self._count = 0

    def truncate(self, position: int) -> None:
        """Remove the entries at or after `position` in the log."""
        cells, words = self._cells, self.words
        keep = bisect_left(range(self._count), position, key=lambda number: self[number].position)
        for cell in range(keep * words, self._count * words):
            cells[cell] = 0
        self._count = keep

    def close(self) -> None:
        """Let the map go."""
        self._cells.release()
        if self._seal is not None:
            self._seal.release()
        if self._map is not None:
            with contextlib.suppress(BufferError):  # somebody still has a view of it
                self._map.close()

    def sync(self) -> None:
        """Make the entries durable."""
        if self._map is not None:
            files.sync_map(self._map)


class OffsetIndex(Index):
    """offset -> position: `<base_offset>.index`."""

    def lookup(self, offset: int) -> IndexEntry:
        """Return the greatest entry at or below `offset`, or the segment's start if there is none."""
        relative = offset - self.base_offset
        if relative < 0:
            return IndexEntry(self.base_offset, 0)
        count = len(self)  # first: it may map the file anew
        number = bisect_right(self._cells, (relative << 32) | _LOW, 0, count)
        return self[number - 1] if number else IndexEntry(self.base_offset, 0)

    def lookup_position(self, position: int) -> IndexEntry:
        """Return the greatest entry at or before `position`, or the segment's start if there is none."""
        number = bisect_right(self._cells, position, 0, len(self), key=lambda cell: cell & _LOW)
        return self[number - 1] if number else IndexEntry(self.base_offset, 0)

    def append(self, offset: int, position: int) -> None:
        """Add an entry; its offset and position must lie after the last one's."""
        self._push(offset, position)


class TimeIndex(Index):
    """timestamp -> position: `<base_offset>.timeindex`.

    An entry (timestamp, offset, position) says: no record before that batch is as late as `timestamp`.
    """

    words = 2
    suffix = ".timeindex"

    def __getitem__(self, number: int) -> IndexEntry:
        return super().__getitem__(number)._replace(timestamp=self._cells[2 * number])

    def lookup(self, timestamp: int) -> IndexEntry:
        """Return the greatest entry at or below `timestamp`, or the segment's start if there is none."""
        count = len(self)  # first: it may map the file anew
        cells = self._cells
        number = bisect_right(range(count), timestamp, key=lambda entry: cells[2 * entry])
        return self[number - 1] if number else IndexEntry(self.base_offset, 0)

    def append(self, timestamp: int, offset: int, position: int) -> None:
        """Add an entry; timestamp, offset and position must lie after the last one's."""
        if self._count and timestamp <= self._cells[2 * self._count - 2]:
            raise ValueError(f"{self.path}: timestamp {timestamp} is not after {self.last()}")
        self._push(offset, position, timestamp)

    def in_order(self) -> bool:
        """Say whether offsets, positions and timestamps only grow, as they must."""
        count = len(self)
        timestamps = np.frombuffer(self._cells, np.uint64)[0 : count * 2 : 2]
        grows = (timestamps[1:] > timestamps[:-1]).all() and not (timestamps >> np.uint64(63)).any()
        return bool(grows and super().in_order())
