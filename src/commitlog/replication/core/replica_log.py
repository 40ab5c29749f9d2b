"""ReplicaLog: what replication needs from a log. Partition implements it, and so do the simulations."""

from __future__ import annotations

from typing import Protocol

from commitlog.partitions.epochs import EpochHistory
from commitlog.partitions.slices import ReplicaSlice
from commitlog.record import Buffer


class ReplicaLog(Protocol):
    """A log that leads or follows. Below high_watermark all replicas are identical."""

    @property
    def start_offset(self) -> int:
        """The first offset that may be read."""

    @property
    def next_offset(self) -> int:
        """The offset of the next append."""

    @property
    def high_watermark(self) -> int:
        """The offset at which readers stop."""

    @property
    def failure(self) -> str | None:
        """The disk error that ended all writing, None if there was none."""

    @property
    def epochs(self) -> EpochHistory:
        """The start offset of each leader epoch."""

    def lead(self, epoch: int) -> None:
        """Accept appends from now on, stamped with this leader epoch; it is durable on return."""

    def follow(self) -> None:
        """Refuse all appends except append_replicated() from now on."""

    def read_replica(self, offset: int, max_bytes: int) -> ReplicaSlice:
        """Return whole batches from the one that holds `offset` on, at least one if there is one."""

    def append_replicated(self, data: Buffer, segment_base: int) -> int:
        """Append a leader's batches byte for byte, in the segment with this base_offset; return next_offset.

        The first batch begins at next_offset. In an empty log it may begin earlier and hold next_offset,
        which is the leader's start_offset and may lie in the middle of a batch.
        """

    def truncate_from(self, offset: int) -> None:
        """Remove the records at and above `offset`, and the leader epochs that begin there."""

    def restart_at(self, offset: int) -> None:
        """Remove all records; the next append gets `offset`."""

    def trim_before(self, offset: int) -> None:
        """Remove the records below `offset`."""

    def set_high_watermark(self, offset: int) -> None:
        """Let readers read up to `offset`."""
