"""Consumer: reads partitions in order from an event loop, alone or in a group."""

from __future__ import annotations

import asyncio
import inspect
import queue
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar

from commitlog.aio.partition import INLINE_BYTES
from commitlog.aio.reading import INLINE
from commitlog.aio.turns import give_way
from commitlog.aio.watcher import watcher
from commitlog.aio.workers import Job, Workers, end_of, in_a_worker, to_the_end
from commitlog.batches.batch import RecordBatch
from commitlog.clients import consumer as blocking
from commitlog.clients import session
from commitlog.clients.fetcher import Place
from commitlog.clients.positions import OffsetAndTimestamp
from commitlog.config import ConsumerConfig
from commitlog.errors import ClosedError, CommitLogError
from commitlog.groups.member import GroupMetadata
from commitlog.groups.offsets import Committable
from commitlog.record import ConsumerRecord, TopicPartition
from commitlog.tasks import TaskHealth

if TYPE_CHECKING:
    import pyarrow as pa

Given = ParamSpec("Given")
Result = TypeVar("Result")
Found = TypeVar("Found")
Partitions = set[TopicPartition]

_IN_THE_THREAD = 4  # times as many records are fetched for an iteration, because a thread costs about 80 us


class RebalanceListener(Protocol):
    """Callbacks for a rebalance: functions or coroutine functions, all optional, for the event loop."""

    def on_assigned(self, partitions: Partitions) -> Awaitable[None] | None:
        """Called when partitions are assigned; seek() may be called for them."""

    def on_revoked(self, partitions: Partitions) -> Awaitable[None] | None:
        """Called before partitions are released; commit() may still be called for them."""

    def on_lost(self, partitions: Partitions) -> Awaitable[None] | None:
        """Called when partitions are lost: another member may own them, and commit() would be refused."""


class _Callback:
    """A callback in the event loop; the consumer's thread waits for it, and makes its calls meanwhile."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self.has_ended = False

    def run(self, callback: Callable[[Partitions], Awaitable[None] | None], partitions: Partitions) -> None:
        """In the consumer's thread: run the callback, and raise what it raises."""
        problem: list[BaseException] = []

        async def called() -> None:
            _inside.set(self)  # for the tasks that it starts, too
            found = callback(partitions)
            if inspect.isawaitable(found):
                await found

        def end(task: asyncio.Task[None]) -> None:
            _tasks.discard(task)
            if task.cancelled():  # perhaps before it began
                problem.append(CommitLogError("the callback of a rebalance was cancelled"))
            elif (error := task.exception()) is not None:
                problem.append(error)
            self.has_ended = True
            self._calls.put(None)

        def start() -> None:
            _tasks.add(task := self._loop.create_task(called()))
            task.add_done_callback(end)

        self._loop.call_soon_threadsafe(start)
        while (job := self._calls.get()) is not None:
            job.run()
        if problem:
            raise problem[0]

    def begin(self, call: Callable[[], Result]) -> Job[Result]:
        """In the event loop: let the thread that waits make a call."""
        job = Job(call)
        self._calls.put(job)
        return job


_inside: ContextVar[_Callback | None] = ContextVar("the callback that runs", default=None)
_tasks: set[asyncio.Task[None]] = set()  # a loop keeps only weak references


class _Listener(session.RebalanceListener):
    """Passes the callbacks of the blocking consumer on to the event loop."""

    def __init__(self, consumer: Consumer, listener: Any) -> None:
        self._consumer = consumer
        self._listener = listener

    def on_assigned(self, partitions: Partitions) -> None:
        self._pass_on("on_assigned", partitions)

    def on_revoked(self, partitions: Partitions) -> None:
        self._pass_on("on_revoked", partitions)

    def on_lost(self, partitions: Partitions) -> None:
        self._pass_on("on_lost" if hasattr(self._listener, "on_lost") else "on_revoked", partitions)

    def _pass_on(self, name: str, partitions: Partitions) -> None:
        callback = getattr(self._listener, name, None)
        if callback is not None:
            self._consumer._call_back(callback, partitions)


