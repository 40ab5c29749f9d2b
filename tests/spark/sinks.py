"""Queries that write to a log, and sinks that break where they are told to."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import commitlog
from commitlog import CommitLog, Record
from pyspark_commitlog import DefaultSource

from .conftest import VERSION
from .queries import stream

# What a process that publishes to two partitions has done after so many steps.
STEPS = ["nothing", "committed", "appended to one partition", "appended to both", "told that it is done"]


def write(frame: DataFrame, path: Path | str, format_name: str = "commitlog", **options: Any) -> None:
    """Write a frame."""
    writer = frame.write.format(format_name).mode("append")
    writer.options(**{name: str(one) for name, one in options.items()}).save(str(path))


def copy(
    spark: SparkSession, path: Path, source: str, sink: str, format_name: str = "commitlog", **options: Any
) -> StreamingQuery:
    """Copy what is new in a topic into another one, as a stream with a checkpoint beside the log."""
    frame = stream(spark, path, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="60")
    writer = frame.select("key", "value").writeStream.format(format_name)
    writer = writer.options(topic=sink, checkpointLocation=f"{path}-{sink}", **options)
    if VERSION >= (4, 2):
        query = writer.trigger(availableNow=True).start(str(path))
        query.awaitTermination(120)
    else:  # a run of AvailableNow is one capped batch
        query = writer.trigger(processingTime="0 seconds").start(str(path))
        query.processAllAvailable()
        query.stop()
    return query


def records(path: Path, topic: str) -> list[list[Record]]:
    """The records of each partition; their offsets must be dense."""
    with commitlog.open(path, mode="r") as log:
        found = [list(partition.records()) for partition in log.topic(topic).partitions]
    for one in found:
        assert [record.offset for record in one] == list(range(len(one)))
    return found


def values(path: Path, topic: str) -> list[bytes]:
    """The values of all partitions, sorted."""
    return sorted(record.value or b"" for partition in records(path, topic) for record in partition)


def digest(path: Path, topic: str) -> str:
    """A hash of all keys and values of a topic, whatever their order; a record that is there twice counts."""
    found = sorted((record.key, record.value) for partition in records(path, topic) for record in partition)
    return hashlib.sha256(repr(found).encode()).hexdigest()


def fill(log: CommitLog, topic: str, count: int, first: int = 0) -> list[bytes]:
    """Append records with keys, each with a value of its own; returns those, sorted."""
    added = [b"%05d" % number for number in range(first, first + count)]
    log.topic(topic).append_many(added, keys=[b"k%d" % (number % 7) for number in range(count)])
    return sorted(added)


# --- sinks that break, made within functions so that Spark ships them to its processes as they are


def answering_with_an_error(marker: Path) -> type[DefaultSource]:
    """A sink that publishes the second batch, and then raises; the marker tells that it did."""
    place = str(marker)

    class Failing(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "failing"

        def _failing(self, writer: Any) -> Any:
            import os

            publish = writer.commit

            def commit(messages: Any, *batch: int) -> None:
                publish(messages, *batch)
                if (*batch, getattr(writer, "_epoch", None))[0] == 1 and not os.path.exists(place):
                    open(place, "w").close()
                    raise RuntimeError("the answer was lost")

            writer.commit = commit
            return writer

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return self._failing(super().writer(schema, overwrite))

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
            return self._failing(super().streamWriter(schema, overwrite))

    return Failing


def dying_after(steps: int, marker: Path) -> type[DefaultSource]:
    """A sink whose process dies after so many STEPS of publishing the second batch; once."""
    place = str(marker)

    class Dying(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "dying"

        def _dying(self, writer: Any) -> Any:
            import os

            from commitlog.partition import Partition
            from commitlog.publishing.publications import Publications

            publish, left = writer.commit, [steps]

            def stepping(method: Any) -> Any:
                def step(*arguments: Any, **more: Any) -> Any:
                    if left[0] == 0:
                        os._exit(9)
                    left[0] -= 1
                    return method(*arguments, **more)

                return step

            def commit(messages: Any, *batch: int) -> None:
                if (*batch, getattr(writer, "_epoch", None))[0] != 1 or os.path.exists(place):
                    publish(messages, *batch)
                    return
                open(place, "w").close()
                Publications.write = stepping(Publications.write)  # type: ignore[method-assign]
                Partition.append_published = stepping(Partition.append_published)  # type: ignore[method-assign]
                publish(messages, *batch)
                os._exit(9 if left[0] == 0 else 1)

            writer.commit = commit
            return writer

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return self._dying(super().writer(schema, overwrite))

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
            return self._dying(super().streamWriter(schema, overwrite))

    return Dying


def writing_twice() -> type[DefaultSource]:
    """A sink whose tasks are all run twice, to their end; Spark hears of the second attempt only."""

    class Twice(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "twice"

        def _doubled(self, writer: Any) -> Any:
            write = writer.write

            def both(rows: Any) -> Any:
                held = list(rows)
                write(iter(held))
                return write(iter(held))

            writer.write = both
            return writer

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return self._doubled(super().writer(schema, overwrite))

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
            return self._doubled(super().streamWriter(schema, overwrite))

    return Twice


def staging_elsewhere() -> type[DefaultSource]:
    """A sink whose files vanish before they are published: as if tasks had another directory at that path."""

    class Elsewhere(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "elsewhere"

        def writer(self, schema: Any, overwrite: bool) -> Any:
            import os

            writer = super().writer(schema, overwrite)
            publish, path = writer.commit, self.options["path"]

            def commit(messages: Any) -> None:
                for message in messages:
                    for one in message.staged:
                        os.unlink(os.path.join(path, one.path))
                publish(messages)

            writer.commit = commit  # type: ignore[method-assign]
            return writer

    return Elsewhere
