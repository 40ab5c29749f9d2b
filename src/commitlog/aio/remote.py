"""RemoteLog: the topics of a cluster on other machines, from an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal, NoReturn, Self, Unpack

from commitlog.aio.opening import Opening, opened
from commitlog.aio.partition import ReadablePartition
from commitlog.aio.topic import ReadableTopic
from commitlog.aio.workers import Workers, to_the_end, workers
from commitlog.config import IsolationLevel, ProducerSettings, TopicConfig
from commitlog.record import ArrowData, Buffer, Headers
from commitlog.replication.messages import Acks
from commitlog.replication.remote import remote_log, remote_partition
from commitlog.replication.transports.tls import TlsConfig

_MOST_THREADS = 8


def connect(
    addresses: str,
    *,
    tls: TlsConfig | None = None,
    secret: bytes | None = None,
    timeout_ms: int = 30_000,
    read_from: Literal["leader", "any"] = "leader",
) -> Opening[RemoteLog]:
    """Connect to a cluster, as commitlog.connect() does: `async with aio.connect("host:9000") as log`."""
    make = partial(
        remote_log.RemoteLog.open,
        addresses,
        tls=tls,
        secret=secret,
        timeout_ms=timeout_ms,
        read_from=read_from,
    )

    async def connected() -> RemoteLog:
        by = Workers(_MOST_THREADS)
        return RemoteLog(await opened(make, by), by)

    return Opening(connected)


class RemoteLog:
    """The coroutines of the log that commitlog.connect() returns. `blocking` is that log.

    It has threads of its own: a cluster that is away holds up nothing else.
    """

    def __init__(self, log: remote_log.RemoteLog, by: Workers) -> None:
        self.blocking = log
        self._workers = by

    def __repr__(self) -> str:
        return f"<aio.{repr(self.blocking).removeprefix('<')}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def log_id(self) -> str | None:
        """The id of the cluster."""
        return self.blocking.log_id

    async def topics(self) -> list[str]:
        """Return the names of the topics, sorted."""
        return await self._workers.in_a_worker(self.blocking.topics)

    async def topic(self, name: str) -> RemoteTopic:
        """Return a topic; UnknownTopicError if it does not exist."""
        return RemoteTopic(await self._workers.whole(self.blocking.topic, name), self._workers)

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: TopicConfig | Mapping[str, Any] | None = None,
        *,
        replication_factor: int = 1,
        exists_ok: bool = False,
    ) -> RemoteTopic:
        """Create a topic, and return it once all its partitions have a leader."""
        topic = await self._workers.whole(
            self.blocking.create_topic,
            name,
            partitions,
            config,
            replication_factor=replication_factor,
            exists_ok=exists_ok,
        )
        return RemoteTopic(topic, self._workers)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records."""
        await self._workers.whole(self.blocking.delete_topic, name)

    def producer(self, **settings: Unpack[ProducerSettings]) -> NoReturn:
        """Raise ConfigError: producers and transactions need the process that has the log."""
        self.blocking.producer(**settings)

    def transaction(self, *, sync: bool = False) -> NoReturn:
        """Raise ConfigError: transactions need the process that has the log."""
        self.blocking.transaction(sync=sync)

    async def close(self) -> None:
        """End all connections. Those who follow a partition get a ClosedError. Idempotent."""
        await to_the_end(workers.begin(self.blocking.close))  # its own may all wait for an answer


class RemoteTopic(ReadableTopic["RemotePartition"]):
    """A topic of a RemoteLog; appends take `acks`."""

    blocking: remote_log.RemoteTopic

    def __init__(self, topic: remote_log.RemoteTopic, by: Workers) -> None:
        super().__init__(topic, lambda partition: RemotePartition(partition, by), by)

    async def append(
        self,
        value: Buffer | None,
        *,
        key: Buffer | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
        partition: int | None = None,
        sync: bool = False,
        acks: Acks = "all",
    ) -> tuple[int, int]:
        """Append a record to the partition of its key, or to `partition`; return (partition, offset)."""
        return await self._workers.whole(
            self.blocking.append,
            value,
            key=key,
            headers=headers,
            timestamp=timestamp,
            partition=partition,
            sync=sync,
            acks=acks,
        )

    async def append_many(
        self,
        values: Iterable[Buffer | None],
        *,
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[Headers] | None = None,
        timestamps: Iterable[int] | None = None,
        partition: int | None = None,
        sync: bool = False,
        acks: Acks = "all",
    ) -> dict[int, range]:
        """Append records, each to the partition of its key; returns the offsets by partition."""
        return await self._workers.whole(
            self.blocking.append_many,
            values,
            keys=keys,
            headers=headers,
            timestamps=timestamps,
            partition=partition,
            sync=sync,
            acks=acks,
        )

    async def append_arrow(
        self, data: ArrowData, *, partition: int | None = None, sync: bool = False, acks: Acks = "all"
    ) -> dict[int, range]:
        """Append Arrow data, each record to the partition of its key; returns the offsets by partition."""
        return await self._workers.whole(
            self.blocking.append_arrow, data, partition=partition, sync=sync, acks=acks
        )


