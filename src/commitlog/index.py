"""Sparse indexes: from an offset or a timestamp to the position of a batch at or before it.

An index is derived from its .log file and rebuilt if it is lost. Its file is padded with zeros and never cut,
because a reader may have it mapped. No entry has position 0 (the segment's start needs none), so the first
zero position is the end of the index.

The first 24 bytes are the seal, zero while the segment is active: size and next_offset of the sealed segment,
count and checksum of the entries. A sealed index whose seal does not match is not used.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from bisect import bisect_left, bisect_right
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from commitlog import files
from commitlog.checksum import crc32c

if TYPE_CHECKING:
    from commitlog.segment import Segment

_LOW = 0xFFFF_FFFF
_NO_LIMIT = 1 << 62
_FIRST_BYTES, _STEP_BYTES = 4096, 64 * 1024
_SEAL = Struct("<3Q")  # size_bytes, next_offset, digest
_SEAL_BYTES = _SEAL.size
_NO_CELLS = memoryview(b"").cast("Q")


def base_offset_of(path: str) -> int:
    """Return the base_offset in the name of a segment's file; ValueError if there is none."""
    return int(os.path.basename(path).partition(".")[0])


def sealed_end(path: str, size_bytes: int) -> int | None:
    """Return the offset after a sealed segment of this size according to its index at `path`, unchecked."""
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
    """Sorted entries in a mapped file; safe to read while it grows.

    An entry is `words` little-endian 64-bit words. The last one has the offset relative to the segment's base
    (high half) and the position (low half). It is stored last, so a reader in another process never sees half
    an entry.
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
        """Open an index for reading; FileNotFoundError if there is none."""
        return cls(path, base_offset_of(path), files.map_file(path), 0)

    @classmethod
    def open_writable(cls, path: str, limit_bytes: int) -> Self:
        """Open an index for appending; create it if necessary."""
        return cls(path, base_offset_of(path), files.map_writable(path, _FIRST_BYTES), limit_bytes)

    @classmethod
    def in_memory(cls, path: str) -> Self:
        """Return an empty index that is never written to disk."""
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
        """Return the number of entries before the first zero position, by bisection: positions only grow."""
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
        if self._limit_bytes == 0:  # another process may be writing it
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
        """Return the offsets and the positions of all entries."""
        count = len(self)  # first: it may map the file again
        cells = np.frombuffer(self._cells, np.uint64)[self.words - 1 : count * self.words : self.words]
        return (cells >> np.uint64(32)).astype(np.int64) + self.base_offset, (cells & np.uint64(_LOW)).astype(
            np.int64
        )

    def in_order(self) -> bool:
        """Say whether offsets and positions strictly grow, as they must."""
        offsets, positions = self.places()
        grows = (np.diff(offsets) > 0).all() and (np.diff(positions) > 0).all()
        return bool(grows and not (positions & 7).any())

    def seal_holds(self, size_bytes: int) -> bool:
        """Say whether the index is complete and undamaged for a sealed segment of this size."""
        seal = self._seal
        return seal is not None and seal[0] == size_bytes and seal[2] == self._digest(seal[0], seal[1])

    def _digest(self, size_bytes: int, next_offset: int) -> int:
        """Return the number of entries and a checksum of them and the seal, in one word."""
        count = len(self)
        entries = crc32c(self._cells[: count * self.words].cast("B"))
        return crc32c(_SEAL.pack(size_bytes, next_offset, count), entries) << 32 | count

    # --- writing

    def seal(self, size_bytes: int, next_offset: int) -> None:
        """Mark the index as complete, with the size of its sealed segment and the offset after it."""
        assert self._seal is not None
        self._seal[1], self._seal[2] = next_offset, self._digest(size_bytes, next_offset)
        self._seal[0] = size_bytes

    def unseal(self) -> None:
        """Remove the seal: entries may follow."""
        assert self._seal is not None
        self._seal[0] = self._seal[1] = self._seal[2] = 0

    def catch_up(self) -> None:
        """Count the entries that another process has added."""
        self._count = self._find_count()
        while self._count == self._capacity and os.path.getsize(self.path) > len(self._map or b""):
            self._remap(files.map_writable(self.path, 0))
            self._count = self._find_count()

    def has_room(self, entries: int) -> bool:
        """Say whether this many more entries fit into segment_index_bytes."""
        return (self._count + entries) * 8 * self.words <= self._limit_bytes

    def make_room(self, entries: int = 1) -> None:
        """Reserve blocks for this many more entries, the only step of an index append that can fail."""
        while self._count + entries > self._capacity:
            size = len(self._map or b"")
            if self._anonymous:
                larger = mmap.mmap(-1, 2 * size)
                larger[:size] = (self._map or b"")[:]
            else:
                larger = files.map_writable(self.path, size + min(size, _STEP_BYTES))
            self._remap(larger)

    def _push(self, offset: int, position: int, *before: int) -> None:
        """Store an entry: the words `before` first; the place, which makes it count, last."""
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
        """Remove all entries and the seal."""
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

    def rest(self) -> None:
        """Unmap the file but keep the count; call wake() before the next use."""
        self.close()
        self._map = self._seal = None
        self._cells, self._capacity = _NO_CELLS, 0

    def wake(self) -> None:
        """Map the file again."""
        self._remap(files.map_again(self.path, None))

    def close(self) -> None:
        """Unmap the file."""
        self._cells.release()
        if self._seal is not None:
            self._seal.release()
        if self._map is not None:
            with contextlib.suppress(BufferError):  # another thread still has a view of it
                self._map.close()

    def sync(self) -> None:
        """Make the entries durable."""
        if self._map is not None:
            files.sync_map(self._map)


class OffsetIndex(Index):
    """offset -> position: `<base_offset>.index`."""

    def lookup(self, offset: int) -> IndexEntry:
        """Return the last entry at or below `offset`, or the segment's start if there is none."""
        relative = offset - self.base_offset
        if relative < 0:
            return IndexEntry(self.base_offset, 0)
        count = len(self)  # first: it may map the file again
        number = bisect_right(self._cells, (relative << 32) | _LOW, 0, count)
        return self[number - 1] if number else IndexEntry(self.base_offset, 0)

    def lookup_position(self, position: int) -> IndexEntry:
        """Return the last entry at or before `position`, or the segment's start if there is none."""
        number = bisect_right(self._cells, position, 0, len(self), key=lambda cell: cell & _LOW)
        return self[number - 1] if number else IndexEntry(self.base_offset, 0)

    def append(self, offset: int, position: int) -> None:
        """Add an entry; its offset and position must be greater than the last entry's."""
        self._push(offset, position)


