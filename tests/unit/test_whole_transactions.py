"""whole_transactions_end(): where a range may end without cutting a transaction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interleaving import Work

import commitlog
from commitlog import CommitLog, Partition
from commitlog.batches.markers import first_offset_of

SMALL = {"segment_bytes": 512, "index_interval_bytes": 100}


@pytest.fixture
def work(log: CommitLog, partition: Partition) -> Iterator[Work]:
    found = Work(log)
    yield found
    found.close()


def transactions(partition: Any) -> list[tuple[int, int]]:
    """The first offset of each decided transaction, and the offset after its marker, from the markers."""
    return [
        (first_offset_of(batch.header, batch.raw, 0), batch.next_offset)
        for batch in partition.stored_batches()
        if batch.header.is_marker
    ]


def agrees(partition: Any, **named: Any) -> None:
    """Every end is as a look at all markers finds it."""
    low, stable = partition.start_offset, partition.last_stable_offset
    cut = {offset for first, after in transactions(partition) for offset in range(first + 1, after)}
    places = [offset for offset in range(low, stable + 1) if offset not in cut] or [low]
    assert partition.whole_transactions_end(low, **named) == places[-1]
    for end in range(low, stable + 2):
        expected = next((offset for offset in places if offset >= end), places[-1])
        assert partition.whole_transactions_end(low, end, **named) == expected


def test_without_transactions_a_range_may_end_anywhere_and_no_header_is_read(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition.append_many([b"v"] * 10)
    monkeypatch.setattr(commitlog.Segment, "headers", None)
    assert partition.whole_transactions_end(0) == 10
    assert [partition.whole_transactions_end(0, end) for end in (3, 10, 50)] == [3, 10, 10]


def test_a_cut_moves_behind_the_marker_of_the_transaction_that_it_would_cut(
    partition: Partition, work: Work
) -> None:
    work.send("", b"0", b"1")
    work.send("a", b"2", b"3")
    work.send("", b"4")
    work.end("a")  # the marker takes offset 5
    work.send("", b"6", b"7")
    ends = [partition.whole_transactions_end(0, end) for end in range(9)]
    assert ends == [0, 1, 2, 6, 6, 6, 6, 7, 8]


def test_transactions_that_overlap_are_read_together(partition: Partition, work: Work) -> None:
    work.send("a", b"0")
    work.send("b", b"1")
    work.end("a")
    work.send("c", b"3")
    work.end("b", commits=False)
    work.send("", b"5")
    work.end("c")
    assert [partition.whole_transactions_end(0, end) for end in range(8)] == [0, *[7] * 7]
    agrees(partition)


def test_the_end_of_all_is_before_a_transaction_that_the_stable_offset_cuts(
    partition: Partition, work: Work, log_path: Path
) -> None:
    work.send("", b"0")
    work.send("a", b"1")
    work.send("b", b"2")
    work.send("a", b"3")
    work.end("a")
    assert partition.last_stable_offset == 2  # "b" is open, and "a" has records on both sides
    with commitlog.open(log_path, mode="r") as seen:
        for one in (partition, seen.topic("t").partition(0)):
            assert one.whole_transactions_end(0) == 1
            assert one.whole_transactions_end(0, 2) == 1
            assert one.whole_transactions_end(2) == 2  # never before the start
    work.end("b")
    assert partition.whole_transactions_end(0) == partition.last_stable_offset == 6


def test_the_end_of_all_moves_back_over_transactions_that_overlap(partition: Partition, work: Work) -> None:
    work.send("a", b"0")
    work.send("b", b"1")
    work.end("a")
    work.send("c", b"3")
    work.send("b", b"4")
    work.end("b")
    assert partition.last_stable_offset == 3
    assert partition.whole_transactions_end(0) == 0


def test_what_retention_removed_the_beginning_of_is_read_from_where_the_log_starts(
    log: CommitLog,
) -> None:
    partition = log.create_topic("t", config=SMALL).partition(0)
    work = Work(log)
    work.send("a", b"0" * 300)
    work.send("", b"1" * 300)
    work.send("b", b"2")
    work.send("a", b"3")
    work.end("a")
    partition.trim_before(1)
    assert partition.last_stable_offset == 2
    assert partition.whole_transactions_end(0) == 1
    work.close()
    assert partition.whole_transactions_end(0, 2) == 2  # nothing of a transaction is left before it
    assert partition.whole_transactions_end(0, 3) == partition.high_watermark


def test_a_log_that_is_trimmed_meanwhile_is_asked_again(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = log.create_topic("t", config=SMALL).partition(0)
    work = Work(log)
    for number in range(6):
        work.send("a" if number < 5 else "", b"%d" % number * 300)
    work.end("a")
    headers = commitlog.Segment.headers

    def trimming(segment: commitlog.Segment, position: int = 0) -> Any:
        if partition.start_offset == 0:
            partition.trim_before(4)
        return headers(segment, position)

    monkeypatch.setattr(commitlog.Segment, "headers", trimming)
    assert partition.whole_transactions_end(0, 5) == 7
    work.close()


def test_in_a_compacted_topic_the_markers_tell_what_records_no_longer_do(log: CommitLog) -> None:
    config = SMALL | {"cleanup_policy": "compact", "min_compaction_lag_ms": 0}
    partition = log.create_topic("t", config=config).partition(0)
    work = Work(log)
    work.send("", b"0")
    work.send("a", b"1", b"2", b"3")
    work.send("", b"x" * 300)
    work.end("a")
    for number in range(6):
        work.send("", b"%d" % number * 300)
    partition.compact()
    assert not any(batch.header.is_transactional for batch in partition.stored_batches())
    agrees(partition, compacted=True)
    work.close()


# mostly of few producers, so that they overlap
steps = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "send", "commit", "abort"]), st.sampled_from(["a", "b", "c", ""])
    ),
    min_size=10,
    max_size=25,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
def test_every_end_is_the_one_that_all_markers_together_give(
    tmp_path_factory: pytest.TempPathFactory, done: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("log")
    with commitlog.open(path) as log, commitlog.open(path, mode="r") as seen:
        log.create_topic("t", config=SMALL)
        work = Work(log)
        for what, name in done:
            if what == "send":
                work.send(name, bytes(60), bytes(60))
            else:
                work.end(name, commits=what == "commit")
        for one in (log.topic("t").partition(0), seen.topic("t").partition(0)):
            agrees(one)
            agrees(one, compacted=True)
        work.close()
        agrees(log.topic("t").partition(0))
