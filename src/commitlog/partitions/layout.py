"""Layout: the segments of a partition at one moment, and how offsets map to bytes, from metadata alone.

Bytes are counted as if the segments were one file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple, Self

from commitlog.batches.format import BatchHeader
from commitlog.segment import Segment


class Layout(NamedTuple):
    """The segments of a partition at one moment; another `generation` means that they have changed."""

    segments: tuple[Segment, ...]
    bases: tuple[int, ...]
    generation: int

    @classmethod
    def of(cls, segments: Sequence[Segment], generation: int) -> Self:
        """Return a layout of segments, which must be in order."""
        return cls(tuple(segments), tuple(segment.base_offset for segment in segments), generation)

    def find(self, offset: int) -> int:
        """Return the index of the segment that holds `offset`."""
        return max(bisect_right(self.bases, offset) - 1, 0)


def batch_start(segments: Sequence[Segment], offset: int) -> int:
    """Return the base_offset of the stored batch that holds `offset`; `offset` itself if none does."""
    found = _header_of(segments, offset)
    return offset if found is None else found.base_offset


def bytes_between(segments: Sequence[Segment], start: int, end: int) -> int:
    """Return the bytes from the batch that holds `start` up to the batch that holds `end`."""
    return max(_place(segments, end) - _place(segments, start), 0)


def offset_after_bytes(segments: Sequence[Segment], start: int, end: int, max_bytes: int) -> int:
    """Return the end of the stored batches from `start` on that fit into `max_bytes`, `end` at most.

    It covers at least one batch, so that a caller that reads in steps makes progress.
    """
    sums = [0, *accumulate(segment.size_bytes for segment in segments)]
    target = _place(segments, start) + max_bytes
    if target >= sums[-1]:
        return end
    number = bisect_right(sums, target) - 1
    segment, limit = segments[number], target - sums[number]
    stop = segment.base_offset
    for position, header in segment.headers(segment.start_before(limit)):
        if position > limit:
            break
        stop = header.base_offset
    if stop <= start:
        first = _header_of(segments, start)
        stop = end if first is None else first.next_offset
    return min(stop, end)


def headers_between(
    segments: Sequence[Segment], start: int, end: int, *, sound: bool = False
) -> Iterator[BatchHeader]:
    """Iterate over the headers of the batches in [start, end); with `sound`, skip damaged ones."""
    ends = [*(one.base_offset for one in segments[1:]), end]
    for segment, after in zip(segments, ends, strict=True):
        if after <= start or segment.base_offset >= end or segment.size_bytes == 0:
            continue
        position = segment.position_of(start) if start > segment.base_offset else 0
        for _, header in segment.sound_headers(position) if sound else segment.headers(position):
            if header.base_offset >= end:
                return
            yield header


def markers_from(segments: Sequence[Segment], start: int, end: int) -> Iterator[tuple[BatchHeader, int]]:
    """Iterate over the markers in [start, end), each with the first offset of its transaction."""
    for segment in segments[_segment_of(segments, start) :]:
        if segment.base_offset >= end or segment.size_bytes == 0:
            continue
        position = segment.position_of(start) if start > segment.base_offset else 0
        for header, first_offset in segment.markers(position):
            if header.base_offset >= end:
                return
            yield header, first_offset


def _segment_of(segments: Sequence[Segment], offset: int) -> int:
    return max(bisect_right([segment.base_offset for segment in segments], offset) - 1, 0)


def _header_of(segments: Sequence[Segment], offset: int) -> BatchHeader | None:
    segment = segments[_segment_of(segments, offset)]
    headers = (header for _, header in segment.headers(segment.start_for(offset)))
    return next((header for header in headers if header.next_offset > offset), None)


def _place(segments: Sequence[Segment], offset: int) -> int:
    number = _segment_of(segments, offset)
    before = sum(segment.size_bytes for segment in segments[:number])
    return before + segments[number].position_of(offset)
