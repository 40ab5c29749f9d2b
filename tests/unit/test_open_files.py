"""How few files a log keeps open, and that nobody notices."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import wait_until

import commitlog
from commitlog import (
    CommitLog,
    CorruptionError,
    LogConfig,
    Partition,
    PartitionFailedError,
    TopicConfig,
    UnknownTopicError,
    files,
)
from commitlog.errors import TooManyOpenFilesError

FEW = 64  # descriptors, and half as many maps: eight partitions may be awake


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "most_descriptors", lambda: FEW)
    monkeypatch.setattr(files, "most_maps", lambda: FEW // 2)


@pytest.fixture
def log(log_path: Path) -> Iterator[CommitLog]:
    """A log that syncs nothing in the background: a sync wakes a partition."""
    config = LogConfig(topic_defaults=TopicConfig(flush_ms=-1), cleaner_enable=False)
    with commitlog.open(log_path, config=config) as opened:
        yield opened


def rest(partition: Partition) -> None:
    """Let a partition rest; a background task may have its lock for a moment."""
    wait_until(partition._state.rest)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def values(partition: Partition) -> list[bytes | None]:
    return [record.value for record in partition.records()]


MANY = """
import os, resource, sys, commitlog
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
path, count = sys.argv[1], 200
with commitlog.open(path) as log:
    topic = log.create_topic("t", count)
    for round in range(3):
        for number, partition in enumerate(topic):
            assert partition.append(b"%d" % round) == round
            assert len(os.listdir("/proc/self/fd")) < 100
    assert all([one.value for one in partition] == [b"0", b"1", b"2"] for partition in topic)
for mode in ("w", "r"):
    with commitlog.open(path, mode=mode) as log:
        for turn in range(2):
            for partition in log.topic("t"):
                assert partition.next_offset == 3 and len(list(partition)) == 3
                assert len(os.listdir("/proc/self/fd")) < 100
