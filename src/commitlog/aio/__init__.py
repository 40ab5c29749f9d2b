"""commitlog for event loops: the same names and settings, with coroutines where something may take time.

import asyncio
from commitlog import aio

async def main():
    async with aio.open("data") as log:
        orders = await log.create_topic("orders", exists_ok=True)
        await orders.append(b"three apples", key=b"alice")
        async for record in orders[0].follow(0):
            print(record.offset, record.value)

asyncio.run(main())
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from commitlog.aio.consumer import Consumer, RebalanceListener
from commitlog.aio.log import CommitLog, open
from commitlog.aio.opening import Opening
from commitlog.aio.partition import Partition
from commitlog.aio.producer import Producer
from commitlog.aio.reading import Following, Pieces
from commitlog.aio.topic import Topic
from commitlog.aio.transaction import Transaction

__all__ = [
    "CommitLog", "Consumer", "Following", "Opening", "Partition", "Pieces", "Producer", "RebalanceListener",
    "Topic", "Transaction", "connect", "open",
]  # fmt: skip

if TYPE_CHECKING:
    from commitlog.aio.remote import RemoteLog
    from commitlog.replication.transports.tls import TlsConfig


def connect(
    addresses: str,
    *,
    tls: TlsConfig | None = None,
    secret: bytes | None = None,
    timeout_ms: int = 30_000,
    read_from: Literal["leader", "any"] = "leader",
) -> Opening[RemoteLog]:
    """Connect to a cluster, as commitlog.connect() does: `async with aio.connect("host:9000") as log`."""
    from commitlog.aio import remote

    return remote.connect(addresses, tls=tls, secret=secret, timeout_ms=timeout_ms, read_from=read_from)
