"""The row that shows how cost grows with the log: get by logarithm at most, append not at all."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import log2
from statistics import median
from time import perf_counter_ns

import data
import engine
from bench import Bench
from report import Group, Line

import commitlog

SMALLEST = 1000
BATCH_RECORDS = 1000
GETS = 1000
APPENDS = 500


def growth(bench: Bench) -> Iterator[Group]:
    """Median latency of get and of append in logs of very different lengths, taking turns."""
    sizes = [SMALLEST, 100_000, bench.pick(10_000_000, 1_000_000)]
    gets = dict.fromkeys(sizes, float("inf"))
    appends = dict.fromkeys(sizes, float("inf"))
    with bench.scratch("growth") as path, commitlog.open(path) as log:
        partitions = {size: filled(log, size) for size in sizes}
        for _ in range(bench.repeats):
            for size, partition in partitions.items():
                gets[size] = min(gets[size], get_latency(partition, size))
        for _ in range(bench.repeats):
            for size, partition in partitions.items():
                appends[size] = min(appends[size], append_latency(partition))
    by_logarithm = log2(sizes[-1]) / log2(sizes[0])
    note = f"{BATCH_RECORDS} records a batch, median of each round, best round."
    yield Group("growth", "get(offset) at random", lines_of(gets, by_logarithm, "logarithmic"), note)
    yield Group("growth", "append one record as the log grows", lines_of(appends, 1.25, "constant"), note)


def lines_of(latencies: dict[int, float], bound: float, word: str) -> list[Line]:
    """Show each size against the smallest, and judge the largest."""
    lines = []
    for size, taken in latencies.items():
        ratio, judged = taken / latencies[SMALLEST], size == max(latencies)
        target = f"<= {bound:.2f}, {word}" if judged else ""
        passed = ratio <= bound if judged else None
        lines.append(Line(f"{size:,} records", taken, "us", ratio, target, passed))
    return lines


def filled(log: commitlog.CommitLog, size: int) -> commitlog.Partition:
    config = commitlog.TopicConfig(**engine.WRITTEN)
    partition = log.create_topic(f"{engine.TOPIC}-{size}", config=config).partition(0)
    pool = data.make("growth", 10 * BATCH_RECORDS, 60, 120).batches[0]
    for number in range(size // BATCH_RECORDS):
        rows = slice(number % 10 * BATCH_RECORDS, (number % 10 + 1) * BATCH_RECORDS)
        partition.append_many(pool.values[rows], keys=pool.keys[rows], timestamps=pool.timestamps[rows])
    return partition


def get_latency(partition: commitlog.Partition, size: int) -> float:
    chance = random.Random(size)
    get, taken = partition.get, []
    for offset in [chance.randrange(size) for _ in range(GETS)]:
        start = perf_counter_ns()
        record = get(offset)
        taken.append(perf_counter_ns() - start)
        if record.offset != offset:
            raise AssertionError(f"get({offset}) gave {record.offset}")
    return median(taken) / 1000


def append_latency(partition: commitlog.Partition) -> float:
    append, taken = partition.append, []
    for number in range(APPENDS):
        key, value = b"%010d" % number, b"v" * 90
        start = perf_counter_ns()
        append(value, key=key)
        taken.append(perf_counter_ns() - start)
    return median(taken) / 1000
