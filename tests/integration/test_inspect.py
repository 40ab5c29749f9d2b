"""The command line, the page and the metrics say the same about a log, and the cleaner goes by it."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli.rig import ok, ok_json
from prometheus_client import CollectorRegistry
from ui.client import served

import commitlog
from commitlog import CommitLog, LogConfig, Partition, TopicPartition
from commitlog.maintenance import dirtiest
from commitlog.prometheus import LogCollector

SETTINGS = {
    "cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.3, "file_delete_delay_ms": 0, "flush_ms": -1,
}  # fmt: skip

SAME = ("start_offset", "next_offset", "high_watermark", "last_stable_offset", "durable_offset", "segments")


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[CommitLog]:
    """A log in which no pass runs but those that a test asks for."""
    with commitlog.open(tmp_path / "data", config=LogConfig(cleaner_enable=False)) as log:
        yield log


def seal(partition: Partition, records: int = 10, value: bytes | None = b"v" * 50) -> None:
    """Append a sealed segment of as many keys."""
    keys = [b"key %d" % number for number in range(records)]
    partition.append_many([value] * records, keys=keys)
    partition.roll()


def only_active(log: CommitLog) -> Partition:
    partition: Partition = log.create_topic("t", config=SETTINGS).partition(0)
    partition.append(b"v", key=b"k")
    return partition


def all_dirty(log: CommitLog) -> Partition:
    partition: Partition = log.create_topic("t", config=SETTINGS).partition(0)
    seal(partition)
    seal(partition)
    return partition


def cleaned(log: CommitLog) -> Partition:
    partition = all_dirty(log)
    partition.compact()
    return partition


def half_dirty(log: CommitLog) -> Partition:
    partition = cleaned(log)
    seal(partition, 8)
    return partition


def with_expired_tombstones(log: CommitLog) -> Partition:
    partition: Partition = log.create_topic("t", config={**SETTINGS, "delete_retention_ms": 0}).partition(0)
    seal(partition)
    seal(partition, value=None)
    partition.compact()
    return partition


def too_young(log: CommitLog) -> Partition:
    config = {**SETTINGS, "min_compaction_lag_ms": 3_600_000}
    partition: Partition = log.create_topic("t", config=config).partition(0)
    seal(partition)
    return partition


def half_replicated(log: CommitLog) -> Partition:
    partition: Partition = log.create_topic("t", config=SETTINGS).partition(0)
    partition.lead(0)
    seal(partition)
    seal(partition)
    partition.set_high_watermark(10)
    partition.compact()
    return partition


def not_compacted(log: CommitLog) -> Partition:
    partition: Partition = log.create_topic("t", config={"flush_ms": -1}).partition(0)
    seal(partition)
    return partition


def by_command(path: str) -> float | None:
    (described,) = ok_json("topics", "describe", path, "t")["partitions"]
    (stats,) = ok_json("stats", path)["topic_partitions"]["t"]
    assert described == stats
    ratio: float | None = described["dirty_ratio"]
    shown = "-" if ratio is None else f"{ratio:.2f}"
    assert ok("topics", "describe", path, "t").split()[-1] == shown
    return ratio


def by_page(path: str) -> float | None:
    with commitlog.open(path, mode="r") as log, served(log) as client:
        found: float | None = client.get("topics/t/partitions/0")["dirty_ratio"]
        assert client.get("topics/t")["listed"][0]["dirty_ratio"] == found
    return found


def by_metrics(log: CommitLog) -> float | None:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(LogCollector(log))
    (found,) = log.metrics().partitions
    ratio = None if found.compaction is None else found.compaction.dirty_ratio
    labels = {"topic": "t", "partition": "0"}
    assert registry.get_sample_value("commitlog_partition_dirty_ratio", labels) == ratio
    return ratio


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (only_active, 0.0),
        (all_dirty, 1.0),
        (cleaned, 0.0),
        (half_dirty, pytest.approx(0.45, abs=0.1)),
        (with_expired_tombstones, 0.0),
        (too_young, 0.0),
        (half_replicated, 0.0),
        (not_compacted, None),
    ],
)
def test_the_dirty_ratio_is_the_same_everywhere_and_the_cleaner_goes_by_it(
    quiet: CommitLog, state: Callable[[CommitLog], Partition], expected: float | None
) -> None:
    partition = state(quiet)
    found = by_metrics(quiet)
    assert found == expected
    assert by_command(quiet.path) == by_page(quiet.path) == found
    due = dirtiest([partition], time.time_ns() // 1_000_000)
    assert (due is partition) == (found is not None and found >= 0.3)
    quiet.close()
    assert by_command(quiet.path) == by_page(quiet.path) == found


def test_offsets_and_sizes_are_the_same_everywhere(quiet: CommitLog) -> None:
    half_dirty(quiet).trim_before(3)
    (row,) = ok_json("stats", quiet.path)["topic_partitions"]["t"]
    (metrics,) = quiet.metrics().partitions
    with commitlog.open(quiet.path, mode="r") as log, served(log) as client:
        page = client.get("topics/t/partitions/0")
    assert row["records"] == len(list(quiet.topic("t").partition(0).records())) == 18
    for name in SAME:
        assert row[name] == page[name] == getattr(metrics, name)
    assert row["bytes"] == page["bytes"] == metrics.size_bytes


def test_what_is_open_and_aborted_is_the_same_everywhere(quiet: CommitLog) -> None:
    partition = quiet.create_topic("t").partition(0)
    partition.append_many([b"x"] * 9)
    partition.trim_before(4)
    producer = quiet.producer(transactional_id="billing")
    for commit in (True, False, None):
        producer.begin_transaction()
        for _ in range(3):
            producer.send("t", b"y")
        producer.flush()
        if commit is not None:
            (producer.commit_transaction if commit else producer.abort_transaction)()
    quiet.commit_offsets("g", {TopicPartition("t", 0): 10})
    (row,) = ok_json("stats", quiet.path)["topic_partitions"]["t"]
    metrics = quiet.metrics()
    (found,) = [one for one in metrics.partitions if one.topic == "t"]
    with commitlog.open(quiet.path, mode="r") as log, served(log) as client:
        page = client.get("topics/t/partitions/0")
        group = client.get("group?group_id=g")
        assert client.get("transactions")["transactions"][0]["state"] == "Ongoing"
        assert log.metrics().transactions.open == metrics.transactions.open == 1
    assert row["records"] == len(list(partition.records())) == 5 + 3
    assert found.last_stable_offset == 9 + 4 + 4 < found.high_watermark
    for name in SAME:
        assert row[name] == page[name] == getattr(found, name)
    (listed,) = ok_json("groups", "list", quiet.path)
    assert listed["lag"] == group["lag"] == metrics.groups[0].partitions[0].lag == 2


def test_a_reader_knows_of_open_transactions_as_the_writer_does(quiet: CommitLog) -> None:
    partition = quiet.create_topic("t", config={"segment_bytes": 2000}).partition(0)
    producers = [quiet.producer(transactional_id=f"id-{number}") for number in range(3)]
    with commitlog.open(quiet.path, mode="r") as reading:
        seen = reading.topic("t").partition(0)
        for number in range(30):
            producer = producers[number % 3]
            if number % 7 == 6:
                producer.commit_transaction()
            if number < 3 or number % 7 == 6:
                producer.begin_transaction()
            producer.send("t", b"x" * 300)
            producer.flush()
            known = [one[:3] for one in partition.open_transactions()]
            assert [one[:3] for one in seen.open_transactions()] == known
        assert len(partition.segments) > 2
        partition.trim_before(partition.high_watermark - 1)  # most of them have no records any more
        assert [one[:3] for one in seen.open_transactions()] == known
        assert len(reading.transactions()) == 3


def test_the_lag_of_a_group_is_the_same_everywhere(quiet: CommitLog) -> None:
    topic = quiet.create_topic("t", 2)
    for partition in topic.partitions:
        seal(partition)
    quiet.commit_offsets("g", {TopicPartition("t", 0): 4, TopicPartition("t", 1): 9})
    (listed,) = ok_json("groups", "list", quiet.path)
    (stats,) = ok_json("stats", quiet.path)["groups"]
    with commitlog.open(quiet.path, mode="r") as log, served(log) as client:
        page = client.get("group?group_id=g")
    (metrics,) = quiet.metrics().groups
    assert (
        listed["lag"] == stats["lag"] == page["lag"] == sum(one.lag or 0 for one in metrics.partitions) == 7
    )
    assert page["worst_lag"] == 6


def test_the_module_inspect_is_that_of_the_standard_library() -> None:
    assert inspect.signature(ok) and sys.modules["inspect"] is inspect
    assert inspect is not sys.modules["commitlog.inspect"]
