"""One point of a curve of growth, in a process of its own: `python growth_points.py KIND DIRECTORY COUNT`.

Prints the processor time of each operation in microseconds, and the memory and descriptors it takes.
"""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time

import engine
from children import pages

import commitlog

DESCRIPTORS = 1024
CALLS = 200  # of an operation that is measured by itself
TOPIC_PARTITIONS = 1000
KEPT_BYTES = 10_000_000  # of records, at most, in a log whose records grow
VALUE = b"v" * 90
MEMORY, OPEN_FILES = "memory, KiB", "descriptors"


class Meter:
    """The processor time of operations, and the most descriptors that were open after one of them."""

    def __init__(self) -> None:
        self.found: dict[str, float] = {OPEN_FILES: 0}
        self._memory = memory_kib()

    def measure(self, name: str, work: Callable[[], object], operations: float = 1) -> None:
        """Do work of as many operations, and keep the microseconds of each."""
        began = process_time()
        work()
        self.found[name] = (process_time() - began) / operations * 1e6
        self.count()

    def each(self, name: str, work: Callable[[], object], calls: int = CALLS) -> None:
        """Call the same operation many times; the first call is not counted, so that caches are warm."""
        work()
        self.measure(name, lambda: deque((work() for _ in range(calls)), maxlen=0), calls)

    def count(self) -> None:
        self.found[OPEN_FILES] = max(self.found[OPEN_FILES], len(os.listdir("/proc/self/fd")))

    def weigh(self) -> None:
        """Keep what memory the process has gained since the meter was made."""
        gc.collect()
        self.found[MEMORY] = max(memory_kib() - self._memory, 0)


def memory_kib() -> float:
    return pages()[0] / 1024


def settings(**more: object) -> commitlog.TopicConfig:
    return commitlog.TopicConfig(**engine.WRITTEN, **more)


# --- partitions ----------------------------------------------------------------------------------


