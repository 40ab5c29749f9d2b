"""A ReplicaLog in memory, on a disk that loses what was not synced when its node crashes.

A batch is 24 bytes: base_offset, count, leader epoch, and a number in place of its records.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from random import Random
from struct import Struct

from commitlog.errors import NotLeaderError, PartitionFailedError
from commitlog.partitions.epochs import EpochHistory
from commitlog.partitions.slices import ReplicaSlice
from commitlog.record import Buffer
from commitlog.replication.messages import NO_DATA, Bytes

BATCH = Struct("<qiiq")
_BATCHES_OF_A_SEGMENT = 5


class ViolationError(BaseException):
    """Something happened that must not. Nobody on the way takes it for a failure of a disk."""


def check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ViolationError(otherwise)


@dataclass
class Disk:
    """What one replica has on disk. Trims, cuts and epochs are durable at once; appends when synced."""

    start_offset: int = 0
    batches: list[bytes] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)  # where each of them ends
    segment_bases: list[int] = field(default_factory=list)
    restarted_at: int = 0  # the next_offset while there are no batches
    epochs: EpochHistory = EpochHistory()
    synced: int = 0  # batches that survive a crash
    high_watermark: int = 0  # as it was checkpointed
    seen_disasters: int = 0  # for the judge alone: how many had been got over when the watermark moved last

    @property
    def next_offset(self) -> int:
        return self.ends[-1] if self.ends else self.restarted_at

    def keep(self, count: int) -> None:
        """Keep the first `count` batches."""
        if not count and self.batches:
            self.restarted_at = max(self.start_offset, BATCH.unpack(self.batches[0])[0])
        del self.batches[count:], self.ends[count:], self.segment_bases[count:]
        self.synced = min(self.synced, count)

    def crash(self, random: Random) -> None:
        """Lose some of what was not synced."""
        self.keep(random.randint(self.synced, len(self.batches)))
        self.synced = len(self.batches)
        self.epochs = self.epochs.truncated_from(self.next_offset)


class MemoryLog:
    """Opened on a disk; it is gone when its node crashes, and the disk stays."""

    def __init__(self, disk: Disk | None = None) -> None:
        self.disk = disk or Disk()
        if self.disk.next_offset < self.disk.start_offset:  # lost, but removed from the front before
            self.disk.keep(0)
            self.disk.restarted_at = self.disk.start_offset
        self.leads: int | None = None
        self.failure: str | None = None
        self.start_offset = self.disk.start_offset
        self.next_offset = self.disk.next_offset
        self.high_watermark = min(max(self.disk.high_watermark, self.start_offset), self.next_offset)
        # Lowered for good: otherwise it would count again once other records stand where some were lost.
        self.disk.high_watermark = self.high_watermark

    @property
    def epochs(self) -> EpochHistory:
        return self.disk.epochs

    # --- for applications ---------------------------------------------------------------------------

    def append(self, number: int, count: int = 1) -> tuple[int, int]:
        """Append a batch of `count` records; returns their offsets, [start, end)."""
        self._check_works()
        if self.leads is None:
            raise NotLeaderError("memory", None)
        base = self.next_offset
        self._add(BATCH.pack(base, count, self.leads, number), base + count, self._segment_base(base))
        return base, base + count

    def sync(self) -> None:
        """Let all survive a crash."""
        self.disk.synced = len(self.disk.batches)

    def checkpoint(self) -> None:
        """Let the high watermark survive a crash."""
        self.disk.high_watermark = self.high_watermark

    def below(self, offset: int) -> list[bytes]:
        """Return the batches below an offset."""
        return self.disk.batches[: bisect_right(self.disk.ends, offset)]

    # --- ReplicaLog ---------------------------------------------------------------------------------

    def lead(self, epoch: int) -> None:
        self._check_works()
        self.leads = epoch
        self.disk.epochs = self.disk.epochs.begun(epoch, self.next_offset)

    def follow(self) -> None:
        self.leads = None

    def read_replica(self, offset: int, max_bytes: int) -> ReplicaSlice:
        self._check_works()
        disk = self.disk
        first = last = bisect_right(disk.ends, offset)
        if first == len(disk.ends):
            return ReplicaSlice(0, offset, NO_DATA)
        segment_base, most = disk.segment_bases[first], max(1, max_bytes // BATCH.size)
        while last < len(disk.ends) and last - first < most and disk.segment_bases[last] == segment_base:
            last += 1
        return ReplicaSlice(segment_base, disk.ends[last - 1], Bytes(b"".join(disk.batches[first:last])))

    def append_replicated(self, data: Buffer, segment_base: int) -> int:
        self._check_works()
        check(self.leads is None, "a leader follows")
        for base, count, epoch, number in BATCH.iter_unpack(data):
            if base < self.next_offset == self.start_offset < base + count:
                self.disk.keep(0)
            else:
                check(base == self.next_offset, "a gap")
            self.disk.epochs = self.disk.epochs.begun(epoch, base)
            check(self.disk.epochs.latest == epoch, "an epoch that goes back")
            self._add(BATCH.pack(base, count, epoch, number), base + count, segment_base)
        return self.next_offset

    def truncate_from(self, offset: int) -> None:
        self._check_works()
        check(offset >= self.start_offset, "cut below the start")
        self.disk.keep(bisect_right(self.disk.ends, offset))
        self.disk.epochs = self.disk.epochs.truncated_from(offset)
        self.next_offset = self.disk.next_offset
        check(self.next_offset == offset, "cut within a batch")
        self._keep_high_watermark_within()

    def restart_at(self, offset: int) -> None:
        self._check_works()
        self.disk.keep(0)
        self.disk.restarted_at = self.disk.start_offset = self.start_offset = self.next_offset = offset
        self.disk.epochs = EpochHistory()
        self._keep_high_watermark_within()

    def trim_before(self, offset: int) -> None:
        self._check_works()
        check(offset <= self.high_watermark, "trimmed above the high watermark")
        self.disk.start_offset = self.start_offset = max(self.start_offset, offset)
        self.disk.epochs = self.disk.epochs.trimmed_before(self.start_offset)

    def set_high_watermark(self, offset: int) -> None:
        self._check_works()
        check(self.high_watermark < offset <= self.next_offset, "the high watermark goes back, or too far")
        self.high_watermark = offset

    def _check_works(self) -> None:
        if self.failure is not None:
            raise PartitionFailedError("memory", self.failure)

    def _add(self, batch: bytes, end: int, segment_base: int) -> None:
        self.disk.batches.append(batch)
        self.disk.segment_bases.append(segment_base)
        self.disk.ends.append(end)  # last: other threads look for batches here
        self.next_offset = end

    def _segment_base(self, base: int) -> int:
        """Roll after a few batches."""
        bases = self.disk.segment_bases
        full = len(bases) >= _BATCHES_OF_A_SEGMENT and bases[-_BATCHES_OF_A_SEGMENT] == bases[-1]
        return base if full or not bases else bases[-1]

    def _keep_high_watermark_within(self) -> None:
        self.high_watermark = max(min(self.high_watermark, self.next_offset), self.start_offset)
        self.disk.high_watermark = min(self.disk.high_watermark, self.high_watermark)
