"""What was published: records of the compacted topic __publications, and a table of the latest ones.

The key is the transaction's id. A record with a list of staged files commits an epoch; one without it, which
follows, tells that all of them are appended. As JSON: {"epoch": 7, "before": 6, "staged": [["orders", 0,
"00f3...", size, records, checksum, topic_id], ...]} and then {"epoch": 7}.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import Any

from commitlog.batches.staged import StagedFile
from commitlog.partitions.partition import Partition
from commitlog.partitions.reader import PartitionReader

TOPIC = "__publications"
TOPIC_CONFIG: dict[str, Any] = {
    "cleanup_policy": "compact",
    "compression_type": "zstd",
    "segment_bytes": 8 << 20,  # the active segment is not compacted, and read at open
    "segment_index_bytes": 1 << 20,
    "segment_ms": 24 * 60 * 60 * 1000,
    "max_message_bytes": 32 << 20,  # before compression; a staged file takes about 60 bytes of it
}


@dataclass(frozen=True, slots=True)
class Publication:
    """An epoch that is committed. `staged` is what is to be appended, None once it is; `before` is the epoch
    that was published before, None if this is the first.
    """

    txn_id: str
    epoch: int
    before: int | None = None
    staged: tuple[StagedFile, ...] | None = None


class Publications:
    """The latest publication of each transaction. Threads may share it."""

    def __init__(self, partition: PartitionReader) -> None:
        self._partition = partition
        self._lock = threading.Lock()
        self._table: dict[str, Publication] = {}
        self._next_offset = 0

    def latest(self, txn_id: str) -> Publication | None:
        """Return the latest publication of a transaction."""
        with self._lock:
            self._catch_up()
            return self._table.get(txn_id)

    def unfinished(self) -> list[Publication]:
        """Return what is committed, but perhaps not appended: at most one, as they are made one at a time."""
        with self._lock:
            self._catch_up()
            return [one for one in self._table.values() if one.staged is not None]

    def write(self, publication: Publication) -> None:
        """Store a publication durably."""
        assert isinstance(self._partition, Partition)
        key, value = _to_json(publication)
        self._partition.append(value, key=key, sync=True)

    def sync(self) -> None:
        """Make durable what another process may have written just before it died."""
        assert isinstance(self._partition, Partition)
        self._partition.sync()

    def _catch_up(self) -> None:
        """Read what was written since; a pass of compaction only removes what was overwritten."""
        end = self._partition.high_watermark
        if end > self._next_offset:
            start = max(self._next_offset, self._partition.start_offset)
            new = {record.key: record.value for record in self._partition.records(start, end)}
            for key, value in new.items():
                assert key is not None and value is not None
                one = _from_json(key, value)
                self._table[one.txn_id] = one
            self._next_offset = end


def _to_json(publication: Publication) -> tuple[bytes, bytes]:
    stored: dict[str, Any] = {"epoch": publication.epoch}
    if publication.staged is not None:
        stored["before"] = publication.before
        stored["staged"] = [
            [
                one.topic,
                one.partition,
                f"{one.file_id:016x}",
                one.size_bytes,
                one.records,
                one.checksum,
                one.topic_id,
            ]
            for one in publication.staged
        ]
    return publication.txn_id.encode(), json.dumps(stored, separators=(",", ":")).encode()


def _from_json(key: bytes, value: bytes) -> Publication:
    stored = json.loads(value)
    staged = None
    if "staged" in stored:
        staged = tuple(
            StagedFile(topic, partition, int(file_id, 16), *rest)
            for topic, partition, file_id, *rest in stored["staged"]
        )
    return Publication(key.decode(), stored["epoch"], stored.get("before"), staged)
