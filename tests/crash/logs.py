"""Logs for the crash tests, and ways to hurt them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commitlog
from commitlog import CommitLog, LogConfig, Partition

QUIET = {"flush_ms": -1}  # nothing is synced but by the test
MARKER = "clean-shutdown"

Damage = Callable[[Path], None]


def value_of(offset: int) -> bytes:
    """The value of every record in these tests tells its offset, and has one of many sizes."""
    return b"<%d>" % offset * (1 + offset % 5)


def values(start: int, end: int) -> list[bytes]:
    return [value_of(offset) for offset in range(start, end)]


def append_to(partition: Partition, end: int, *, sync: bool = False) -> None:
    """Append single records until next_offset is `end`."""
    for offset in range(partition.next_offset, end):
        assert partition.append(value_of(offset), sync=sync) == offset


def check_records(partition: Any, start: int, end: int) -> None:
    """The partition holds exactly [start, end), each record as it was appended."""
    assert (partition.start_offset, partition.next_offset) == (start, end)
    assert [(one.offset, one.value) for one in partition.records()] == [
        (offset, value_of(offset)) for offset in range(start, end)
    ]


def check_goes_on(path: Path) -> None:
    """Appends go on where the log ends, and survive a clean restart and an unclean one."""
    with commitlog.open(path) as log:
        partition = log.topic("t").partition(0)
        start, end = partition.start_offset, partition.next_offset
        append_to(partition, end + 2)
        copy_of_crashed = path.with_name(path.name + "-crashed")
        shutil.copytree(path, copy_of_crashed)
    for one in (path, copy_of_crashed):
        with commitlog.open(one) as log:
            check_records(log.topic("t").partition(0), start, end + 2)
            assert log.topic("t").partition(0).verify().damage == ()
    shutil.rmtree(copy_of_crashed)


def open_partition(log: CommitLog) -> Partition:
    partition: Partition = log.topic("t").partition(0)
    return partition


def crash(log: CommitLog, to: Path) -> Path:
    """Copy the files of an open log, as a kill would leave them; the log itself is closed."""
    shutil.copytree(log.path, to)
    log.close()
    return to


def segment_files(path: Path) -> list[Path]:
    return sorted((path / "t-0").glob("*.log"))


def mode(name: str) -> LogConfig:
    return LogConfig(recovery_mode=name)  # type: ignore[arg-type]


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def cut(position: int) -> Damage:
    """The file ends at `position`."""
    return lambda path: os.truncate(path, position)


def zeros_from(position: int) -> Damage:
    """The file has its length, but nothing from `position` on."""
    return lambda path: overwrite(path, position, bytes(path.stat().st_size - position))


def garbage_from(position: int) -> Damage:
    """Something else from `position` on: the same bytes each time, and no byte stays as it was."""

    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        for place in range(position, len(data)):
            data[place] ^= 1 + (place * 37) % 255
        path.write_bytes(data)

    return damage


def flipped(position: int, bit: int) -> Damage:
    """One bit is wrong."""
    return lambda path: overwrite(path, position, bytes([path.read_bytes()[position] ^ (1 << bit)]))
