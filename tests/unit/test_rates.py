from __future__ import annotations

import pytest

from commitlog import CommitLog, Partition
from commitlog.inspect.rates import Rate, RateHistory


class Seconds:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Seconds:
    return Seconds()


@pytest.fixture
def rates(clock: Seconds) -> RateHistory:
    return RateHistory(clock)


def append(partition: Partition, records: int) -> int:
    """Append a batch; returns its size."""
    before = partition.size_bytes
    partition.append_many([b"x" * 100] * records, keys=[b"k"] * records)
    return partition.size_bytes - before


def test_a_rate_is_the_difference_between_two_looks(
    partition: Partition, rates: RateHistory, clock: Seconds
) -> None:
    append(partition, 10)
    assert rates.look("t", [partition]) == []
    size = append(partition, 20)
    clock.now += 2
    assert rates.look("t", [partition]) == [Rate(10.0, size / 2)]
    clock.now += 4
    assert rates.look("t", [partition]) == [Rate(10.0, size / 2), Rate(0.0, 0.0)]


def test_the_rate_of_a_topic_adds_up_its_partitions_also_new_ones(
    log: CommitLog, rates: RateHistory, clock: Seconds
) -> None:
    topic = log.create_topic("t", 2)
    rates.look("t", topic.partitions)
    topic.add_partitions(3)
    size = sum(append(one, 10) for one in topic.partitions)
    clock.now += 1
    assert rates.look("t", topic.partitions) == [Rate(30.0, size)]


def test_two_pages_that_look_at_once_count_as_one_look(
    partition: Partition, rates: RateHistory, clock: Seconds
) -> None:
    rates.look("t", [partition])
    append(partition, 1000)
    clock.now += 0.1
    assert rates.look("t", [partition]) == []


def test_what_compaction_and_trims_remove_does_not_lower_a_rate(
    log: CommitLog, rates: RateHistory, clock: Seconds
) -> None:
    compacted = log.create_topic("c", config={"cleanup_policy": "compact"}).partition(0)
    append(compacted, 1000)
    rates.look("c", [compacted])
    size = append(compacted, 10)
    compacted.roll()
    size += append(compacted, 10)
    compacted.trim_before(500)
    clock.now += 1
    assert rates.look("c", [compacted]) == [Rate(20.0, size)]
    compacted.compact()
    size = append(compacted, 10)
    clock.now += 1
    assert rates.look("c", [compacted])[-1] == Rate(10.0, size)


def test_a_truncated_log_has_no_rate(partition: Partition, rates: RateHistory, clock: Seconds) -> None:
    append(partition, 10)
    rates.look("t", [partition])
    partition.truncate_from(5)
    clock.now += 1
    assert rates.look("t", [partition]) == [Rate(None, None)]


def test_looks_before_a_long_pause_are_forgotten(
    partition: Partition, rates: RateHistory, clock: Seconds
) -> None:
    rates.look("t", [partition])
    append(partition, 10)
    clock.now += 3600
    assert rates.look("t", [partition]) == []


def test_memory_is_bounded(partition: Partition, rates: RateHistory, clock: Seconds) -> None:
    for number in range(10_000):
        rates.look(f"topic {number}", [])
    assert len(rates._watched) == 4096
    for _ in range(100):
        clock.now += 1
        shown = rates.look("t", [partition])
    assert len(shown) == 60
