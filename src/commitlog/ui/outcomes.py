"""Tells which records belong to a transaction that is open or aborted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Literal

from commitlog.batches.batch import RecordBatch
from commitlog.batches.format import BatchHeader
from commitlog.errors import CommitLogError
from commitlog.partition import Partition
from commitlog.partitions.layout import markers_from

Outcome = Literal["open", "aborted"]


def outcomes(partition: Partition, offsets: Iterable[int]) -> dict[int, Outcome]:
    """Return what became of the transactions of these records; what readers of committed ones see is missing.

    For a page of records: each may take a look at the files.
    """
    found: dict[int, Outcome] = {}
    with suppress(CommitLogError, FileNotFoundError):  # trimmed meanwhile
        if not partition.has_transactions:
            return found
        stable = partition.last_stable_offset
        ended = list(markers_from(partition.segments, stable, partition.next_offset))
        for offset, header in _headers(partition, sorted(offsets)):
            if not header.is_transactional:
                continue
            if offset >= stable:
                outcome = _decided(header, ended)
            else:
                outcome = "aborted" if partition.get(offset) is None else None
            if outcome is not None:
                found[offset] = outcome
    return found


def _headers(partition: Partition, offsets: list[int]) -> Iterator[tuple[int, BatchHeader]]:
    """Iterate over offsets, each with the header of its batch."""
    batch: RecordBatch | None = None
    for offset in offsets:
        if batch is None or offset >= batch.next_offset:
            batch = next(iter(partition.stored_batches(offset, offset + 1)))
        yield offset, batch.header


def _decided(header: BatchHeader, markers: Iterable[tuple[BatchHeader, int]]) -> Outcome | None:
    """Return what a marker above the last stable offset has made of a batch there."""
    for marker, first_offset in markers:
        same = marker.producer_id == header.producer_id
        if same and first_offset <= header.base_offset < marker.base_offset:
            return None if marker.commits else "aborted"
    return "open"
