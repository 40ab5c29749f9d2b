"""A job on a cluster that copies a topic twice, and tells a test what its tasks do."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Self

from helpers import wait_until

import commitlog

from .cluster import LOOK_S, PATIENCE_S, Cluster, Process, Worker
from .sinks import digest

PROGRAMS = Path(__file__).with_name("programs.py")
ROWS = 4_000


def make_log(path: Path, first: int = 0) -> Path:
    """A log with rows in the four partitions of "in", and two empty topics for copies of them."""
    with commitlog.open(path) as log:
        numbers = range(first, first + ROWS)
        log.create_topic("in", partitions=4).append_many(
            [b"value %d" % number for number in numbers], keys=[b"key %d" % number for number in numbers]
        )
        for name in ("batch", "stream"):
            log.create_topic(name, partitions=4)
    return path


class Job:
    """A program that copies "in" to "batch" and then to "stream", and the marks of its tasks."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        self.log = make_log(folder / "log")
        self.marks = folder / "marks"
        self.marks.mkdir()
        self.arguments: tuple[object, ...] = (self.log, folder / "checkpoint", self.marks)
        self.run: Process | None = None

    def start(self, **how: Any) -> Process:
        self.run = self._cluster.start(PROGRAMS, "copies", *self.arguments, **how)
        return self.run

    def proceed(self, *names: str) -> None:
        """Let tasks go on."""
        for name in names:
            (self.marks / f"{name}.go").touch()

    def seen(self, pattern: str) -> list[Path]:
        """The marks so far."""
        return [path for path in self.marks.glob(pattern) if path.suffix == ""]

    def wait_for(self, pattern: str) -> list[Path]:
        """Wait for a mark of the program that runs."""

        def look() -> list[Path]:
            found = self.seen(pattern)
            assert found or not self.run.has_ended, self.run.stderr
            return found

        wait_until(look, PATIENCE_S, LOOK_S)
        return self.seen(pattern)

    def worker(self, mark: Path) -> Worker:
        """The worker on which the task of a mark runs."""
        (found,) = (one for one in self._cluster.workers if str(one.folder) in executor_of(mark))
        return found

    def assert_exactly_once(self) -> None:
        """Both copies have what the source has."""
        source = digest(self.log, "in")
        assert [digest(self.log, topic) for topic in ("batch", "stream")] == [source, source]


class Served:
    """A process that has a log for others: `commitlog serve`, always at the same port."""

    def __init__(self, log: Path, folder: Path) -> None:
        self._log, self._folder, self._port, self._starts = log, folder, 0, 0
        self.path = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, again after a kill."""
        self._starts += 1
        command = [
            sys.executable,
            "-m",
            "commitlog",
            "serve",
            str(self._log),
            "--json",
            "--port",
            str(self._port),
        ]
        self._process = Process(command, os.environ, self._folder / f"served-{self._starts}")
        wait_until(lambda: self._process.stdout or self._process.has_ended, PATIENCE_S, LOOK_S)
        assert not self._process.has_ended, self._process.stderr
        address = json.loads(self._process.stdout)["address"]
        self.path, self._port = f"commitlog://{address}", int(address.rpartition(":")[2])

    def kill(self) -> None:
        """Kill it in the middle of whatever it does."""
        self._process.kill()


def executor_of(mark: Path) -> str:
    """The folder of the executor that left a mark."""
    return json.loads(mark.read_text())["executor"]


def succeeded(process: Process) -> str:
    done = process.wait()
    assert done.returncode == 0, done.stderr
    return done.stdout
