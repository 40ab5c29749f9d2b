"""Transactions from an event loop: they end with their block, whatever ends that, and readers wait for it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import commitlog
from commitlog import ConfigError, aio
from commitlog.aio.watcher import watcher
from commitlog.aio.workers import MOST_THREADS, workers
from commitlog.config import IsolationLevel
from commitlog.errors import (
    CommitFailedError,
    TransactionAbortedError,
    TransactionFencedError,
    TransactionStateError,
    UnknownTopicError,
)
from commitlog.transactions import transaction as blocking

from .running import in_a_loop, outcome, until

LEVELS: tuple[IsolationLevel, IsolationLevel] = ("read_committed", "read_uncommitted")


async def values(topic: aio.Topic, level: IsolationLevel = "read_committed") -> list[bytes | None]:
    return [record.value async for record in topic.records(isolation_level=level)]


class Hold:
    """Holds a call of a blocking transaction up in its worker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.has_begun, self._goes_on = threading.Event(), threading.Event()
        real = getattr(blocking.Transaction, name)

        def held(transaction: Any, *args: Any, **named: Any) -> Any:
            self.has_begun.set()
            assert self._goes_on.wait(30)
            return real(transaction, *args, **named)

        monkeypatch.setattr(blocking.Transaction, name, held)

    def let_go(self) -> None:
        self._goes_on.set()


# --- log.transaction()


@pytest.mark.parametrize("mode", ["w", "shared"])
def test_a_block_commits_records_in_several_topics_together(tmp_path: Path, mode: Any) -> None:
    @in_a_loop
    async def run() -> None:
        async with aio.open(tmp_path, mode=mode) as log:
            one, other = [await log.create_topic(name, partitions=2) for name in ("one", "other")]
            async with log.transaction(sync=True) as txn:
                await txn.append("one", b"a", key=b"k", headers=[("h", b"v")], timestamp=5)
                await txn.append_many("other", [b"b", b"c"], partition=1)
                await txn.append_arrow("one", pa.table({"value": [b"d"]}), partition=0)
                await txn.append("other", b"e", partition=1)
                assert [await values(topic) for topic in (one, other)] == [[], []]
                assert txn.is_open
            assert txn.is_committed
            assert sorted(await values(one), key=str) == [b"a", b"d"]
            assert await values(other) == [b"b", b"c", b"e"]
            assert await log.transactions() == []

    run()


@in_a_loop
async def test_a_block_that_raises_leaves_nothing(tmp_path: Path) -> None:
    async with aio.open(tmp_path) as log:
        topic = await log.create_topic("t")
        with pytest.raises(KeyError):
            async with log.transaction() as txn:
                await txn.append_many("t", [bytes(600_000)] * 2)  # is written at once
                assert await values(topic, "read_uncommitted") != []
                raise KeyError
        assert not txn.is_open
        assert await values(topic) == []
        with pytest.raises(TransactionStateError, match="aborted already"):
            await txn.append("t", b"late")
        async with log.transaction() as txn:
            await txn.append("t", b"x")
            await txn.abort()
        async with log.transaction() as txn:
            await txn.append("t", b"y")
            await txn.commit(sync=True)
        assert await values(topic) == [b"y"]


@in_a_loop
async def test_a_cancelled_block_is_aborted(tmp_path: Path) -> None:
    async with aio.open(tmp_path) as log:
        topic = await log.create_topic("t")
        entered = asyncio.Event()

        async def forever() -> None:
            async with log.transaction() as txn:
                await txn.append("t", b"x")
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.ensure_future(forever())
        await entered.wait()
        task.cancel()
        assert isinstance(await outcome(task), asyncio.CancelledError)
        assert await log.transactions() == []
        assert await values(topic) == []


