from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from helpers import fill, stage

import commitlog
from commitlog import CommitLog, LogMetrics, Partition, PartitionFailedError, TopicPartition, files
from commitlog.errors import UnfinishedTransactionError
from commitlog.locks import ProcessLock
from commitlog.partitions.counters import (
    SYNC_BOUNDS,
    CompactionMetrics,
    Counters,
    PartitionMetrics,
    WriteMetrics,
)
from commitlog.transactions.coordinator import TransactionMetrics
from commitlog.transactions.state_log import TransactionLog

CONFIG = {"segment_bytes": 1_000, "flush_ms": -1, "file_delete_delay_ms": 0, "index_interval_bytes": 100}


def written(partition: Partition) -> WriteMetrics:
    found = partition.metrics().written
    assert found is not None
    return found


def counts(partition: Partition) -> tuple[int, int, int]:
    found = written(partition)
    return found.appends, found.records, found.bytes


def compaction(partition: Partition) -> CompactionMetrics:
    found = partition.metrics().compaction
    assert found is not None
    return found


@pytest.fixture
def small(log: CommitLog) -> Partition:
    """A partition that rolls often."""
    found: Partition = log.create_topic("orders-eu", config=CONFIG).partition(0)
    return found


def test_metrics_tell_where_a_partition_stands(small: Partition) -> None:
    fill(small, 50)
    small.sync()
    small.append(b"not durable")
    small.trim_before(20)
    found = small.metrics()
    assert (found.topic, found.partition) == ("orders-eu", 0)
    assert (found.start_offset, found.next_offset, found.high_watermark) == (20, 51, 51)
    assert found.durable_offset == 50
    assert (found.segments, found.size_bytes) == (len(small.segments), small.size_bytes)


def test_appends_records_and_bytes_are_counted_over_rolls(small: Partition) -> None:
    fill(small, 30)
    small.append_many([b"one", b"two", b"three"])
    small.append_many([])
    assert counts(small) == (31, 33, small.size_bytes)
    assert written(small).rolls == len(small.segments) - 1 > 0


def test_what_is_truncated_was_appended_all_the_same(small: Partition) -> None:
    fill(small, 30)
    before = small.size_bytes
    small.truncate_from(5)
    left = small.size_bytes
    fill(small, 10)
    assert counts(small) == (40, 40, before + small.size_bytes - left)


def test_a_restart_at_another_offset_appends_nothing(small: Partition) -> None:
    fill(small, 3)
    before = counts(small)
    small.restart_at(1_000)
    assert counts(small) == before
    small.append(b"one")
    assert counts(small) == (4, 4, before[2] + small.size_bytes)


