"""Markers: control batches that commit or abort the transaction of a producer in one partition.

A marker has no records and takes one offset. Its header names the producer and the epoch of the transaction;
base_sequence says what it decides. The body is that of a batch without records, except that the offset of the
transaction's first batch takes the place of the two constants, which mean nothing without records. So a
reader that knows nothing of transactions skips it, and the list of aborted transactions can be rebuilt from
markers alone.
"""

from __future__ import annotations

from struct import Struct

from commitlog.batches.encode import EncodedBatch
from commitlog.batches.format import (
    ABORT,
    CHECKED,
    COMMIT,
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    HORIZON,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
)
from commitlog.checksum import crc32c
from commitlog.record import Buffer

_BODY = Struct("<8xq")  # no column has a form; first_offset
_MARKER = Struct(CHECKED.format + _BODY.format[1:])
MARKER_BYTES = HEADER_BYTES + _BODY.size  # of a marker that compaction has not seen


def encode_marker(
    producer_id: int,
    epoch: int,
    *,
    commits: bool,
    first_offset: int,
    timestamp: int,
    delete_horizon: int | None = None,
) -> EncodedBatch:
    """Return the marker that ends the transaction whose first batch in the partition is at `first_offset`."""
    decision, flags, size = COMMIT if commits else ABORT, TRANSACTIONAL | CONTROL, MARKER_BYTES
    if delete_horizon is not None:
        flags, size = flags | DELETE_HORIZON, size + HORIZON.size
    whole = _MARKER.pack(
        MAGIC, size, producer_id, timestamp, timestamp, decision, 0, 0, epoch, flags, first_offset
    )
    if delete_horizon is not None:
        whole = whole[: CHECKED.size] + HORIZON.pack(delete_horizon) + whole[CHECKED.size :]
    return EncodedBatch(crc32c(whole), (whole,), size, 1, timestamp, (producer_id, epoch, decision))


def first_offset_of(header: BatchHeader, buffer: Buffer, position: int) -> int:
    """Return where the transaction begins that the marker at `position` of a checked buffer ends."""
    start = position + HEADER_BYTES + (HORIZON.size if header.flags & DELETE_HORIZON else 0)
    return int(_BODY.unpack_from(buffer, start)[0])
