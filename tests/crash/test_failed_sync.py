"""A failed sync ends the partition until it is opened again: nobody knows what the disk holds."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog import CommitLog, CommitLogError, Partition, PartitionFailedError, files

from .logs import MARKER, QUIET, append_to, check_goes_on, check_records, open_partition, value_of

SYNCS = ("sync_data", "sync_map", "sync_directory")


class BadDisk:
    """Lets `good` syncs pass, fails the next one and counts what comes after it."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, good: int = 0, names: tuple[str, ...] = SYNCS
    ) -> None:
        self.calls = 0
        self.good = good
        self.failed = False
        for name in names:
            monkeypatch.setattr(files, name, self._instead_of(getattr(files, name)))

    def _instead_of(self, real: Callable[[Any], None]) -> Callable[[Any], None]:
        def sync(what: Any) -> None:
            self.calls += 1
            if self.calls == self.good + 1:
                self.failed = True
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real(what)

        return sync


@pytest.fixture
def log(tmp_path: Path) -> CommitLog:
    """A log that the test closes."""
    return commitlog.open(tmp_path / "log")


def quiet_partition(log: CommitLog, name: str = "t", **config: Any) -> Partition:
    partition: Partition = log.create_topic(name, config={**QUIET, **config}).partition(0)
    return partition


OPERATIONS: dict[str, Callable[[Partition], object]] = {
    "append": lambda partition: partition.append(b"more"),
    "append_many": lambda partition: partition.append_many([b"more", b"and more"]),
    "sync": lambda partition: partition.sync(),
    "roll": lambda partition: partition.roll(),
    "trim_before": lambda partition: partition.trim_before(3),
    "truncate_from": lambda partition: partition.truncate_from(3),
    "repair": lambda partition: partition.repair(),
}


