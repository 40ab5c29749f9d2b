"""The rows that show bounds: opening, recovery, memory, file handles, and cost as a log grows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import perf_counter

import engine
from bench import Bench, best_of
from report import Group, Line

CHILDREN = Path(__file__).with_name("children.py")


def child(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(CHILDREN), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


# --- opening -------------------------------------------------------------------------------------


def open_segments(bench: Bench) -> Iterator[Group]:
    """Open a cleanly closed partition of 2,000 segments and read its first and last record."""
    count = 2000
    with bench.scratch("segments") as path:
        log, partition = engine.create(path, **engine.WRITTEN)
        with log:
            batch = [b"v" * 90] * 50
            for number in range(count):
                if number:
                    partition.roll()
                partition.append_many(batch)
            if len(partition.segments) != count:
                raise AssertionError(f"{len(partition.segments)} segments, not {count}")
        modes = {mode: partial(open_and_look, path, mode, count * 50) for mode in ("w", "r")}
        seconds = best_of(bench.repeats, modes)
    lines = [
        Line(f'commitlog, mode="{mode}"', taken * 1000, "ms", None, "< 1000 ms", taken < 1)
        for mode, taken in seconds.items()
    ]
    yield Group("open", f"open a cleanly closed partition of {count} segments", lines, "Pages cached.")


def open_and_look(path: Path, mode: str, records: int) -> float:
    start = perf_counter()
    log, partition = engine.reopen(path, mode)
    end = partition.next_offset
    seconds = perf_counter() - start
    with log:
        if (end, partition.get(0).offset, partition.get(end - 1).offset) != (records, 0, records - 1):
            raise AssertionError(f"the partition ends at {end}, not at {records}")
    return seconds


# --- recovery ------------------------------------------------------------------------------------


def recovery(bench: Bench) -> Iterator[Group]:
    """Kill a writer that never synced, and open what it left."""
    size_bytes = bench.pick(2000, 400) * 10**6
    sizes: list[int] = []
    seconds = best_of(bench.pick(3, 2), {"commitlog": lambda: kill_and_open(bench, size_bytes, sizes)})
    rate = sizes[0] / seconds["commitlog"]
    note = f"{sizes[0] / 1e9:.2f} GB in {seconds['commitlog']:.2f} s"
    line = Line("commitlog", rate, "B/s", None, ">= 1 GB/s", rate >= 1e9, note)
    yield Group("recovery", "recovery after SIGKILL of a writer that never synced", [line], "Pages cached.")


def kill_and_open(bench: Bench, size_bytes: int, sizes: list[int]) -> float:
    """Return the seconds of the open; every acknowledged record must be there."""
    with bench.scratch("killed") as path:
        writer = child("write", path)
        acknowledged = 0
        for line in writer.stdout or ():
            acknowledged, written = map(int, line.split())
            if written >= size_bytes:
                break
        writer.send_signal(signal.SIGKILL)
        if writer.wait() != -signal.SIGKILL:
            raise AssertionError("the writer ended before it was killed")
        sizes.append(engine.log_bytes(path))
        start = perf_counter()
        log, partition = engine.reopen(path)
        end = partition.next_offset
        seconds = perf_counter() - start
        log.close()
        if end < acknowledged:
            raise AssertionError(f"{acknowledged} records were acknowledged, {end} survived")
        return seconds


# --- memory --------------------------------------------------------------------------------------

FLAT_BYTES = 256 << 20


def memory(bench: Bench) -> Iterator[Group]:
    """Resident memory of a process that scans several GB, in a few large segments and in many small ones."""
    for segment_mib in (1024, 32):
        path = bench.big(segment_mib)
        lines = [memory_line(path, how) for how in ("arrow", "records")]
        size = engine.log_bytes(path) / 1e9
        title = f"resident memory while scanning {size:.1f} GB in segments of {segment_mib} MiB"
        yield Group("memory", title, lines, "RSS counts mapped file pages; 'own' does not.")


def memory_line(path: Path, how: str) -> Line:
    """Judge the whole of RSS: how much it rose, and that the second half of the scan added nothing."""
    output, _ = child("scan", path, how).communicate()
    found = json.loads(output)
    before, tenths = found["before"], found["tenths"]
    rise, own = (max(tenth[i] for tenth in tenths) - before[i] for i in (0, 1))
    late = max(tenth[0] for tenth in tenths[5:]) - max(tenth[0] for tenth in tenths[:5])
    flat = rise <= FLAT_BYTES and late <= FLAT_BYTES // 4
    note = f"{before[0] >> 20} MB before; own +{own >> 20} MB; second half {late / (1 << 20):+.0f} MB"
    target = f"<= {FLAT_BYTES >> 20} MB, flat"
    return Line(f"commitlog, scan to {how}", rise / (1 << 20), "MB rise", None, target, flat, note)


# --- handles -------------------------------------------------------------------------------------


def handles(bench: Bench) -> Iterator[Group]:
    """Open files and maps over thousands of rolls."""
    rolls = bench.pick(5000, 2000)
    with bench.scratch("handles") as path:
        before = open_now(path)
        counts = roll_and_count(path, rolls)
        after = open_now(path)
    quarter = len(counts) // 4  # by then whatever is kept open on purpose has reached its limit
    lines = []
    for i, what in enumerate(("file handles", "memory maps")):
        first, most = counts[quarter][i], max(count[i] for count in counts[quarter:])
        note = f"{before[i]} before, {first} after a quarter, {after[i]} after close"
        lines.append(Line(what, most, "at most", None, "flat", most <= first + 8, note))
    yield Group("handles", f"handles over {rolls} rolls, reading along", lines)


def roll_and_count(path: Path, rolls: int) -> list[tuple[int, int]]:
    """Roll at every append and read the last 500 segments now and then, all of them in the end.

    A segment holds one record, large enough that readers map it: small files they may just read.
    """
    counts = []
    log, partition = engine.create(path, segment_bytes=128 << 10, **engine.WRITTEN)
    value = bytes(70_000)
    with log:
        while len(partition.segments) < rolls:
            for _ in range(rolls // 20):
                partition.append(value)
            sum(1 for _ in partition.records(max(partition.next_offset - 500, 0)))
            counts.append(open_now(path))
        scanned = sum(1 for _ in partition.records())
        if scanned != partition.next_offset:
            raise AssertionError(f"{scanned} of {partition.next_offset} records")
        counts.append(open_now(path))
    return counts


def open_now(path: Path) -> tuple[int, int]:
    """Count this process's open files, and its maps of files below `path`."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return len(os.listdir("/proc/self/fd")), sum(str(path) in line for line in maps)