class RemotePartition(ReadablePartition):
    """A partition of a RemoteLog."""

    blocking: remote_partition.RemotePartition

    def __init__(self, partition: remote_partition.RemotePartition, by: Workers) -> None:
        super().__init__(partition, by)

    async def offsets(self, *, isolation_level: IsolationLevel = "read_committed") -> tuple[int, int]:
        """Return the first offset that may be read, and the one at which readers stop."""
        return await self._workers.in_a_worker(self.blocking.readable_range, isolation_level=isolation_level)

    async def append(
        self,
        value: Buffer | None,
        *,
        key: Buffer | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
        sync: bool = False,
        acks: Acks = "all",
    ) -> int:
        """Append a record; return its offset once all in-sync replicas (with acks=1, the leader) have it."""
        return await self._workers.whole(
            self.blocking.append, value, key=key, headers=headers, timestamp=timestamp, sync=sync, acks=acks
        )

    async def append_many(
        self,
        values: Iterable[Buffer | None],
        *,
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[Headers] | None = None,
        timestamps: Iterable[int] | None = None,
        sync: bool = False,
        acks: Acks = "all",
    ) -> range:
        """Append records as one batch, all or nothing, and return their offsets."""
        return await self._workers.whole(
            self.blocking.append_many,
            values,
            keys=keys,
            headers=headers,
            timestamps=timestamps,
            sync=sync,
            acks=acks,
        )

    async def append_arrow(self, data: ArrowData, *, sync: bool = False, acks: Acks = "all") -> range:
        """Append the columns value, key, timestamp and headers of Arrow data as one batch."""
        return await self._workers.whole(self.blocking.append_arrow, data, sync=sync, acks=acks)

    async def wait_for(self, offset: int, *, isolation_level: IsolationLevel = "read_committed") -> None:
        """Wait until `offset` can be read. A request waits at the leader, and no thread here."""
        await self._waiting(isolation_level)(offset)

    def _waiting(self, isolation_level: IsolationLevel) -> Callable[[int], Awaitable[bool]]:
        return _LongPoll(self.blocking, isolation_level, self._workers).wait


Answer = bool | Exception | None


class _LongPoll:
    """Waits for the records of one follower. One request at a time waits at the leader: if the follower is
    cancelled and comes again, it waits for the same.
    """

    def __init__(
        self, partition: remote_partition.RemotePartition, isolation_level: IsolationLevel, by: Workers
    ) -> None:
        self._partition = partition
        self._isolation_level: IsolationLevel = isolation_level
        self._workers = by
        self._offset = -1
        self._answer: asyncio.Future[Answer] | None = None

    async def wait(self, offset: int) -> bool:
        """Wait until `offset` can be read; returns False: a worker reads it, over the network."""
        while True:
            if self._answer is None or self._offset != offset:
                self._offset, self._answer = offset, self._asked(offset)
            answer = await asyncio.shield(self._answer)
            self._answer = None
            if isinstance(answer, Exception):
                raise answer
            if answer is None:  # an ordinary request says why, or succeeds after some tries
                await self._workers.in_a_worker(lambda: self._partition.high_watermark)
            elif answer:
                return False

    def _asked(self, offset: int) -> asyncio.Future[Answer]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()

        def answered(answer: Answer) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(future.set_result, answer)

        def ask() -> None:
            try:
                self._partition.ask_when_readable(offset, answered, isolation_level=self._isolation_level)
            except Exception as error:
                answered(error)

        self._workers.begin(ask)
        return future
