"""Segments replaced by copies, shorter or repaired: a file that somebody may have mapped never shrinks."""

from __future__ import annotations

import os
from collections.abc import Sequence

from commitlog import files
from commitlog.batches.encode import reencode
from commitlog.config import TopicConfig
from commitlog.errors import CorruptionError
from commitlog.segments.segment import TEMPORARY_SUFFIX, Segment, companions
from commitlog.segments.segment_writer import open_builder
from commitlog.steps import Progress, Steps
from commitlog.upkeep.repair import (
    Damage,
    RepairReport,
    Salvage,
    counted,
    false_indexes,
    fill_hole,
    salvage_segment,
    sound_batches,
)


def shorter_copy(segment: Segment, offset: int) -> int:
    """Write a copy that ends before `offset` beside a segment, durably; returns its size.

    A batch across `offset` is encoded again. What goes may be damaged; the last batch that stays is checked,
    as it says where to cut. Nothing is left if there is no room.
    """
    position, batch = 0, None
    if offset > segment.base_offset:
        position = segment.position_of(offset - 1)
        batch = next(segment.batches_from(position), None)
        if batch is None or not batch.base_offset < offset <= batch.next_offset:
            raise CorruptionError(segment.path, position, f"offset {offset - 1} is missing")
        if batch.next_offset == offset:
            position, batch = position + batch.size_bytes, None
    temporary = segment.path + TEMPORARY_SUFFIX
    size = position
    try:
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
        try:
            files.copy_start(segment.path, fd, position)
            if batch is not None:
                header = batch.header
                part = reencode(batch.slice(header.base_offset, offset), offset - header.base_offset)
                pieces = part.stamped(header.base_offset, header.leader_epoch)
                files.write_at(fd, pieces, part.size, position)
                size += part.size
            files.sync_data(fd)
        finally:
            os.close(fd)
    except BaseException:
        files.remove(temporary)
        raise
    return size


def put_in_place(segment: Segment, size: int) -> Segment:
    """Replace a segment by the copy that shorter_copy() wrote."""
    # crash: the copy is still .tmp -> open() removes it, the segment is whole
    for derived in companions(segment.path):
        files.remove(derived)
    # crash: no indexes -> open() rebuilds them
    files.replace(segment.path + TEMPORARY_SUFFIX, segment.path)
    files.sync_directory(os.path.dirname(segment.path))
    segment.release()
    return Segment(segment.path, segment.base_offset, size, segment.cache)


def repaired(
    segments: Sequence[Segment], end_offset: int, config: TopicConfig, progress: Progress | None = None
) -> tuple[list[Segment], RepairReport]:
    """Salvage the damaged ones of sealed segments that end at `end_offset`, and rebuild false indexes."""
    kept: list[Segment] = []
    salvaged: list[Salvage] = []
    rebuilt = 0
    steps = Steps(progress, sum(segment.size_bytes for segment in segments))
    ends = [*(segment.base_offset for segment in segments[1:]), end_offset]
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
    batches = counted(sound_batches(segment, end_offset), steps)
    return any(isinstance(found, Damage) for _, _, found in batches)


def _rebuild_indexes(segment: Segment, end_offset: int, config: TopicConfig) -> int:
    """Make the indexes of a sound segment anew if one is false; returns how many were."""
    bad = false_indexes(segment)
    if bad:
        for path in companions(segment.path):
            files.remove(path)
        segment.release()
        open_builder(segment, config, trust_indexes=False).finish(segment.size_bytes, end_offset)
    return len(bad)
