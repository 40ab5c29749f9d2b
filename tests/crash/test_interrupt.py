"""Ctrl-C at any moment: what was acknowledged stays, memory and disk stay in step, locks are let go.

Python raises KeyboardInterrupt when a function starts and when a call into C returns (and a system call may
be interrupted before it did anything). These tests raise it at each such moment in turn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import commitlog
from commitlog import CommitLogError, Partition
from commitlog.state import StatePage

from .logs import MARKER, QUIET, append_to, open_partition, value_of

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    # an interrupt while Python lets an object go is reported, not raised
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

_SOURCE = str(Path(commitlog.__file__).parent)
_SYSTEM = ("posix", "mmap", "fcntl")
_LETTING_GO = ("release", "forget", "unlock", "__del__")  # what an interrupt ends in


class Interrupt:
    """Raises KeyboardInterrupt at one moment of what runs under it."""

    def __init__(self, moment: int) -> None:
        self._left = moment
        self.raised = False

    def __enter__(self) -> Interrupt:
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, what: Any) -> None:
        if not frame.f_code.co_filename.startswith(_SOURCE) or frame.f_code.co_name in _LETTING_GO:
            return
        system_call = event == "c_call" and getattr(what, "__module__", None) in _SYSTEM
        if event not in ("call", "c_return") and not system_call:
            return
        self._left -= 1
        if self._left == 0:
            sys.setprofile(None)
            self.raised = True
            raise KeyboardInterrupt


def fill(partition: Partition) -> None:
    append_to(partition, 8)
    partition.sync()
    append_to(partition, 12)


def append_rolling(partition: Partition) -> None:
    partition.append(b"new" * 100)
    partition.append(b"new" * 100)


ACTIONS: dict[str, Callable[[Partition], object]] = {
    "append": lambda partition: partition.append(b"new"),
    "append that rolls": append_rolling,
    "synced append": lambda partition: partition.append(b"new", sync=True),
    "append_many": lambda partition: partition.append_many([b"new"] * 5, keys=[b"k"] * 5),
    "sync": lambda partition: partition.sync(),
}


@pytest.mark.parametrize("name", ACTIONS)
def test_an_interrupted_call_leaves_a_partition_that_works_or_says_why_not(name: str, tmp_path: Path) -> None:
    config = {**QUIET, "segment_bytes": 512, "index_interval_bytes": 0}
    moment = 0
    while True:
        moment += 1
        path = tmp_path / f"log-{moment}"
        log = commitlog.open(path)
        partition = log.create_topic("t", config=config).partition(0)
        fill(partition)
        interrupted = interrupt(partition, ACTIONS[name], moment)
        try:
            acknowledged = go_on(partition)
            check_dense(partition)
            page = StatePage.open(partition.path)
            assert page is not None
            assert page.generation % 2 == 0, "readers do not wait for a change that nobody makes"
            with commitlog.open(path, mode="r") as reader:
                seen = list(open_partition(reader).records())
                assert seen == list(partition.records()) or partition.failure is not None
            records = list(partition.records())
            log.close()
            check_reopened(path, records, acknowledged)
        except BaseException as problem:
            problem.add_note(f"interrupted at moment {moment}; the log is in {path}")
            raise
        if not interrupted:
            break
    assert moment > 5


def interrupt(partition: Partition, action: Callable[[Partition], object], moment: int) -> bool:
    with Interrupt(moment) as interruption:
        try:
            action(partition)
        except KeyboardInterrupt:
            assert interruption.raised
    return interruption.raised


def go_on(partition: Partition) -> dict[int, bytes]:
    """Append more, synced; a partition that refuses must say so in `failure`."""
    acknowledged = {}
    for number in range(3):
        value = b"after %d" % number
        try:
            acknowledged[partition.append(value, sync=True)] = value
        except CommitLogError:
            assert partition.failure is not None
    return acknowledged


def check_dense(partition: Any) -> None:
    records = list(partition.records())
    assert [one.offset for one in records] == list(range(partition.start_offset, partition.next_offset))
    for one in records:
        assert one.value == value_of(one.offset) or one.value.startswith((b"new", b"after"))
    assert partition.durable_offset <= partition.next_offset


def check_reopened(path: Path, records: list[commitlog.Record], acknowledged: dict[int, bytes]) -> None:
    """The log is what it was: after a clean restart, and after one that checks everything."""
    for clean in (True, False):
        if not clean:
            (path / MARKER).unlink(missing_ok=True)
        with commitlog.open(path) as log:
            partition = open_partition(log)
            check_dense(partition)
            assert partition.verify().damage == ()
            if acknowledged:
                assert list(partition.records()) == records
            for offset, value in acknowledged.items():
                assert partition.get(offset).value == value
