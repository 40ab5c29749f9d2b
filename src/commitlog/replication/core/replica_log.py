"""ReplicaLog: what replication asks of a partition's files. Partition does it; simulations have their own."""

from __future__ import annotations

from typing import Protocol

from commitlog.partitions.epochs import EpochHistory
from commitlog.partitions.slices import ReplicaSlice
from commitlog.record import Buffer


class ReplicaLog(Protocol):
    """A log that leads or follows. Below high_watermark all replicas are the same."""

    @property
    def start_offset(self) -> int:
        """The first offset that may be read."""

    @property
    def next_offset(self) -> int:
        """The offset that the next append gets."""

    @property
    def high_watermark(self) -> int:
        """Readers stop here."""

    @property
    def failure(self) -> str | None:
        """The disk error after which nothing is written any more, None while all is well."""

    @property
    def epochs(self) -> EpochHistory:
        """Where each leader epoch begins."""

    def lead(self, epoch: int) -> None:
        """Take appends from now on, stamped with this leader epoch; durable before it returns."""

    def follow(self) -> None:
        """Refuse appends but those of append_replicated() from now on."""

    def read_replica(self, offset: int, max_bytes: int) -> ReplicaSlice:
        """Return whole batches from the one that holds `offset` on, at least one if there is one."""

    def append_replicated(self, data: Buffer, segment_base: int) -> int:
        """Append a leader's batches byte for byte, in a segment of that base_offset; returns next_offset.

        The first begins at next_offset. Where there are no records it may begin before, and hold next_offset:
        that was the leader's start_offset, which may be in the middle of a batch.
        """

    def truncate_from(self, offset: int) -> None:
        """Remove the records at and above `offset`, and the leader epochs that begin there."""

    def restart_at(self, offset: int) -> None:
        """Remove all records; the next append gets `offset`."""

    def trim_before(self, offset: int) -> None:
        """Remove the records below `offset`."""

    def set_high_watermark(self, offset: int) -> None:
        """Let readers read up to here."""


__all__ = ["ReplicaLog", "ReplicaSlice"]
