"""ReplicaSlice: batches as they are on disk, on their way to another replica, without being copied."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from commitlog import files
from commitlog.batches.columns import Buffer
from commitlog.batches.format import HEADER_BYTES, BatchHeader, header_at
from commitlog.errors import CorruptionError
from commitlog.segments.segment import Segment

_WINDOW_BYTES = 4096


class Data(Protocol):
    """Batches, byte for byte as they are on disk: in memory, or still in a segment."""

    @property
    def size(self) -> int:
        """How many bytes there are."""

    def read(self) -> Buffer:
        """Return the bytes."""


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Bytes [position, position + size) of a file, for sendfile(file.fd, ...) or for read().

    The file is open as long as somebody has this, and its bytes stay, whatever becomes of the segment.
    """

    file: files.Descriptor
    position: int
    size: int

    def read(self) -> Buffer:
        """Return the bytes."""
        pieces, read = [], 0
        while read < self.size:
            pieces.append(os.pread(self.file.fd, self.size - read, self.position + read))
            if not pieces[-1]:
                raise OSError(errno.EIO, f"ended after {read} of {self.size} bytes")
            read += len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class ReplicaSlice(NamedTuple):
    """Whole batches of one segment, as they are on disk."""

    segment_base: int
    next_offset: int  # where the last of them ends; where they were asked from, if there are none
    data: Data


NOTHING = FileSlice(files.Descriptor(-1), 0, 0)


def whole_batches(segment: Segment, fd: int, position: int, max_bytes: int) -> tuple[int, int]:
    """Return the size of the batches from `position` on that fit in `max_bytes`, and the offset after them.

    More must follow in the segment. It is one batch at least. No headers are read but those behind the last
    index entry.
    """
    limit = position + max_bytes
    headers = _Headers(segment.path, fd)
    place = max(segment.start_before(limit), position)
    header = headers.at(place)
    while place + header.size <= limit:
        place += header.size
        header = headers.at(place)
    if place == position:
        return header.size, header.next_offset
    return place - position, header.base_offset


class _Headers:
    """The headers of a file, read a few at a time."""

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd
        self._start, self._window = 0, b""

    def at(self, position: int) -> BatchHeader:
        if not self._start <= position <= self._start + len(self._window) - HEADER_BYTES:
            self._start, self._window = position, os.pread(self._fd, _WINDOW_BYTES, position)
        header = header_at(self._window, position - self._start)
        if header is None:
            raise CorruptionError(self._path, position, "no batch starts here")
        return header
