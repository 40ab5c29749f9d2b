from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers import names, stage

import commitlog
from commitlog import CommitLog, Partition, StagedFile, files
from commitlog.partitions.producer_state import Published
from commitlog.partitions.state import LogState
from commitlog.publishing import staging

# a file of ten batches takes 960 bytes: just enough
CONFIG = {
    "flush_ms": -1,
    "file_delete_delay_ms": 0,
    "segment_bytes": 64 * 960,
    "index_interval_bytes": 100,
}


@pytest.fixture(params=[False, True], ids=["exclusive", "shared"])
def log(
    log_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CommitLog]:
    monkeypatch.setattr(staging, "_TARGET_ROWS", 1)
    with commitlog.open(log_path, mode="shared" if request.param else "w") as opened:
        opened.create_topic("t", config=CONFIG)
        yield opened


def staged_file(log: CommitLog, first: int = 0, count: int = 10, step_ms: int = 1) -> StagedFile:
    """Stage a record a batch; values and timestamps tell their number."""
    with log.stage("t", 0) as writer:
        for number in range(first, first + count):
            times = pa.array([1_000_000 + number * step_ms], pa.int64())
            writer.append(pa.table({"value": [b"%013d" % number], "timestamp": times}))
        return writer.finish()


def partition_of(log: CommitLog) -> Partition:
    found: Partition = log.topic("t").partition(0)
    return found


def inodes(log: CommitLog) -> list[int]:
    return [os.stat(segment.path).st_ino for segment in partition_of(log).segments]


def inode_of(log: CommitLog, staged: StagedFile) -> int:
    return os.stat(f"{log.path}/{staged.path}").st_ino


def check(partition: Any, end: int) -> None:
    """Records are found by offset and by time, in sound files."""
    assert [int(record.value) for record in partition.records()] == list(range(end))
    for number in range(end):
        assert int(partition.get(number).value) == number
        assert partition.offset_for_timestamp(1_000_000 + number) == number
    assert partition.verify().ok


def test_a_large_staged_file_becomes_a_segment_itself(log: CommitLog) -> None:
    partition = partition_of(log)
    partition.append(b"0", timestamp=1_000_000)
    with commitlog.open(log.path, mode="r") as reader:
        check(partition_of(reader), 1)
        staged = [staged_file(log, 1), staged_file(log, 11)]
        expected = [inode_of(log, one) for one in staged]
        assert log.publish("q", 0, staged)
        assert inodes(log)[1:] == expected
        assert [segment.base_offset for segment in partition.segments] == [0, 1, 11]
        assert partition.published == Published(staged[1].file_id, 10, 20)
        assert partition.durable_offset == 21
        check(partition, 21)
        check(partition_of(reader), 21)
        assert names(f"{log.path}/staging") == []
        assert partition.append(b"21", timestamp=1_000_021) == 21
        assert len(partition.segments) == 3, "appends go on in it"
        check(partition_of(reader), 22)
    log.close()
    with commitlog.open(log.path) as again:
        check(partition_of(again), 22)


def test_it_takes_the_place_of_an_empty_segment(log: CommitLog) -> None:
    partition = partition_of(log)
    with commitlog.open(log.path, mode="r") as reader, commitlog.open(log.path, mode="r") as late:
        assert list(partition_of(reader).records()) == []
        staged = staged_file(log)
        expected = inode_of(log, staged)
        assert log.publish("q", 0, [staged])
        assert inodes(log) == [expected]
        for one in (partition, partition_of(reader), partition_of(late)):
            check(one, 10)
        partition.append(b"10", timestamp=1_000_010)
        partition.roll()
        log.publish("q", 1, [staged_file(log, 11)])
        assert [segment.base_offset for segment in partition.segments] == [0, 11]
        check(partition_of(reader), 21)
        assert not [name for name in os.listdir(partition.path) if "adopted" in name]


