"""The row of counters: what appends take with them, and the same code without, in the same run."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from textwrap import dedent
from time import thread_time
from typing import Any

import engine
from bench import Bench, best_of
from report import Group, Line

import commitlog
from commitlog import Partition
from commitlog.partitions.appender import Appender
from commitlog.partitions.state import LogState

MOST = 0.03  # of the time of an append
ROUNDS = 41  # short ones: what is looked for is smaller than the machine's noise
COUNTS = (".counters.rolled(", ".counters.batched(")
WITH, WITHOUT = "commitlog, counting", "commitlog without counters"


def without_counters(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a method again, without the lines that count."""
    lines = dedent(inspect.getsource(function)).splitlines()
    scope = dict(vars(sys.modules[function.__module__]))
    exec(
        "\n".join(
            [
                "from __future__ import annotations",
                *(li for li in lines if not any(one in li for one in COUNTS)),
            ]
        ),
        scope,
    )
    return scope[function.__name__]


class UncountedAppender(Appender):
    """Counts nothing on the way of an append."""

    _append_locked = without_counters(Appender._append_locked)


class UncountedState(LogState):
    """Counts no rolls."""

    __slots__ = ()
    roll = without_counters(LogState.roll)


def uncounted(partition: Partition) -> None:
    """Let a partition count nothing from now on."""
    partition._state.__class__ = UncountedState
    partition._appender = UncountedAppender(partition._state, partition._syncer)
    partition.append = partition._appender.append


def counting(bench: Bench) -> Iterator[Group]:
    """Appends of one record, and of lists, in rounds that take turns."""
    batch = bench.fixed().batches[0]
    singles = bench.pick(50_000, 20_000)

    def one_by_one(partition: Partition) -> None:
        append, value, key = partition.append, batch.values[0], batch.keys[0]
        for _ in range(singles):
            append(value, key=key)

    def in_lists(records: int) -> Callable[[Partition], None]:
        values, keys, rounds = batch.values[:records], batch.keys[:records], singles // (10 + records)

        def append(partition: Partition) -> None:
            for _ in range(max(rounds, 20)):
                partition.append_many(values, keys=keys)

        return append

    lists = {f"append_many, {count:,} records": in_lists(count) for count in (1, 100, 10_000)}
    for title, append in {"append, one record": one_by_one, **lists}.items():
        seconds = best_of(ROUNDS, {name: runner(bench, name, append) for name in (WITH, WITHOUT)})
        cost = seconds[WITH] / seconds[WITHOUT] - 1
        target = f"< {MOST:.0%} more time"
        line = Line(WITH, 100 * cost, "% more", None, target, cost < MOST, f"{seconds[WITH]:.3f} s a round")
        yield Group(
            "counting",
            f"what counters cost: {title}",
            [line],
            "Against the same code without them; a single append counts nothing, so that is the noise.",
        )


def runner(bench: Bench, name: str, append: Callable[[Partition], None]) -> Callable[[], float]:
    """Return what times the appends to a new partition."""

    def run() -> float:
        with bench.scratch("counting") as path:
            log, partition = engine.create(path, **engine.WRITTEN)
            with log:
                if name == WITHOUT:
                    uncounted(partition)
                began = thread_time()  # other processes must not show in a percent
                append(partition)
                seconds = thread_time() - began
                check(partition, counts=name == WITH)
            return seconds

    return run


def check(partition: commitlog.Partition, *, counts: bool) -> None:
    """See to it that one of them counts, and the other does not."""
    written = partition.metrics().written
    if counts and (written is None or written.records != partition.next_offset):
        raise AssertionError(f"{written} was counted of {partition.next_offset} records")
    if isinstance(partition._appender, UncountedAppender) is counts:
        raise AssertionError(f"{type(partition._appender)} was measured")
