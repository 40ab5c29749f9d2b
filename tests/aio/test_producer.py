from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog import ClosedError, InvalidRecordError, UnknownTopicError, aio
from commitlog.aio.producer import WaitingRecord
from commitlog.aio.workers import MOST_THREADS
from commitlog.clients.rate_limit import Throttle
from commitlog.errors import BufferFullError, DiskFullError, RecordTooLargeError

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


@in_a_loop
async def test_room_that_is_made_while_a_record_begins_to_wait_is_not_missed(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        await log.create_topic("t")
        producer = log.producer(batch_size=1_000, buffer_memory=5_000, linger_ms=0)
        underneath, held = producer._underneath, Held(producer)
        sent = []
        while underneath._has_room():
            sent.append(producer.send("t", b"v" * 500))
            await asyncio.sleep(0)
        look = underneath._has_room

        def look_and_be_interrupted() -> bool:
            found = look()
            underneath._has_room = look  # type: ignore[method-assign]
            for lane in underneath._lanes.values():  # what the thread may do now
                lane.append_ready()
            return found

        underneath._has_room = look_and_be_interrupted  # type: ignore[method-assign]
        late = producer.send("t", b"late")
        assert not late.done()
        held.let_go()
        assert (await late).offset == len(sent)


@in_a_loop
async def test_any_number_of_coroutines_may_wait_for_room(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t")
        producer = log.producer(batch_size=1_000, buffer_memory=5_000, linger_ms=0)
        held = Held(producer)
        sent = await fill(producer)

        async def handle(number: int) -> int:
            return (await producer.send("t", b"%d" % number * 100)).offset

        handled = [asyncio.ensure_future(handle(number)) for number in range(200)]
        await asyncio.sleep(0.01)
        assert not any(one.done() for one in handled)
        most = 0

        def room_was_made() -> None:
            nonlocal most
            ready = sum(one.size_bytes for lane in producer._underneath._lanes.values() for one in lane.ready)
            most = max(most, ready)
            made()

        made = producer._underneath._room_was_made
        producer._underneath._room_was_made = room_was_made  # type: ignore[method-assign]
        held.let_go()
        assert await asyncio.gather(*handled) == list(range(len(sent), len(sent) + 200))
        assert most < 10_000  # the buffer, and a batch
        assert [record.value async for record in topic[0].records(len(sent))] == [
            b"%d" % number * 100 for number in range(200)
        ]


@in_a_loop
async def test_a_record_that_waits_is_kept_as_it_was_sent(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t")
        producer = log.producer(batch_size=1_000, buffer_memory=5_000, linger_ms=0)
        held = Held(producer)
        await fill(producer)
        value, done = bytearray(b"before"), list[object]()
        waiting = producer.send("t", value)
        waiting.add_done_callback(done.append)
        value[:] = b"after!"
        with pytest.raises(InvalidRecordError):
            producer.send("t", 5)
        with pytest.raises(BufferFullError):
            producer.send("t", b"v" * 100, headers=[("h", b"v" * 5_000)])
        held.let_go()
        place = await waiting
        assert (await topic[0].get(place.offset)).value == b"before"  # type: ignore[union-attr]
        await until(lambda: done == [waiting])


@in_a_loop
async def test_withdrawn_records_leave_room_for_others(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        await log.create_topic("t")
        producer = log.producer(batch_size=1_000, buffer_memory=5_000, linger_ms=0)
        held = Held(producer)
        await fill(producer)
        done: list[object] = []
        for _ in range(100):
            record = producer.send("t", b"v" * 500)
            assert isinstance(record, WaitingRecord)
            record.add_done_callback(done.append)
            assert record.cancel()
        assert producer._underneath._unawaited_bytes <= 1_000
        assert not any(len(records) > 2 for records in producer._underneath._waiting.values())
        await until(lambda: len(done) == 100)
        held.let_go()
        await producer.flush()


@in_a_loop
async def test_a_record_is_withdrawn_only_if_nobody_awaits_it_any_more(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        await log.create_topic("t")
        producer = log.producer(batch_size=1_000, buffer_memory=5_000, linger_ms=0)
        held = Held(producer)
        await fill(producer)
        record = producer.send("t", b"v")

        async def wait() -> int:
            return (await record).offset

        first, second = asyncio.ensure_future(wait()), asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        first.cancel()
        error = await outcome(first)
        assert "waits for room, and other tasks for it" in "".join(error.__notes__)
        assert not record.cancelled()
        held.let_go()
        assert await second > 0


@in_a_loop
async def test_a_record_that_is_refused_late_is_reported(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log", mode="shared") as log:
        producer = log.producer(linger_ms=0)
        told: list[Exception | None] = []
        futures = [
            producer.send("no-such-topic", b"v"),
            producer.send("no-such-topic", b"v", on_delivery=lambda place, error: told.append(error)),
        ]
        for future in futures:
            assert isinstance(await outcome(future), UnknownTopicError)
            assert isinstance(future.exception(), UnknownTopicError)
        assert isinstance(told[0], UnknownTopicError)
        with pytest.raises(UnknownTopicError):
            await producer.flush()
        await log.create_topic("t")
        assert (await producer.send("t", b"v")).offset == 0


@in_a_loop
async def test_flush_and_close_wait_only_for_what_was_sent_before(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        await log.create_topic("t")
        producer = log.producer(batch_size=1_000, buffer_memory=3_000, linger_ms=0, acks="all")
        refused: list[object] = []

        async def send() -> None:
            while not refused:
                try:
                    await producer.send("t", b"v" * 300)
                except ClosedError as error:
                    refused.append(error)

        tasks = [asyncio.ensure_future(send()) for _ in range(100)]
        await until(lambda: bool(producer._underneath._waiting))
        await producer.flush()
        await producer.close()
        await asyncio.gather(*tasks)


@pytest.mark.parametrize("size", [10, 100_000])
def test_callbacks_run_in_the_event_loop(tmp_path: Path, size: int) -> None:
    @in_a_loop
    async def send() -> None:
        async with aio.open(tmp_path / "log") as log:
            await log.create_topic("t")
            producer = log.producer(linger_ms=0)
            threads: list[threading.Thread] = []
            for _ in range(2):
                future = producer.send(
                    "t",
                    b"v" * size,
                    on_delivery=lambda place, error: threads.append(threading.current_thread()),
                )
                future.add_done_callback(lambda _: threads.append(threading.current_thread()))
                await producer.flush()
            assert threads == [threading.main_thread()] * 4

    send()


@in_a_loop
async def test_the_event_loop_does_not_wait_for_a_thread_that_appends(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t")
        producer = log.producer(linger_ms=0)
        await producer.send("t", b"first")
        for lock in (producer._underneath._lanes["t"]._appending, topic.blocking.partition(0)._state.lock):
            held, let_go = threading.Event(), threading.Event()

            def hold(
                lock: Any = lock, held: threading.Event = held, let_go: threading.Event = let_go
            ) -> None:
                with lock:
                    held.set()
                    let_go.wait(30)

            holder = threading.Thread(target=hold)
            holder.start()
            await until(held.is_set)
            sent, appended = producer.send("t", b"v"), asyncio.ensure_future(topic.append(b"v"))
            await asyncio.sleep(0.01)  # the loop goes on
            assert not sent.done()
            let_go.set()
            await asyncio.gather(sent, appended)
            holder.join()


@in_a_loop
async def test_the_result_of_a_record_on_its_way_is_not_waited_for_in_the_loop(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log:
        await log.create_topic("t")
        producer = log.producer(linger_ms=60_000)
        future = producer.send("t", b"v")
        with pytest.raises(asyncio.InvalidStateError, match="await the future"):
            future.result()
        await producer.flush()
        assert future.result().offset == 0


@in_a_loop
async def test_a_full_disk_fails_records_after_their_own_delivery_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t")
        producer = log.producer(batch_size=1_000, linger_ms=60_000, delivery_timeout_ms=120_000)

        def append(*_: object) -> None:
            raise DiskFullError("a file", "full")

        with monkeypatch.context() as patch:
            patch.setattr(topic.blocking.partition(0), "append_encoded", append)
            futures = []
            for _ in range(6):  # a batch each
                futures.append(producer.send("t", b"v" * 400))
                producer._underneath._filling["t"].created -= 120
                futures.append(producer.send("t", b"v" * 900))
            found = await asyncio.gather(*futures, return_exceptions=True)
            assert {type(one) for one in found} == {DiskFullError}
        with pytest.raises(DiskFullError):
            await producer.flush()


def test_records_that_waited_when_the_loop_ended_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def leave() -> commitlog.CommitLog:
        log = await aio.open(tmp_path / "log")
        await log.create_topic("t")
        producer = log.producer(batch_size=1_000, buffer_memory=5_000, linger_ms=0)
        Held(producer)
        await fill(producer)
        producer.send("t", b"late")
        return log.blocking

    log = asyncio.run(leave())
    log.close()
    assert "1 records that waited for room were not sent" in caplog.text


@in_a_loop
async def test_what_a_callback_sends_comes_after_what_waits(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log", mode="shared") as log:
        topic = await log.create_topic("t", config={"max_message_bytes": 2_500})
        producer = log.producer(linger_ms=0, acks="all", batch_size=1_000, buffer_memory=8_000)
        futures: list[Any] = []

        def send_instead(_: object, error: Exception | None) -> None:
            assert isinstance(error, RecordTooLargeError)
            futures.extend(producer.send("t", b"%d" % number + b"v" * 1_200) for number in range(5))

        producer.send("t", b"v" * 2_600, on_delivery=send_instead)
        futures += [producer.send("t", b"second"), producer.send("t", b"third")]
        for _ in range(2):
            await producer.flush()
        await asyncio.gather(*futures)
        found = [(record.value or b"")[:6].rstrip(b"v") async for record in topic[0].records()]
        assert found == [b"second", b"third", *(b"%d" % number for number in range(5))]


@in_a_loop
async def test_producers_that_wait_do_not_keep_others_from_working(tmp_path: Path) -> None:
    async with aio.open(tmp_path / "log") as log, aio.open(tmp_path / "other") as other:
        await log.create_topic("t")
        topic = await other.create_topic("t")
        flushes, begun, go_on = [], list[bool](), threading.Event()
        for _ in range(MOST_THREADS + 1):
            producer = log.producer()

            def flush(real: Callable[[], None] = producer._underneath.flush) -> None:
                begun.append(True)
                go_on.wait()
                real()

            producer._underneath.flush = flush  # type: ignore[method-assign]
            flushes.append(asyncio.ensure_future(producer.flush()))
        await until(lambda: len(begun) == len(flushes))
        assert await topic.append(b"v", sync=True) == (0, 0)
        go_on.set()
        await asyncio.gather(*flushes)


@in_a_loop
async def test_close_does_not_wait_for_room_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aio.open(tmp_path / "log") as log:
        topic = await log.create_topic("t")

        def append(*_: object) -> None:
            raise DiskFullError("a file", "full")

        monkeypatch.setattr(topic.blocking.partition(0), "append_encoded", append)
        producer = log.producer(batch_size=1_000, buffer_memory=5_000, linger_ms=0)

        async def send() -> object:
            return await producer.send("t", b"v" * 900)

        sends = [asyncio.ensure_future(outcome(send())) for _ in range(30)]
        await asyncio.sleep(0)
        with pytest.raises(DiskFullError):
            await producer.close()
        assert {type(one) for one in await asyncio.gather(*sends)} == {DiskFullError}
