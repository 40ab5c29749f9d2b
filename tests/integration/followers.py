"""Readers of a log that is compacted under them: `python followers.py <how> <path>`, or threads.

What is written is known by its offset alone, so every reader can tell what the log held at any moment.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import commitlog
from commitlog import Record

try:
    from . import children
except ImportError:  # run as a program
    import children  # type: ignore[no-redef,import-not-found]


def key_of(offset: int) -> bytes:
    """A few keys come often, many seldom."""
    chance = zlib.crc32(b"%d" % offset)
    return b"often %d" % (chance % 30) if chance % 4 else b"seldom %d" % (chance % 1_009)


def value_of(offset: int) -> bytes | None:
    return None if zlib.crc32(b"value %d" % offset) % 9 == 0 else children.value_of(offset)


def check(record: Record) -> None:
    assert record.key == key_of(record.offset)
    assert record.value == value_of(record.offset), "a value that was never written"


class Expected:
    """The state that all records below `next_offset` make."""

    def __init__(self) -> None:
        self.next_offset = 0
        self.offsets: dict[bytes, int] = {}  # of each key's latest record

    def move_to(self, next_offset: int) -> None:
        assert next_offset >= self.next_offset, "a reader went back"
        for offset in range(self.next_offset, next_offset):
            self.offsets[key_of(offset)] = offset
        self.next_offset = next_offset

    def values(self) -> dict[bytes, bytes]:
        found = {key: value_of(offset) for key, offset in self.offsets.items()}
        return {key: value for key, value in found.items() if value is not None}


class Follower:
    """Reads on and on; what it met so far makes the state that the log has, whatever a pass removed."""

    def __init__(self, partition: Any, how: str) -> None:
        self._partition = partition
        self._read: Callable[[int, int], Iterator[Record]] = getattr(self, "_" + how)
        self._expected = Expected()
        self._state: dict[bytes | None, int] = {}
        self.position = 0
        self.seen: list[int] = []

    def read_on(self) -> None:
        """Read up to the present end."""
        end = self._partition.next_offset
        for record in self._read(self.position, end):
            assert record.offset >= self.position, "a record came twice, or too late"
            check(record)
            self.position = record.offset + 1
            self.seen.append(record.offset)
            self._state[record.key] = record.offset
        self.position = end

    def check_state(self) -> None:
        """At the end of the log, the state is that of all records: no key missed its latest one."""
        self._expected.move_to(self.position)
        assert self._state == self._expected.offsets

    def _records(self, start: int, end: int) -> Iterator[Record]:
        return iter(self._partition.records(start, end))

    def _batches(self, start: int, end: int) -> Iterator[Record]:
        for batch in self._partition.batches(start, end):
            yield from batch.records()

    def _arrow(self, start: int, end: int) -> Iterator[Record]:
        table = self._partition.to_arrow(start, end, columns=["offset", "key", "value"])
        columns = [table.column(name).to_pylist() for name in ("offset", "key", "value")]
        return (Record(offset, 0, key, value, ()) for offset, key, value in zip(*columns, strict=True))


class Viewer:
    """Asks for the compacted view again and again: it is always that of all records below its end."""

    def __init__(self, partition: Any) -> None:
        self._partition = partition
        self._expected = Expected()
        self.position = 0
        self.seen: list[int] = []

    def read_on(self) -> None:
        view = self._partition.latest()
        self._expected.move_to(view.next_offset)
        assert dict(view) == self._expected.values()
        self.position = view.next_offset

    def check_state(self) -> None:
        pass


def reader(partition: Any, how: str) -> Follower | Viewer:
    return Viewer(partition) if how == "latest" else Follower(partition, how)


def main(how: str, path: str, end: int) -> None:
    """Follow until the log has so many offsets; then say what was met."""
    with commitlog.open(path, mode="r") as log:
        partition = log.topic("t").partition(0)
        following = reader(partition, how)
        children.say_ready()
        deadline = time.monotonic() + children.DEADLINE_SECONDS
        while following.position < end:
            assert time.monotonic() < deadline, f"{partition} at {following.position}"
            if partition.wait_for(following.position, 0.05):
                following.read_on()
        following.check_state()
        print(json.dumps(following.seen))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
