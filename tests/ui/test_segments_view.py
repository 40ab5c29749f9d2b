from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers import flip

import commitlog
from commitlog import CommitLog
from commitlog.batches.format import MAGIC_POSITION
from commitlog.ui import segments_view

COMPACT = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 1.0, "file_delete_delay_ms": 0}


def segments(partition: Any, count: int, per_segment: int = 4) -> None:
    """Append `count` sealed segments."""
    for number in range(count):
        values = [b"value %d" % place for place in range(per_segment)]
        keys = [b"key %d" % (place % 2) for place in range(per_segment)]
        partition.append_many(values, keys=keys, timestamps=[1_000 + number] * per_segment)
        partition.roll()


def states(partition: Any) -> list[str]:
    return [bar.state for bar in segments_view.bars(partition, 100)]


def test_a_segment_is_a_bar_as_large_as_its_bytes(log: CommitLog) -> None:
    partition = log.create_topic("t").partition(0)
    segments(partition, 3)
    drawn = segments_view.bars(partition, 100)
    assert [(bar.base_offset, bar.end_offset) for bar in drawn] == [(0, 4), (4, 8), (8, 12), (12, 12)]
    assert [bar.bytes for bar in drawn] == [one.size_bytes for one in partition.segments]
    assert states(partition) == ["sealed", "sealed", "sealed", "active"]


def test_what_compaction_has_seen_is_told_from_what_is_dirty(log: CommitLog, log_path: Path) -> None:
    partition = log.create_topic("c", config=COMPACT).partition(0)
    segments(partition, 2)
    partition.compact()
    segments(partition, 1)
    with commitlog.open(log_path, mode="r") as reader:
        seen = reader.topic("c").partition(0)
        assert states(seen)[-3:] == ["compacted", "dirty", "active"]


def test_an_empty_partition_is_one_bar_without_bytes(log: CommitLog) -> None:
    partition = log.create_topic("t").partition(0)
    assert segments_view.bars(partition, 100) == [segments_view.Bar(0, 0, 0, 1, "active")]
    about = segments_view.details(partition, 0, 0)
    assert (about["records"], about["first_timestamp"]) == (0, None)


@pytest.mark.parametrize("most", [2, 7, 50])
def test_many_segments_are_merged_into_few_bars_that_miss_nothing(log: CommitLog, most: int) -> None:
    partition = log.create_topic("c", config=COMPACT).partition(0)
    segments(partition, 60, 1)
    drawn = segments_view.bars(partition, most)
    assert len(drawn) <= most + 1  # the active one stays alone
    assert sum(bar.segments for bar in drawn) == 61
    assert sum(bar.bytes for bar in drawn) == partition.size_bytes
    ends = [bar.end_offset for bar in drawn]
    assert [bar.base_offset for bar in drawn] == [0, *ends[:-1]]
    assert {bar.state for bar in drawn[:-1]} == {"dirty"} and drawn[-1].state == "active"


def test_a_closer_look_counts_records_and_tells_the_times(log: CommitLog) -> None:
    partition = log.create_topic("t").partition(0)
    segments(partition, 3)
    partition.append(b"last", timestamp=9_000)
    one = segments_view.details(partition, 4, 8)
    assert (one["records"], one["batches"], one["first_timestamp"], one["last_timestamp"]) == (
        4,
        1,
        1001,
        1001,
    )
    assert one["files"] == ["00000000000000000004.log"]
    whole = segments_view.details(partition, 0, 13)
    assert (whole["records"], whole["first_timestamp"], whole["last_timestamp"]) == (13, 1000, 9000)
    assert whole["files"] == ["00000000000000000000.log", "00000000000000000012.log"]


def test_a_closer_look_counts_markers_apart(log: CommitLog) -> None:
    log.create_topic("t").append(b"plain")
    with log.transaction() as txn:
        txn.append_many("t", [b"one", b"two"])
    found = segments_view.details(log.topic("t").partition(0), 0, 4)
    assert (found["records"], found["batches"], found["markers"]) == (3, 2, 1)


def test_a_closer_look_tells_what_was_trimmed_within_a_segment(log: CommitLog) -> None:
    partition = log.create_topic("t").partition(0)
    segments(partition, 1)
    partition.trim_before(3)
    assert segments_view.details(partition, 0, 4)["trimmed"] == 3


def test_damage_is_told_where_it_is_met(log: CommitLog) -> None:
    partition = log.create_topic("t").partition(0)
    segments(partition, 2)
    flip(partition.segments[0].path, MAGIC_POSITION)
    assert "no batch starts here" in segments_view.details(partition, 0, 4)["problem"]


def test_counting_gives_up_in_time(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments_view, "_MOST_BATCHES", 2)
    partition = log.create_topic("t").partition(0)
    segments(partition, 3)
    assert segments_view.details(partition, 0, 12)["records"] is None