def test_a_commit_that_has_begun_when_its_task_is_cancelled_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = Hold(monkeypatch, "commit")

    @in_a_loop
    async def run() -> None:
        async with aio.open(tmp_path) as log:
            topic = await log.create_topic("t")

            async def write() -> None:
                async with log.transaction() as txn:
                    await txn.append("t", b"x")

            task = asyncio.ensure_future(write())
            await until(hold.has_begun.is_set)
            task.cancel()
            await asyncio.sleep(0)
            hold.let_go()
            error = await outcome(task)
            assert isinstance(error, asyncio.CancelledError)
            assert "It had begun, and returned" in error.__notes__[0]
            assert await values(topic) == [b"x"]

    run()


@in_a_loop
async def test_a_commit_that_has_not_begun_when_its_task_is_cancelled_becomes_an_abort(
    tmp_path: Path,
) -> None:
    async with aio.open(tmp_path) as log:
        topic = await log.create_topic("t")
        entered, free = asyncio.Event(), threading.Event()

        async def write() -> None:
            async with log.transaction() as txn:
                await txn.append("t", b"x")
                busy.extend(workers.begin(free.wait) for _ in range(MOST_THREADS))
                entered.set()

        busy: list[Any] = []
        task = asyncio.ensure_future(write())
        await entered.wait()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        free.set()
        error = await outcome(task)
        assert isinstance(error, asyncio.CancelledError)
        assert "It had not begun" in error.__notes__[0]
        assert await log.transactions() == []
        assert await values(topic) == []
        await asyncio.gather(*(job.future for job in busy))


@in_a_loop
async def test_a_transaction_that_begins_as_its_task_is_cancelled_is_aborted(tmp_path: Path) -> None:
    async with aio.open(tmp_path) as log:
        begun, free = threading.Event(), threading.Event()
        real = log.blocking._coordinator.begin

        def slow(*args: Any, **named: Any) -> Any:
            found = real(*args, **named)
            begun.set()
            assert free.wait(30)
            return found

        log.blocking._coordinator.begin = slow  # type: ignore[method-assign]
        entering = asyncio.ensure_future(log.transaction().__aenter__())
        await until(begun.is_set)
        entering.cancel()
        await asyncio.sleep(0)
        free.set()
        assert isinstance(await outcome(entering), asyncio.CancelledError)
        assert await log.transactions() == []
        assert log.blocking._coordinator._live == {}


@in_a_loop
async def test_many_small_records_and_large_ones_are_all_there(tmp_path: Path) -> None:
    async with aio.open(tmp_path) as log:
        topic = await log.create_topic("t")
        sent = [b"%d" % number * (30_000 if number % 500 == 0 else 1) for number in range(5000)]
        async with log.transaction() as txn:
            for value in sent:
                await txn.append("t", value)
        assert await values(topic) == sent


# --- producers


@in_a_loop
async def test_a_producer_commits_what_is_sent_in_a_block(tmp_path: Path) -> None:
    async with aio.open(tmp_path) as log:
        topic = await log.create_topic("t")
        async with log.producer(transactional_id="p", acks=1) as producer:
            for number in range(3):
                async with producer.transaction(sync=number == 2):
                    future = producer.send("t", b"%d" % number)
                    assert await values(topic) == [b"%d" % one for one in range(number)]
                assert (await future).offset == 2 * number, "markers take offsets, too"
            await producer.commit_transaction()  # again
            (described,) = await log.transactions()
            assert (described.transactional_id, described.state) == ("p", "Empty")
            assert producer.producer_id == described.producer_id
        assert await values(topic) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("mode", ["w", "shared"])
def test_a_block_of_a_producer_that_raises_is_aborted(tmp_path: Path, mode: Any) -> None:
    @in_a_loop
    async def run() -> None:
        async with aio.open(tmp_path, mode=mode) as log:
            topic = await log.create_topic("t")
            async with log.producer(transactional_id="p", linger_ms=100_000) as producer:
                with pytest.raises(KeyError):
                    async with producer.transaction():
                        delivered = producer.send("t", b"delivered")
                        await producer.flush()
                        waits = producer.send("t", b"waits")
                        raise KeyError
                assert await delivered
                assert isinstance(await outcome(waits), TransactionAbortedError)
                await producer.begin_transaction()
                producer.send("t", b"committed")
                await producer.commit_transaction()
                await producer.begin_transaction()
                producer.send("t", b"aborted")
                await producer.abort_transaction()
                with pytest.raises(TransactionStateError):
                    async with producer.transaction():
                        await producer.begin_transaction()
            assert await values(topic) == [b"committed"]

    run()


