"""Rates: records and bytes appended per second, from the difference between two samples."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple

from commitlog.errors import CommitLogError
from commitlog.inspect.describe import records_between
from commitlog.partition import Partition

_LEAST_SECONDS = 1.0  # between two samples that count
_STALE_SECONDS = 30.0  # after a longer pause, earlier samples say nothing about the present
_RATES = 60
_NAMES = 4096


def per_second(growth: int | None, seconds: float | None) -> float | None:
    """Return a rate; None if the growth is unknown or negative, as after a truncation."""
    return growth / seconds if growth is not None and growth >= 0 and seconds else None


def appended_bytes(partition: Partition, start: int, end: int) -> int | None:
    """Return the size of the records in [start, end); None if they are being removed.

    Unlike the difference in size_bytes, this does not shrink when retention or compaction removes records.
    """
    with suppress(CommitLogError, OSError):
        return partition.bytes_between(max(start, partition.start_offset), end) if start < end else 0
    return None


def appended_records(partition: Partition, start: int, end: int) -> int:
    """Return the number of records in [start, end), without markers; of a long range, that of its offsets."""
    return records_between(partition, start, end, "read_uncommitted")


class Rate(NamedTuple):
    """Records and bytes appended per second; None where that is not known."""

    records: float | None
    bytes: float | None


@dataclass(slots=True)
class _Watched:
    at: float
    ends: list[int]
    rates: deque[Rate] = field(default_factory=lambda: deque(maxlen=_RATES))


class RateHistory:
    """The recent rates of each topic and partition that is sampled; others cost nothing."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._watched: OrderedDict[str, _Watched] = OrderedDict()

    def look(self, name: str, partitions: Sequence[Partition]) -> list[Rate]:
        """Sample partitions under a name and return the rates between its recent samples, oldest first."""
        now, ends = self._clock(), [one.next_offset for one in partitions]
        with self._lock:
            watched = self._watched.get(name)
            if watched is None or now - watched.at > _STALE_SECONDS:
                watched = self._watched[name] = _Watched(now, ends)
            before, seconds = watched.ends, now - watched.at
            if seconds >= _LEAST_SECONDS:
                watched.at, watched.ends = now, ends
            self._watched.move_to_end(name)
            if len(self._watched) > _NAMES:
                self._watched.popitem(last=False)
        rates = [_rate(partitions, before, ends, seconds)] if seconds >= _LEAST_SECONDS else []
        with self._lock:
            watched.rates.extend(rates)
            return list(watched.rates)


def _rate(partitions: Sequence[Partition], before: list[int], ends: list[int], seconds: float) -> Rate:
    starts = [*before, *[0] * (len(ends) - len(before))]  # a topic may have grown
    if any(start > end for start, end in zip(starts, ends, strict=False)):
        return Rate(None, None)  # truncated, or another topic of the same name
    sizes = [appended_bytes(*one) for one in zip(partitions, starts, ends, strict=False)]
    size = None if None in sizes else sum(one for one in sizes if one is not None)
    records = sum(appended_records(*one) for one in zip(partitions, starts, ends, strict=False))
    return Rate(per_second(records, seconds), per_second(size, seconds))
