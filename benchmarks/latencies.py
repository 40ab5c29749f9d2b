"""The row of latencies: how long single appends take, from the fastest to the slowest of a thousand."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter_ns

import data
from bench import Bench
from data import Batch
from report import Curve
from store import Store
from variants import ENGINES, SYNCED

PERCENTILES = [1, 10, 25, 50, 75, 90, 95, 99, 99.9]
TURN_APPENDS = 100


def latency_distribution(bench: Bench) -> Iterator[Curve]:
    """Single appends of 90-byte values at both levels: written, and synced."""
    levels = {
        "written: survives a killed process": (ENGINES, bench.pick(50_000, 10_000)),
        "synced: survives a power cut": (SYNCED, bench.pick(2_000, 300)),
    }
    for level, (engines, count) in levels.items():
        taken = in_turns(bench, engines, count)
        series = {name: [percentile(times, one) for one in PERCENTILES] for name, times in taken.items()}
        note = f"{count:,} appends each; engines take turns of {TURN_APPENDS}; one call of the adapter each."
        yield Curve(
            "latency_distribution", f"one append, {level}", "percentile", "microseconds", PERCENTILES,
            series, "least", "even", note=note,
        )  # fmt: skip


def in_turns(bench: Bench, engines: list[type[Store]], count: int) -> dict[str, list[int]]:
    """Return the nanoseconds of each append; a spell of noise falls upon everyone."""
    batches = data.make("single", count, 90, 90, batch_records=1).batches
    stores = {engine.name: engine(bench.fresh(f"{engine.name} latency")) for engine in engines}
    taken: dict[str, list[int]] = {name: [] for name in stores}
    try:
        for start in range(0, count, TURN_APPENDS):
            for name, store in stores.items():
                taken[name] += append_singly(store, batches[start : start + TURN_APPENDS])
        for name, store in stores.items():
            if store.next_offset() != count:
                raise AssertionError(f"{name} kept {store.next_offset()} of {count} records")
    finally:
        for store in stores.values():
            store.close()
    return taken


def append_singly(store: Store, batches: list[Batch]) -> list[int]:
    append, taken = store.append_each, []
    for batch in batches:
        start = perf_counter_ns()
        append(batch)
        taken.append(perf_counter_ns() - start)
    return taken


def percentile(nanoseconds: list[int], wanted: float) -> float:
    ordered = sorted(nanoseconds)
    return ordered[min(int(len(ordered) * wanted / 100), len(ordered) - 1)] / 1000
