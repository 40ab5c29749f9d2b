"""aio.connect: topics and partitions of other machines, from an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from aio.running import in_a_loop, outcome

from commitlog import ClosedError, CommitLog, UnknownTopicError, aio
from commitlog.errors import ConnectionFailedError

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
        assert [record.value async for record in topic[1].records()] == [b"a", b"b", b"c", b"d"]
        assert await topic[1].offsets() == (0, 4)
        assert (await topic[1].get(2)).value == b"c"
        assert (await topic.to_arrow()).num_rows == 4
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
        tasks = [asyncio.ensure_future(anext(topic[0].follow(0))) for _ in range(200)]
        await asyncio.sleep(0.2)
        assert threading.active_count() < 40
        partition.append(b"news")
        assert {record.value for record in await asyncio.gather(*tasks)} == {b"news"}


@in_a_loop
async def test_closing_ends_every_wait(log: CommitLog, node: LoneNode) -> None:
    log.create_topic("t")
    remote = await aio.connect(node.address)
    topic = await remote.topic("t")
    tasks = [asyncio.ensure_future(anext(topic[0].follow(0))) for _ in range(5)]
    await asyncio.sleep(0.05)
    await remote.close()
    for task in tasks:
        assert isinstance(await outcome(task), ClosedError)


@in_a_loop
async def test_a_cluster_that_is_away_is_told() -> None:
    with pytest.raises(ConnectionFailedError):
        await aio.connect("127.0.0.1:1", timeout_ms=200)
