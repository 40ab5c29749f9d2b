"""Topic: a named set of partitions, from an event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from commitlog.aio.partition import Partition, ReadablePartition, is_quick, size_of
from commitlog.aio.reading import Pieces
from commitlog.aio.turns import give_way
from commitlog.aio.workers import Workers, whole, workers
from commitlog.config import IsolationLevel, TopicConfig
from commitlog.partition import Partition as BlockingPartition
from commitlog.partitions.latest import Latest
from commitlog.record import ArrowData, Buffer, ConsumerRecord, Headers
from commitlog.topic import PartitionedTopic
from commitlog.topic import Topic as BlockingTopic

if TYPE_CHECKING:
    import pyarrow as pa


P_co = TypeVar("P_co", bound=ReadablePartition, covariant=True)


class ReadableTopic(Generic[P_co]):
    """The coroutines of a topic that read. `blocking` is the topic that they use."""

    def __init__(
        self, topic: PartitionedTopic[Any], kind: Callable[[Any], P_co], by: Workers = workers
    ) -> None:
        self.blocking = topic
        self._kind = kind
        self._workers = by

    def __repr__(self) -> str:
        return f"<aio.{repr(self.blocking).removeprefix('<')}"

    @property
    def name(self) -> str:
        """The name."""
        return self.blocking.name

    @property
    def config(self) -> TopicConfig:
        """The settings."""
        return self.blocking.config

    @property
    def topic_id(self) -> str | None:
        """The random id, which differs from that of an earlier topic with the same name."""
        return self.blocking.topic_id

    @property
    def partitions(self) -> tuple[P_co, ...]:
        """The partitions, in order of number."""
        return tuple(map(self._kind, self.blocking.partitions))

    def partition(self, number: int) -> P_co:
        """Return a partition; the same as topic[number]."""
        return self._kind(self.blocking.partition(number))

    def __getitem__(self, number: int) -> P_co:
        return self.partition(number)

    def __len__(self) -> int:
        return len(self.blocking.partitions)

    def __iter__(self) -> Iterator[P_co]:
        return iter(self.partitions)

    # --- reading

    def records(self, *, isolation_level: IsolationLevel = "read_committed") -> Pieces[ConsumerRecord]:
        """Iterate over the records of all partitions, one partition after another."""
        return Pieces(partial(self.blocking.records, isolation_level=isolation_level), by=self._workers)

    def to_reader(
        self, columns: Sequence[str] | None = None, *, isolation_level: IsolationLevel = "read_committed"
    ) -> Pieces[pa.RecordBatch]:
        """Iterate over the records of all partitions as Arrow batches; the first column is `partition`."""
        begin = partial(self.blocking.to_reader, columns, isolation_level=isolation_level)
        return Pieces(lambda: iter(begin()), 1, self._workers)

    async def to_arrow(
        self, columns: Sequence[str] | None = None, *, isolation_level: IsolationLevel = "read_committed"
    ) -> pa.Table:
        """Return the records of all partitions as an Arrow table whose first column is `partition`."""
        return await self._workers.in_a_worker(
            self.blocking.to_arrow, columns, isolation_level=isolation_level
        )

    async def latest(self, *, isolation_level: IsolationLevel = "read_committed") -> Latest:
        """Return the current value of every key in all partitions."""
        return await self._workers.in_a_worker(self.blocking.latest, isolation_level=isolation_level)


class Topic(ReadableTopic[Partition]):
    """The coroutines of commitlog.Topic."""

    blocking: BlockingTopic

    def __init__(self, topic: BlockingTopic) -> None:
        super().__init__(topic, Partition)

    # --- appending

    async def append(
        self,
        value: Buffer | None,
        *,
        key: Buffer | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
        partition: int | None = None,
        sync: bool = False,
    ) -> tuple[int, int]:
        """Append a record to the partition of its key, or to `partition`; return (partition, offset)."""
        topic = self.blocking
        given: dict[str, Any] = {
            "key": key, "headers": headers, "timestamp": timestamp, "partition": partition,
        }  # fmt: skip
        if not sync:
            await give_way()
            if is_quick(self._targets(partition), size_of([value], [key], [headers])):
                return topic.append(value, **given)
        return await whole(topic.append, value, sync=sync, **given)

    async def append_many(
        self,
        values: Iterable[Buffer | None],
        *,
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[Headers] | None = None,
        timestamps: Iterable[int] | None = None,
        partition: int | None = None,
        sync: bool = False,
    ) -> dict[int, range]:
        """Append records to the partitions of their keys, or all to `partition`; return offsets by partition.

        All records are checked before any is written, and each partition takes its share all or nothing.
        """
        topic = self.blocking
        given: dict[str, Any] = {
            "keys": keys, "headers": headers, "timestamps": timestamps, "partition": partition,
        }  # fmt: skip
        if not sync:
            await give_way()
            if is_quick(self._targets(partition), size_of(values, keys, headers)):
                return topic.append_many(values, **given)
        return await whole(topic.append_many, values, sync=sync, **given)

    async def append_arrow(
        self, data: ArrowData, *, partition: int | None = None, sync: bool = False
    ) -> dict[int, range]:
        """Append Arrow data, each record to the partition of its key; returns the offsets by partition."""
        return await whole(self.blocking.append_arrow, data, partition=partition, sync=sync)

    def _targets(self, partition: int | None) -> Sequence[BlockingPartition]:
        """Return the partitions that an append may go to."""
        return self.blocking.partitions if partition is None else [self.blocking.partition(partition)]

    # --- changing

    async def add_partitions(self, count: int) -> None:
        """Grow to a total of `count` partitions. From then on, keys are hashed over the new count."""
        await whole(self.blocking.add_partitions, count)

    async def alter_config(self, **changes: Any) -> None:
        """Change settings durably; they apply at once."""
        await whole(self.blocking.alter_config, **changes)
