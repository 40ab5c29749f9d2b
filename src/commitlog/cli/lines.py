"""Lines from pipes and files, many at a time, and plain lines as a batch without looking at each."""

from __future__ import annotations

import io
import os
import select
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from commitlog.batches.columns import NO_NULLS, BytesColumn, narrow
from commitlog.batches.encode import NO_STRINGS, Columns, EncodedBatch, Rules, assemble

BLOCK_BYTES = 1 << 20
_LINGER_SECONDS = 0.005  # as long as a producer waits for more to come
_NEWLINE = 10


def blocks(stream: BinaryIO, max_line_bytes: int | None = None) -> Iterator[bytes]:
    """Iterate over whole lines, about a megabyte at a time, or what has come after a few milliseconds.

    A line that goes on beyond `max_line_bytes` ends there: nothing takes it, and it may never end.
    """
    rest: list[bytes] = []
    waiting = 0
    for piece in _pieces(stream):
        end = piece.rfind(b"\n") + 1
        if end:
            yield b"".join((*rest, piece[:end]))
            rest, waiting = [], 0
        rest.append(piece[end:])
        waiting += len(piece) - end
        if max_line_bytes is not None and waiting > max_line_bytes:
            break
    if waiting:
        yield b"".join((*rest, b"\n"))


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    try:
        fd = stream.fileno()
    except (io.UnsupportedOperation, AttributeError):  # in memory
        yield from iter(lambda: stream.read(BLOCK_BYTES), b"")
        return
    while piece := os.read(fd, BLOCK_BYTES):
        # a pipe gives 64 KiB at a time, however much is to come
        pieces, size = [piece], len(piece)
        while size < BLOCK_BYTES and select.select([fd], [], [], _LINGER_SECONDS)[0]:
            more = os.read(fd, BLOCK_BYTES - size)
            if not more:
                break
            pieces.append(more)
            size += len(more)
        yield b"".join(pieces)


def encode_lines(block: bytes, rules: Rules, now_ms: int, first: int) -> tuple[EncodedBatch, int]:
    """Encode whole lines as the values of a batch; returns it, and how many there are.

    `first` numbers the records, for errors. Measured: three times as fast as split() and append_many().
    """
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE)
    lengths = np.diff(ends, prepend=-1) - 1
    values = BytesColumn(narrow(lengths), NO_NULLS, b"", block.replace(b"\n", b""))
    columns, count = Columns(NO_STRINGS, values), len(ends)
    rules.check_keys(columns.keys, count, first)
    rules.check_sizes(columns, count, first)
    return assemble(columns, count, now_ms, rules.flags), count
