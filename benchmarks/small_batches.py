"""The rows without a cliff: reading by batch size, and keyed appends by number of partitions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from time import thread_time

import engine
from bench import Bench, best_of
from report import Group, Line

import commitlog
from commitlog import CommitLog, Partition
from commitlog.batches.scan import check_batches

SIZES = [1, 2, 10, 150, 1_000, 9_500]
ARROW_GOAL = 15e6  # records a second, in batches of 150
ROUNDS = 5


def small_batches(bench: Bench) -> Iterator[Group]:
    """Read the same records, stored in batches of different sizes; processor time, warm page cache."""
    records = bench.pick(1_000_000, 200_000)
    found: dict[str, list[tuple[int, float]]] = {}
    for size in SIZES:
        with bench.scratch("small batches") as path, commitlog.open(path) as log:
            config = commitlog.TopicConfig(**engine.WRITTEN)
            partition = log.create_topic(engine.TOPIC, config=config).partition(0)
            fill(bench, partition, records if size > 1 else records // 5, size)
            for name, seconds in readings(log, partition).items():
                found.setdefault(name, []).append((size, partition.next_offset / seconds))
    for name, rates in found.items():
        lines = [
            Line(
                f"{size:,} a batch",
                rate,
                "rec/s",
                rate / rates[-1][1],
                f"{ARROW_GOAL:,.0f}" if judged else "",
                rate >= ARROW_GOAL if judged else None,
            )
            for size, rate in rates
            for judged in [name.endswith(("arrow()", "reader()")) and size == 150]
        ]
        yield Group("small_batches", name, lines, "ratio: to the largest batches")


def fill(bench: Bench, partition: Partition, records: int, size: int) -> None:
    batch = bench.varied().batches[0]
    values, keys = batch.values[:size], batch.keys[:size]
    for number in range(records // size):
        if size == 1:
            partition.append(batch.values[number % 1_000], key=batch.keys[number % 1_000])
        else:
            partition.append_many(values, keys=keys)
    partition.sync()


def readings(log: CommitLog, partition: Partition) -> dict[str, float]:
    """Return the seconds that each way of reading everything takes."""
    segments = partition.segments

    def check() -> None:
        for segment in segments:
            end, damage, _ = check_batches(segment.path, 0, segment.size_bytes, segment.base_offset)
            assert damage is None, end

    def poll() -> None:
        with log.consumer(engine.TOPIC) as consumer:
            left = partition.next_offset
            while left:
                left -= sum(table.num_rows for table in consumer.poll_arrow().values())

    ways: dict[str, Callable[[], object]] = {
        "records()": lambda: deque(partition.records(), maxlen=0),
        "to_arrow()": partition.to_arrow,
        "to_reader()": lambda: deque(partition.to_reader(), maxlen=0),
        "poll_arrow()": poll,
        "the check of recovery": check,
    }
    return best_of(ROUNDS, {name: partial(timed, way) for name, way in ways.items()})


def timed(way: Callable[[], object], times: int = 1) -> float:
    began = thread_time()
    for _ in range(times):
        way()
    return thread_time() - began


def keyed(bench: Bench) -> Iterator[Group]:
    """topic.append_many() with keys, against partition.append_many() of the same lists in the same round."""
    batch = bench.fixed().batches[0]
    for size in (10_000, 1_000):
        times = bench.pick(200_000, 50_000) // size
        with bench.scratch("keyed") as path, commitlog.open(path) as log:
            one, four = (log.create_topic(f"t{count}", count) for count in (1, 4))
            targets = {
                "partition.append_many()": one.partition(0),
                "topic of one partition": one,
                "topic of four partitions": four,
            }
            ways = {
                name: partial(
                    timed, partial(target.append_many, batch.values[:size], keys=batch.keys[:size]), times
                )
                for name, target in targets.items()
            }
            best = best_of(3 * ROUNDS, ways)
        goals = dict(zip(targets, (None, 0.9, 0.6), strict=True))
        base = best["partition.append_many()"]
        lines = [
            Line(
                name,
                size * times / seconds,
                "rec/s",
                base / seconds,
                "" if goals[name] is None else f">= {goals[name]}",
                None if goals[name] is None else base / seconds >= goals[name],
            )
            for name, seconds in best.items()
        ]
        yield Group("keyed", f"keyed appends, {size:,} records a call", lines)
