"""Disk first, then memory: after a write that failed nothing has moved, and the file ends where it did."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import commitlog
from commitlog import CommitLogError, DiskFullError, Partition, PartitionFailedError, files, segment_writer

from .disk import FakeDisk
from .logs import (
    MARKER,
    QUIET,
    append_to,
    check_goes_on,
    check_records,
    open_partition,
    segment_files,
    value_of,
    values,
)

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def fail_writes(monkeypatch: pytest.MonkeyPatch, count: int, code: int) -> None:
    """Let writes fail after `count` bytes."""
    real = os.pwrite

    def write_at(fd: int, pieces: Sequence[Any], size: int, position: int) -> None:
        pwrite(fd, b"".join(pieces), position)

    def pwrite(fd: int, data: Any, position: int) -> int:
        real(fd, memoryview(data)[:count], position)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files, "write_at", write_at)
    monkeypatch.setattr(files, "pwrite", pwrite)


APPENDS: dict[str, Callable[[Partition], object]] = {
    "append": lambda partition: partition.append(b"lost"),
    "append_many": lambda partition: partition.append_many([b"lost"] * 50),
    "append_arrow": lambda partition: partition.append_arrow(
        pa.Table.from_batches([pa.record_batch({"value": [b"lost"] * 3})] * 3)
    ),
}


@pytest.mark.parametrize("name", APPENDS)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
@pytest.mark.parametrize("count", [0, 1, 63, 64, 100, 100_000])
def test_a_failed_write_moves_nothing_and_is_rolled_back(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int, count: int
) -> None:
    with commitlog.open(path) as log:
        partition = log.create_topic("t", config=QUIET).partition(0)
        append_to(partition, 5)
        size = segment_files(path)[0].stat().st_size
        with monkeypatch.context() as patch:
            fail_writes(patch, count, code)
            with pytest.raises(OSError, match=r".+") as caught:
                APPENDS[name](partition)
        assert isinstance(caught.value, DiskFullError) == (code != errno.EIO)
        assert (partition.next_offset, partition.size_bytes) == (5, size)
        assert segment_files(path)[0].stat().st_size == size
        check_records(partition, 0, 5)
        with commitlog.open(path, mode="r") as reader:
            check_records(open_partition(reader), 0, 5)
        append_to(partition, 7)
        check_records(partition, 0, 7)
    (path / MARKER).unlink()
    check_goes_on(path)


def test_what_is_rolled_back_is_off_the_disk_before_anything_else_is_appended(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a power cut could bring the last of several batches back, behind what was appended since."""
    with commitlog.open(path) as log:
        partition = log.create_topic("t", config=QUIET).partition(0)
        append_to(partition, 5)
        partition.sync()
        segment = segment_files(path)[0]
        disk = FakeDisk(path)
        with disk.watching(), monkeypatch.context() as patch:
            fail_writes(patch, 100_000, errno.EIO)
            with pytest.raises(OSError, match=r".+"):
                APPENDS["append_arrow"](partition)
            chance = random.Random(1)
            left: list[Any] = [disk.some(chance) for _ in range(50)]
    assert {len(image["t-0"][segment.name]) for image in left} == {segment.stat().st_size}


