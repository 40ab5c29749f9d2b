"""The rows of throughput as a curve: by records a batch, by bytes a record, and by compression."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

import data
from bench import Bench, best_of, timed
from compare import allocated_bytes, checked_load, load, scan
from data import Dataset
from report import Curve
from store import Store
from variants import CODECS, ENGINES, compressed

RECORDS, MB = "records a second", "MB a second"
STAMPED = "'written' for all; 10-byte keys, random values, stamped by the append."


def rounds(bench: Bench) -> int:
    return bench.pick(3, 2)


def joined(points: Iterable[dict[str, float]]) -> dict[str, list[float | None]]:
    """Turn what was found at each size into a series for each engine."""
    found = list(points)
    names = dict.fromkeys(name for point in found for name in point)
    return {name: [point.get(name) for point in found] for name in names}


def append_rates(
    bench: Bench, engines: list[type[Store]], append: Callable[[Store], None], dataset: Dataset, work: float
) -> dict[str, float]:
    """Append in turns, count what is there afterwards, and return work a second."""
    expected = dataset.records, dataset.value_bytes
    contenders = {
        engine.name: lambda engine=engine: checked_load(bench, engine, append, expected) for engine in engines
    }
    return {name: work / taken for name, taken in best_of(rounds(bench), contenders).items()}


def append_batches(dataset: Dataset) -> Callable[[Store], None]:
    def append(store: Store) -> None:
        for batch in dataset.batches:
            store.append_batch(batch, stamp=True)

    return append


# --- by records a batch --------------------------------------------------------------------------


def by_batch_size(bench: Bench) -> Iterator[Curve]:
    """Append 90-byte values, one transaction a batch; single records as each engine likes them best."""
    sizes = {1: (50_000, 10_000), 10: (100_000, 20_000), 100: (200_000, 50_000)}
    sizes |= {1_000: (200_000, 100_000), 10_000: (300_000, 100_000)}
    points = [batch_size_point(bench, size, bench.pick(*records)) for size, records in sizes.items()]
    title, note = "append by batch size", f"90-byte values, {STAMPED}"
    yield Curve("by_batch_size", title, "records a batch", RECORDS, list(sizes), joined(points), note=note)


def batch_size_point(bench: Bench, size: int, records: int) -> dict[str, float]:
    if size == 1:
        dataset = data.make("single", records, 90, 90)
        append = append_each(dataset)
    else:
        dataset = data.make(f"{size} a batch", records, 90, 90, batch_records=size)
        append = append_batches(dataset)
    return append_rates(bench, ENGINES, append, dataset, dataset.records)


def append_each(dataset: Dataset) -> Callable[[Store], None]:
    def append(store: Store) -> None:
        for batch in dataset.batches:
            store.append_each(batch)

    return append


# --- by bytes a record ---------------------------------------------------------------------------

BATCH_BYTES = 10**6


def by_record_size(bench: Bench) -> Iterator[Curve]:
    """Append batches of a megabyte, of many small records or of a few large ones."""
    sizes = {10: (10, 2), 100: (30, 5), 1_000: (60, 10), 10_000: (60, 20), 100_000: (60, 20)}
    points = [record_size_point(bench, size, bench.pick(*batches)) for size, batches in sizes.items()]
    title, note = "append by record size", f"Batches of 1 MB, {STAMPED}"
    yield Curve("by_record_size", title, "bytes a value", MB, list(sizes), joined(points), note=note)


def record_size_point(bench: Bench, size: int, batches: int) -> dict[str, float]:
    batch_records = max(BATCH_BYTES // (size + data.KEY_BYTES), 1)
    name = f"{size}-byte values"
    dataset = data.make(name, batches * batch_records, size, size, batch_records=batch_records)
    return append_rates(bench, ENGINES, append_batches(dataset), dataset, dataset.payload_bytes / 1e6)


# --- by compression ------------------------------------------------------------------------------


def by_compression(bench: Bench) -> Iterator[Curve]:
    """Append, scan and measure JSON in each codec; SQLite and LMDB have none."""
    dataset = data.json_like(bench.pick(300_000, 50_000))
    about = f"JSON records of {dataset.payload_bytes // dataset.records} bytes, 10,000 a batch."
    engines = {codec: compressed(codec) for codec in CODECS}
    appended = [compressed_appends(bench, engines[codec], dataset) for codec in CODECS]
    note = f"{about} RocksDB compresses what it flushes, so its flush at the end is counted."
    yield compression_curve("append by compression", MB, appended, note)
    stores = [stored(bench, engines[codec], dataset) for codec in CODECS]
    os.sync()  # so that writeback does not run under the scans
    scanned = [compressed_scans(bench, found, dataset) for found in stores]
    yield compression_curve("scan to records by compression", MB, scanned, f"{about} Pages cached.")
    sizes = [
        {engine.name: allocated_bytes(path) / dataset.payload_bytes * 100 for engine, path in found.items()}
        for found in stores
    ]
    yield compression_curve("size on disk by compression", "% of keys and values", sizes, about, "least")


def compression_curve(
    title: str,
    y_label: str,
    points: list[dict[str, float]],
    note: str,
    best: Literal["most", "least"] = "most",
) -> Curve:
    series = joined(points)
    return Curve(
        "by_compression", title, "codec", y_label, CODECS, series, best, "even", "linear", "bars", note
    )


def compressed_appends(bench: Bench, engines: list[type[Store]], dataset: Dataset) -> dict[str, float]:
    """Return MB a second until everything is compressed: RocksDB's last part is when close() flushes it."""

    def run(engine: type[Store]) -> float:
        append = append_batches(dataset)
        with bench.scratch(engine.name) as path:
            if engine.name != "RocksDB":
                return load(engine, path, append)
            opened = engine(path)
            return timed(lambda: (append(opened), opened.close()))

    contenders = {engine.name: lambda engine=engine: run(engine) for engine in engines}
    seconds = best_of(rounds(bench), contenders)
    return {name: dataset.payload_bytes / 1e6 / taken for name, taken in seconds.items()}


def stored(bench: Bench, engines: list[type[Store]], dataset: Dataset) -> dict[type[Store], Path]:
    paths = {engine: bench.fresh(f"{engine.name} compressed") for engine in engines}
    for engine, path in paths.items():
        load(engine, path, append_batches(dataset))
    return paths


def compressed_scans(bench: Bench, stores: dict[type[Store], Path], dataset: Dataset) -> dict[str, float]:
    expected = dataset.records, dataset.value_bytes
    contenders = {
        engine.name: lambda engine=engine, path=path: scan(
            engine, path, lambda one: one.scan_records()[:2], expected
        )
        for engine, path in stores.items()
    }
    seconds = best_of(rounds(bench), contenders)
    return {name: dataset.payload_bytes / 1e6 / taken for name, taken in seconds.items()}
