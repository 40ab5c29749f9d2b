"""Which segments are past their time or over the size: segments in, a count out."""

from __future__ import annotations

from collections.abc import Sequence

from commitlog.config import TopicConfig
from commitlog.segments.segment import Segment


def expired(segments: Sequence[Segment], active_max_timestamp: int, config: TopicConfig, now_ms: int) -> int:
    """Return how many of the oldest segments retention_ms or retention_bytes no longer keep.

    The last segment is active, and its latest timestamp is `active_max_timestamp`; an empty one stays.
    """
    if "delete" not in config.cleanup_policy:
        return 0
    return max(
        _past_their_time(segments, active_max_timestamp, config.retention_ms, now_ms),
        _over_the_size(segments, config.retention_bytes),
    )


def _past_their_time(segments: Sequence[Segment], active_max: int, retention_ms: int, now_ms: int) -> int:
    if retention_ms == -1:
        return 0
    for number, segment in enumerate(segments):
        active = number == len(segments) - 1
        latest = active_max if active else segment.max_timestamp
        if (active and segment.size_bytes == 0) or now_ms - latest <= retention_ms:
            return number
    return len(segments)


def _over_the_size(segments: Sequence[Segment], retention_bytes: int) -> int:
    if retention_bytes == -1:
        return 0
    excess = sum(segment.size_bytes for segment in segments) - retention_bytes
    for number, segment in enumerate(segments[:-1]):
        if excess < segment.size_bytes:
            return number
        excess -= segment.size_bytes
    return len(segments) - 1
