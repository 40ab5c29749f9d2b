"""A Partition against a plain list, with every way to change, close, kill and reopen it as a rule."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers import copy_as_if_killed, names
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import commitlog
from commitlog import CommitLog, OffsetOutOfRangeError, Partition, Record

from .strategies import codecs

pa = pytest.importorskip("pyarrow")

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RETENTION_MS = 500

small = st.none() | st.binary(max_size=30) | st.just(b"compress me " * 3)
stamps = st.integers(0, 3_000)
pairs = st.lists(
    st.tuples(st.sampled_from(["a", "trace", ""]), st.none() | st.binary(max_size=3)), max_size=2
)
fields = st.tuples(stamps, small, small, pairs.map(tuple))
fractions = st.floats(0, 1)


class PartitionMachine(RuleBasedStateMachine):
    """`model[offset]` is the record with that offset; those below `start` are trimmed away."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="commitlog-machine-"))
        self.path = self.home / "log0"
        self.copies = 0
        self.model: list[Record] = []
        self.start = 0
        self.durable = 0
        self.counted = [0, 0, 0]  # appends, records and bytes since the partition was opened

    @initialize(
        codec=codecs,
        interval=st.sampled_from([0, 100, 4_096]),
        index_bytes=st.sampled_from([64, 256, 1 << 16]),
        preallocate=st.booleans(),
        segment_ms=st.sampled_from([-1, 1_000]),
    )
    def create(self, codec: str, interval: int, index_bytes: int, preallocate: bool, segment_ms: int) -> None:
        self.log: CommitLog = commitlog.open(self.path)
        self.log.create_topic(
            "t",
            config={
                "segment_bytes": 1_200,
                "index_interval_bytes": interval,
                "segment_index_bytes": index_bytes,
                "compression_type": codec,
                "preallocate": preallocate,
                "segment_ms": segment_ms,
                "retention_ms": RETENTION_MS,
                "flush_ms": -1,
            },
        )
        self.reading = commitlog.open(self.path, mode="r")

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.reading.close()
            self.log.close()
        shutil.rmtree(self.home)

    @property
    def partition(self) -> Partition:
        return self.log.topic("t").partition(0)

    @property
    def reader(self) -> Any:
        return self.reading.topic("t").partition(0)

    @property
    def next(self) -> int:
        return len(self.model)

    def offset(self, fraction: float) -> int:
        """An offset in [start, next]."""
        return self.start + round(fraction * (self.next - self.start))

    def add(self, rows: list[tuple[Any, ...]], appends: int = 1) -> None:
        self.model += [Record(offset, *row) for offset, row in enumerate(rows, self.next)]
        self.counted[0] += appends
        self.counted[1] += len(rows)

    @contextmanager
    def counting_bytes(self) -> Iterator[None]:
        before = self.partition.size_bytes
        yield
        self.counted[2] += self.partition.size_bytes - before

    # --- appending

    @rule(record=fields, sync=st.booleans())
    def append(self, record: tuple[Any, ...], sync: bool) -> None:
        timestamp, key, value, headers = record
        with self.counting_bytes():
            offset = self.partition.append(value, key=key, headers=headers, timestamp=timestamp, sync=sync)
        assert offset == self.next
        self.add([record])
        self.durable = self.next if sync else self.durable

    @rule(values=st.lists(st.binary(max_size=30), min_size=1, max_size=5))
    def append_now(self, values: list[bytes]) -> None:
        for value in values:
            before = time.time_ns() // 1_000_000
            with self.counting_bytes():
                offset = self.partition.append(value, key=b"now")
            record = self.partition.get(offset)
            assert record is not None
            assert before <= record.timestamp <= time.time_ns() // 1_000_000
            self.add([(record.timestamp, b"now", value, ())])

    @rule(records=st.lists(fields, max_size=5), sync=st.booleans())
    def append_many(self, records: list[tuple[Any, ...]], sync: bool) -> None:
        first = self.next
        columns = [[record[place] for record in records] for place in range(4)]
        with self.counting_bytes():
            offsets = self.partition.append_many(
                columns[2], keys=columns[1], headers=columns[3], timestamps=columns[0], sync=sync
            )
        assert offsets == range(first, first + len(records))
        self.add(records, appends=bool(records))
        self.durable = self.next if sync else self.durable

    @rule(chunks=st.lists(st.lists(fields, max_size=3), min_size=1, max_size=3))
    def append_arrow(self, chunks: list[list[tuple[Any, ...]]]) -> None:
        tables = []
        for chunk in chunks:
            headers = [[{"key": name, "value": value} for name, value in row[3]] for row in chunk]
            tables.append(
                pa.table(
                    {
                        "value": pa.array([row[2] for row in chunk], pa.binary()),
                        "key": pa.array([row[1] for row in chunk], pa.large_binary()),
                        "timestamp": pa.array([row[0] for row in chunk], pa.timestamp("ms", "UTC")),
                        "headers": pa.array(headers, HEADERS),
                    }
                )
            )
        first = self.next
        self.add([row for chunk in chunks for row in chunk], appends=sum(map(bool, chunks)))
        with self.counting_bytes():
            assert self.partition.append_arrow(pa.concat_tables(tables)) == range(first, self.next)

    # --- changing

    @rule()
    def roll(self) -> None:
        self.partition.roll()

    @rule()
    def sync(self) -> None:
        self.partition.sync()
        self.durable = self.next

    @rule(fraction=fractions)
    def trim_before(self, fraction: float) -> None:
        self.start = self.offset(fraction)
        self.partition.trim_before(self.start)
        self.durable = max(self.durable, self.start)

    @rule(fraction=fractions)
    def truncate_from(self, fraction: float) -> None:
        offset = self.offset(fraction)
        if offset < self.next:
            self.durable = min(self.durable, offset)
        del self.model[offset:]
        self.partition.truncate_from(offset)

    @rule(now=st.integers(0, 5_000))
    def apply_retention(self, now: int) -> None:
        bases = [segment.base_offset for segment in self.partition.segments]
        for base, end in zip(bases, [*bases[1:], self.next], strict=True):
            latest = max((record.timestamp for record in self.model[base:end]), default=None)
            if latest is None or now - latest <= RETENTION_MS:
                break
            self.start = max(self.start, end)
        self.log.apply_retention(now_ms=now)
        self.durable = max(self.durable, self.start)

    # --- closing and dying

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.durable = self.next
        self.log = commitlog.open(self.path)
        self.counted = [0, 0, 0]
        assert self.log.recovery[0].clean

    @rule(
        garbage=st.sampled_from([b"", b"\x01", b"torn" * 30]) | st.binary(max_size=200),
        lose_indexes=st.booleans(),
    )
    def kill_and_reopen(self, garbage: bytes, lose_indexes: bool) -> None:
        self.copies += 1
        copy = copy_as_if_killed(self.log, self.home / f"log{self.copies}")
        self.reading.close()
        self.log.close()
        shutil.rmtree(self.path)
        self.path = copy
        directory = copy / "t-0"
        if not self.preallocated(directory):
            with open(directory / names(directory, ".log")[-1], "ab") as file:
                file.write(garbage)
        for name in names(directory, "index") if lose_indexes else ():
            os.unlink(directory / name)
        self.reading = commitlog.open(self.path, mode="r")
        assert list(self.reader.records()) == self.model[self.start :]
        self.log = commitlog.open(self.path)
        self.counted = [0, 0, 0]
        assert not self.log.recovery[0].clean

    @staticmethod
    def preallocated(directory: Path) -> bool:
        return os.path.getsize(directory / names(directory, ".log")[-1]) == 1_200

    @rule()
    def open_another_reader(self) -> None:
        self.reading.close()
        self.reading = commitlog.open(self.path, mode="r")

    # --- reading

    @precondition(lambda self: self.next > self.start)
    @rule(fraction=fractions)
    def get(self, fraction: float) -> None:
        offset = min(self.offset(fraction), self.next - 1)
        assert self.partition.get(offset) == self.reader.get(offset) == self.model[offset]

    @rule(one=fractions, other=fractions)
    def records(self, one: float, other: float) -> None:
        start, end = sorted([self.offset(one), self.offset(other)])
        expected = self.model[start:end]
        for side in (self.partition, self.reader):
            assert list(side.records(start, end)) == expected
            assert [record for batch in side.batches(start, end) for record in batch.records()] == expected

    @rule(one=fractions, max_bytes=st.integers(0, 3_000))
    def batches(self, one: float, max_bytes: int) -> None:
        start = self.offset(one)
        found = [
            record
            for batch in self.partition.batches(start, max_bytes=max_bytes)
            for record in batch.records()
        ]
        assert found == self.model[start : start + len(found)]
        assert found or start == self.next

    @rule(timestamp=st.integers(0, 3_100))
    def offset_for_timestamp(self, timestamp: int) -> None:
        expected = next((one.offset for one in self.model[self.start :] if one.timestamp >= timestamp), None)
        assert self.partition.offset_for_timestamp(timestamp) == expected
        assert self.reader.offset_for_timestamp(timestamp) == expected

    @rule()
    def to_arrow(self) -> None:
        table = self.partition.to_arrow(columns=["offset", "value"])
        assert table.column("offset").to_pylist() == list(range(self.start, self.next))
        assert table.column("value").to_pylist() == [record.value for record in self.model[self.start :]]

    @rule()
    def verify(self) -> None:
        assert self.partition.verify().damage == ()

    @rule(distance=st.integers(1, 5))
    def read_out_of_range(self, distance: int) -> None:
        for side in (self.partition, self.reader):
            for offset in (self.start - distance, self.next + distance):
                with pytest.raises(OffsetOutOfRangeError):
                    side.records(offset)

    def readable_segments(self, side: Any) -> list[int]:
        """The base_offsets of the segments that may hold records which are not trimmed away."""
        bases = [segment.base_offset for segment in side.segments]
        assert bases[0] <= self.start
        return [
            base for base, end in zip(bases, [*bases[1:], self.next + 1], strict=True) if end > self.start
        ]

    @invariant()
    def everything_is_as_the_model_says(self) -> None:
        if not hasattr(self, "log"):
            return
        for side in (self.partition, self.reader):
            assert side.start_offset == self.start
            assert side.next_offset == side.high_watermark == self.next
            assert list(side.records()) == self.model[self.start :]
        assert self.readable_segments(self.partition) == self.readable_segments(self.reader)
        assert self.start <= self.partition.durable_offset <= self.next
        assert self.partition.durable_offset >= self.durable
        written = self.partition.metrics().written
        assert written is not None
        assert [written.appends, written.records, written.bytes] == self.counted


TestPartition = PartitionMachine.TestCase
TestPartition.settings = settings(
    settings(), max_examples=max(settings().max_examples // 2, 1), stateful_step_count=40
)
