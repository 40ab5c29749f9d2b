"""Whatever is cancelled, and whenever: a call is made whole or not at all, and nothing is left behind."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import commitlog
from commitlog import LogLockedError, aio
from commitlog.aio.watcher import watcher
from commitlog.aio.workers import in_a_worker, whole, workers

from .running import in_a_loop, outcome, until

steps = st.lists(
    st.tuples(
        st.sampled_from(["send", "send all", "append", "append synced", "append many", "follow", "poll"]),
        st.integers(0, 12),  # turns of the loop until it is cancelled
    ),
    min_size=1,
    max_size=30,
)


@given(steps)
def test_nothing_is_lost_doubled_or_left_behind(given_steps: list[tuple[str, int]]) -> None:
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        work_through(Path(folder), given_steps)


@in_a_loop
async def work_through(folder: Path, given_steps: list[tuple[str, int]]) -> None:
    async with aio.open(folder / "log") as log:
        topic = await log.create_topic("t")
        producers = [log.producer(linger_ms=0), log.producer(linger_ms=0, acks="all")]
        following, followed = topic[0].follow(0), list[int]()
        consumer, polled = await log.consumer("t", auto_offset_reset="earliest"), list[int]()
        certain, withdrawn = list[bytes](), list[bytes]()
        for number, (kind, turns) in enumerate(given_steps):
            value = b"%d" % number
            sent: Any = None
            if kind.startswith("send"):
                sent = producers[kind == "send all"].send("t", value)
                task = asyncio.ensure_future(wait_for(sent))
            elif kind == "append many":
                task = asyncio.ensure_future(topic.append_many([value] * 600, keys=[b"k"] * 600))
            elif kind.startswith("append"):
                task = asyncio.ensure_future(topic.append(value, sync=kind == "append synced"))
            elif kind == "follow":
                task = asyncio.ensure_future(anext(following))
            else:
                task = asyncio.ensure_future(consumer.poll(60))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            found = await outcome(task)
            cancelled = isinstance(found, asyncio.CancelledError)
            if kind == "follow":
                followed += [] if cancelled else [found.offset]
            elif kind == "poll":
                polled += [] if cancelled else [one.offset for each in found.values() for one in each]
            elif sent is not None:
                (withdrawn if sent.cancelled() else certain).append(value)
            elif cancelled:
                begun = "It had begun" in "".join(getattr(found, "__notes__", []))
                (certain if begun else withdrawn).append(value)
            else:
                certain.append(value)
        for producer in producers:
            await producer.close()
        stored = [record.value async for record in topic[0].records()]
        assert set(stored) == set(certain)
        assert not set(stored) & set(withdrawn)
        for value in certain:
            assert stored.count(value) in (1, 600)
        while following.offset != len(stored):
            followed.append((await anext(following)).offset)
        while len(polled) < len(stored):
            polled += [one.offset for each in (await consumer.poll(60)).values() for one in each]
        assert followed == polled == list(range(len(stored)))
        await until(lambda: watcher.waiting == 0)


async def wait_for(awaited: Any) -> Any:
    return await awaited


@in_a_loop
async def test_a_cancelled_open_leaves_no_lock_behind(tmp_path: Path) -> None:
    for turns in range(12):
        task = asyncio.ensure_future(wait_for(aio.open(tmp_path / "log")))
        for _ in range(turns):
            await asyncio.sleep(0.0005)
        task.cancel()
        found = await outcome(task)
        if isinstance(found, aio.CommitLog):
            await found.close()
        else:
            assert isinstance(found, asyncio.CancelledError)
        try:
            async with aio.open(tmp_path / "log"):
                pass
        except LogLockedError:
            pytest.fail("the log is still locked")


@in_a_loop
async def test_a_call_that_has_begun_is_made_whole() -> None:
    begin, go_on, done = threading.Event(), threading.Event(), list[int]()

    def work() -> int:
        begin.set()
        go_on.wait(30)
        done.append(1)
        return 77

    task = asyncio.ensure_future(whole(work))
    await until(begin.is_set)
    task.cancel()
    await asyncio.sleep(0.01)
    task.cancel()  # again
    assert not task.done()
    go_on.set()
    error = await outcome(task)
    assert isinstance(error, asyncio.CancelledError)
    assert done == [1]


@in_a_loop
async def test_a_call_that_has_not_begun_is_withdrawn() -> None:
    go_on, made = threading.Event(), list[int]()
    busy = [asyncio.ensure_future(in_a_worker(go_on.wait, 30)) for _ in range(4)]
    await until(lambda: workers.threads == 4 and not workers._idle)
    task = asyncio.ensure_future(whole(made.append, 1))
    await asyncio.sleep(0.01)
    task.cancel()
    assert isinstance(await outcome(task), asyncio.CancelledError)
    go_on.set()
    await asyncio.gather(*busy)
    assert await whole(len, made) == 0


@in_a_loop
async def test_what_a_worker_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        await whole(lambda: 1 / 0)
    with pytest.raises(KeyboardInterrupt):
        await in_a_worker(interrupt)
    assert await in_a_worker(len, "the worker goes on") == 18


def interrupt() -> None:
    raise KeyboardInterrupt


def test_threads_tasks_and_handles_do_not_grow(tmp_path: Path) -> None:
    def handles() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    @in_a_loop
    async def come_and_go(log: commitlog.CommitLog, count: int) -> None:
        partition = aio.Partition(log.topic("t").partition(0))
        for _ in range(count):
            tasks = [asyncio.ensure_future(anext(partition.follow())) for _ in range(50)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert len(asyncio.all_tasks()) == 1
        await until(lambda: watcher.waiting == 0)

    with commitlog.open(tmp_path / "log") as log:
        log.create_topic("t")
        come_and_go(log, 2)
        before = handles(), threading.active_count()
        come_and_go(log, 100)  # 5,000 followers
        assert handles() <= before[0]
        assert threading.active_count() <= before[1]
        assert log.topic("t").partition(0)._state.waiters.count <= 1  # the watcher's, until it ends