@in_a_loop
async def test_records_that_wait_for_room_belong_to_the_transaction(tmp_path: Path) -> None:
    async with aio.open(tmp_path) as log:
        topic = await log.create_topic("t")
        async with log.producer(transactional_id="p", buffer_memory=1, batch_size=100) as producer:
            async with producer.transaction():
                sent = [asyncio.ensure_future(_awaited(producer, b"%d" % one * 50)) for one in range(50)]
                await asyncio.sleep(0)
            assert {await outcome(one) is None for one in sent} == {False}
            assert len(await values(topic)) == 50
            await producer.begin_transaction()
            sent = [asyncio.ensure_future(_awaited(producer, b"%d" % one * 50)) for one in range(50)]
            await asyncio.sleep(0)
            await producer.abort_transaction()
            outcomes = [await outcome(one) for one in sent]
            assert TransactionAbortedError in map(type, outcomes)
            await producer.begin_transaction()
            await producer.commit_transaction()  # nothing of what was refused is held against it
            assert len(await values(topic)) == 50


async def _awaited(producer: aio.Producer, value: bytes) -> object:
    return await producer.send("t", value)


@in_a_loop
async def test_a_record_that_could_not_be_sent_fails_the_commit(tmp_path: Path) -> None:
    async with aio.open(tmp_path, mode="shared") as log:
        topic = await log.create_topic("t")
        told: list[Exception | None] = []
        async with log.producer(transactional_id="p") as producer:
            with pytest.raises(UnknownTopicError):
                async with producer.transaction():
                    producer.send("t", b"x")
                    producer.send("nowhere", b"y", on_delivery=lambda _, error: told.append(error))
            assert [type(one) for one in told] == [UnknownTopicError]
        assert await values(topic) == []


@in_a_loop
async def test_bad_use_is_told(tmp_path: Path) -> None:
    async with aio.open(tmp_path) as log:
        await log.create_topic("t")
        plain, producer = log.producer(), log.producer(transactional_id="p")
        for call in (plain.begin_transaction, plain.commit_transaction, plain.abort_transaction):
            with pytest.raises(ConfigError, match="transactional_id"):
                await call()
        with pytest.raises(TransactionStateError, match="outside a transaction"):
            producer.send("t", b"before it owns its id")
        with pytest.raises(TransactionStateError, match="without begin_transaction"):
            await producer.commit_transaction()
        with pytest.raises(TransactionStateError, match="without begin_transaction"):
            await producer.abort_transaction()
        with pytest.raises(TransactionStateError, match="outside a transaction"):
            producer.send("t", b"x")
        await producer.begin_transaction()
        with pytest.raises(TransactionStateError, match="has begun already"):
            await producer.begin_transaction()
        await producer.commit_transaction()
        with pytest.raises(TransactionStateError, match="committed already"):
            await producer.abort_transaction()
        with pytest.raises(ConfigError, match="transactional_id"):
            async with log.producer(transactional_id=""):
                pass


@in_a_loop
async def test_the_next_owner_of_an_id_fences_the_one_before(tmp_path: Path) -> None:
    async with aio.open(tmp_path) as log:
        topic = await log.create_topic("t")
        async with log.producer(transactional_id="p") as first:
            await first.begin_transaction()
            await first.send("t", b"of the first")
            async with log.producer(transactional_id="p") as second:
                with pytest.raises(TransactionFencedError):
                    await first.commit_transaction()
                async with second.transaction():
                    second.send("t", b"of the second")
        assert await values(topic) == [b"of the second"]