class Consumer:
    """The coroutines of commitlog.Consumer. Use it as an async context manager, or close() it.

    Tasks of one event loop may share it, but their calls are made one after another. close() ends a poll()
    that waits, with a ClosedError. What may take long, such as a rebalance or a commit, happens in a thread
    of its own.
    """

    def __init__(self, consumer: blocking.Consumer) -> None:
        self.blocking = consumer
        self.config: ConsumerConfig = consumer.config
        self._loop = asyncio.get_running_loop()
        self._polling = asyncio.Lock()
        self._thread = Workers(1)
        self._callback: _Callback | None = None  # the one that runs
        self._closing = False
        self._changed = asyncio.Event()  # set when another task changes what a poll() waits for

    def __repr__(self) -> str:
        return repr(self.blocking).replace("Consumer", "aio.Consumer", 1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- calls of the blocking consumer

    async def _call(self, call: Callable[Given, Result], *args: Given.args, **named: Given.kwargs) -> Result:
        """Make a call in the consumer's thread, whole or not at all; see end_of()."""
        return await end_of(self._begin(lambda: call(*args, **named)))

    def _begin(self, call: Callable[[], Result]) -> Job[Result]:
        """Begin a call in the consumer's thread, also from a callback, for which that thread waits."""
        callback = _inside.get()
        if callback is None or callback.has_ended:
            return self._thread.begin(call)
        return callback.begin(call)

    async def _quick(self, call: Callable[Given, Result], *args: Given.args, **named: Given.kwargs) -> Result:
        """Make a call here, unless the consumer's thread is at work."""
        lock = self.blocking._lock
        if self._callback is None and lock.acquire(blocking=False):
            try:
                return call(*args, **named)
            finally:
                lock.release()
        return await self._call(call, *args, **named)

    async def _change(self, call: Callable[Given, None], *args: Given.args, **named: Given.kwargs) -> None:
        """Make a quick call that changes what a poll() of another task waits for."""
        try:
            await self._quick(call, *args, **named)
        finally:
            self._changed.set()

    def _call_back(
        self, callback: Callable[[Partitions], Awaitable[None] | None], partitions: Partitions
    ) -> None:
        """In the consumer's thread: let the event loop run a callback, and wait for its end."""
        before, self._callback = self._callback, _Callback(self._loop)
        try:
            self._callback.run(callback, partitions)
        finally:
            self._callback = before

    # --- what to read

    async def subscribe(
        self,
        topics: str | Iterable[str] = (),
        *,
        pattern: str | None = None,
        listener: RebalanceListener | object | None = None,
    ) -> None:
        """Subscribe to topics, or to all topics, present and future, whose full name matches `pattern`.

        In a group the members share the partitions; alone, the consumer reads all of them. The methods of the
        listener may be coroutine functions.
        """
        wrapped = None if listener is None else _Listener(self, listener)
        await self._call(self.blocking.subscribe, topics, pattern=pattern, listener=wrapped)
        self._changed.set()

    async def subscription(self) -> set[str]:
        """Return the subscribed topics."""
        return await in_a_worker(self.blocking.subscription)

    def assignment(self) -> Partitions:
        """Return the assigned partitions; in a group they change inside poll()."""
        return self.blocking.assignment()

    async def unsubscribe(self) -> None:
        """Stop reading, and leave the group."""
        await self._call(self.blocking.unsubscribe)
        self._changed.set()

    async def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions, independently of any group assignment."""
        await self._call(self.blocking.assign, partitions)
        self._changed.set()

    # --- reading

    async def poll(
        self, timeout: float = 0.0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return records, in order within each partition; wait up to `timeout` seconds if there are none.

        Rebalances happen inside poll(), so it must be called at least every max_poll_interval_ms.
        """
        fetcher = self.blocking._fetcher
        limit = blocking.at_least_1("max_records", max_records, self.config.max_poll_records)
        return await self._polled(
            timeout, lambda _: fetcher.records(limit), self.blocking._handed_over, limit
        )

    async def getmany(
        self, *, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return records as poll() does: aiokafka's name."""
        return await self.poll(timeout_ms / 1000, max_records)

    async def poll_batches(
        self, timeout: float = 0.0, max_bytes: int | None = None
    ) -> dict[TopicPartition, list[RecordBatch]]:
        """Return columnar batches, of fetch_max_bytes or just above; see poll()."""
        fetcher = self.blocking._fetcher
        limit = blocking.at_least_1("max_bytes", max_bytes, self.config.fetch_max_bytes)
        return await self._polled(timeout, lambda _: fetcher.batches(limit), self.blocking._handed_over)

    async def poll_arrow(
        self, timeout: float = 0.0, max_bytes: int | None = None
    ) -> dict[TopicPartition, pa.Table]:
        """Return Arrow tables over the mapped files, of fetch_max_bytes or just above; see poll()."""
        from commitlog.batches import arrow

        fetcher = self.blocking._fetcher
        limit = blocking.at_least_1("max_bytes", max_bytes, self.config.fetch_max_bytes)

        def tables(_: int) -> dict[TopicPartition, pa.Table]:
            return {name: arrow.table(batches) for name, batches in fetcher.batches(limit).items()}

        return await self._polled(timeout, tables, self.blocking._handed_over)

    async def _polled(
        self,
        timeout: float,
        fetch: Callable[[int], dict[TopicPartition, Found]],
        hand_over: Callable[[dict[TopicPartition, Found]], Result],
        count: int | None = None,
    ) -> Result:
        """Wait for records, and hand them over in the same step: a cancelled poll has lost none.

        `fetch` is told how many times the usual number of records it may fetch. `count` is that number; None
        if it is not records that are fetched.
        """
        consumer = self.blocking
        self._check_open()
        if _inside.get() is self._callback is not None:
            raise CommitLogError("poll() in a callback of a rebalance would wait for that callback itself")
        deadline = self._loop.time() + timeout
        await give_way()
        async with self._polling:
            with consumer._at_work():
                await self._quick(consumer._fetcher.rewind)
                while True:
                    self._changed.clear()
                    self._check_open()
                    if consumer.has_duties:
                        await self._call(self._do_duties)
                    found = await self._fetched(fetch, count)
                    self._check_open()
                    left = deadline - self._loop.time()
                    if found or left <= 0:
                        return hand_over(found)
                    await self._wait(left)

    def _check_open(self) -> None:
        self.blocking._check_usable()
        if self._closing:
            raise ClosedError("the consumer")

    def _do_duties(self) -> None:
        if not self._closing:
            with self.blocking._used():
                self.blocking._check_usable()
                self.blocking._keep_up()

    async def _fetched(
        self, fetch: Callable[[int], dict[TopicPartition, Found]], count: int | None
    ) -> dict[TopicPartition, Found]:
        """Fetch here what is in memory or has just arrived, and otherwise in the thread, as with a quota.

        Other tasks may run until the thread is done: what they have dropped, or moved, is not returned.
        """
        consumer = self.blocking
        places = consumer._fetcher.places

        def fetched(
            times: int,
        ) -> tuple[dict[TopicPartition, Found], dict[TopicPartition, tuple[Place, int]]]:
            with consumer._used():
                if self._closing or consumer._fetcher.throttle.seconds_left() > 0:
                    return {}, {}
                found = fetch(times)
                return found, {name: (places[name], places[name].version) for name in found}

        is_little = count is not None and count <= INLINE and consumer.has_in_memory(count)
        is_quick = not consumer._fetcher.throttle.is_limited and (
            is_little or consumer.is_little_ahead(INLINE_BYTES)
        )
        found, then = await (self._quick(fetched, 1) if is_quick else self._call(fetched, _IN_THE_THREAD))
        return {
            name: items
            for name, items in found.items()
            if places.get(name) is then[name][0] and then[name][0].version == then[name][1]
        }

    async def _wait(self, seconds: float) -> None:
        """Wait for records, for a change by another task, or until there is something else to do."""
        consumer, throttle = self.blocking, self.blocking._fetcher.throttle
        places = [
            place
            for place in consumer._fetcher.places.values()
            if not place.paused and not place.partition.has_ended
        ]
        if throttle.is_limited and (throttled := await self._call(throttle.seconds_left)) > 0:
            seconds, places = min(seconds, throttled), []
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._changed.wait())]
        if places:
            ends = [(place.partition, place.fetched) for place in places]
            committed = self.config.isolation_level == "read_committed"
            waits.append(asyncio.ensure_future(watcher.wait(ends, committed=committed)))
        seconds = min(seconds, consumer.seconds_to_duties)
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def __aiter__(self) -> _Records:
        return _Records(self)

    # --- committing

    async def commit(self, offsets: Mapping[tuple[str, int], Committable] | None = None) -> None:
        """Commit offsets, by default the positions: where the group continues after this member."""
        await self._call(self.blocking.commit, offsets)

    async def committed(self, partition: tuple[str, int]) -> int | None:
        """Return the offset that the group has committed for a partition, or None."""
        return await self._call(self.blocking.committed, partition)

    async def positions(self) -> dict[TopicPartition, int]:
        """Return the position in each assigned partition that has one: what commit() commits."""
        return await self._call(self.blocking.positions)

    async def group_metadata(self) -> GroupMetadata:
        """Return the consumer's identity in its group, for programs that store offsets with their results."""
        return await self._call(self.blocking.group_metadata)

    # --- positions

    async def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Continue at `offset` with the next poll()."""
        await self._change(self.blocking.seek, partition, offset)

    async def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Continue at the first record of these partitions, or of all."""
        await self._call(self.blocking.seek_to_beginning, *partitions)
        self._changed.set()

    async def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Continue after the last record of these partitions, or of all."""
        await self._call(self.blocking.seek_to_end, *partitions)
        self._changed.set()

    async def position(self, partition: tuple[str, int]) -> int:
        """Return the offset of the next record to be returned; NoOffsetError if it is not known yet."""
        return await self._quick(self.blocking.position, partition)

    async def pause(self, *partitions: tuple[str, int]) -> None:
        """Return no records of these partitions, or of any, until resume(); they stay assigned."""
        await self._change(self.blocking.pause, *partitions)

    async def resume(self, *partitions: tuple[str, int]) -> None:
        """Resume reading these partitions, or all."""
        await self._change(self.blocking.resume, *partitions)

    def paused(self) -> Partitions:
        """Return the paused partitions."""
        return self.blocking.paused()

    async def lag(self) -> dict[TopicPartition, int]:
        """Return the number of offsets between each position and the end."""
        return await self._call(self.blocking.lag)

    async def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """Return the first offset of each partition, assigned or not."""
        return await in_a_worker(self.blocking.beginning_offsets, partitions)

    async def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """Return the offset after the last record of each partition, assigned or not."""
        return await in_a_worker(self.blocking.end_offsets, partitions)

    async def offsets_for_times(
        self, timestamps: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return, for each partition, the first record at or after a timestamp, or None."""
        return await in_a_worker(self.blocking.offsets_for_times, timestamps)

    # --- the end

    def health(self) -> tuple[TaskHealth, ...]:
        """Return the health of the threads that send heartbeats and commit."""
        return self.blocking.health()

    async def close(self) -> None:
        """Commit the positions if enable_auto_commit is set, and leave the group. Closing twice is fine."""
        self._closing = True
        self._changed.set()
        await to_the_end(self._begin(self.blocking.close))  # even if this is cancelled: it has begun to close


class _Records:
    """The records of a consumer as they arrive; see Consumer.__iter__() of the blocking one. Closing the
    consumer ends an iteration that waits with a ClosedError.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        limit = consumer.config.consumer_timeout_ms
        self._timeout = float("inf") if limit == -1 else limit / 1000
        self._records: Iterator[ConsumerRecord] = iter(())
        consumer._check_open()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        for record in self._records:
            return record
        consumer = self._consumer.blocking
        limit = consumer.config.max_poll_records
        self._records = await self._consumer._polled(
            self._timeout, lambda times: consumer._fetcher.records(times * limit), consumer._one_by_one, limit
        )
        for record in self._records:
            return record
        raise StopAsyncIteration
