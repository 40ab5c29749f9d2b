"""The rows of compaction: how fast a pass is, how its cost grows with keys and with bytes, and its memory."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import engine
from bench import Bench
from limits import child
from report import Group, Line

import commitlog

KEYS = 100_000
BATCH_RECORDS = 10_000
TARGET = 1.5e6
SETTINGS = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 1.0, "segment_bytes": 256 << 20}


def compaction(bench: Bench) -> Iterator[Group]:
    """Passes over 100-byte records: the first, and one that finds a tenth of the log new."""
    records = bench.pick(10_000_000, 1_000_000)
    lines = []
    for name, shortest, longest in (("90-byte values", 90, 90), ("60..120-byte values", 60, 120)):
        first, later = [], []
        for _ in range(bench.pick(3, 2)):
            with bench.scratch("compaction") as path:
                one, two = passes(path, records, KEYS, (shortest, longest))
                first.append(rate(one))
                later.append(rate(two))
        lines += [judged(f"first pass, {name}", max(first)), judged(f"later pass, {name}", max(later))]
    note = f"{records:,} records, {KEYS:,} keys; a later pass reads what the first left and a tenth more."
    yield Group("compaction", "records through a pass of compaction", lines, note)
    yield growth(bench, "keys", [(records, keys) for keys in (1_000, 10_000, 100_000, 1_000_000)])
    steps = [records // 10, records // 3, records]
    yield growth(bench, "bytes", [(count, KEYS) for count in steps])


def growth(bench: Bench, what: str, sizes: list[tuple[int, int]]) -> Group:
    """Show the rate of a first pass over logs of very different sizes."""
    lines = []
    for records, keys in sizes:
        with bench.scratch("growth") as path:
            report, _ = passes(path, records, keys, (90, 90))
        ratio = rate(report) / lines[0].amount if lines else 1.0
        note = (
            f"{report.bytes_before / 1e6:.0f} MB to {report.bytes_after / 1e6:.1f} in {report.seconds:.2f} s"
        )
        lines.append(Line(f"{records:,} records, {keys:,} keys", rate(report), "rec/s", ratio, note=note))
    return Group("compaction", f"a first pass as the {what} grow", lines)


def rate(report: commitlog.CompactionReport) -> float:
    return report.records_before / report.seconds


def judged(name: str, found: float) -> Line:
    return Line(name, found, "rec/s", None, f">= {TARGET / 1e6:g} M", found >= TARGET)


def passes(path: Path, records: int, keys: int, lengths: tuple[int, int]) -> list[commitlog.CompactionReport]:
    """Fill a log and compact it, append a tenth more and compact it again."""
    log, partition = engine.create(path, **engine.WRITTEN, **SETTINGS)
    chance = random.Random(1)
    values = [chance.randbytes(chance.randint(*lengths)) for _ in range(BATCH_RECORDS)]
    reports = []
    with log:
        for count in (records, records // 10):
            for _ in range(count // BATCH_RECORDS):
                numbers = chance.choices(range(keys), k=BATCH_RECORDS)
                partition.append_many(values, keys=[b"%010d" % number for number in numbers])
            partition.roll()
            partition.sync()
            reports.append(partition.compact())
            if reports[-1].stopped_by or reports[-1].records_after > keys:
                raise AssertionError(str(reports[-1]))
        check(partition)
    return reports


def check(partition: commitlog.Partition) -> None:
    kept = [record.key for record in partition.records()]
    if len(set(kept)) != len(kept) or set(partition.latest()) != set(kept):
        raise AssertionError("a key has two records, or none")


def compaction_memory(bench: Bench) -> Iterator[Group]:
    """The memory of passes over distinct keys, with a map that is much too small for them."""
    keys = bench.pick(10_000_000, 1_000_000)
    lines = []
    for mib in (8, 32):
        with bench.scratch("memory") as path:
            output, _ = child("compact", path, keys, mib << 20).communicate()
        found = json.loads(output)
        rise = found["own"] / (1 << 20)
        note = (
            f"{found['passes']} passes, {found['keys']:,} keys at most in the map, {found['seconds']:.0f} s"
        )
        lines.append(
            Line(f"map of {mib} MiB", rise, "MB rise", None, f"<= {mib + 64} MB", rise <= mib + 64, note)
        )
    note = "Memory of the process's own, without mapped file pages, at its highest in any pass."
    yield Group("compaction_memory", f"compacting {keys:,} distinct keys", lines, note)
