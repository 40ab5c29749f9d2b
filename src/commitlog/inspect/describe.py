"""Summaries of partitions and groups, from metadata: no record is read."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

from commitlog.aborted_index import AbortedRanges
from commitlog.batches.format import BatchHeader
from commitlog.compaction import dirty_ratio
from commitlog.config import IsolationLevel
from commitlog.errors import CommitLogError
from commitlog.groups.admin import GroupDescription
from commitlog.partition import Partition
from commitlog.partitions.layout import headers_between
from commitlog.partitions.reader import LogReader
from commitlog.partitions.sources import aborted_ranges

_FEW_OFFSETS = 10_000  # up to here, records_between() counts records


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """The offsets and sizes of a partition; dirty_ratio is None if the topic is not compacted."""

    partition: int
    start_offset: int
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    durable_offset: int
    records: int
    segments: int
    bytes: int
    dirty_ratio: float | None


def describe_partition(number: int, partition: Partition, *, count_records: bool) -> PartitionSummary:
    """Return a summary of a partition that is open for reading or writing.

    Compaction leaves gaps between offsets, and markers of transactions take some. With `count_records`, the
    records of such a partition are counted from its batch headers, which takes long for a large one;
    otherwise `records` counts offsets.
    """
    segments, start, end = partition.segments, partition.start_offset, partition.last_stable_offset
    now_ms = time.time_ns() // 1_000_000
    return PartitionSummary(
        partition=number,
        start_offset=start,
        next_offset=partition.next_offset,
        high_watermark=partition.high_watermark,
        last_stable_offset=end,
        durable_offset=partition.durable_offset,
        records=record_count(partition) if count_records else end - start,
        segments=len(segments),
        bytes=sum(one.size_bytes for one in segments),
        dirty_ratio=dirty_ratio(segments, partition.clean_offset, end, partition.config, now_ms),
    )


def has_gaps(partition: Partition) -> bool:
    """Return whether a partition may have offsets without a record: gaps, markers, aborted records."""
    return partition.config.compacts or partition.has_transactions


def record_count(partition: Partition) -> int:
    """Return the number of records that can be read, from batch headers if some offsets have no record."""
    start, end = partition.start_offset, partition.last_stable_offset
    if has_gaps(partition):
        with suppress(FileNotFoundError, CommitLogError):  # a segment was replaced or trimmed meanwhile
            segments = partition.segments
            aborted = aborted_ranges(segments, None) if partition.has_transactions else AbortedRanges()
            return sum(_records(one, start, aborted) for one in headers_between(segments, start, end))
    return end - start


def _records(header: BatchHeader, start: int, aborted: AbortedRanges) -> int:
    if header.is_transactional and aborted.covers(header.producer_id, header.base_offset):
        return 0
    span = header.next_offset - header.base_offset
    trimmed = max(start - header.base_offset, 0) if header.record_count == span else 0
    return header.record_count - trimmed


def records_between(
    partition: LogReader, start: int, end: int, isolation_level: IsolationLevel = "read_committed"
) -> int:
    """Return how many records a reader finds in [start, end); of a long range it counts the offsets."""
    if 0 < end - start <= _FEW_OFFSETS and partition.has_transactions:
        with suppress(FileNotFoundError, CommitLogError):  # trimmed meanwhile
            return partition.count_records(start, end, isolation_level=isolation_level)
    return max(end - start, 0)


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
