"""Publications: the records of the compacted topic __publications, and a table of the latest ones.

The key is the id of the transaction. A record with a list of staged files commits an epoch; a later one
without it says that all of them are appended. As JSON: {"epoch": 7, "before": 6, "staged": [["orders", 0,
name, size, records, checksum, topic_id], ...]} and then {"epoch": 7}.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import Any

from commitlog.batches.staged import Claim, StagedFile, hash_of, parse_name
from commitlog.errors import CorruptionError
from commitlog.ids import is_id
from commitlog.partition import Partition
from commitlog.topics.catalog import check_topic_name

TOPIC = "__publications"
TOPIC_CONFIG: dict[str, Any] = {
    "cleanup_policy": "compact",
    "compression_type": "zstd",
    "segment_bytes": 8 << 20,  # the active segment is never compacted, and is read at open
    "segment_index_bytes": 1 << 20,
    "segment_ms": 24 * 60 * 60 * 1000,
    "max_message_bytes": 32 << 20,  # before compression; a staged file takes about 120 bytes
}


@dataclass(frozen=True, slots=True)
class Publication:
    """A committed epoch. `staged` has the files to append, None once they are; `before` is the previous
    published epoch, None if this is the first.
    """

    txn_id: str
    epoch: int
    before: int | None = None
    staged: tuple[StagedFile, ...] | None = None


class Publications:
    """The latest publication of each transaction. Threads may share it."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._lock = threading.Lock()
        self._table: dict[str, Publication] = {}
        self._unfinished: dict[str, Publication] = {}  # those of the table that have files to append
        self._by_hash: dict[str, Publication] = {}  # the same ones, by the hash that claims have
        self._next_offset = 0

    def latest(self, txn_id: str) -> Publication | None:
        """Return the latest publication of a transaction; None if there is none."""
        with self._lock:
            self._catch_up()
            return self._table.get(txn_id)

    def is_over(self, claim: Claim) -> bool:
        """Say whether an epoch is completely published, or a later one is: then nothing staged is needed."""
        with self._lock:
            self._catch_up()
            latest = self._by_hash.get(claim.txn_hash)
        if latest is None or claim.epoch > latest.epoch:
            return False
        return claim.epoch < latest.epoch or latest.staged is None

    def unfinished(self) -> list[Publication]:
        """Return the publications that may not be completely appended: at most one, as a lock orders them."""
        with self._lock:
            self._catch_up()
            return list(self._unfinished.values())

    def write(self, publication: Publication) -> None:
        """Store a publication durably."""
        key, value = _to_json(publication)
        self._partition.append(value, key=key, sync=True)

    def sync(self) -> None:
        """Make publications durable that another process may have written just before it died."""
        self._partition.sync()

    def _catch_up(self) -> None:
        """Read the records written since the last call; compaction removes only those that were replaced."""
        end = self._partition.high_watermark
        if end > self._next_offset:
            start = max(self._next_offset, self._partition.start_offset)
            new = {record.key: record for record in self._partition.records(start, end)}
            for record in new.values():
                try:
                    one = _from_json(record.key or b"", record.value or b"")
                except (ValueError, KeyError, TypeError, RecursionError):
                    reason = f"the record at offset {record.offset} is not what publish() writes"
                    raise CorruptionError(self._partition.path, 0, reason) from None
                self._table[one.txn_id] = one
                self._unfinished.pop(one.txn_id, None)
                if one.staged is not None:
                    self._unfinished[one.txn_id] = one
                self._by_hash[hash_of(one.txn_id)] = one
            self._next_offset = end


def _to_json(publication: Publication) -> tuple[bytes, bytes]:
    stored: dict[str, Any] = {"epoch": publication.epoch}
    if publication.staged is not None:
        stored["before"] = publication.before
        stored["staged"] = [
            [one.topic, one.partition, one.name, one.size_bytes,
             one.records, one.checksum, one.topic_id]
            for one in publication.staged
        ]  # fmt: skip
    return publication.txn_id.encode(), json.dumps(stored, separators=(",", ":")).encode()


def _from_json(key: bytes, value: bytes) -> Publication:
    """Return the publication that _to_json() encoded; ValueError, KeyError or TypeError if it is none."""
    stored = json.loads(value)
    epoch, before, staged = _number(stored["epoch"]), None, None
    if "staged" in stored:
        before = None if stored["before"] is None else _number(stored["before"])
        staged = tuple(_staged(*one) for one in stored["staged"])
    return Publication(key.decode(), epoch, before, staged)


def _staged(
    topic: Any, partition: Any, name: Any, size: Any, records: Any, checksum: Any, topic_id: Any = None
) -> StagedFile:
    check_topic_name(topic)  # an InvalidTopicError is a ValueError
    if topic_id is not None and not is_id(topic_id):
        raise ValueError(f"{topic_id!r:.40} is not the id of a topic")
    claim, file_id = parse_name(name)
    return StagedFile(
        topic, _number(partition), file_id,
        _number(size), _number(records), _number(checksum), topic_id, claim,
    )  # fmt: skip


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.40} is not a number of a publication")
    return value
