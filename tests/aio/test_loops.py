"""Other event loops, signals and forks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import commitlog
from commitlog import aio
from commitlog.aio.watcher import watcher
from commitlog.aio.workers import Workers, workers
from commitlog.errors import ForkedError

from .running import outcome, until

FOLLOW_UNTIL_TERMINATED = """
import asyncio, signal, sys
from commitlog import aio
from commitlog.aio.watcher import watcher

async def follow(partition):
    async for record in partition.follow():
        pass

async def main():
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    async with aio.open(sys.argv[1]) as log:
        topic = await log.create_topic("t", exists_ok=True)
        consumer = await log.consumer("t", group_id="g")
        producer = log.producer(linger_ms=60_000)
        producer.send("t", b"held")
        async with asyncio.TaskGroup() as group:
            for _ in range(100):
                group.create_task(follow(topic[0]))
            group.create_task(consumer.poll(600))
            while watcher.waiting < 100:
                await asyncio.sleep(0.001)
            print("ready", flush=True)

try:
    asyncio.run(main())
except asyncio.CancelledError:
    print("cancelled", flush=True)
"""


def test_a_signal_ends_a_loop_with_open_followers(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", FOLLOW_UNTIL_TERMINATED, str(tmp_path / "log")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGTERM)
        out, problem = child.communicate(timeout=30)
    finally:
        child.kill()
        child.wait()
    assert (out, problem, child.returncode) == ("cancelled\n", "", 0)
    with commitlog.open(tmp_path / "log") as log:
        assert [one.clean for one in log.recovery if one.partition == "t-0"] == [True]
        assert [record.value for record in log.topic("t").records()] == [b"held"]


def test_a_program_that_ends_without_closing_anything_ends(tmp_path: Path) -> None:
    program = FOLLOW_UNTIL_TERMINATED.replace('print("ready", flush=True)', "sys.exit(3)")
    program = program.replace(
        "async with aio.open(sys.argv[1]) as log:", "if log := await aio.open(sys.argv[1]):"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "log")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    with commitlog.open(tmp_path / "log") as log:
        assert [record.value for record in log.topic("t").records()] == [b"held"]


def test_uvloop(tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
        async with aio.open(tmp_path / "log") as log:
            topic = await log.create_topic("t")
            following = topic[0].follow()
            producer = log.producer(linger_ms=0)
            for number in range(100):
                found = asyncio.ensure_future(anext(following))
                await producer.send("t", b"%d" % number)
                assert (await found).value == b"%d" % number
            async with log.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
                assert sum([len(records) for records in (await consumer.poll(30)).values()]) == 100
                await consumer.commit()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_a_forked_child_has_a_watcher_and_workers_of_its_own(tmp_path: Path) -> None:
    async def follow() -> bytes | None:
        async with aio.open(tmp_path / "log", mode="shared") as log:
            topic = await log.create_topic("t", exists_ok=True)
            found = asyncio.ensure_future(anext(topic[0].follow()))
            while watcher.waiting == 0:
                await asyncio.sleep(0.001)
            await topic.append(b"news")
            return (await found).value

    assert asyncio.run(follow()) == b"news"
    child = os.fork()
    if child == 0:
        fine = False
        try:
            assert workers.threads == 0
            fine = asyncio.run(follow()) == b"news"
        finally:
            os._exit(0 if fine else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_forked_child_may_use_workers_that_were_made_before(tmp_path: Path) -> None:
    some = Workers(2)
    with commitlog.open(tmp_path / "log") as log:
        partition = log.create_topic("t").partition(0)

        async def use() -> int:
            async with asyncio.timeout(30):
                return await some.in_a_worker(len, "abc")

        async def follow() -> object:
            async with asyncio.timeout(30):
                return await outcome(anext(aio.Partition(partition).follow(0)))

        assert asyncio.run(use()) == 3
        asyncio.run(until(lambda: some._idle == 1))
        child = os.fork()
        if child == 0:
            fine = False
            try:
                # what belongs to the parent is refused, and nothing waits for the parent's threads
                fine = asyncio.run(use()) == 3 and isinstance(asyncio.run(follow()), ForkedError)
            finally:
                os._exit(0 if fine else 1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0


def test_loops_of_several_threads_send_and_consume_at_the_same_time(tmp_path: Path) -> None:
    with commitlog.open(tmp_path / "log") as log:
        log.create_topic("t", partitions=2)
        found: list[int] = []

        async def work(number: int) -> None:
            shared = aio.CommitLog(log)
            async with shared.producer(linger_ms=0) as producer, asyncio.TaskGroup() as group:
                for _ in range(50):
                    group.create_task(send(producer, number))
            async with shared.consumer("t", auto_offset_reset="earliest") as consumer:
                count = 0
                while count < 200:
                    count += sum(len(records) for records in (await consumer.poll(30)).values())
                found.append(count)

        async def send(producer: aio.Producer, number: int) -> None:
            await producer.send("t", b"v", partition=number % 2)

        threads = [threading.Thread(target=lambda n=n: asyncio.run(work(n))) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert found == [200] * 4
