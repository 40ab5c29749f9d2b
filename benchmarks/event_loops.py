"""The row of asyncio: idle followers, delivery to followers, sends and iteration, beside the blocking API."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, monotonic_ns, process_time

import engine
from bench import Bench
from limits import child
from report import Group, Line

from commitlog import aio
from commitlog.aio.watcher import watcher

FOLLOWERS, IDLE_FOLLOWERS, TASKS = 30, 1_000, 100
VALUE, KEY = b"v" * 90, b"k" * 10


def event_loops(bench: Bench) -> Iterator[Group]:
    """Everything that the page promises about event loops."""
    lines = []
    with bench.scratch("asyncio") as path:
        lines += idle(path, bench.pick(10.0, 2.0))
    with bench.scratch("asyncio") as path:
        lines += delivery(path, bench.pick(2_000, 200))
    yield Group("asyncio", "followers of a partition in one process", lines)
    lines = []
    for name, kept, target in (("send(), awaited", sends, 0.7), ("for record in consumer", iteration, 0.7)):
        ratios = []
        for _ in range(bench.repeats):
            with bench.scratch("asyncio") as path:
                ratios.append(kept(path, bench.pick(200_000, 40_000)))
        blocking, awaited = (max(one[number] for one in ratios) for number in (0, 1))
        lines += [
            Line(f"{name}: blocking", blocking, "rec/s", 1.0),
            Line(
                f"{name}: asyncio",
                awaited,
                "rec/s",
                awaited / blocking,
                f">= {target}",
                awaited / blocking >= target,
            ),
        ]
    note = f"Sends come from {TASKS} tasks, each of which awaits its record before it sends the next."
    yield Group("asyncio", "records a second, by processor time of the process", lines, note)


def idle(path: Path, seconds: float) -> list[Line]:
    """Let followers wait for a writer in another process, which does nothing."""
    engine.create(path)[0].close()

    async def wait() -> tuple[float, int]:
        async with aio.open(path, mode="r") as log:
            partition = (await log.topic(engine.TOPIC))[0]
            before = set(threading.enumerate())
            tasks = [asyncio.ensure_future(anext(partition.follow())) for _ in range(IDLE_FOLLOWERS)]
            while watcher.waiting < IDLE_FOLLOWERS:
                await asyncio.sleep(0.01)
            start, used = monotonic(), process_time()
            await asyncio.sleep(seconds)
            share = (process_time() - used) / (monotonic() - start)
            threads = len(set(threading.enumerate()) - before)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return share, threads

    writer = child("append-times", path, 0, 0)
    try:
        assert writer.stdout is not None
        writer.stdout.readline()
        share, threads = asyncio.run(wait())
    finally:
        writer.kill()
        writer.wait()
    return [
        Line(f"{IDLE_FOLLOWERS:,} idle followers", 100 * share, "% of a core", None, "< 1 %", share < 0.01),
        Line("their threads", threads, "", None, "1", threads <= 1),
    ]


def delivery(path: Path, count: int) -> list[Line]:
    """Append in another process, a record every five milliseconds; each of the followers gets it."""
    engine.create(path)[0].close()
    taken: list[int] = []

    async def follow(partition: aio.Partition) -> None:
        following = partition.follow(0)
        for _ in range(count):
            record = await anext(following)
            taken.append(monotonic_ns() - int(record.value or b"0"))

    async def run() -> None:
        async with aio.open(path, mode="r") as log, asyncio.TaskGroup() as tasks:
            topic = await log.topic(engine.TOPIC)
            for _ in range(FOLLOWERS):
                tasks.create_task(follow(topic[0]))

    writer = child("append-times", path, count, 5)
    try:
        asyncio.run(run())
    finally:
        writer.kill()
        writer.wait()
    millis = sorted(one / 1e6 for one in taken)
    p50, p99 = millis[len(millis) // 2], millis[len(millis) * 99 // 100]
    return [
        Line(f"from append() elsewhere to {FOLLOWERS} followers, p50", p50, "ms", None, "< 5 ms", p50 < 5),
        Line(f"from append() elsewhere to {FOLLOWERS} followers, p99", p99, "ms", None, "< 20 ms", p99 < 20),
    ]


def sends(path: Path, count: int) -> tuple[float, float]:
    """Return the records a second of send() without waiting, and of awaited sends of many tasks."""
    log, partition = engine.create(path)
    with log:
        used = process_time()
        with log.producer() as producer:
            for _ in range(count):
                producer.send(engine.TOPIC, VALUE, KEY)
        blocking = count / (process_time() - used)

        async def task(producer: aio.Producer, share: int) -> None:
            for _ in range(share):
                await producer.send(engine.TOPIC, VALUE, KEY)

        async def run() -> float:
            used = process_time()
            async with aio.CommitLog(log).producer(linger_ms=0) as producer, asyncio.TaskGroup() as tasks:
                for _ in range(TASKS):
                    tasks.create_task(task(producer, count // TASKS))
            return count / (process_time() - used)

        awaited = asyncio.run(run())
        if partition.next_offset != 2 * count:
            raise AssertionError(f"{partition.next_offset} records, not {2 * count}")
    return blocking, awaited


def iteration(path: Path, count: int) -> tuple[float, float]:
    """Return the records a second of `for record in consumer`, and of `async for`."""
    log, partition = engine.create(path)
    with log:
        for _ in range(0, count, 10_000):
            partition.append_many([VALUE] * 10_000, keys=[KEY] * 10_000)
        settings = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 0}
        used = process_time()
        with log.consumer(engine.TOPIC, **settings) as consumer:
            found = sum(1 for _ in consumer)
        blocking = found / (process_time() - used)

        async def run() -> tuple[int, float]:
            used, found = process_time(), 0
            async with aio.CommitLog(log).consumer(engine.TOPIC, **settings) as consumer:
                async for _ in consumer:
                    found += 1
            return found, found / (process_time() - used)

        found_too, awaited = asyncio.run(run())
        if not found == found_too == partition.next_offset:
            raise AssertionError(f"{found} and {found_too} of {partition.next_offset} records")
    return blocking, awaited
