"""Planning: which offsets a query reads, and how they are divided among tasks."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from commitlog.errors import ConfigError, DataLossError, UnknownPartitionError, UnknownTopicError
from commitlog.partitions.reader import LogReader
from commitlog.record import TopicPartition
from commitlog.spark.options import Bound, ReadOptions
from commitlog.spark.parsing import EARLIEST, LATEST, LOG_ID, TOPIC_ID
from commitlog.spark.readable import ReadableLog

_log = logging.getLogger("commitlog.spark")

Offsets = dict[TopicPartition, int]
_GROUPED_RECORDS = 8192  # reading this many takes about as long as the overhead of a task, 30 ms


class Range(NamedTuple):
    """Offsets [start, end) of a partition, with the ids of its topic and its log."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str | None = None
    log_id: str | None = None


def find(log: ReadableLog, name: TopicPartition) -> LogReader:
    """Return a partition of a log."""
    partition: LogReader = log.topic(name.topic).partition(name.partition)
    return partition


class Extent(NamedTuple):
    """The offsets of a partition that a query may read, [start, end), and its high watermark."""

    start: int
    end: int
    high_watermark: int


def extent(log: ReadableLog, options: ReadOptions, name: TopicPartition) -> Extent:
    """Return how far a query may read now: to the high watermark, or to where no transaction is cut."""
    partition = find(log, name)
    start = partition.start_offset
    end = _end(partition, options, start)
    return Extent(start, end, max(end, partition.high_watermark))


def _end(partition: LogReader, options: ReadOptions, start: int) -> int:
    if options.isolation_level == "read_uncommitted":
        return partition.high_watermark
    return partition.whole_transactions_end(start)


def whole_end(log: ReadableLog, options: ReadOptions, name: TopicPartition, start: int, end: int) -> int:
    """Return where a range may end without cutting a transaction: at `end`, or after it."""
    if options.isolation_level == "read_uncommitted":
        return end
    compacted = log.topic(name.topic).config.compacts
    return max(find(log, name).whole_transactions_end(start, end, compacted=compacted), end)


def lost(options: ReadOptions, where: object, what: str) -> None:
    """Report missing records: raise DataLossError, or log a warning if failOnDataLoss is false."""
    if options.fail_on_data_loss:
        raise DataLossError(str(where), what)
    _log.warning("%s: %s; continuing with the remaining records", where, what)


# --- subscription --------------------------------------------------------------------------------


def subscribed(log: ReadableLog, options: ReadOptions, *, all_there: bool = True) -> list[TopicPartition]:
    """Return the partitions that the options name, in order; with `all_there`, each of them must exist."""
    known = log.topics()
    if options.assign is not None:
        topics = sorted({name.topic for name in options.assign})
    elif options.subscribe is not None:
        topics = list(options.subscribe)
    else:
        fits = re.compile(options.subscribe_pattern or ".*").fullmatch
        topics = [topic for topic in known if fits(topic)]
    if not all_there:
        topics = [topic for topic in topics if topic in known]
    found = [
        TopicPartition(topic, number)
        for topic in topics
        for number in range(_partition_count(log, topic, needed=all_there))
    ]
    if options.assign is None:
        return found
    if all_there:
        for name in options.assign:
            find(log, name)
    return [name for name in found if name in options.assign]


def _partition_count(log: ReadableLog, topic: str, *, needed: bool) -> int:
    try:
        return len(log.topic(topic).partitions)
    except UnknownTopicError:  # deleted since the topics were listed
        if needed:
            raise
        return 0


# --- bounds --------------------------------------------------------------------------------------


def starts(log: ReadableLog, options: ReadOptions, names: Sequence[TopicPartition], default: int) -> Offsets:
    """Return the start offset of each partition."""
    bound = options.starting or Bound("startingOffsets", default)
    needed = options.starting_offsets_by_timestamp_strategy == "error"
    return _resolved(log, options, bound, names, needed=needed)


def ends(log: ReadableLog, options: ReadOptions, names: Sequence[TopicPartition]) -> Offsets:
    """Return the end offset of each partition."""
    bound = options.ending or Bound("endingOffsets", LATEST)
    return _resolved(log, options, bound, names, needed=False)


