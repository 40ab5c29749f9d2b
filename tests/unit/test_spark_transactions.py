"""What Spark's queries read where there are transactions; without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interleaving import Work

import commitlog
from commitlog import CommitLog, Partition
from commitlog.errors import DataLossError
from commitlog.spark import worker
from commitlog.spark.options import ReadOptions
from commitlog.spark.planning import Range, batch_ranges, load
from commitlog.spark.schema import Field, full_schema
from commitlog.spark.stream import StreamReader

FIELDS = (Field("offset"), Field("value"))


@pytest.fixture(autouse=True)
def leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a worker process may keep for good, a test must not."""
    monkeypatch.setattr(worker, "settle_down", lambda: None)
    yield
    for path in list(worker._handles):
        worker.forget_log(path)


@pytest.fixture
def work(log: CommitLog, partition: Partition) -> Iterator[Work]:
    found = Work(log)
    yield found
    found.close()


def options(path: Path, **given: Any) -> ReadOptions:
    texts = {name: one if isinstance(one, str) else json.dumps(one) for name, one in given.items()}
    return ReadOptions.of({"path": str(path), **texts})


def stream(path: Path, **given: str) -> StreamReader:
    given = {"startingOffsets": "earliest", **given}
    return StreamReader(full_schema(headers=False), {"path": str(path), **given})


def at(offset: int) -> dict[str, dict[str, int]]:
    return {"t": {"0": offset}}


def end_of(stored: dict[str, Any]) -> int:
    """The only offset in what a stream stores."""
    (offset,) = load(stored).values()
    return offset


def values(path: Path, *ranges: Range, **given: Any) -> list[bytes]:
    """What a task reads."""
    batches = worker.read_ranges(options(path, **given), FIELDS, ranges)
    return [row["value"] for batch in batches for row in batch.to_pylist()]


def planned(path: Path, **given: Any) -> list[Range]:
    """The ranges of a batch query."""
    with commitlog.open(path, mode="r") as log:
        return batch_ranges(log, options(path, **given))


def bounds(path: Path, **given: Any) -> list[tuple[int, int]]:
    return [(one.start, one.end) for one in planned(path, **given)]


# --- batch queries


def test_a_query_ends_where_an_open_transaction_begins(work: Work, log_path: Path) -> None:
    work.send("", b"0", b"1")
    work.send("a", b"2", b"3")
    assert bounds(log_path) == [(0, 2)]
    assert bounds(log_path, isolationLevel="read_uncommitted") == [(0, 4)]
    assert bounds(log_path, startingOffsets="latest") == []
    work.end("a")
    assert bounds(log_path) == bounds(log_path, isolationLevel="read_uncommitted") == [(0, 5)]


def test_the_latest_offset_cuts_no_transaction_even_if_the_stable_one_does(
    work: Work, partition: Partition, log_path: Path
) -> None:
    work.send("", b"0")
    work.send("a", b"1")
    work.send("b", b"2")
    work.send("a", b"3")
    work.end("a")
    assert partition.last_stable_offset == 2
    assert bounds(log_path) == [(0, 1)]
    later = {"startingTimestamp": str(1 << 50), "startingOffsetsByTimestampStrategy": "latest"}
    assert bounds(log_path, **later, endingOffsets=at(2)) == [(1, 2)]


def test_a_time_is_looked_up_among_decided_records(log: CommitLog, log_path: Path) -> None:
    log.create_topic("t").append(b"0", timestamp=10)
    with log.producer(transactional_id="a") as producer:
        producer.begin_transaction()
        producer.send("t", b"1", timestamp=20)
        producer.flush()
        assert bounds(log_path, endingTimestamp="15") == [(0, 1)]
        late = {"startingTimestamp": "20", "isolationLevel": "read_uncommitted"}
        assert bounds(log_path, **late) == [(1, 2)]
        with pytest.raises(commitlog.ConfigError, match="t-0 has no record as late as that"):
            bounds(log_path, startingTimestamp="20")
        producer.abort_transaction()


def test_an_end_that_is_not_decided_yet_is_refused_with_the_reason(work: Work, log_path: Path) -> None:
    work.send("", b"0", b"1")
    work.send("a", b"2", b"3")
    with pytest.raises(DataLossError, match="offset 4 is after its last stable offset, 2: a transaction is"):
        bounds(log_path, endingOffsets=at(4))
    assert bounds(log_path, endingOffsets=at(4), failOnDataLoss="false") == [(0, 2)]
    assert bounds(log_path, endingOffsets=at(4), isolationLevel="read_uncommitted") == [(0, 4)]
    with pytest.raises(DataLossError, match="offset 5 is after its end, 2"):
        bounds(log_path, endingOffsets=at(5))


