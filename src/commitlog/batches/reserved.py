"""Reserved blocks: the zeros behind the last batch of a segment whose writer is at work, or was killed.

They are read, not mapped: the writer may cut them off meanwhile, and a map would then kill the reader.
"""

from __future__ import annotations

import os

from commitlog.batches.format import HEADER_BYTES, header_at

_CHUNK_BYTES = 1024 * 1024
_LAST_BYTES = 8  # a batch may end in so many zeros, but few do


def only_zeros(path: str, start: int, end: int) -> bool:
    """Say whether a file holds nothing else in [start, end), as far as it goes."""
    fd = os.open(path, os.O_RDONLY)
    try:
        while start < end:
            chunk = os.pread(fd, min(_CHUNK_BYTES, end - start), start)
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
                start, chunk = position, os.pread(fd, _CHUNK_BYTES, position)
            header = header_at(chunk, position - start)
            if header is None:
                return position
            position += header.size
    finally:
        os.close(fd)