class TimeIndex(Index):
    """timestamp -> position: `<base_offset>.timeindex`.

    An entry (timestamp, offset, position) means that no record before that batch is as late as `timestamp`.
    """

    words = 2
    suffix = ".timeindex"

    def __getitem__(self, number: int) -> IndexEntry:
        return super().__getitem__(number)._replace(timestamp=self._cells[2 * number])

    def lookup(self, timestamp: int) -> IndexEntry:
        """Return the last entry at or below `timestamp`, or the segment's start if there is none."""
        count = len(self)  # first: it may map the file again
        cells = self._cells
        number = bisect_right(range(count), timestamp, key=lambda entry: cells[2 * entry])
        return self[number - 1] if number else IndexEntry(self.base_offset, 0)

    def append(self, timestamp: int, offset: int, position: int) -> None:
        """Add an entry; timestamp, offset and position must be greater than the last entry's."""
        if self._count and timestamp <= self._cells[2 * self._count - 2]:
            raise ValueError(f"{self.path}: timestamp {timestamp} is not after {self.last()}")
        self._push(offset, position, timestamp)

    def in_order(self) -> bool:
        """Say whether offsets, positions and timestamps strictly grow, as they must."""
        count = len(self)
        timestamps = np.frombuffer(self._cells, np.uint64)[0 : count * 2 : 2]
        grows = (timestamps[1:] > timestamps[:-1]).all() and not (timestamps >> np.uint64(63)).any()
        return bool(grows and super().in_order())


