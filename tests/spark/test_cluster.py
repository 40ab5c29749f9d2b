"""Programs on a real cluster, whose executors, workers and drivers are killed in the middle of their work."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import wait_until
from soak import SOAK, count

import commitlog

from .cluster import LOOK_S, OTHER_MACHINE, PATIENCE_S, Cluster, Process, Worker, missing
from .sinks import digest, records

REQUIRED = os.environ.get("COMMITLOG_REQUIRE_NAMESPACES") == "1"
PROGRAMS = Path(__file__).with_name("programs.py")
ROWS = 4_000
KILLS = 8 if SOAK else 1  # of each kind
NO_RETRIES = {"spark.task.maxFailures": "1"}


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
        self._arguments = ("copies", self.log, folder / "checkpoint", self.marks)

    def start(self, **how: Any) -> Process:
        return self._cluster.start(PROGRAMS, *self._arguments, **how)

    def proceed(self, *names: str) -> None:
        """Let tasks go on."""
        for name in names:
            (self.marks / f"{name}.go").touch()

    def seen(self, pattern: str) -> list[Path]:
        """The marks so far."""
        return [path for path in self.marks.glob(pattern) if path.suffix == ""]

    def wait_for(self, pattern: str) -> list[Path]:
        """Wait for a mark."""
        wait_until(lambda: self.seen(pattern), PATIENCE_S, LOOK_S)
        return self.seen(pattern)

    def worker(self, mark: Path) -> Worker:
        """The worker on which the task of a mark runs."""
        executor = json.loads(mark.read_text())["executor"]
        (found,) = (one for one in self._cluster.workers if str(one.folder) in executor)
        return found

    def assert_exactly_once(self) -> None:
        """Both copies have what the source has."""
        source = digest(self.log, "in")
        assert [digest(self.log, topic) for topic in ("batch", "stream")] == [source, source]


@pytest.fixture
def job(cluster: Cluster, tmp_path: Path) -> Iterator[Job]:
    yield Job(cluster, tmp_path)
    for worker in cluster.workers:  # those that a test has left dead
        if not worker.is_alive:
            worker.start()
    cluster.wait()


def succeeded(process: Process) -> str:
    done = process.wait()
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_program_reads_and_writes_on_the_cluster(cluster: Cluster, job: Job) -> None:
    job.proceed("batch", "stream")
    assert succeeded(job.start()) == f"{cluster.master}\n"
    job.assert_exactly_once()
    hosts = {json.loads(mark.read_text())["executor"].split("/app-")[0] for mark in job.seen("batch-*")}
    assert hosts == {str(worker.folder) for worker in cluster.workers}


def test_every_row_is_there_once_if_executors_and_workers_are_killed(cluster: Cluster, job: Job) -> None:
    run = job.start()
    (mark, *_) = job.wait_for("batch-0-*-0")
    job.worker(mark).kill_executor()
    count("processes killed")
    job.proceed("batch")
    (mark, *_) = job.wait_for("stream-1-*-0")
    worker = job.worker(mark)
    worker.kill()  # with its executor, as if the machine had failed
    count("processes killed", 2)
    worker.start()
    job.proceed("stream")
    succeeded(run)
    job.assert_exactly_once()
    assert job.seen("batch-0-*-1")  # a second attempt
    assert job.seen("stream-1-*-1")


def test_every_row_is_there_once_if_the_driver_is_killed_and_started_again(job: Job) -> None:
    for mark, name in (("batch-0-*-0", "batch"), ("stream-1-*-0", "stream")):
        run = job.start()
        job.wait_for(mark)
        run.kill()
        count("processes killed")
        job.proceed(name)
    succeeded(job.start())
    job.assert_exactly_once()


def test_every_row_is_there_once_if_attempts_run_twice(cluster: Cluster, job: Job) -> None:
    conf = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
    }
    succeeded(cluster.start(PROGRAMS, "twice", job.log, job.marks, conf=conf))
    assert digest(job.log, "batch") == digest(job.log, "in")
    attempts = job.seen("end-0-0-*")  # both came to the end of their rows
    assert len({job.worker(attempt) for attempt in attempts}) == 2


def test_every_row_is_there_once_while_executors_come_and_go(cluster: Cluster, job: Job) -> None:
    conf = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.executorIdleTimeout": "1s",
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.dynamicAllocation.schedulerBacklogTimeout": "100ms",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.scheduler.minRegisteredResourcesRatio": "0",
    }
    succeeded(cluster.start(PROGRAMS, "come_and_go", job.log, job.marks, conf=conf))
    job.assert_exactly_once()
    executors = {json.loads(mark.read_text())["executor"] for mark in job.seen("*")}
    assert len(executors) == 4  # two for each copy


@pytest.fixture
def elsewhere(cluster: Cluster) -> Worker:
    """The worker on another machine; skips the test, or fails it where it must run, if there is none."""
    reason = missing()
    if reason is not None and REQUIRED:
        pytest.fail(f"COMMITLOG_REQUIRE_NAMESPACES is set, but {reason}")
    if reason is not None:
        pytest.skip(f"needs mount namespaces: {reason}")
    return cluster.workers[-1]


def test_a_machine_that_has_another_log_or_none_at_the_path_reads_and_writes_nothing(
    cluster: Cluster, elsewhere: Worker, tmp_path: Path
) -> None:
    mounts = [tmp_path / name for name in ("right", "replaced", "missing")]
    right, replaced, lost = (make_log(mount / "log") for mount in mounts)
    other = make_log(tmp_path / "other", ROWS)
    (tmp_path / "empty").mkdir()
    expected = digest(other, "in")
    with elsewhere.finds(other, replaced), elsewhere.finds(tmp_path / "empty", mounts[2]):
        done = cluster.submit(PROGRAMS, "tries", right, replaced, lost, conf=NO_RETRIES)
    assert done.returncode == 0, done.stderr
    fine, wrong, gone = map(json.loads, done.stdout.splitlines())
    assert fine == [ROWS, None]
    with commitlog.open(replaced, mode="r") as log, commitlog.open(other, mode="r") as found:
        ids = log.log_id, found.log_id
    for error in wrong:
        assert f"WrongLogError: {replaced} on host {OTHER_MACHINE} is log {ids[1]}, not {ids[0]}" in error
    for error in gone:
        assert f"PathNotMountedError: {lost} cannot be read on host {OTHER_MACHINE}" in error
    for path in (replaced, lost, other):
        assert sum(map(len, records(path, "batch"))) == 0
    assert digest(other, "in") == expected
