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

from commitlog.batches.format import BatchHeader
from commitlog.errors import ConfigError, CorruptionError, UnstableOffsetsError
from commitlog.partition import Partition
from commitlog.record import Record, TopicPartition

TOPIC = "__consumer_offsets"
TOPIC_CONFIG: dict[str, Any] = {
    "cleanup_policy": "compact",
    "segment_bytes": 16 << 20,  # the active segment is not compacted
    "segment_index_bytes": 1 << 20,
    "segment_ms": 24 * 60 * 60 * 1000,
}
UNDECIDED_MS = 60_000  # how long a consumer waits for offsets in a transaction to be decided
_TRUST_SECONDS = 12 * 60 * 60  # half of delete_retention_ms: later, a tombstone may have been missed


class OffsetAndMetadata(NamedTuple):
    """The offset of the next record to read, and the note committed with it."""

    offset: int
    metadata: str = ""


Committable = int | tuple[int, str]  # an offset, or an offset and a note, such as OffsetAndMetadata


def committable(given: Committable) -> OffsetAndMetadata:
    """Return an offset to commit; ConfigError if it cannot be one."""
    pair = given if isinstance(given, tuple) else (given, "")
    if len(pair) == 2:
        offset, metadata = pair
        is_number = isinstance(offset, int) and not isinstance(offset, bool)
        if is_number and offset >= 0 and isinstance(metadata, str):
            return OffsetAndMetadata(offset, metadata)
    raise ConfigError("offset", given, "must be a non-negative integer, or an (offset, metadata) pair")


class _Pending(NamedTuple):
    """An offset in a transaction that is not decided, and the offset of its record."""

    group_id: str
    partition: TopicPartition
    committed: OffsetAndMetadata | None
    place: int


class GroupOffsets:
    """The committed offsets of all groups. Threads may share it.

    Offsets in a transaction count once it is committed. They do not replace what was committed after them.
    """

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self._lock = threading.Lock()
        self._forget_all()
        self._looked_at = time.monotonic()

    def _forget_all(self) -> None:
        self._table: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        self._places: dict[tuple[str, TopicPartition], int] = {}  # where they are stored, with transactions
        self._pending: dict[int, list[_Pending]] = {}  # by producer
        self._next_offset = 0

    def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, sync: bool = False
    ) -> None:
        """Store offsets, all or none of them."""
        keys, values = encoded(group_id, offsets)
        self.partition.append_many(values, keys=keys, sync=sync)

    def forget(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete offsets, all or none of them."""
        keys = [_key(group_id, partition) for partition in partitions]
        self.partition.append_many([None] * len(keys), keys=keys, sync=True)

    def committed(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group."""
        with self._lock:
            self._catch_up()
            return dict(self._table.get(group_id, {}))

    def stable(
        self, group_id: str, timeout_ms: int = UNDECIDED_MS
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group once none of them is part of an open transaction.

        UnstableOffsetsError if that takes longer than `timeout_ms`.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            with self._lock:
                self._catch_up()
                open_ones = [one for some in self._pending.values() for one in some]
                if all(one.group_id != group_id for one in open_ones):
                    return dict(self._table.get(group_id, {}))
                end = self._next_offset
            left = deadline - time.monotonic()
            if left <= 0:
                raise UnstableOffsetsError(group_id, timeout_ms)
            self.partition.check_goes_on()
            self.partition.wait_for(end, left, isolation_level="read_uncommitted")

    def groups(self) -> set[str]:
        """Return the groups that have committed something."""
        with self._lock:
            self._catch_up()
            return set(self._table)

    def _catch_up(self) -> None:
        """Read the commits since the last call; compaction removes only what was overwritten."""
        now = time.monotonic()
        if now - self._looked_at > _TRUST_SECONDS:
            self._forget_all()
        self._looked_at, end = now, self.partition.high_watermark
        if end > self._next_offset:
            start = max(self._next_offset, self.partition.start_offset)
            if self.partition.has_transactions:
                for batch in self.partition.stored_batches(start, end):
                    self._note_batch(batch.header, batch.records())
            else:
                for record in self.partition.records(start, end):
                    self._apply(*self._read(record), record.offset)
            self._next_offset = end

    def _note_batch(self, header: BatchHeader, records: Iterable[Record]) -> None:
        if header.is_marker:
            pending = self._pending.pop(header.producer_id, [])
            for one in pending if header.commits else ():
                if self._places.get((one.group_id, one.partition), -1) < one.place:
                    self._apply(one.group_id, one.partition, one.committed, one.place)
            return
        for record in records:
            group_id, partition, committed = self._read(record)
            if header.is_transactional:
                pending = self._pending.setdefault(header.producer_id, [])
                pending.append(_Pending(group_id, partition, committed, record.offset))
            else:
                self._apply(group_id, partition, committed, record.offset)

    def _read(self, record: Record) -> tuple[str, TopicPartition, OffsetAndMetadata | None]:
        try:
            return _read(record)
        except (ValueError, KeyError, TypeError, RecursionError):
            reason = f"the record at offset {record.offset} is not what a commit writes"
            raise CorruptionError(self.partition.path, 0, reason) from None

    def _apply(
        self, group_id: str, partition: TopicPartition, committed: OffsetAndMetadata | None, place: int
    ) -> None:
        self._places[group_id, partition] = place
        if committed is not None:
            self._table.setdefault(group_id, {})[partition] = committed
        elif group_id in self._table:
            self._table[group_id].pop(partition, None)
            if not self._table[group_id]:
                del self._table[group_id]


def encoded(
    group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> tuple[list[bytes], list[bytes]]:
    """Return the keys and the values of the records that commit offsets."""
    keys = [_key(group_id, partition) for partition in offsets]
    return keys, [json.dumps(value._asdict()).encode() for value in offsets.values()]


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