# --- tasks


def test_a_task_leaves_aborted_transactions_out_and_misses_nothing(work: Work, log_path: Path) -> None:
    work.send("", b"0")
    work.send("a", b"1")
    work.send("b", b"2")
    work.end("a", commits=False)
    work.end("b")
    work.send("c", b"5")
    work.end("c", commits=False)  # the range ends with an aborted record and its marker
    (whole,) = planned(log_path)
    assert (whole.start, whole.end) == (0, 7)
    assert values(log_path, whole) == [b"0", b"2"]
    assert values(log_path, whole, isolationLevel="read_uncommitted") == [b"0", b"1", b"2", b"5"]
    pieces = [Range("t", 0, offset, offset + 1) for offset in range(7)]
    assert values(log_path, *pieces) == [b"0", b"2"]
    assert (
        values(log_path, pieces[1], pieces[3], pieces[4], pieces[6]) == []
    )  # an aborted record, and markers


def test_a_task_reads_no_undecided_record_and_tells_of_it(work: Work, log_path: Path) -> None:
    work.send("", b"0")
    work.send("a", b"1")
    asked = Range("t", 0, 0, 2)
    with pytest.raises(DataLossError, match="its end moved back to 1"):
        values(log_path, asked)
    assert values(log_path, asked, failOnDataLoss="false") == [b"0"]
    assert values(log_path, asked, isolationLevel="read_uncommitted") == [b"0", b"1"]


def test_a_range_is_complete_although_a_transaction_began_after_it_was_planned(
    work: Work, log_path: Path
) -> None:
    work.send("", b"0")
    (whole,) = planned(log_path)
    work.send("a", b"1")
    assert values(log_path, whole) == [b"0"]


# --- streams


def test_a_stream_waits_for_an_open_transaction_and_then_reads_it_once(work: Work, log_path: Path) -> None:
    work.send("", b"0")
    work.send("a", b"1")
    query = stream(log_path)
    assert end_of(query.initialOffset()) == 0
    assert end_of(query.latestOffset(at(0))) == end_of(query.reportLatestOffset()) == 1
    work.send("", b"2")
    assert end_of(query.latestOffset(at(1))) == 1
    work.end("a")
    assert end_of(query.latestOffset(at(1))) == 4
    (task,) = query.partitions(at(1), at(4))
    assert [row["value"] for batch in query.read(task) for row in batch.to_pylist()] == [b"1", b"2"]
    uncommitted = stream(log_path, isolationLevel="read_uncommitted")
    work.send("a", b"4")
    assert end_of(uncommitted.latestOffset(at(1))) == 5


def test_a_new_stream_starts_before_what_is_not_decided(work: Work, log_path: Path) -> None:
    work.send("", b"0")
    work.send("a", b"1")
    work.send("b", b"2")
    work.end("a")  # and so the stable offset, 2, cuts nothing
    assert end_of(stream(log_path, startingOffsets="latest").initialOffset()) == 1
    work.end("b")
    assert end_of(stream(log_path, startingOffsets="latest").initialOffset()) == 5


def test_a_query_that_has_read_more_waits_instead_of_reporting_a_loss(work: Work, log_path: Path) -> None:
    work.send("", b"0")
    work.send("a", b"1", b"2")
    query = stream(log_path)
    assert end_of(query.latestOffset(at(2))) == 2  # from a checkpoint of read_uncommitted
    assert [task.ranges for task in query.partitions(at(2), at(2))] == [()]
    with pytest.raises(DataLossError, match="its end moved back from 4 to 3"):
        query.latestOffset(at(4))
    work.end("a")
    assert end_of(query.latestOffset(at(2))) == 4


def test_a_batch_of_a_checkpoint_that_is_not_decided_is_not_read_in_part(work: Work, log_path: Path) -> None:
    work.send("", b"0")
    work.send("a", b"1", b"2")
    query = stream(log_path)  # the batch was planned with read_uncommitted
    with pytest.raises(DataLossError, match="offset 3 is after its last stable offset, 1"):
        query.partitions(at(0), at(3))
    work.end("a")
    (task,) = query.partitions(at(0), at(3))
    assert sum(batch.num_rows for batch in query.read(task)) == 3


