"""CommitLog: a directory of topics, from an event loop."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Literal, Self, Unpack
from weakref import WeakSet

from commitlog import log as blocking
from commitlog.aio.consumer import Consumer
from commitlog.aio.opening import Opening, opened
from commitlog.aio.producer import LoopProducer, Producer
from commitlog.aio.topic import Topic
from commitlog.aio.transaction import Transaction
from commitlog.aio.watcher import watcher
from commitlog.aio.workers import in_a_worker, to_the_end, whole, workers
from commitlog.clients.quotas import Quota
from commitlog.config import ConsumerSettings, LogConfig, ProducerSettings, TopicConfig
from commitlog.groups.admin import GroupDescription
from commitlog.maintenance import Health
from commitlog.metrics import LogMetrics
from commitlog.progress import Progress
from commitlog.record import TopicPartition
from commitlog.topics.topic_set import Mode
from commitlog.transactions.coordinator import TransactionDescription


def open(
    path: str | os.PathLike[str],
    *,
    mode: Mode = "w",
    config: LogConfig | None = None,
    progress: Progress | None = None,
) -> Opening[CommitLog]:
    """Open a log as commitlog.open() does: `async with aio.open("data") as log`, or `await aio.open("data")`.

    `progress` is called in another thread.
    """

    async def make() -> CommitLog:
        return CommitLog(await opened(lambda: blocking.CommitLog.open(path, mode, config, progress=progress)))

    return Opening(make)


class CommitLog:
    """The coroutines of commitlog.CommitLog. `blocking` is that log.

    It belongs to the event loop in which it was opened. Use it as an async context manager, or close() it.
    """

    def __init__(self, log: blocking.CommitLog) -> None:
        self.blocking = log
        self._clients: WeakSet[Producer | Consumer] = WeakSet()

    def __repr__(self) -> str:
        return repr(self.blocking).replace("CommitLog", "aio.CommitLog", 1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def path(self) -> str:
        """The directory."""
        return self.blocking.path

    @property
    def log_id(self) -> str | None:
        """The random id of this log, which its copies and backups keep."""
        return self.blocking.log_id

    # --- topics

    async def topics(self) -> list[str]:
        """Return the names of the topics, sorted."""
        return await in_a_worker(self.blocking.topics)

    async def topic(self, name: str) -> Topic:
        """Return a topic; UnknownTopicError if it does not exist."""
        return Topic(await in_a_worker(self.blocking.topic, name))

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: TopicConfig | Mapping[str, Any] | None = None,
        *,
        exists_ok: bool = False,
    ) -> Topic:
        """Create a topic; a dictionary as `config` overrides the log's topic_defaults."""
        return Topic(await whole(self.blocking.create_topic, name, partitions, config, exists_ok=exists_ok))

    async def delete_topic(self, name: str) -> None:
        """Delete a topic, its files and its committed offsets; those who follow it get a ClosedError."""
        await whole(self.blocking.delete_topic, name)
        watcher.look_again()

    # --- clients

    def producer(self, **settings: Unpack[ProducerSettings]) -> Producer:
        """Return a producer with the settings of ProducerConfig."""
        producer = Producer(self.blocking.producer_of(LoopProducer, settings))
        self._clients.add(producer)
        return producer

    def consumer(
        self, *topics: str | Iterable[str], **settings: Unpack[ConsumerSettings]
    ) -> Opening[Consumer]:
        """Return a consumer with the settings of ConsumerConfig, subscribed to `topics` if any are given.

        `async with log.consumer("orders", group_id="billing") as consumer`, or `await log.consumer(...)`.
        """

        async def make() -> Consumer:
            consumer = Consumer(await opened(lambda: self.blocking.consumer(**settings)))
            self._clients.add(consumer)
            if topics:
                names = [[one] if isinstance(one, str) else one for one in topics]
                try:
                    await consumer.subscribe([name for some in names for name in some])
                except BaseException:
                    await consumer.close()
                    raise
            return consumer

        return Opening(make)

    # --- transactions

    def transaction(self, *, sync: bool = False) -> Transaction:
        """Append to several partitions, all or nothing: commits at the end of the block, aborts if it raises.

        `async with log.transaction() as txn: await txn.append("orders", b"3 apples", key=b"alice")`. With
        `sync` the commit survives a power cut.
        """
        begin = partial(self.blocking.transaction, sync=sync)
        return Transaction(begin, exclusive=self.blocking.exclusive)

    async def transactions(self) -> list[TransactionDescription]:
        """Return the last transaction of every transactional id, and those that are open without one."""
        return await in_a_worker(self.blocking.transactions)

    async def abort_transaction(self, transactional_id: str) -> None:
        """Abort the open transaction of an id, whoever owns it; TransactionStateError if there is none."""
        await whole(self.blocking.abort_transaction, transactional_id)

    # --- consumer groups

    async def groups(self) -> list[str]:
        """Return the ids of the consumer groups that have or had members, or have committed offsets."""
        return await in_a_worker(self.blocking.groups)

    async def describe_group(self, group_id: str) -> GroupDescription:
        """Return a group's members, their partitions, and the committed offset and lag of each partition."""
        return await in_a_worker(self.blocking.describe_group, group_id)

    async def reset_offsets(
        self, group_id: str, to: Literal["earliest", "latest"] | None = None, **how: Any
    ) -> dict[TopicPartition, int]:
        """Set the committed offsets of a group without members, within the log; returns the new offsets."""
        return await whole(self.blocking.reset_offsets, group_id, to, **how)

    async def commit_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for a group without members, unchecked."""
        await whole(self.blocking.commit_offsets, group_id, offsets)

    async def delete_group(self, group_id: str) -> None:
        """Delete a group without members, and its committed offsets."""
        await whole(self.blocking.delete_group, group_id)

    # --- quotas

    async def set_quota(
        self,
        client_id: str | None,
        *,
        producer_byte_rate: int | None = None,
        consumer_byte_rate: int | None = None,
    ) -> None:
        """Limit the bytes per second that clients append and read; None means no limit."""
        rates = {"producer_byte_rate": producer_byte_rate, "consumer_byte_rate": consumer_byte_rate}
        await whole(self.blocking.set_quota, client_id, **rates)

    async def quotas(self) -> dict[str | None, Quota]:
        """Return the quotas by client id; the default has the id None."""
        return await in_a_worker(self.blocking.quotas)

    async def remove_quota(self, client_id: str | None) -> None:
        """Remove a client id's quota if it has one; the default then applies."""
        await whole(self.blocking.remove_quota, client_id)

    # --- what happens

    async def health(self) -> Health:
        """Return the health of the background tasks and of all partitions."""
        return await in_a_worker(self.blocking.health)

    async def metrics(self) -> LogMetrics:
        """Return the state and the counters of the log."""
        return await in_a_worker(self.blocking.metrics)

    async def close(self) -> None:
        """Close clients, sync everything, stop the threads and release the lock. Closing twice is fine.

        Every coroutine that waits for records gets a ClosedError.
        """
        async with AsyncExitStack() as last:
            last.push_async_callback(self._close)
            # callbacks run in reverse order: consumers first, whose listeners may still send records
            for client in sorted(self._clients, key=lambda client: isinstance(client, Consumer)):
                last.push_async_callback(client.close)

    async def _close(self) -> None:
        try:
            await to_the_end(workers.begin(self.blocking.close))
        finally:
            watcher.look_again()
