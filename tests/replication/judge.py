"""Judge: what must never happen to a partition, whatever fails.

It knows what nobody in the cluster knows: who has crashed, what was acknowledged, what anybody could read.

1. No acknowledged record is lost. A record that was appended with acks="all" and acknowledged is on every
   later leader, unless all in-sync replicas have failed: unless at some moment since, every member of the
   ISR, as the controller keeps it, had crashed after it got in (a clean stop is no crash: such a node has
   everything on disk), or an unclean election was allowed and made. That is a disaster: from the next
   election on, what that leader has is the truth.
2. A record once read is never gone or different: everything below any replica's high watermark is the same on
   all, batch for batch, and no replica cuts below its own high watermark, but to get over a disaster. (A
   crashed node may come back with a lower one: it is a new life.)
3. An epoch has one leader, and that in one life of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from commitlog.replication.cluster import PartitionState

from .memory_log import BATCH, Disk, MemoryLog, ViolationError


class Judge:
    """Of one partition. A life is a node and how often it was started."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, bytes] = {}  # batches, by base_offset
        self.readable: dict[int, bytes] = {}
        self.readable_end = 0
        self.first_known = 0  # the first leader after the last disaster had trimmed what lies below
        self.leaders: dict[int, tuple[int, int]] = {}
        self.intact: set[int] = set()  # members of the ISR that have not crashed since they got in
        self.disasters = 0
        self.rebased_epoch = 0  # epochs below it are of before the last disaster
        self.rebase_pending = False

    # --- what the controller and the nodes do -------------------------------------------------------

    def state_changed(
        self, before: PartitionState | None, after: PartitionState, running: Iterable[int], unclean: bool
    ) -> None:
        known = set(before.isr) if before else set()
        self.intact |= (set(after.isr) - known) & set(running)
        self.intact &= set(after.isr)
        elected = before is not None and after.leader_epoch > before.leader_epoch
        if elected and unclean and after.leader not in known:
            self.intact.clear()
        if not self.intact:
            self._disaster(before.leader_epoch if before else 0)
            if elected:
                self.intact = set(after.isr) & set(running)

    def crashed(self, node_id: int, state: PartitionState) -> None:
        if node_id in self.intact:
            self.intact.discard(node_id)
            if not self.intact:
                self._disaster(state.leader_epoch)

    def _disaster(self, epoch: int) -> None:
        self.disasters += 1
        self.rebased_epoch = epoch + 1
        self.rebase_pending = True

    def acknowledge(self, base: int, batch: bytes, epoch: int) -> None:
        if epoch >= self.rebased_epoch:
            if self.readable.get(base) != batch:
                raise ViolationError(f"acknowledged, but not readable: {BATCH.unpack(batch)}")
            self.acknowledged[base] = batch

    # --- what a log does ----------------------------------------------------------------------------

    def led(self, life: tuple[int, int], epoch: int, log: MemoryLog) -> None:
        if self.leaders.setdefault(epoch, life) != life:
            raise ViolationError(f"epoch {epoch} is led by {self.leaders[epoch]} and {life}")
        if self.rebase_pending and epoch >= self.rebased_epoch:
            self._rebase(log)
        for base, batch in self.acknowledged.items():
            if base >= log.start_offset and batch_at(log, base) != batch:
                raise ViolationError(
                    f"{life} leads epoch {epoch} without {BATCH.unpack(batch)}, which was acknowledged"
                )

    def _rebase(self, log: MemoryLog) -> None:
        """Take what the first leader after a disaster has for the truth."""
        self.rebase_pending = False
        place = bisect_right(log.disk.ends, log.start_offset)
        first = BATCH.unpack(log.disk.batches[place])[0] if place < len(log.disk.ends) else log.start_offset
        self.first_known = first
        known = {
            base: batch
            for base, batch in self.readable.items()
            if sum(BATCH.unpack(batch)[:2]) <= first or batch_at(log, base) == batch
        }
        # what was trimmed is still on the disk, but nobody can read it
        there = {BATCH.unpack(batch)[0]: batch for batch in log.disk.batches[place:]}
        read = [*known.values(), *log.below(log.high_watermark)]
        self.readable_end = max((sum(BATCH.unpack(batch)[:2]) for batch in read), default=0)
        self.readable = known | {base: batch for base, batch in there.items() if base < self.readable_end}
        self.acknowledged = {
            base: batch for base, batch in self.acknowledged.items() if batch_at(log, base) == batch
        }

    def becomes_readable(self, batches: list[bytes], life: tuple[int, int], epoch: int) -> bool:
        """Check batches that a replica lets be read; False if it has not heard of a disaster yet."""
        if epoch < self.rebased_epoch:
            return False
        for batch in batches:
            base, count = BATCH.unpack(batch)[:2]
            known = self.readable.get(base)
            if known is None and base + count <= self.first_known:  # this replica has not trimmed it yet
                self.readable[base] = batch
                continue
            if known != batch and (known is not None or base < self.readable_end):
                other = (
                    BATCH.unpack(known) if known else f"nothing that begins there, up to {self.readable_end}"
                )
                raise ViolationError(
                    f"{life} lets {BATCH.unpack(batch)} be read in epoch {epoch}, others {other}"
                )
            self.readable[base] = batch
            self.readable_end = max(self.readable_end, base + count)
        return True


def batch_at(log: MemoryLog, base: int) -> bytes | None:
    """Return the batch that begins at an offset, None if none does."""
    place = bisect_right(log.disk.ends, base)
    if place == len(log.disk.batches):
        return None
    batch = log.disk.batches[place]
    return batch if BATCH.unpack(batch)[0] == base else None


class WatchedLog(MemoryLog):
    """A log under the eyes of a judge. `role_epoch` is the epoch in which its replica leads or follows."""

    def __init__(self, disk: Disk, judge: Judge, life: tuple[int, int]) -> None:
        super().__init__(disk)
        self.judge = judge
        self.life = life
        self.role_epoch = lambda: -1

    def lead(self, epoch: int) -> None:
        super().lead(epoch)
        self.judge.led(self.life, epoch, self)

    def set_high_watermark(self, offset: int) -> None:
        ends = self.disk.ends
        batches = self.disk.batches[bisect_right(ends, self.high_watermark) : bisect_right(ends, offset)]
        super().set_high_watermark(offset)
        if self.judge.becomes_readable(batches, self.life, self.role_epoch()):
            self.disk.seen_disasters = self.judge.disasters

    def truncate_from(self, offset: int) -> None:
        self._check_cut(offset)
        super().truncate_from(offset)

    def restart_at(self, offset: int) -> None:
        self._check_cut(offset)
        super().restart_at(offset)

    def _check_cut(self, offset: int) -> None:
        if offset < self.high_watermark and self.disk.seen_disasters >= self.judge.disasters:
            raise ViolationError(f"{self.life} cuts back to {offset}; read up to {self.high_watermark}")
