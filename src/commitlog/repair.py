"""Finds and repairs damage: verify() lists it, repair() keeps every sound batch.

Nothing is thrown away: the old file of a repaired segment stays beside it as `.damaged`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from commitlog import aborted_index, files
from commitlog.batches.encode import encode_empty
from commitlog.batches.format import (
    MAGIC_BYTES,
    MAGIC_POSITION,
    BatchHeader,
    check,
    claimed_header,
    header_at,
)
from commitlog.config import MAX_INT64, TopicConfig
from commitlog.errors import CorruptionError
from commitlog.index import Index, OffsetIndex, TimeIndex
from commitlog.progress import Progress, Steps
from commitlog.record import Buffer
from commitlog.segment import TEMPORARY_SUFFIX, Segment, companions, derived_files, segment_path
from commitlog.segment_files import DAMAGED_SUFFIX, free_name
from commitlog.segment_writer import open_builder

_MAX_SPAN = 1 << 32  # last_offset_delta has 32 bits


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes [position, end_position) of a file that hold no sound batch, or an index that is wrong."""

    path: str
    position: int
    end_position: int
    reason: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What verify() read and the damage it found."""

    segments: int
    batches: int
    records: int
    bytes_checked: int
    damage: tuple[Damage, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no damage."""
        return not self.damage


