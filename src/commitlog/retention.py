"""Retention: decides how many segments are too old or exceed the size limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from commitlog.config import MAX_INT64, TopicConfig
from commitlog.errors import CorruptionError, UnsupportedFormatError
from commitlog.segment import Segment


class Expired(NamedTuple):
    """How many of the oldest segments may go, and the damage that protects the next one, if any."""

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
    """Return how many of the oldest segments, up to `most`, retention_ms and retention_bytes let go.

    The last segment is active, with `active_max_timestamp` as its latest timestamp; an empty one stays.
    `sizes` has the bytes of each segment. Before a segment expires by age, every batch is read and checked: a
    damaged segment stays, and so do all after it, unless they exceed the size limit.
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
            if latest < oldest or latest == MAX_INT64:  # MAX_INT64 may stand for a damaged batch
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