@in_a_loop
async def test_an_open_transaction_can_be_aborted_by_its_id(tmp_path: Path) -> None:
    async with aio.open(tmp_path) as log:
        topic = await log.create_topic("t")
        async with log.producer(transactional_id="p") as producer:
            await producer.begin_transaction()
            await producer.send("t", b"x")
            await log.abort_transaction("p")
            with pytest.raises(TransactionAbortedError):
                await producer.commit_transaction()
            with pytest.raises(TransactionStateError):
                await log.abort_transaction("p")
        assert await values(topic) == []


@in_a_loop
async def test_closing_a_producer_aborts_what_is_open(tmp_path: Path) -> None:
    async with aio.open(tmp_path) as log:
        topic = await log.create_topic("t")
        async with log.producer(transactional_id="p") as producer:
            await producer.begin_transaction()
            await producer.send("t", b"x")
        assert topic[0].last_stable_offset == topic[0].high_watermark == 2
        assert topic[0].has_transactions
        assert await values(topic) == []


@in_a_loop
async def test_offsets_of_a_consumer_are_committed_with_what_came_of_its_records(tmp_path: Path) -> None:
    async with aio.open(tmp_path) as log:
        source, target = await log.create_topic("source"), await log.create_topic("target")
        for number in range(4):
            await source.append(b"%d" % number)
        settings: dict[str, Any] = {"group_id": "g", "auto_offset_reset": "earliest"}
        async with (
            log.consumer("source", **settings, enable_auto_commit=False, max_poll_records=2) as consumer,
            log.producer(transactional_id="p") as producer,
        ):
            for aborts in (False, True):
                found = await consumer.poll(30)
                await producer.begin_transaction()
                for record in found["source", 0]:  # type: ignore[index]
                    producer.send("target", record.value)
                await producer.send_offsets(consumer)
                if aborts:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
            name = commitlog.TopicPartition("source", 0)
            assert await consumer.committed(name) == 2
            metadata = await consumer.group_metadata()
            async with producer.transaction():
                await producer.send_offsets_to_transaction({name: (3, "by hand")}, metadata)
            assert await consumer.committed(name) == 3
        async with log.producer(transactional_id="p") as producer:
            with pytest.raises(CommitFailedError):
                async with producer.transaction():
                    await producer.send_offsets_to_transaction({name: 4}, metadata)
        assert await values(target) == [b"0", b"1"]


# --- readers


@in_a_loop
async def test_every_reader_leaves_out_what_is_not_committed(tmp_path: Path) -> None:
    async with aio.open(tmp_path) as log:
        topic = await log.create_topic("t")
        async with log.producer(transactional_id="a") as first, log.producer(transactional_id="b") as second:
            async with first.transaction():
                first.send("t", b"committed", key=b"k", timestamp=1)
            await first.begin_transaction()
            await first.send("t", b"aborted", key=b"k", timestamp=2)
            await first.abort_transaction()
            await second.begin_transaction()
            await second.send("t", b"open", key=b"k", timestamp=3)
            for level, expected in zip(
                LEVELS, ([b"committed"], [b"committed", b"aborted", b"open"]), strict=True
            ):
                partition = topic[0]
                assert await values(topic, level) == expected
                assert [one.value async for one in partition.records(isolation_level=level)] == expected
                batches = [one async for one in partition.batches(isolation_level=level)]
                assert [row.value for one in batches for row in one.records()] == expected
                for whole in (topic, partition):
                    table = await whole.to_arrow(isolation_level=level)
                    assert table["value"].to_pylist() == expected
                    pieces = [one async for one in whole.to_reader(isolation_level=level)]
                    assert [row for one in pieces for row in one["value"].to_pylist()] == expected
                    assert (await whole.latest(isolation_level=level))[b"k"] == expected[-1]
                assert await partition.count_records(0, isolation_level=level) == len(expected)
                assert await partition.lag(0, isolation_level=level) == len(expected)
                found = await partition.offset_for_timestamp(3, isolation_level=level)
                assert found == (None if level == "read_committed" else 4)
            assert await topic[0].get(2) is None
            got = await topic[0].get(2, isolation_level="read_uncommitted")
            assert got is not None
            assert got.value == b"aborted"