def test_other_writers_go_on_in_an_adopted_segment(log_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_TARGET_ROWS", 1)
    with commitlog.open(log_path, mode="shared") as one, commitlog.open(log_path, mode="shared") as two:
        one.create_topic("t", config=CONFIG)
        assert partition_of(two).next_offset == 0
        for epoch, log in enumerate((one, two, two, one)):
            first = 11 * epoch
            log.publish("q", epoch, [staged_file(log, first)])
            other = two if log is one else one
            assert partition_of(other).append(b"%d" % (first + 10), timestamp=1_000_010 + first) == first + 10
            check(partition_of(one), first + 11)
            check(partition_of(two), first + 11)


@pytest.mark.parametrize(
    ("change", "count", "step_ms"),
    [({}, 9, 1), ({"segment_bytes": 900}, 10, 1), ({"segment_index_bytes": 160}, 10, 1),
     ({"segment_ms": 8}, 10, 1), ({"preallocate": True}, 10, 1)],
    ids=["small", "large", "more than the index takes", "of too long a time", "preallocated"],
)  # fmt: skip
def test_what_would_be_no_good_segment_is_copied(
    log: CommitLog, change: dict[str, Any], count: int, step_ms: int
) -> None:
    log.topic("t").alter_config(**change)
    staged = staged_file(log, 0, count, step_ms)
    inode = inode_of(log, staged)
    assert log.publish("q", 0, [staged])
    assert inode not in inodes(log)
    check(partition_of(log), count)


def test_what_has_other_names_or_was_appended_to_is_copied(log: CommitLog, tmp_path: Path) -> None:
    staged = [staged_file(log), staged_file(log, 10)]
    os.link(f"{log.path}/{staged[0].path}", tmp_path / "kept")
    with open(f"{log.path}/{staged[1].path}", "ab") as file:
        file.write(bytes(100))
    before = (tmp_path / "kept").read_bytes()
    found = [inode_of(log, one) for one in staged]
    assert log.publish("q", 0, staged)
    assert not set(found) & set(inodes(log))
    assert (tmp_path / "kept").read_bytes() == before
    check(partition_of(log), 20)


@pytest.mark.parametrize(("name", "error"), [("link", errno.EPERM), ("link", errno.EXDEV)])
def test_where_a_file_cannot_have_two_names_it_is_copied(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch, name: str, error: int
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(error, "refused")

    monkeypatch.setattr(files, name, refuse)
    assert log.publish("q", 0, [staged_file(log)])
    check(partition_of(log), 10)


@pytest.mark.parametrize("moves", [1, 2, 9])
def test_a_file_is_stamped_again_if_others_append_meanwhile_and_copied_if_they_go_on(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    partition, left, real = partition_of(log), iter(range(moves)), files.sync_data

    def sync(fd: int) -> None:
        real(fd)
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".staged") and next(left, None) is not None:
            partition.append(b"other")

    staged = staged_file(log)
    inode = inode_of(log, staged)
    monkeypatch.setattr(files, "sync_data", sync)
    assert log.publish("q", 0, [staged])
    assert (inode in inodes(log)) == (moves < 3)
    values = [record.value for record in partition.records()]
    assert values == [b"other"] * min(moves, 3) + [b"%013d" % number for number in range(10)]
    assert partition.verify().ok


def test_stamps_are_durable_before_the_file_is_a_segment_and_no_append_waits_for_that(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    partition, real_sync, real_link, real_write = (
        partition_of(log),
        files.sync_data,
        files.link,
        files.write_at,
    )

    def place(fd: int) -> str:
        return os.path.splitext(os.readlink(f"/proc/self/fd/{fd}"))[1]

    def sync(fd: int) -> None:
        events.append(f"sync {place(fd)}")
        assert not partition._state.lock.locked()
        real_sync(fd)

    def write(fd: int, *rest: Any) -> None:
        events.append(f"write {place(fd)}")
        real_write(fd, *rest)

    def link(path: str, other: str) -> None:
        events.append("link")
        real_link(path, other)

    staged = staged_file(log)
    log.publish("other", 0, [])
    with monkeypatch.context() as patch:
        for name, wrapped in (("sync_data", sync), ("link", link), ("write_at", write)):
            patch.setattr(files, name, wrapped)
        log.publish("q", 0, [staged])
    linked = events.index("link")
    assert [event for event in events[:linked] if "staged" in event] == ["write .staged"] * 10 + [
        "sync .staged"
    ]
    assert not [event for event in events[linked:] if "staged" in event]


def test_a_segment_without_records_never_cuts_a_staged_file_that_has_its_name(
    log_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C came when the file was in place, before anybody was told, and once more as that was undone."""
    monkeypatch.setattr(staging, "_TARGET_ROWS", 1)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with commitlog.open(log_path, mode="shared") as one, commitlog.open(log_path, mode="shared") as two:
        one.create_topic("t", config=CONFIG)
        assert one.publish("other", 0, [])
        staged = staged_file(one)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(LogState, "publish_layout", interrupted)
            one.publish("q", 0, [staged])
        partition_of(two).append(b"other")
        assert (log_path / staged.path).stat().st_size == staged.size_bytes
        assert two.publish("other", 1, [])
        values = [record.value for record in partition_of(two).records()]
        assert values == [b"other", *(b"%013d" % number for number in range(10))]
    with commitlog.open(log_path) as log:
        assert partition_of(log).next_offset == 11
        assert partition_of(log).verify().ok


def test_a_published_file_that_is_gone_is_no_damage_where_all_of_it_is_there(log: CommitLog) -> None:
    staged = staged_file(log)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Partition, "sync", lambda self: (_ for _ in ()).throw(OSError(errno.ENOSPC, "no room")))
        with pytest.raises(commitlog.errors.UnfinishedPublicationError):
            log.publish("q", 0, [staged])
    os.unlink(f"{log.path}/{staged.path}")
    assert log.publish("q", 1, [])
    check(partition_of(log), 10)


def test_what_was_staged_stays_when_the_adopted_segment_is_truncated(log: CommitLog) -> None:
    staged = [staged_file(log), stage(log, "t", 0, [b"%013d" % 10])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Partition, "sync", lambda self: (_ for _ in ()).throw(OSError(errno.ENOSPC, "no room")))
        with pytest.raises(commitlog.errors.UnfinishedPublicationError):
            log.publish("q", 0, staged)
    partition_of(log).truncate_from(0)
    assert log.publish("q", 1, [])
    assert [int(record.value) for record in partition_of(log).records()] == list(range(11))
    assert partition_of(log).verify().ok
