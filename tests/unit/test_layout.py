from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import commitlog
from commitlog import CommitLog


class Stored(NamedTuple):
    base_offset: int
    next_offset: int
    position: int
    size: int


@pytest.fixture
def partition(log: CommitLog) -> Any:
    """Three hundred batches of one to eight records, over some segments."""
    chance = random.Random(1)
    found = log.create_topic("t", config={"segment_bytes": 20_000, "index_interval_bytes": 500}).partition(0)
    for _ in range(300):
        found.append_many([bytes(chance.randrange(100))] * chance.randrange(1, 9))
    return found


@pytest.fixture(params=["writer", "reader"])
def asked(request: pytest.FixtureRequest, partition: Any, log_path: Path) -> Any:
    if request.param == "writer":
        yield partition
    else:
        with commitlog.open(log_path, mode="r") as log:
            yield log.topic("t").partition(0)


def stored(partition: Any) -> list[Stored]:
    found, position = [], 0
    for batch in partition.batches():
        found.append(Stored(batch.base_offset, batch.next_offset, position, batch.size_bytes))
        position += batch.size_bytes
    return found


def holding(batches: list[Stored], offset: int) -> Stored:
    return next(batch for batch in batches if batch.next_offset > offset)


def test_a_batch_start_is_that_of_the_stored_batch_which_holds_the_offset(asked: Any) -> None:
    batches = stored(asked)
    for offset in range(asked.next_offset):
        assert asked.batch_start(offset) == holding(batches, offset).base_offset
    assert asked.batch_start(asked.next_offset) == asked.next_offset


def test_bytes_between_offsets_are_those_of_whole_stored_batches(asked: Any) -> None:
    batches, chance = stored(asked), random.Random(2)
    end = asked.next_offset
    for _ in range(300):
        start, stop = sorted(chance.choices(range(end), k=2))
        expected = holding(batches, stop).position - holding(batches, start).position
        assert asked.bytes_between(start, stop) == expected
    assert asked.bytes_between(0, end) == asked.size_bytes
    assert asked.bytes_between(5, 5) == asked.bytes_between(9, 3) == 0


def test_as_many_batches_are_taken_as_fit_and_one_at_least(asked: Any) -> None:
    batches, chance = stored(asked), random.Random(3)
    for _ in range(300):
        start, most = chance.randrange(asked.next_offset), chance.randrange(1, 60_000)
        first = holding(batches, start)
        limit = first.position + most
        fits = [
            one.next_offset for one in batches if one.next_offset > start and one.position + one.size <= limit
        ]
        assert asked.offset_after_bytes(start, most) == max(fits, default=first.next_offset)


def test_an_empty_partition_has_no_bytes(log: CommitLog) -> None:
    partition = log.create_topic("empty").partition(0)
    assert partition.batch_start(0) == partition.bytes_between(0, 0) == 0
    assert partition.offset_after_bytes(0, 100) == 0


def test_nothing_is_decoded_for_it(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commitlog.RecordBatch, "decode", None)
    asked.batch_start(500)
    asked.bytes_between(3, 900)
    asked.offset_after_bytes(3, 9_000)


def test_what_compaction_removed_is_counted_as_it_stands(log: CommitLog) -> None:
    config = {"cleanup_policy": "compact", "segment_bytes": 2_000}
    partition = log.create_topic("t", config=config).partition(0)
    for number in range(200):
        partition.append_many([bytes(50)] * 3, keys=[b"a", b"b", b"%d" % (number % 5)])
    partition.compact()
    partition.roll()
    end = partition.next_offset
    assert partition.bytes_between(0, end) == partition.size_bytes
    for offset in range(0, end, 7):
        assert partition.batch_start(offset) <= offset