class IndexBuilder:
    """Decides which batches get index entries; the writer and every rebuild follow the same rule."""

    __slots__ = (
        "_interval", "_latest_offset", "_latest_position", "_offsets", "_timed_position", "_times",
        "indexed_position", "max_timestamp",
    )  # fmt: skip

    def __init__(self, offsets: OffsetIndex, times: TimeIndex, interval_bytes: int) -> None:
        self._offsets = offsets
        self._times = times
        self._interval = interval_bytes
        self.indexed_position = 0  # where the last indexed batch starts
        self.max_timestamp = -1
        self._latest_offset = self._latest_position = 0  # the first batch that reaches max_timestamp
        self._timed_position = 0  # the position in the last time entry

    def has_room(self) -> bool:
        """Say whether both indexes have room for an entry, and the time index for its last one as well."""
        return self._offsets.has_room(1) and self._times.has_room(2)

    def make_room(self, batches: int = 1) -> None:
        """Reserve what add() may need, so that a full disk is noticed before anything is written."""
        self._offsets.make_room(batches)
        self._times.make_room(batches)

    def resume(self, segment: Segment, *, complete: bool) -> int:
        """Continue with what the indexes hold; returns the position from which batches must be added.

        Complete indexes lack no batch. Those that are true but may be incomplete (after a crash) need the
        batches from the time index's last entry on: the lost entries may have held a later timestamp.
        """
        last, latest = self._offsets.last(), self._times.last()
        self.indexed_position = start = 0 if last is None else last.position
        if latest is not None and latest.timestamp is not None:
            self.max_timestamp = latest.timestamp
            self._latest_offset, self._latest_position = latest.offset, latest.position
            self._timed_position = latest.position
        elif segment.size_bytes and complete:
            self.max_timestamp = segment.latest_at(0)
        if complete:
            return segment.size_bytes
        return 0 if latest is None else min(start, latest.position)

    def add(self, offset: int, position: int, max_timestamp: int) -> None:
        """Note a batch; it gets an entry if one is due and there is room (otherwise the index is coarser)."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self._latest_offset, self._latest_position = offset, position
        if position - self.indexed_position > self._interval and self.has_room():
            self.indexed_position = position
            self._offsets.append(offset, position)
            self._index_time()

    def catch_up(self, segment: Segment, position: int) -> None:
        """Note the batches, and their entries, that another process wrote from `position` on."""
        self._offsets.catch_up()
        self._times.catch_up()
        last, latest = self._offsets.last(), self._times.last()
        self.indexed_position = 0 if last is None else last.position
        self._timed_position = 0 if latest is None else latest.position
        self._find_latest(segment, position)

    def _find_latest(self, segment: Segment, position: int) -> None:
        for place, header in segment.headers(position):
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp = header.max_timestamp
                self._latest_offset, self._latest_position = header.base_offset, place

    def roll_back(self, segment: Segment) -> None:
        """Forget the batches after the end of the segment, which has just been shortened."""
        position = segment.size_bytes
        self._offsets.truncate(position)
        self._times.truncate(position)
        if self._latest_position >= position:
            last = self._times.last()
            self.max_timestamp = -1 if last is None or last.timestamp is None else last.timestamp
            self._latest_offset, self._latest_position = (
                (0, 0) if last is None else (last.offset, last.position)
            )
            self._find_latest(segment, self._latest_position)
        latest = self._times.last()
        self._timed_position = 0 if latest is None else latest.position
        self.indexed_position = min(self.indexed_position, position)

    def rest(self) -> None:
        """Unmap both files until wake()."""
        self._offsets.rest()
        self._times.rest()

    def wake(self) -> None:
        """Map the files again."""
        self._offsets.wake()
        self._times.wake()

    def rename(self, offset_path: str, time_path: str) -> None:
        """Note that the index files have new names."""
        self._offsets.path, self._times.path = offset_path, time_path

    def sync(self) -> None:
        """Make both indexes durable."""
        self._offsets.sync()
        self._times.sync()

    def close(self) -> None:
        """Unmap both files now, not at the next garbage collection."""
        self._offsets.close()
        self._times.close()

    def finish(self, size_bytes: int, next_offset: int) -> None:
        """Add an entry for the latest timestamp, which a sealed segment must have, and seal the indexes."""
        self._index_time()
        self._offsets.seal(size_bytes, next_offset)
        self._times.seal(size_bytes, next_offset)

    def _index_time(self) -> None:
        if self._latest_position > self._timed_position:
            self._times.append(self.max_timestamp, self._latest_offset, self._latest_position)
            self._timed_position = self._latest_position
