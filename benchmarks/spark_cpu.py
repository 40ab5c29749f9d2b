"""Processor time of a query: what the JVM takes, and what the Python processes that it starts take.

Other work on the machine makes queries slower by the clock, but hardly changes this.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from statistics import median_low
from typing import Any, NamedTuple

from report import Line

_TICKS = os.sysconf("SC_CLK_TCK")

Process = tuple[int, int]  # its number and when it started: numbers are used again
Taken = tuple[float, float]  # seconds of its own, and of its children that have ended and that it asked after


class Seconds(NamedTuple):
    jvm: float
    python: float


def processor_lines(
    spark: Any, rounds: int, rows: int, queries: dict[str, Callable[[], object]]
) -> list[Line]:
    """Run queries in turns; the ratio is to the last one, and above 1 is more time than it takes.

    The median round counts, of those in which no process ended: see taken_between().
    """
    jvm = spark.sparkContext._gateway.proc.pid
    found: dict[str, list[Seconds]] = {name: [] for name in queries}
    for _ in range(rounds):
        for name, run in queries.items():
            before = taken_by_process(jvm)
            run()
            taken = taken_between(jvm, before, taken_by_process(jvm))
            if taken:
                found[name].append(taken)
    kept_last = list(found.values())[-1]
    last = sum(middle(kept_last)) if kept_last else None
    return [line_of(name, kept, rounds, rows, last) for name, kept in found.items()]


def line_of(name: str, kept: list[Seconds], rounds: int, rows: int, last: float | None) -> Line:
    note = f"{len(kept)} of {rounds} rounds"
    if not kept:
        return Line(name, float("nan"), "us a row", note=f"{note}: in each of them a process ended")
    taken = middle(kept)
    parts = f"JVM {taken.jvm / rows * 1e6:.2f}, Python {taken.python / rows * 1e6:.2f}"
    ratio = sum(taken) / last if last else None
    return Line(name, sum(taken) / rows * 1e6, "us a row", ratio, note=f"{parts}; {note}")


def middle(kept: list[Seconds]) -> Seconds:
    """Return the round whose sum is the median, so that its parts belong together."""
    sums = [sum(taken) for taken in kept]
    return kept[sums.index(median_low(sums))]


def taken_between(jvm: int, before: dict[Process, Taken], after: dict[Process, Taken]) -> Seconds | None:
    """Return what was taken in between, or None if a process ended that was there before.

    Its time is gone with it: Spark's daemon ignores how its workers end, so that the system adds their time
    to nobody's. A worker that both started and ended in between is not noticed.
    """
    if not before.keys() <= after.keys():
        return None
    of_jvm = of_python = 0.0
    for process, (own, ended) in after.items():
        own_before, ended_before = before.get(process, (0.0, 0.0))
        if process[0] == jvm:
            of_jvm += own - own_before
        else:
            of_python += own - own_before
        of_python += ended - ended_before
    return Seconds(of_jvm, of_python)


def taken_by_process(jvm: int) -> dict[Process, Taken]:
    """Return what the JVM and each of its descendants has taken so far."""
    children: dict[int, list[int]] = {}
    found: dict[int, tuple[Process, Taken]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended just now
            continue
        number = int(folder.name)
        own, ended = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
        children.setdefault(int(fields[1]), []).append(number)
        found[number] = (number, int(fields[19])), (own / _TICKS, ended / _TICKS)
    family, left = {}, [jvm]
    while left:
        number = left.pop()
        process, taken = found[number]
        family[process] = taken
        left += children.get(number, ())
    return family
