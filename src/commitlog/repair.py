"""Finding damage and working around it: verify() lists it, repair() keeps every batch that is still sound.

Nothing is thrown away: a repaired segment's old file stays beside it as `.damaged`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from commitlog import files
from commitlog.config import TopicConfig
from commitlog.errors import CorruptionError
from commitlog.format import MAGIC_BYTES, MAGIC_POSITION, BatchHeader, check
from commitlog.index import Index, OffsetIndex, TimeIndex
from commitlog.segment import TEMPORARY_SUFFIX, Segment, companions
from commitlog.segment_writer import open_builder

DAMAGED_SUFFIX = ".damaged"


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes [position, end_position) of a file that hold no sound batch; or an index that is not true."""

    path: str
    position: int
    end_position: int
    reason: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What verify() read and what it found wrong."""

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
    """One repaired segment: offsets in [start, end) of each lost range may be gone."""

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


def verify_segments(segments: Sequence[Segment]) -> VerifyReport:
    """Read every byte of the segments and every entry of their indexes."""
    batches = records = size = 0
    damage: list[Damage] = []
    for segment in segments:
        for _, _, found in sound_batches(segment):
            if isinstance(found, Damage):
                damage.append(found)
            else:
                batches += 1
                records += found.record_count
        size += segment.size_bytes
        damage += _missing_end(segment)
        damage += false_indexes(segment)
    return VerifyReport(len(segments), batches, records, size, tuple(damage))


def sound_batches(segment: Segment) -> Iterator[tuple[int, int, BatchHeader | Damage]]:
    """Iterate over [position, end_position) of a segment: sound batches, and the damage between them."""
    position, size = 0, segment.size_bytes
    expected = segment.base_offset
    if size == 0:
        return
    buffer = segment.buffer()
    while position < size:
        try:
            header = _next_batch(buffer, position, size, segment.path, expected)
        except CorruptionError as problem:
            end = _resume(buffer, position, size, segment.path, expected)
            yield position, end, Damage(segment.path, position, end, problem.reason)
            position = end
            continue
        yield position, position + header.size, header
        position += header.size
        expected = header.next_offset


def _next_batch(buffer: memoryview, position: int, size: int, path: str, expected: int) -> BatchHeader:
    header = check(buffer, position, size, path)
    if header.base_offset < expected:
        raise CorruptionError(path, position, f"offset {header.base_offset} follows offset {expected - 1}")
    return header


def _resume(buffer: memoryview, position: int, size: int, path: str, expected: int) -> int:
    """Return where the next sound batch starts after damage at `position`; the end if there is none."""
    raw = bytes(buffer[position:size])
    found = raw.find(MAGIC_BYTES, MAGIC_POSITION + 1)
    while found != -1:
        start = position + found - MAGIC_POSITION
        if start % 8 == 0:
            try:
                _next_batch(buffer, start, size, path, expected)
            except CorruptionError:
                pass
            else:
                return start
        found = raw.find(MAGIC_BYTES, found + 1)
    return size


def _missing_end(segment: Segment) -> list[Damage]:
    """Tell of a sealed segment that was longer once: both its indexes are whole and say so."""
    try:
        indexes = [OffsetIndex.open(companions(segment.path)[0]), TimeIndex.open(companions(segment.path)[1])]
    except FileNotFoundError:
        return []
    sealed_bytes = indexes[0].sealed_bytes
    if sealed_bytes <= segment.size_bytes or not all(index.seal_holds(sealed_bytes) for index in indexes):
        return []
    reason = f"the file had {sealed_bytes} bytes when it was sealed"
    return [Damage(segment.path, segment.size_bytes, sealed_bytes, reason)]


def _free_name(path: str) -> str:
    """Return the path, or with a number if it is taken: an earlier damaged file is not overwritten."""
    taken, number = path, 1
    while os.path.exists(taken):
        number += 1
        taken = f"{path}-{number}"
    return taken


def false_indexes(segment: Segment) -> list[Damage]:
    """List the indexes of a segment that are missing or do not agree with it."""
    found = []
    kinds: tuple[type[Index], ...] = (OffsetIndex, TimeIndex)
    for kind, path in zip(kinds, companions(segment.path), strict=True):
        try:
            true = segment.confirms_all(kind.open(path))
        except FileNotFoundError:
            found.append(Damage(path, 0, 0, "the index is missing"))
            continue
        if not (true and (segment.active or kind.open(path).seal_holds(segment.size_bytes))):
            found.append(Damage(path, 0, os.stat(path).st_size, "the index is not true"))
    return found


def salvage_segment(segment: Segment, end_offset: int, config: TopicConfig) -> Salvage:
    """Replace a damaged segment by one that holds all its sound batches; the old file stays.

    `end_offset` is where the segment's offsets must end, as far as that is known.
    """
    temporary, kept_as = segment.path + TEMPORARY_SUFFIX, _free_name(segment.path + DAMAGED_SUFFIX)
    lost: list[tuple[int, int]] = []
    buffer = segment.buffer()
    size = bytes_lost = 0
    expected, gap = segment.base_offset, None
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        for position, end, found in sound_batches(segment):
            if isinstance(found, Damage):
                bytes_lost += end - position
                gap = expected
                continue
            if gap is not None:
                lost.append((gap, found.base_offset))
                gap = None
            files.write_at(fd, [buffer[position:end]], end - position, size)
            size += end - position
            expected = found.next_offset
        files.sync_data(fd)
    finally:
        os.close(fd)
    if gap is not None:
        lost.append((gap, max(gap, end_offset)))
    files.link(segment.path, kept_as)
    files.sync_directory(os.path.dirname(segment.path))
    # crash: the damaged segment has two names -> open() meets it again under the first
    for derived in companions(segment.path):
        files.remove(derived)
    files.replace(temporary, segment.path)
    files.sync_directory(os.path.dirname(segment.path))
    segment.release()
    segment.inode = os.stat(segment.path).st_ino
    segment.size_bytes = size
    open_builder(segment, config, trust_indexes=False).finish(size)
    return Salvage(segment.path, kept_as, bytes_lost, tuple(lost), expected)
