"""Record: what an append takes and a read gives back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Header = tuple[str, bytes | None]
Headers = Sequence[Header]


class TopicPartition(NamedTuple):
    """A partition of a topic, by name and number."""

    topic: str
    partition: int


class Record(NamedTuple):
    """One record. A value of None is a tombstone; timestamp is in milliseconds since the epoch."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
