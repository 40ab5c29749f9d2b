"""Faults of transactions that were found by reading the code, each shown by a test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import copy_as_if_killed

import commitlog
from commitlog import (
    CommitLog,
    Partition,
    TopicPartition,
    TransactionAbortedError,
    TransactionStateError,
)
from commitlog.errors import DiskFullError, UnfinishedTransactionError
from commitlog.partitions import producer_state
from commitlog.topic import Topic
from commitlog.topics.topic_set import Mode
from commitlog.transactions import coordinator
from commitlog.transactions.state_log import TransactionLog
from commitlog.transactions.transaction import Transaction


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CommitLog]:
    with commitlog.open(tmp_path / "log") as opened:
        yield opened


def values(log: CommitLog, topic: str) -> list[bytes | None]:
    """Return what a reader of committed records sees."""
    return [record.value for record in log.topic(topic).records()]


@pytest.mark.parametrize("mode", ["w", "shared"])
def test_a_roll_just_before_the_first_batch_of_a_transaction_does_not_show_it(
    tmp_path: Path, mode: Mode
) -> None:
    with commitlog.open(tmp_path / "log", mode=mode) as log:
        partition = log.create_topic("orders", config={"segment_bytes": 4096}).partition(0)
        partition.append(b"x" * 3000)
        with log.transaction() as txn:
            txn.append("orders", b"y" * 3000)
            txn.flush()
            assert len(partition.segments) == 2
            assert partition.last_stable_offset == 1
            txn.append("orders", b"z")
            txn.flush()
            assert partition.last_stable_offset == 1
            assert len(values(log, "orders")) == 1
        assert len(values(log, "orders")) == 3


@pytest.mark.parametrize("topics", [["orders"], ["orders", "payments"]])
def test_an_owner_without_a_name_goes_on_when_its_epochs_are_used_up(
    log: CommitLog, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "MAX_EPOCH", 2)
    log.create_topic("orders")
    log.create_topic("payments")
    for number in range(10):
        with log.transaction() as txn:
            for topic in topics:
                txn.append(topic, b"%d" % number)
    assert all(values(log, topic) == [b"%d" % number for number in range(10)] for topic in topics)


def test_a_transaction_may_be_larger_than_a_segment(log: CommitLog) -> None:
    log.create_topic("orders", config={"segment_bytes": 4096})
    with log.transaction() as txn:
        txn.append("orders", b"x" * 3950)  # alone it fits, with its marker it does not
    with log.transaction() as txn:
        for _ in range(2):
            txn.append_many("orders", [b"y" * 3000])
    with log.transaction() as txn:
        for number in range(100):
            txn.append("orders", b"%0100d" % number, key=b"k" if number % 2 else None)
    found = values(log, "orders")
    assert found[:3] == [b"x" * 3950, b"y" * 3000, b"y" * 3000]
    assert found[3:] == [b"%0100d" % number for number in range(100)]


def test_a_transaction_that_lost_records_to_an_error_cannot_be_committed(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("orders")
    with log.transaction() as txn:
        txn.append("orders", b"one")
        with monkeypatch.context() as patched:
            patched.setattr(Topic, "encoded", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                txn.flush()
        with pytest.raises(TransactionStateError, match="some records may be missing"):
            txn.commit()
        txn.abort()
    assert values(log, "orders") == []


@pytest.mark.parametrize("in_a_block", [True, False])
def test_what_was_sent_in_a_transaction_that_others_aborted_is_not_part_of_the_next_one(
    log: CommitLog, in_a_block: bool
) -> None:
    log.create_topic("orders")
    producer = log.producer(transactional_id="billing-1", linger_ms=60_000)
    if in_a_block:
        with pytest.raises(TransactionAbortedError), producer.transaction():
            lost = producer.send("orders", b"old")
            log.abort_transaction("billing-1")
    else:
        producer.begin_transaction()
        lost = producer.send("orders", b"old")
        log.abort_transaction("billing-1")
    with producer.transaction():
        producer.send("orders", b"new")
    with pytest.raises(TransactionAbortedError):
        lost.result(0)
    assert values(log, "orders") == [b"new"]


def test_a_log_that_a_process_has_open_twice_ends_no_transaction_of_the_other_one(tmp_path: Path) -> None:
    with (
        commitlog.open(tmp_path / "log", mode="shared") as log,
        commitlog.open(tmp_path / "log", mode="shared") as other,
    ):
        log.create_topic("orders", partitions=2)
        with log.transaction() as txn:
            for number in range(2):
                txn.append("orders", b"%d" % number, partition=number)
            txn.flush()
            other._coordinator.sweep()
            assert [one.state for one in other.transactions()] == ["Ongoing"]
        assert values(log, "orders") == [b"0", b"1"]


def test_an_open_transaction_that_a_thread_is_using_is_aborted_in_all_its_partitions_or_in_none(
    log: CommitLog,
) -> None:
    log.create_topic("orders", partitions=2)
    with pytest.raises(TransactionAbortedError), log.transaction() as txn:
        for number in range(2):
            txn.append("orders", b"%d" % number, partition=number)
        txn.flush()
        name = txn.owner.transactional_id
        abort = threading.Thread(target=log.abort_transaction, args=(name,))
        with txn._lock:  # as a thread that appends holds it
            abort.start()
            abort.join(0.2)
            assert txn.is_open
        abort.join()
    assert values(log, "orders") == []


def test_the_markers_of_an_unfinished_commit_are_durable_before_the_next_decision(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("orders", partitions=2)
    owner = log._coordinator.own("billing-1", 60_000)

    def commit_both() -> None:
        with owner.begin() as txn:
            for number in range(2):
                txn.append("orders", b"x", partition=number)
            txn.commit(sync=True)

    with monkeypatch.context() as patched:
        patched.setattr(Partition, "end_transaction", lambda *_, **__: (_ for _ in ()).throw(OSError("no")))
        with pytest.raises(UnfinishedTransactionError):
            commit_both()
    owner.begin()
    assert all(one.durable_offset == 2 for one in log.topic("orders").partitions)


def test_what_was_aborted_stays_so_if_the_page_is_lost_and_the_snapshot_has_forgotten_the_producer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_state, "SILENT_MS", -(10**9))  # a day is over at once
    with commitlog.open(tmp_path / "log") as log:
        partition = log.create_topic("orders").partition(0)
        with log.transaction() as txn:
            txn.append("orders", b"aborted")
            txn.flush()
            txn.abort()
        partition.roll()
        partition.append(b"one")
        partition.roll()
    (Path(partition.path) / "state").unlink()
    with commitlog.open(tmp_path / "log") as log:
        assert values(log, "orders") == [b"one"]
        with log.transaction() as txn:
            txn.append("orders", b"two")
        assert values(log, "orders") == [b"one", b"two"]


def test_many_open_transactions_are_listed_in_one_round(log: CommitLog) -> None:
    log.create_topic("orders")
    open_ones = [log.transaction() for _ in range(50)]
    for txn in open_ones:
        txn.append("orders", b"x")
        txn.flush()
    assert [one.state for one in log.transactions()] == ["Ongoing"] * 50
    for txn in open_ones:
        txn.abort()
    assert log.transactions() == []


@pytest.mark.parametrize("topic", ["__transaction_state", "__consumer_offsets"])
def test_a_transaction_cannot_write_to_the_topics_of_the_log_itself(log: CommitLog, topic: str) -> None:
    log.create_topic("orders", partitions=2)
    with log.transaction() as txn:  # makes __transaction_state
        for number in range(2):
            txn.append("orders", b"x", partition=number)
    log.commit_offsets("billing", {TopicPartition("orders", 0): 1})
    txn = log.transaction()
    with pytest.raises(TransactionStateError, match=topic):
        txn.append(topic, b"x", key=b"k")
    with pytest.raises(TransactionStateError, match=topic):
        txn.append_many(topic, [b"x"], keys=[b"k"])
    txn.abort()
    producer = log.producer(transactional_id="billing-1")
    with pytest.raises(TransactionStateError, match=topic), producer.transaction():
        producer.send(topic, b"x", key=b"k")


def test_a_decision_that_could_not_be_stored_is_not_carried_out_when_the_log_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise DiskFullError("orders", "no space left on device")

    def append_to_both(txn: Transaction) -> None:
        for number in range(2):
            txn.append("orders", b"x", partition=number)

    with commitlog.open(tmp_path / "log") as log:
        log.create_topic("orders", partitions=2)
        monkeypatch.setattr(log._coordinator, "sweep", lambda: 60.0)
        with log.transaction() as txn:
            append_to_both(txn)
        with monkeypatch.context() as patched:
            patched.setattr(TransactionLog, "write", full)
            patched.setattr(Partition, "end_transaction", full)
            with pytest.raises(DiskFullError), log.transaction() as txn:
                append_to_both(txn)
    with commitlog.open(tmp_path / "log") as log:
        assert values(log, "orders") == [b"x", b"x"]


def test_a_full_disk_does_not_prevent_the_open_that_ends_what_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise DiskFullError("orders", "no space left on device")

    with commitlog.open(tmp_path / "log") as log:
        log.create_topic("orders", partitions=2)
        with monkeypatch.context() as patched, log.transaction() as txn:
            for number in range(2):
                txn.append("orders", b"x", partition=number)
            patched.setattr(Partition, "end_transaction", full)
            with pytest.raises(UnfinishedTransactionError):
                txn.commit()
        copy_as_if_killed(log, tmp_path / "copy")
    with monkeypatch.context() as patched:
        patched.setattr(Partition, "end_transaction", full)
        patched.setattr(TransactionLog, "forget", full)
        log = commitlog.open(tmp_path / "copy")
    with log:
        log._coordinator.sweep()  # now there is room again
        assert values(log, "orders") == [b"x", b"x"]