"""


def test_partitions_far_above_the_descriptors_of_the_process_are_written_and_read(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MANY, str(tmp_path / "log")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("few")
def test_idle_partitions_let_their_files_go_for_busy_ones(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        before = descriptors()
        topic = log.create_topic("t", 30)
        for number, partition in enumerate(topic):
            partition.append(b"%d" % number)
        assert sum(not one._state.writer.resting for one in topic) <= 9
        assert descriptors() <= before + 4 * 9
        assert [values(one) for one in topic] == [[b"%d" % number] for number in range(30)]


@pytest.mark.usefixtures("few")
def test_a_busy_partition_stays_awake_while_others_come_and_go(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        busy, *others = log.create_topic("t", 30)
        for partition in others:
            busy.append(b"busy")
            assert not busy._state.writer.resting
            partition.append(b"other")
        assert len(values(busy)) == 29


def test_a_partition_of_a_log_that_was_closed_cleanly_opens_no_file_before_it_is_used(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        log.create_topic("t").partition(0).append(b"first")
    with commitlog.open(log_path) as log:
        partition = log.topic("t").partition(0)
        assert partition._state.writer.is_unopened
        assert values(partition) == [b"first"]
        assert partition.append(b"second") == 1
    with commitlog.open(log_path) as log:
        assert values(log.topic("t").partition(0)) == [b"first", b"second"]
        assert log.topic("t").partition(0).verify().ok
    assert not list(log_path.glob("*.damaged"))


CALLS: dict[str, Callable[[Partition], object]] = {
    "append": lambda partition: partition.append(b"more"),
    "append with headers": lambda partition: partition.append(b"more", headers=[("a", b"b")]),
    "append_many": lambda partition: partition.append_many([b"more"] * 3),
    "synced append": lambda partition: partition.append(b"more", sync=True),
    "sync": Partition.sync,
    "roll": Partition.roll,
    "trim": lambda partition: partition.trim_before(1),
    "truncate": lambda partition: partition.truncate_from(1),
    "restart": lambda partition: partition.restart_at(7),
    "retention": lambda partition: partition.apply_retention(1 << 50),
    "repair": Partition.repair,
    "lead": lambda partition: partition.lead(3),
    "read a replica": lambda partition: partition.read_replica(0, 100).data.read(),
    "metrics": Partition.metrics,
    "verify": Partition.verify,
    "latest": Partition.latest,
    "check_linked": Partition.check_linked,
}


@pytest.mark.parametrize("how", ["rested", "reopened"])
@pytest.mark.parametrize("call", CALLS)
def test_a_partition_that_rests_does_what_one_that_is_awake_does(call: str, how: str, tmp_path: Path) -> None:
    found = []
    for name in ("awake", "resting"):
        log = commitlog.open(tmp_path / name)
        partition = log.create_topic("t").partition(0)
        partition.append_many([b"a", b"b"], timestamps=[1, 2])
        if name == "resting" and how == "rested":
            rest(partition)
            assert partition._state.writer.resting
        elif name == "resting":
            log.close()
            log = commitlog.open(tmp_path / name)
            partition = log.topic("t").partition(0)
        CALLS[call](partition)
        end = partition.append(b"end", timestamp=3)
        if partition.replicated:
            partition.set_high_watermark(end + 1)
        found.append(
            (partition.start_offset, end, values(partition), [len(s.path) > 0 for s in partition.segments])
        )
        log.close()
        with commitlog.open(tmp_path / name) as log:
            assert log.topic("t").partition(0).verify().ok
    assert found[0] == found[1]


@pytest.mark.parametrize("call", ["append", "append_many", "sync", "roll", "read a replica", "trim"])
def test_what_needs_the_removed_files_of_a_resting_partition_is_refused(log: CommitLog, call: str) -> None:
    partition = log.create_topic("t").partition(0)
    partition.append_many([b"first", b"second"])
    rest(partition)
    for path in Path(partition.path).glob("*.log"):
        path.unlink()
    with pytest.raises(PartitionFailedError):
        CALLS[call](partition)
    assert partition.failure is not None


def test_an_append_after_another_file_took_the_name_of_a_resting_segment_is_refused(log: CommitLog) -> None:
    partition = log.create_topic("t").partition(0)
    partition.append(b"first")
    rest(partition)
    (path,) = Path(partition.path).glob("*.log")
    contents = path.read_bytes()
    path.rename(path.with_suffix(".kept"))  # so that its inode is not given to the other file
    path.write_bytes(contents)
    with pytest.raises(PartitionFailedError):
        partition.append(b"second")
    assert path.read_bytes() == contents


@pytest.mark.parametrize("hurt", ["removed", "replaced", "cut off"])
def test_a_state_page_that_is_lost_while_a_partition_rests_is_damage(log: CommitLog, hurt: str) -> None:
    partition = log.create_topic("t").partition(0)
    partition.append(b"first")
    page = Path(partition.path) / "state"
    rest(partition)
    contents = page.read_bytes()
    if hurt == "cut off":
        os.truncate(page, 100)
    else:
        page.rename(page.with_suffix(".kept"))
        if hurt == "replaced":
            page.write_bytes(contents)
    with pytest.raises(CorruptionError, match="state"):
        partition.append(b"second")
    assert partition.failure is not None


@pytest.mark.usefixtures("few")
def test_threads_append_to_more_partitions_than_may_be_awake(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        topic = log.create_topic("t", 24)

        def work(worker: int) -> None:
            for number in range(300):
                partition = topic[(number * 7 + worker) % len(topic)]
                if number % 5:
                    partition.append(b"%d" % worker)
                else:
                    partition.append_many([b"%d" % worker] * 3)

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sum(partition.next_offset for partition in topic) == 4 * (240 + 60 * 3)
        assert all(partition.verify().ok for partition in topic)
        found = [value for partition in topic for value in values(partition)]
        assert sorted(set(found)) == [b"0", b"1", b"2", b"3"]
        assert len(found) == 4 * 420


@pytest.mark.usefixtures("few")
def test_readers_of_many_partitions_see_what_a_writer_appends_after_their_pages_were_let_go(
    log: CommitLog, log_path: Path
) -> None:
    with commitlog.open(log_path, mode="r") as reading:
        topic = log.create_topic("t", 30)
        seen = reading.topic("t")
        for turn in range(3):
            for partition in topic:
                partition.append(b"%d" % turn)
            assert [one.next_offset for one in seen] == [turn + 1] * 30
            assert [values(one)[-1] for one in seen] == [b"%d" % turn] * 30
        pages = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("/state")]
        assert len(pages) <= 9 + 9  # the writer's, and the reader's


def test_a_shared_log_still_needs_files_for_every_partition(
    log_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with commitlog.open(log_path, mode="shared") as log:
        monkeypatch.setattr(files, "descriptors_left", lambda: 200)
        with pytest.raises(TooManyOpenFilesError):
            log.create_topic("t", 100)
        assert log.topics() == []


@pytest.mark.parametrize("hurt", ["removed", "emptied"])
@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_an_index_that_is_lost_while_a_partition_rests_is_rebuilt(
    log: CommitLog, hurt: str, suffix: str
) -> None:
    partition = log.create_topic("t", config={"index_interval_bytes": 50}).partition(0)
    for number in range(50):
        partition.append(b"%d" % number)
    rest(partition)
    for path in Path(partition.path).glob(f"*.{suffix}"):
        path.unlink() if hurt == "removed" else os.truncate(path, 0)
    assert partition.append(b"more") == 50
    partition.roll()
    assert [partition.get(offset).value for offset in (0, 25, 50)] == [b"0", b"25", b"more"]
    assert partition.verify().ok


def test_retention_goes_on_where_an_unopened_partition_has_lost_its_segment(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        log.create_topic("t", config={"retention_ms": 1}).append(b"value", timestamp=1)
    with commitlog.open(log_path) as log:
        partition = log.topic("t").partition(0)
        (path,) = Path(partition.path).glob("*.log")
        path.rename(path.with_suffix(".kept"))
        assert partition.apply_retention(1 << 50) == 0
        path.with_suffix(".kept").rename(path)


def test_a_partition_without_records_is_repaired_to_one_without_records(log: CommitLog) -> None:
    partition = log.create_topic("t").partition(0)
    assert partition.repair().salvaged == ()
    assert partition.append(b"first") == 0


def test_a_preallocated_segment_has_its_blocks_after_a_rest(log: CommitLog) -> None:
    config = {"preallocate": True, "segment_bytes": 1 << 20}
    partition = log.create_topic("t", config=config).partition(0)
    partition.append(b"first")
    rest(partition)
    partition.append(b"second")
    assert os.path.getsize(partition.segments[-1].path) == 1 << 20


def test_a_page_that_two_threads_map_at_once_can_be_closed(log: CommitLog) -> None:
    partition = log.create_topic("t").partition(0)
    partition.append(b"first")
    page = partition._state.page
    rest(partition)
    words = page.words
    page._map = files.map_again(page._path, page.inode)  # the other thread's, stored in between
    partition.append(b"second")
    log.close()
    with commitlog.open(log.path) as again:
        assert [report.clean for report in again.recovery] == [True]
    del words


def test_a_reader_whose_page_was_let_go_does_not_follow_another_topic_of_the_same_name(
    log_path: Path,
) -> None:
    """A file system may give the page of the new topic the inode that the old one had."""
    with commitlog.open(log_path) as log, commitlog.open(log_path, mode="r") as reading:
        log.create_topic("t").partition(0).append_many([b"old"] * 20)
        partition = reading.topic("t").partition(0)
        assert partition.next_offset == 20
        source = partition._log_source
        assert source.rest()
        log.delete_topic("t")
        with pytest.raises(UnknownTopicError):
            partition.next_offset  # noqa: B018
        log.create_topic("t").partition(0).append_many([b"new"] * 10)
        source._page.inode = os.stat(Path(partition.path) / "state").st_ino  # type: ignore[union-attr]
        for _ in range(2):
            with pytest.raises(UnknownTopicError):
                values(partition)
        assert values(reading.topic("t").partition(0)) == [b"new"] * 10


def test_a_partition_without_records_whose_file_is_lost_starts_over_elsewhere(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        log.create_topic("t")
    with commitlog.open(log_path) as log:
        partition = log.topic("t").partition(0)
        for path in Path(partition.path).glob("*.log"):
            path.unlink()
        partition.restart_at(7)
        assert partition.append(b"first") == 7


def test_closed_partitions_make_room_for_others(log_path: Path, few: None) -> None:
    with commitlog.open(log_path) as log:
        for turn in range(4):
            topic = log.create_topic("t", 8)
            for partition in topic:
                partition.append(b"%d" % turn)
            log.delete_topic("t")
        last = log.create_topic("last", 8)
        for partition in last:
            partition.append(b"last")
        assert sum(not one._state.writer.resting for one in last) >= 7
