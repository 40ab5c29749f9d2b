"""The parts of a row that need a process of their own: to be killed, or to have a memory of its own.

Run as `python children.py NAME ARGUMENTS`; what a child found out is printed as JSON or plain lines.
"""

from __future__ import annotations

import gc
import json
import signal
import sys
import threading
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from time import monotonic_ns, sleep

import data
import engine
import variants

import commitlog

MAX_SEGMENT_BYTES = (1 << 31) - 1


def write_until_killed(path: str) -> None:
    """Append for ever without a sync, in one segment, and print each acknowledged end."""
    log, partition = engine.create(Path(path), flush_ms=-1, segment_bytes=MAX_SEGMENT_BYTES)
    batches = data.make("recovery", 640_000, 60, 120).batches
    for number, batch in enumerate(cycle(batches)):
        partition.append_many(batch.values, keys=batch.keys, timestamps=batch.timestamps)
        if number % 8 == 7:
            print(partition.next_offset, partition.size_bytes, flush=True)
    log.close()


def resident() -> tuple[int, int]:
    """Return the bytes resident in all, and those of them that are not pages of a file."""
    _, pages, shared, *_ = Path("/proc/self/statm").read_text().split()
    return int(pages) * 4096, (int(pages) - int(shared)) * 4096


def scan_and_watch(path: str, how: str) -> None:
    """Scan a partition and print how much memory was resident before and in each tenth of it."""
    log, partition = engine.reopen(Path(path), "r")
    end = partition.next_offset
    if how == "arrow":
        partition.get(0)
        next(iter(partition.batches())).to_arrow()  # so that importing pyarrow is not counted
    before = resident()
    tenths = [(0, 0)] * 10
    for offset in offsets_of_arrow(partition) if how == "arrow" else offsets_of_records(partition):
        tenth = offset * 10 // end
        now = resident()
        tenths[tenth] = (max(tenths[tenth][0], now[0]), max(tenths[tenth][1], now[1]))
    log.close()
    print(json.dumps({"before": before, "tenths": tenths, "records": end}))


def offsets_of_arrow(partition):
    for batch in partition.batches():
        batch.to_arrow()
        yield batch.base_offset


def offsets_of_records(partition):
    for record in partition.records():
        if record.offset % 5000 == 0:
            yield record.offset


def compact_and_watch(path: str, keys: str, buffer_bytes: str) -> None:
    """Compact distinct keys, pass by pass, and print how much memory that took."""
    config = commitlog.LogConfig(cleaner_dedupe_buffer_bytes=int(buffer_bytes))
    settings = commitlog.TopicConfig(cleanup_policy="compact", min_cleanable_dirty_ratio=1.0, flush_ms=-1)
    with commitlog.open(path, config=config) as log:
        partition = log.create_topic("t", config=settings).partition(0)
        values = [b"v" * 90] * 10_000
        for start in range(0, int(keys), 10_000):
            partition.append_many(values, keys=[b"%010d" % key for key in range(start, start + 10_000)])
        partition.roll()
        gc.collect()
        before, watch = resident()[1], Watch(lambda: resident()[1])
        reports = [partition.compact()]
        while reports[-1].stopped_by == "map full":
            reports.append(partition.compact())
        own = watch.stop() - before
        if reports[-1].stopped_by or reports[-1].records_after != int(keys):
            raise AssertionError(str(reports[-1]))
    most, seconds = max(report.keys for report in reports), sum(report.seconds for report in reports)
    print(json.dumps({"own": own, "passes": len(reports), "keys": most, "seconds": seconds}))


class Watch:
    """A thread that looks at the memory of the process every few milliseconds."""

    def __init__(self, look: Callable[[], int]) -> None:
        self._now = look
        self._most = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(0.005):
            self._most = max(self._most, self._now())

    def stop(self) -> int:
        self._ended.set()
        self._thread.join()
        return self._most


def receive(path: str, count: str) -> None:
    """Receive records that hold the time when they were sent; print how long each took."""
    import clients  # which starts children

    with commitlog.open(path, mode="r") as log, log.consumer(engine.TOPIC) as consumer:
        print("ready", flush=True)
        print(json.dumps(clients.receive(consumer, int(count))))


def receive_from_kafka(address: str, topic: str, count: str) -> None:
    """Receive records of Kafka that hold the time when they were sent; print how long each took."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": "latency", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    consumer.poll(0.1)
    print("ready", flush=True)
    taken: list[int] = []
    while len(taken) < int(count):
        message = consumer.poll(1)
        now = monotonic_ns()
        if message is not None and message.error() is None:
            taken.append(now - int(message.value()))
    consumer.close()
    print(json.dumps(taken))


def append_times(path: str, count: str, milliseconds: str) -> None:
    """Append records that hold the time, one after another, and wait for the end."""
    log, partition = engine.reopen(Path(path), "w")
    print("ready", flush=True)
    for _ in range(int(count)):
        partition.append(b"%d" % monotonic_ns())
        sleep(int(milliseconds) / 1000)
    signal.pause()
    log.close()


def pool() -> list[data.Batch]:
    """Make batches of a megabyte: 1,000-byte values."""
    return data.make("pool", 16_000, 1000, 1000, batch_records=1000).batches


def fill_until_killed(name: str, path: str, size_bytes: str) -> None:
    """Append to an engine without a sync, print how many records it acknowledged, and wait for the end."""
    store, offset = variants.BY_NAME[name](Path(path)), 0
    for batch in data.repeated(pool(), int(size_bytes)):
        store.append_batch(batch, stamp=True)
        offset += len(batch.values)
    print(offset, flush=True)
    signal.pause()


def grow_and_watch(name: str, path: str, size_bytes: str) -> None:
    """Append to an engine and scan it; print the most memory that took, of its own and mapped."""
    batches, engine_type = pool(), variants.BY_NAME[name]
    batches_seen = 0
    gc.collect()
    own, mapped = pages()
    watch, mapping = Watch(lambda: pages()[0]), Watch(lambda: pages()[1])
    store = engine_type(Path(path))
    for batch in data.repeated(batches, int(size_bytes)):
        store.append_batch(batch, stamp=True)
        batches_seen += 1
    store.close()
    reader = engine_type(Path(path), readonly=True)
    found = reader.scan_records().records
    reader.close()
    if found != batches_seen * len(batches[0].values):
        raise AssertionError(f"{name} gave back {found} records of {batches_seen} batches")
    print(json.dumps({"own": max(watch.stop() - own, 0), "mapped": max(mapping.stop() - mapped, 0)}))


def pages() -> tuple[int, int]:
    """Return the bytes resident that are the process's own, and those that are pages of mapped files."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    kib = {line[0]: int(line[1]) for line in lines if line[0].startswith("Rss")}
    return kib["RssAnon:"] << 10, (kib["RssFile:"] + kib["RssShmem:"]) << 10


if __name__ == "__main__":
    work = {
        "write": write_until_killed,
        "scan": scan_and_watch,
        "compact": compact_and_watch,
        "receive": receive,
        "append-times": append_times,
        "receive-from-kafka": receive_from_kafka,
        "fill": fill_until_killed,
        "grow": grow_and_watch,
    }
    work[sys.argv[1]](*sys.argv[2:])
