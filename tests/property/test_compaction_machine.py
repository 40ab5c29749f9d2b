"""Compaction against the rules it must keep, whatever else happens to the log before, after and meanwhile."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from helpers import copy_as_if_killed
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import commitlog
from commitlog import CommitLog, LogConfig, Partition, Record, files, tasks

from .strategies import codecs

pa = pytest.importorskip("pyarrow")

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
FAR_FUTURE_MS = 1 << 40
# what a pass asks of the file system: places where it can be killed
STEPS = ("write_at", "sync_data", "sync_map", "sync_directory", "replace", "remove")

keys = st.sampled_from([b"a", b"b", b"c", b"", b"a longer key", b"b longer key"])
values = st.none() | st.binary(max_size=25) | st.just(b"compress me " * 3)
stamps = st.integers(0, 1_000)
pairs = st.lists(
    st.tuples(st.sampled_from(["a", "trace", ""]), st.none() | st.binary(max_size=3)), max_size=2
)
fields = st.tuples(stamps, keys, values, pairs.map(tuple))
fractions = st.floats(0, 1)
lags = st.sampled_from([0, 0, 200, 1_500])
retentions = st.sampled_from([0, 300, 2_000])
# room for one key, two, four, and more than there are
map_bytes = st.sampled_from([1, 24 * 3, 24 * 5, 1 << 16])
sizes = st.sampled_from([512, 700, 1_500])


def state_of(records: Iterable[Record]) -> dict[bytes, Record]:
    """The latest record of each key."""
    return {record.key: record for record in records if record.key is not None}


def offsets_of(records: Iterable[Record]) -> list[int]:
    return [record.offset for record in records]


class CompactionMachine(RuleBasedStateMachine):
    """`model` is what can be read: all that was appended, less what was trimmed, truncated or cleaned.

    Everything but a pass must leave exactly that. What a pass leaves becomes the model, after it was checked
    against what was there before.
    """

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="commitlog-machine-"))
        self.path = self.home / "log0"
        self.copies = 0
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(tasks.Task, "start", lambda task: None)
        for name in ("fsync", "fdatasync"):
            self.patch.setattr(os, name, lambda fd: None)
        self.model: list[Record] = []
        self.next = self.start = 0
        self.now = 0
        self.may_go: dict[int, int] = {}  # tombstones that a pass has seen, and the earliest they may go

    @initialize(
        codec=codecs,
        interval=st.sampled_from([0, 100, 4_096]),
        index_bytes=st.sampled_from([64, 1 << 16]),
        preallocate=st.booleans(),
        retention=retentions,
        lag=lags,
        room=map_bytes,
    )
    def create(
        self,
        codec: str,
        interval: int,
        index_bytes: int,
        preallocate: bool,
        retention: int,
        lag: int,
        room: int,
    ) -> None:
        self.room = room
        self.open()
        self.log.create_topic(
            "t",
            config={
                "cleanup_policy": "compact",
                "segment_bytes": 700,
                "index_interval_bytes": interval,
                "segment_index_bytes": index_bytes,
                "compression_type": codec,
                "preallocate": preallocate,
                "delete_retention_ms": retention,
                "min_compaction_lag_ms": lag,
                "file_delete_delay_ms": 0,
                "flush_ms": -1,
            },
        )
        self.reading = commitlog.open(self.path, mode="r")

    def open(self) -> None:
        config = LogConfig(cleaner_dedupe_buffer_bytes=self.room)
        self.log: CommitLog = commitlog.open(self.path, config=config)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.reading.close()
            self.log.close()
        self.patch.undo()
        shutil.rmtree(self.home)

    @property
    def partition(self) -> Partition:
        return self.log.topic("t").partition(0)

    @property
    def reader(self) -> Any:
        return self.reading.topic("t").partition(0)

    def offset(self, fraction: float) -> int:
        """An offset in [start, next]."""
        return self.start + round(fraction * (self.next - self.start))

    def add(self, rows: list[tuple[Any, ...]]) -> None:
        self.model += [Record(offset, *row) for offset, row in enumerate(rows, self.next)]
        self.next += len(rows)

    # --- appending

    @rule(record=fields)
    def append(self, record: tuple[Any, ...]) -> None:
        timestamp, key, value, headers = record
        assert self.partition.append(value, key=key, headers=headers, timestamp=timestamp) == self.next
        self.add([record])

    @rule(records=st.lists(fields, max_size=8))
    def append_many(self, records: list[tuple[Any, ...]]) -> None:
        columns = [[record[place] for record in records] for place in range(4)]
        self.partition.append_many(
            columns[2], keys=columns[1], headers=columns[3], timestamps=columns[0], sync=True
        )
        self.add(records)

    @rule(records=st.lists(fields, min_size=1, max_size=5))
    def append_arrow(self, records: list[tuple[Any, ...]]) -> None:
        headers = [[{"key": name, "value": value} for name, value in row[3]] for row in records]
        self.partition.append_arrow(
            pa.table(
                {
                    "value": pa.array([row[2] for row in records], pa.binary()),
                    "key": pa.array([row[1] for row in records], pa.binary()),
                    "timestamp": pa.array([row[0] for row in records], pa.timestamp("ms", "UTC")),
                    "headers": pa.array(headers, HEADERS),
                }
            )
        )
        self.add(records)

    @rule(value=values, timestamp=stamps)
    def append_without_a_key(self, value: bytes | None, timestamp: int) -> None:
        """As in a topic that was not always compacted."""
        self.log.topic("t").alter_config(cleanup_policy="delete")
        self.partition.append_many([value, b"b"], keys=[None, b"b"], timestamps=[timestamp] * 2)
        self.log.topic("t").alter_config(cleanup_policy="compact")
        self.add([(timestamp, None, value, ()), (timestamp, b"b", b"b", ())])

    # --- compacting

    @rule(passing=st.integers(0, 800))
    def compact(self, passing: int) -> None:
        self.now += passing
        before = self.before()
        report = self.partition.compact(now=self.now)
        assert report.stopped_by in (None, "map full", "nothing to clean")
        assert report.clean_offset == self.partition.clean_offset
        assert self.checked(before, self.partition) == list(self.partition.records())

    @rule(passing=st.integers(0, 800), taken=st.integers(0, 12), whole=st.booleans(), outside=st.booleans())
    def compact_under_a_reader(self, passing: int, taken: int, whole: bool, outside: bool) -> None:
        """Who reads on after a pass misses only what the pass removed, and meets nothing twice."""
        side = self.reader if outside else self.partition
        reading = side.records() if whole else _records_of_batches(side.batches())
        first = list(islice(reading, taken))
        self.compact(passing)
        met = [*first, *reading]
        assert all(one < other for one, other in pairwise(offsets_of(met)))
        position = first[-1].offset + 1 if first else self.start
        rest = [record for record in self.model if record.offset >= position]
        assert all(record in met for record in rest)

    @rule(passing=st.integers(0, 800), step=st.integers(1, 40))
    def kill_in_a_pass(self, passing: int, step: int) -> None:
        self.now += passing
        before = self.before()
        copy = self.next_copy()
        with before_step(step, lambda: shutil.copytree(self.path, copy)):
            self.partition.compact(now=self.now)
        self.checked(before, self.partition)  # for the tombstones that it has seen
        if not copy.exists():
            shutil.copytree(self.path, copy)
        self.move_to(copy)
        seen = list(self.reader.records())
        self.open()
        assert self.checked(before, self.partition) == seen

    @rule()
    def compact_until_clean(self) -> None:
        """Whatever the size of the map, passes come to an end, and leave one record of each key."""
        self.log.topic("t").alter_config(min_compaction_lag_ms=0)
        sealed = self.partition.segments[:-1]
        for _ in range(len(self.model) + 2):
            self.compact(0)
            if not sealed or self.partition.clean_offset >= self.partition.segments[-1].base_offset:
                return
        raise AssertionError("a pass does not get on")

    @rule()
    def compact_until_tombstones_are_gone(self) -> None:
        self.compact_until_clean()
        before = self.before()
        self.partition.compact(now=FAR_FUTURE_MS)
        self.may_go = dict.fromkeys(self.may_go, 0)
        self.checked(before, self.partition, FAR_FUTURE_MS)
        self.compact(0)
        end = self.partition.segments[-1].base_offset
        cleaned = [one for one in self.model if one.offset < end and one.key is not None]
        assert None not in [record.value for record in cleaned]

    def before(self) -> tuple[list[Record], int, int]:
        """What a pass will be checked against: records, clean_offset, and where it must stop."""
        return self.model, self.partition.clean_offset, self.partition.segments[-1].base_offset

    def checked(
        self, before: tuple[list[Record], int, int], partition: Partition, now: int | None = None
    ) -> list[Record]:
        """Check what a pass left, and make it the model."""
        records, clean, end = before
        now = self.now if now is None else now
        config, after = partition.config, list(partition.records())
        left = set(offsets_of(after))
        assert after == [record for record in records if record.offset in left], (
            "only records that were there"
        )
        latest = state_of(records)
        for record in records:
            if record.offset in left:
                continue
            young = config.min_compaction_lag_ms > max(now - record.timestamp, 0)
            assert record.key is not None, "no later record can have its key"
            assert record.offset < end, "the active segment"
            assert record.offset < clean or not young
            if latest[record.key] is record:
                assert record.value is None, "the latest value of a key"
                assert now >= self.may_go[record.offset], "a tombstone before its time"
        for record in records:
            if record.value is None and record.offset < partition.clean_offset:
                self.may_go.setdefault(record.offset, now + config.delete_retention_ms)
        self.model = after
        return after

    # --- changing

    @rule()
    def roll(self) -> None:
        self.partition.roll()

    @rule(fraction=fractions)
    def trim_before(self, fraction: float) -> None:
        self.start = self.offset(fraction)
        self.partition.trim_before(self.start)
        self.model = [record for record in self.model if record.offset >= self.start]

    @rule(fraction=st.floats(0.4, 1))
    def truncate_from(self, fraction: float) -> None:
        self.next = self.offset(fraction)
        self.partition.truncate_from(self.next)
        self.model = [record for record in self.model if record.offset < self.next]
        self.may_go = {offset: time for offset, time in self.may_go.items() if offset < self.next}

    @rule(size=sizes, lag=lags, retention=retentions)
    def alter(self, size: int, lag: int, retention: int) -> None:
        self.log.topic("t").alter_config(
            segment_bytes=size, min_compaction_lag_ms=lag, delete_retention_ms=retention
        )

    # --- closing and dying

    @rule(room=map_bytes)
    def reopen(self, room: int) -> None:
        clean = self.partition.clean_offset
        self.log.close()
        self.room = room
        self.open()
        assert self.log.recovery[0].clean
        assert self.partition.clean_offset == clean

    @rule(lose_page=st.booleans())
    def kill_and_reopen(self, lose_page: bool) -> None:
        clean = self.partition.clean_offset
        self.move_to(copy_as_if_killed(self.log, self.next_copy()))
        if lose_page and self.start == 0:
            os.unlink(self.path / "t-0" / "state")
        assert list(self.reader.records()) == self.model
        self.open()
        assert self.partition.clean_offset == (0 if lose_page and self.start == 0 else clean)

    def next_copy(self) -> Path:
        self.copies += 1
        return self.home / f"log{self.copies}"

    def move_to(self, copy: Path) -> None:
        """Go on with a copy of the log that nobody has closed."""
        self.reading.close()
        self.log.close()
        shutil.rmtree(self.path)
        self.path = copy
        self.reading = commitlog.open(self.path, mode="r")

    # --- reading

    @rule(one=fractions, other=fractions)
    def records(self, one: float, other: float) -> None:
        start, end = sorted([self.offset(one), self.offset(other)])
        expected = [record for record in self.model if start <= record.offset < end]
        for side in (self.partition, self.reader):
            assert list(side.records(start, end)) == expected
            assert list(_records_of_batches(side.batches(start, end))) == expected

    @rule()
    def get(self) -> None:
        there = {record.offset: record for record in self.model}
        for offset in range(self.start, self.next):
            assert self.partition.get(offset) == there.get(offset)

    @rule(timestamp=stamps)
    def offset_for_timestamp(self, timestamp: int) -> None:
        expected = next((one.offset for one in self.model if one.timestamp >= timestamp), None)
        assert self.partition.offset_for_timestamp(timestamp) == expected
        assert self.reader.offset_for_timestamp(timestamp) == expected

    @rule()
    def to_arrow(self) -> None:
        table = self.reader.to_arrow(columns=["offset", "key", "value"])
        assert table.column("offset").to_pylist() == offsets_of(self.model)
        assert table.column("key").to_pylist() == [record.key for record in self.model]
        assert table.column("value").to_pylist() == [record.value for record in self.model]

    @invariant()
    def everything_is_as_the_model_says(self) -> None:
        if not hasattr(self, "log"):
            return
        current = {key: one.value for key, one in state_of(self.model).items() if one.value is not None}
        for side in (self.partition, self.reader):
            assert (side.start_offset, side.next_offset) == (self.start, self.next)
            assert list(side.records()) == self.model
            latest = side.latest()
            assert (dict(latest), latest.next_offset) == (current, self.next)
        assert self.partition.verify().damage == ()

    @invariant()
    def below_the_clean_offset_every_key_has_one_record(self) -> None:
        if not hasattr(self, "log"):
            return
        clean = self.partition.clean_offset
        assert clean <= self.partition.durable_offset
        below = [one.key for one in self.model if one.offset < clean and one.key is not None]
        assert len(below) == len(set(below))

    @invariant()
    def nothing_unfinished_is_left(self) -> None:
        left = [path.name for path in self.path.glob("t-0/*")]
        assert not [name for name in left if name.endswith((".cleaned", ".swap", ".tmp"))]


def _records_of_batches(batches: Iterable[Any]) -> Iterator[Record]:
    for batch in batches:
        yield from batch.records()


@contextmanager
def before_step(number: int, act: Callable[[], object]) -> Iterator[None]:
    """Act once, before the engine's call with this number to the file system."""
    done = 0

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            nonlocal done
            done += 1
            if done == number:
                act()
            return real(*args)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in STEPS:
            patch.setattr(files, name, watched(getattr(files, name)))
        yield


TestCompaction = CompactionMachine.TestCase
TestCompaction.settings = settings(
    settings(), max_examples=max(settings().max_examples * 2 // 5, 1), stateful_step_count=30
)
