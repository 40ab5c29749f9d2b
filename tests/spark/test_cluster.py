"""Programs on a real cluster, whose executors, workers and drivers are killed in the middle of their work."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from statistics import median

import pytest
from soak import SOAK, count

import commitlog

from .cluster import OTHER_MACHINE, Cluster, Worker, processes
from .copying import PROGRAMS, ROWS, Job, Served, executor_of, make_log, succeeded
from .sinks import digest, records

ROUNDS = range(8 if SOAK else 1)
NO_RETRIES = {"spark.task.maxFailures": "1"}
ANYWHERE = {"spark.locality.wait": "0"}  # tasks go to both machines, wherever the data is
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
}
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.scheduler.minRegisteredResourcesRatio": "0",
}


def test_a_program_reads_and_writes_on_the_cluster(cluster: Cluster, job: Job) -> None:
    job.proceed("batch", "stream")
    assert succeeded(job.start()) == f"{cluster.master}\n"
    job.assert_exactly_once()
    hosts = {executor_of(mark).split("/app-")[0] for mark in job.seen("batch-*")}
    assert hosts == {str(worker.folder) for worker in cluster.workers}


@pytest.mark.parametrize("round_", ROUNDS)
def test_every_row_is_there_once_if_executors_and_workers_are_killed(job: Job, round_: int) -> None:
    run = job.start()
    (mark, *_) = job.wait_for("batch-0-*-0")
    job.worker(mark).kill_executor(executor_of(mark))
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


@pytest.mark.parametrize("round_", ROUNDS)
def test_every_row_is_there_once_if_the_driver_is_killed_and_started_again(job: Job, round_: int) -> None:
    for mark, name in (("batch-0-*-0", "batch"), ("stream-1-*-0", "stream")):
        run = job.start()
        job.wait_for(mark)
        run.kill()
        count("processes killed")
        job.proceed(name)
    succeeded(job.start())
    job.assert_exactly_once()


@pytest.mark.parametrize("round_", ROUNDS)
def test_every_row_is_there_once_if_one_process_has_the_log_and_everything_is_killed(
    job: Job, elsewhere: Worker, tmp_path: Path, round_: int
) -> None:
    """Executors send what they write to the process that has the log; the other machine has no log at all."""
    (tmp_path / "empty").mkdir()
    with Served(job.log, tmp_path) as served, elsewhere.finds(tmp_path / "empty", job.log):
        job.arguments = (served.path, *job.arguments[1:])
        run = job.start()
        (mark, *_) = job.wait_for("batch-0-*-0")
        job.worker(mark).kill_executor(executor_of(mark))
        served.kill()
        served.start()
        job.proceed("batch")
        job.wait_for("stream-1-*-0")
        run.kill()
        served.kill()
        count("processes killed", 4)
        served.start()
        job.proceed("stream")
        succeeded(job.start())
    job.assert_exactly_once()
    assert job.seen("batch-0-*-1")
    assert list((job.log / "staging").iterdir()) == []


def test_every_row_is_there_once_if_attempts_run_twice(cluster: Cluster, job: Job) -> None:
    succeeded(cluster.start(PROGRAMS, "twice", job.log, job.marks, conf=SPECULATION))
    assert digest(job.log, "batch") == digest(job.log, "in")
    attempts = job.seen("end-0-0-*")  # both came to the end of their rows
    assert len({job.worker(attempt) for attempt in attempts}) == 2


def test_every_row_is_there_once_while_executors_come_and_go(cluster: Cluster, job: Job) -> None:
    succeeded(cluster.start(PROGRAMS, "come_and_go", job.log, job.marks, conf=DYNAMIC))
    job.assert_exactly_once()
    executors = {executor_of(mark) for mark in job.seen("*")}
    assert len(executors) == 4  # two for each copy


def test_a_machine_that_has_another_log_or_none_at_the_path_reads_and_writes_nothing(
    cluster: Cluster, elsewhere: Worker, tmp_path: Path
) -> None:
    mounts = [tmp_path / name for name in ("right", "replaced", "missing")]
    right, replaced, lost = (make_log(mount / "log") for mount in mounts)
    other = make_log(tmp_path / "other", ROWS)
    (tmp_path / "empty").mkdir()
    expected = digest(other, "in")
    with elsewhere.finds(other, replaced), elsewhere.finds(tmp_path / "empty", mounts[2]):
        done = cluster.submit(PROGRAMS, "tries", right, replaced, lost, conf=NO_RETRIES | ANYWHERE)
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


def largest(sessions: list[int]) -> tuple[int, int]:
    """The most memory, in pages, and the most descriptors that a Python process of Spark has."""
    found = [(0, 0)]
    for pid in (pid for session in sessions for pid in processes(session, "-m\0pyspark.")):
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            found.append((pages, len(os.listdir(f"/proc/{pid}/fd"))))
        except OSError:  # it has just ended
            continue
    memory, handles = zip(*found, strict=True)
    return max(memory), max(handles)


@pytest.mark.skipif(not SOAK, reason="the long form; COMMITLOG_SOAK=1 runs it")
def test_processes_do_not_grow_while_a_stream_copies_eighty_partitions_for_minutes(
    cluster: Cluster, tmp_path: Path
) -> None:
    path, end = tmp_path / "log", tmp_path / "end"
    names = [f"in-{number}" for number in range(20)]
    with commitlog.open(path, mode="shared") as log:
        for name in names:
            log.create_topic(name, partitions=4)
            log.create_topic(f"copy-{name}", partitions=4)
        run = cluster.start(PROGRAMS, "follow", path, tmp_path / "checkpoint", end)
        sessions = [run.pid, *(worker.pid for worker in cluster.workers)]
        seen: list[tuple[int, int]] = []
        finish = time.monotonic() + 300
        while time.monotonic() < finish:
            assert not run.has_ended, run.stderr
            for name in names:
                first = len(seen) * 100
                values = [b"%d" % number for number in range(first, first + 100)]
                log.topic(name).append_many(values, keys=values)
            seen.append(largest(sessions))
            time.sleep(0.5)
        end.touch()
        succeeded(run)
    for name in names:
        assert digest(path, f"copy-{name}") == digest(path, name)
    count("records copied by a stream on a cluster", len(seen) * 100 * len(names))
    third = len(seen) // 3
    for warm, late in zip(
        zip(*seen[third:-third], strict=True), zip(*seen[-third:], strict=True), strict=True
    ):
        assert median(late) <= 1.05 * median(warm)
