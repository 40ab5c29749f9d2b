"""Readers in other processes follow a log while it is written, rolled, trimmed and truncated."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from soak import SOAK

import commitlog
from commitlog import CommitLog, Partition, files
from commitlog.locks import LogLock

from . import children
from .children import END, value_of

TINY = {"segment_bytes": 4096, "file_delete_delay_ms": 0, "index_interval_bytes": 256}


def append_on(partition: Partition, end: int, generation: int = 0) -> None:
    for offset in range(partition.next_offset, end):
        partition.append(value_of(offset, generation))


def append_batches(partition: Partition, end: int, size: int, generation: int = 0) -> None:
    while partition.next_offset < end:
        start = partition.next_offset
        partition.append_many([value_of(one, generation) for one in range(start, min(start + size, end))])


def readers(path: Path, count: int) -> list[subprocess.Popen[str]]:
    started = [children.start("follow", path) for _ in range(count)]
    for one in started:
        children.until_ready(one)
    return started


def check_all_read(following: list[subprocess.Popen[str]], partition: Partition) -> list[dict[str, Any]]:
    """Every reader came to the end, without an error, and then sees what the writer sees."""
    results = [children.finish(one) for one in following]
    expected = children.digest(partition)
    for result in results:
        assert result["next_offset"] == partition.next_offset
        assert result["digest"] == expected
    return results


@pytest.mark.parametrize("size", [1, 40])
def test_readers_see_every_record_in_order_while_the_log_is_written_and_rolled(
    log: CommitLog, log_path: Path, size: int
) -> None:
    following = readers(log_path, 4)  # they start before there is a topic
    partition = log.create_topic("t", config=TINY).partition(0)
    append_batches(partition, 20_000 if SOAK else 4_000, size)
    partition.append(END)
    assert len(partition.segments) > 20
    for result in check_all_read(following, partition):
        assert (result["read"], result["overtaken"]) == (partition.next_offset, 0)


def test_readers_see_every_record_while_single_ones_are_stored_into_a_mapped_tail(
    log: CommitLog, log_path: Path, mapped_tail: None
) -> None:
    following = readers(log_path, 3)
    config = {**TINY, "segment_bytes": 100_000, "flush_ms": -1}
    partition = log.create_topic("t", config=config).partition(0)
    append_on(partition, 6_000)
    assert partition._state.writer.tail is not None
    append_batches(partition, 6_500, 30)
    append_on(partition, 12_000)
    partition.append(END)
    assert len(partition.segments) > 5
    for result in check_all_read(following, partition):
        assert (result["read"], result["overtaken"]) == (partition.next_offset, 0)


def test_a_reader_that_comes_late_reads_from_the_start(log: CommitLog, log_path: Path) -> None:
    partition = log.create_topic("t", config=TINY).partition(0)
    append_on(partition, 500)
    following = readers(log_path, 1)
    append_on(partition, 1000)
    partition.append(END)
    (result,) = check_all_read(following, partition)
    assert result["read"] == 1001


def test_readers_follow_a_log_that_is_trimmed(log: CommitLog, log_path: Path) -> None:
    partition = log.create_topic("t", config=TINY).partition(0)
    following = readers(log_path, 3)
    chance = random.Random(1)
    for _ in range(100 if SOAK else 30):
        append_batches(partition, partition.next_offset + 150, chance.choice([1, 40]))
        partition.trim_before(chance.randint(partition.start_offset, partition.next_offset))
    partition.append(END)
    check_all_read(following, partition)


def test_a_reader_that_a_trim_overtakes_is_told_so(log: CommitLog, log_path: Path) -> None:
    partition = log.create_topic("t", config=TINY).partition(0)
    append_on(partition, 1000)
    scan = children.start("slow_scan", log_path)
    children.until_ready(scan)
    partition.trim_before(900)
    log.apply_retention()
    assert scan.stdin is not None
    first, rest = children.finish(told(scan))
    assert first == [0]
    assert rest[-1] in (-1, 999), "the end, or OffsetOutOfRangeError"
    assert rest[:-1] == list(range(1, len(rest)))


def told(child: subprocess.Popen[str]) -> subprocess.Popen[str]:
    """Let a child that waits for a line go on."""
    assert child.stdin is not None
    child.stdin.write("go on\n")
    child.stdin.flush()
    return child


def end_beyond(partition: Partition, offset: int) -> None:
    """Put END after every offset that a reader can have seen: it cannot tell that its own was replaced."""
    append_on(partition, offset + 1, generation=1000)
    partition.append(END)


def test_readers_follow_a_log_that_is_truncated(log: CommitLog, log_path: Path) -> None:
    partition = log.create_topic("t", config=TINY).partition(0)
    following = readers(log_path, 3)
    chance = random.Random(2)
    highest = 0
    for generation in range(100 if SOAK else 25):
        end = partition.next_offset + 120
        highest = max(highest, end)
        append_batches(partition, end, chance.choice([1, 30]), generation)
        partition.truncate_from(chance.randint(max(0, end - 200), end))
    end_beyond(partition, highest)
    check_all_read(following, partition)


def test_readers_follow_a_log_to_which_everything_happens_at_once(log: CommitLog, log_path: Path) -> None:
    partition = log.create_topic("t", config=TINY).partition(0)
    following = readers(log_path, 3)
    chance = random.Random(3)
    highest = 0
    for generation in range(200 if SOAK else 40):
        end = partition.next_offset + 80
        highest = max(highest, end)
        append_batches(partition, end, chance.choice([1, 7, 40]), generation)
        action = chance.choice(["roll", "trim", "truncate", "sync", "repair"])
        if action == "trim":
            partition.trim_before(chance.randint(partition.start_offset, partition.next_offset))
        elif action == "truncate":
            partition.truncate_from(chance.randint(partition.start_offset, partition.next_offset))
        else:
            getattr(partition, action)()
    end_beyond(partition, highest)
    check_all_read(following, partition)


def test_a_reader_sees_new_topics_and_new_partitions(log: CommitLog, log_path: Path) -> None:
    following = [children.start("follow", log_path, number) for number in (0, 2)]
    for one in following:
        children.until_ready(one)
    topic = log.create_topic("t", config=TINY)
    topic.partition(0).append(value_of(0))
    topic.add_partitions(3)
    topic.partition(2).append(END)
    topic.partition(0).append(END)
    assert [children.finish(one)["read"] for one in following] == [2, 1]


def test_a_reader_learns_that_its_topic_was_deleted(log: CommitLog, log_path: Path) -> None:
    log.create_topic("t").partition(0).append(b"value")
    with commitlog.open(log_path, mode="r") as reader:
        partition = reader.topic("t").partition(0)
        assert partition.next_offset == 1
        log.delete_topic("t")
        assert reader.topics() == []
        with pytest.raises(commitlog.UnknownTopicError):
            reader.topic("t")
        log.create_topic("t").partition(0).append(b"another")
        assert [one.value for one in reader.topic("t").partition(0).records()] == [b"another"]


# --- the writer comes and goes


def test_a_reader_goes_on_when_the_writer_is_restarted(log_path: Path) -> None:
    commitlog.open(log_path).close()
    following = readers(log_path, 2)
    for _ in range(3):
        writer = children.start("write", log_path, 300)
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    expected = children.run("write", log_path, 10, "end")
    for one in following:
        result = children.finish(one)
        assert (result["read"], result["digest"]) == (911, expected)


def test_a_reader_goes_on_when_the_writer_was_killed(log_path: Path) -> None:
    commitlog.open(log_path).close()
    following = readers(log_path, 2)
    for _ in range(3):
        writer = children.start("write", log_path, 300, "hang")
        children.until_ready(writer)
        writer.kill()
        writer.communicate()
    expected = children.run("write", log_path, 10, "end")
    for one in following:
        result = children.finish(one)
        assert (result["read"], result["digest"]) == (911, expected)


def test_a_reader_sees_the_same_before_and_after_the_writer_dies(log_path: Path) -> None:
    writer = children.start("write", log_path, 200, "hang")
    children.until_ready(writer)
    with commitlog.open(log_path, mode="r") as early:
        before = list(early.topic("t").partition(0).records())
        writer.kill()
        writer.communicate()
        assert list(early.topic("t").partition(0).records()) == before
        with commitlog.open(log_path, mode="r") as late:
            assert list(late.topic("t").partition(0).records()) == before
    assert len(before) == 200


def test_a_log_that_a_process_never_closed_is_whole(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        log.create_topic("t")
    children.run("exit_without_closing", log_path)
    with commitlog.open(log_path, mode="r") as log:
        assert [one.value for one in log.topic("t").partition(0).records()] == [b"unclosed"]
    with commitlog.open(log_path) as log:
        assert not log.topic("t").partition(0).recovery.clean
        assert [one.value for one in log.topic("t").partition(0).records()] == [b"unclosed"]


def test_a_reader_does_not_believe_a_writer_that_still_recovers(
    log_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut the state page counts records that are gone; who has the lock does not matter."""
    with commitlog.open(log_path) as log:
        partition = log.create_topic("t", config={"flush_ms": -1}).partition(0)
        append_on(partition, 10)
        page = Path(partition.path, "state").read_bytes()
    (log_path / "clean-shutdown").unlink()
    Path(partition.path, "state").write_bytes(page)
    segment = Path(partition.segments[0].path)
    os.truncate(segment, segment.stat().st_size - 8)
    arrived, go_on = threading.Event(), threading.Event()
    real = files.map_writable

    def slow(*args: Any) -> Any:
        arrived.set()
        assert go_on.wait(60)
        return real(*args)

    monkeypatch.setattr(files, "map_writable", slow)
    opened: list[CommitLog] = []
    opening = threading.Thread(target=lambda: opened.append(commitlog.open(log_path)))
    opening.start()
    try:
        assert arrived.wait(60)
        with commitlog.open(log_path, mode="r") as reader:
            seen = reader.topic("t").partition(0)
            assert (seen.next_offset, len(list(seen.records()))) == (9, 9)
    finally:
        go_on.set()
        opening.join()
        opened[0].close()


