"""The row of commitlog-speedups: the same work in Python alone and with the compiled package, in turns.

Which of them a process uses is decided when it imports commitlog, so each turn is a child:
`python speedups.py RECORDS PATH` prints the records that it handles per second of processor time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time

import engine
from bench import Bench
from report import Group, Line

import commitlog
from commitlog import speedups
from commitlog.batches.scan import check_batches

# The work, and how much faster it should be.
GOALS = {
    "append() one by one": 1.4,
    "records() of these": 3.0,
    "the check of recovery over these": 2.0,
    "to_arrow() of these": None,
    "producer.send(), one partition": 1.28,
    "producer.send(), four partitions": 1.44,
    "append_many(), 10,000 at a time": None,
    "append_many(), 150 at a time": None,
    "to_arrow() of these batches of 150": None,
    "to_reader() of batches of 10,000": None,
}


def both(bench: Bench) -> Iterator[Group]:
    """Measure in children, in turns; the best of all turns counts."""
    if speedups.native is None:
        print(f"commitlog-speedups is {speedups.status}: make native\n")
        return
    records = bench.pick(500_000, 100_000)
    rates: dict[tuple[str, str], float] = {}
    for _ in range(bench.repeats):
        for kind, value in (("Python", "1"), ("compiled", "0")):
            with bench.scratch("speedups") as path:
                done = subprocess.run(
                    [sys.executable, __file__, str(records), str(path)],
                    env={**os.environ, "COMMITLOG_PURE": value},
                    check=True,
                    stdout=subprocess.PIPE,
                )
            for work, rate in json.loads(done.stdout).items():
                rates[work, kind] = max(rate, rates.get((work, kind), 0))
    for work, goal in GOALS.items():
        python, compiled = rates[work, "Python"], rates[work, "compiled"]
        ratio = compiled / python
        target, passed = ("", None) if goal is None else (f">= {goal}", ratio >= goal)
        yield Group(
            "speedups",
            f"{work}, processor time",
            [
                Line("Python alone", python, "rec/s"),
                Line("commitlog-speedups", compiled, "rec/s", ratio, target, passed),
            ],
        )


# --- in a child ----------------------------------------------------------------------------------


def rate(records: int, work: Callable[[], object]) -> float:
    began = process_time()
    work()
    return records / (process_time() - began)


def main(records: int, path: Path) -> None:
    keys = [b"%010d" % number for number in range(records)]
    values = [b"%090d" % number for number in range(records)]
    with commitlog.open(path) as log:

        def topic(name: str, partitions: int = 1) -> commitlog.Topic:
            return log.create_topic(name, partitions, config=commitlog.TopicConfig(**engine.WRITTEN))

        def append_each() -> None:
            append = ones.append
            for key, value in zip(keys, values, strict=True):
                append(value, key=key)

        def append_many(target: commitlog.Partition, size: int) -> None:
            for start in range(0, records, size):
                target.append_many(values[start : start + size], keys=keys[start : start + size])

        def send(name: str) -> None:
            with log.producer() as producer:
                send = producer.send
                for key, value in zip(keys, values, strict=True):
                    send(name, value, key)

        def check() -> None:
            for segment in ones.segments:
                assert check_batches(segment.path, 0, segment.size_bytes, segment.base_offset).damage is None

        ones, small, large = (topic(name).partition(0) for name in ("ones", "small", "large"))
        topic("one"), topic("four", 4)
        work: list[Callable[[], object]] = [
            append_each,
            lambda: deque(ones.records(), maxlen=0),
            check,
            ones.to_arrow,
            lambda: send("one"),
            lambda: send("four"),
            lambda: append_many(large, 10_000),
            lambda: append_many(small, 150),
            small.to_arrow,
            lambda: deque(large.to_reader(), maxlen=0),
        ]
        warm = topic("warm").partition(0)
        warm.append_many(values[:10])
        deque(warm.to_reader(), maxlen=0), warm.to_arrow()  # or the first one would import pyarrow
        print(json.dumps({name: rate(records, one) for name, one in zip(GOALS, work, strict=True)}))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
