"""What a node sends to a client that reads committed records: batches, and which of them are aborted."""

from __future__ import annotations

from dataclasses import replace

from commitlog.aborted_index import Aborted, AbortedRanges
from commitlog.batches.format import header_at
from commitlog.errors import CorruptionError
from commitlog.partition import Partition
from commitlog.partitions.slices import FileSlice, ReplicaSlice
from commitlog.replication.messages import MOST_ABORTED


def read_committed(
    partition: Partition, offset: int, max_bytes: int
) -> tuple[int, ReplicaSlice | None, tuple[Aborted, ...]]:
    """Return the last stable offset, whole batches from `offset` up to there, None if there are none, and the
    aborted transactions among them.
    """
    while True:
        changes = partition.changes
        stable, mark = partition.last_stable_offset, partition.high_watermark
        if offset >= stable or not max_bytes:
            return stable, None, ()
        found = partition.read_replica(offset, max_bytes, stable if stable < mark else None)
        if not partition.has_transactions:
            return stable, found, ()
        # after the offset: what is aborted below it is known by then
        aborted = partition.aborted_transactions()
        few = aborted.between(offset, found.next_offset)
        if partition.changes != changes:  # compaction may have removed a marker whose records were read
            continue
        if aborted.damage is None and len(few) <= MOST_ABORTED:
            return stable, found, tuple(few)
        return stable, *_named(found, aborted)


def _named(found: ReplicaSlice, aborted: AbortedRanges) -> tuple[ReplicaSlice, tuple[Aborted, ...]]:
    """Return the batches up to one that would be one too many, or of which nobody knows whether it is
    aborted, and exactly the transactions that are aborted among them.

    CorruptionError if that is so of the first batch.
    """
    assert isinstance(found.data, FileSlice)
    data, named, place = found.data.read(), set[Aborted](), 0
    while place < found.data.size:
        header = header_at(data, place)
        assert header is not None, "batches follow one another"
        try:
            one = (
                aborted.covering(header.producer_id, header.base_offset) if header.is_transactional else None
            )
        except CorruptionError:
            if place == 0:
                raise
            break
        if one is not None and one not in named:
            if len(named) == MOST_ABORTED:
                break
            named.add(one)
        place += header.size
    else:
        return found, tuple(named)
    cut = replace(found.data, size=place)
    return found._replace(next_offset=header.base_offset, data=cut), tuple(named)