@pytest.mark.parametrize(
    ("cap", "committed", "uncommitted"),
    [
        ({"maxOffsetsPerTrigger": "2"}, [5, 7], [2, 4, 6, 7]),
        ({"maxBytesPerTrigger": "1"}, [1, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_a_cap_cuts_no_transaction(
    work: Work, log_path: Path, cap: dict[str, str], committed: list[int], uncommitted: list[int]
) -> None:
    work.send("", b"0")
    work.send("a", b"1")
    work.send("b", b"2")
    work.end("a")
    work.end("b")
    work.send("", b"5")
    work.send("", b"6")
    assert ends(stream(log_path, **cap)) == committed
    assert ends(stream(log_path, **cap, isolationLevel="read_uncommitted")) == uncommitted


def test_available_now_ends_before_what_was_open_when_it_began(work: Work, log_path: Path) -> None:
    work.send("a", b"0")
    work.end("a")
    work.send("b", b"2")
    query = stream(log_path, maxOffsetsPerTrigger="1")
    query.prepareForTriggerAvailableNow()
    work.end("b")
    assert ends(query) == [2]


def test_markers_that_nothing_else_follows_do_not_stop_a_stream(work: Work, log_path: Path) -> None:
    for _ in range(3):
        work.send("a", b"aborted")
        work.end("a", commits=False)
    query = stream(log_path, maxOffsetsPerTrigger="1")
    assert ends(query) == [2, 4, 6]
    (task,) = query.partitions(at(0), at(6))
    assert list(query.read(task)) == []


def test_a_group_that_has_read_everything_has_no_lag_although_markers_follow(
    work: Work, log: CommitLog, log_path: Path
) -> None:
    work.send("", b"0")
    work.send("a", b"1")
    work.end("a")
    query = stream(log_path, groupId="g")
    query.commit(query.latestOffset(at(0)))
    (part,) = log.describe_group("g").partitions
    assert (part.committed, part.lag) == (3, 0)


def ends(query: StreamReader) -> list[int]:
    """Where the micro-batches of a query from the beginning end, until there is nothing more."""
    found: list[int] = []
    position = 0
    while True:
        after = end_of(query.latestOffset(at(position)))
        if after == position:
            return found
        position = after
        found.append(position)


steps = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "send", "commit", "abort", "read"]), st.sampled_from(["a", "b", ""])
    ),
    min_size=10,
    max_size=25,
)


@settings(max_examples=40)
@given(steps, st.sampled_from([{}, {"maxOffsetsPerTrigger": "2"}, {"maxBytesPerTrigger": "200"}]))
def test_micro_batches_hold_whole_transactions_each_exactly_once(
    tmp_path_factory: pytest.TempPathFactory, done: list[tuple[str, str]], cap: dict[str, str]
) -> None:
    path = tmp_path_factory.mktemp("log")
    batches: list[list[bytes]] = []
    sent: dict[bytes, int] = {}  # records of each transaction, or of each send outside
    committed: set[bytes] = set()
    outside: set[bytes] = set()
    current: dict[str, bytes] = {}
    position = 0

    def read() -> None:
        nonlocal position
        after = end_of(query.latestOffset(at(position)))
        tasks = query.partitions(at(position), at(after))
        batches.append(
            [row["value"] for task in tasks for batch in query.read(task) for row in batch.to_pylist()]
        )
        position = after

    with commitlog.open(path) as log:
        log.create_topic("t", config={"segment_bytes": 512})
        work, query = Work(log), stream(path, **cap)
        for number, (what, name) in enumerate(done):
            if what == "read":
                read()
            elif what == "send":
                label = current.setdefault(name, b"%d" % number) if name else b"%d" % number
                work.send(name, label, label)
                sent[label] = sent.get(label, 0) + 2
                if not name:
                    outside.add(label)
                    committed.add(label)
            else:
                label = current.pop(name, b"")
                if what == "commit" and label:
                    committed.add(label)
                work.end(name, commits=what == "commit")
        work.close()
        while position < log.topic("t").partition(0).high_watermark:
            read()
        worker.forget_log(str(path))
    for label in committed:
        assert sum(batch.count(label) for batch in batches) == sent[label]
        if label not in outside:
            assert sum(label in batch for batch in batches) == 1
    assert {value for batch in batches for value in batch} == committed
