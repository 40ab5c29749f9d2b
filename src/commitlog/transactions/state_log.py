"""TransactionLog: the records of the compacted topic __transaction_state, and a table of the latest ones.

The key is the transactional id. The value says which producer owns the id, and what was decided last, as
JSON: {"producer_id": ..., "timeout_ms": 60000, "process": "host:pid", "epoch": 7, "decision": "commit",
"partitions": [["orders", topic_id, 0], ...]}. Without a decision the last three are missing. A tombstone
forgets the id.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from commitlog.batches.format import MAX_EPOCH
from commitlog.config import MAX_INT32, MAX_INT64
from commitlog.errors import CorruptionError
from commitlog.partition import Partition
from commitlog.topics.catalog import check_topic_name

TOPIC = "__transaction_state"
TOPIC_CONFIG: dict[str, Any] = {
    "cleanup_policy": "compact",
    "segment_bytes": 16 << 20,  # the active segment is never compacted, and is read at open
    "segment_index_bytes": 1 << 20,
    "segment_ms": 24 * 60 * 60 * 1000,
}

Decision = Literal["commit", "abort"]
_quoted = lru_cache(json.dumps)


class Place(NamedTuple):
    """A partition that a transaction wrote to; a topic that is made again under its name has another id."""

    topic: str
    topic_id: str | None
    partition: int


@dataclass(frozen=True, slots=True)
class OwnedId:
    """Who owns a transactional id, and what was decided last: the transaction with this epoch."""

    transactional_id: str
    producer_id: int
    timeout_ms: int
    process: str
    epoch: int = -1
    decision: Decision | None = None
    places: tuple[Place, ...] = ()

    def decided(self, epoch: int, decision: Decision, places: tuple[Place, ...] = ()) -> OwnedId:
        """Return it with a decision about the transaction with this epoch."""
        about = self.transactional_id, self.producer_id, self.timeout_ms, self.process
        return OwnedId(*about, epoch, decision, places)

    def is_decided(self, epoch: int) -> bool:
        """Say whether the transaction with this epoch, or a later one, is decided."""
        return epoch <= self.epoch


class TransactionLog:
    """The latest record of each transactional id. Threads may share it.

    `open_partition` returns the partition of the records, None while there are none; with `create` it makes
    one.
    """

    def __init__(self, open_partition: Callable[[bool], Partition | None]) -> None:
        self._open_partition = open_partition
        self._partition: Partition | None = None
        self._lock = threading.Lock()
        self._table: dict[str, OwnedId] = {}
        self._of_producer: dict[int, OwnedId] = {}
        self._changed_ms: dict[str, int] = {}
        self._next_offset = 0

    def of(self, transactional_id: str) -> OwnedId | None:
        """Return the latest record of an id; None if there is none."""
        self._catch_up()
        return self._table.get(transactional_id)

    def of_producer(self, producer_id: int) -> OwnedId | None:
        """Return the id that a producer owns; None if it owns none any more."""
        self._catch_up()
        return self._of_producer.get(producer_id)

    def all(self) -> list[OwnedId]:
        """Return the latest record of every id."""
        self._catch_up()
        with self._lock:
            return list(self._table.values())

    def unchanged_since(self, timestamp: int) -> list[OwnedId]:
        """Return the latest records that are older than `timestamp`, in milliseconds since the epoch."""
        return [
            one for one in self.all() if self._changed_ms.get(one.transactional_id, timestamp) < timestamp
        ]

    def write(self, owned: OwnedId, *, sync: bool = False) -> None:
        """Store a record."""
        self._append(owned.transactional_id, _to_json(owned), owned, sync)

    def forget(self, transactional_id: str) -> None:
        """Delete the record of an id."""
        self._append(transactional_id, None, None, False)

    def _append(self, transactional_id: str, value: bytes | None, owned: OwnedId | None, sync: bool) -> None:
        partition = self._partition
        if partition is None:
            partition = self._partition = self._open_partition(True)
            assert partition is not None
        offset = partition.append(value, key=transactional_id.encode(), sync=sync)
        with self._lock:
            if self._next_offset == offset:  # otherwise another process has written, too
                self._note(transactional_id, owned, time.time_ns() // 1_000_000)
                self._next_offset = offset + 1

    def sync(self) -> None:
        """Make records durable that another process may have written just before it died."""
        if self._partition is not None:
            self._partition.sync()

    def _catch_up(self) -> None:
        """Read the records that other processes have written since the last call."""
        partition = self._partition
        if partition is None:
            partition = self._partition = self._open_partition(False)
        if partition is None or partition.high_watermark == self._next_offset:
            return
        with self._lock:
            end = partition.high_watermark
            start = max(self._next_offset, partition.start_offset)
            for record in partition.records(start, max(start, end)):
                try:
                    transactional_id = (record.key or b"").decode()
                    owned = None if record.value is None else _from_json(transactional_id, record.value)
                except (ValueError, KeyError, TypeError, RecursionError):
                    reason = f"the record at offset {record.offset} is not what a transaction writes"
                    raise CorruptionError(partition.path, 0, reason) from None
                self._note(transactional_id, owned, record.timestamp)
            self._next_offset = end

    def _note(self, transactional_id: str, owned: OwnedId | None, timestamp: int) -> None:
        before = self._table.get(transactional_id)
        if owned is not None:
            self._changed_ms[transactional_id] = timestamp
            self._of_producer[owned.producer_id] = owned
            self._table[transactional_id] = owned  # a thread that takes no lock always finds one
        else:
            self._table.pop(transactional_id, None)
            self._changed_ms.pop(transactional_id, None)
        if before is not None and (owned is None or owned.producer_id != before.producer_id):
            self._of_producer.pop(before.producer_id, None)


def _to_json(owned: OwnedId) -> bytes:
    # measured: 1 us; the json module takes 4. Names and ids of topics need no escapes
    process = _quoted(owned.process)
    about = f'"producer_id":{owned.producer_id},"timeout_ms":{owned.timeout_ms},"process":{process}'
    if owned.decision is None:
        return f"{{{about}}}".encode()
    decided = f'"epoch":{owned.epoch},"decision":"{owned.decision}","partitions":{_listed(owned.places)}'
    return f"{{{about},{decided}}}".encode()


@lru_cache(maxsize=64)  # most transactions write to the same partitions again and again
def _listed(places: tuple[Place, ...]) -> str:
    return json.dumps(places, separators=(",", ":"))


def _from_json(transactional_id: str, value: bytes) -> OwnedId:
    """Return what _to_json() encoded; ValueError, KeyError or TypeError if it is something else."""
    stored = json.loads(value)
    owned = OwnedId(
        transactional_id,
        _number(stored["producer_id"], MAX_INT64),
        _number(stored["timeout_ms"], MAX_INT32),
        _text(stored["process"]),
    )
    if "decision" not in stored:
        return owned
    decision = stored["decision"]
    if decision not in ("commit", "abort"):
        raise ValueError(f"{decision!r:.40} is no decision")
    places = tuple(_place(*one) for one in stored["partitions"])
    return owned.decided(_number(stored["epoch"], MAX_EPOCH), decision, places)


def _place(topic: Any, topic_id: Any, partition: Any) -> Place:
    check_topic_name(topic)  # an InvalidTopicError is a ValueError
    return Place(topic, None if topic_id is None else _text(topic_id), _number(partition, MAX_INT32))


def _number(value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{value!r:.40} is not a number of a transaction")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!r:.40} is not a text of a transaction")
    return value
