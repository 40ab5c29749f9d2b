"""What runs in the event loop: nothing that syncs, takes a file lock, checks files or waits for a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog import aio, files
from commitlog.aio.partition import INLINE_BYTES, is_quick, size_of
from commitlog.aio.watcher import watcher
from commitlog.partitions.recovery import Recovery
from commitlog.topics.catalog import Catalog

from .running import in_a_loop, until

BLOCKING = ("sync_data", "sync_directory", "sync_map", "wait_for_lock")


class Watch:
    """Notes calls that are made in the event loop."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*args: Any, **named: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                self.seen.append(call)
            return call(*args, **named)

        return checked


@pytest.mark.parametrize("mode", ["w", "shared"])
def test_the_event_loop_neither_syncs_nor_waits_for_a_file_lock(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch()
    for name in BLOCKING:
        monkeypatch.setattr(files, name, watch.watched(getattr(files, name)))

    @in_a_loop
    async def work() -> None:
        async with aio.open(tmp_path / "log", mode=mode) as log:  # type: ignore[arg-type]
            topic = await log.create_topic("t", partitions=2)
            assert await log.topics() == ["t"]
            assert (await log.topic("t")).name == "t"
            await topic.append_many([b"v" * 100] * 20)
            await topic.append(b"x")
            await log.set_quota("slow", consumer_byte_rate=1_000, producer_byte_rate=1_000)
            for settings in ({}, {"acks": "all"}, {"client_id": "slow"}):
                async with log.producer(linger_ms=0, **settings) as producer:  # type: ignore[arg-type]
                    await producer.send("t", b"x")
                    await asyncio.gather(*(producer.send("t", b"x") for _ in range(10)))
            for settings in ({"group_id": "g"}, {"client_id": "slow"}):
                async with log.consumer("t", **settings) as consumer:  # type: ignore[arg-type]
                    for _ in range(3):
                        await consumer.poll(0.1)
                    await consumer.lag()
                    await consumer.subscription()
                    if "group_id" in settings:
                        await consumer.commit()
                        await consumer.group_metadata()
            await log.health()
            await log.metrics()

    work()
    assert not watch.seen


@in_a_loop
async def test_topics_are_found_while_another_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, storing, go_on = Catalog.store, threading.Event(), threading.Event()

    def slow(*args: Any) -> None:
        storing.set()
        go_on.wait(30)
        store(*args)

    async with aio.open(tmp_path / "log") as log:
        await log.create_topic("t")
        monkeypatch.setattr(Catalog, "store", slow)
        creating = asyncio.ensure_future(log.create_topic("u"))
        await until(storing.is_set)
        await (await log.topic("t")).append(b"v")
        producer = log.producer(linger_ms=0)
        assert (await producer.send("t", b"v")).offset == 1
        go_on.set()
        await creating


def test_files_are_checked_elsewhere_after_a_writer_came_and_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, watch = tmp_path / "log", Watch()

    def write() -> None:
        with commitlog.open(path) as log:
            log.create_topic("t", exists_ok=True).append(b"v")

    @in_a_loop
    async def follow() -> None:
        await asyncio.to_thread(write)
        monkeypatch.setattr(Recovery, "run", watch.watched(Recovery.run))
        async with aio.open(path, mode="r") as log:
            partition = (await log.topic("t"))[0]
            await asyncio.to_thread(write)  # while nobody waits
            following = partition.follow(1)
            assert (await anext(following)).offset == 1
            consumer = await log.consumer("t", auto_offset_reset="latest")
            for offset in (2, 3):
                waiting = asyncio.ensure_future(anext(following))
                polled = asyncio.ensure_future(consumer.poll(60))
                await until(lambda: watcher.waiting == 2)
                await asyncio.to_thread(write)
                assert (await waiting).offset == offset
                assert [one.offset for records in (await polled).values() for one in records] == [offset]
            await asyncio.to_thread(write)
            assert (await anext(partition.follow(4))).offset == 4
            await asyncio.to_thread(write)
            waiting = asyncio.ensure_future(anext(partition.follow()))  # from now on
            await until(lambda: watcher.waiting == 1)
            assert not waiting.done()
            assert not watch.seen

    follow()


@in_a_loop
async def test_quick_appends_let_other_tasks_run(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t")
        await topic.append(b"first")
        producer, turns = log.producer(acks=0, linger_ms=0), 0
        await producer.send("t", b"first")

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(others())
        for _ in range(20_000):
            await topic.append(b"v")
            if turns:
                break
        assert turns
        turns = 0
        for _ in range(100):
            await producer.send("t", b"v")
        assert turns >= 100
        task.cancel()


@in_a_loop
async def test_only_small_plain_appends_are_quick(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t")
        packed = await log.create_topic("packed", config={"compression_type": "zstd"})
        full = await log.create_topic("full", config={"segment_bytes": 4_096, "max_message_bytes": 1_000})
        partition = topic.blocking.partition(0)
        for each in (topic, packed, full):
            await each.append(b"v")
        assert is_quick([partition], 10)
        assert not is_quick([partition], 10, numbered=True)  # a sync declares the first producer
        assert not is_quick([partition], 10, compression="zstd")
        assert not is_quick([partition], INLINE_BYTES + 1)
        assert not is_quick([partition] * 17, 10)
        assert not is_quick(packed.blocking.partitions, 10)
        assert is_quick(packed.blocking.partitions, 10, compression="none")
        assert not is_quick(full.blocking.partitions, 4_096)  # it starts a segment
        with partition._state.lock:
            assert not is_quick([partition], 10)
        await (log.producer(linger_ms=0)).send("t", b"v")
        assert is_quick([partition], 10, numbered=True)


def test_headers_count_towards_the_size_of_an_append() -> None:
    assert (size_of([b"v"], [None], [[("name", b"v" * 100_000)]]) or 0) > INLINE_BYTES
    assert (size_of([b"v"] * 3, None, None) or 0) < 1_000
    assert size_of([b"v"] * 100_000, None, None) is None
    assert size_of([b"v"], None, [5]) is None  # type: ignore[list-item]
    assert size_of([b"v"], None, [[5]]) is None  # type: ignore[list-item]
    assert size_of(iter([b"v"]), None, None) is None
