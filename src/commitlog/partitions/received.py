"""What a leader sent: batches as they are on its disk, checked one by one before any of them is appended."""

from __future__ import annotations

from typing import NamedTuple

from commitlog.batches.batch import RecordBatch
from commitlog.batches.columns import Buffer
from commitlog.batches.encode import reencode
from commitlog.batches.format import BatchHeader, check, peek
from commitlog.batches.ones import walk_ones
from commitlog.errors import CorruptionError
from commitlog.partitions.epochs import NO_EPOCH, EpochStart
from commitlog.partitions.producers import SEQUENCES


class Received(NamedTuple):
    """Sound batches that follow one another, for the offsets [base_offset, next_offset).

    `places` has the base_offset of each, its position in the data and its latest timestamp. `epochs` tells
    where a leader epoch begins among them. `numbered` are the headers of those that name their producer.
    """

    data: Buffer
    base_offset: int
    next_offset: int
    places: list[tuple[int, int, int]]
    epochs: list[EpochStart]
    numbered: list[BatchHeader]


def received(data: Buffer, base_offset: int, source: str) -> Received:
    """Check batches that go on from `base_offset`; CorruptionError, which names `source`, if one is not so.

    The first one may begin before, for the leader's compaction puts small batches together: then the rest of
    it is encoded anew.
    """
    data = _from_offset(data, base_offset, source)
    found = Received(data, base_offset, base_offset, [], [], [])
    view, place, end, offset, epoch = memoryview(data), 0, len(data), base_offset, NO_EPOCH
    while place < end:
        header = check(view, place, end, source)
        if header.base_offset != offset:
            raise CorruptionError(source, place, f"offset {header.base_offset} stands where {offset} should")
        RecordBatch(header, view[place : place + header.size], source, place).check_contents()
        if header.record_count:  # what a repair put where records are lost has no epoch of its own
            if header.leader_epoch < max(epoch, 0):
                raise CorruptionError(source, place, f"leader epoch {header.leader_epoch} follows {epoch}")
            if header.leader_epoch > epoch:
                epoch = header.leader_epoch
                found.epochs.append(EpochStart(epoch, offset))
        if header.producer_id != -1:
            found.numbered.append(header)
        found.places.append((offset, place, header.max_timestamp))
        place, offset = walk_ones(view, place + header.size, end, header.next_offset, epoch, found.places)
    return found._replace(next_offset=offset)


def _from_offset(data: Buffer, offset: int, source: str) -> Buffer:
    """Return batches without what lies below `offset` in the first of them."""
    first, end, _ = peek(data, 0, source)
    if not first < offset < end:
        return data
    header = check(data, 0, len(data), source)
    batch = RecordBatch.decode(data, path=source).slice(offset, header.next_offset)
    producer_id, producer_epoch, sequence = header.producer
    if producer_id != -1:
        sequence = (sequence + offset - header.base_offset) % SEQUENCES
    part = reencode(batch, header.next_offset - offset, offset, (producer_id, producer_epoch, sequence))
    return b"".join((*part.stamped(offset, header.leader_epoch), memoryview(data)[header.size :]))
