"""Transactions at the edges: many, large, late, two handles, errors, a full disk, a lost page."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from helpers import copy_as_if_killed

import commitlog
from commitlog import CommitLog, Partition, TopicPartition, TransactionAbortedError, TransactionStateError
from commitlog.aborted_index import AbortedRanges
from commitlog.errors import (
    DiskFullError,
    PartitionFailedError,
    ReadOnlyError,
    TransactionTimeoutError,
    UnfinishedTransactionError,
)
from commitlog.partitions import producer_state
from commitlog.partitions.state import LogState
from commitlog.partitions.syncer import Syncer
from commitlog.topic import Topic
from commitlog.topics.catalog import INTERNAL
from commitlog.transactions.coordinator import Coordinator
from commitlog.transactions.state_log import TransactionLog
from commitlog.transactions.transaction import Transaction


def values(partition: Any) -> list[bytes]:
    return [record.value for record in partition.records()]


def committed(log: CommitLog, topic: str) -> list[bytes | None]:
    return [record.value for record in log.topic(topic).records()]


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


def test_a_transaction_may_fit_a_segment_only_without_its_marker(log: CommitLog) -> None:
    log.create_topic("orders", config={"segment_bytes": 4096})
    with log.transaction() as txn:
        txn.append("orders", b"x" * 3950)  # alone it fits, with its marker it does not
    with log.transaction() as txn:
        for _ in range(2):
            txn.append_many("orders", [b"y" * 3000])
    with log.transaction() as txn:
        for number in range(100):
            txn.append("orders", b"%0100d" % number, key=b"k" if number % 2 else None)
    found = committed(log, "orders")
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
    assert committed(log, "orders") == []


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
    assert committed(log, "orders") == [b"new"]


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
    assert committed(log, "orders") == []


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
        assert committed(log, "orders") == [b"one"]
        with log.transaction() as txn:
            txn.append("orders", b"two")
        assert committed(log, "orders") == [b"one", b"two"]


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
        assert committed(log, "orders") == [b"x", b"x"]


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
            copy_as_if_killed(log, tmp_path / "copy")  # while the sweeper can append no marker
    with monkeypatch.context() as patched:
        patched.setattr(Partition, "end_transaction", full)
        patched.setattr(TransactionLog, "forget", full)
        log = commitlog.open(tmp_path / "copy")
    with log:
        log._coordinator.sweep()  # now there is room again
        assert committed(log, "orders") == [b"x", b"x"]


# --- the topics of the log itself


@pytest.fixture
def with_internal_topics(log: CommitLog) -> CommitLog:
    log.create_topic("orders", partitions=2)
    with log.transaction() as txn:
        for number in range(2):
            txn.append("orders", b"x", partition=number)
    log.commit_offsets("billing", {TopicPartition("orders", 0): 1})
    log.publish("query", 0, [])
    return log


@pytest.mark.parametrize("name", INTERNAL)
def test_users_can_read_the_topics_of_the_log_itself_and_not_change_them(
    with_internal_topics: CommitLog, name: str
) -> None:
    log = with_internal_topics
    topic = log.topic(name)
    before = [record.value for record in topic.records()]
    assert before
    txn, producer, owner = log.transaction(), log.producer(), log.producer(transactional_id="p")
    owner.begin_transaction()
    for change in (
        lambda: topic.append(b"garbage", key=b"k"),
        lambda: topic.append_many([b"garbage"], keys=[b"k"]),
        lambda: topic[0].append(b"garbage", key=b"k"),
        lambda: topic[0].trim_before(1),
        lambda: topic.alter_config(cleanup_policy="delete"),
        lambda: topic.add_partitions(2),
        lambda: txn.append(name, b"garbage", key=b"k"),
        lambda: txn.append_many(name, [b"garbage"], keys=[b"k"]),
        lambda: producer.send(name, b"garbage", b"k").result(5),
        lambda: owner.send(name, b"garbage", b"k").result(5),
    ):
        with pytest.raises(ReadOnlyError, match="a topic of the log itself"):
            change()
    txn.abort()
    owner.abort_transaction()
    assert [record.value for record in topic.records()][: len(before)] == before
    assert log.health().ok


def test_the_topics_of_the_log_itself_show_what_comes_later(with_internal_topics: CommitLog) -> None:
    topic = with_internal_topics.topic("__consumer_offsets")
    before = len(list(topic.records()))
    with_internal_topics.commit_offsets("billing", {TopicPartition("orders", 1): 1})
    assert len(list(topic.records())) == before + 1


# --- who decides, and what is told


def test_a_group_consumer_of_a_process_that_only_reads_decides_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with commitlog.open(path) as log, commitlog.open(path, mode="r") as reading:
        log.create_topic("in").append_many([b"1", b"2"])
        log.create_topic("out")
        consumer = log.consumer("in", group_id="billing", enable_auto_commit=False)
        consumer.poll(1)
        with log.producer(transactional_id="p") as producer, producer.transaction():
            producer.send("out", b"12")
            producer.send_offsets(consumer)
            producer.flush()
            with reading.consumer("in", group_id="dashboard") as other:
                other.poll(0)
                reading._housekeeper._sweeper._run()
        assert consumer.committed(("in", 0)) == 2
        consumer.close()


def test_a_commit_does_not_succeed_where_a_marker_says_otherwise(log: CommitLog, topics: Any) -> None:
    _, b = topics
    txn = log.transaction()
    txn.append("a", b"1")
    txn.append("b", b"1")
    txn.flush()
    b.end_transaction(txn.producer_id, txn.epoch, commits=False)  # which nobody may do
    with pytest.raises(UnfinishedTransactionError, match="was aborted"):
        txn.commit()


@pytest.mark.parametrize("names", ["a", "ab"])
def test_what_could_not_be_synced_after_the_decision_is_said_to_be_committed(
    log: CommitLog, topics: Any, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with log.transaction() as txn:
        for name in names:
            txn.append(name, b"1")
    txn = log.transaction()
    for name in names:
        txn.append(name, b"2")
    failing = {"a": Partition.acknowledge, "ab": TransactionLog.sync}[names]

    def fail(*_: object) -> None:
        raise PartitionFailedError("a-0", "input/output error")

    owner = Partition if names == "a" else TransactionLog
    monkeypatch.setattr(owner, failing.__name__, fail)
    with pytest.raises(UnfinishedTransactionError, match="do not send it again"):
        txn.commit(sync=True)
    assert txn.is_committed
    monkeypatch.undo()


def test_abort_by_id_ends_the_transaction_of_the_owner_and_not_of_one_that_is_fenced(
    log: CommitLog, topics: Any
) -> None:
    fenced = log._coordinator.own("p", 60_000).begin()
    fenced.append("a", b"1")
    owner = log.producer(transactional_id="p")
    owner.begin_transaction()
    owner.send("a", b"2")
    log.abort_transaction("p")
    with pytest.raises(TransactionAbortedError, match="abort_transaction"):
        owner.commit_transaction()
    assert values(topics[0]) == []


def test_a_topic_may_have_any_name_that_json_could_take_for_something_else(tmp_path: Path) -> None:
    for _ in range(2):
        with commitlog.open(tmp_path / "log") as log:
            for name in ("None", "null"):
                log.create_topic(name, exists_ok=True)
            with log.transaction() as txn:
                txn.append("None", b"1")
                txn.append("null", b"1")
    with commitlog.open(tmp_path / "log") as log:
        assert committed(log, "None") == committed(log, "null") == [b"1", b"1"]


def test_a_buffer_may_be_used_again_after_append(log: CommitLog, topics: Any) -> None:
    buffer, headers = bytearray(b"1"), list[tuple[str, bytes | None]]()
    with log.transaction() as txn:
        for number in (b"1", b"2"):
            buffer[:] = number
            headers[:] = [("h", number)]
            txn.append("a", buffer, key=memoryview(buffer), headers=headers)
    found = [(one.key, one.value, one.headers[0][1]) for one in topics[0].records()]
    assert found == [(b"1", b"1", b"1"), (b"2", b"2", b"2")]


def test_an_exclusive_open_ends_what_was_left_open_though_everything_is_trimmed(
    log: CommitLog, topics: Any, tmp_path: Path
) -> None:
    a, _ = topics
    with log.transaction() as txn:
        txn.append("a", b"1")
        txn.flush()
        a.trim_before(a.high_watermark)
        path = copy_as_if_killed(log, tmp_path / "killed")
    with commitlog.open(path) as again:
        found = again.topic("a")[0]
        assert found.open_transactions() == []
        found.append(b"2")
        assert values(found) == [b"2"]


@pytest.mark.parametrize("transactional_id", ["\ud800", "", 5, b"p", "x" * 1025])
def test_an_id_that_cannot_be_stored_is_refused(log: CommitLog, transactional_id: Any) -> None:
    with pytest.raises(commitlog.ConfigError, match="transactional_id"):
        log.producer(transactional_id=transactional_id)
    assert log.transactions() == []


def test_a_transaction_that_has_ended_cannot_be_entered(log: CommitLog, topics: Any) -> None:
    with log.transaction() as txn:
        txn.append("a", b"1")
    with pytest.raises(TransactionStateError, match="committed already"), txn:
        pass
    with log.transaction() as first, log.transaction() as second:
        assert first.producer_id != second.producer_id


# --- ids do not pile up


@pytest.mark.parametrize("ends", [Transaction.commit, Transaction.abort])
def test_transactions_without_an_id_share_owners_even_without_a_with_block(tmp_path: Path, ends: Any) -> None:
    with commitlog.open(tmp_path / "log", mode="shared") as log:
        log.create_topic("a")
        for number in range(5):
            txn = log.transaction()
            txn.append("a", b"%d" % number)
            ends(txn)
        assert len(log._coordinator._log.all()) == len(log._coordinator._mine) == 1
    with commitlog.open(tmp_path / "log") as log:
        assert log._coordinator._log.all() == []


def test_an_id_is_forgotten_a_week_after_its_last_use_unless_something_is_open(tmp_path: Path) -> None:
    week, now = 7 * 24 * 60 * 60 * 1000, time.time_ns() // 1_000_000
    with commitlog.open(tmp_path / "log", mode="shared") as gone:
        gone.create_topic("a")
        gone.producer(transactional_id="old").close()
        busy = gone.producer(transactional_id="busy")
        busy.begin_transaction()
        busy.send("a", b"1")
        busy.flush()
        with commitlog.open(tmp_path / "log", mode="shared") as log:
            log.topic("a")
            log.producer(transactional_id="mine").close()
            log._coordinator.expire(now)
            ids = {one.transactional_id for one in log.transactions()}
            assert ids == {"old", "busy", "mine"}
            log._coordinator.expire(now + week + 60_000)
            ids = {one.transactional_id for one in log.transactions()}
            assert ids == {"busy", "mine"}
        busy.commit_transaction()


def test_an_owner_without_a_name_that_has_expired_is_replaced(tmp_path: Path) -> None:
    with commitlog.open(tmp_path / "log", mode="shared") as log:
        log.create_topic("a")
        for _ in range(2):
            with log.transaction() as txn:
                txn.append("a", b"1")
            log._coordinator._log.forget(txn.owner.transactional_id)
        assert committed(log, "a") == [b"1", b"1"]


# --- compaction


def test_compaction_leaves_alone_what_was_committed_after_it_began_to_sync(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut may lose that marker, and then half of the transaction would be there."""
    partition = log.create_topic("a", config={"cleanup_policy": "compact"}).partition(0)
    txn = log.transaction()
    for key in (b"1", b"2"):
        txn.append("a", b"x", key=key)
        txn.flush()
        partition.roll()
    sync = Syncer.sync

    def sync_and_commit(self: Syncer) -> None:
        sync(self)
        monkeypatch.undo()
        txn.commit()

    monkeypatch.setattr(Syncer, "sync", sync_and_commit)
    assert partition.compact().stopped_by == "nothing to clean"
    stored = [batch.header for one in partition.segments for batch in one.batches()]
    assert [one.is_transactional for one in stored if not one.is_marker] == [True, True]


