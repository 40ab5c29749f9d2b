"""Search records forwards or backwards, by key and content, with a limit on the work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from commitlog.config import IsolationLevel
from commitlog.partition import Partition
from commitlog.record import Record

_MOST_RECORDS = 500_000  # that one request reads
_MOST_BYTES = 64 * 1024 * 1024
_MOST_WINDOWS = 256
_LARGEST_WINDOW = 65_536


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records to find: those with this key, those whose value contains these bytes, or all."""

    key: bytes | None = None
    contains: bytes | None = None

    @property
    def all(self) -> bool:
        """Whether every record matches."""
        return self.key is None and self.contains is None

    def __call__(self, record: Record) -> bool:
        """Return whether a record matches."""
        if self.key is not None and record.key != self.key:
            return False
        return self.contains is None or (record.value is not None and self.contains in record.value)


@dataclass(frozen=True, slots=True)
class Found:
    """Matching records, and the offsets [start, end) that were searched for them."""

    records: list[Record]
    start: int
    end: int


class _Budget:
    """Counts the records and bytes that a request has read."""

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0

    def spend(self, record: Record) -> None:
        self.records += 1
        self.bytes += len(record.value or b"") + len(record.key or b"")

    @property
    def spent(self) -> bool:
        return self.records >= _MOST_RECORDS or self.bytes >= _MOST_BYTES


def oldest_first(
    partition: Partition,
    start: int,
    limit: int,
    wanted: Wanted,
    isolation_level: IsolationLevel = "read_committed",
) -> Found:
    """Return up to `limit` records from `start` on, ascending."""
    end = partition.end_offset(isolation_level)
    start = min(max(start, partition.start_offset), end)
    budget, records = _Budget(), []
    for record in partition.records(start, end, isolation_level=isolation_level):
        budget.spend(record)
        if wanted(record):
            records.append(record)
        if len(records) == limit or budget.spent:
            return Found(records, start, record.offset + 1)
    return Found(records, start, end)


def newest_first(
    partition: Partition,
    end: int,
    limit: int,
    wanted: Wanted,
    isolation_level: IsolationLevel = "read_committed",
) -> Found:
    """Return up to `limit` records below `end`, descending."""
    start = partition.start_offset
    end = min(max(end, start), partition.end_offset(isolation_level))
    budget, low = _Budget(), end
    records: list[Record] = []
    for low, high in _windows(partition, start, end, limit):
        matching = []
        for record in partition.records(low, high, isolation_level=isolation_level):
            budget.spend(record)
            if wanted(record):
                matching.append(record)
        records += reversed(matching)
        if len(records) >= limit:
            records = records[:limit]
            return Found(records, records[-1].offset, end)
        if budget.spent:
            break
    return Found(records, low, end)


def _windows(partition: Partition, start: int, end: int, first: int) -> Iterator[tuple[int, int]]:
    """Split [start, end) backwards, into ranges that grow but never have too many bytes."""
    size = first
    for _ in range(_MOST_WINDOWS):
        if end <= start:
            return
        low = max(start, end - size)
        while end - low > 1 and partition.bytes_between(low, end) > _MOST_BYTES:
            low = end - (end - low) // 2
        yield low, end
        end, size = low, min(size * 4, _LARGEST_WINDOW)