@dataclass(frozen=True, slots=True)
class Salvage:
    """A repaired segment; `lost` has the ranges [start, end) of offsets whose records may be gone.

    `kept_as` is the damaged file, "" if the whole file was missing.
    """

    path: str
    kept_as: str
    bytes_lost: int
    lost: tuple[tuple[int, int], ...]
    next_offset: int


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What repair() did."""

    salvaged: tuple[Salvage, ...]
    indexes_rebuilt: int


class VerifiedPart(NamedTuple):
    """What verify() found in the segments from base_offset `first` up to `following`.

    `following` is None for the last segments. Parts that continue one another cover the whole partition.
    """

    report: VerifyReport
    first: int | None
    following: int | None


def verify_segments(
    segments: Sequence[Segment], end_offset: int | None = None, progress: Progress | None = None
) -> VerifyReport:
    """Check every byte of the segments and every entry of their indexes.

    `end_offset` is where the last segment's offsets must end, None if it is active.
    """
    batches = records = size = 0
    damage: list[Damage] = []
    steps = Steps(progress, sum(segment.size_bytes for segment in segments))
    ends = [*(segment.base_offset for segment in segments), end_offset][1:]
    for segment, end in zip(segments, ends, strict=True):
        try:
            with steps.part(segment.size_bytes):
                for position, following, found in sound_batches(segment, end):
                    steps.add(following - position)
                    if isinstance(found, Damage):
                        damage.append(found)
                    else:
                        batches += 1
                        records += found.record_count
                damage += false_indexes(segment)
        except FileNotFoundError:
            damage.append(Damage(segment.path, 0, 0, "the file is missing"))
        size += segment.size_bytes
    steps.finish()
    return VerifyReport(len(segments), batches, records, size, tuple(damage))


def sound_batches(
    segment: Segment, end_offset: int | None
) -> Iterator[tuple[int, int, BatchHeader | Damage]]:
    """Iterate over the sound batches of a segment and the damage between them, as (position, end, found).

    Missing offsets are damage too, at the place where they should be, and so are batches of another segment.
    `end_offset` is where the segment's offsets must end, None if that is not known.
    """
    position, size = 0, segment.size_bytes
    expected, damaged = segment.base_offset, False
    buffer = segment.buffer() if size else memoryview(b"")
    limit = MAX_INT64 if end_offset is None else end_offset
    while position < size:
        try:
            header = _next_batch(buffer, position, size, segment.path, expected, limit)
        except CorruptionError as problem:
            end = _resume(buffer, position, size, segment.path, expected, limit)
            yield position, end, Damage(segment.path, position, end, problem.reason)
            position, damaged = end, True
            continue
        if header.base_offset > expected and not damaged:
            yield position, position, _hole(segment.path, position, expected, header.base_offset)
        yield position, position + header.size, header
        position += header.size
        expected, damaged = header.next_offset, False
    if end_offset is not None and expected < end_offset and not damaged:
        yield size, size, _hole(segment.path, size, expected, end_offset)


def _hole(path: str, position: int, start: int, end: int) -> Damage:
    return Damage(path, position, position, f"offsets [{start}, {end}) are missing")


def _next_batch(
    buffer: memoryview, position: int, size: int, path: str, expected: int, limit: int
) -> BatchHeader:
    """Return the header of the batch at `position`; it must be sound, with offsets in [expected, limit)."""
    header = check(buffer, position, size, path)
    if header.base_offset < expected:
        raise CorruptionError(path, position, f"offset {header.base_offset} follows offset {expected - 1}")
    if header.next_offset > limit:
        reason = f"offset {header.next_offset - 1} is in a segment that ends before {limit}"
        raise CorruptionError(path, position, reason)
    return header


def _resume(buffer: memoryview, position: int, size: int, path: str, expected: int, limit: int) -> int:
    """Return where the next sound batch starts after damage at `position`; the end if there is none.

    The size that the damaged batch claims is used if possible: its records may contain anything, even a batch
    of another log.
    """
    header = claimed_header(buffer, position)
    if header is not None:
        after = position + header.size
        following = _sound_at(buffer, after, size, path, expected, limit) if after > position else None
        if following is not None and following.base_offset == header.next_offset:
            return after
    seeming = header_at(buffer, position)
    inside = position if seeming is None else position + seeming.size
    raw = bytes(buffer[position:size])
    found = raw.find(MAGIC_BYTES, MAGIC_POSITION + 1)
    while found != -1:
        start = position + found - MAGIC_POSITION
        batch = _sound_at(buffer, start, size, path, expected, limit)
        if batch is not None and (start >= inside or (seeming and batch.base_offset == seeming.next_offset)):
            return start
        found = raw.find(MAGIC_BYTES, found + 1)
    return size


def _sound_at(
    buffer: memoryview, position: int, size: int, path: str, expected: int, limit: int
) -> BatchHeader | None:
    if position % 8:
        return None
    try:
        return _next_batch(buffer, position, size, path, expected, limit)
    except CorruptionError:
        return None


def false_indexes(segment: Segment) -> list[Damage]:
    """Return the indexes of a segment that are missing or do not match it."""
    found = []
    kinds: tuple[type[Index], ...] = (OffsetIndex, TimeIndex)
    for kind, path in zip(kinds, companions(segment.path), strict=True):
        try:
            true = segment.confirms_all(kind.open(path))
        except FileNotFoundError:
            found.append(Damage(path, 0, 0, "the index is missing"))
            continue
        if not (true and (segment.active or kind.open(path).seal_holds(segment.size_bytes))):
            found.append(Damage(path, 0, os.stat(path).st_size, "the index does not match the segment"))
    return found


def salvage_segment(
    segment: Segment, end_offset: int | None, config: TopicConfig, least_end: int = 0
) -> Salvage:
    """Replace a damaged segment by one with all its sound batches; the old file stays.

    `end_offset` is where the segment's offsets must end; None for the last segment, which must end at or
    after `least_end`. A batch without records takes the place of lost ones, so that offsets have no holes.
    """
    temporary, kept_as = segment.path + TEMPORARY_SUFFIX, free_name(segment.path + DAMAGED_SUFFIX)
    lost: list[tuple[int, int]] = []
    kept_bytes = 0
    buffer = segment.buffer() if segment.size_bytes else memoryview(b"")
    with files.open_empty(temporary) as fd:
        copy = _Copy(fd, segment.base_offset)
        for position, end, found in sound_batches(segment, end_offset):
            if isinstance(found, BatchHeader):
                lost += copy.fill_up_to(found.base_offset)
                copy.write([buffer[position:end]], end - position, found)
                kept_bytes += end - position
        lost += copy.fill_up_to(least_end if end_offset is None else end_offset)
        files.sync_data(fd)
    files.link(segment.path, kept_as)
    files.sync_directory(os.path.dirname(segment.path))
    # crash: the damaged segment has two names -> open() meets it again under the first
    aborted = aborted_index.facts(segment.path)  # the markers may be among what is lost
    for derived in derived_files(segment.path):
        files.remove(derived)
    files.replace(temporary, segment.path)
    files.sync_directory(os.path.dirname(segment.path))
    bytes_lost, segment.size_bytes = segment.size_bytes - kept_bytes, copy.size
    segment.release()
    segment.inode = os.stat(segment.path).st_ino
    open_builder(segment, config, trust_indexes=False).finish(copy.size, copy.next_offset)
    if aborted:
        entries = {*aborted, *segment.find_aborted()}
        aborted_index.store(segment.path, sorted(entries), (copy.size, copy.next_offset))
    return Salvage(segment.path, kept_as, bytes_lost, tuple(lost), copy.next_offset)


def fill_hole(directory: str, start: int, end: int, config: TopicConfig) -> Salvage:
    """Create a segment without records for the missing offsets [start, end); an empty file may be there."""
    path = segment_path(directory, start)
    with files.open_empty(path + TEMPORARY_SUFFIX) as fd:
        copy = _Copy(fd, start)
        lost = copy.fill_up_to(end)
        files.sync_data(fd)
    files.replace(path + TEMPORARY_SUFFIX, path)
    files.sync_directory(directory)
    segment = Segment(path, start, copy.size)
    open_builder(segment, config, trust_indexes=False).finish(copy.size, end)
    return Salvage(path, "", 0, tuple(lost), end)


class _Copy:
    """A segment being rewritten, batch by batch."""

    def __init__(self, fd: int, base_offset: int) -> None:
        self._fd = fd
        self._epoch = self._timestamp = 0
        self.size = 0
        self.next_offset = base_offset

    def write(self, pieces: Sequence[Buffer], size: int, header: BatchHeader) -> None:
        files.write_at(self._fd, pieces, size, self.size)
        self.size += size
        self.next_offset = header.next_offset
        self._epoch, self._timestamp = header.leader_epoch, header.max_timestamp

    def fill_up_to(self, offset: int) -> list[tuple[int, int]]:
        """Fill the missing offsets below `offset`; returns their range, as a list of none or one."""
        start = self.next_offset
        while self.next_offset < offset:
            filler = encode_empty(min(offset - self.next_offset, _MAX_SPAN), self._timestamp)
            files.write_at(self._fd, filler.stamped(self.next_offset, self._epoch), filler.size, self.size)
            self.size += filler.size
            self.next_offset += filler.span
        return [(start, offset)] if start < offset else []


def repaired(
    segments: Sequence[Segment], end_offset: int, config: TopicConfig, progress: Progress | None = None
) -> tuple[list[Segment], RepairReport]:
    """Salvage damaged segments and rebuild wrong indexes, of sealed segments that end at `end_offset`."""
    kept: list[Segment] = []
    salvaged: list[Salvage] = []
    rebuilt = 0
    steps = Steps(progress, sum(segment.size_bytes for segment in segments))
    ends = [*(segment.base_offset for segment in segments), end_offset][1:]
    for segment, end in zip(segments, ends, strict=True):
        with steps.part(segment.size_bytes):
            if not os.path.exists(segment.path):
                salvaged.append(fill_hole(os.path.dirname(segment.path), segment.base_offset, end, config))
                kept.append(Segment.open(segment.path, segment.cache))
            elif _is_damaged(segment, end, steps):
                replaced = Segment(segment.path, segment.base_offset, segment.size_bytes, segment.cache)
                salvaged.append(salvage_segment(replaced, end, config))
                kept.append(replaced)
            else:
                rebuilt += _rebuild_indexes(segment, end, config)
                kept.append(segment)
    steps.finish()
    return kept, RepairReport(tuple(salvaged), rebuilt)


def _is_damaged(segment: Segment, end_offset: int, steps: Steps) -> bool:
    for position, end, found in sound_batches(segment, end_offset):
        steps.add(end - position)
        if isinstance(found, Damage):
            return True
    return False


def _rebuild_indexes(segment: Segment, end_offset: int, config: TopicConfig) -> int:
    """Rebuild the indexes of a sound segment if one is wrong; returns how many were."""
    bad = false_indexes(segment)
    if bad:
        for path in derived_files(segment.path):
            files.remove(path)
        segment.release()
        open_builder(segment, config, trust_indexes=False).finish(segment.size_bytes, end_offset)
    return len(bad)
