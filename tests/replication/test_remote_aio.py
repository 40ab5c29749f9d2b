"""aio.connect: topics and partitions of other machines, from an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from aio.running import in_a_loop, outcome, until

from commitlog import ClosedError, CommitLog, CommitLogError, UnknownTopicError, aio
from commitlog.aio.remote import RemoteLog
from commitlog.errors import ConnectionFailedError, NotLeaderError, PartitionFailedError
from commitlog.replication.messages import Append, Read
from commitlog.replication.refusals import refused

from .conftest import MakeTransport
from .lone_node import Cluster, LoneNode


@pytest.fixture
def node(log: CommitLog, make_transport: MakeTransport) -> Iterator[LoneNode]:
    made = LoneNode(Cluster(log), make_transport())
    yield made
    made.close()


@in_a_loop
async def test_records_are_appended_read_and_followed(node: LoneNode) -> None:
    async with aio.connect(node.address) as log:
        topic = await log.create_topic("t", partitions=2)
        assert await log.topics() == ["t"]
        assert await topic.append(b"a", partition=1) == (1, 0)
        assert await topic.append_many([b"b", b"c"], partition=1) == {1: range(1, 3)}
        assert await topic[1].append(b"d") == 3
        assert await topic[0].append_many([b"e", b"f"]) == range(2)
        assert await topic[0].append_arrow(pa.table({"value": [b"g"]})) == range(2, 3)
        assert [record.value async for record in topic[1].records()] == [b"a", b"b", b"c", b"d"]
        assert await topic[1].offsets() == (0, 4)
        assert (await topic[1].get(2)).value == b"c"
        assert (await topic.to_arrow()).num_rows == 7
        following = topic[1].follow(2)
        found = [(await anext(following)).value for _ in range(2)]
        waiting = asyncio.ensure_future(anext(following))
        await asyncio.sleep(0.01)
        await topic[1].append(b"e")
        assert [*found, (await waiting).value] == [b"c", b"d", b"e"]
        batches, values = topic[1].follow_batches(0), list[bytes | None]()
        while batches.offset != 5:
            values += [record.value for record in (await anext(batches)).records()]
        assert values == [b"a", b"b", b"c", b"d", b"e"]
        with pytest.raises(UnknownTopicError):
            await log.topic("no-such-topic")


@in_a_loop
async def test_followers_wait_without_a_thread_each(log: CommitLog, node: LoneNode) -> None:
    partition = log.create_topic("t").partition(0)
    async with aio.connect(node.address) as remote:
        topic = await remote.topic("t")
        before = threading.active_count()
        tasks = [asyncio.ensure_future(anext(topic[0].follow(0))) for _ in range(200)]
        await until(lambda: len(node.service._waiting) == 200)
        assert threading.active_count() <= before + 9  # the client's eight, and one of the server
        partition.append(b"news")
        assert {record.value for record in await asyncio.gather(*tasks)} == {b"news"}


@in_a_loop
async def test_closing_ends_every_wait(log: CommitLog, node: LoneNode) -> None:
    log.create_topic("t")
    remote = await aio.connect(node.address)
    topic = await remote.topic("t")
    tasks = [asyncio.ensure_future(anext(topic[0].follow(0))) for _ in range(5)]
    await until(lambda: len(node.service._waiting) == 5)
    await remote.close()
    for task in tasks:
        assert isinstance(await outcome(task), ClosedError)


@in_a_loop
async def test_a_cluster_that_is_away_is_told() -> None:
    with pytest.raises(ConnectionFailedError):
        await aio.connect("127.0.0.1:1", timeout_ms=200)


@pytest.mark.parametrize("error", [PartitionFailedError("t-0", "the disk"), NotLeaderError("t-0", None)])
def test_a_refusal_is_raised_after_some_tries(log: CommitLog, node: LoneNode, error: CommitLogError) -> None:
    @in_a_loop
    async def follow() -> None:
        log.create_topic("t")
        async with aio.connect(node.address, timeout_ms=500) as remote:
            topic = await remote.topic("t")
            node.intercept = lambda message, reply: (
                isinstance(message, Read) and bool(reply(refused(error)) or 1)
            )
            node.asked.clear()
            assert type(await outcome(anext(topic[0].follow(0)))) is type(error)
            assert type(await outcome(topic[0].wait_for(0))) is type(error)
            assert len(node.asked) < 60  # with pauses

    follow()


@in_a_loop
async def test_a_follower_that_is_cancelled_again_and_again_has_one_request_at_the_leader(
    log: CommitLog, node: LoneNode
) -> None:
    partition = log.create_topic("t").partition(0)
    async with aio.connect(node.address) as remote:
        following = (await remote.topic("t"))[0].follow(0)
        for _ in range(30):
            waiting = asyncio.ensure_future(anext(following))
            await until(lambda: len(node.service._waiting) == 1)
            waiting.cancel()
            assert isinstance(await outcome(waiting), asyncio.CancelledError)
        partition.append(b"news")
        assert (await anext(following)).value == b"news"
        asked = [one for one in node.asked if isinstance(one, Read) and one.max_wait_ms and not one.max_bytes]
        assert len(asked) == 1


@in_a_loop
async def test_a_cluster_that_does_not_answer_holds_up_nothing_else(
    log: CommitLog, node: LoneNode, tmp_path: Path
) -> None:
    log.create_topic("t")
    remote = await aio.connect(node.address)
    topic = await remote.topic("t")
    node.intercept = lambda message, reply: True
    calls: list[asyncio.Future[object]] = [asyncio.ensure_future(topic[0].append(b"v")) for _ in range(20)]
    calls += [asyncio.ensure_future(topic[0].get(0)) for _ in range(20)]
    away = [asyncio.ensure_future(opened(aio.connect("127.0.0.1:1", timeout_ms=10_000))) for _ in range(5)]
    await until(lambda: any(isinstance(message, Append | Read) for message in node.asked))
    async with aio.open(tmp_path / "local") as local:
        await (await local.create_topic("t")).append(b"v", sync=True)
    await remote.close()  # does not queue behind them
    for call in calls:
        assert isinstance(await outcome(call), CommitLogError)
    for one in away:
        one.cancel()
    await asyncio.gather(*away, return_exceptions=True)


async def opened(opening: Awaitable[RemoteLog]) -> RemoteLog:
    return await opening
