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

from commitlog.aio.consumer import Consumer, RebalanceListener
from commitlog.aio.log import CommitLog, Opening, open
from commitlog.aio.partition import Partition
from commitlog.aio.producer import Producer
from commitlog.aio.reading import Following, Pieces
from commitlog.aio.topic import Topic

__all__ = [
    "CommitLog", "Consumer", "Following", "Opening", "Partition", "Pieces", "Producer", "RebalanceListener",
    "Topic", "open",
]  # fmt: skip
