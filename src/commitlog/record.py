"""Record and the types around it: what appends take and reads return."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from mmap import mmap
from operator import add
from typing import Any, NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview | mmap
Header = tuple[str, bytes | None]
Headers = Sequence[Header]


class ArrowData(Protocol):
    """Anything with Arrow's C stream interface: a pyarrow table or batch, a data frame, a query result."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


class TopicPartition(NamedTuple):
    """A partition: the name of its topic and its number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Record(NamedTuple):
    """One record. A value of None is a tombstone; timestamp is in milliseconds since the epoch."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class ConsumerRecord(NamedTuple):
    """A record as a consumer gets it: with its topic and partition, and deserialized key and value."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: Any
    value: Any
    headers: tuple[Header, ...] = ()


def with_name(name: TopicPartition, records: Iterable[Record]) -> list[ConsumerRecord]:
    """Return the records of the partition `name` as a consumer gets them."""
    return list(map(tuple.__new__, repeat(ConsumerRecord), map(add, repeat(name), records)))
