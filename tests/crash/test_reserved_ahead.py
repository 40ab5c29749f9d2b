"""Blocks reserved ahead of small appends that are synced: what a kill, a power cut or a full disk leaves."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest
from soak import SOAK, count

import commitlog
from commitlog import CommitLog, Partition, files, segment_writer

from .disk import FakeDisk, write_image
from .logs import (
    QUIET,
    append_to,
    check_goes_on,
    check_records,
    crash,
    mode,
    open_partition,
    segment_files,
    value_of,
)

pytestmark = pytest.mark.usefixtures("quick_disk")

END = segment_writer._SYNCS + 10


def synced(log: CommitLog, end: int = END, **config: object) -> Partition:
    """A partition of records, each of which was synced."""
    partition = log.create_topic("t", config={**QUIET, **config}).partition(0)
    append_synced(partition, end)
    return partition


def append_synced(partition: Partition, end: int) -> None:
    for number in range(partition.next_offset, end):
        partition.append(value_of(number), sync=True)


def file_size(path: Path) -> int:
    return segment_files(path)[0].stat().st_size


def test_blocks_are_reserved_after_some_small_syncs_and_given_back_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with commitlog.open(path) as log:
        partition = synced(log, segment_writer._SYNCS - 1)
        assert file_size(path) == partition.size_bytes
        append_synced(partition, END)
        assert file_size(path) > partition.size_bytes + 4096
        check_records(partition, 0, END)
    assert file_size(path) == partition.size_bytes
    check_goes_on(path)


def test_large_syncs_reserve_nothing(tmp_path: Path) -> None:
    with commitlog.open(tmp_path / "log") as log:
        partition = log.create_topic("t", config=QUIET).partition(0)
        for _ in range(2 * segment_writer._SYNCS):
            partition.append(bytes(segment_writer._OFTEN_BYTES), sync=True)
        assert file_size(tmp_path / "log") == partition.size_bytes


def test_a_small_segment_is_never_longer_than_its_limit(tmp_path: Path) -> None:
    with commitlog.open(tmp_path / "log") as log:
        partition = synced(log, 200, segment_bytes=3_000)
        assert max(one.stat().st_size for one in segment_files(tmp_path / "log")) <= 3_000
        assert len(partition.segments) > 5
        check_records(partition, 0, 200)


@pytest.mark.parametrize("name", ["cut", "absolute", "salvage"])
def test_a_kill_leaves_no_torn_tail(tmp_path: Path, name: str) -> None:
    log = commitlog.open(tmp_path / "log")
    partition = synced(log)
    path = crash(log, tmp_path / "killed")
    assert file_size(path) > partition.size_bytes
    with commitlog.open(path, config=mode(name)) as log:
        assert open_partition(log).recovery.bytes_cut == 0
        check_records(open_partition(log), 0, END)
        append_synced(open_partition(log), 2 * END)
        check_records(open_partition(log), 0, 2 * END)


@pytest.mark.parametrize("seed", range(500 if SOAK else 20))
def test_a_power_cut_takes_nothing_that_was_synced(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    path = tmp_path / "log"
    with commitlog.open(path) as log:
        partition = synced(log, segment_writer._SYNCS - 3)
        disk = FakeDisk(path)
        with disk.watching():
            append_synced(partition, END)
            acknowledged = partition.next_offset
            append_to(partition, acknowledged + chance.randint(0, 5))
            image = disk.some(chance)
    write_image(image, tmp_path / "cut")
    count("power-cut images opened")
    with commitlog.open(tmp_path / "cut") as log:
        found = open_partition(log)
        assert found.next_offset >= acknowledged
        check_records(found, 0, found.next_offset)
        append_synced(found, 3 * END)
        check_records(found, 0, 3 * END)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EOPNOTSUPP])
def test_without_room_to_reserve_appends_go_on_and_nobody_asks_again_before_the_roll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    asked: list[int] = []

    def refuse(fd: int, start: int, end: int) -> None:
        asked.append(start)
        raise OSError(code, os.strerror(code))

    with commitlog.open(tmp_path / "log") as log:
        with monkeypatch.context() as patch:
            patch.setattr(files, "reserve_ahead", refuse)
            partition = synced(log)
            assert len(asked) == 1
            partition.roll()
            append_synced(partition, 2 * END)
            assert len(asked) == 2
        check_records(partition, 0, 2 * END)


def test_a_log_that_is_shared_reserves_nothing(tmp_path: Path) -> None:
    """Another process may seal the file, and does not know of blocks behind the last record."""
    with commitlog.open(tmp_path / "log", mode="shared") as log:
        partition = synced(log)
        assert file_size(tmp_path / "log") == partition.size_bytes


def test_where_blocks_are_not_overwritten_in_place_nothing_is_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_file_system", lambda device: "btrfs")
    with commitlog.open(tmp_path / "log") as log:
        partition = synced(log)
        assert file_size(tmp_path / "log") == partition.size_bytes


def test_a_failed_append_after_a_reservation_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    with commitlog.open(path) as log:
        partition = synced(log)
        real = files.pwrite

        def half(fd: int, data: bytes, position: int) -> int:
            real(fd, data[: len(data) // 2], position)
            raise OSError(errno.EIO, "broken")

        with monkeypatch.context() as patch:
            patch.setattr(files, "pwrite", half)
            with pytest.raises(OSError, match="broken"):
                partition.append(b"never acknowledged")
        assert file_size(path) == partition.size_bytes
        append_synced(partition, 2 * END)
        check_records(partition, 0, 2 * END)
    check_goes_on(path)