def _resolved(
    log: ReadableLog, options: ReadOptions, bound: Bound, names: Sequence[TopicPartition], *, needed: bool
) -> Offsets:
    """Look a bound up in the log; with `needed`, a record at or after a timestamp must exist."""
    chosen = _for_each(bound, names)
    found: Offsets = {}
    for name in names:
        partition, where = find(log, name), chosen[name]
        if not bound.by_time:
            if where in (EARLIEST, LATEST):
                start = partition.start_offset
                where = start if where == EARLIEST else _end(partition, options, start)
            found[name] = where
            continue
        offset = partition.offset_for_timestamp(where, isolation_level=options.isolation_level)
        if offset is None and needed:
            hint = "startingOffsetsByTimestampStrategy = latest would start at its end"
            raise ConfigError(bound.option, where, f"{partition.name} has no record as late as that; {hint}")
        found[name] = _end(partition, options, partition.start_offset) if offset is None else offset
    return found


def _for_each(bound: Bound, names: Sequence[TopicPartition]) -> Offsets:
    """Return the bound of each partition; as in Kafka's connector, it must name all of them."""
    if isinstance(bound.where, int):
        return dict.fromkeys(names, bound.where)
    wanted, given = set(names), set(bound.where)
    if wanted != given:
        missing, unknown = sorted(wanted - given), sorted(given - wanted)
        wrong = f"{_named(missing)} is missing" if missing else f"{_named(unknown)} is not subscribed to"
        raise ConfigError(
            bound.option, dump(bound.where), f"must name all partitions and no others, but {wrong}"
        )
    return bound.where


def _named(names: Sequence[TopicPartition]) -> str:
    return f"{names[0].topic}-{names[0].partition}"


# --- offsets in Spark's checkpoint ---------------------------------------------------------------

Stored = dict[str, Any]  # {"orders": {"0": 120, "1": 150}}, and ids under names that no topic can have


class Identity(NamedTuple):
    """The ids of the log and of the topics that offsets refer to; None if an id is not known."""

    log_id: str | None
    topic_ids: dict[str, str | None]


def identity(log: ReadableLog, names: Iterable[TopicPartition]) -> Identity:
    """Return the ids of a log, and of the topics of these partitions that exist."""
    found = {}
    for topic in sorted({name.topic for name in names}):
        with contextlib.suppress(UnknownTopicError):
            found[topic] = log.topic(topic).topic_id
    return Identity(log.log_id, found)


def dump(offsets: Mapping[TopicPartition, int], about: Identity | None = None) -> Stored:
    """Return offsets as stored in a checkpoint, sorted, because Spark compares them as text."""
    found: Stored = {}
    for topic, number in sorted(offsets):
        found.setdefault(topic, {})[str(number)] = offsets[TopicPartition(topic, number)]
    if about is not None:
        for topic, by_number in found.items():
            by_number[TOPIC_ID] = about.topic_ids.get(topic)
        found[LOG_ID] = about.log_id
    return found