def test_a_failed_sync_fails_the_append_that_asked_for_it(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = quiet_partition(log)
    append_to(partition, 3, sync=True)
    BadDisk(monkeypatch)
    with pytest.raises(PartitionFailedError, match=r"t-0.*Input/output error"):
        partition.append(value_of(3), sync=True)
    assert partition.durable_offset == 3
    log.close()


def test_after_a_failed_sync_nothing_is_written_and_no_sync_is_tried_again(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = quiet_partition(log)
    append_to(partition, 5)
    disk = BadDisk(monkeypatch)
    with pytest.raises(PartitionFailedError):
        partition.sync()
    for operation in OPERATIONS.values():
        with pytest.raises(PartitionFailedError):
            operation(partition)
    log.close()
    assert disk.calls == 1


def test_after_a_failed_sync_reads_still_work(
    log: CommitLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = quiet_partition(log)
    append_to(partition, 5)
    BadDisk(monkeypatch)
    with pytest.raises(PartitionFailedError):
        partition.sync()
    check_records(partition, 0, 5)
    assert partition.get(4).value == value_of(4)
    assert partition.verify().ok
    with commitlog.open(tmp_path / "log", mode="r") as reader:
        check_records(open_partition(reader), 0, 5)
    log.close()


def test_a_failed_sync_shows_in_health_and_leaves_no_clean_marker(
    log: CommitLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = quiet_partition(log)
    other = quiet_partition(log, "other")
    append_to(partition, 5)
    append_to(other, 2)
    assert log.health().ok
    with monkeypatch.context() as patch:
        BadDisk(patch)
        with pytest.raises(PartitionFailedError):
            partition.sync()
    health = log.health()
    assert not health.ok
    assert [name for name, _ in health.failed_partitions] == ["t-0"]
    assert partition.failure is not None
    append_to(other, 4, sync=True)
    log.close()
    assert not (tmp_path / "log" / MARKER).exists()
    with commitlog.open(tmp_path / "log") as again:
        assert again.health().ok
        assert not open_partition(again).recovery.clean
        check_records(open_partition(again), 0, 5)
        check_records(again.topic("other").partition(0), 0, 4)
    check_goes_on(tmp_path / "log")


def test_everyone_who_waits_for_the_failed_sync_is_told(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = quiet_partition(log)
    told: list[BaseException] = []
    entered, go = threading.Event(), threading.Event()

    def failing(fd: int) -> None:
        entered.set()
        assert go.wait(30)
        raise OSError(errno.EIO, "broken")

    def appender() -> None:
        try:
            partition.append(b"value", sync=True)
        except PartitionFailedError as problem:
            told.append(problem)

    monkeypatch.setattr(files, "sync_data", failing)
    threads = [threading.Thread(target=appender) for _ in range(5)]
    threads[0].start()
    assert entered.wait(30)
    for thread in threads[1:]:
        thread.start()
    while partition.next_offset < 5:
        time.sleep(0.001)
    go.set()
    for thread in threads:
        thread.join(30)
    assert len(told) == 5
    log.close()


def test_somebody_who_waits_for_records_is_woken_by_the_close(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = quiet_partition(log)
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(partition.wait_for(0, 60)))
    waiting.start()
    log.close()
    waiting.join(30)
    assert answers == [False]


def test_a_failed_sync_in_the_background_shows_in_health(
    log: CommitLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = log.create_topic("t", config={"flush_ms": 1}).partition(0)
    with monkeypatch.context() as patch:
        disk = BadDisk(patch)
        partition.append(value_of(0))
        deadline = time.monotonic() + 30
        while log.health().ok and time.monotonic() < deadline:
            time.sleep(0.005)
        health = log.health()
        assert not health.ok
        assert health.failed_partitions[0][0] == "t-0"
        assert all(task.alive for task in health.tasks)
        with pytest.raises(PartitionFailedError):
            partition.append(b"refused")
        assert disk.calls == 1
    log.close()
    assert not (tmp_path / "log" / MARKER).exists()
    with commitlog.open(tmp_path / "log") as again:
        check_records(open_partition(again), 0, 1)


def test_a_failed_sync_of_one_partition_does_not_keep_the_flusher_from_others(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log.create_topic("t", partitions=3, config={"flush_ms": 1})
    with monkeypatch.context() as patch:
        BadDisk(patch)
        for partition in topic.partitions:
            partition.append(b"value")
        deadline = time.monotonic() + 30
        while log.health().ok and time.monotonic() < deadline:
            time.sleep(0.005)
    failed = {name for name, _ in log.health().failed_partitions}
    assert len(failed) == 1
    others = [partition for partition in topic.partitions if partition.name not in failed]
    for partition in others:
        end = partition.append(b"more") + 1
        while partition.durable_offset < end and time.monotonic() < deadline:
            time.sleep(0.005)
        assert partition.durable_offset == end
    log.close()


# --- a sync that fails anywhere


def trim_everything(partition: Partition) -> None:
    partition.trim_before(partition.next_offset)


EVERYWHERE: dict[str, Callable[[Partition], object]] = {
    **OPERATIONS,
    "trim everything": trim_everything,
    "truncate everything": lambda partition: partition.truncate_from(0),
    "append with a roll and a sync": lambda partition: append_to(partition, 15, sync=True),
}


@pytest.mark.parametrize("name", EVERYWHERE)
def test_whichever_sync_of_an_operation_fails_the_log_closes_and_opens_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_threads: None
) -> None:
    failed, number = True, 0
    while failed:
        path = tmp_path / f"log-{number}"
        log = commitlog.open(path)
        partition = quiet_partition(log, segment_bytes=512)
        append_to(partition, 5, sync=True)
        append_to(partition, 10)
        with monkeypatch.context() as patch:
            disk = BadDisk(patch, good=number)
            try:
                EVERYWHERE[name](partition)
            except (CommitLogError, OSError):
                assert disk.failed
                assert partition.failure is not None
                check_refused_without_a_sync(partition, disk)
            else:
                assert not disk.failed, "a failed sync goes unnoticed"
            failed, calls = disk.failed, disk.calls
            if failed:
                log.close()
                assert disk.calls == calls, "close() tries no sync again"
        log.close()
        assert (path / MARKER).exists() == (not failed)
        check_consistent(path)
        number += 1
    assert number > 1 or name in ("append", "append_many", "roll")


def check_refused_without_a_sync(partition: Partition, disk: BadDisk) -> None:
    calls = disk.calls
    for operation in OPERATIONS.values():
        with pytest.raises(PartitionFailedError):
            operation(partition)
    assert disk.calls == calls


def check_consistent(path: Path) -> None:
    """Whatever became of the operation, the log is dense and right."""
    with commitlog.open(path) as log:
        partition = open_partition(log)
        assert partition.durable_offset <= partition.next_offset
        for record in partition.records():
            assert record.value in (value_of(record.offset), b"more", b"and more")
        found = [record.offset for record in partition.records()]
        assert found == list(range(partition.start_offset, partition.next_offset))
        assert partition.verify().ok
        partition.append(b"more", sync=True)
    with commitlog.open(path) as log:
        assert open_partition(log).recovery.clean
        assert open_partition(log).verify().ok


def test_whichever_sync_fails_while_a_log_opens_it_opens_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_threads: None
) -> None:
    failed, number = True, 0
    while failed:
        path = tmp_path / f"log-{number}"
        if number % 2:  # one that is there, and one that is made
            with commitlog.open(path) as log:
                append_to(quiet_partition(log), 5)
        with monkeypatch.context() as patch:
            disk = BadDisk(patch, good=number // 2)
            try:
                commitlog.open(path).close()
            except (CommitLogError, OSError):
                assert disk.failed
                assert not (path / MARKER).exists()
            else:
                assert not disk.failed
            failed = disk.failed
        with commitlog.open(path) as log:
            if number % 2:
                check_records(open_partition(log), 0, 5)
        number += 1
    assert number > 3


def test_whichever_sync_fails_while_a_topic_comes_or_goes_it_can_be_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_threads: None
) -> None:
    failed, number = True, 0
    while failed:
        path = tmp_path / f"log-{number}"
        with commitlog.open(path) as log:
            append_to(quiet_partition(log), 3)
            with monkeypatch.context() as patch:
                disk = BadDisk(patch, good=number)
                try:
                    quiet_partition(log, "new")
                    log.topic("new").add_partitions(2)
                    log.delete_topic("t")
                except (CommitLogError, OSError):
                    assert disk.failed
                failed = disk.failed
            if "t" in log.topics():
                check_records(open_partition(log), 0, 3)
                log.delete_topic("t")
            new = log.topic("new") if "new" in log.topics() else log.create_topic("new")
            new.add_partitions(3)
            append_to(new.partition(2), 2)
        with commitlog.open(path) as log:
            assert log.topics() == ["new"]
            assert len(log.topic("new").partitions) == 3
            check_records(log.topic("new").partition(2), 0, 2)
        number += 1
    assert number > 5


def test_a_failed_sync_while_closing_is_raised_and_leaves_no_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_threads: None
) -> None:
    failed, number = True, 0
    while failed:
        path = tmp_path / f"log-{number}"
        log = commitlog.open(path)
        append_to(quiet_partition(log), 5)
        append_to(quiet_partition(log, "other"), 5)
        with monkeypatch.context() as patch:
            disk = BadDisk(patch, good=number)
            try:
                log.close()
            except (CommitLogError, OSError):
                assert disk.failed
                assert not (path / MARKER).exists()
            else:
                assert not disk.failed
                assert (path / MARKER).exists()
            failed = disk.failed
        log.close()  # a second time is fine, and does not leave a marker either
        assert (path / MARKER).exists() == (not failed)
        with commitlog.open(path) as log:
            check_records(open_partition(log), 0, 5)
            check_records(log.topic("other").partition(0), 0, 5)
        number += 1
    assert number > 3
