"""Figures of partitions, from metadata: no record is read."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from commitlog.compaction import cleanable
from commitlog.config import TopicConfig
from commitlog.errors import CommitLogError
from commitlog.partition import Partition
from commitlog.partitions.layout import headers_between
from commitlog.partitions.page import StatePage


@dataclass(frozen=True, slots=True)
class PartitionFigures:
    """Where a partition begins and ends, and what it takes; dirty_ratio is None without compaction."""

    partition: int
    start_offset: int
    next_offset: int
    high_watermark: int
    durable_offset: int
    records: int
    segments: int
    bytes: int
    dirty_ratio: float | None


def figures(number: int, partition: Any) -> PartitionFigures:
    """Return the figures of a partition."""
    config: TopicConfig = partition.config
    return PartitionFigures(
        number,
        partition.start_offset,
        partition.next_offset,
        partition.high_watermark,
        partition.durable_offset,
        record_count(partition, config),
        len(partition.segments),
        partition.size_bytes,
        _dirty_ratio(partition, config) if config.compacts else None,
    )


def record_count(partition: Partition, config: TopicConfig) -> int:
    """Return how many records can be read; where compaction may have removed some, headers tell."""
    start, end = partition.start_offset, partition.high_watermark
    if config.compacts:
        with suppress(FileNotFoundError, CommitLogError):  # replaced meanwhile
            return sum(one.record_count for one in headers_between(partition.segments, start, end))
    return end - start


def _dirty_ratio(partition: Partition, config: TopicConfig) -> float:
    page = StatePage.open(partition.path)
    clean_offset = page.clean_offset if page else 0
    now_ms = time.time_ns() // 1_000_000
    with suppress(FileNotFoundError, CommitLogError):  # replaced meanwhile
        return cleanable(
            partition.segments, clean_offset, partition.high_watermark, config, now_ms
        ).dirty_ratio
    return 1.0
