"""Transaction: records for several partitions, all or nothing, from an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Self

from commitlog.aio.partition import INLINE_BYTES, size_of
from commitlog.aio.turns import give_way
from commitlog.aio.workers import end_of, finish, to_the_end, whole, workers
from commitlog.record import ArrowData, Buffer, Headers
from commitlog.transactions import transaction as blocking

# the event loop adds records to what a transaction holds up to here: far below what it writes at once
_HELD_BYTES, _HELD_RECORDS = 4 * INLINE_BYTES, 2_000


class Transaction:
    """The coroutines of the transaction that commitlog.CommitLog.transaction() returns.

    `async with log.transaction() as txn` commits at the end of the block, and aborts if it raises or is
    cancelled.
    """

    def __init__(self, begin: Callable[[], blocking.Transaction], *, exclusive: bool) -> None:
        """`begin` begins it, in a worker. If `exclusive`, topics are found without a look at the files."""
        self._begin = begin
        self._blocking: blocking.Transaction | None = None
        self._held_bytes = 0 if exclusive else _HELD_BYTES
        self._held_records = 0

    @property
    def blocking(self) -> blocking.Transaction:
        """The transaction that it uses, once it has begun."""
        assert self._blocking is not None, "use it with `async with`"
        return self._blocking

    def __repr__(self) -> str:
        return "<aio.Transaction>" if self._blocking is None else f"<aio.{repr(self._blocking)[1:]}"

    @property
    def is_open(self) -> bool:
        """Whether it is neither committed nor aborted."""
        return self.blocking.is_open

    @property
    def is_committed(self) -> bool:
        """Whether it is committed."""
        return self.blocking.is_committed

    # --- records

    async def append(
        self,
        topic: str,
        value: Buffer | None,
        *,
        key: Buffer | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> None:
        """Append a record to the partition of its key, or to `partition`, when the transaction commits."""
        given: dict[str, Any] = {
            "key": key, "headers": headers, "timestamp": timestamp, "partition": partition,
        }  # fmt: skip
        await give_way()
        size = size_of([value], [key], [headers])
        if size is not None and self._held_bytes + size <= _HELD_BYTES and self._held_records < _HELD_RECORDS:
            lock = self.blocking._lock  # a worker may be appending
            if lock.acquire(blocking=False):
                try:
                    self.blocking.append(topic, value, **given)
                    self._held_bytes += size
                    self._held_records += 1
                finally:
                    lock.release()
                return
        await whole(self.blocking.append, topic, value, **given)

    async def append_many(
        self,
        topic: str,
        values: Iterable[Buffer | None],
        *,
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[Headers] | None = None,
        timestamps: Iterable[int] | None = None,
        partition: int | None = None,
    ) -> None:
        """Append records to the partitions of their keys, or all to `partition`."""
        self._held_bytes = _HELD_BYTES  # it may hold so much that another record makes it write
        await whole(
            self.blocking.append_many, topic, values, keys=keys, headers=headers, timestamps=timestamps,
            partition=partition,
        )  # fmt: skip

    async def append_arrow(self, topic: str, data: ArrowData, *, partition: int | None = None) -> None:
        """Append Arrow data as Topic.append_arrow() does."""
        self._held_bytes = _HELD_BYTES
        await whole(self.blocking.append_arrow, topic, data, partition=partition)

    # --- the end

    async def commit(self, *, sync: bool = False) -> None:
        """Make all records visible before the end of the block; with `sync` also after a power cut."""
        await whole(self.blocking.commit, sync=sync)

    async def abort(self) -> None:
        """Discard all records before the end of the block. Aborting twice is fine."""
        await to_the_end(workers.begin(self.blocking.abort))

    async def __aenter__(self) -> Self:
        job = workers.begin(self._begin)
        try:
            self._blocking = await end_of(job)
        except asyncio.CancelledError:
            if job.future.done() and job.future.exception() is None:
                begun = job.future.result()
                await finish(workers.begin(lambda: begun.__exit__(asyncio.CancelledError)))
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Commit, unless the block raised: then abort."""
        end = self.blocking.__exit__
        if kind is None:
            job = workers.begin(lambda: end(None))
            try:
                await end_of(job)
                return
            except asyncio.CancelledError:
                if not job.future.done():  # the commit had not begun
                    await finish(workers.begin(lambda: end(asyncio.CancelledError)))
                raise
        await to_the_end(workers.begin(lambda: end(kind)))
