"""The row of many partitions under a small limit of descriptors: opening, using and closing them.

Run by itself, `python benchmarks/many_partitions.py DIRECTORY COUNT`, it is the child that measures.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from time import perf_counter, process_time
from typing import TYPE_CHECKING

import commitlog

if TYPE_CHECKING:
    from bench import Bench
    from report import Group

DESCRIPTORS = 1024
TOPIC_PARTITIONS = 1000
BUSY = 50


def many_partitions(bench: Bench) -> Iterator[Group]:
    """Two sizes, so that the growth shows; each in a process of its own, with 1,024 descriptors."""
    from report import Group, Line

    small, large = bench.pick((2000, 10_000), (500, 2000))
    found = {count: measured(bench, count) for count in (small, large)}
    lines = []
    for name, unit in UNITS.items():
        before, after = found[small][name], found[large][name]
        target, passed = "", None
        if "descriptors" in name:
            target, passed = f"< {DESCRIPTORS}", after < DESCRIPTORS
        lines.append(Line(f"{name}: {small:,} partitions", before, unit))
        lines.append(Line(f"{name}: {large:,} partitions", after, unit, after / before, target, passed))
    yield Group("many_partitions", f"partitions under `ulimit -n {DESCRIPTORS}`", lines)


UNITS = {
    "create": "ms each",
    "append in turn": "us each",
    "append to a few": "us each",
    "read": "us each",
    "close": "ms each",
    "open": "ms each",
    "memory": "KiB each",
    "descriptors, the most": "",
    "reader: open": "ms each",
    "reader: read": "us each",
    "reader: look for appends": "us each",
    "reader: memory": "KiB each",
    "reader: descriptors": "",
}


def measured(bench: Bench, count: int) -> dict[str, float]:
    with bench.scratch("many_partitions") as path:
        command = [sys.executable, __file__, str(path), str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def resident_kib() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1024


def main(path: str, count: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    found: dict[str, float] = {}
    most = 0

    def timed(name: str, began: float, times: int, scale: float) -> float:
        nonlocal most
        found[name] = (perf_counter() - began) / times * scale
        most = max(most, len(os.listdir("/proc/self/fd")))
        return perf_counter()

    began = perf_counter()
    with commitlog.open(path) as log:
        for number in range(0, count, TOPIC_PARTITIONS):
            log.create_topic(f"t{number}", min(TOPIC_PARTITIONS, count - number))
        began = timed("create", began, count, 1e3)
        partitions = [one for name in log.topics() for one in log.topic(name)]
        for one in partitions:
            one.append(b"value")
        began = timed("append in turn", began, count, 1e6)
        for one in partitions[:BUSY]:
            for _ in range(200):
                one.append(b"value")
        began = timed("append to a few", began, BUSY * 200, 1e6)
        if sum(len(list(islice(one, 1))) for one in partitions) != count:
            raise AssertionError("a partition has lost its record")
        timed("read", began, count, 1e6)
        began = perf_counter()
    timed("close", began, count, 1e3)
    del partitions, one
    before, began = resident_kib(), perf_counter()
    log = commitlog.open(path)
    timed("open", began, count, 1e3)
    found["memory"] = (resident_kib() - before) / count
    if sum(one.next_offset for name in log.topics() for one in log.topic(name)) != count + BUSY * 200:
        raise AssertionError("a partition has lost a record")
    log.close()
    found["descriptors, the most"] = most
    print(json.dumps(found | as_reader(path, count)))


def as_reader(path: str, count: int) -> dict[str, float]:
    """Measure a log opened with mode="r", in a process of its own, which has none of the writer's memory."""
    command = [sys.executable, __file__, path, str(count), "reader"]
    found: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return found


def read(path: str, count: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    found: dict[str, float] = {}
    with commitlog.open(path, mode="r") as log:
        list(islice(log.topic(log.topics()[0]).partition(0), 1))  # imports what reading needs
    with commitlog.open(path, mode="r") as log:
        before, began = resident_kib(), process_time()
        partitions = [one for name in log.topics() for one in log.topic(name)]
        found["reader: open"] = (process_time() - began) / count * 1e3
        began = process_time()
        if sum(len(list(islice(one, 1))) for one in partitions) != count:
            raise AssertionError("a partition has lost its record")
        found["reader: read"] = (process_time() - began) / count * 1e6
        began = process_time()
        if sum(one.next_offset for one in partitions) != count + BUSY * 200:
            raise AssertionError("a partition has lost a record")
        found["reader: look for appends"] = (process_time() - began) / count * 1e6
        found["reader: memory"] = (resident_kib() - before) / count
        found["reader: descriptors"] = len(os.listdir("/proc/self/fd"))
    print(json.dumps(found))


if __name__ == "__main__":
    (read if sys.argv[3:] else main)(sys.argv[1], int(sys.argv[2]))
