"""Batches as they are on disk, sent to another replica without a copy and checked when they arrive."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from commitlog import files
from commitlog.aborted_index import Aborted
from commitlog.batches.batch import RecordBatch
from commitlog.batches.encode import reencode
from commitlog.batches.format import HEADER_BYTES, TRANSACTIONAL, BatchHeader, check, header_at, peek
from commitlog.batches.markers import first_offset_of
from commitlog.batches.single import walk_ones
from commitlog.errors import CorruptionError
from commitlog.partitions.epochs import NO_EPOCH, EpochStart
from commitlog.partitions.producer_state import SEQUENCES
from commitlog.record import Buffer
from commitlog.segment import Segment

_WINDOW_BYTES = 4096


class Data(Protocol):
    """Batches, byte for byte as they are on disk: in memory, or still in a segment."""

    @property
    def size(self) -> int:
        """The number of bytes."""

    def read(self) -> Buffer:
        """Return the bytes."""


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Bytes [position, position + size) of a file, for sendfile(file.fd, ...) or for read().

    The file stays open, and its bytes stay, as long as this object lives, whatever happens to the segment.
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
    next_offset: int  # the offset after the last batch; the requested one if there are none
    data: Data


NOTHING = FileSlice(files.Descriptor(-1), 0, 0)


def whole_batches(segment: Segment, fd: int, position: int, max_bytes: int) -> tuple[int, int]:
    """Return the size of the batches from `position` on that fit into `max_bytes`, at least one, and the
    offset after them.

    More batches must follow in the segment. Only headers after the last index entry are read.
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
    """Reads the headers of a file, several at a time."""

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


class Received(NamedTuple):
    """Sound consecutive batches with the offsets [base_offset, next_offset).

    `places` has the base_offset, the position in the data and the latest timestamp of each. `epochs` has the
    leader epochs that start among them, `numbered` the headers of those that name their producer, `aborted`
    what markers among them abort.
    """

    data: Buffer
    base_offset: int
    next_offset: int
    places: list[tuple[int, int, int]]
    epochs: list[EpochStart]
    numbered: list[BatchHeader]
    aborted: list[Aborted]

    @property
    def has_transactions(self) -> bool:
        """Whether any of them belongs to a transaction."""
        return any(header.flags & TRANSACTIONAL for header in self.numbered)


def received(data: Buffer, base_offset: int, source: str) -> Received:
    """Check batches that continue at `base_offset`; otherwise raise CorruptionError, which names `source`.

    The first batch may start earlier, because the leader's compaction merges small batches: then its rest is
    encoded again.
    """
    data = _from_offset(data, base_offset, source)
    found = Received(data, base_offset, base_offset, [], [], [], [])
    view, place, end, offset, epoch = memoryview(data), 0, len(data), base_offset, NO_EPOCH
    while place < end:
        header = check(view, place, end, source)
        if header.base_offset != offset:
            raise CorruptionError(source, place, f"offset {header.base_offset} where {offset} was expected")
        RecordBatch(header, view[place : place + header.size], source, place).check_contents()
        # a batch that a repair put in the place of lost records has no real epoch
        if header.record_count or header.is_marker:
            if header.leader_epoch < max(epoch, 0):
                raise CorruptionError(source, place, f"leader epoch {header.leader_epoch} follows {epoch}")
            if header.leader_epoch > epoch:
                epoch = header.leader_epoch
                found.epochs.append(EpochStart(epoch, offset))
        if header.producer_id != -1:
            found.numbered.append(header)
        if header.is_marker and not header.commits:
            found.aborted.append(Aborted(header.producer_id, first_offset_of(header, view, place), offset))
        found.places.append((offset, place, header.max_timestamp))
        place, offset = walk_ones(view, place + header.size, end, header.next_offset, epoch, found.places)
    return found._replace(next_offset=offset)


def _from_offset(data: Buffer, offset: int, source: str) -> Buffer:
    """Return the batches without the records below `offset` in the first of them."""
    first, end, _ = peek(data, 0, source)
    if not first < offset < end:
        return data
    header = check(data, 0, len(data), source)
    batch = RecordBatch.decode(data, path=source).slice(offset, header.next_offset)
    producer_id, producer_epoch, sequence = header.producer
    if producer_id != -1:
        sequence = (sequence + offset - header.base_offset) % SEQUENCES
    part = reencode(batch, header.next_offset - offset, offset, (producer_id, producer_epoch, sequence))
    return b"".join((*part.stamped(offset, header.leader_epoch), memoryview(data)[header.size :]))
