"""Committed offsets: records of the compacted topic __consumer_offsets, and a table of the latest ones.

The key is ["group", "topic", partition] as JSON, the value {"offset": ..., "metadata": "..."}; a tombstone
deletes the offset. Any process may append to this topic, even one that opened the log for reading.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from commitlog.errors import CorruptionError
from commitlog.partition import Partition
from commitlog.record import Record, TopicPartition

TOPIC = "__consumer_offsets"
TOPIC_CONFIG: dict[str, Any] = {
    "cleanup_policy": "compact",
    "segment_bytes": 16 << 20,  # the active segment is not compacted
    "segment_index_bytes": 1 << 20,
    "segment_ms": 24 * 60 * 60 * 1000,
}
_TRUST_SECONDS = 12 * 60 * 60  # half of delete_retention_ms: later, a tombstone may have been missed


class OffsetAndMetadata(NamedTuple):
    """The offset of the next record to read, and the note committed with it."""

    offset: int
    metadata: str = ""


class GroupOffsets:
    """The committed offsets of all groups. Threads may share it."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._lock = threading.Lock()
        self._table: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        self._next_offset = 0
        self._looked_at = time.monotonic()

    def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, sync: bool = False
    ) -> None:
        """Store offsets, all or none of them."""
        keys = [_key(group_id, partition) for partition in offsets]
        values = [json.dumps(value._asdict()).encode() for value in offsets.values()]
        self._partition.append_many(values, keys=keys, sync=sync)

    def forget(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete offsets, all or none of them."""
        keys = [_key(group_id, partition) for partition in partitions]
        self._partition.append_many([None] * len(keys), keys=keys, sync=True)

    def committed(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group."""
        with self._lock:
            self._catch_up()
            return dict(self._table.get(group_id, {}))

    def groups(self) -> set[str]:
        """Return the groups that have committed something."""
        with self._lock:
            self._catch_up()
            return set(self._table)

    def _catch_up(self) -> None:
        """Read the commits since the last call; compaction removes only what was overwritten."""
        now = time.monotonic()
        if now - self._looked_at > _TRUST_SECONDS:
            self._table, self._next_offset = {}, 0
        self._looked_at, end = now, self._partition.high_watermark
        if end > self._next_offset:
            start = max(self._next_offset, self._partition.start_offset)
            for record in self._partition.records(start, end):
                self._note(record)
            self._next_offset = end

    def _note(self, record: Record) -> None:
        try:
            group_id, partition, committed = _read(record)
        except (ValueError, KeyError, TypeError, RecursionError):
            reason = f"the record at offset {record.offset} is not what a commit writes"
            raise CorruptionError(self._partition.path, 0, reason) from None
        if committed is not None:
            self._table.setdefault(group_id, {})[partition] = committed
        elif group_id in self._table:
            self._table[group_id].pop(partition, None)
            if not self._table[group_id]:
                del self._table[group_id]


def _read(record: Record) -> tuple[str, TopicPartition, OffsetAndMetadata | None]:
    """Return the group, the partition and the offset in a record; the offset of a tombstone is None."""
    group_id, topic, number = json.loads(record.key or b"")
    committed = None
    if record.value is not None:
        stored = json.loads(record.value)
        committed = OffsetAndMetadata(stored["offset"], stored["metadata"])
        if type(committed.offset) is not int or type(committed.metadata) is not str or committed.offset < 0:
            raise ValueError
    if type(group_id) is not str or type(topic) is not str or type(number) is not int:
        raise ValueError
    return group_id, TopicPartition(topic, number), committed


def _key(group_id: str, partition: TopicPartition) -> bytes:
    return json.dumps([group_id, *partition]).encode()
