"""The rows in which commitlog does the same work as SQLite, LMDB and RocksDB."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import peers
from bench import Bench, best_of, timed
from data import Dataset, Seen
from engine import Commitlog, DefaultCommitlog, log_bytes
from report import Group, Line, versus_best
from store import Store

WRITERS: list[type[Store]] = [Commitlog, DefaultCommitlog, *peers.available()]
# the two LMDBs leave the same file, and our flush_ms makes no difference to a reader
READERS: list[type[Store]] = [store for store in WRITERS if store not in (DefaultCommitlog, peers.MappedLMDB)]
WRITTEN = "Durability 'written' for all: survives a kill of the process, not a power cut."


def load(store: type[Store], path: Path, append: Callable[[Store], None]) -> float:
    """Time the appends into a new store; opening and closing are not counted."""
    opened = store(path)
    try:
        return timed(lambda: append(opened))
    finally:
        opened.close()


def checked_load(
    bench: Bench, store: type[Store], append: Callable[[Store], None], expected: tuple[int, int]
) -> float:
    """Time the appends, then count what is on disk: a fast append that loses records is not fast."""
    with bench.scratch(store.name) as path:
        seconds = load(store, path, append)
        reader = store(path, readonly=True)
        seen = reader.scan_records()
        reader.close()
        if (seen.records, seen.value_bytes) != expected:
            raise AssertionError(f"{store.name} kept {seen[:2]} of {expected} records and bytes")
        return seconds


def append_many(bench: Bench) -> Iterator[Group]:
    """Lists of 10,000 records, one call (and one transaction) each."""
    variants = [
        (bench.fixed(), True, "stamped by the append"),
        (bench.fixed(), False, "timestamps given"),
        (bench.varied(), False, "timestamps given"),
    ]
    for dataset, stamp, how in variants:
        expected = (dataset.records, dataset.value_bytes)

        def append(store: Store, dataset: Dataset = dataset, stamp: bool = stamp) -> None:
            for batch in dataset.batches:
                store.append_batch(batch, stamp=stamp)

        contenders = {
            store.name: lambda store=store, append=append, expected=expected: checked_load(
                bench, store, append, expected
            )
            for store in WRITERS
        }
        seconds = best_of(bench.repeats, contenders)
        title = f"append lists, 10k a batch: {dataset.name}, {how}"
        lines = versus_best(seconds, dataset.records, "rec/s", 2.5)
        yield Group("append_many", title, lines, WRITTEN)


def append_one(bench: Bench) -> Iterator[Group]:
    """One record a call, each in the page cache before the next."""
    batches = bench.fixed().batches[: bench.pick(10, 3)]
    single = Dataset("single", batches)
    expected = (single.records, single.value_bytes)

    def append(store: Store) -> None:
        for batch in batches:
            store.append_each(batch)

    contenders = {
        store.name: lambda store=store: checked_load(bench, store, append, expected) for store in WRITERS
    }
    seconds = best_of(bench.repeats, contenders)
    lines = versus_best(seconds, single.records, "rec/s", 1.2)
    if "LMDB writemap" in seconds:
        lines = [with_unmapped_ratio(line, seconds, single.records) for line in lines]
    yield Group("append_one", "append one record at a time (one transaction or put each)", lines, WRITTEN)


def with_unmapped_ratio(line: Line, seconds: dict[str, float], records: int) -> Line:
    """Note beside our ratio what it is without LMDB's stores into a map, which pay no system call."""
    if line.engine != Commitlog.name:
        return line
    ours = {Commitlog.name, DefaultCommitlog.name, "LMDB writemap"}
    rate = max(records / taken for name, taken in seconds.items() if name not in ours)
    return replace(line, note=f"{line.amount / rate:.2f} of the best peer that calls write()")


@cache
def loaded(bench: Bench, varied: bool) -> dict[str, Path]:
    """Load every reader's store once, for the scans and for the sizes."""
    dataset = bench.varied() if varied else bench.fixed()

    def append(store: Store) -> None:
        for batch in dataset.batches:
            store.append_batch(batch, stamp=False)

    paths = {}
    for store in READERS:
        paths[store.name] = bench.fresh(f"{store.name} loaded")
        load(store, paths[store.name], append)
    os.sync()
    return paths


def scan(store: type[Store], path: Path, work: Callable[[Store], Seen], expected: Seen) -> float:
    """Time one scan of a store opened for it, and check that it saw everything."""
    opened = store(path, readonly=True)
    found: list[Seen] = []
    try:
        seconds = timed(lambda: found.append(work(opened)))
    finally:
        opened.close()
    if found != [expected]:
        raise AssertionError(f"{store.name} read {found}, not {expected}")
    return seconds


def scan_rows(
    bench: Bench, row: str, title: str, work: Callable[[Store], Seen], target: float | None
) -> Iterator[Group]:
    for varied in (False, True):
        dataset = bench.varied() if varied else bench.fixed()
        expected = dataset.seen_by_records() if row == "records" else dataset.seen_by_values()
        paths = loaded(bench, varied)
        contenders = {
            store.name: lambda store=store, paths=paths, expected=expected: scan(
                store, paths[store.name], work, expected
            )
            for store in READERS
        }
        seconds = best_of(bench.repeats, contenders)
        lines = versus_best(seconds, dataset.records, "rec/s", target)
        note = "Each reader opens its store anew; pages are cached."
        yield Group(row, f"{title}: {dataset.name}", lines, note)


def records(bench: Bench) -> Iterator[Group]:
    """Offset, timestamp, key and value of each record as Python objects."""
    title = "scan to Python records (offset, timestamp, key, value)"
    return scan_rows(bench, "records", title, lambda store: store.scan_records(), 1.4)


def values(bench: Bench) -> Iterator[Group]:
    """The values alone."""
    return scan_rows(bench, "values", "scan to values only", lambda store: store.scan_values(), None)


def allocated_bytes(path: Path) -> int:
    """Count blocks, not lengths: a mapped database file is mostly a hole."""
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())


def overhead(bench: Bench) -> Iterator[Group]:
    """Bytes on disk beyond keys and values."""
    for varied in (False, True):
        dataset = bench.varied() if varied else bench.fixed()
        lines = []
        for name, path in loaded(bench, varied).items():
            extra = (allocated_bytes(path) - dataset.payload_bytes) / dataset.records
            if name == Commitlog.name:
                logs = (log_bytes(path) - dataset.payload_bytes) / dataset.records
                note = "offset and timestamp included"
                lines.append(Line(f"{name}, .log files", logs, "bytes/rec", None, "<= 4", logs <= 4, note))
                name = f"{name}, all files"  # noqa: PLW2901
            lines.append(Line(name, extra, "bytes/rec"))
        yield Group("overhead", f"overhead on disk, 10k a batch: {dataset.name}", lines)
