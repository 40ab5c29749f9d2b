"""The rows in which commitlog runs against the machine itself: a plain sum and a plain write."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, islice, pairwise
from pathlib import Path

import data
import engine
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from bench import Bench, best_of, timed
from report import Group, Line

POOL_BATCHES = 64  # 64 MB of distinct batches: more than the processor caches


def sum_of_maps(path: Path) -> int:
    """Read every byte of the .log files the cheapest way there is: map, add up, unmap."""
    total = 0
    for file in engine.log_files(path):
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            words = np.frombuffer(mapped, np.uint64, len(mapped) // 8)
            total += int(words.sum())
            del words  # a map cannot close under a view
    return total


def scan_batches(path: Path, expected: int) -> None:
    """Open, map, check every CRC and hand out every batch as Arrow."""
    log, partition = engine.reopen(path, "r")
    with log:
        rows = sum(batch.to_arrow().num_rows for batch in partition.batches())
    if rows != expected:
        raise AssertionError(f"batches().to_arrow() gave {rows} of {expected} records")


def scan_table(path: Path, expected: int) -> None:
    log, partition = engine.reopen(path, "r")
    with log:
        rows = partition.to_arrow().num_rows
    if rows != expected:
        raise AssertionError(f"to_arrow() gave {rows} of {expected} records")


def check_arrow(path: Path) -> int:
    """Compare the Arrow columns with Python records, untimed, and return the number of records."""
    log, partition = engine.reopen(path, "r")
    with log:
        offset = size = 0
        for batch in partition.batches():
            table = batch.to_arrow()
            if table.column("offset")[0].as_py() != offset:
                raise AssertionError(f"offset {table.column('offset')[0]} where {offset} was due")
            offset += table.num_rows
            size += pc.sum(pc.binary_length(table.column("value"))).as_py()
            size += pc.sum(pc.binary_length(table.column("key"))).as_py()
        last = partition.get(offset - 1)
        if table.column("value")[-1].as_py() != last.value or offset != partition.next_offset:
            raise AssertionError("Arrow and get() disagree about the last record")
        if not 0.9 < size / engine.log_bytes(path) < 1:
            raise AssertionError(f"{size} bytes of keys and values in {engine.log_bytes(path)} bytes of log")
        return offset


def arrow_scan(bench: Bench) -> Iterator[Group]:
    """Bytes of log turned into Arrow per second, against a sum over the same bytes."""
    path = bench.big()
    size, records = engine.log_bytes(path), check_arrow(path)
    contenders = {
        "plain sum over the mapped files": lambda: timed(partial(sum_of_maps, path)),
        "commitlog batches().to_arrow()": lambda: timed(partial(scan_batches, path, records)),
        "commitlog to_arrow()": lambda: timed(partial(scan_table, path, records)),
    }
    seconds = best_of(bench.repeats, contenders)
    lines = against(seconds, size, 0.5, lambda taken: f"{records / taken / 1e6:.0f} M rec/s")
    title = f"scan to Arrow, CRC checked: {size / 1e9:.2f} GB, 10k a batch"
    note = "From the path to the last batch: opening and fresh maps are counted for all."
    yield Group("arrow_scan", title, lines, note)


def against(seconds: dict[str, float], size: int, target: float, note: Callable[[float], str]) -> list[Line]:
    """Lines of bytes a second; the first contender is the machine, the others are judged against it."""
    base, *ours = seconds
    lines = [Line(base, size / seconds[base], "B/s", 1.0)]
    for name in ours:
        ratio = seconds[base] / seconds[name]
        rate, bound = size / seconds[name], f">= {target:.0%} of it"
        lines.append(Line(name, rate, "B/s", ratio, bound, ratio >= target, note(seconds[name])))
    return lines


def arrow_batches() -> list[pa.RecordBatch]:
    pool = data.make("arrow", POOL_BATCHES * data.BATCH_RECORDS, 60, 120)
    return [
        pa.record_batch(
            {
                "timestamp": pa.array(batch.timestamps, pa.timestamp("ms", "UTC")),
                "key": pa.array(batch.keys, pa.binary()),
                "value": pa.array(batch.values, pa.binary()),
            }
        )
        for batch in pool.batches
    ]


def append_to_log(bench: Bench, batches: list[pa.RecordBatch], count: int) -> float:
    with bench.scratch("append-arrow") as path:
        log, partition = engine.create(path, **engine.WRITTEN)
        with log:
            work = list(islice(cycle(batches), count))
            seconds = timed(lambda: [partition.append_arrow(batch) for batch in work])
            if partition.next_offset != sum(batch.num_rows for batch in work):
                raise AssertionError(f"append_arrow kept {partition.next_offset} records")
        return seconds


def append_to_file(bench: Bench, chunks: list[bytes], count: int) -> float:
    with bench.scratch("plain-write") as path:
        path.mkdir()
        file = os.open(path / "plain", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        work = list(islice(cycle(chunks), count))
        seconds = timed(lambda: [os.write(file, chunk) for chunk in work])
        os.close(file)
        return seconds


def encoded_chunks(bench: Bench, batches: list[pa.RecordBatch]) -> list[bytes]:
    """Return the very bytes that append_arrow writes for these batches, one chunk each."""
    with bench.scratch("encoded") as path:
        log, partition = engine.create(path, **engine.WRITTEN)
        with log:
            for batch in batches:
                partition.append_arrow(batch)
            sizes = [batch.size_bytes for batch in partition.batches()]
        content = engine.log_files(path)[0].read_bytes()
    starts = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    return [content[a:b] for a, b in pairwise(starts)]


def arrow_append(bench: Bench) -> Iterator[Group]:
    """Bytes a second into the page cache, against write() of the same bytes in the same pieces."""
    batches = arrow_batches()
    chunks = encoded_chunks(bench, batches)
    count = bench.pick(1024, 192)
    size = sum(map(len, islice(cycle(chunks), count)))
    contenders = {
        "plain write()": lambda: append_to_file(bench, chunks, count),
        "commitlog append_arrow()": lambda: append_to_log(bench, batches, count),
    }
    records = count * data.BATCH_RECORDS
    lines = against(
        best_of(bench.repeats, contenders), size, 0.5, lambda taken: f"{records / taken / 1e6:.1f} M rec/s"
    )
    yield Group("arrow_append", f"append_arrow: {size / 1e9:.2f} GB, 10k rows a batch, CRC computed", lines)
