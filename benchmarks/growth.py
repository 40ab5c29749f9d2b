"""The rows that show how cost grows: with the log, with partitions, groups, members, segments, and sizes."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from math import log2
from pathlib import Path
from statistics import median
from time import perf_counter_ns

import data
import engine
from bench import Bench
from curves import joined, rounds
from growth_points import DESCRIPTORS, MEMORY, OPEN_FILES
from report import Curve, Group, Line

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


# --- curves --------------------------------------------------------------------------------------

POINTS = Path(__file__).with_name("growth_points.py")
KINDS: dict[str, tuple[str, list[int], list[int]]] = {  # what grows, and how far: full and quick
    "partitions": ("partitions of a log", [1, 10, 100, 1_000, 10_000], [1, 10, 100, 1_000]),
    "groups": ("groups of a log", [1, 10, 100, 1_000, 10_000], [1, 10, 100, 1_000]),
    "members": ("members of a group", [1, 4, 16, 64, 128], [1, 4, 16]),
    "segments": ("segments of a partition", [1, 10, 100, 1_000, 10_000], [1, 10, 100, 1_000]),
    "record_size": ("bytes a value", [10, 100, 1_000, 10_000, 100_000, 1_000_000], [10, 1_000, 100_000]),
    "batch_size": ("records a batch", [1, 10, 100, 1_000, 10_000, 100_000], [1, 10, 100, 1_000, 10_000]),
}
TINY = 10  # the largest number of anything, where it is only shown that curves can run


def curves_of(kind: str, bench: Bench) -> Iterator[Curve]:
    """Measure what operations take at each size, in a process of its own; the best round counts."""
    label, full, quick = KINDS[kind]
    sizes = [size for size in quick if size <= TINY] if bench.tiny else quick if bench.quick else full
    points: dict[int, dict[str, float]] = {}
    for _ in range(rounds(bench)):
        for size in sizes:
            found = measured(bench, kind, size)
            known = points.get(size, found)
            points[size] = {name: min(amount, known[name]) for name, amount in found.items()}
    series = joined(points.values())
    kept = {name: series.pop(name) for name in (MEMORY, OPEN_FILES)}
    note = f"Processor time, the system's included, in a process that may open {DESCRIPTORS:,} files."
    row = f"growth_{kind}"
    yield Curve(row, f"cost by {label}", label, "microseconds", list(sizes), series, "least", note=note)
    yield Curve(row, f"kept by {label}", label, "KiB or number", list(sizes), kept, "least")


def measured(bench: Bench, kind: str, size: int) -> dict[str, float]:
    with bench.scratch(kind) as path:
        command = [sys.executable, str(POINTS), kind, str(path), str(size)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


CURVES: dict[str, Callable[[Bench], Iterator[Curve]]] = {
    f"growth_{kind}": partial(curves_of, kind) for kind in KINDS
}
