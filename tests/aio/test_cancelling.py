"""Whatever is cancelled, and whenever: a call is made whole or not at all, and nothing is left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import commitlog
from commitlog import LogLockedError, aio
from commitlog.aio.watcher import watcher
from commitlog.aio.workers import Workers, in_a_worker, whole, workers
from commitlog.errors import BufferFullError

from .running import in_a_loop, outcome, until

steps = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "send",
                "send all",
                "send into a small buffer",
                "append",
                "append synced",
                "append many",
                "follow",
                "poll",
            ]
        ),
        st.integers(0, 12),  # turns of the loop until it is cancelled
    ),
    min_size=1,
    max_size=30,
)


@given(steps)
def test_nothing_is_lost_doubled_or_left_behind(given_steps: list[tuple[str, int]]) -> None:
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        work_through(Path(folder), given_steps)


class Work:
    """A log that is written and read by calls which are cancelled; notes what must have become of them."""

    def __init__(self, log: aio.CommitLog, topic: aio.Topic, consumer: aio.Consumer) -> None:
        self.producers = {
            "send": log.producer(linger_ms=0),
            "send all": log.producer(linger_ms=0, acks="all"),
            "send into a small buffer": log.producer(
                linger_ms=0, acks="all", batch_size=1, buffer_memory=200
            ),
        }
        self.topic, self.consumer = topic, consumer
        self.following = topic[0].follow(0)
        self.followed, self.polled = list[int](), list[int]()
        self.certain, self.withdrawn = set[bytes](), set[bytes]()

    async def step(self, kind: str, value: bytes, turns: int) -> None:
        """Begin a call, and cancel it after some turns of the loop."""
        read = kind in ("follow", "poll")
        try:
            sent = self.producers[kind].send("t", value) if kind in self.producers else None
        except BufferFullError:
            self.withdrawn.add(value)
            return
        task = asyncio.ensure_future(self.begun(kind, value) if sent is None else wait_for(sent))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        found = await outcome(task)
        if read:
            self.note_read(kind, found)
        elif sent is not None:
            (self.withdrawn if sent.cancelled() else self.certain).add(value)
        elif isinstance(found, asyncio.CancelledError) and "It had begun" not in "".join(notes(found)):
            self.withdrawn.add(value)
        else:
            self.certain.add(value)

    def begun(self, kind: str, value: bytes) -> Coroutine[Any, Any, Any]:
        if kind == "follow":
            return self.following.__anext__()
        if kind == "poll":
            return self.consumer.poll(60)
        if kind == "append many":
            return self.topic.append_many([value] * 600, keys=[b"k"] * 600)
        return self.topic.append(value, sync=kind == "append synced")

    def note_read(self, kind: str, found: Any) -> None:
        if isinstance(found, asyncio.CancelledError):
            return
        if kind == "follow":
            self.followed.append(found.offset)
        else:
            self.polled += [one.offset for each in found.values() for one in each]

    async def check(self) -> None:
        """Read everything: nothing is lost, nothing is there twice."""
        stored = [record.value async for record in self.topic[0].records()]
        assert set(stored) == self.certain
        assert not set(stored) & self.withdrawn
        assert all(stored.count(value) in (1, 600) for value in self.certain)
        while self.following.offset != len(stored):
            self.followed.append((await anext(self.following)).offset)
        while len(self.polled) < len(stored):
            self.note_read("poll", await self.consumer.poll(60))
        assert self.followed == self.polled == list(range(len(stored)))


def notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


@in_a_loop
async def work_through(folder: Path, given_steps: list[tuple[str, int]]) -> None:
    async with aio.open(folder / "log") as log:
        topic = await log.create_topic("t")
        work = Work(log, topic, await log.consumer("t", auto_offset_reset="earliest"))
        for number, (kind, turns) in enumerate(given_steps):
            await work.step(kind, b"%d" % number, turns)
        for producer in work.producers.values():
            await producer.close()
        await work.check()
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
async def test_an_open_that_is_cancelled_again_and_again_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, busy = threading.Event(), threading.Event(), threading.Event()
    real = commitlog.CommitLog.open.__func__  # type: ignore[attr-defined]

    def slow(*args: Any, **named: Any) -> commitlog.CommitLog:
        begun.set()
        go_on.wait(30)
        return real(*args, **named)  # type: ignore[no-any-return]

    with monkeypatch.context() as patch:
        patch.setattr(commitlog.CommitLog, "open", classmethod(slow))
        task = asyncio.ensure_future(wait_for(aio.open(tmp_path / "log")))
        await until(begun.is_set)
    others = [asyncio.ensure_future(in_a_worker(busy.wait, 30)) for _ in range(8)]  # the close has to queue
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    for _ in range(20):
        await asyncio.sleep(0.001)
        task.cancel()
    busy.set()
    assert isinstance(await outcome(task), asyncio.CancelledError)
    await asyncio.gather(*others)
    async with aio.open(tmp_path / "log"):
        pass


@in_a_loop
async def test_a_call_that_waits_for_another_gets_a_thread_of_its_own() -> None:
    some = Workers(2)
    assert await some.in_a_worker(len, "one thread is idle from now on") == 30
    event = threading.Event()
    waits, sets = some.begin(lambda: event.wait(30)), some.begin(event.set)
    assert await waits.future
    await sets.future


@in_a_loop
async def test_if_no_thread_can_be_started_the_call_fails_and_the_next_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    some, made = Workers(2), list[int]()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="can't start"):
                some.begin(lambda: made.append(1))
    assert some.threads == 0
    assert await some.in_a_worker(len, made) == 0


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
        await until(lambda: watcher.remembered == 0)

    with commitlog.open(tmp_path / "log") as log:
        log.create_topic("t")
        come_and_go(log, 2)
        before = handles(), threading.active_count()
        come_and_go(log, 100)  # 5,000 followers
        assert handles() <= before[0]
        assert threading.active_count() <= before[1]
        assert log.topic("t").partition(0)._state.waiters.count <= 1  # the watcher's, until it ends