def ids_of(stored: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the topic ids in the result of dump()."""
    return {topic: by_number.get(TOPIC_ID) for topic, by_number in stored.items() if topic != LOG_ID}


def load(stored: Mapping[str, Any]) -> Offsets:
    """Return the offsets in the result of dump()."""
    return {
        TopicPartition(topic, int(number)): int(offset)
        for topic, by_number in stored.items()
        if topic != LOG_ID
        for number, offset in by_number.items()
        if number != TOPIC_ID
    }


def still_there(log: ReadableLog, options: ReadOptions, stored: Mapping[str, Any]) -> Offsets:
    """Return stored offsets, except those of another log or of a topic that was deleted and created again.

    These are reported as lost: the same offset would now mean another record.
    """
    offsets = load(stored)
    now = identity(log, offsets)
    known = stored.get(LOG_ID)
    if not same_id(known, now.log_id):
        found = f"log {now.log_id}" if now.log_id else "a log without an id"
        lost(options, options.path, f"it is {found}, but the query has read log {known}")
        return {}
    for topic, topic_id in now.topic_ids.items():
        if not same_id(stored[topic].get(TOPIC_ID), topic_id):
            lost(options, topic, replaced(stored[topic][TOPIC_ID], topic_id))
            offsets = {name: offset for name, offset in offsets.items() if name.topic != topic}
    return offsets


def same_id(known: str | None, found: str | None) -> bool:
    """Say whether a log or a topic is the one that was seen before, by their ids.

    One that is older than ids gets an id when a writer opens the log, and never loses it.
    """
    return known is None or known == found


def replaced(known: str | None, found: str | None) -> str:
    """Describe a topic that is not the one that was seen before."""
    return f"the topic was deleted and created again: it has the id {found}, the query has read {known}"


# --- ranges --------------------------------------------------------------------------------------


def batch_ranges(log: ReadableLog, options: ReadOptions) -> list[Range]:
    """Return the ranges that a batch query reads: fixed here, whatever is appended later."""
    names = subscribed(log, options)
    first, last = starts(log, options, names, EARLIEST), ends(log, options, names)
    about = identity(log, names)
    found = [_within(log, options, _range(name, first[name], last[name], about)) for name in names]
    return [one for one in found if one.start < one.end]


def _range(name: TopicPartition, start: int, end: int, about: Identity) -> Range:
    return Range(*name, start, end, about.topic_ids.get(name.topic), about.log_id)


def stream_ranges(log: ReadableLog, options: ReadOptions, start: Offsets, end: Offsets) -> list[Range]:
    """Return the ranges of a micro-batch. A partition that is not in `start` is read from its beginning."""
    about = identity(log, end)
    wanted = [_range(name, start.get(name, 0), end[name], about) for name in sorted(end)]
    # after a crash in the first batch Spark may ask for one that starts after its end
    found = [_within(log, options, one) for one in wanted if one.start < one.end]
    return [one for one in found if one.start < one.end]


def _within(log: ReadableLog, options: ReadOptions, wanted: Range) -> Range:
    """Clip a range to the log, and report missing records as lost."""
    try:
        partition = find(log, TopicPartition(wanted.topic, wanted.partition))
        low, high = partition.start_offset, partition.end_offset(options.isolation_level)
    except (UnknownTopicError, UnknownPartitionError):
        lost(options, f"{wanted.topic}-{wanted.partition}", "it was deleted")
        return wanted._replace(end=wanted.start)
    if wanted.start < low and wanted.start < wanted.end:
        lost(options, partition.name, f"offsets [{wanted.start}, {min(low, wanted.end)}) were removed")
    if max(wanted.start, wanted.end) > high:
        lost(options, partition.name, _too_far(partition, max(wanted.start, wanted.end), high))
    return wanted._replace(start=min(max(wanted.start, low), high), end=min(wanted.end, high))


def _too_far(partition: LogReader, offset: int, end: int) -> str:
    if offset <= partition.high_watermark:
        what = "a transaction is not decided yet, and isolationLevel = read_uncommitted would read it"
        return f"offset {offset} is after its last stable offset, {end}: {what}"
    return f"offset {offset} is after its end, {end}"


def cut(log: ReadableLog, options: ReadOptions, ranges: Sequence[Range]) -> list[Range]:
    """Split ranges for maxRecordsPerPartition and minPartitions, if possible where stored batches begin."""
    most, least = options.max_records_per_partition, options.min_partitions
    if most is not None:
        ranges = [piece for one in ranges for piece in _pieces(log, one, most=most)]
    if least is None or len(ranges) >= least:
        return list(ranges)
    total = sum(one.end - one.start for one in ranges)
    found: list[Range] = []
    for one in ranges:  # rounded up: at least this many pieces were requested
        found += _pieces(log, one, count=-(-(one.end - one.start) * least // total))
    return found


def _pieces(log: ReadableLog, whole: Range, count: int = 1, most: int | None = None) -> Iterator[Range]:
    """Split a range into `count` even pieces, or into pieces of up to `most` offsets.

    A split moves back to the start of a stored batch, so that no batch is read twice, unless the piece would
    be empty.
    """
    partition = find(log, TopicPartition(whole.topic, whole.partition))
    size, start, number = whole.end - whole.start, whole.start, 0
    while start < whole.end:
        number += 1
        ideal = start + most if most is not None else whole.start + size * number // count
        end = min(max(ideal, start + 1), whole.end)
        if end < whole.end:
            before = partition.batch_start(end)
            end = before if before > start else end
        yield whole._replace(start=start, end=end)
        start = end


def grouped(ranges: Sequence[Range]) -> list[tuple[Range, ...]]:
    """Group small ranges, so that a little data in many partitions does not cost many tasks."""
    found: list[tuple[Range, ...]] = []
    group: list[Range] = []
    records = 0
    for one in ranges:
        group.append(one)
        records += one.end - one.start
        if records >= _GROUPED_RECORDS:
            found.append(tuple(group))
            group, records = [], 0
    return [*found, tuple(group)] if group else found
