"""RemoteLog: the topics of a cluster on other machines, from an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal, ParamSpec, Self, TypeVar

from commitlog.aio.opening import Opening, opened
from commitlog.aio.partition import ReadablePartition
from commitlog.aio.topic import ReadableTopic
from commitlog.aio.workers import Workers, end_of
from commitlog.config import TopicConfig
from commitlog.record import ArrowData, Buffer, Headers
from commitlog.replication.messages import Acks
from commitlog.replication.remote import remote_log, remote_partition
from commitlog.replication.transports.tls import TlsConfig

Given = ParamSpec("Given")
Result = TypeVar("Result")

_network = Workers(8)  # a cluster that is away must not hold up what the others do


async def _asked(call: Callable[Given, Result], *args: Given.args, **named: Given.kwargs) -> Result:
    """Make a call that asks a node, whole or not at all; see end_of()."""
    return await end_of(_network.begin(lambda: call(*args, **named)))


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
        return RemoteLog(await opened(make))

    return Opening(connected)


class RemoteLog:
    """The coroutines of the log that commitlog.connect() returns. `blocking` is that log."""

    def __init__(self, log: remote_log.RemoteLog) -> None:
        self.blocking = log

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
        return await _asked(self.blocking.topics)

    async def topic(self, name: str) -> RemoteTopic:
        """Return a topic; UnknownTopicError if it does not exist."""
        return RemoteTopic(await _asked(self.blocking.topic, name))

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
        return RemoteTopic(
            await _asked(
                self.blocking.create_topic,
                name,
                partitions,
                config,
                replication_factor=replication_factor,
                exists_ok=exists_ok,
            )
        )

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records."""
        await _asked(self.blocking.delete_topic, name)

    async def close(self) -> None:
        """End all connections. Those who follow a partition get a ClosedError. Idempotent."""
        await _asked(self.blocking.close)


class RemoteTopic(ReadableTopic["RemotePartition"]):
    """A topic of a RemoteLog; appends take `acks`."""

    blocking: remote_log.RemoteTopic

    def __init__(self, topic: remote_log.RemoteTopic) -> None:
        super().__init__(topic, RemotePartition)

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
        return await _asked(
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
        return await _asked(
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
        return await _asked(self.blocking.append_arrow, data, partition=partition, sync=sync, acks=acks)


class RemotePartition(ReadablePartition):
    """A partition of a RemoteLog."""

    blocking: remote_partition.RemotePartition

    def __init__(self, partition: remote_partition.RemotePartition) -> None:
        super().__init__(partition)

    async def offsets(self) -> tuple[int, int]:
        """Return the first offset that may be read, and the one at which readers stop."""
        return await _asked(self.blocking.readable_range)

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
        return await _asked(
            self.blocking.append, value, key=key, headers=headers, timestamp=timestamp, sync=sync, acks=acks
        )

    async def wait_for(self, offset: int) -> None:
        """Wait until `offset` can be read. A request waits at the leader, and no thread here."""
        loop = asyncio.get_running_loop()
        while True:
            answered: asyncio.Future[bool] = loop.create_future()
            await _asked(self.blocking.ask_when_readable, offset, partial(_tell, loop, answered))
            if await answered:
                return

    async def _from(self) -> int:
        return (await self.offsets())[1]

    async def _wait(self, offset: int) -> bool:
        await self.wait_for(offset)
        return False  # a worker reads, over the network


def _tell(loop: asyncio.AbstractEventLoop, answered: asyncio.Future[bool], found: bool) -> None:
    def tell() -> None:
        if not answered.done():  # cancelled
            answered.set_result(found)

    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(tell)