@pytest.mark.parametrize("shared", [False, True])
def test_a_reader_that_was_opened_while_the_writer_was_opening_sees_what_is_appended(
    log_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    with commitlog.open(log_path) as log:
        log.create_topic("t", config={"flush_ms": -1})
    early: list[CommitLog] = []
    real = LogLock.ready

    def ready(lock: LogLock, **kwargs: Any) -> None:
        early.append(commitlog.open(log_path, mode="r"))
        early[0].topic("t")
        real(lock, **kwargs)

    monkeypatch.setattr(LogLock, "ready", ready)
    with commitlog.open(log_path, mode="shared" if shared else "w") as log:
        append_on(log.topic("t").partition(0), 10)
        with early[0] as reader:
            seen = reader.topic("t").partition(0)
            assert (seen.next_offset, len(list(seen.records()))) == (10, 10)


# --- maps outlive files


@pytest.mark.parametrize("how", ["trim", "truncate", "delete"])
def test_a_table_in_another_process_survives_the_removal_of_its_files(
    log: CommitLog, log_path: Path, how: str
) -> None:
    topic = log.create_topic("t", config={**TINY, "segment_bytes": 1 << 20})
    partition = topic.partition(0)
    values = [os.urandom(1000) for _ in range(3000)]
    for start in range(0, 3000, 500):
        partition.append_many(values[start : start + 500])
    child = children.start("hold_a_table", log_path)
    children.until_ready(child)
    if how == "trim":
        partition.trim_before(partition.next_offset)
    elif how == "truncate":
        partition.truncate_from(700)
        partition.append_many([b"new"] * 1000)
    else:
        log.delete_topic("t")
    assert children.finish(told(child)) == hashlib.sha256(b"".join(values)).hexdigest()
