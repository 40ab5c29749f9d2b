"""Summaries of partitions and groups, from metadata: no record is read."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

from commitlog.compaction import dirty_ratio
from commitlog.errors import CommitLogError
from commitlog.groups.admin import GroupDescription
from commitlog.partition import Partition
from commitlog.partitions.layout import headers_between


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """The offsets and sizes of a partition; dirty_ratio is None if the topic is not compacted."""

    partition: int
    start_offset: int
    next_offset: int
    high_watermark: int
    durable_offset: int
    records: int
    segments: int
    bytes: int
    dirty_ratio: float | None


def describe_partition(number: int, partition: Partition, *, count_records: bool) -> PartitionSummary:
    """Return a summary of a partition that is open for reading or writing.

    Compaction leaves gaps between offsets. With `count_records`, the records of a compacted partition are
    counted from its batch headers, which takes long for a large one; otherwise `records` counts offsets.
    """
    segments, start, end = partition.segments, partition.start_offset, partition.high_watermark
    now_ms = time.time_ns() // 1_000_000
    return PartitionSummary(
        partition=number,
        start_offset=start,
        next_offset=partition.next_offset,
        high_watermark=end,
        durable_offset=partition.durable_offset,
        records=record_count(partition) if count_records else end - start,
        segments=len(segments),
        bytes=sum(one.size_bytes for one in segments),
        dirty_ratio=dirty_ratio(segments, partition.clean_offset, end, partition.config, now_ms),
    )


def record_count(partition: Partition) -> int:
    """Return the number of records that can be read, for a compacted partition from its batch headers."""
    start, end = partition.start_offset, partition.high_watermark
    if partition.config.compacts:
        with suppress(FileNotFoundError, CommitLogError):  # a segment was replaced or trimmed meanwhile
            return sum(one.record_count for one in headers_between(partition.segments, start, end))
    return end - start


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A summary of a consumer group; `lag` is the sum over its partitions, None if nothing is committed."""

    group_id: str
    state: str
    members: int
    partitions: int
    topics: tuple[str, ...]
    lag: int | None
    worst_lag: int


def summarize_group(group: GroupDescription, topic: str | None = None) -> GroupSummary:
    """Return a summary of a group, or of what it reads from one topic."""
    read = [one for one in group.partitions if topic in (None, one.topic)]
    lags = [one.lag for one in read if one.lag is not None]
    return GroupSummary(
        group_id=group.group_id,
        state=group.state,
        members=len(group.members),
        partitions=len(read),
        topics=tuple(sorted({one.topic for one in read})),
        lag=sum(lags) if lags else None,
        worst_lag=max(lags, default=0),
    )
