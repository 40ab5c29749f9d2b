"""Processor time of a query: what the JVM takes, and what the Python processes that it starts take.

Other work on the machine makes queries slower by the clock, but hardly changes this.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from report import Line

_TICKS = os.sysconf("SC_CLK_TCK")


class Seconds(NamedTuple):
    jvm: float
    python: float


def processor_lines(
    spark: Any, rounds: int, rows: int, queries: dict[str, Callable[[], object]]
) -> list[Line]:
    """Run queries in turns; the ratio is to the last one, and above 1 is more time than it takes."""
    jvm = spark.sparkContext._gateway.proc.pid
    least: dict[str, Seconds] = {}
    for _ in range(rounds):
        for name, run in queries.items():
            before = taken_by(jvm)
            run()
            after = taken_by(jvm)
            taken = Seconds(after.jvm - before.jvm, after.python - before.python)
            least[name] = min(taken, least.get(name, taken), key=sum)
    last = sum(list(least.values())[-1])
    return [
        Line(
            name, sum(taken) / rows * 1e6, "us a row", sum(taken) / last,
            note=f"JVM {taken.jvm / rows * 1e6:.2f}, Python {taken.python / rows * 1e6:.2f}",
        )
        for name, taken in least.items()
    ]  # fmt: skip


def taken_by(jvm: int) -> Seconds:
    """Return what the JVM and its descendants have taken so far, with those that have ended."""
    children: dict[int, list[int]] = {}
    taken: dict[int, tuple[float, float]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended just now
            continue
        own, ended = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
        children.setdefault(int(fields[1]), []).append(int(folder.name))
        taken[int(folder.name)] = own / _TICKS, ended / _TICKS
    python, left = taken[jvm][1], list(children.get(jvm, ()))
    while left:
        process = left.pop()
        python += sum(taken[process])
        left += children.get(process, ())
    return Seconds(taken[jvm][0], python)
