from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog import ClosedError, CommitLogError, ConsumerRecord, TopicPartition, aio
from commitlog.aio.partition import INLINE_BYTES
from commitlog.aio.watcher import watcher
from commitlog.errors import PartitionFailedError

from .running import in_a_loop, outcome, until


@in_a_loop
async def test_records_are_iterated_over_as_they_arrive(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t", partitions=2)
        await topic.append_many([b"%d" % n for n in range(100)], keys=[b"%d" % n for n in range(100)])
        async with log.consumer("t", auto_offset_reset="earliest") as consumer:
            found: list[bytes | None] = []

            async def read() -> None:
                async for record in consumer:
                    found.append(record.value)
                    if len(found) == 150:
                        return

            task = asyncio.ensure_future(read())
            await until(lambda: len(found) == 100)
            await topic.append_many([b"%d" % n for n in range(100, 150)])
            await task
        assert sorted(found) == sorted(b"%d" % n for n in range(150))  # type: ignore[type-var]


@in_a_loop
async def test_many_records_are_fetched_in_another_thread(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t")
        count = INLINE_BYTES // 10
        await topic.append_many([b"%d" % n for n in range(count)])
        async with log.consumer("t", auto_offset_reset="earliest", consumer_timeout_ms=0) as consumer:
            found = [record.offset async for record in consumer]
        assert found == list(range(count))


@in_a_loop
async def test_poll_waits_for_records_and_for_its_timeout(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t")
        async with log.consumer("t") as consumer:
            assert await consumer.poll() == {}
            assert await consumer.poll(0.001) == {}
            assert await consumer.getmany(timeout_ms=1) == {}
            waiting = asyncio.ensure_future(consumer.poll(60))
            await asyncio.sleep(0.01)
            await topic.append(b"v")
            found = await waiting
            assert [record.value for record in found[TopicPartition("t", 0)]] == [b"v"]
            await topic.append_many([b"1", b"2", b"3"])
            ((batch,),) = (await consumer.poll_batches(60)).values()
            assert len(batch) == 3
            await consumer.seek(("t", 0), 1)
            assert await consumer.position(("t", 0)) == 1
            assert await consumer.lag() == {TopicPartition("t", 0): 3}
            found = await consumer.poll(max_records=2)
            assert [record.offset for record in found[TopicPartition("t", 0)]] == [1, 2]
            await consumer.pause(("t", 0))
            assert await consumer.poll() == {}
            await consumer.resume()
            assert len(await consumer.poll()) == 1


@in_a_loop
async def test_members_of_a_group_share_the_partitions_and_commit(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t", partitions=4)
        settings = {"group_id": "g", "auto_offset_reset": "earliest", "heartbeat_interval_ms": 10}
        seen: list[tuple[int, int]] = []
        stop = asyncio.Event()

        async def work() -> None:
            async with log.consumer("t", **settings) as consumer:  # type: ignore[arg-type]
                while not stop.is_set():
                    for name, records in (await consumer.poll(0.05)).items():
                        seen.extend((name.partition, record.offset) for record in records)
                    await consumer.commit()

        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(work())
            for number in range(400):
                await topic.append(b"v", partition=number % 4)
                await asyncio.sleep(0)
            await until(lambda: len(set(seen)) == 400)
            stop.set()
        description = await log.describe_group("g")
        assert sum(one.lag or 0 for one in description.partitions) == 0


@in_a_loop
async def test_callbacks_may_be_coroutines_that_use_the_consumer(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t", partitions=2)
        await topic.append_many([b"v"] * 10, partition=0)
        told: list[tuple[str, set[TopicPartition]]] = []
        home = threading.current_thread()

        class Listener:
            def __init__(self, consumer: aio.Consumer) -> None:
                self._consumer = consumer

            async def on_assigned(self, partitions: set[TopicPartition]) -> None:
                assert threading.current_thread() is home
                await asyncio.sleep(0)
                await self._consumer.seek(("t", 0), 5)
                told.append(("assigned", partitions))

            async def on_revoked(self, partitions: set[TopicPartition]) -> None:
                await topic.append(b"bye", partition=1, sync=True)  # a worker is free for it
                await self._consumer.commit({("t", 0): 7})
                told.append(("revoked", partitions))

        consumer = await log.consumer(group_id="g", auto_offset_reset="earliest")
        await consumer.subscribe("t", listener=Listener(consumer))
        found = await consumer.poll(30)
        assert [record.offset for record in found[TopicPartition("t", 0)]] == [5, 6, 7, 8, 9]
        await consumer.close()
        everything = {TopicPartition("t", 0), TopicPartition("t", 1)}
        assert told == [("assigned", everything), ("revoked", everything)]
        assert (await topic[1].get(0)).value == b"bye"  # type: ignore[union-attr]


@in_a_loop
async def test_a_callback_that_fails_fails_the_poll(tmp_path: Path) -> None:
    class Listener:
        def on_assigned(self, partitions: set[TopicPartition]) -> None:
            raise ZeroDivisionError("a mistake")

    async with aio.open(tmp_path / "log") as log:
        await log.create_topic("t")
        consumer = await log.consumer(group_id="g")
        await consumer.subscribe("t", listener=Listener())
        with pytest.raises(ZeroDivisionError, match="a mistake"):
            await consumer.poll(30)


@in_a_loop
async def test_close_ends_a_poll_that_waits(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        await log.create_topic("t")
        consumer = await log.consumer("t", group_id="g")
        waiting = asyncio.ensure_future(consumer.poll(60))
        ended = asyncio.ensure_future(outcome(anext(aiter(await log.consumer("t")))))
        await until(lambda: watcher.waiting == 2)
        await consumer.close()
        assert isinstance(await outcome(waiting), ClosedError)
        with pytest.raises(ClosedError):
            await consumer.poll()
        with pytest.raises(ClosedError):
            aiter(consumer)
    assert isinstance(await ended, ClosedError)


@in_a_loop
async def test_a_poll_that_is_cancelled_has_lost_nothing(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t")
        async with log.consumer("t") as consumer:
            found: list[int] = []
            for number in range(60):
                waiting = asyncio.ensure_future(consumer.poll(60))
                for _ in range(number % 5):
                    await asyncio.sleep(0)
                await topic.append(b"v")
                for _ in range(number % 7):
                    await asyncio.sleep(0)
                waiting.cancel()
                got = await outcome(waiting)
                if isinstance(got, dict):
                    found += [record.offset for records in got.values() for record in records]
            found += [record.offset for records in (await consumer.poll()).values() for record in records]
            assert found == list(range(60))


@in_a_loop
async def test_a_log_that_is_read_only_has_consumers(tmp_path: Path) -> None:
    with commitlog.open(tmp_path / "log") as writer:
        writer.create_topic("t").append_many([b"v"] * 3)
    async with aio.open(tmp_path / "log", mode="r") as log:
        settings = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 0}
        async with log.consumer("t", **settings) as consumer:  # type: ignore[arg-type]
            assert [record.offset async for record in consumer] == [0, 1, 2]
        with pytest.raises(CommitLogError):
            log.producer()


@in_a_loop
async def test_an_arrow_poll_that_is_cancelled_has_lost_nothing(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t")
        await topic.append_many([b"%d" % n for n in range(100)])
        async with log.consumer("t", auto_offset_reset="earliest") as consumer:
            for turns in range(12):
                polled = asyncio.ensure_future(consumer.poll_arrow(30))
                for _ in range(turns):
                    await asyncio.sleep(0)
                polled.cancel()
                found = await outcome(polled)
                if isinstance(found, dict):
                    await consumer.seek(("t", 0), 0)
                else:
                    assert await consumer.position(("t", 0)) == 0
            (table,) = (await consumer.poll_arrow(30)).values()
            assert table.num_rows == 100


class HeldFetch:
    """Keeps the consumer's thread between the reading of records and their return."""

    def __init__(self, consumer: aio.Consumer) -> None:
        self.read, self.go_on = threading.Event(), threading.Event()
        fetcher = consumer.blocking._fetcher
        records = fetcher.records

        def held(limit: int) -> dict[TopicPartition, list[ConsumerRecord]]:
            fetcher.records = records  # type: ignore[method-assign]
            found = records(limit)
            self.read.set()
            self.go_on.wait(30)
            return found

        fetcher.records = held  # type: ignore[method-assign]


def offsets(found: dict[TopicPartition, list[ConsumerRecord]]) -> list[int]:
    return [record.offset for records in found.values() for record in records]


@pytest.mark.parametrize("change", ["pause", "seek", "unsubscribe", "close"])
def test_a_change_during_a_fetch_loses_and_doubles_nothing(tmp_path: Path, change: str) -> None:
    @in_a_loop
    async def poll() -> None:
        async with aio.open(tmp_path / "log") as log:
            topic = await log.create_topic("t")
            await topic.append_many([b"%d" % n for n in range(20_000)])
            consumer = await log.consumer("t", auto_offset_reset="earliest", max_poll_records=100)
            held = HeldFetch(consumer)
            polled = asyncio.ensure_future(consumer.poll())
            await until(held.read.is_set)
            arguments: dict[str, list[Any]] = {"pause": [("t", 0)], "seek": [("t", 0), 15_000]}
            given = arguments.get(change, [])
            changed = asyncio.ensure_future(getattr(consumer, change)(*given))
            await asyncio.sleep(0.01)
            held.go_on.set()
            await changed
            found = await outcome(polled)
            if change == "pause":
                await consumer.resume()
                assert offsets(found) + offsets(await consumer.poll()) == list(range(len(found) * 100 + 100))
            elif change == "seek":
                assert offsets(found)[:1] in ([0], [15_000], [])
                assert offsets(await consumer.poll())[0] in (15_000, 15_100)
            elif change == "unsubscribe":
                assert isinstance(found, dict)
            else:
                assert isinstance(found, ClosedError)

    poll()


@in_a_loop
async def test_a_seek_of_another_task_ends_a_wait(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t")
        await topic.append_many([b"v"] * 10)
        seldom = {"heartbeat_interval_ms": 600_000, "session_timeout_ms": 2_000_000}
        async with log.consumer("t", auto_offset_reset="latest", **seldom) as consumer:  # type: ignore[arg-type]
            waiting = asyncio.ensure_future(consumer.poll(600))
            await until(lambda: watcher.waiting == 1)
            await consumer.seek(("t", 0), 7)
            assert offsets(await waiting) == [7, 8, 9]


@in_a_loop
async def test_callbacks_may_start_tasks_that_use_the_consumer(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t")
        await topic.append_many([b"v"] * 10)
        problems: list[Exception] = []

        class Listener:
            async def on_assigned(self, partitions: set[TopicPartition]) -> None:
                await asyncio.gather(*(consumer.seek(name, 5) for name in partitions))
                await asyncio.wait_for(consumer.position(("t", 0)), 30)
                problems.append(await outcome(consumer.poll()))

        consumer = await log.consumer(group_id="g")
        await consumer.subscribe("t", listener=Listener())
        assert offsets(await consumer.poll(30)) == [5, 6, 7, 8, 9]
        assert "would wait for that callback itself" in str(problems[0])


@in_a_loop
async def test_a_consumer_of_a_failed_partition_waits_without_spinning(tmp_path: Path) -> None:
    log = await aio.open(tmp_path / "log")
    topic = await log.create_topic("t", partitions=2)
    consumer = await log.consumer("t")
    waiting = asyncio.ensure_future(consumer.poll(600))
    await until(lambda: watcher.waiting == 1)
    waits, wait = 0, consumer._wait

    async def counted(seconds: float) -> None:
        nonlocal waits
        waits += 1
        await wait(seconds)

    consumer._wait = counted  # type: ignore[method-assign]
    topic.blocking.partition(0)._state.fail("a test")
    await until(lambda: waits > 0)
    for _ in range(200):
        await asyncio.sleep(0)
    assert waits == 1  # for the other partition
    await topic.append(b"v", partition=1)
    assert offsets(await waiting) == [0]
    assert isinstance(await outcome(log.close()), PartitionFailedError | None)


@in_a_loop
async def test_a_consumer_that_waits_beyond_a_new_end_loses_nothing(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t")
        await topic.append_many([b"old"] * 10)
        consumer = await log.consumer(auto_offset_reset="latest")
        await consumer.assign([("t", 0)])
        assert await consumer.poll() == {}
        waiting = asyncio.ensure_future(anext(aiter(consumer)))
        await until(lambda: watcher.waiting == 1)
        await topic[0].truncate_from(5)
        await until(lambda: consumer.blocking._fetcher.places[TopicPartition("t", 0)].fetched == 5)
        await topic.append(b"new")
        record = await waiting
        assert (record.offset, record.value) == (5, b"new")


@in_a_loop
async def test_a_callback_that_is_cancelled_before_it_begins_fails_the_poll(tmp_path: Path) -> None:
    class Listener:
        async def on_assigned(self, partitions: set[TopicPartition]) -> None:
            raise AssertionError("it was cancelled")

    async with aio.open(tmp_path / "log") as log:
        await log.create_topic("t")
        consumer = await log.consumer(group_id="g")
        await consumer.subscribe("t", listener=Listener())
        mine = asyncio.all_tasks()
        poll = asyncio.ensure_future(consumer.poll(30))
        others: set[asyncio.Task[object]] = set()
        while not others:
            await asyncio.sleep(0)
            others = asyncio.all_tasks() - mine - {poll}
        for task in others:
            task.cancel()
        with pytest.raises(CommitLogError, match="cancelled"):
            await poll
        assert not poll.cancelled()


@pytest.mark.parametrize("what", ["consumer", "log"])
def test_a_close_that_is_cancelled_ends_as_cancelled(tmp_path: Path, what: str) -> None:
    @in_a_loop
    async def close() -> None:
        log = await aio.open(tmp_path / "log")
        await log.create_topic("t")
        consumer = await log.consumer("t", group_id="g")
        await consumer.poll()
        closing = asyncio.ensure_future((consumer if what == "consumer" else log).close())
        await asyncio.sleep(0)
        closing.cancel()
        assert isinstance(await outcome(closing), asyncio.CancelledError)
        with pytest.raises(ClosedError):
            await consumer.poll()
        await log.close()

    close()
