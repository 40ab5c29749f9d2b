from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from commitlog import ClosedError, InvalidRecordError, UnknownTopicError, aio
from commitlog.clients.rate_limit import Throttle
from commitlog.errors import BufferFullError

from .running import in_a_loop, outcome, until


@pytest.mark.parametrize("settings", [{}, {"linger_ms": 0}, {"acks": "all"}, {"acks": "all", "linger_ms": 0}])
def test_an_awaited_record_has_its_place(tmp_path: Path, settings: dict[str, object]) -> None:
    @in_a_loop
    async def send() -> None:
        async with aio.open(tmp_path / "log") as log:
            topic = await log.create_topic("t")
            async with log.producer(**settings) as producer:  # type: ignore[arg-type]
                places = await asyncio.gather(*(producer.send("t", b"%d" % n) for n in range(100)))
                assert [place.offset for place in places] == list(range(100))
                assert (await producer.send("t", b"headers", headers=[("h", b"1")])).offset == 100
                assert (await producer.send("t", b"chosen", partition=0, timestamp=77)).timestamp == 77
            assert [record.value async for record in topic[0].records(0, 100)] == [
                b"%d" % n for n in range(100)
            ]

    send()


@in_a_loop
async def test_records_that_are_not_awaited_are_delivered_by_flush_and_close(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t", partitions=4)
        producer = log.producer(linger_ms=60_000)
        futures = [producer.send("t", b"%d" % n, b"%d" % (n % 10)) for n in range(1_000)]
        assert not futures[-1].done()
        await producer.flush()
        assert all(future.done() for future in futures)
        producer.send("t", b"last")
        await producer.close()
        await producer.close()
        assert sum([1 async for _ in topic.records()]) == 1_001
        with pytest.raises(ClosedError):
            producer.send("t", b"too late")


@in_a_loop
async def test_with_linger_0_the_records_of_one_turn_are_one_batch(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t")
        producer = log.producer(linger_ms=0)
        for _ in range(3):
            await asyncio.gather(*(producer.send("t", b"v") for _ in range(50)))
        assert [len(batch) async for batch in topic[0].batches()] == [50] * 3


@in_a_loop
async def test_bad_records_are_refused_at_once(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        await log.create_topic("t")
        async with log.producer() as producer:
            with pytest.raises(UnknownTopicError):
                producer.send("no-such-topic", b"v")
            with pytest.raises(InvalidRecordError):
                producer.send("t", 5)


@in_a_loop
async def test_a_failed_record_raises_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t")
        producer = log.producer(linger_ms=0)
        monkeypatch.setattr(topic.blocking.partition(0), "append_encoded", lambda *_: 1 / 0)
        assert isinstance(await outcome(producer.send("t", b"v")), ZeroDivisionError)
        with pytest.raises(ZeroDivisionError):
            await producer.flush()


class Held:
    """Keeps a producer from appending, until it is let go."""

    def __init__(self, producer: aio.Producer) -> None:
        self._underneath = producer._underneath
        self._append, self._work = self._underneath._append_if_free, self._underneath._task._run
        self._underneath._append_if_free = lambda lane: False  # type: ignore[method-assign]
        self._underneath._task._run = lambda: 60.0

    def let_go(self) -> None:
        self._underneath._append_if_free = self._append  # type: ignore[method-assign]
        self._underneath._task._run = self._work
        self._underneath._task.wake()


async def fill(producer: aio.Producer) -> list[asyncio.Future[object]]:
    """Send until records wait for room."""
    sent: list[asyncio.Future[object]] = []
    while not producer._underneath._waiting:
        sent.append(asyncio.ensure_future(producer.send("t", b"v" * 500)))
        await asyncio.sleep(0)
    return sent


@in_a_loop
async def test_if_the_buffer_is_full_a_send_waits_for_room(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t")
        producer = log.producer(batch_size=1_000, buffer_memory=5_000, linger_ms=0)
        held = Held(producer)
        sent = await fill(producer)
        assert 5 < len(sent) < 50
        late = asyncio.ensure_future(producer.send("t", b"late"))
        await asyncio.sleep(0.01)
        assert not late.done()
        held.let_go()
        await asyncio.gather(*sent, late)
        values = [record.value async for record in topic[0].records()]
        assert values == [b"v" * 500] * len(sent) + [b"late"]  # in order


@in_a_loop
async def test_sends_that_nobody_awaits_cannot_fill_the_memory(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        await log.create_topic("t")
        producer = log.producer(batch_size=1_000, buffer_memory=5_000, linger_ms=0)
        held = Held(producer)
        futures = []
        with pytest.raises(BufferFullError):
            for _ in range(1_000):
                futures.append(producer.send("t", b"v" * 500))
        assert len(futures) < 100
        held.let_go()
        await producer.flush()
        assert {future.result().topic for future in futures} == {"t"}


@in_a_loop
async def test_a_cancelled_send_says_whether_it_was_sent(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t")
        producer = log.producer(batch_size=1_000, buffer_memory=5_000, linger_ms=0)
        held = Held(producer)
        sent = await fill(producer)
        before, waiting = producer.send("t", b"waits"), producer.send("t", b"withdrawn")

        async def wait(future: object) -> None:
            await future  # type: ignore[misc]

        task = asyncio.ensure_future(wait(waiting))
        await asyncio.sleep(0)
        task.cancel()
        error = await outcome(task)
        assert isinstance(error, asyncio.CancelledError)
        assert waiting.cancelled()
        assert not before.cancelled()
        with pytest.raises(asyncio.InvalidStateError, match="waits for room"):
            before.result()
        held.let_go()
        await asyncio.gather(*sent)
        assert (await before).offset == len(sent)
        assert [record.value async for record in topic[0].records(len(sent))] == [b"waits"]
        with pytest.raises(asyncio.CancelledError):
            await waiting


@in_a_loop
async def test_a_sent_record_is_delivered_even_if_nobody_waits_any_more(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        await log.create_topic("t")
        producer = log.producer(linger_ms=60_000)
        future = producer.send("t", b"v")

        async def wait() -> None:
            await future

        task = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        task.cancel()
        error = await outcome(task)
        assert isinstance(error, asyncio.CancelledError)
        assert not future.cancelled()
        await producer.flush()
        assert (await future).offset == 0


@in_a_loop
async def test_a_quota_slows_sends_down_without_blocking_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aio.open(tmp_path / "log") as log:
        await log.create_topic("t")
        await log.set_quota("slow", producer_byte_rate=2_000)
        main = threading.main_thread()

        def wait(throttle: Throttle) -> None:
            assert threading.current_thread() is not main

        monkeypatch.setattr(Throttle, "wait", wait)
        async with log.producer(client_id="slow", batch_size=1_000, linger_ms=0) as producer:
            places = await asyncio.gather(*(producer.send("t", b"v" * 400) for _ in range(10)))
        assert [place.offset for place in places] == list(range(10))


@in_a_loop
async def test_a_producer_of_several_topics_keeps_their_order(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topics = [await log.create_topic(name) for name in ("a", "b", "t")]
        producer = log.producer(batch_size=800, buffer_memory=4_000, linger_ms=0)

        async def send(name: str) -> None:
            for number in range(200):
                await producer.send(name, b"%d" % number * 20)

        async with asyncio.TaskGroup() as group:
            for topic in topics:
                group.create_task(send(topic.name))
        for topic in topics:
            values = [record.value async for record in topic[0].records()]
            assert values == [b"%d" % number * 20 for number in range(200)]
        await until(lambda: not producer._underneath._waiting)
