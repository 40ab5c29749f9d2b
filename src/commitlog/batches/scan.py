"""Finds the end of the batches in a file that may be torn, or that has reserved blocks behind them.

Reserved blocks are the zeros behind the last batch of a segment whose writer is active or was killed. They
are read, not mapped: the writer may cut them off at any time, and touching a map would then kill the reader.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from commitlog.batches.format import HEADER_BYTES, SMALLEST_BATCH_BYTES, BatchHeader, check, header_at
from commitlog.batches.runs import sound_run
from commitlog.errors import CorruptionError
from commitlog.progress import Steps

_CHUNK_BYTES = 4 * 1024 * 1024
_ZEROS_BYTES = 1024 * 1024  # read at once when checking for zeros
_LAST_BYTES = 8  # few batches end in this many zeros


class Checked(NamedTuple):
    """What check_batches() found: the offset after the sound batches, the damage there, and their latest
    timestamp, -1 if there are none.
    """

    next_offset: int
    damage: CorruptionError | None
    max_timestamp: int


def check_batches(path: str, position: int, size: int, expected: int, steps: Steps | None = None) -> Checked:
    """Check the batches of [position, size), the first of which has the offset `expected`.

    It reads rather than maps: a writer may cut the file, and touching the map would then kill the reader.
    """
    latest = -1
    if position >= size:
        return Checked(expected, None, latest)
    fd = os.open(path, os.O_RDONLY)
    try:
        chunk = _Chunk(fd, size, steps or Steps(None))
        while position < size:
            chunk.hold(position, SMALLEST_BATCH_BYTES)
            place = position - chunk.start
            run = sound_run(chunk.buffer, place, min(chunk.end - chunk.start, place + _CHUNK_BYTES))
            if len(run.starts) and run.headers["base_offset"][0] == expected:
                position, expected = chunk.start + run.end, int(run.next_offsets[-1])
                latest = max(latest, int(run.headers["max_timestamp"].max()))
            if position < size:
                header = chunk.checked(position, path)
                if header.base_offset != expected:
                    reason = f"offset {header.base_offset} where {expected} was expected"
                    return Checked(expected, CorruptionError(path, position, reason), latest)
                position, expected = position + header.size, header.next_offset
                latest = max(latest, header.max_timestamp)
    except CorruptionError as damage:
        return Checked(expected, damage, latest)
    finally:
        os.close(fd)
    return Checked(expected, None, latest)


class _Chunk:
    """A window [start, end) of a few megabytes on a file."""

    def __init__(self, fd: int, size: int, steps: Steps) -> None:
        self._fd = fd
        self._steps = steps
        self._size = size
        self.buffer = bytearray(_CHUNK_BYTES)
        self.start = self.end = 0

    def hold(self, position: int, count: int) -> None:
        """Load [position, position + count), as far as the file goes."""
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
        """Return the header of the batch at `position`; CorruptionError if it is incomplete or damaged."""
        self.hold(position, SMALLEST_BATCH_BYTES)
        header = header_at(self.buffer, position - self.start)
        if header is not None:
            self.hold(position, header.size)
        return check(self.buffer, position - self.start, self.end - self.start, path, self.start)


def only_zeros(path: str, start: int, end: int) -> bool:
    """Say whether [start, end) of a file, as far as it goes, is all zeros."""
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
    """Return where the batches of a file of `size` bytes end: at `size`, or where only zeros follow."""
    if not only_zeros(path, max(size - _LAST_BYTES, 0), size):
        return size
    end = _end_of_headers(path)
    return end if end < size and only_zeros(path, end, size) else size


def _end_of_headers(path: str) -> int:
    """Return the first position where a header is missing."""
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
