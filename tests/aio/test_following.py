from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import commitlog
from commitlog import ClosedError, OffsetOutOfRangeError, aio
from commitlog.aio.partition import INLINE_BYTES
from commitlog.aio.reading import INLINE, PIECE
from commitlog.aio.watcher import watcher
from commitlog.aio.workers import in_a_worker
from commitlog.config import IsolationLevel
from commitlog.errors import CorruptionError, PartitionFailedError

from .running import in_a_loop, outcome, until

APPEND_ON_DEMAND = """
import sys, commitlog
with commitlog.open(sys.argv[1]) as log:
    for line in sys.stdin:
        log.topic("t").append(line.encode())
        print("appended", flush=True)
"""


async def first(following: aio.Following[commitlog.Record], count: int) -> list[bytes | None]:
    return [(await anext(following)).value for _ in range(count)]


@in_a_loop
async def test_what_is_there_and_what_arrives_is_followed(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t")
        await topic.append(b"before")
        everything, from_now_on = topic[0].follow(0), topic[0].follow()
        found = asyncio.gather(first(everything, 3), first(from_now_on, 2))
        await until(lambda: watcher.waiting == 2)
        await topic.append_many([b"one", b"two"])
        assert list(await found) == [[b"before", b"one", b"two"], [b"one", b"two"]]
        assert everything.offset == from_now_on.offset == 3


@in_a_loop
async def test_more_records_than_are_read_at_a_time_arrive_in_order(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t")
        count = 2 * PIECE + INLINE + 3
        for start in range(0, count, 700):
            await topic.append_many([b"%d" % number for number in range(start, min(start + 700, count))])
        following = topic[0].follow(5)
        assert await first(following, count - 5) == [b"%d" % number for number in range(5, count)]
        batches = topic[0].follow_batches(0)
        rows = 0
        while rows < count:
            rows += len(await anext(batches))
        assert rows == count == batches.offset


@in_a_loop
async def test_records_that_compaction_removed_are_passed_over(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t", config={"cleanup_policy": "compact"})
        await topic.append_many([b"1", b"2", b"3"], keys=[b"k"] * 3)
        await topic[0].roll()
        await topic[0].compact()
        following = topic[0].follow(0)
        assert (await anext(following)).offset == 2
        await topic.append(b"4", key=b"k")
        assert (await anext(following)).offset == 3


@pytest.mark.parametrize("mode", ["r", "shared"])
def test_an_append_in_another_process_wakes_followers(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "log"
    with commitlog.open(path) as log:
        log.create_topic("t")

    @in_a_loop
    async def follow() -> None:
        program = APPEND_ON_DEMAND.replace("argv[1])", f"argv[1], mode={'shared' if mode != 'r' else 'w'!r})")
        writer = subprocess.Popen(
            [sys.executable, "-c", program, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdin is not None
        assert writer.stdout is not None
        try:
            async with aio.open(path, mode=mode) as log:  # type: ignore[arg-type]
                following = (await log.topic("t"))[0].follow(0)
                for number in range(20):
                    found = asyncio.ensure_future(anext(following))
                    await until(lambda: watcher.waiting == 1)
                    writer.stdin.write(f"{number}\n")
                    writer.stdin.flush()
                    assert (await found).value == b"%d\n" % number
                    await asyncio.to_thread(writer.stdout.readline)
        finally:
            writer.stdin.close()
            writer.wait(30)
            writer.stdout.close()

    follow()


@in_a_loop
async def test_any_number_of_followers_share_a_thread_which_ends_with_them(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t", partitions=3)
        before = threading.active_count()
        tasks = [asyncio.ensure_future(anext(topic[number % 3].follow())) for number in range(1_000)]
        await until(lambda: watcher.waiting == 1_000)
        assert threading.active_count() <= before + 1
        for number in range(3):
            await topic.append(b"news", partition=number)
        assert {record.value for record in await asyncio.gather(*tasks)} == {b"news"}
        assert watcher.waiting == 0
        await until(lambda: "commitlog-watcher" not in [one.name for one in threading.enumerate()])
        following = topic[0].follow()  # starts another thread
        found = asyncio.ensure_future(anext(following))
        await until(lambda: watcher.waiting == 1)
        await topic.append(b"more", partition=0)
        assert (await found).value == b"more"


@in_a_loop
async def test_a_wait_that_is_cancelled_loses_no_record_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t")
        following = topic[0].follow()
        for number in range(50):
            waiting = asyncio.ensure_future(anext(following))
            await until(lambda: watcher.waiting == 1)
            if number % 2:
                await topic.append(b"%d" % number)  # it may or may not arrive before the cancellation
            waiting.cancel()
            if not isinstance(await outcome(waiting), commitlog.Record):
                assert watcher.waiting == 0
                if number % 2:
                    assert (await anext(following)).value == b"%d" % number


@in_a_loop
async def test_closing_the_log_ends_every_wait(tmp_path: Path) -> None:
    for mode in ("w", "shared", "r"):
        async with aio.open(tmp_path / "log", mode=mode) as log:
            if mode == "w":
                await log.create_topic("t")
            topic = await log.topic("t")
            tasks = [asyncio.ensure_future(anext(topic[0].follow())) for _ in range(10)]
            await until(lambda: watcher.waiting == 10)
        for task in tasks:
            assert isinstance(await outcome(task), ClosedError)


@in_a_loop
async def test_deleting_the_topic_ends_every_wait(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t")
        task = asyncio.ensure_future(anext(topic[0].follow()))
        await until(lambda: watcher.waiting == 1)
        await log.delete_topic("t")
        assert isinstance(await outcome(task), ClosedError)


@in_a_loop
async def test_offsets_outside_the_log_are_refused(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t")
        await topic.append_many([b"a", b"b", b"c"])
        await topic[0].trim_before(2)
        with pytest.raises(OffsetOutOfRangeError):
            await anext(topic[0].follow(1))


@in_a_loop
async def test_records_before_damage_are_returned(tmp_path: Path) -> None:
    path = tmp_path / "log"
    async with aio.open(path) as log:
        topic = await log.create_topic("t")
        for number in range(5):
            await topic.append(b"%d" % number)
    (file,) = (path / "t-0").glob("*.log")
    raw = bytearray(file.read_bytes())
    raw[3 * 88 + 80] ^= 1  # in the value of the fourth
    file.write_bytes(raw)
    async with aio.open(path, mode="r") as log:
        following = (await log.topic("t"))[0].follow(0)
        assert await first(following, 3) == [b"0", b"1", b"2"]
        with pytest.raises(CorruptionError):
            await anext(following)
        records = (await log.topic("t"))[0].records()
        assert [(await anext(records)).value for _ in range(3)] == [b"0", b"1", b"2"]
        with pytest.raises(CorruptionError):
            await anext(records)


def test_loops_of_several_threads_follow_at_the_same_time(tmp_path: Path) -> None:
    with commitlog.open(tmp_path / "log") as log:
        partition = log.create_topic("t").partition(0)
        found: list[list[bytes | None]] = []

        def work() -> None:
            async def follow() -> None:
                found.append(await first(aio.Partition(partition).follow(0), 100))

            asyncio.run(follow())

        threads = [threading.Thread(target=work) for _ in range(5)]
        for thread in threads:
            thread.start()
        for number in range(100):
            partition.append(b"%d" % number)
        for thread in threads:
            thread.join(60)
        assert found == [[b"%d" % number for number in range(100)]] * 5


@in_a_loop
async def test_those_who_wait_no_more_are_forgotten_although_others_wait(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t")
        waiting = asyncio.ensure_future(anext(topic[0].follow()))
        for _ in range(200):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0):
                    await anext(topic[0].follow())
        others = [asyncio.ensure_future(anext(topic[0].follow())) for _ in range(200)]
        await until(lambda: watcher.waiting == 201)
        for other in others:
            other.cancel()
        await until(lambda: watcher.remembered == 1)
        assert not waiting.done()


@in_a_loop
async def test_two_tasks_cannot_share_an_iterator(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t")
        following, there = topic[0].follow(), topic[0].records()
        waiting = asyncio.ensure_future(anext(following))
        await until(lambda: watcher.waiting == 1)
        with pytest.raises(RuntimeError, match="another task waits"):
            await anext(following)
        await topic.append(b"v")
        assert (await waiting).offset == 0
        found = await asyncio.gather(anext(there), anext(there), return_exceptions=True)
        assert isinstance(found[0], commitlog.Record)
        assert isinstance(found[1], RuntimeError)


@in_a_loop
async def test_a_follower_of_a_failed_partition_gets_the_records_and_then_the_reason(tmp_path: Path) -> None:
    log = await aio.open(tmp_path / "log")
    topic = await log.create_topic("t")
    await topic.append(b"v")
    tasks = [asyncio.ensure_future(anext(topic[0].follow())), asyncio.ensure_future(topic[0].wait_for(1))]
    await until(lambda: watcher.waiting == 2)
    topic.blocking.partition(0)._state.fail("a test")
    assert isinstance(await outcome(tasks[0]), PartitionFailedError)
    await tasks[1]
    following = topic[0].follow(0)
    assert (await anext(following)).value == b"v"
    with pytest.raises(PartitionFailedError):
        await anext(following)
    with contextlib.suppress(PartitionFailedError):
        await log.close()


@in_a_loop
async def test_if_the_watcher_fails_all_are_told_and_the_next_wait_starts_another(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t", partitions=2)
        waiting = asyncio.ensure_future(anext(topic[1].follow()))
        await until(lambda: watcher.waiting == 1)
        broken = topic.blocking.partition(0)
        broken.bell = lambda: 1 / 0  # type: ignore[assignment, method-assign, return-value]
        for task in (asyncio.ensure_future(anext(topic[0].follow())), waiting):
            error = await outcome(task)
            assert isinstance(error, commitlog.CommitLogError)
            assert "ZeroDivisionError" in str(error)
        assert topic.blocking.partition(1)._state.waiters.count == 0
        del broken.bell
        again = asyncio.ensure_future(anext(topic[0].follow()))
        await until(lambda: watcher.waiting == 1)
        await topic.append(b"v", partition=0)
        assert (await again).value == b"v"


@pytest.mark.parametrize("size", [10, INLINE_BYTES])
def test_only_a_little_is_read_in_the_event_loop(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    @in_a_loop
    async def follow() -> None:
        async with aio.open(tmp_path / "log") as log:
            topic = await log.create_topic("t")
            partition, readers = topic.blocking.partition(0), list[bool]()
            read = partition.records

            def records(
                start: int | None, end: int | None, *, isolation_level: IsolationLevel
            ) -> Iterator[commitlog.Record]:
                readers.append(threading.current_thread() is threading.main_thread())
                return read(start, end, isolation_level=isolation_level)

            await topic.append(b"first")
            following = topic[0].follow(0)
            await anext(following)
            monkeypatch.setattr(partition, "records", records)
            await topic.append(b"v" * size)
            await anext(following)
            assert readers == [size == 10]

    follow()


@in_a_loop
async def test_an_iterator_that_ends_in_a_worker_says_so() -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        await in_a_worker(next, iter([]))


@in_a_loop
async def test_a_follower_that_waits_beyond_a_new_end_is_told(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t")
        await topic.append_many([b"v"] * 10)
        waiting = asyncio.ensure_future(outcome(anext(topic[0].follow())))
        patient = asyncio.ensure_future(topic[0].wait_for(10))
        await until(lambda: watcher.waiting == 2)
        await topic[0].truncate_from(5)
        assert isinstance(await waiting, OffsetOutOfRangeError)
        await topic.append_many([b"v"] * 5)
        assert not patient.done()
        await topic.append(b"v")
        await patient


@in_a_loop
async def test_what_is_compressed_is_unpacked_elsewhere(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        for config in ({}, {"compression_type": "zstd"}):
            topic = await log.create_topic(f"t{len(config)}", config=config)
            await topic.append(b"v")
            following = topic[0].follow(0)
            await first(following, 1)
            known = topic.blocking.partition(0).known_bytes_after(1)
            assert known == (None if config else 0)
        plain = (await log.topic("t0")).blocking.partition(0)
        async with log.producer(compression_type="zstd") as producer:
            await producer.send("t0", b"v" * 10_000)
        assert plain.known_bytes_after(1) is not None
        assert [record.offset for record in plain.records(1)] == [1]
        assert plain.known_bytes_after(2) is None
