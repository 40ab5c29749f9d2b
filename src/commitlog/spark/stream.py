"""StreamReader: offsets for Spark's checkpoint, caps for its triggers, lag for monitoring."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from commitlog.errors import UnknownPartitionError, UnknownTopicError
from commitlog.record import TopicPartition
from commitlog.spark import planning
from commitlog.spark.admission import Admission
from commitlog.spark.hang_up import end_if_hung_up
from commitlog.spark.options import ReadOptions
from commitlog.spark.parsing import LATEST
from commitlog.spark.planning import Extent, Offsets, Stored, lost
from commitlog.spark.readable import is_remote
from commitlog.spark.schema import fields_of
from commitlog.spark.shipping import Shipped
from commitlog.spark.source import Slice, slices
from commitlog.spark.unfinished import finish_publications
from commitlog.spark.worker import forget_log, open_files, open_log, read_ranges

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # before Spark 4.2 the source does all of this itself
    ReadAllAvailable = ReadLimit = ReadMaxRows = type(None)
    SupportsTriggerAvailableNow = object

if TYPE_CHECKING:
    import pyarrow as pa


class StreamReader(Shipped, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Plans micro-batches in a process of the driver that lives as long as the query; tasks only call read().

    Up to Spark 4.1, Spark does not say where the last batch ended: `_position` keeps that.
    """

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        self._options = ReadOptions.of(options).for_stream()
        self._fields = fields_of(schema)
        self._admission = Admission(self._options)
        self._initial: Offsets | None = None
        self._position: Offsets = {}
        self._pinned = True
        self._target: Offsets | None = None  # of Trigger.AvailableNow
        self._noted: Offsets = {}
        self._topic_ids: dict[str, str | None] = {}

    # --- bounds

    def initialOffset(self) -> Stored:  # noqa: N802
        """Return the offsets at which a new query starts."""
        if self._initial is None:
            finish_publications(self._options.path)
            log = open_log(self._options.path)
            names = planning.subscribed(log, self._options)
            self._initial = planning.starts(log, self._options, names, LATEST)
            self._position = self._position or self._initial
            # an empty first batch stores in the checkpoint what "latest" was, before a crash can change it
            self._pinned = not self._may_start_at_the_end
        return self._dumped(self._initial)

    def _dumped(self, offsets: Offsets) -> Stored:
        about = planning.identity(open_log(self._options.path), offsets)
        self._topic_ids |= about.topic_ids  # keeps the ids of topics that cannot be seen now
        return planning.dump(offsets, about._replace(topic_ids=self._topic_ids))

    @property
    def _may_start_at_the_end(self) -> bool:
        starting, strategy = self._options.starting, self._options.starting_offsets_by_timestamp_strategy
        return starting is None or starting.mentions_latest or (starting.by_time and strategy == "latest")

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return a limit if there is a cap, so that Spark passes one on; the options have the cap itself."""
        options = self._options
        caps = (
            options.max_offsets_per_trigger,
            options.max_bytes_per_trigger,
            options.min_offsets_per_trigger,
        )
        return ReadAllAvailable() if caps == (None, None, None) else ReadMaxRows(caps[0] or 1 << 62)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end offsets for Trigger.AvailableNow."""
        self._target = self._ends()

    def latestOffset(self, start: Stored | None = None, limit: Any = None) -> Stored:  # noqa: N802
        """Return the end offsets of the next micro-batch."""
        if start is None and not self._position:
            self.initialOffset()  # up to Spark 4.1 a new query asks for the end before the start
        before = self._position
        if start is not None:
            self._topic_ids = {**planning.ids_of(start), **self._topic_ids}
            before = planning.still_there(open_log(self._options.path), self._options, start)
            self._note_progress(before)  # Spark has finished the batch that ended there
        if not self._pinned:
            self._pinned = True
            if before == self._initial:
                return self._dumped(before)
        bounds = self._bounds()
        end = self._available(before, bounds)
        unseen = self._unseen(before, bounds)
        if limit is not None and isinstance(limit, ReadAllAvailable):  # Trigger.Once ignores caps
            return self._dumped(end | unseen)
        # trimmed offsets do not count towards a cap
        first = {name: max(before.get(name, 0), bounds[name].start) for name in end}
        if self._target is None and self._admission.must_wait(first, end):
            return self._dumped(before)
        return self._dumped(self._capped(first, end) | unseen)

    def _unseen(self, before: Offsets, seen: Mapping[TopicPartition, object]) -> Offsets:
        """Return the offsets of partitions that a cluster does not show now, but may show again.

        Without their offsets, such a partition would then be read from its beginning.
        """
        if not is_remote(self._options.path):
            return {}
        return {name: offset for name, offset in before.items() if name not in seen}

    def _capped(self, first: Offsets, end: Offsets) -> Offsets:
        log, level = open_log(self._options.path), self._options.isolation_level

        def offset_after(name: TopicPartition, start: int, most: int) -> int:
            return planning.find(log, name).offset_after_bytes(start, most, isolation_level=level)

        def bytes_between(name: TopicPartition, start: int, stop: int) -> int:
            return planning.find(log, name).bytes_between(start, stop)

        found = self._admission.capped(first, end, bytes_between, offset_after)
        for name, offset in found.items():
            if offset < end[name]:  # otherwise it cuts no transaction anyway
                whole = planning.whole_end(log, self._options, name, first[name], offset)
                found[name] = min(whole, end[name])
        return found

    def reportLatestOffset(self) -> Stored:  # noqa: N802
        """Return the end of the log, which Spark shows beside the query's progress."""
        return self._dumped(self._ends())

    def _ends(self) -> Offsets:
        return {name: one.end for name, one in self._bounds().items()}

    def _bounds(self) -> dict[TopicPartition, Extent]:
        """Return what there is to read in each subscribed partition that exists."""
        finish_publications(self._options.path)
        log = open_log(self._options.path)
        found = {}
        for name in planning.subscribed(log, self._options, all_there=False):
            with contextlib.suppress(UnknownTopicError, UnknownPartitionError):  # just deleted
                found[name] = planning.extent(log, self._options, name)
        return found

    def _available(self, before: Offsets, bounds: Mapping[TopicPartition, Extent]) -> Offsets:
        """Return how far to read: to the end, or with AvailableNow to the end as of its start."""
        end = {name: one.end for name, one in bounds.items()}
        for name, offset in before.items():
            if name not in bounds:
                lost(self._options, f"{name.topic}-{name.partition}", "it was deleted")
            elif bounds[name].high_watermark < offset:
                what = f"its end moved back from {offset} to {bounds[name].high_watermark}"
                lost(self._options, f"{name.topic}-{name.partition}", what)
            else:  # a query that began inside a transaction waits for its end
                end[name] = max(end[name], offset)
        if self._target is None:
            return end
        target = self._target
        return {
            name: min(offset, max(target[name], before.get(name, 0)))
            for name, offset in end.items()
            if name in target
        }

    # --- a micro-batch

    def partitions(self, start: Stored, end: Stored) -> list[Slice]:
        """Return the ranges that each task of a micro-batch reads."""
        log = open_log(self._options.path)
        begin, self._position = (planning.still_there(log, self._options, one) for one in (start, end))
        wanted = planning.stream_ranges(log, self._options, begin, self._position)
        ranges = planning.cut(log, self._options, wanted)
        if self._options.min_partitions or self._options.max_records_per_partition:
            return slices([(one,) for one in ranges])
        return slices(planning.grouped(ranges))

    def read(self, partition: Slice) -> Iterator[pa.RecordBatch]:
        """Read a slice, in a worker process."""
        return read_ranges(self._options, self._fields, partition.ranges)

    # --- progress

    def commit(self, end: Stored) -> None:
        """Note that Spark has finished everything before `end`."""
        self._note_progress(planning.load(end))

    def _note_progress(self, done: Offsets) -> None:
        """Commit the progress for `groupId`, for monitoring; Spark itself relies on its checkpoint."""
        group_id = self._options.group_id
        moved = {name: offset for name, offset in done.items() if self._noted.get(name) != offset}
        if group_id is not None and moved:
            open_files(self._options.path).commit_offsets(group_id, moved)
            self._noted |= moved

    def stop(self) -> None:
        """End the process that plans; Spark does not always call it."""
        forget_log(self._options.path)
        end_if_hung_up()
