"""`commitlog top`."""

from __future__ import annotations

import json
import os
import pty
import signal
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path

import pytest
from helpers import wait_until

import commitlog
from cli.rig import PROGRAM, call, environment, ok, ok_json, piped
from commitlog import CommitLog, TopicPartition
from commitlog.cli.top import Watcher


@pytest.fixture
def orders(log: CommitLog) -> commitlog.Partition:
    """A partition that this process writes while others look."""
    partition: commitlog.Partition = log.create_topic("orders").partition(0)
    partition.append_many([b"x" * 100] * 50)
    log.commit_offsets("billing", {TopicPartition("orders", 0): 10})
    return partition


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_rates_are_those_between_two_looks(log: CommitLog, orders: commitlog.Partition) -> None:
    clock = Clock()
    with commitlog.open(log.path, mode="r") as reading:
        watcher = Watcher(reading, clock)
        (first,) = watcher.look().partitions
        assert (first.records_per_second, first.bytes_per_second) == (0, 0)
        before = orders.size_bytes
        orders.append_many([b"x" * 100] * 30)
        log.commit_offsets("billing", {TopicPartition("orders", 0): 50})
        clock.now = 2.0
        view = watcher.look()
    (row,), (group,) = view.partitions, view.groups
    assert (row.start_offset, row.high_watermark, row.size_bytes) == (0, 80, orders.size_bytes)
    assert (row.records_per_second, row.bytes_per_second) == (15, (orders.size_bytes - before) / 2)
    assert (group.committed, group.lag, group.records_per_second) == (50, 30, 20)


def test_a_log_that_shrinks_has_no_negative_rates(log: CommitLog, orders: commitlog.Partition) -> None:
    clock = Clock()
    watcher = Watcher(log, clock)
    watcher.look()
    orders.truncate_from(20)
    log.reset_offsets("billing", "earliest")
    clock.now = 1.0
    view = watcher.look()
    assert view.partitions[0].records_per_second == view.groups[0].records_per_second == 0
    log.delete_topic("orders")
    log.create_topic("new")
    clock.now = 2.0
    assert [row.topic for row in watcher.look().partitions] == ["new"]


def test_without_a_terminal_it_is_one_look(log: CommitLog, orders: commitlog.Partition) -> None:
    lines = ok("top", log.path, "--interval", 0.05).splitlines()
    assert lines[0].split() == [
        "topic",
        "partition",
        "start",
        "end",
        "stable",
        "records/s",
        "bytes/s",
        "segments",
        "bytes",
    ]
    assert lines[1].split()[:5] == ["orders", "0", "0", "50", "50"]
    assert lines[4].split()[:7] == ["billing", "Empty", "0", "orders", "0", "10", "40"]
    found = ok_json("top", log.path, "--interval", 0.05)
    assert found["groups"][0]["lag"] == 40
    assert [row["topic"] for row in found["partitions"]] == ["orders"]
    done = piped("top", log.path, "--interval", 0.05, "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["partitions"][0]["high_watermark"] == 50


def test_a_directory_without_a_log_is_one_sentence(tmp_path: Path) -> None:
    refused = call("top", tmp_path / "nothing")
    assert refused.exit_code == 1
    assert "is not a log" in refused.stderr or "does not exist" in refused.stderr


class Screen:
    """A terminal on which top runs, and what it has shown so far."""

    def __init__(self, pid: int, terminal: int) -> None:
        self.pid, self.terminal = pid, terminal
        self.seen = ""

    def shows(self, text: str) -> bool:
        self.seen += os.read(self.terminal, 1 << 16).decode()
        return text in self.seen

    def exit_code(self) -> int:
        with pytest.raises(OSError, match="Input/output"):
            while True:
                self.seen += os.read(self.terminal, 1 << 16).decode()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@contextmanager
def running(*arguments: str) -> Iterator[Screen]:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(PROGRAM[0], [*PROGRAM, *arguments], environment(TERM="xterm-256color"))
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    try:
        yield Screen(pid, terminal)
    finally:
        os.close(terminal)


def test_on_a_terminal_it_goes_on_until_q(log: CommitLog, orders: commitlog.Partition) -> None:
    with running("top", log.path, "--interval", "0.05") as screen:
        wait_until(lambda: screen.shows("billing"))
        assert "q quits" in screen.seen
        orders.append_many([b"x"] * 4_950)
        wait_until(lambda: screen.shows("5,000"))
        log.create_topic("another")
        wait_until(lambda: screen.shows("another"))
        os.write(screen.terminal, b"xq")
        assert screen.exit_code() == 0
    assert screen.seen.index("\x1b[?1049h") < screen.seen.index("\x1b[?1049l")  # the old screen is back


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_ctrl_c_and_a_signal_leave_the_terminal_as_it_was(
    log: CommitLog, orders: commitlog.Partition, number: int, code: int
) -> None:
    with running("top", log.path, "--interval", "0.05") as screen:
        before = termios.tcgetattr(screen.terminal)[3]
        wait_until(lambda: screen.shows("orders"))
        if number == signal.SIGINT:
            os.write(screen.terminal, b"\x03")
        else:
            os.kill(screen.pid, number)
        wait_until(lambda: screen.shows("\x1b[?1049l"))
        wait_until(lambda: termios.tcgetattr(screen.terminal)[3] == before)
        assert screen.exit_code() == code
