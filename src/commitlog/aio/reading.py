"""Async iterators over what is stored and over what arrives.

An `await anext()` that ends early, by a timeout or a cancellation, loses nothing: the next one goes on. As
with async generators, two tasks cannot wait for the next item of the same iterator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Generic, Self, TypeVar

from commitlog.aio.turns import give_way
from commitlog.aio.workers import Job, Workers, workers

Item = TypeVar("Item")

# returns the items from an offset on, about as many as wanted, and the offset after them
Read = Callable[[int, int], tuple[list[Item], int]]

PIECE = 2_000  # records that a worker reads at a time
INLINE = 500  # records that the event loop reads itself, in about 0.1 ms


class _OneTask:
    """Lets one task at a time wait for the next item."""

    _is_waiting = False

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        if self._is_waiting:
            raise RuntimeError("another task waits for the next item of this iterator; give each its own")
        self._is_waiting = True
        try:
            yield
        finally:
            self._is_waiting = False


class Pieces(_OneTask, Generic[Item]):
    """What a blocking iterator returns; workers ask it for some items at a time, in any of their threads."""

    def __init__(
        self, begin: Callable[[], Iterator[Item]], at_a_time: int = PIECE, by: Workers = workers
    ) -> None:
        self._begin = begin
        self._at_a_time = at_a_time
        self._workers = by
        self._source: Iterator[Item] | None = None
        self._found: Iterator[Item] = iter(())
        self._job: Job[list[Item]] | None = None
        self._problem: Exception | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        for item in self._found:
            return item
        with self._waiting():
            if self._job is None:
                self._job = self._workers.begin(self._read)
            found = await asyncio.shield(self._job.future)  # if this is cancelled, the next call gets it
            self._job = None
        for item in (each := iter(found)):
            self._found = each
            return item
        raise StopAsyncIteration

    def _read(self) -> list[Item]:
        if self._problem is not None:
            raise self._problem
        if self._source is None:
            self._source = self._begin()
        found: list[Item] = []
        try:
            found.extend(islice(self._source, self._at_a_time))  # keeps what came before an error
        except Exception as problem:
            self._problem = problem
            if not found:
                raise
        return found


class Following(_OneTask, Generic[Item]):
    """What is in a partition from an offset on, and what arrives; it ends only by an error.

    `offset` is where to go on after the items that were returned: store it to resume later.
    """

    def __init__(
        self,
        offset: int | None,
        begin: Callable[[], Awaitable[int]],
        wait: Callable[[int], Awaitable[bool]],
        read: Read[Item],
        end_of: Callable[[Item], int],
        by: Workers = workers,
    ) -> None:
        """`begin` returns where to begin, if that is not known. `wait` returns, once there is something to
        read at an offset, whether the event loop may read it. `end_of` returns the offset after an item.
        """
        self.offset = offset
        self._begin = begin
        self._wait = wait
        self._read = read
        self._end_of = end_of
        self._workers = by
        self._found: Iterator[Item] = iter(())
        self._after = 0  # what was found

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        while True:
            for item in self._found:
                self.offset = self._end_of(item)
                return item
            with self._waiting():
                await self._find()

    async def _find(self) -> None:
        """Wait until there is something to read, and read it."""
        await give_way()
        if self.offset is None:
            self.offset = await self._begin()
        self.offset = max(self.offset, self._after)  # past offsets that compaction removed
        if await self._wait(self.offset):
            found, self._after = self._read(self.offset, INLINE)
        else:
            found, self._after = await self._workers.in_a_worker(self._read, self.offset, PIECE)
        self._found = iter(found)