def partitions(path: Path, count: int) -> dict[str, float]:
    """Many partitions, of which one is busy."""
    with commitlog.open(path) as log:
        create(log, count)
        for one in all_partitions(log):
            one.append(VALUE)
    meter = Meter()
    logs: list[commitlog.CommitLog] = []
    meter.measure("open, a partition", lambda: logs.append(commitlog.open(path)), count)
    with logs[0] as log:
        meter.weigh()
        parts = list(all_partitions(log))
        busy = parts[count // 2]
        meter.each("append to one", lambda: busy.append(VALUE))
        meter.measure("append to each in turn", lambda: [one.append(VALUE) for one in parts], count)
        meter.measure("sync, a partition", lambda: [one.sync() for one in parts], count)
        meter.each("list topics", log.topics)
        meter.each("metrics, a partition", log.metrics, 3)
        meter.found["metrics, a partition"] /= count
        with log.consumer(*log.topics()) as reader:
            meter.measure("consume all, a record", lambda: drain(reader, 2 * count + CALLS + 1), 2 * count)
            meter.each("poll, nothing new", reader.poll)
            meter.each("append to one and poll", lambda: (busy.append(VALUE), drain(reader, 1)))
        expected = sum(one.next_offset for one in parts)
        if expected != 2 * count + 2 * (CALLS + 1):
            raise AssertionError(f"{expected} records")
    return meter.found


def create(log: commitlog.CommitLog, count: int) -> None:
    for number in range(0, count, TOPIC_PARTITIONS):
        log.create_topic(f"t{number}", min(TOPIC_PARTITIONS, count - number), settings())


def all_partitions(log: commitlog.CommitLog) -> Iterator[commitlog.Partition]:
    return (one for name in log.topics() for one in log.topic(name))


def drain(reader: commitlog.Consumer, records: int) -> None:
    """Poll until as many records have come."""
    while records > 0:
        records -= sum(map(len, reader.poll(10).values()))
    if records:
        raise AssertionError(f"{-records} records too many")


# --- groups and their members --------------------------------------------------------------------


def groups(path: Path, count: int) -> dict[str, float]:
    """Many groups that have committed, and one that commits."""
    names = [f"group-{number}" for number in range(count)]
    offsets = {commitlog.TopicPartition(engine.TOPIC, 0): 0}
    log, partition = engine.create(path, **engine.WRITTEN)
    with log:
        partition.append_many([VALUE] * 10)
        for name in names:
            log.commit_offsets(name, offsets)
    meter = Meter()
    logs: list[commitlog.CommitLog] = []
    meter.measure("open the log", lambda: logs.append(commitlog.open(path)))
    with logs[0] as log:
        meter.measure("first list of the groups, a group", log.groups, count)
        meter.each("list groups, a group", log.groups, 3)
        meter.found["list groups, a group"] /= count
        if sorted(log.groups()) != sorted(names):
            raise AssertionError(f"{len(log.groups())} of {count} groups")
        meter.each("describe a group", lambda: log.describe_group(names[count // 2]))
        meter.each("commit", lambda: log.commit_offsets(names[count // 2], offsets))
        meter.weigh()
        with log.consumer(engine.TOPIC, group_id=names[-1]) as reader:
            meter.measure("join a group", lambda: drain(reader, 10))
            meter.each("poll, nothing new", reader.poll)
    return meter.found


def members(path: Path, count: int) -> dict[str, float]:
    """One group of many members, each with a partition of its own."""
    with commitlog.open(path) as log:
        topic = log.create_topic(engine.TOPIC, count, settings())
        meter = Meter()
        readers = [log.consumer(engine.TOPIC, group_id="g") for _ in range(count)]
        meter.measure("join, a member", lambda: settle(readers), count)
        meter.weigh()
        meter.each("poll, nothing new", lambda: [one.poll() for one in readers], 10)
        meter.found["poll, nothing new"] /= count
        for partition in topic:
            partition.append(VALUE)
        meter.measure("consume, a member", lambda: receive(readers, count), count)
        meter.measure("commit, a member", lambda: [one.commit() for one in readers], count)
        meter.each("describe the group, a member", lambda: log.describe_group("g"), 3)
        meter.found["describe the group, a member"] /= count
        leaving = readers.pop()
        leaving.close()
        meter.measure("a member leaves, each other", lambda: settle(readers), max(len(readers), 1))
        for one in readers:
            one.close()
    return meter.found


def settle(readers: list[commitlog.Consumer]) -> None:
    """Poll all members until every partition has one owner and none of them gets any more."""
    quiet = 0
    while quiet < 3 and readers:
        before = [one.assignment() for one in readers]
        for one in readers:
            one.poll()
        after = [one.assignment() for one in readers]
        quiet = quiet + 1 if before == after and all(after) else 0


def receive(readers: list[commitlog.Consumer], records: int) -> None:
    while records > 0:
        records -= sum(len(found) for one in readers for found in one.poll().values())


# --- segments ------------------------------------------------------------------------------------


def segments(path: Path, count: int) -> dict[str, float]:
    """One partition of many segments."""
    log, partition = engine.create(path, **engine.WRITTEN)
    with log:
        for number in range(count):
            if number:
                partition.roll()
            partition.append_many([VALUE] * 10)
    meter = Meter()
    logs: list[commitlog.CommitLog] = []
    meter.measure("open the log", lambda: logs.append(commitlog.open(path)))
    with logs[0] as log:
        partition = log.topic(engine.TOPIC).partition(0)
        meter.measure("first append", lambda: partition.append(VALUE))
        meter.each("append", lambda: partition.append(VALUE))
        chance = random.Random(1)
        meter.each("get at random", lambda: partition.get(chance.randrange(10 * count)))
        meter.each("list segments, a segment", lambda: partition.segments, 3)
        meter.found["list segments, a segment"] /= count
        with log.consumer(engine.TOPIC) as reader:
            records = partition.next_offset
            meter.measure("consume all, a segment", lambda: drain(reader, records), count)
            meter.each("poll, nothing new", reader.poll)
        meter.each("a look for retention", log.apply_retention, 3)
        meter.each("a roll", lambda: (partition.append(VALUE), partition.roll()), 20)
        meter.weigh()
    return meter.found


# --- sizes ---------------------------------------------------------------------------------------


def record_size(path: Path, size: int) -> dict[str, float]:
    """Records of one size, fewer where they are large."""
    value = random.Random(1).randbytes(size)
    records = max(min(KEPT_BYTES // size, 20_000), 10)
    meter = Meter()
    log, partition = engine.create(path, **engine.WRITTEN, max_message_bytes=1 << 30)
    with log:
        meter.measure("append", lambda: [partition.append(value) for _ in range(records)], records)
        most = max(min((1 << 20) // size, records), 1)
        lists = [[value] * most] * max(records // most, 1)
        meter.measure(
            "append_many, 1 MiB", lambda: deque(map(partition.append_many, lists), 0), len(lists) * most
        )
        total = partition.next_offset
        with log.producer() as producer:
            meter.measure("send", lambda: send(producer, value, records), records)
        with log.consumer(engine.TOPIC) as reader:
            meter.measure("poll", lambda: drain(reader, total + records), total + records)
        chance = random.Random(1)
        meter.each("get", lambda: partition.get(chance.randrange(records)))
        meter.weigh()
    return meter.found


def send(producer: commitlog.Producer, value: bytes, records: int) -> None:
    for _ in range(records):
        producer.send(engine.TOPIC, value)
    producer.flush()


def batch_size(path: Path, size: int) -> dict[str, float]:
    """The same number of records in batches of one size."""
    batches = max(100_000 // size, 3) if size > 1 else 20_000
    values = [VALUE] * size
    meter = Meter()
    log, partition = engine.create(path, **engine.WRITTEN)
    with log:
        lists = [values] * batches
        records = batches * size
        meter.measure("append_many", lambda: deque(map(partition.append_many, lists), 0), records)
        with log.consumer(engine.TOPIC) as reader:
            meter.measure("poll", lambda: drain(reader, records), records)
        with log.consumer(engine.TOPIC) as reader:
            reader.poll_arrow()  # so that what it imports is not counted
        with log.consumer(engine.TOPIC) as reader:
            meter.measure("poll_arrow", lambda: check_rows(reader, records), records)
        meter.measure("to_arrow", partition.to_arrow, records)
        meter.weigh()
    return meter.found


def check_rows(reader: commitlog.Consumer, records: int) -> None:
    while records > 0:
        records -= sum(table.num_rows for table in reader.poll_arrow().values())


KINDS = {
    "partitions": partitions,
    "groups": groups,
    "members": members,
    "segments": segments,
    "record_size": record_size,
    "batch_size": batch_size,
}


if __name__ == "__main__":
    import pyarrow  # noqa: F401 - so that no operation pays for it

    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    print(json.dumps(KINDS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))))
