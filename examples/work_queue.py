"""A work queue: jobs in a topic, workers in a consumer group. One worker is killed in the middle of a job.

Workers are processes that open the same directory; no process hands out jobs. Each partition belongs to one
worker at a time. A worker without heartbeats loses its partitions to the others, which continue at its
committed offsets. A job may then be done twice, so its result is stored under its name: the second result
replaces the first.

    python examples/work_queue.py
"""

import contextlib
import multiprocessing
import os
import signal
import tempfile
import time

import commitlog

JOBS = 400
WORKERS = 4


def work(path: str, number: int, killed_at: int | None) -> None:
    """Take jobs until all are done; do each first, then commit."""
    with (
        commitlog.open(path, mode="shared") as log,
        log.consumer(
            "jobs",
            group_id="workers",
            client_id=f"worker-{number}",
            enable_auto_commit=False,
            max_poll_records=10,
            session_timeout_ms=3_000,
            heartbeat_interval_ms=200,
        ) as consumer,
    ):
        results, done = log.topic("results"), 0
        while len(results.latest()) < JOBS:
            for partition, records in consumer.poll(timeout=0.1).items():
                for record in records:
                    if done == killed_at:
                        os.kill(os.getpid(), signal.SIGKILL)
                    results.append(b"%d by worker %d" % (int(record.value) ** 2, number), key=record.key)
                    done += 1
                with contextlib.suppress(commitlog.errors.CommitFailedError):  # another worker took over
                    consumer.commit({partition: records[-1].offset + 1})


def wait_for_workers(log: commitlog.CommitLog) -> None:
    """Wait until all workers have joined and share the partitions."""
    while "workers" not in log.groups():
        time.sleep(0.02)
    group = log.describe_group("workers")
    while group.state != "Stable" or sum(bool(one.partitions) for one in group.members) < WORKERS:
        time.sleep(0.02)
        group = log.describe_group("workers")
    print(f"{len(group.members)} workers, {len(group.members[0].partitions)} partitions each")


def main(path: str) -> None:
    with commitlog.open(path, mode="shared") as log:
        log.create_topic("results", config={"cleanup_policy": "compact"})
        jobs = log.create_topic("jobs", partitions=8)
        spawn = multiprocessing.get_context("spawn")
        workers = [
            spawn.Process(target=work, args=(path, number, 25 if number == 1 else None))
            for number in range(WORKERS)
        ]
        for worker in workers:
            worker.start()
        wait_for_workers(log)
        numbers = range(JOBS)
        jobs.append_many([b"%d" % one for one in numbers], keys=[b"job-%d" % one for one in numbers])
        for worker in workers:
            worker.join()
        ends = [signal.Signals(-one.exitcode).name if one.exitcode else "done" for one in workers]
        print("they ended:", ", ".join(ends))

        results = log.topic("results").latest()
        right = sum(results[b"job-%d" % one].startswith(b"%d by" % one**2) for one in numbers)
        lag = sum(one.lag for one in log.describe_group("workers").partitions)
        print(f"{JOBS} jobs, {right} right results, {lag} left in the queue")
        twice = log.topic("results").partition(0).next_offset - JOBS
        print(f"{twice} were done twice: they were not committed when the worker was killed")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="commitlog-") as directory:
        main(directory)
