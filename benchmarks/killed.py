"""The rows that need children: how long opening takes after a kill, and how much memory engines take."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from time import perf_counter

from bench import Bench, best_of
from curves import joined
from limits import child
from report import Curve
from store import Store
from variants import ENGINES, RECOVERING

ABOUT = "1,000-byte values, 1 MB a batch."
LARGE_MB = 1000  # from here on one round is long enough, and two would take minutes


def sizes_mb(bench: Bench) -> list[float]:
    """Return megabytes of keys and values."""
    sizes = [(16, 4), (64, 16), (256, 32), (1024, 64)][: 2 if bench.tiny else 4]
    return [bench.pick(1000 * full, 1000 * quick) / 1000 for full, quick in sizes]


# --- recovery ------------------------------------------------------------------------------------


def recovery_curve(bench: Bench) -> Iterator[Curve]:
    """Kill a writer that never synced, and open what it left."""
    sizes = sizes_mb(bench)
    points = []
    for size in sizes:
        contenders = {
            engine.name: lambda engine=engine, size=size: open_killed(bench, engine, size)
            for engine in RECOVERING
        }
        seconds = best_of(bench.pick(2, 1) if size < LARGE_MB else 1, contenders)
        points.append({name: taken * 1000 for name, taken in seconds.items()})
    note = (
        f"From the open until the last offset is known; pages cached; {ABOUT} Nothing was synced. SQLite and "
        "RocksDB replay their logs, which by default stay small because checkpoints and flushes write "
        "everything a second time; LMDB has no log."
    )
    title = "open after SIGKILL of a writer"
    yield Curve(
        "recovery_curve", title, "MB written and not synced", "milliseconds", sizes, joined(points), "least",
        note=note,
    )  # fmt: skip


def open_killed(bench: Bench, engine: type[Store], size_mb: float) -> float:
    """Return the seconds of the open; every acknowledged record must be there."""
    with bench.scratch("killed") as path:
        writer = child("fill", engine.name, path, int(size_mb * 10**6))
        assert writer.stdout is not None
        acknowledged = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        if writer.wait() != -signal.SIGKILL:
            raise AssertionError("the writer ended before it was killed")
        writer.stdout.close()
        start = perf_counter()
        store = engine(path)
        end = store.next_offset()
        seconds = perf_counter() - start
        store.close()
        if end != acknowledged:
            raise AssertionError(f"{engine.name}: {acknowledged} records were acknowledged, {end} survived")
        return seconds


# --- memory --------------------------------------------------------------------------------------


def memory_curve(bench: Bench) -> Iterator[Curve]:
    """Append and scan more and more in a process of its own."""
    sizes = sizes_mb(bench)[1:]
    found = [{engine.name: peaks(bench, engine, size) for engine in ENGINES} for size in sizes]
    kinds = {
        "own": ("memory of its own", "Anonymous pages (RssAnon): what the process needs."),
        "mapped": ("mapped pages of files", "RssFile and RssShmem: page cache, which the system takes back."),
    }
    for kind, (title, note) in kinds.items():
        series = joined({name: one[kind] / 1e6 for name, one in point.items()} for point in found)
        yield Curve(
            "memory_curve", title, "MB appended, then scanned", "MB at most, beyond the start",
            sizes, series, "least", y_scale="linear", note=f"{note} {ABOUT}",
        )  # fmt: skip


def peaks(bench: Bench, engine: type[Store], size_mb: float) -> dict[str, int]:
    """Return the most memory that a child had beyond what it started with."""
    with bench.scratch("memory") as path:
        output, _ = child("grow", engine.name, path, int(size_mb * 10**6)).communicate()
    found: dict[str, int] = json.loads(output)
    return found
