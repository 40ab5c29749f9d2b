from __future__ import annotations

from typing import Any

import pytest

from commitlog import CommitLog, Partition
from commitlog.ui import search
from commitlog.ui.search import Found, Wanted, newest_first, oldest_first

ALL = Wanted()


@pytest.fixture
def hundred(partition: Partition) -> Partition:
    for number in range(100):
        partition.append(b"value %d" % number, key=b"key %d" % (number % 7))
    return partition


def offsets(found: Found) -> list[int]:
    return [record.offset for record in found.records]


def pages(first: Any, next_start: Any, ask: Any) -> list[int]:
    """Page on until there is no more."""
    seen: list[int] = []
    at = first
    while at is not None:
        found = ask(at)
        seen += offsets(found)
        at = next_start(found)
    return seen


def test_pages_of_the_oldest_go_on_to_the_end(hundred: Partition) -> None:
    def on(found: Found) -> int | None:
        return found.end if found.end < 100 else None

    assert pages(0, on, lambda at: oldest_first(hundred, at, 30, ALL)) == list(range(100))


def test_pages_of_the_newest_go_back_to_the_start(hundred: Partition) -> None:
    def back(found: Found) -> int | None:
        return found.start if found.start > 0 else None

    assert pages(100, back, lambda at: newest_first(hundred, at, 30, ALL)) == list(range(99, -1, -1))


@pytest.mark.parametrize("search", [oldest_first, newest_first])
@pytest.mark.parametrize("start", [-5, 0, 100, 1000])
def test_a_start_outside_of_the_partition_is_moved_to_its_edge(
    hundred: Partition, search: Any, start: int
) -> None:
    found = search(hundred, start, 10, ALL)
    assert 0 <= found.start <= found.end <= 100


def test_a_key_is_found_in_both_directions(hundred: Partition) -> None:
    wanted = Wanted(key=b"key 3")
    assert offsets(oldest_first(hundred, 0, 50, wanted)) == list(range(3, 100, 7))
    assert offsets(newest_first(hundred, 100, 50, wanted)) == list(range(3, 100, 7))[::-1]
    assert offsets(newest_first(hundred, 50, 2, wanted)) == [45, 38]


def test_a_part_of_a_value_is_found(hundred: Partition) -> None:
    assert offsets(oldest_first(hundred, 0, 50, Wanted(contains=b"e 9"))) == [9, *range(90, 100)]
    assert offsets(oldest_first(hundred, 0, 50, Wanted(key=b"key 0", contains=b"91"))) == [91]


def test_tombstones_and_null_keys_are_no_text(partition: Partition) -> None:
    partition.append(None, key=b"")
    partition.append(b"", key=None)
    assert offsets(oldest_first(partition, 0, 9, Wanted(key=b""))) == [0]
    assert offsets(oldest_first(partition, 0, 9, Wanted(contains=b"x"))) == []


def test_gaps_that_compaction_left_are_crossed(log: CommitLog) -> None:
    partition = log.create_topic("c", config={"cleanup_policy": "compact"}).partition(0)
    partition.append(b"first", key=b"a")
    for number in range(3000):
        partition.append(b"%d" % number, key=b"b")
    partition.roll()
    partition.compact()
    assert offsets(newest_first(partition, 3001, 10, ALL)) == [3000, 0]
    assert offsets(oldest_first(partition, 0, 10, ALL)) == [0, 3000]


def test_a_request_stops_after_so_many_records_and_says_how_far_it_came(
    hundred: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_MOST_RECORDS", 40)
    nothing = Wanted(key=b"not there")
    forward = oldest_first(hundred, 0, 10, nothing)
    assert (forward.records, forward.start, forward.end) == ([], 0, 40)
    backward = newest_first(hundred, 100, 10, nothing)
    assert backward.records == [] and 0 < backward.start <= 60 and backward.end == 100


def test_a_request_reads_only_so_many_bytes_at_once(
    hundred: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_MOST_BYTES", 300)
    assert oldest_first(hundred, 0, 100, ALL).end < 40
    read: list[int] = []
    real = hundred.records
    monkeypatch.setattr(
        hundred, "records", lambda low, high, **how: read.append(high - low) or real(low, high, **how)
    )
    newest_first(hundred, 100, 64, Wanted(key=b"not there"))
    assert max(read) <= 4
