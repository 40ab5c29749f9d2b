"""What an adapter of an engine must do, and how a record is packed for an engine that keeps only pairs."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import repeat
from pathlib import Path
from time import time_ns
from typing import ClassVar, Protocol

from data import Batch, Seen

HEAD = struct.Struct("<qH")  # timestamp, length of the key; then the key and the value
OFFSET = struct.Struct(">Q")


class Store(Protocol):
    """What each engine's adapter can do."""

    name: ClassVar[str]
    version: ClassVar[str]

    def __init__(self, path: Path, *, readonly: bool = False) -> None: ...

    def append_batch(self, batch: Batch, *, stamp: bool) -> None:
        """Append one batch; `stamp` uses the time of the append and not the batch's own timestamps."""

    def append_each(self, batch: Batch) -> None:
        """Append the records one by one, each acknowledged before the next, stamped with the time."""

    def next_offset(self) -> int:
        """Return the end of what is there."""

    def scan_records(self) -> Seen: ...

    def scan_values(self) -> Seen: ...

    def close(self) -> None: ...


def now_ms() -> int:
    return time_ns() // 1_000_000


def stamps_of(batch: Batch, stamp: bool) -> Iterable[int]:
    return repeat(now_ms(), len(batch.values)) if stamp else batch.timestamps


def packed(batch: Batch, stamp: bool) -> Iterator[tuple[bytes, bytes]]:
    """Pack a batch into pairs for a key-value store.

    Measured: chained maps 2.7 M rec/s, a comprehension with `+` 1.6 M, map(add) 2.3 M.
    """
    return zip(map(OFFSET.pack, offsets_of(batch)), contents_of(batch, stamp), strict=True)


def offsets_of(batch: Batch) -> range:
    return range(batch.base_offset, batch.base_offset + len(batch.values))


def contents_of(batch: Batch, stamp: bool) -> Iterator[bytes]:
    heads = map(HEAD.pack, stamps_of(batch, stamp), map(len, batch.keys))
    return map(b"".join, zip(heads, batch.keys, batch.values, strict=True))


def unpack_records(pairs: Iterable[tuple[bytes, bytes]]) -> Seen:
    """Read packed pairs back into four Python objects each."""
    unpack_head, unpack_offset = HEAD.unpack_from, OFFSET.unpack
    records = size = 0
    offset = timestamp = key = value = None
    for name, content in pairs:
        (offset,) = unpack_offset(name)
        timestamp, end = unpack_head(content)
        end += 10
        key = content[10:end]
        value = content[end:]
        records += 1
        size += len(value)
    return Seen(records, size, (offset, timestamp, key, value))


def unpack_values(contents: Iterable[bytes]) -> Seen:
    records = size = 0
    value = None
    for content in contents:
        value = content[10 + content[8] :]  # our keys are shorter than 256, so one byte tells their length
        records += 1
        size += len(value)
    return Seen(records, size, value)