def test_an_append_that_cannot_be_rolled_back_ends_the_partition(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing_cut(fd: int, size: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with commitlog.open(path) as log:
        partition = log.create_topic("t", config=QUIET).partition(0)
        append_to(partition, 5)
        with monkeypatch.context() as patch:
            fail_writes(patch, 70, errno.ENOSPC)
            patch.setattr(files, "cut", failing_cut)
            with pytest.raises((DiskFullError, PartitionFailedError)):
                partition.append(b"lost")
        assert not log.health().ok
        check_records(partition, 0, 5)
        with pytest.raises(PartitionFailedError):
            partition.append(b"refused")
        assert log.health().failed_partitions[0][0] == "t-0"
    assert not (path / MARKER).exists()
    with commitlog.open(path) as log:
        assert open_partition(log).recovery.bytes_cut == 70
        check_records(open_partition(log), 0, 5)
    check_goes_on(path)


@pytest.mark.parametrize("at_once", [0, 1, 7, 64, 1000])
def test_a_write_that_the_kernel_splits_is_finished(
    path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """A write may take fewer bytes than it was given; the rest is written after them."""
    real_pwrite = os.pwrite

    def short_pwritev(fd: int, pieces: Sequence[Any], position: int, *_: int) -> int:
        return real_pwrite(fd, b"".join(pieces)[:at_once], position) if at_once else 0

    def short_pwrite(fd: int, data: Any, position: int) -> int:
        return real_pwrite(fd, memoryview(data)[: max(at_once, 1)], position)

    with commitlog.open(path) as log:
        partition = log.create_topic("t", config=QUIET).partition(0)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", short_pwritev)
            patch.setattr(os, "pwrite", short_pwrite)
            patch.setattr(files, "pwrite", short_pwrite)
            append_to(partition, 5)
            partition.append_many(values(5, 30))
        check_records(partition, 0, 30)
    check_goes_on(path)


# --- whatever fails while a segment is rolled, or an index grows


CALLS = (
    "write_at", "pwrite", "reserve", "reserve_ahead", "map_tail", "map_writable", "remove", "replace", "cut",
    "link", "map_file", "copy_start",
)  # fmt: skip


class BadCall:
    """Fails the call number `good` + 1 to a function of files.py."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, good: int, code: int) -> None:
        self.calls = 0
        self.good = good
        self.failed = ""
        for name in CALLS:
            monkeypatch.setattr(files, name, self._instead_of(name, getattr(files, name), code))

    def _instead_of(self, name: str, real: Callable[..., Any], code: int) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == self.good + 1:
                self.failed = name
                raise OSError(code, os.strerror(code))
            return real(*args, **kwargs)

        return call


CHANGES: dict[str, Callable[[Partition], object]] = {
    "an append": lambda partition: partition.append(b"x"),
    "an append that rolls": lambda partition: partition.append(b"x" * 350),
    "a roll": lambda partition: partition.roll(),
    "a trim": lambda partition: partition.trim_before(7),
    "a trim of everything": lambda partition: partition.trim_before(10),
    "a truncation": lambda partition: partition.truncate_from(7),
    "a truncation of everything": lambda partition: partition.truncate_from(0),
    "a repair": lambda partition: partition.repair(),
}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("preallocate", [False, True])
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("singles", [256, 1], ids=["written", "mapped"])
@pytest.mark.usefixtures("mapped_tail")
def test_whatever_fails_on_the_way_the_log_is_dense_and_right_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, preallocate: bool, code: int, singles: int
) -> None:
    monkeypatch.setattr(segment_writer, "_SINGLES", singles)
    failed, number = "?", 0
    while failed:
        path = tmp_path / f"log-{number}"
        config = {**QUIET, "segment_bytes": 640, "index_interval_bytes": 0, "preallocate": preallocate}
        with commitlog.open(path) as log:
            partition = log.create_topic("t", config=config).partition(0)
            append_to(partition, 10)
            with monkeypatch.context() as patch:
                disk = BadCall(patch, number, code)
                try:
                    CHANGES[name](partition)
                except (CommitLogError, OSError):
                    assert disk.failed
                failed = disk.failed
            check_dense(partition)
            if partition.failure is None:
                end = partition.next_offset
                assert partition.append(b"small", sync=True) == end
                partition.append(b"y" * 300, sync=True)
                check_dense(partition)
                with commitlog.open(path, mode="r") as reader:
                    assert list(open_partition(reader).records()) == list(partition.records())
            start, records = partition.start_offset, list(partition.records())
        for marker in (True, False):
            if not marker:
                (path / MARKER).unlink(missing_ok=True)
            with commitlog.open(path) as log:
                partition = open_partition(log)
                check_dense(partition)
                assert partition.verify().damage == ()
                if name.startswith(("an append", "a roll")):
                    assert (partition.start_offset, list(partition.records())) == (start, records)
        number += 1
    stored = name == "an append" and singles == 1  # into the map, which asks nothing of the disk
    assert number > 1 or stored


def check_dense(partition: Partition) -> None:
    records = list(partition.records())
    assert [one.offset for one in records] == list(range(partition.start_offset, partition.next_offset))
    for one in records:
        assert one.value == value_of(one.offset) or one.value[:1] in (b"x", b"y", b"s")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_whatever_fails_while_a_log_opens_it_opens_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    failed, number = "?", 0
    while failed:
        path = tmp_path / f"log-{number}"
        with commitlog.open(path) as log:
            config = {**QUIET, "segment_bytes": 512}
            append_to(log.create_topic("t", config=config).partition(0), 10)
        (path / MARKER).unlink()
        with monkeypatch.context() as patch:
            disk = BadCall(patch, number, code)
            try:
                commitlog.open(path).close()
            except (CommitLogError, OSError):
                assert disk.failed
            failed = disk.failed
        with commitlog.open(path) as log:
            check_records(open_partition(log), 0, 10)
            assert open_partition(log).verify().damage == ()
        number += 1
    assert number > 2


def test_an_open_that_fails_leaves_no_clean_marker(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The marker is gone before anything is loaded."""
    with commitlog.open(path) as log:
        append_to(log.create_topic("t", config=QUIET).partition(0), 3)
    assert (path / MARKER).exists()

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(files, "map_writable", broken)
        with pytest.raises(OSError, match="broken"):
            commitlog.open(path)
    assert not (path / MARKER).exists()
    with commitlog.open(path) as log:
        assert not open_partition(log).recovery.clean
        check_records(open_partition(log), 0, 3)


def test_the_clean_marker_is_there_only_while_nobody_writes(path: Path) -> None:
    with commitlog.open(path) as log:
        log.create_topic("t")
        assert not (path / MARKER).exists()
    assert (path / MARKER).exists()
    with commitlog.open(path, mode="r"):
        assert (path / MARKER).exists()
    with commitlog.open(path):
        assert not (path / MARKER).exists()
