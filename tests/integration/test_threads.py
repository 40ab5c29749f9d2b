"""Threads share one log: appenders, readers, and somebody who trims and truncates."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from soak import SOAK

import commitlog
from commitlog import ClosedError, CommitLog, CommitLogError, OffsetOutOfRangeError, Partition, files, tasks
from commitlog.partitions.page import StatePage
from commitlog.segment_writer import SegmentWriter

QUIET = {"flush_ms": -1}


class Crew:
    """Threads that work until told to stop; the first exception of any of them fails the test."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.problems: list[BaseException] = []

    def add(self, work: Callable[[], object], *, times: int | None = None) -> None:
        def loop() -> None:
            done = 0
            try:
                while not self._stop.is_set() and (times is None or done < times):
                    work()
                    done += 1
            except BaseException as problem:
                self.problems.append(problem)
                self._stop.set()

        self._threads.append(threading.Thread(target=loop, daemon=True))

    def run(self, until: Callable[[], bool], seconds: float = 60) -> None:
        for thread in self._threads:
            thread.start()
        deadline = time.monotonic() + seconds
        while not until() and not self.problems and time.monotonic() < deadline:
            time.sleep(0.005)
        reached = until()
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a thread hangs"
        if self.problems:
            raise self.problems[0]
        assert reached


# --- group commit


