"""Readers in other processes and threads follow a log while it is written, rolled and compacted."""

from __future__ import annotations

import random
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from soak import SOAK

import commitlog
from commitlog import CommitLog, LogConfig, Partition, tasks

from . import children, followers
from .followers import key_of, value_of
from .test_threads import Crew

pytest.importorskip("pyarrow")

END = 20_000 if SOAK else 2_400
HOW = ("records", "batches", "arrow", "latest")
TINY = {
    "cleanup_policy": "compact",
    "segment_bytes": 4096,
    "index_interval_bytes": 256,
    "file_delete_delay_ms": 0,
    "flush_ms": -1,
}


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes run when the test says so."""
    monkeypatch.setattr(tasks.Task, "start", lambda self: None)


def append(partition: Partition, count: int, end: int = END) -> None:
    start = partition.next_offset
    offsets = range(start, min(start + count, end))
    if count == 1 and start < end:
        partition.append(value_of(start), key=key_of(start))
    else:
        partition.append_many([value_of(one) for one in offsets], keys=[key_of(one) for one in offsets])


def write_all(partition: Partition, chance: random.Random, pass_ended: threading.Semaphore) -> None:
    """Append while passes run, but not so fast that there are only a few."""
    while partition.next_offset < END:
        assert pass_ended.acquire(timeout=60)
        share = partition.next_offset + END // 20
        while partition.next_offset < min(share, END):
            append(partition, chance.choice([1, 1, 1, 5, 30]))
        partition.roll()


def check_survivors(partition: Partition, seen: list[int]) -> None:
    """Who was there from the start has seen, in order, every record that is still there."""
    assert all(one < other for one, other in pairwise(seen))
    survivors = {record.offset for record in partition.records()}
    assert survivors <= set(seen)
    assert len(survivors) < END


@pytest.mark.parametrize("room", [24 * 100, 1 << 20], ids=["small map", "large map"])
def test_readers_in_other_processes_follow_a_log_that_is_compacted_under_them(
    log_path: Path, room: int
) -> None:
    with commitlog.open(log_path, config=LogConfig(cleaner_dedupe_buffer_bytes=room)) as log:
        partition = log.create_topic("t", config=TINY).partition(0)
        readers = [children.start(how, log_path, END, script=followers.__file__) for how in HOW]
        for one in readers:
            children.until_ready(one)
        pass_ended = threading.Semaphore(1)
        writing = threading.Thread(target=write_all, args=(partition, random.Random(room), pass_ended))
        writing.start()
        while writing.is_alive():
            partition.compact()
            pass_ended.release()
        for how, one in zip(HOW, readers, strict=True):
            seen = children.finish(one)
            if how != "latest":
                check_survivors(partition, seen)
        late = children.run("records", log_path, END, script=followers.__file__)
        assert late == [record.offset for record in partition.records()]


def test_threads_read_a_log_that_is_compacted_under_them(log: CommitLog) -> None:
    partition = log.create_topic("t", config=TINY).partition(0)
    crew = Crew()
    chance = random.Random(1)
    following = [followers.reader(partition, how) for how in HOW]
    for one in following:
        crew.add(one.read_on)
    end = 2_000 if SOAK else 600
    crew.add(lambda: append(partition, chance.choice([1, 1, 1, 5, 30]), end))
    crew.add(partition.compact)
    crew.add(lambda: look_around(partition, chance))
    crew.run(lambda: partition.clean_offset > end // 2 and all(one.position >= end for one in following))
    for one in following:
        one.check_state()
        if one.seen:
            check_survivors(partition, one.seen)


def look_around(partition: Partition, chance: random.Random) -> None:
    """Single reads at any place: a record is there as it was written, or it is gone."""
    offset = chance.randrange(partition.next_offset + 1)
    if offset < partition.next_offset:
        record = partition.get(offset)
        assert record is None or record.offset == offset
        if record is not None:
            followers.check(record)
    found = partition.offset_for_timestamp(0)
    assert found is None or found <= partition.next_offset


def test_a_view_in_another_process_survives_a_writer_that_is_killed_in_a_pass(
    log_path: Path,
) -> None:
    """Where a swap was left half-way, a reader without a writer sees what the next writer will."""
    with commitlog.open(log_path) as log:
        partition = log.create_topic("t", config=TINY).partition(0)
        for _ in range(20):
            append(partition, 30)
    assert children.run("killed_in_a_swap", log_path, script=children.__file__) == "swapped"
    expected = followers.Expected()
    expected.move_to(600)
    with commitlog.open(log_path, mode="r") as reading:
        view = reading.topic("t").partition(0).latest()
        records = list(reading.topic("t").partition(0).records())
        assert (dict(view), view.next_offset) == (expected.values(), 600)
    with commitlog.open(log_path) as log:
        assert list(log.topic("t").partition(0).records()) == records
        assert log.topic("t").partition(0).verify().ok