@pytest.mark.parametrize("mode", ["w", "shared"])
def test_those_who_wait_are_woken_by_the_marker(tmp_path: Path, mode: Any) -> None:
    @in_a_loop
    async def run() -> None:
        async with aio.open(tmp_path, mode=mode) as log:
            topic = await log.create_topic("t")
            partition = topic[0]
            async with (
                log.producer(transactional_id="p") as producer,
                log.consumer("t") as consumer,
                log.consumer("t", isolation_level="read_uncommitted") as impatient,
            ):
                following, batches = partition.follow(0), partition.follow_batches(0)
                eager = partition.follow(0, isolation_level="read_uncommitted")
                waits: list[Any] = [
                    asyncio.ensure_future(one)
                    for one in (anext(following), anext(batches), partition.wait_for(0), consumer.poll(30))
                ]
                await until(lambda: watcher.waiting >= 4)
                await producer.begin_transaction()
                await producer.send("t", b"x")
                await partition.wait_for(0, isolation_level="read_uncommitted")
                assert (await anext(eager)).value == b"x"
                early = await anext(partition.follow_batches(0, isolation_level="read_uncommitted"))
                assert [record.value for record in early.records()] == [b"x"]
                assert [len(one) for one in (await impatient.poll(30)).values()] == [1]
                assert not any(wait.done() for wait in waits)
                await producer.commit_transaction()
                record, batch, _, polled = await asyncio.gather(*waits)
                assert record.value == b"x"
                assert len(batch) == 1
                assert [len(one) for one in polled.values()] == [1]

    run()


@in_a_loop
async def test_a_position_inside_an_open_transaction_waits_without_turning_in_circles(tmp_path: Path) -> None:
    async with aio.open(tmp_path) as log:
        topic = await log.create_topic("t")
        async with log.producer(transactional_id="p") as producer, log.consumer() as consumer:
            await producer.begin_transaction()
            for number in range(3):
                await producer.send("t", b"%d" % number)
            await consumer.assign([("t", 0)])
            await consumer.seek(("t", 0), 2)
            following = topic[0].follow(2)
            waits: list[Any] = [
                asyncio.ensure_future(anext(following)),
                asyncio.ensure_future(consumer.poll(30)),
            ]
            await until(lambda: watcher.waiting == 2)
            assert [place.is_at_end for place in consumer.blocking._fetcher.places.values()] == [True]
            await producer.commit_transaction()
            record, found = await asyncio.gather(*waits)
            assert record.value == b"2"
            assert [[one.value for one in rows] for rows in found.values()] == [[b"2"]]


@in_a_loop
async def test_followers_from_afar_wait_for_the_marker(tmp_path: Path) -> None:
    async with aio.open(tmp_path) as log:
        await log.create_topic("t")
        with commitlog.serve(log.blocking) as server:
            async with aio.connect(server.address) as remote, log.producer(transactional_id="p") as producer:
                partition = (await remote.topic("t"))[0]
                waits: list[Any] = [
                    asyncio.ensure_future(one) for one in (anext(partition.follow(0)), partition.wait_for(0))
                ]
                await producer.begin_transaction()
                await producer.send("t", b"x")
                eager = partition.follow(0, isolation_level="read_uncommitted")
                assert (await anext(eager)).value == b"x"
                await partition.wait_for(0, isolation_level="read_uncommitted")
                assert await partition.offsets() == (0, 0)
                assert await partition.offsets(isolation_level="read_uncommitted") == (0, 1)
                assert not any(wait.done() for wait in waits)
                await producer.commit_transaction()
                record, _ = await asyncio.gather(*waits)
                assert record.value == b"x"
                with pytest.raises(ConfigError, match="the process that has the log"):
                    remote.producer(transactional_id="p")
                with pytest.raises(ConfigError, match="the process that has the log"):
                    remote.transaction()
