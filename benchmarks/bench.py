"""Bench: the settings of a run, its directories, the data its rows share, and the stopwatch."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import perf_counter

import data
import engine


@dataclass(frozen=True)
class Bench:
    """What a row needs to know. Frozen, so that `cache` may key on it."""

    root: Path
    quick: bool = False
    tiny: bool = False
    _used: list[Path] = field(default_factory=list, compare=False)

    def pick(self, full: int, quick: int) -> int:
        """Choose an amount of data or a number of rounds; a tiny run only shows that curves can run."""
        if self.tiny:
            return max(quick // 50, 1)
        return quick if self.quick else full

    @property
    def repeats(self) -> int:
        return self.pick(7, 5)

    def fresh(self, name: str) -> Path:
        """Return a path at which nothing exists yet."""
        path = self.root / f"{len(self._used)}-{name.replace(' ', '-').replace(',', '')}"
        self._used.append(path)
        return path

    @contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        """Lend a path, and remove it afterwards: dirty pages of a deleted file are never written back."""
        path = self.fresh(name)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @cache  # noqa: B019 - a run has one Bench
    def fixed(self) -> data.Dataset:
        return data.make("90-byte values", self.pick(1_000_000, 200_000), 90, 90)

    @cache  # noqa: B019
    def varied(self) -> data.Dataset:
        return data.make("60..120-byte values", self.pick(1_000_000, 200_000), 60, 120)

    @cache  # noqa: B019
    def big(self, segment_mib: int = 1024) -> Path:
        """Return a log larger than any cache, closed; by default with Kafka's segments of 1 GiB."""
        path = self.fresh(f"big-{segment_mib}")
        batches = data.make("big", 640_000, 60, 120).batches
        engine.fill(path, batches, self.pick(4_000, 512) * 10**6, segment_bytes=segment_mib << 20)
        os.sync()  # so that writeback does not run under somebody's measurement
        return path


def best_of(repeats: int, contenders: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Return the best time of each contender, over interleaved rounds.

    The machine is shared: noise only ever adds time, and it comes in spells, so taking turns spreads a
    spell over everyone and the minimum is the run that met the least of it. The collector stays on, and
    starts each turn with nothing left over from the one before.
    """
    best: dict[str, float] = {}
    for _ in range(repeats):
        for name, run in contenders.items():
            gc.collect()
            best[name] = min(run(), best.get(name, float("inf")))
    return best


def timed(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start
