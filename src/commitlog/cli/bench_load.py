"""The load that `commitlog bench` puts on a log, and what it measures."""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from time import perf_counter
from typing import Literal, Self

import numpy as np

from commitlog.cli.progress_bar import Report
from commitlog.log import CommitLog

TOPIC = "bench"
_DIFFERENT = 1_000  # distinct values
_SAMPLES = 10_000  # of a producer's latencies: timing every record would distort the result
_STEPS = 100  # of a progress bar


@dataclass(frozen=True, slots=True)
class Load:
    """What to append, and how."""

    records: int
    record_size: int
    how: Literal["bulk", "single", "producer"]
    batch: int
    durability: str
    compression: str
    partitions: int


@dataclass(frozen=True, slots=True)
class Figures:
    """Measured throughput, and latencies in milliseconds."""

    records: int
    seconds: float
    records_per_second: float
    mb_per_second: float
    avg_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    p99_9_ms: float
    max_ms: float

    @classmethod
    def of(cls, records: int, size_bytes: int, seconds: float, latencies: Sequence[float]) -> Self:
        """Compute figures from times in seconds."""
        waits = 1e3 * np.array(latencies if len(latencies) else [0.0])
        p50, p95, p99, p99_9 = np.quantile(waits, (0.5, 0.95, 0.99, 0.999)).tolist()
        rate, mb, mean, most = records / seconds, size_bytes / seconds / 1e6, waits.mean(), waits.max()
        return cls(records, seconds, rate, mb, float(mean), p50, p95, p99, p99_9, float(most))


def payload(load: Load) -> list[bytes]:
    """Return values to append: random letters, as in Kafka's tool, the same in each run."""
    chance = random.Random(1)
    letters = string.ascii_uppercase
    return ["".join(chance.choices(letters, k=load.record_size)).encode() for _ in range(_DIFFERENT)]


def produce(log: CommitLog, load: Load, values: list[bytes], progress: Report | None) -> Figures:
    """Append all records; the clock stops once they are as durable as requested."""
    run = {"bulk": _in_bulk, "single": _one_by_one, "producer": _by_producer}[load.how]
    began = perf_counter()
    latencies = run(log, load, values, progress)
    seconds = perf_counter() - began
    return Figures.of(load.records, load.records * load.record_size, seconds, latencies)


def _in_bulk(log: CommitLog, load: Load, values: list[bytes], progress: Report | None) -> list[float]:
    targets, sync = log.topic(TOPIC).partitions, load.durability == "synced"
    batch = list(islice(cycle(values), load.batch))
    latencies = []
    for number, first in enumerate(range(0, load.records, load.batch)):
        part = batch if first + load.batch <= load.records else batch[: load.records - first]
        start = perf_counter()
        targets[number % len(targets)].append_many(part, sync=sync)
        latencies.append(perf_counter() - start)
        if progress is not None:
            progress(first + len(part), load.records)
    return latencies


def _one_by_one(log: CommitLog, load: Load, values: list[bytes], progress: Report | None) -> list[float]:
    appends, sync = [one.append for one in log.topic(TOPIC).partitions], load.durability == "synced"
    latencies: list[float] = []
    step = max(load.records // _STEPS, 1)
    for done in range(0, load.records, step):
        pairs = zip(cycle(appends), islice(cycle(values), min(step, load.records - done)), strict=False)
        for append, value in pairs:
            start = perf_counter()
            append(value, sync=sync)
            latencies.append(perf_counter() - start)
        if progress is not None:
            progress(len(latencies), load.records)
    return latencies


def _by_producer(log: CommitLog, load: Load, values: list[bytes], progress: Report | None) -> list[float]:
    acks: Literal[0, 1, "all"] = {"buffered": 0, "written": 1, "synced": "all"}[load.durability]  # type: ignore[assignment]
    latencies: list[float] = []
    every = max(load.records // _SAMPLES, 1)
    step = max(load.records // _STEPS, 1)
    with log.producer(acks=acks) as producer:
        send = producer.send
        for number, value in enumerate(islice(cycle(values), load.records)):
            if number % every:
                send(TOPIC, value)
            else:
                started = perf_counter()
                send(TOPIC, value, on_delivery=lambda *_, at=started: latencies.append(perf_counter() - at))
            if progress is not None and number % step == 0:
                progress(number, load.records)
    return latencies


def consume(log: CommitLog, load: Load, progress: Report | None) -> Figures:
    """Consume all records from the beginning."""
    latencies: list[float] = []
    done = size_bytes = 0
    with log.consumer(TOPIC, auto_offset_reset="earliest", max_poll_records=10_000) as consumer:
        began = perf_counter()
        while done < load.records:
            start = perf_counter()
            found = consumer.poll(1.0)
            latencies.append(perf_counter() - start)
            for records in found.values():
                done += len(records)
                size_bytes += sum(len(record.value) for record in records)
            if progress is not None:
                progress(done, load.records)
        seconds = perf_counter() - began
    return Figures.of(done, size_bytes, seconds, latencies)
