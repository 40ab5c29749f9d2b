"""The rows of a file to import, in chunks. Needs the extra `arrow`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from commitlog.batches import arrow  # noqa: F401 - says what to install if pyarrow is missing
from commitlog.topic import Topic

import pyarrow as pa  # isort: skip

ROWS = 8192  # the most in a chunk


class Chunk(NamedTuple):
    """Rows of a file, the number of the first one, and how much of the file is read, in the source's unit."""

    first: int
    rows: pa.RecordBatch
    done: int


class BadRowError(Exception):
    """A row that is not a record: its number in the file, or in a chunk, and the reason."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(row, reason)
        self.row, self.reason = row, reason


class Source(Protocol):
    """A file of records, from some row on. It raises BadRowError after the rows before the bad one."""

    unit: str
    total: int

    def chunks(self) -> Iterator[Chunk]:
        """Iterate over the rows of the file."""

    def place(self, row: int) -> str:
        """Return where a row is, for error messages."""


def pairs_of(headers: Any) -> list[dict[str, Any]]:
    """Return headers in Arrow's form."""
    return [{"key": name, "value": value} for name, value in headers]


def numbers_of(rows: pa.RecordBatch, topic: Topic, by_key: bool) -> NDArray[np.int64]:
    """Return the partition of each row: the one it names, or else that of its key."""
    given = None if by_key or "partition" not in rows.schema.names else rows["partition"]
    if given is not None and given.null_count == 0:
        numbers: NDArray[np.int64] = given.cast(pa.int64()).to_numpy()
    else:
        keys = rows["key"] if "key" in rows.schema.names else pa.nulls(rows.num_rows, pa.binary())
        numbers = topic.partition_numbers(keys)
        if given is not None:
            said = given.is_valid().to_numpy(zero_copy_only=False)
            numbers[said] = given.drop_null().cast(pa.int64()).to_numpy()
    wrong = np.flatnonzero((numbers < 0) | (numbers >= len(topic.partitions)))
    if len(wrong):
        row, count = int(wrong[0]), len(topic.partitions)
        raise BadRowError(row, f"there is no partition {numbers[row]}: the topic has {count}")
    return numbers


def with_times(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows in which the current time replaces missing timestamps."""
    if "timestamp" not in rows.schema.names or rows["timestamp"].null_count == 0:
        return rows
    times = rows["timestamp"]
    if times.null_count == rows.num_rows:
        return rows.drop_columns(["timestamp"])
    now = pa.scalar(time.time_ns() // 1_000_000, pa.int64()).cast(times.type)
    return rows.set_column(rows.schema.names.index("timestamp"), "timestamp", times.fill_null(now))