def test_counts_begin_anew_at_each_open(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        fill(log.create_topic("t", config=CONFIG).partition(0), 20)
    with commitlog.open(log_path) as log:
        partition = log.topic("t").partition(0)
        assert counts(partition) == (0, 0, 0)
        partition.append(b"one")
        assert counts(partition)[:2] == (1, 1)


def test_a_failed_append_is_not_counted(small: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(small, 2)
    before = counts(small)

    def full(*args: Any) -> int:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_at", full)
        patch.setattr(files, "pwrite", full)
        for append in (lambda: small.append(b"one"), lambda: small.append_many([b"one", b"two"])):
            with pytest.raises(commitlog.DiskFullError):
                append()
    assert counts(small) == before


def test_syncs_are_counted_with_the_time_they_took(small: Partition) -> None:
    for _ in range(3):
        small.append(b"one", sync=True)
    small.sync()  # there is nothing to do
    syncs = written(small).syncs
    assert syncs.count == 3
    assert syncs.seconds > 0
    assert [bound for bound, _ in syncs.buckets] == list(SYNC_BOUNDS)


def test_a_bucket_counts_the_syncs_that_took_no_longer() -> None:
    tally = Counters(0, 0)
    for seconds in (0.0004, 0.0005, 0.3, 100.0):
        tally.synced(seconds)
    syncs = tally.written(0, 0, 0).syncs
    buckets = dict(syncs.buckets)
    assert (buckets[0.0005], buckets[0.25], buckets[0.5], buckets[2.5]) == (2, 2, 3, 3)
    assert syncs.count == 4
    assert syncs.seconds == pytest.approx(100.3009)


def test_retention_and_trims_are_counted(log: CommitLog, small: Partition) -> None:
    fill(small, 50)
    first, second = small.segments[:2]
    small.trim_before(second.base_offset)
    assert (written(small).segments_trimmed, written(small).bytes_trimmed) == (1, first.size_bytes)
    log.topic("orders-eu").alter_config(retention_bytes=0)
    before = small.size_bytes
    removed = log.apply_retention()
    assert removed > 1
    assert written(small).segments_trimmed == 1 + removed
    assert written(small).bytes_trimmed == first.size_bytes + before - small.size_bytes


def test_passes_of_compaction_and_what_there_is_to_gain(log: CommitLog) -> None:
    partition = log.create_topic("t", config=CONFIG | {"cleanup_policy": "compact"}).partition(0)
    partition.compact()  # nothing to clean is no pass
    fill(partition, 50)
    partition.roll()
    assert compaction(partition) == CompactionMetrics(0, 0.0, 0, 0, 0, 0, dirty_ratio=1.0)
    report = partition.compact()
    found = compaction(partition)
    assert (found.passes, found.seconds, found.dirty_ratio) == (1, report.seconds, 0.0)
    assert (found.bytes_before, found.bytes_after) == (report.bytes_before, report.bytes_after)
    assert (found.records_before, found.records_after) == (50, 3)


def test_a_partition_that_is_not_compacted_has_no_passes(small: Partition) -> None:
    assert small.metrics().compaction is None


def test_producers_are_counted(small: Partition) -> None:
    small.append_many([b"one"], producer=(7, 0, 0))
    small.append_many([b"one"], producer=(7, 0, 0))  # the same again is no append
    small.append_many([b"two"], producer=(8, 0, 0))
    assert written(small).producers == 2
    assert counts(small)[:2] == (2, 2)


def test_an_adopted_file_counts_as_batches(log: CommitLog) -> None:
    partition = log.create_topic("t", config=CONFIG | {"segment_bytes": 6_000}).partition(0)
    partition.append(b"first")
    log.publish("query", 0, [stage(log, "t", 0, [b"%080d" % number for number in range(20)])])
    assert len(partition.segments) == 2
    assert counts(partition) == (2, 21, partition.size_bytes)
    assert written(partition).rolls == 1


def test_a_follower_counts_the_batches_of_its_leader(log: CommitLog, small: Partition) -> None:
    leader = log.create_topic("leader", config=CONFIG).partition(0)
    leader.lead(1)
    fill(leader, 12)
    leader.append_many([b"one", b"two"])
    small.follow()
    while small.next_offset < leader.next_offset:
        found = leader.read_replica(small.next_offset, 1 << 20)
        small.append_replicated(found.data.read(), found.segment_base)
    assert counts(small) == (13, 14, leader.size_bytes)
    assert small.metrics().high_watermark == 0


def test_writers_that_share_a_partition_count_what_they_append_themselves(log_path: Path) -> None:
    with commitlog.open(log_path, mode="shared") as one, commitlog.open(log_path, mode="shared") as other:
        one.create_topic("t", config=CONFIG)
        pair = [log.topic("t").partition(0) for log in (one, other)]
        for number in range(60):
            pair[number % 3 == 0].append(b"%030d" % number)
            pair[number % 2].append_many([b"x", b"y"])
        pair[1].truncate_from(100)
        found = [counts(partition) for partition in pair]
        assert [one[:2] for one in found] == [(40 + 30, 40 + 60), (20 + 30, 20 + 60)]
        assert found[0][2] > found[1][2] > 0
        assert pair[0].metrics().next_offset == pair[1].metrics().next_offset == 100


def test_a_log_tells_of_all_its_partitions_groups_and_handles(log: CommitLog, small: Partition) -> None:
    log.create_topic("a", partitions=2)
    fill(small, 50)
    log.commit_offsets("billing", {TopicPartition("orders-eu", 0): 10})
    small.get(49)  # by the index, which is mapped
    found = log.metrics()
    assert (found.path, found.mode) == (log.path, "w")
    assert [(one.topic, one.partition) for one in found.partitions] == [
        ("__consumer_offsets", 0), ("a", 0), ("a", 1), ("orders-eu", 0),
    ]  # fmt: skip
    assert [(one.group_id, one.partitions[0].lag) for one in found.groups] == [("billing", 40)]
    assert found.segments_mapped > 0
    assert {task.name for task in found.health.tasks} == {"flusher", "retention", "cleaner", "transactions"}
    assert found.health.ok


def test_metrics_are_plain_numbers_that_json_takes(log: CommitLog, small: Partition) -> None:
    log.commit_offsets("billing", {TopicPartition("orders-eu", 0): 0})
    found = json.loads(json.dumps(log.metrics().as_dict()))
    assert found["partitions"][1]["written"]["syncs"]["count"] == 0
    assert found["groups"][0]["partitions"][0]["lag"] == 0
    assert found["recovery"]["bytes_cut"] == 0


def test_recovery_is_added_up(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        for name in ("a", "b"):
            fill(log.create_topic(name).partition(0), 3)
    (log_path / "clean-shutdown").unlink()
    for name in ("a", "b"):
        with open(log_path / f"{name}-0" / "00000000000000000000.log", "ab") as file:
            file.write(b"torn")
    with commitlog.open(log_path) as log:
        recovery = log.metrics().recovery
    assert (recovery.segments_checked, recovery.bytes_cut) == (2, 8)


def test_a_shared_log_says_that_it_is_shared(log_path: Path) -> None:
    with commitlog.open(log_path, mode="shared") as log:
        assert (log.metrics().mode, log.mode) == ("shared", "shared")
        assert repr(log) == f"<CommitLog {log_path} mode=shared>"


def test_a_reader_tells_where_partitions_and_groups_stand(log: CommitLog, small: Partition) -> None:
    fill(small, 50)
    log.commit_offsets("billing", {TopicPartition("orders-eu", 0): 10})
    with commitlog.open(log.path, mode="r") as reading:
        found = reading.metrics()
    assert found.mode == "r"
    seen = next(one for one in found.partitions if one.topic == "orders-eu")
    assert seen == without_counts(small.metrics())
    assert found.groups[0].partitions[0].lag == 40


def without_counts(found: PartitionMetrics) -> PartitionMetrics:
    return PartitionMetrics(
        found.topic, found.partition, found.start_offset, found.next_offset, found.durable_offset,
        found.high_watermark, found.last_stable_offset, found.segments, found.size_bytes,
    )  # fmt: skip


def test_a_reader_of_a_log_without_groups_writes_nothing(log: CommitLog, small: Partition) -> None:
    with commitlog.open(log.path, mode="r") as reading:
        assert reading.metrics().groups == ()
        assert reading.health().tasks == ()


def test_a_reader_that_may_not_write_tells_of_no_groups(
    log: CommitLog, small: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.commit_offsets("billing", {TopicPartition("orders-eu", 0): 10})

    def refused(path: str) -> None:
        raise OSError(errno.EROFS, "a read-only file system", path)

    monkeypatch.setattr(ProcessLock, "__init__", lambda self, path, *_: refused(path))
    with commitlog.open(log.path, mode="r") as reading:
        found = reading.metrics()
    assert found.groups == ()
    assert [one.topic for one in found.partitions] == ["orders-eu"]


def test_transactions_are_counted_by_how_they_ended(log: CommitLog, small: Partition) -> None:
    with log.transaction() as txn:
        txn.append("orders-eu", b"one")
    producer = log.producer(transactional_id="billing")
    producer.begin_transaction()
    producer.send("orders-eu", b"two")
    producer.flush()
    producer.abort_transaction()
    assert log.metrics().transactions == TransactionMetrics(
        open=0, committed=1, aborted=1, timed_out=0, oldest_ms=0
    )
    producer.begin_transaction()
    producer.send("orders-eu", b"three")
    producer.flush()
    found = log.metrics()
    assert (found.transactions.open, found.transactions.committed) == (1, 1)
    assert found.transactions.oldest_ms >= 0
    (seen,) = [one for one in found.partitions if one.topic == "orders-eu"]
    assert (seen.last_stable_offset, seen.high_watermark) == (4, 5)
    producer.commit_transaction()
    assert log.metrics().transactions.open == 0
    assert small.metrics().last_stable_offset == 6


def test_a_reader_tells_of_the_transactions_that_others_have_open(log: CommitLog, small: Partition) -> None:
    producer = log.producer(transactional_id="billing")
    producer.begin_transaction()
    producer.send("orders-eu", b"x", timestamp=5_000)
    producer.flush()
    with commitlog.open(log.path, mode="r") as reading:
        found = reading.metrics().transactions
        assert (found.open, found.committed, found.aborted) == (1, 0, 0)
        assert found.oldest_ms > 1_000_000  # the record says that it is from 1970
        producer.commit_transaction()
        assert reading.metrics().transactions.open == 0


def test_a_transaction_that_only_lacks_markers_is_not_open(
    log: CommitLog, small: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("other")

    def broken(*args: Any, **more: Any) -> None:
        raise OSError(errno.EIO, "a broken disk")

    with monkeypatch.context() as patch, pytest.raises(UnfinishedTransactionError), log.transaction() as txn:
        txn.append("orders-eu", b"one")
        txn.append("other", b"two")
        patch.setattr(Partition, "end_transaction", broken)
    assert small.last_stable_offset == 0 < small.high_watermark
    assert (log.metrics().transactions.open, log.metrics().transactions.committed) == (0, 1)


@pytest.mark.parametrize("mode", ["w", "r"])
def test_the_metrics_of_transactions_read_no_file_where_none_is_open(
    log: CommitLog, small: Partition, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(small, 50)
    with log.transaction() as txn:
        txn.append("orders-eu", b"one")
    reading = log if mode == "w" else commitlog.open(log.path, mode="r")
    reading.metrics()

    def opened(*args: Any) -> Any:
        raise AssertionError("a file was opened")

    for name in ("map_file", "open_same"):
        monkeypatch.setattr(files, name, opened)
    monkeypatch.setattr(TransactionLog, "_catch_up", opened)
    assert reading.metrics().transactions.open == 0
    if reading is not log:
        reading.close()


def test_a_topic_that_was_deleted_is_left_out(log: CommitLog, small: Partition) -> None:
    log.delete_topic("orders-eu")
    assert log.metrics().partitions == ()
    with pytest.raises(commitlog.ClosedError):
        small.metrics()


def test_a_failed_partition_shows_and_still_counts(
    log: CommitLog, small: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.append(b"one")

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "a broken disk")

    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_data", broken)
        with pytest.raises(PartitionFailedError):
            small.sync()
    found: LogMetrics = log.metrics()
    assert found.health.failed_partitions[0][0] == "orders-eu-0"
    assert not found.health.ok
    assert counts(small)[:2] == (1, 1)
    assert written(small).syncs.count == 0
