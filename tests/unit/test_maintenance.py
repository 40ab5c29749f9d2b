from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from helpers import wait_until

import commitlog
from commitlog import ClosedError, CommitLog, LogConfig, Partition, compaction, files, tasks
from commitlog.maintenance import clean_what_is_due, dirtiest

CONFIG = {"cleanup_policy": "compact", "flush_ms": -1, "file_delete_delay_ms": 0}
NOW = 1_000_000


@pytest.fixture
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pass runs but those that a test asks for."""
    monkeypatch.setattr(tasks.Task, "start", lambda self: None)


@pytest.fixture
def partitions(_no_threads: None, log: CommitLog) -> list[Partition]:
    """Four partitions of a compacted topic, empty yet."""
    return list(log.create_topic("c", 4, CONFIG).partitions)


def fill(partition: Partition, records: int = 10, timestamp: int = 1_000) -> None:
    """Add a sealed segment: ten keys again and again."""
    keys = [b"%d" % (number % 10) for number in range(records)]
    partition.append_many([bytes(50)] * records, keys=keys, timestamps=[timestamp] * records)
    partition.roll()


def never() -> bool:
    return False


def clean(partitions: Sequence[Partition], stopping: Callable[[], bool] = never) -> bool:
    return clean_what_is_due(lambda: partitions, NOW, stopping)


def offsets_cleaned(partitions: Sequence[Partition]) -> list[int]:
    return [partition.clean_offset for partition in partitions]


def test_nothing_is_due_in_empty_partitions(partitions: list[Partition]) -> None:
    assert dirtiest(partitions, NOW) is None
    assert dirtiest([], NOW) is None
    assert not clean(partitions)
    assert [partition.compaction_error for partition in partitions] == [None] * 4


def test_a_partition_with_nothing_but_an_active_segment_does_not_disturb_the_others(
    partitions: list[Partition],
) -> None:
    partitions[0].append(b"v", key=b"k")
    fill(partitions[1])
    assert not clean(partitions)
    assert offsets_cleaned(partitions) == [0, 10, 0, 0]
    assert partitions[0].compaction_error is None


def test_the_partition_with_the_largest_dirty_part_comes_first(partitions: list[Partition]) -> None:
    for partition, clean_records, dirty_records in zip(
        partitions, (100, 10, 100, 40), (20, 100, 150, 30), strict=True
    ):
        partition.append_many(
            [bytes(50)] * clean_records, keys=[b"%d" % number for number in range(clean_records)]
        )
        partition.roll()
        partition.compact(NOW)
        fill(partition, dirty_records)
    assert dirtiest(partitions, NOW) is partitions[1]
    assert dirtiest([partitions[0], *partitions[2:]], NOW) is partitions[2]
    assert dirtiest([partitions[0], partitions[3]], NOW) is None
    assert not clean(partitions)
    assert offsets_cleaned(partitions) == [100, 110, 250, 40]


def test_a_partition_of_a_topic_that_is_not_compacted_is_left_alone(
    log: CommitLog, partitions: list[Partition]
) -> None:
    other = log.create_topic("d").partition(0)
    fill(other)
    fill(partitions[0])
    assert dirtiest([other], NOW) is None
    assert not clean([other, partitions[0]])
    assert len(list(other.records())) == 10


def test_what_a_full_map_left_is_due_again(_no_threads: None, log_path: Path) -> None:
    with commitlog.open(log_path, config=LogConfig(cleaner_dedupe_buffer_bytes=24 * 5)) as log:
        partition = log.create_topic("c", config={**CONFIG, "min_cleanable_dirty_ratio": 0.01}).partition(0)
        fill(partition, 30)
        runs = 1
        while clean([partition]):
            runs += 1
        assert runs > 1
        assert partition.clean_offset == 30
        assert [record.offset for record in partition.records()] == list(range(20, 30))


def test_records_that_nobody_has_synced_are_cleaned_all_the_same(partitions: list[Partition]) -> None:
    fill(partitions[0])
    assert partitions[0].durable_offset == 0
    clean(partitions)
    assert (partitions[0].clean_offset, partitions[0].durable_offset) == (10, 10)


def test_no_pass_begins_once_the_log_is_stopping(partitions: list[Partition]) -> None:
    for partition in partitions:
        fill(partition, 20)
    answers = iter([False, False, True])
    assert not clean(partitions, lambda: next(answers))
    assert sorted(offsets_cleaned(partitions)) == [0, 0, 20, 20]


def test_a_topic_deleted_meanwhile_is_passed_over(log: CommitLog, partitions: list[Partition]) -> None:
    other = log.create_topic("d", config=CONFIG).partition(0)
    fill(other)
    fill(partitions[0])
    log.delete_topic("d")
    with pytest.raises(ClosedError):
        other.compact()
    known = iter([[other]])
    assert not clean_what_is_due(lambda: next(known, [partitions[0]]), NOW, never)
    assert offsets_cleaned(partitions) == [10, 0, 0, 0]
    assert other.compaction_error is None


def test_a_partition_that_a_disk_error_stopped_is_left_alone(partitions: list[Partition]) -> None:
    fill(partitions[0])
    fill(partitions[1])
    partitions[0]._state.fail("broken")
    assert not clean(partitions)
    assert offsets_cleaned(partitions) == [0, 10, 0, 0]
    assert partitions[0].compaction_error is None


def test_a_pass_called_by_hand_that_succeeds_makes_a_partition_cleanable_again(
    partitions: list[Partition], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(partitions[0])
    with monkeypatch.context() as patch:
        patch.setattr(compaction.Pass, "cleaned", lambda self: 1 // 0)
        clean(partitions)
        assert partitions[0].compaction_error == "ZeroDivisionError: integer division or modulo by zero"
    assert dirtiest(partitions, NOW) is None
    partitions[0].compact()
    assert partitions[0].compaction_error is None
    fill(partitions[0])
    assert dirtiest(partitions, NOW) is partitions[0]


def test_the_background_thread_compacts_what_is_due(log_path: Path) -> None:
    with commitlog.open(log_path, config=LogConfig(cleaner_backoff_ms=1)) as log:
        partitions = log.create_topic("c", 2, CONFIG).partitions
        log.create_topic("one-segment", config=CONFIG)
        for partition in partitions:
            fill(partition, 40)
        wait_until(lambda: offsets_cleaned(partitions) == [40, 40])
        assert [record.offset for record in partitions[0].records()] == list(range(30, 40))
        assert log.health().ok


def test_a_partition_that_found_the_disk_full_is_tried_again(
    partitions: list[Partition], log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(partitions[0], 100)

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_at", no_room)
        clean(partitions)
    assert log.health().uncleanable_partitions[0][0] == "c-0"
    clean(partitions)
    assert log.health().uncleanable_partitions == ()
    assert len(list(partitions[0].records())) == 10


def test_without_the_cleaner_only_compact_compacts(log_path: Path) -> None:
    with commitlog.open(log_path, config=LogConfig(cleaner_enable=False)) as log:
        partition = log.create_topic("c", config=CONFIG).partition(0)
        fill(partition, 40)
        assert "cleaner" not in [task.name for task in log.health().tasks]
        assert partition.clean_offset == 0
        partition.compact()
        assert partition.clean_offset == 40
        assert log.health().ok