def test_concurrent_synced_appends_share_one_sync(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first sync is under way the others append, and one more sync is enough for all of them."""
    partition = log.create_topic("t", config=QUIET).partition(0)
    count, syncs = 20, []
    real = files.sync_data

    def slow(fd: int) -> None:
        syncs.append(fd)
        deadline = time.monotonic() + 30
        while partition.next_offset < count and time.monotonic() < deadline:
            time.sleep(0.001)
        real(fd)

    monkeypatch.setattr(files, "sync_data", slow)
    threads = [
        threading.Thread(target=partition.append, args=(b"x",), kwargs={"sync": True}) for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert partition.durable_offset == partition.next_offset == count
    assert 1 <= len(syncs) <= 2


def test_appends_do_not_wait_for_a_sync(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = log.create_topic("t", config={**QUIET, "segment_bytes": 512}).partition(0)
    partition.append(b"first")
    entered, go_on = threading.Event(), threading.Event()
    real = files.sync_data

    def blocked(fd: int) -> None:
        entered.set()
        assert go_on.wait(60)
        real(fd)

    monkeypatch.setattr(files, "sync_data", blocked)
    syncing = threading.Thread(target=partition.sync)
    syncing.start()
    assert entered.wait(60)
    for number in range(30):  # rolls too
        partition.append(b"%d" % number * 10)
    assert len(list(partition.records())) == 31
    assert partition.durable_offset == 0
    go_on.set()
    syncing.join(60)
    assert partition.durable_offset == 1, "what was appended meanwhile is not covered"


# --- everything at once


def test_everything_acknowledged_by_any_thread_is_in_the_log(log: CommitLog, log_path: Path) -> None:
    partition = log.create_topic("t", config={"segment_bytes": 4096, "flush_ms": 2}).partition(0)
    count = 20_000 if SOAK else 3_000
    acknowledged: dict[int, bytes] = {}
    crew = Crew()

    def appender(name: int) -> Callable[[], None]:
        numbers = iter(range(1 << 60))

        def single() -> None:
            value = b"%d %d" % (name, next(numbers))
            acknowledged[partition.append(value, sync=name == 0)] = value

        def batch() -> None:
            values = [b"%d %d" % (name, next(numbers)) for _ in range(10)]
            acknowledged.update(zip(partition.append_many(values), values, strict=True))

        return batch if name % 2 else single

    def reader() -> None:
        offsets = [record.offset for record in partition.records()]
        assert offsets == list(range(len(offsets)))

    for name in range(4):
        crew.add(appender(name))
    crew.add(reader)
    crew.add(partition.roll, times=50)
    crew.run(lambda: len(acknowledged) >= count)
    found = {record.offset: record.value for record in partition.records()}
    assert found == acknowledged
    log.close()
    with commitlog.open(log_path) as again:
        assert {one.offset: one.value for one in again.topic("t").partition(0).records()} == found


def test_appenders_a_truncating_thread_and_readers_agree(log: CommitLog, log_path: Path) -> None:
    """Readers only ever see records that were appended where they are; in the end all agree."""
    partition = log.create_topic("t", config={"segment_bytes": 2048, "flush_ms": 2}).partition(0)
    goal = 30_000 if SOAK else 3_000
    appended: dict[int, set[bytes]] = {}
    taken = threading.Lock()
    numbers = iter(range(1 << 60))
    crew = Crew()

    def append() -> None:
        value = b"value %d" % next(numbers)
        with taken:  # so that the note is made before a reader can look
            appended.setdefault(partition.append(value), set()).add(value)

    def change() -> None:
        chance = random.Random(next(numbers))
        start, end = partition.start_offset, partition.next_offset
        offset = chance.randint(start, end)
        try:
            if chance.random() < 0.5:
                partition.truncate_from(max(offset, end - 20))
            else:
                partition.trim_before(min(offset, start + 40))
        except OffsetOutOfRangeError:
            pass  # the other thread was faster
        assert 0 <= partition.start_offset <= partition.next_offset
        assert partition.durable_offset <= partition.next_offset

    def read() -> None:
        previous = None
        try:
            for record in partition.records():
                assert previous is None or record.offset == previous + 1
                previous = record.offset
                with taken:
                    assert record.value in appended[record.offset]
        except OffsetOutOfRangeError:
            pass  # overtaken by a trim

    for work in (append, append, change, change, read, read):
        crew.add(work)
    crew.run(lambda: sum(map(len, appended.values())) >= goal)
    final = list(partition.records())
    assert [one.offset for one in final] == list(range(partition.start_offset, partition.next_offset))
    assert all(one.value in appended[one.offset] for one in final)
    assert partition.verify().ok
    assert log.health().ok
    log.close()
    with commitlog.open(log_path) as again:
        assert list(again.topic("t").partition(0).records()) == final


def test_a_trim_and_a_truncation_at_once_never_leave_the_start_behind_the_end(log: CommitLog) -> None:
    partition = log.create_topic("t", config={**QUIET, "segment_bytes": 512}).partition(0)
    for _ in range(200 if SOAK else 40):
        while partition.next_offset < partition.start_offset + 40:
            partition.append(b"value")
        base = partition.start_offset
        both = [
            threading.Thread(target=attempt, args=(partition.trim_before, base + 30)),
            threading.Thread(target=attempt, args=(partition.truncate_from, base + 10)),
        ]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join(60)
        assert partition.start_offset <= partition.durable_offset <= partition.next_offset
        assert len(list(partition.records())) == partition.next_offset - partition.start_offset


def attempt(change: Callable[[int], None], offset: int) -> None:
    with contextlib.suppress(OffsetOutOfRangeError):
        change(offset)


def test_topics_are_created_and_deleted_while_others_are_written(log: CommitLog, log_path: Path) -> None:
    partition = log.create_topic("stays", config={"flush_ms": 1}).partition(0)
    rounds = iter(range(1 << 60))
    done: list[int] = []
    crew = Crew()

    def come_and_go() -> None:
        name = f"topic-{next(rounds)}"
        topic = log.create_topic(name, partitions=2, config={"flush_ms": 1})
        topic.append(b"value")
        topic.add_partitions(3)
        log.delete_topic(name)
        done.append(1)

    crew.add(come_and_go)
    crew.add(come_and_go)
    crew.add(lambda: partition.append(b"value", sync=True))
    crew.add(log.apply_retention)
    crew.add(log.health)
    crew.run(lambda: len(done) >= (300 if SOAK else 30))
    assert log.topics() == ["stays"]
    assert log.health().ok
    log.close()
    assert sorted(one.name for one in log_path.iterdir() if one.is_dir()) == ["stays-0", "topics"]


def test_waiting_for_a_record_ends_when_it_comes(partition: Partition) -> None:
    answers: list[bool] = []
    waiting = [threading.Thread(target=lambda: answers.append(partition.wait_for(2, 60))) for _ in range(3)]
    for thread in waiting:
        thread.start()
    for _ in range(3):
        partition.append(b"value")
    for thread in waiting:
        thread.join(60)
    assert answers == [True] * 3


# --- closing while others work


@pytest.mark.parametrize("moment", ["seal_indexes", "sync"])
def test_a_record_appended_while_the_log_is_closed_is_refused_or_there_afterwards(
    log_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    log = commitlog.open(log_path)
    partition = log.create_topic("t", config=QUIET).partition(0)
    partition.append(b"early")
    added: list[int] = []

    def append() -> None:
        with contextlib.suppress(CommitLogError):
            added.append(partition.append(b"late"))

    late = threading.Thread(target=append)
    owner = {"seal_indexes": SegmentWriter, "sync": StatePage}[moment]
    real = getattr(owner, moment)

    def in_the_middle(self: Any, *args: Any) -> None:
        real(self, *args)
        if late.ident is None:
            late.start()
            if not partition._state.lock.locked():
                late.join()

    monkeypatch.setattr(owner, moment, in_the_middle)
    log.close()
    late.join()
    with commitlog.open(log_path) as log:
        assert [one.offset for one in log.topic("t").partition(0).records()] == [0, *added]


def test_a_topic_is_not_created_in_a_log_that_was_closed_meanwhile(
    log_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks.Task, "start", lambda self: None)  # close() waits for them; they take the mutex
    log = commitlog.open(log_path)
    begun = threading.Event()
    problems: list[CommitLogError] = []

    def check(name: object) -> None:
        begun.set()  # create_topic() has found the log open

    def create() -> None:
        try:
            log.create_topic("t")
        except CommitLogError as problem:
            problems.append(problem)

    monkeypatch.setattr("commitlog.topics.topic_set.check_topic_name", check)
    creator = threading.Thread(target=create)
    with log._topics.mutex:
        creator.start()
        assert begun.wait(30)
        log.close()
    creator.join()
    assert [type(one) for one in problems] == [ClosedError]
    with commitlog.open(log_path) as log:
        assert log.topics() == []
