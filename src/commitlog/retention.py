"""Which segments are past their time or over the size: segments in, a count out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from commitlog.config import MAX_INT64, TopicConfig
from commitlog.errors import CorruptionError, UnsupportedFormatError
from commitlog.segment import Segment


class Expired(NamedTuple):
    """How many of the oldest segments may go, and the damage that keeps the next one."""

    segments: int
    damage: CorruptionError | UnsupportedFormatError | None = None


def expired(
    segments: Sequence[Segment],
    sizes: Sequence[int],
    active_max_timestamp: int,
    config: TopicConfig,
    now_ms: int,
    most: int,
) -> Expired:
    """Return how many of the oldest segments, `most` at most, retention_ms or retention_bytes no longer keep.

    The last segment is active, and its latest timestamp is `active_max_timestamp`; an empty one stays. Each
    segment has as many bytes as `sizes` says. For what is past its time every batch is read and checked: a
    damaged segment stays, with all that follow it, unless they are over the size.
    """
    if "delete" not in config.cleanup_policy:
        return Expired(0)
    by_size = min(_over_the_size(sizes, config.retention_bytes), most)
    if config.retention_ms == -1:
        return Expired(by_size)
    oldest = now_ms - config.retention_ms
    for number in range(by_size, most):
        segment, size, active = segments[number], sizes[number], number == len(segments) - 1
        if active and size == 0:
            return Expired(number)
        try:
            latest = active_max_timestamp if active else segment.max_timestamp
            if latest < oldest or latest == MAX_INT64:  # which may stand for a damaged batch
                latest = segment.latest_checked(size)
            if latest >= oldest:
                return Expired(number)
        except (CorruptionError, UnsupportedFormatError) as damage:
            return Expired(number, damage)
    return Expired(most)


def _over_the_size(sizes: Sequence[int], retention_bytes: int) -> int:
    if retention_bytes == -1:
        return 0
    excess = sum(sizes) - retention_bytes
    for number, size in enumerate(sizes[:-1]):
        if excess < size:
            return number
        excess -= size
    return len(sizes) - 1