def test_readers_are_not_held_up_by_a_snapshot_from_before_a_marker_that_compaction_removed(
    log: CommitLog, tmp_path: Path
) -> None:
    config = {"cleanup_policy": "compact", "delete_retention_ms": 0}
    partition = log.create_topic("a", config=config).partition(0)
    txn = log.transaction()
    txn.append("a", b"1", key=b"k")
    txn.flush()
    partition.roll()  # with a snapshot in which it is open
    txn.commit()
    for _ in range(3):
        partition.append(b"2", key=b"k")
        partition.roll()
        partition.compact(now=1 << 50)
    path = copy_as_if_killed(log, tmp_path / "killed")
    newest = max(path.glob("a-0/*.snapshot"))
    newest.write_bytes(b"damaged")
    with commitlog.open(path, mode="r") as reading:
        assert values(reading.topic("a")[0]) == [b"2"]


@pytest.mark.parametrize("commits", [True, False])
def test_readers_are_not_held_up_by_a_process_that_did_not_see_a_marker_before_compaction_removed_it(
    tmp_path: Path, commits: bool
) -> None:
    config = {"cleanup_policy": "compact", "delete_retention_ms": 0}
    with (
        commitlog.open(tmp_path / "log", mode="shared") as busy,
        commitlog.open(tmp_path / "log", mode="shared") as quiet,
    ):
        one, other = busy.create_topic("a", config=config).partition(0), quiet.topic("a").partition(0)
        txn = busy.transaction()
        txn.append("a", b"1", key=b"k")
        txn.flush()
        assert len(other.open_transactions()) == 1
        if commits:
            txn.commit()
        else:
            txn.abort()
        for _ in range(3):
            one.append(b"2", key=b"k")
            one.roll()
            one.compact(now=1 << 50)
        assert not any(batch.header.is_marker for segment in one.segments for batch in segment.batches())
        other.append(b"3", key=b"k")
        assert other.open_transactions() == one.open_transactions() == []
        with busy.transaction() as txn:  # which tells readers again where undecided ones begin
            txn.append("a", b"4", key=b"k")
        with quiet.transaction() as txn:
            txn.append("a", b"5", key=b"k")
        assert values(one)[-3:] == values(other)[-3:] == [b"3", b"4", b"5"]
        assert one.last_stable_offset == one.next_offset


