"""Divide the verification of a log among tasks, by segments of roughly even bytes, and join the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from commitlog.record import TopicPartition
from commitlog.repair import VerifiedPart, VerifyReport

# The overhead of a Spark task is about 50 ms; checking this many bytes takes about as long.
LEAST_BYTES = 64 << 20
Sizes = Sequence[tuple[int, int]]  # base_offset and bytes of each segment of a partition


class Part(NamedTuple):
    """The segments of a partition whose base_offset is in [start, end); None means no end.

    Offsets rather than files, because segments are rolled, trimmed and merged while tasks wait.
    """

    name: TopicPartition
    start: int = 0
    end: int | None = None


def task_count(size_bytes: int, slots: int) -> int:
    """Return how many tasks to create: a few per slot, so that slots finish at about the same time."""
    return max(min(size_bytes // LEAST_BYTES, 4 * slots), 1)


def divided(partitions: Mapping[TopicPartition, Sizes], tasks: int) -> list[list[Part]]:
    """Divide the segments of partitions, in order, among about this many tasks."""
    total = sum(size for sizes in partitions.values() for _, size in sizes)
    target = max(-(-total // tasks), 1)
    groups: list[list[Part]] = []
    group: list[Part] = []
    filled = 0
    for name, sizes in partitions.items():
        ends = [base for base, _ in sizes[1:]]
        start = 0
        for end, (_, size) in zip([*ends, None], sizes, strict=True):
            filled += size
            if end is None or filled >= target:
                group.append(Part(name, start, end))
                start = end or 0
            if filled >= target:
                groups.append(group)
                group, filled = [], 0
    return [*groups, group] if group else groups


def joined(parts: Sequence[VerifiedPart]) -> VerifyReport | None:
    """Return the report over all parts of a partition, given in order.

    None if a part does not end where the next one begins: segments were merged or removed between two tasks,
    and some may not have been checked.
    """
    if any(before.following != after.first for before, after in pairwise(parts)):
        return None
    reports = [part.report for part in parts]
    return VerifyReport(
        sum(report.segments for report in reports),
        sum(report.batches for report in reports),
        sum(report.records for report in reports),
        sum(report.bytes_checked for report in reports),
        tuple(damage for report in reports for damage in report.damage),
    )
