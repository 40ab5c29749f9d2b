"""Transactions at the edges: many of them, large ones, late records, two handles in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog import CommitLog
from commitlog.errors import TransactionAbortedError, TransactionTimeoutError
from commitlog.transactions.coordinator import Coordinator


def values(partition: Any) -> list[bytes]:
    return [record.value for record in partition.records()]


@pytest.fixture
def topics(log: CommitLog) -> Any:
    return log.create_topic("a").partition(0), log.create_topic("b").partition(0)


def time_passes(coordinator: Coordinator) -> None:
    """The timeout of everything that is open passes."""
    for transaction in coordinator._live.values():
        transaction._began -= 3_600
    for _ in range(2):
        coordinator.sweep()
        coordinator._seen = {key: when - 3_600 for key, when in coordinator._seen.items()}
    coordinator.sweep()


@pytest.mark.parametrize("decided", [False, True])
@pytest.mark.parametrize("mode", ["w", "shared"])
def test_transactions_without_an_id_never_run_out_of_epochs(tmp_path: Path, decided: bool, mode: Any) -> None:
    with commitlog.open(tmp_path / "log", mode=mode) as log:
        a, b = log.create_topic("a").partition(0), log.create_topic("b").partition(0)
        for number in range(5):
            with log.transaction() as txn:
                txn.append("a", b"%d" % number)
                if decided:  # then there is a record of it
                    txn.append("b", b"%d" % number)
            (owner,) = log._coordinator._idle
            if number == 0:
                owner._next_epoch = (1 << 15) - 2
        expected = [b"%d" % number for number in range(5)]
        assert values(a) == expected
        assert values(b) == (expected if decided else [])


@pytest.mark.parametrize("way", ["one by one", "batches"])
@pytest.mark.parametrize("both", [True, False])
def test_a_transaction_may_be_larger_than_a_segment(log: CommitLog, way: str, both: bool) -> None:
    for name in "ab":
        log.create_topic(name, config={"segment_bytes": 4096})
    records = [b"%d" % number * 300 for number in range(100)]
    with log.transaction() as txn:
        for topic in "ab" if both else "a":
            for record in records:
                if way == "one by one":
                    txn.append(topic, record)
                else:
                    txn.append_many(topic, [record])
    a, b = (log.topic(name).partition(0) for name in "ab")
    assert len(a.segments) > 5
    assert values(a) == records
    assert values(b) == (records if both else [])


def test_records_of_a_transaction_that_timed_out_do_not_become_part_of_the_next(
    log: CommitLog, topics: Any
) -> None:
    a, _ = topics
    with log.producer(transactional_id="p", linger_ms=60_000) as producer:
        producer.begin_transaction()
        late = producer.send("a", b"late")
        time_passes(log._coordinator)
        producer.begin_transaction()
        producer.send("a", b"in time")
        producer.commit_transaction()
        with pytest.raises(TransactionAbortedError):
            late.result(0)
    assert values(a) == [b"in time"]


def test_two_handles_of_one_process_leave_each_others_transactions_alone(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with commitlog.open(path, mode="shared") as one, commitlog.open(path, mode="shared") as other:
        a = one.create_topic("a").partition(0)
        one.create_topic("b")
        other.topic("a"), other.topic("b")
        with one.producer(transactional_id="p") as producer, producer.transaction():
            producer.send("a", b"1")
            producer.send("b", b"1")
            producer.flush()
            other._coordinator.sweep()
            assert a.last_stable_offset == 0
        assert values(a) == values(one.topic("b").partition(0)) == [b"1"]


def test_who_owns_a_transaction_that_others_aborted_does_not_list_it_as_open(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with commitlog.open(path, mode="shared") as one, commitlog.open(path, mode="shared") as other:
        one.create_topic("a")
        other.topic("a")
        producer = one.producer(transactional_id="p")
        producer.begin_transaction()
        producer.send("a", b"1")
        producer.flush()
        time_passes(other._coordinator)
        assert [found.state for found in one.transactions()] == ["CompleteAbort"]
        with pytest.raises(TransactionAbortedError):
            producer.commit_transaction()


def test_a_process_that_has_not_looked_for_a_while_can_trim_what_others_appended(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with commitlog.open(path, mode="shared") as one, commitlog.open(path, mode="shared") as other:
        a = one.create_topic("a").partition(0)
        late = other.topic("a").partition(0)
        a.append_many([b"%d" % number for number in range(5)])
        late.trim_before(3)
        assert values(a) == [b"3", b"4"]


def test_the_owner_learns_why_its_transaction_has_ended(log: CommitLog, topics: Any) -> None:
    with log.producer(transactional_id="p") as producer:
        producer.begin_transaction()
        producer.send("a", b"1")
        time_passes(log._coordinator)
        with pytest.raises(TransactionTimeoutError, match="transaction_timeout_ms = 60000"):
            producer.commit_transaction()
        producer.abort_transaction()


@pytest.mark.parametrize("mode", ["w", "shared"])
def test_a_transaction_that_begins_with_a_roll_is_hidden_from_its_first_record_on(
    tmp_path: Path, mode: Any
) -> None:
    with commitlog.open(tmp_path / "log", mode=mode) as log:
        a = log.create_topic("a", config={"segment_bytes": 512}).partition(0)
        with log.transaction() as txn:
            txn.append("a", b"decided")
        a.append(b"x" * 300)
        with commitlog.open(tmp_path / "log", mode="r") as reading, log.transaction() as txn:
            txn.append("a", b"y" * 300)
            txn.flush()
            assert a.segments[-1].base_offset == 3
            for side in (a, reading.topic("a").partition(0)):
                assert (side.last_stable_offset, side.next_offset) == (3, 4)
                assert values(side) == [b"decided", b"x" * 300]