# --- memory


def known(partition: Partition) -> int:
    return len(partition.aborted_transactions().between(0, 1 << 60))


def abort_some(log: CommitLog, partition: Partition, count: int) -> None:
    """Abort transactions, commit one, and roll."""
    for number in range(count):
        with log.transaction() as txn:
            txn.append_many("a", [b"aborted"], keys=[b"%d" % number])
            txn.flush()
            txn.abort()
    with log.transaction() as txn:
        txn.append_many("a", [b"committed"], keys=[b"k"])
    partition.roll()


def test_a_writer_forgets_what_was_aborted_in_segments_that_are_trimmed(log: CommitLog) -> None:
    partition = log.create_topic("a").partition(0)
    for _ in range(4):
        abort_some(log, partition, 5)
    assert known(partition) == 20
    partition.trim_before(partition.segments[3].base_offset)
    assert known(partition) == 5
    assert values(partition) == [b"committed"]
    partition.trim_before(partition.start_offset + 3)  # inside a segment
    assert known(partition) == 5
    assert values(partition) == [b"committed"]


def test_a_writer_forgets_what_was_aborted_once_compaction_has_removed_it(log: CommitLog) -> None:
    config = {"cleanup_policy": "compact", "delete_retention_ms": 0}
    partition = log.create_topic("a", config=config).partition(0)
    for _ in range(4):
        abort_some(log, partition, 5)
    assert known(partition) == 20
    for _ in range(3):  # a marker stays until its records are gone, and for a while
        partition.append(b"x", key=b"x")
        partition.roll()
        partition.compact()
    assert known(partition) == 0
    assert values(partition) == [b"committed", b"x"]


@pytest.mark.parametrize("change", ["trim", "compaction"])
def test_a_reader_of_segments_that_have_just_gone_does_not_show_what_was_aborted_there(
    log: CommitLog, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"cleanup_policy": "compact", "delete_retention_ms": 0}
    partition = log.create_topic("a", config=config).partition(0)
    abort_some(log, partition, 5)
    abort_some(log, partition, 5)
    partition.append(b"x", key=b"x")
    partition.roll()
    known(partition)
    found = LogState.aborted_in

    def change_first(self: LogState, layout: Any) -> AbortedRanges:
        """The reader has its segments, and asks what is aborted there."""
        monkeypatch.setattr(LogState, "aborted_in", found)
        if change == "trim":
            partition.trim_before(partition.segments[2].base_offset)
        else:
            for _ in range(3):
                partition.compact()
                partition.append(b"x", key=b"x")
                partition.roll()
            assert known(partition) == 0
        return found(self, layout)

    monkeypatch.setattr(LogState, "aborted_in", change_first)
    try:
        assert b"aborted" not in values(partition)
    except commitlog.OffsetOutOfRangeError:
        assert change == "trim"
