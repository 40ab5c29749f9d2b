"""Where the batches of a file end that may be torn, or that has reserved blocks behind them.

Reserved blocks are the zeros behind the last batch of a segment whose writer is at work, or was killed. They
are read, not mapped: the writer may cut them off meanwhile, and a map would then kill the reader.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from commitlog.batches.format import HEADER_BYTES, SMALLEST_BATCH_BYTES, BatchHeader, check, header_at
from commitlog.batches.single import check_ones
from commitlog.config import MAX_INT64
from commitlog.errors import CorruptionError
from commitlog.progress import Steps

_CHUNK_BYTES = 4 * 1024 * 1024
_ZEROS_BYTES = 1024 * 1024  # read at once when looking for zeros
_LAST_BYTES = 8  # a batch may end in this many zeros, but few do


class Checked(NamedTuple):
    """What check_batches() found: where offsets go on after the sound batches, what is wrong there, and the
    latest timestamp of the sound ones, -1 if there are none.
    """

    next_offset: int
    damage: CorruptionError | None
    max_timestamp: int


def check_batches(path: str, position: int, size: int, expected: int, steps: Steps | None = None) -> Checked:
    """Check the batches of [position, size), the first of which has the offset `expected`.

    Reads rather than maps: a writer may cut the file meanwhile, and a map would then kill the reader.
    """
    latest = -1
    if position >= size:
        return Checked(expected, None, latest)
    fd = os.open(path, os.O_RDONLY)
    try:
        chunk = _Chunk(fd, size, steps or Steps(None))
        while position < size:
            chunk.hold(position, SMALLEST_BATCH_BYTES)
            if expected < MAX_INT64 - (1 << 32):
                place, expected, latest = check_ones(
                    chunk.buffer, position - chunk.start, chunk.end - chunk.start, expected, latest
                )
                position = chunk.start + place
            if position < size:
                header = chunk.checked(position, path)
                if header.base_offset != expected:
                    reason = f"offset {header.base_offset} stands where {expected} should"
                    return Checked(expected, CorruptionError(path, position, reason), latest)
                if header.next_offset > MAX_INT64:
                    reason = f"offsets end at {MAX_INT64}, not at {header.next_offset}"
                    return Checked(expected, CorruptionError(path, position, reason), latest)
                position, expected = position + header.size, header.next_offset
                latest = max(latest, header.max_timestamp)
    except CorruptionError as damage:
        return Checked(expected, damage, latest)
    finally:
        os.close(fd)
    return Checked(expected, None, latest)


class _Chunk:
    """The bytes [start, end) of a file, a few megabytes at a time."""

    def __init__(self, fd: int, size: int, steps: Steps) -> None:
        self._fd = fd
        self._steps = steps
        self._size = size
        self.buffer = bytearray(_CHUNK_BYTES)
        self.start = self.end = 0

    def hold(self, position: int, count: int) -> None:
        """Hold [position, position + count), or what the file has of it."""
        count = min(count, self._size - position)
        if self.start <= position and position + count <= self.end:
            return
        if len(self.buffer) < count:
            self.buffer = bytearray(count)
        self._steps.add(position - self.start)
        self.start = self.end = position
        while self.end < position + count:
            room = memoryview(self.buffer)[self.end - position : self._size - position]
            read = os.preadv(self._fd, [room], self.end)
            if read == 0:
                return
            self.end += read

    def checked(self, position: int, path: str) -> BatchHeader:
        """Return the header of the batch at `position`; CorruptionError if it is not whole and sound."""
        self.hold(position, SMALLEST_BATCH_BYTES)
        header = header_at(self.buffer, position - self.start)
        if header is not None:
            self.hold(position, header.size)
        return check(self.buffer, position - self.start, self.end - self.start, path, self.start)


def only_zeros(path: str, start: int, end: int) -> bool:
    """Say whether a file holds nothing else in [start, end), as far as it goes."""
    fd = os.open(path, os.O_RDONLY)
    try:
        while start < end:
            chunk = os.pread(fd, min(_ZEROS_BYTES, end - start), start)
            if chunk != bytes(len(chunk)):
                return False
            start += len(chunk) or end
    finally:
        os.close(fd)
    return True


def without_reserved(path: str, size: int) -> int:
    """Return where the batches of a file of `size` bytes end: there, or where nothing but zeros follows."""
    if not only_zeros(path, max(size - _LAST_BYTES, 0), size):
        return size
    end = _end_of_headers(path)
    return end if end < size and only_zeros(path, end, size) else size


def _end_of_headers(path: str) -> int:
    """Return the first position where a header should stand and none does."""
    fd = os.open(path, os.O_RDONLY)
    try:
        position, start, chunk = 0, 0, b""
        while True:
            if position + HEADER_BYTES > start + len(chunk):
                start, chunk = position, os.pread(fd, _ZEROS_BYTES, position)
            header = header_at(chunk, position - start)
            if header is None:
                return position
            position += header.size
    finally:
        os.close(fd)
