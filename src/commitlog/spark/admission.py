"""Decide how far a micro-batch reads: the caps of a trigger, split among partitions by their lag."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from commitlog.record import TopicPartition
from commitlog.spark.options import ReadOptions
from commitlog.spark.planning import Offsets

BytesBetween = Callable[[TopicPartition, int, int], int]
OffsetAfterBytes = Callable[[TopicPartition, int, int], int]


def shares(limit: int, lags: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Split a limit in proportion to lags; every partition with a lag gets at least 1, so none starves."""
    left, total = limit, sum(lags.values())
    found: dict[TopicPartition, int] = {}
    # smallest first, so that the largest gets what rounding leaves
    for name, lag in sorted(lags.items(), key=lambda item: (item[1], item[0])):
        if lag > 0:
            found[name] = min(max(left * lag // total, 1), lag)
            left, total = max(left - found[name], 0), total - lag
    return found


class Admission:
    """Decides where the next micro-batch ends, between the end of the last one and the end of the log."""

    def __init__(self, options: ReadOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._triggered_at = float("-inf")  # the first batch never waits, as with Kafka's connector

    def must_wait(self, start: Offsets, end: Offsets) -> bool:
        """Return whether there is less than minOffsetsPerTrigger, and maxTriggerDelay has not passed."""
        least, now = self._options.min_offsets_per_trigger or 0, self._clock()
        over = now - self._triggered_at >= self._options.max_trigger_delay
        if not over and sum(_lags(start, end).values()) < least:
            return True
        self._triggered_at = now
        return False

    def capped(
        self, start: Offsets, end: Offsets, bytes_between: BytesBetween, offset_after: OffsetAfterBytes
    ) -> Offsets:
        """Return where to stop: at `end`, or earlier for maxOffsetsPerTrigger or maxBytesPerTrigger."""
        found = dict(end)
        lags = _lags(start, end)
        records, size = self._options.max_offsets_per_trigger, self._options.max_bytes_per_trigger
        if records is not None and sum(lags.values()) > records:
            given = shares(records, lags)
            found |= {name: start.get(name, 0) + share for name, share in given.items()}
        if size is not None:
            in_bytes = {name: bytes_between(name, start.get(name, 0), found[name]) for name in lags}
            if sum(in_bytes.values()) > size:
                for name, share in shares(size, in_bytes).items():
                    found[name] = min(offset_after(name, start.get(name, 0), share), found[name])
        return found


def _lags(start: Offsets, end: Offsets) -> dict[TopicPartition, int]:
    lags = {name: offset - start.get(name, 0) for name, offset in end.items()}
    return {name: lag for name, lag in lags.items() if lag > 0}
