"""All of a transaction is read, or nothing of it; and what others learned the hard way holds here."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import copy_as_if_killed, flip, wait_until

import commitlog
from commitlog import (
    CommitLog,
    ConfigError,
    InvalidRecordError,
    OffsetOutOfRangeError,
    Partition,
    RecordTooLargeError,
    TopicPartition,
    TransactionAbortedError,
    TransactionFencedError,
    TransactionStateError,
    UnknownTopicError,
    aborted_index,
)
from commitlog.errors import (
    CommitFailedError,
    DiskFullError,
    ProducerFencedError,
    TransactionTimeoutError,
    UnfinishedTransactionError,
    UnstableOffsetsError,
)
from commitlog.partitions import producer_state
from commitlog.transactions.transaction import Transaction

BOTH = ("read_committed", "read_uncommitted")


@pytest.fixture
def topics(log: CommitLog) -> tuple[Partition, Partition]:
    """Two topics of one partition."""
    config = {"flush_ms": -1}
    return log.create_topic("a", config=config)[0], log.create_topic("b", config=config)[0]


def values(partition: Any, level: Any = "read_committed") -> list[bytes | None]:
    return [record.value for record in partition.records(isolation_level=level)]


def begun(log: CommitLog, *sent: tuple[str, bytes]) -> Transaction:
    """An open transaction that has written to its partitions."""
    txn = log.transaction()
    for topic, value in sent:
        txn.append(topic, value, key=b"k")
    txn.flush()
    return txn


def grow_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transaction, "age_ms", 10**9)


# --- what readers see


def test_what_is_committed_is_read_in_all_partitions(log: CommitLog, topics: Any) -> None:
    a, b = topics
    with log.transaction() as txn:
        txn.append("a", b"1", key=b"k", headers=[("h", b"x")], timestamp=5)
        txn.append_many("a", [b"2", None], keys=[b"k", b"l"])
        txn.append("b", b"3")
    assert values(a) == [b"1", b"2", None]
    first = next(a.records())
    assert (first.key, first.timestamp, first.headers) == (b"k", 5, (("h", b"x"),))
    assert values(b) == [b"3"]
    assert a.last_stable_offset == a.high_watermark == a.next_offset == 4


@pytest.mark.parametrize("count", [1, 2])
def test_what_is_aborted_is_read_only_on_request(log: CommitLog, topics: Any, count: int) -> None:
    with pytest.raises(KeyError), log.transaction() as txn:
        for name in ["a", "b"][:count]:
            txn.append(name, b"never")
        txn.flush()
        raise KeyError
    for partition in topics[:count]:
        assert values(partition) == []
        assert values(partition, "read_uncommitted") == [b"never"]
        assert list(partition.batches()) == []
        assert partition.to_arrow().num_rows == 0
        assert partition.latest() == {}
        assert partition.get(0) is None


def test_records_that_were_held_until_an_abort_were_never_there(log: CommitLog, topics: Any) -> None:
    txn = log.transaction()
    txn.append("a", b"held")
    txn.abort()
    assert topics[0].next_offset == 0


def test_an_open_transaction_hides_what_comes_after_it(log: CommitLog, topics: Any) -> None:
    a, _ = topics
    a.append(b"before")
    txn = begun(log, ("a", b"open"))
    a.append(b"after")
    assert (a.last_stable_offset, a.high_watermark) == (1, 3)
    assert values(a) == [b"before"]
    assert values(a, "read_uncommitted") == [b"before", b"open", b"after"]
    with pytest.raises(OffsetOutOfRangeError):
        a.get(1)
    assert a.get(1, isolation_level="read_uncommitted").value == b"open"
    assert not a.wait_for(1, 0)
    assert a.wait_for(1, 0, isolation_level="read_uncommitted")
    txn.commit()
    assert values(a) == [b"before", b"open", b"after"]
    assert a.last_stable_offset == 4


def test_the_stable_offset_is_that_of_the_oldest_open_transaction(log: CommitLog, topics: Any) -> None:
    a, _ = topics
    first, second = begun(log, ("a", b"1")), begun(log, ("a", b"2"))
    first.append("a", b"3")
    first.flush()
    assert a.last_stable_offset == 0
    first.commit()
    assert a.last_stable_offset == 1
    assert values(a) == [b"1"]
    second.abort()
    assert values(a) == [b"1", b"3"]


def test_a_reader_waits_for_the_marker(log: CommitLog, topics: Any) -> None:
    a, _ = topics
    txn = begun(log, ("a", b"1"))
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(a.wait_for(0, 30)))
    thread.start()
    txn.commit()
    thread.join()
    assert seen == [True]


def test_a_reader_in_another_process_sees_the_same_bounds(log: CommitLog, topics: Any) -> None:
    with commitlog.open(log.path, mode="r") as other:
        a, reader = topics[0], other.topic("a")[0]
        assert values(reader) == []
        txn = begun(log, ("a", b"open"))
        assert (reader.last_stable_offset, reader.next_offset) == (0, 1)
        assert values(reader) == []
        txn.commit()
        begun(log, ("a", b"never")).abort()
        begun(log, ("a", b"left"))
        a.append(b"plain")
        assert (reader.last_stable_offset, reader.next_offset) == (a.last_stable_offset, a.next_offset)
        assert values(reader) == values(a) == [b"open"]
        assert [(one.state, one.partitions) for one in other.transactions()] == [
            ("Ongoing", (TopicPartition("a", 0),))
        ]


@pytest.mark.parametrize("how", ["records", "combined"])
def test_many_small_transactions_are_read_together(log: CommitLog, topics: Any, how: str) -> None:
    a, _ = topics
    expected = []
    for number in range(300):
        txn = begun(log, ("a", b"%d" % number))
        if number % 7 == 3:
            txn.abort()
        else:
            txn.commit()
            expected.append(b"%d" % number)
        if number % 5 == 0:
            a.append(b"plain %d" % number)
            expected.append(b"plain %d" % number)
    if how == "records":
        assert values(a) == expected
    else:
        assert a.to_arrow()["value"].to_pylist() == expected
    assert len(values(a, "read_uncommitted")) == 360


def test_a_large_transaction_goes_to_its_partitions_before_the_commit(log: CommitLog, topics: Any) -> None:
    a, _ = topics
    with log.transaction() as txn:
        for _ in range(30):
            txn.append("a", bytes(100_000))
        assert 0 < a.next_offset < 30
        assert values(a) == []
    assert len(values(a)) == 30


def test_transactions_survive_a_roll_in_the_middle(log: CommitLog) -> None:
    partition = log.create_topic("t", config={"segment_bytes": 2_000})[0]
    kept = begun(log, ("t", b"kept" * 100))
    lost = begun(log, ("t", b"lost" * 100))
    for number in range(20):
        partition.append(b"%d" % number * 100)
    assert len(partition.segments) > 2
    lost.abort()
    kept.commit()
    assert values(partition)[0] == b"kept" * 100
    assert b"lost" * 100 not in values(partition)
    with commitlog.open(log.path, mode="r") as other:
        assert values(other.topic("t")[0]) == values(partition)


def test_a_transaction_that_begins_with_a_segment_is_not_seen_before_it_is_committed(
    log: CommitLog,
) -> None:
    partition = log.create_topic("t", config={"segment_bytes": 1_000})[0]
    with commitlog.open(log.path, mode="r") as other:
        for number in range(10):
            partition.append(bytes(700))
            txn = begun(log, ("t", b"%d" % number * 500))
            assert partition.last_stable_offset == other.topic("t")[0].last_stable_offset
            assert partition.last_stable_offset == partition.next_offset - 1
            txn.abort() if number % 2 else txn.commit()
        assert len(partition.segments) > 5
        assert values(other.topic("t")[0]) == values(partition)
        assert len(values(partition)) == 15


# --- producers


def test_a_producer_sends_in_transactions(log: CommitLog, topics: Any) -> None:
    a, b = topics
    with log.producer(transactional_id="p") as producer:
        with producer.transaction():
            future = producer.send("a", b"1")
            producer.send("b", b"2")
        assert future.result().offset == 0
        with pytest.raises(KeyError), producer.transaction():
            lost = producer.send("a", b"never")
            raise KeyError
        assert isinstance(lost.exception(), TransactionAbortedError)
        producer.begin_transaction()
        producer.send("a", b"3")
        producer.flush()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send("a", b"4")
        producer.commit_transaction()
    assert (values(a), values(b)) == ([b"1", b"4"], [b"2"])


def test_a_producer_that_is_closed_aborts_what_is_open(log: CommitLog, topics: Any) -> None:
    producer = log.producer(transactional_id="p")
    producer.begin_transaction()
    producer.send("a", b"never")
    producer.close()
    topics[0].append(b"plain")
    assert values(topics[0]) == [b"plain"]


def test_a_transaction_with_a_record_that_was_not_delivered_is_not_committed(
    log: CommitLog, topics: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Any] = []
    producer = log.producer(transactional_id="p", delivery_timeout_ms=0)
    with pytest.raises(DiskFullError), producer.transaction():
        producer.send("a", b"1")
        producer.flush()
        with monkeypatch.context() as patch:
            patch.setattr(Partition, "append_transactional", _fails)
            producer.send("a", b"2", on_delivery=lambda *outcome: heard.append(outcome))
            producer.flush()
    assert len(heard) == 1
    topics[0].append(b"plain")
    assert values(topics[0]) == [b"plain"]
    producer.close()


# --- every transaction has its own epoch


def test_a_delayed_marker_cannot_decide_a_later_transaction(log: CommitLog, topics: Any) -> None:
    a, _ = topics
    with log.producer(transactional_id="p") as producer:
        with producer.transaction():
            producer.send("a", b"1")
        first = producer._transaction
        producer.begin_transaction()
        producer.send("a", b"2")
        producer.flush()
        second = producer._transaction
        assert (first.producer_id, first.epoch + 1) == (second.producer_id, second.epoch)
        assert a.end_transaction(first.producer_id, first.epoch, commits=True) is None
        assert values(a) == [b"1"]
        producer.abort_transaction()
    assert values(a) == [b"1"]


def test_a_batch_that_comes_after_the_marker_of_its_transaction_is_refused(
    log: CommitLog, topics: Any
) -> None:
    a, _ = topics
    txn = begun(log, ("a", b"1"))
    late = a.encode([b"late"], producer=(txn.producer_id, txn.epoch, 1), more_flags=1 << 4)
    txn.commit()
    with pytest.raises(ProducerFencedError):
        a.append_transactional(late)
    assert values(a, "read_uncommitted") == [b"1"]


def test_an_owner_that_has_used_all_epochs_gets_another_producer_id(log: CommitLog, topics: Any) -> None:
    with log.producer(transactional_id="p") as producer:
        producer._owner._next_epoch = (1 << 15) - 2
        ids = set()
        for number in range(5):
            with producer.transaction():
                producer.send("a", b"%d" % number)
            ids.add(producer._transaction.producer_id)
        assert len(ids) == 2
    assert values(topics[0]) == [b"%d" % number for number in range(5)]


# --- fencing


def test_the_first_owner_of_an_id_is_refused_once_there_is_a_second(log: CommitLog, topics: Any) -> None:
    a, _ = topics
    first = log.producer(transactional_id="p")
    first.begin_transaction()
    first.send("a", b"never")
    first.flush()
    consumer = log.consumer("a", group_id="g")
    second = log.producer(transactional_id="p")
    assert a.last_stable_offset == a.next_offset == 2  # the second has aborted it
    future = first.send("a", b"late")
    with pytest.raises(TransactionFencedError):
        first.flush()
    assert isinstance(future.exception(), TransactionFencedError)
    with pytest.raises(TransactionFencedError):
        first.send_offsets(consumer)
    with pytest.raises(TransactionFencedError):
        first.commit_transaction()
    first.abort_transaction()
    with pytest.raises(TransactionFencedError):
        first.begin_transaction()
    with second.transaction():
        second.send("a", b"second")
    assert values(a) == [b"second"]
    consumer.close()


# --- the decision


def test_a_commit_after_a_commit_is_fine_and_an_abort_is_an_error(log: CommitLog, topics: Any) -> None:
    producer = log.producer(transactional_id="p")
    producer.begin_transaction()
    producer.send("a", b"1")
    producer.commit_transaction()
    producer.commit_transaction()
    with pytest.raises(TransactionStateError, match="committed already"):
        producer.abort_transaction()
    assert values(topics[0]) == [b"1"]
    txn = begun(log, ("a", b"2"))
    txn.commit()
    with pytest.raises(TransactionStateError, match="committed already"):
        txn.abort()
    with pytest.raises(TransactionStateError, match="committed already"):
        txn.append("a", b"3")


def test_an_abort_after_an_abort_is_fine_and_a_commit_is_an_error(log: CommitLog, topics: Any) -> None:
    txn = begun(log, ("a", b"1"))
    txn.abort()
    txn.abort()
    with pytest.raises(TransactionStateError, match="aborted already"):
        txn.commit()


def test_a_commit_that_cannot_be_shown_yet_is_not_undone(
    log: CommitLog, topics: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = topics
    txn = begun(log, ("a", b"1"), ("b", b"2"))
    real = Partition.end_transaction
    with monkeypatch.context() as patch:
        patch.setattr(Partition, "end_transaction", _fails)
        with pytest.raises(UnfinishedTransactionError):
            txn.commit()
        assert txn.is_committed
        with pytest.raises(TransactionStateError):
            txn.abort()
        assert [one.state for one in log.transactions()] == ["PrepareCommit"]
    assert Partition.end_transaction is real
    log._coordinator.sweep()
    assert (values(a), values(b)) == ([b"1"], [b"2"])


def _fails(*_: object, **__: object) -> None:
    raise DiskFullError("/data/log", "No space left on device")


def test_a_commit_that_failed_before_its_decision_can_only_be_aborted(
    log: CommitLog, topics: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn = begun(log, ("a", b"1"), ("b", b"2"))
    txn.append("a", b"3")
    with monkeypatch.context() as patch, pytest.raises(DiskFullError):
        patch.setattr(Partition, "append_transactional", _fails)
        txn.commit()
    with pytest.raises(TransactionStateError, match="abort the transaction"):
        txn.commit()
    txn.abort()
    assert [values(one) for one in topics] == [[], []]


# --- owners that are gone


def test_an_exclusive_open_aborts_at_once_what_was_left_open(
    log: CommitLog, topics: Any, tmp_path: Path
) -> None:
    begun(log, ("a", b"never"), ("b", b"never"))
    producer = log.producer(transactional_id="p")
    producer.begin_transaction()
    producer.send("a", b"never")
    producer.flush()
    topics[0].append(b"plain")
    with commitlog.open(copy_as_if_killed(log, tmp_path / "killed")) as again:
        a, b = again.topic("a")[0], again.topic("b")[0]
        assert (values(a), values(b)) == ([b"plain"], [])
        assert a.last_stable_offset == a.next_offset
        assert {one.state for one in again.transactions()} <= {"Empty"}
    producer.close()


def test_what_is_decided_is_led_forward(
    log: CommitLog, topics: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn = begun(log, ("a", b"1"), ("b", b"2"))
    monkeypatch.setattr(Partition, "end_transaction", _fails)
    with pytest.raises(UnfinishedTransactionError):
        txn.commit()
    killed = copy_as_if_killed(log, tmp_path / "killed")  # while the sweeper can append no marker
    monkeypatch.undo()
    with commitlog.open(killed) as again:
        assert [values(again.topic(name)[0]) for name in "ab"] == [[b"1"], [b"2"]]


def test_a_transaction_that_is_open_for_too_long_is_aborted(
    log: CommitLog, topics: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = topics
    with log.producer(transactional_id="p", transaction_timeout_ms=1_000_000) as producer:
        producer.begin_transaction()
        producer.send("a", b"never")
        producer.flush()
        a.append(b"plain")
        log._coordinator.sweep()
        assert values(a) == []
        with monkeypatch.context() as patch:
            grow_old(patch)
            log._coordinator.sweep()
        assert values(a) == [b"plain"]
        with pytest.raises(TransactionTimeoutError, match="transaction_timeout_ms = 1000000"):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send("a", b"again")
    assert values(a) == [b"plain", b"again"]


def test_a_transaction_times_out_by_itself(log: CommitLog, topics: Any) -> None:
    a, _ = topics
    with log.producer(transactional_id="p", transaction_timeout_ms=20) as producer:
        producer.begin_transaction()
        producer.send("a", b"never")
        producer.flush()
        wait_until(lambda: a.last_stable_offset == 2)
        producer.abort_transaction()


def test_an_admin_can_abort_a_transaction(log: CommitLog, topics: Any) -> None:
    a, _ = topics
    with log.producer(transactional_id="p") as producer:
        producer.begin_transaction()
        producer.send("a", b"never")
        producer.flush()
        (one,) = log.transactions()
        assert (one.transactional_id, one.state, one.partitions) == (
            "p",
            "Ongoing",
            (TopicPartition("a", 0),),
        )
        assert one.age_ms is not None
        log.abort_transaction("p")
        assert a.last_stable_offset == a.next_offset
        with pytest.raises(TransactionAbortedError):
            producer.commit_transaction()
        with pytest.raises(TransactionStateError, match="no open transaction"):
            log.abort_transaction("p")


def test_in_shared_mode_the_timeout_ends_what_a_dead_process_left(tmp_path: Path) -> None:
    with (
        commitlog.open(tmp_path / "log", mode="shared") as dying,
        commitlog.open(tmp_path / "log", mode="shared") as living,
    ):
        dying.create_topic("t")
        producer = dying.producer(transactional_id="p", transaction_timeout_ms=60_000)
        producer.begin_transaction()
        producer.send("t", b"never")
        producer.flush()
        partition = living.topic("t")[0]
        partition.append(b"plain")
        living._coordinator.sweep()
        assert values(partition) == []
        living._coordinator._seen = {key: time.monotonic() - 61 for key in living._coordinator._seen}
        living._coordinator.sweep()
        assert values(partition) == [b"plain"]
        with pytest.raises(TransactionAbortedError):
            producer.commit_transaction()
        producer.abort_transaction()


def test_in_shared_mode_the_next_owner_ends_what_a_dead_process_left(tmp_path: Path) -> None:
    with (
        commitlog.open(tmp_path / "log", mode="shared") as first,
        commitlog.open(tmp_path / "log", mode="shared") as second,
    ):
        first.create_topic("t")
        dead = first.producer(transactional_id="p")
        dead.begin_transaction()
        dead.send("t", b"never")
        dead.flush()
        producer = second.producer(transactional_id="p")
        with producer.transaction():
            producer.send("t", b"second")
        with pytest.raises(TransactionFencedError):
            dead.commit_transaction()
        assert values(first.topic("t")[0]) == values(second.topic("t")[0]) == [b"second"]
        dead.abort_transaction()


# --- offsets


def test_offsets_count_with_the_marker(log: CommitLog, topics: Any) -> None:
    a, b = topics
    a.append_many([b"1", b"2"])
    consumer = log.consumer("a", group_id="g", enable_auto_commit=False)
    assert consumer.poll(10)
    with log.producer(transactional_id="p") as producer:
        producer.begin_transaction()
        producer.send("b", b"out")
        producer.send_offsets(consumer)
        assert consumer.committed(("a", 0)) is None
        producer.commit_transaction()
        assert consumer.committed(("a", 0)) == 2
        producer.begin_transaction()
        producer.send_offsets_to_transaction({TopicPartition("a", 0): 1}, consumer.group_metadata())
        producer.abort_transaction()
        assert consumer.committed(("a", 0)) == 2
    assert values(b) == [b"out"]
    consumer.close()


def test_offsets_in_a_transaction_do_not_replace_what_was_committed_after_them(
    log: CommitLog, topics: Any
) -> None:
    topics[0].append_many([b"1", b"2", b"3"])
    consumer = log.consumer("a", group_id="g", enable_auto_commit=False)
    consumer.poll(10)
    with log.producer(transactional_id="p") as producer, producer.transaction():
        producer.send_offsets_to_transaction({TopicPartition("a", 0): 1}, consumer.group_metadata())
        consumer.commit({("a", 0): 3})
    assert consumer.committed(("a", 0)) == 3
    consumer.close()


def test_offsets_of_a_group_that_moved_on_are_refused(log: CommitLog, topics: Any) -> None:
    topics[0].append(b"1")
    consumer = log.consumer("a", group_id="g", enable_auto_commit=False)
    consumer.poll(10)
    before = consumer.group_metadata()
    other = log.consumer("a", group_id="g", enable_auto_commit=False)
    consumer.poll()
    producer = log.producer(transactional_id="p")
    with pytest.raises(CommitFailedError, match="generation"), producer.transaction():
        producer.send_offsets_to_transaction({TopicPartition("a", 0): 1}, before)
    consumer.close()
    with pytest.raises(CommitFailedError, match="no longer a member"), producer.transaction():
        producer.send_offsets_to_transaction({TopicPartition("a", 0): 1}, before)
    other.close()


def test_a_member_that_takes_a_partition_over_waits_until_its_offsets_are_decided(
    log: CommitLog, topics: Any
) -> None:
    topics[0].append_many([b"1", b"2"])
    consumer = log.consumer("a", group_id="g", enable_auto_commit=False)
    consumer.poll(10)
    producer = log.producer(transactional_id="p")
    producer.begin_transaction()
    producer.send_offsets(consumer)
    consumer.close()
    with pytest.raises(UnstableOffsetsError):
        log._groups.offsets().stable("g", timeout_ms=0)
    heir = log.consumer("a", group_id="g", enable_auto_commit=False)
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(heir.poll(0)))
    thread.start()
    producer.commit_transaction()
    thread.join()
    assert seen == [{}]
    assert heir.position(("a", 0)) == 2
    heir.close()


# --- markers take offsets


def test_a_consumer_that_has_read_everything_is_not_behind(log: CommitLog, topics: Any) -> None:
    a, _ = topics
    consumer = log.consumer("a", group_id="g", enable_auto_commit=False)
    for number in range(3):
        with log.transaction() as txn:
            txn.append("a", b"%d" % number)
    assert consumer.poll(10, max_records=3)
    assert consumer.lag() == {TopicPartition("a", 0): 0}
    consumer.commit({("a", 0): 5})  # only a marker follows
    (described,) = log.describe_group("g").partitions
    assert (described.committed, described.lag) == (5, 0)
    assert a.lag(0) == a.count_records(0) == 3
    assert a.next_offset == 6
    consumer.close()


def test_counters_count_records_and_not_markers(log: CommitLog, topics: Any) -> None:
    with log.transaction() as txn:
        txn.append_many("a", [b"1", b"2"])
        txn.append("b", b"3")
    begun(log, ("a", b"4")).abort()
    written = topics[0].metrics().written
    assert (written.records, written.appends) == (3, 2)


def test_producers_with_an_open_transaction_do_not_expire(
    log: CommitLog, topics: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = topics
    txn = begun(log, ("a", b"1"))
    monkeypatch.setattr(producer_state, "SILENT_MS", -(10**9))
    a.roll()
    assert a.last_stable_offset == 0
    txn.commit()
    assert values(a) == [b"1"]


# --- compaction


@pytest.fixture
def table(log: CommitLog) -> Partition:
    config = {"cleanup_policy": "compact", "segment_ms": -1, "delete_retention_ms": 1_000}
    partition: Partition = log.create_topic("table", config=config)[0]
    return partition


def put(log: CommitLog, key: bytes, value: bytes | None) -> Transaction:
    txn = log.transaction()
    txn.append("table", value, key=key)
    txn.flush()
    return txn


def marks(partition: Partition) -> list[Any]:
    return [batch for batch in partition.stored_batches() if batch.header.is_marker]


def test_an_aborted_record_replaces_nothing_and_goes_at_once(log: CommitLog, table: Partition) -> None:
    put(log, b"k", b"kept").commit()
    put(log, b"k", b"aborted").abort()
    put(log, b"l", b"aborted").abort()
    table.roll()
    table.compact(now=0)
    assert dict(table.latest()) == {b"k": b"kept"}
    assert values(table, "read_uncommitted") == [b"kept"]


def test_nothing_at_or_above_the_stable_offset_is_compacted(log: CommitLog, table: Partition) -> None:
    put(log, b"k", b"old").commit()
    txn = put(log, b"k", b"open")
    put(log, b"k", b"new").commit()
    table.roll()
    assert table.compact(now=0).stopped_by == "nothing to clean"
    txn.abort()
    table.roll()
    table.compact(now=0)
    assert values(table, "read_uncommitted") == [b"new"]


def test_a_marker_stays_until_its_delete_horizon_has_passed(log: CommitLog, table: Partition) -> None:
    put(log, b"k", b"1").commit()
    put(log, b"l", b"aborted").abort()
    table.roll()
    assert len(marks(table)) == 2
    for now in (0, 999):
        table.compact(now=now)
        assert [one.base_offset for one in marks(table)[:2]] == [1, 3]
        put(log, b"other", b"%d" % now).commit()
        table.roll()
    table.compact(now=1_000)
    assert b"aborted" not in values(table, "read_uncommitted")
    assert dict(table.latest()) == {b"k": b"1", b"other": b"999"}
    assert [one.base_offset for one in marks(table)] == [5, 7]  # those of the later transactions
    assert table.verify().ok


def test_what_compaction_leaves_of_a_committed_transaction_needs_no_marker(
    log: CommitLog, table: Partition, tmp_path: Path
) -> None:
    for number in range(50):
        put(log, b"%d" % (number % 5), b"%d" % number).commit()
        put(log, b"%d" % (number % 5), b"aborted").abort()
    for now in (0, 10_000):
        table.roll()
        table.compact(now=now)
        with log.transaction() as txn:
            txn.append("table", b"x", key=b"x")
    assert not any(batch.header.is_transactional for batch in table.segments[0].batches())
    expected = {**{b"%d" % key: b"%d" % (45 + key) for key in range(5)}, b"x": b"x"}
    assert dict(table.latest()) == expected
    path = copy_as_if_killed(log, tmp_path / "killed")
    for derived in [*path.glob("*/*index"), *path.glob("*/*.snapshot"), *path.glob("*/state")]:
        derived.unlink()
    with commitlog.open(path) as again:
        assert dict(again.topic("table")[0].latest()) == expected


def test_a_reader_that_began_before_two_passes_sees_no_aborted_record(
    log: CommitLog, table: Partition
) -> None:
    for number in range(10):
        put(log, b"%d" % number, b"1").commit()
        put(log, b"%d" % number, b"aborted").abort()
    with commitlog.open(log.path, mode="r") as other:
        reading = other.topic("table")[0].batches()
        found = [next(reading)]
        for now in (0, 10_000):
            table.roll()
            table.compact(now=now)
            put(log, b"x", b"x").commit()
        found += reading
    assert b"aborted" not in [value for batch in found for value in batch.values()]


# --- truncation, trimming, damage


def test_what_was_decided_stays_decided_when_its_marker_is_truncated(
    log: CommitLog, topics: Any, tmp_path: Path
) -> None:
    a, _ = topics
    kept, lost, still = begun(log, ("a", b"1")), begun(log, ("a", b"2")), begun(log, ("a", b"3"))
    cut = a.next_offset
    a.append(b"plain")
    kept.commit()
    lost.abort()
    a.truncate_from(cut)
    assert a.next_offset == cut + 2  # both markers again
    assert values(a, "read_uncommitted") == [b"1", b"2", b"3"]
    assert a.last_stable_offset == 2
    assert values(a) == [b"1"]
    path = copy_as_if_killed(log, tmp_path / "killed")
    still.commit()
    assert values(a) == [b"1", b"3"]
    with commitlog.open(path) as again:
        assert values(again.topic("a")[0]) == [b"1"]


def test_a_transaction_that_is_truncated_is_gone(log: CommitLog, topics: Any) -> None:
    a, _ = topics
    a.append(b"plain")
    begun(log, ("a", b"1")).commit()
    begun(log, ("a", b"2"))
    a.truncate_from(1)
    assert (a.last_stable_offset, a.next_offset) == (1, 1)
    a.restart_at(7)
    assert (a.last_stable_offset, a.next_offset) == (7, 7)


def test_retention_waits_for_an_open_transaction(log: CommitLog) -> None:
    config = {"segment_bytes": 1_000, "retention_bytes": 2_000, "flush_ms": -1}
    partition = log.create_topic("t", config=config)[0]
    txn = begun(log, ("t", b"1" * 500))
    for _ in range(20):
        partition.append(bytes(500))
    assert partition.apply_retention(0) == 0
    txn.commit()
    assert partition.apply_retention(0) > 0


def test_a_lost_list_of_aborted_transactions_is_not_believed_to_be_empty(log: CommitLog, topics: Any) -> None:
    a, _ = topics
    begun(log, ("a", b"never")).abort()
    a.roll()
    begun(log, ("a", b"neither")).abort()
    a.append(b"plain")
    for segment in a.segments:
        Path(aborted_index.path_beside(segment.path)).unlink()
    with commitlog.open(log.path, mode="r") as other:
        assert values(other.topic("a")[0]) == [b"plain"]
    log.close()
    with commitlog.open(log.path) as again:
        assert values(again.topic("a")[0]) == [b"plain"]


@pytest.mark.parametrize("listed", [True, False])
def test_damage_to_a_marker_never_makes_an_aborted_record_visible(
    log: CommitLog, topics: Any, listed: bool
) -> None:
    a, _ = topics
    begun(log, ("a", b"never")).abort()
    (segment,) = a.segments
    marker = segment.position_of(1)
    a.append(b"plain")
    log.close()
    flip(segment.path, marker + 30)
    if not listed:
        Path(aborted_index.path_beside(segment.path)).unlink()
    with commitlog.open(log.path, mode="r") as other:
        reading = other.topic("a")[0].records()
        with pytest.raises(commitlog.CorruptionError):
            next(reading)
    with commitlog.open(log.path) as again:
        with pytest.raises(commitlog.CorruptionError):
            next(again.topic("a")[0].records())
        if listed:  # otherwise nothing is left that tells that it was aborted
            again.topic("a")[0].repair()
            assert values(again.topic("a")[0]) == [b"plain"]
    if listed:
        with commitlog.open(log.path) as again:
            assert values(again.topic("a")[0]) == [b"plain"]


@pytest.mark.parametrize("way", ["killed", "closed, and its snapshots are lost"])
def test_damage_to_a_marker_does_not_abort_what_was_committed(
    log: CommitLog, topics: Any, way: str, tmp_path: Path
) -> None:
    a, _ = topics
    with log.transaction(sync=True) as txn:
        txn.append("a", b"1")
    a.append(b"plain", sync=True)
    if way == "killed":
        path = copy_as_if_killed(log, tmp_path / "killed")
    else:
        log.close()
        path = Path(log.path)
        for snapshot in path.glob("a-0/*.snapshot"):
            snapshot.unlink()
    flip(path / "a-0" / Path(a.segments[0].path).name, a.segments[0].position_of(1) + 30)
    with commitlog.open(path) as again:
        damaged = again.topic("a")[0]
        assert damaged.next_offset == 3  # no marker was added
        with pytest.raises(commitlog.CorruptionError):
            values(damaged, "read_uncommitted")
        damaged.repair()
        assert values(damaged) == [b"1", b"plain"]
    for snapshot in path.glob("a-0/*.snapshot"):
        snapshot.unlink()
    with commitlog.open(path) as again:
        assert values(again.topic("a")[0]) == [b"1", b"plain"]


def test_a_transaction_whose_marker_may_be_lost_stays_undecided_until_a_user_aborts_it(
    log: CommitLog, topics: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a, _ = topics
    txn = begun(log, ("a", b"never"))
    a.append(b"lost")
    a.append(b"plain", sync=True)
    path = copy_as_if_killed(log, tmp_path / "killed")
    txn.abort()
    flip(path / "a-0" / Path(a.segments[0].path).name, a.segments[0].position_of(1) + 30)
    for _ in range(2):  # a snapshot remembers it, too
        with commitlog.open(path) as again:
            damaged = again.topic("a")[0]
            again._coordinator.sweep()
            assert (damaged.last_stable_offset, damaged.next_offset) == (0, 3)
            (left,) = again.transactions()
            assert left.state == "Ongoing"
    assert "stays undecided: its marker may be in a damaged part" in caplog.text
    with commitlog.open(path) as again:
        damaged = again.topic("a")[0]
        damaged.repair()
        again.abort_transaction(left.transactional_id)
        assert values(damaged) == [b"plain"]
        assert values(damaged, "read_uncommitted") == [b"never", b"plain"]


def test_a_transaction_that_goes_on_after_damage_was_open_and_is_aborted(
    log: CommitLog, topics: Any, tmp_path: Path
) -> None:
    a, _ = topics
    txn = begun(log, ("a", b"never"))
    a.append(b"lost")
    txn.append("a", b"neither")
    txn.flush()
    a.append(b"plain", sync=True)
    path = copy_as_if_killed(log, tmp_path / "killed")
    txn.abort()
    flip(path / "a-0" / Path(a.segments[0].path).name, a.segments[0].position_of(1) + 30)
    with commitlog.open(path) as again:
        damaged = again.topic("a")[0]
        assert again.transactions() == []
        damaged.repair()
        assert values(damaged) == [b"plain"]


# --- bad use is told clearly


@pytest.fixture
def producer(log: CommitLog) -> Iterator[Any]:
    with log.producer(transactional_id="p") as made:
        yield made


def test_sending_outside_a_transaction_is_refused(producer: Any, topics: Any) -> None:
    with pytest.raises(TransactionStateError, match="outside a transaction"):
        producer.send("a", b"1")
    with producer.transaction():
        producer.send("a", b"1")
    with pytest.raises(TransactionStateError, match="outside a transaction"):
        producer.send("a", b"2")


@pytest.mark.parametrize("verb", ["commit_transaction", "abort_transaction"])
def test_ending_a_transaction_that_never_began_is_refused(producer: Any, verb: str) -> None:
    with pytest.raises(TransactionStateError, match="without begin_transaction"):
        getattr(producer, verb)()


def test_beginning_twice_is_refused(producer: Any) -> None:
    producer.begin_transaction()
    with pytest.raises(TransactionStateError, match="begun already"):
        producer.begin_transaction()


def test_of_threads_that_begin_at_once_one_succeeds(producer: Any) -> None:
    outcomes: list[Any] = []
    ready = threading.Barrier(4)

    def begin() -> None:
        ready.wait()
        try:
            outcomes.append(producer.begin_transaction())
        except TransactionStateError as problem:
            outcomes.append(problem)

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count(None) == 1


def test_sending_offsets_outside_a_transaction_is_refused(producer: Any, log: CommitLog, topics: Any) -> None:
    outside = pytest.raises(TransactionStateError, match="outside a transaction")
    with log.consumer("a", group_id="g") as consumer, outside:
        producer.send_offsets(consumer)


def test_a_producer_without_an_id_has_no_transactions(log: CommitLog) -> None:
    with log.producer() as plain:
        for verb in ("begin_transaction", "commit_transaction", "abort_transaction"):
            with pytest.raises(ConfigError, match="transactional_id"):
                getattr(plain, verb)()


@pytest.mark.parametrize(
    "settings",
    [
        {"transactional_id": ""},
        {"transactional_id": "x" * 1025},
        {"transactional_id": 7},
        {"transactional_id": "p", "acks": 0},
        {"transactional_id": "p", "enable_idempotence": False},
        {"transactional_id": "p", "transaction_timeout_ms": 0},
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused(log: CommitLog, settings: Any) -> None:
    with pytest.raises(ConfigError):
        log.producer(**settings)


def test_an_unknown_isolation_level_is_refused(topics: Any) -> None:
    for read in (topics[0].records, topics[0].batches, topics[0].to_arrow, topics[0].latest):
        with pytest.raises(ConfigError, match="read_committed"):
            read(isolation_level="serializable")


def test_a_bad_record_is_refused_where_it_is_appended_and_the_rest_goes_on(
    log: CommitLog, topics: Any
) -> None:
    log.create_topic("keyed", config={"cleanup_policy": "compact", "max_message_bytes": 10})
    with log.transaction() as txn:
        txn.append("a", b"1")
        wrong: list[Any] = [("a", "text", {}), ("a", b"x", {"timestamp": -1}), ("a", b"x", {"key": 3})]
        for topic, value, more in [*wrong, ("keyed", b"x", {})]:
            with pytest.raises(InvalidRecordError):
                txn.append(topic, value, **more)
        with pytest.raises(RecordTooLargeError):
            txn.append("keyed", bytes(20), key=b"k")
        with pytest.raises(UnknownTopicError):
            txn.append("nowhere", b"x")
        txn.append("a", b"2")
    assert values(topics[0]) == [b"1", b"2"]


def test_a_log_that_is_read_has_no_transactions_of_its_own(log: CommitLog) -> None:
    with commitlog.open(log.path, mode="r") as reader:
        with pytest.raises(commitlog.ReadOnlyError):
            reader.transaction()
        with pytest.raises(commitlog.ReadOnlyError):
            reader.abort_transaction("p")


def test_a_topic_deleted_meanwhile_takes_its_part_with_it(log: CommitLog, topics: Any) -> None:
    txn = begun(log, ("a", b"1"), ("b", b"2"))
    log.delete_topic("b")
    txn.commit()
    assert values(topics[0]) == [b"1"]


@pytest.mark.parametrize("mode", ["w", "shared"])
def test_a_transaction_that_begins_with_a_new_segment_is_not_read_before_it_is_committed(
    tmp_path: Path, mode: str
) -> None:
    opened = commitlog.open(tmp_path) if mode == "w" else commitlog.open(tmp_path, mode="shared")
    with opened as log, commitlog.open(tmp_path, mode="r") as other:
        partition = log.create_topic("t", config={"segment_bytes": 1000}).partition(0)
        reader = other.topic("t").partition(0)
        rolled = 0
        for number in range(20):
            segments, before = len(partition.segments), list(reader.records())
            with log.transaction() as transaction:
                transaction.append("t", b"%d" % number * 100)
                transaction.flush()
                assert list(reader.records()) == list(partition.records()) == before
                assert partition.last_stable_offset < partition.next_offset
            assert len(list(reader.records())) == number + 1
            rolled += len(partition.segments) > segments
        assert rolled > 2
