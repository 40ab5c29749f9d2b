"""Record: what an append takes and a read gives back."""

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
    """Speaks Arrow's C stream: a pyarrow table or batch, a data frame, the result of a query."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


class TopicPartition(NamedTuple):
    """A partition of a topic, by name and number."""

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
    """A record as a consumer gets it: where it comes from, key and value as the deserializers made them."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: Any
    value: Any
    headers: tuple[Header, ...] = ()


def with_name(name: TopicPartition, records: Iterable[Record]) -> list[ConsumerRecord]:
    """Return records as a consumer gets them from the partition `name`."""
    return list(map(tuple.__new__, repeat(ConsumerRecord), map(add, repeat(name), records)))
