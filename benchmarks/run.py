"""Measure commitlog beside SQLite, LMDB and RocksDB on the same data in the same run, and print tables.

* `python benchmarks/run.py`: everything but the curves of growth, about half an hour and 12 GB of disk;
* `python benchmarks/run.py --quick`: small data, a few minutes; the noise is larger;
* `python benchmarks/run.py --rows records,append_one`: only these; `--rows curves`: those with curves of
  engines; `--rows growth_curves`: those that show how our own cost grows.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

import bulk
import by_key
import clients
import cluster_rules
import compaction
import compare
import counting
import curves
import event_loops
import growth
import killed
import latencies
import limits
import many_partitions
import numpy
import partitioned
import producing
import pyarrow
import replicating
import small_batches
import spark_read
import spark_write
import speedups
import transacting
from bench import Bench
from report import Curve, Group, Report, machine

import commitlog

CURVES: dict[str, Callable[[Bench], Iterator[Curve]]] = {
    "by_batch_size": curves.by_batch_size,
    "by_record_size": curves.by_record_size,
    "by_partitions": partitioned.by_partitions,
    "by_compression": curves.by_compression,
    "latency_distribution": latencies.latency_distribution,
    "recovery_curve": killed.recovery_curve,
    "compaction_curve": by_key.compaction_curve,
    "memory_curve": killed.memory_curve,
}
ROWS: dict[str, Callable[[Bench], Iterator[Group | Curve]]] = {
    "append_many": compare.append_many,
    "append_one": compare.append_one,
    "producer": producing.producer,
    "counting": counting.counting,
    "many_partitions": many_partitions.many_partitions,
    "records": compare.records,
    "values": compare.values,
    "arrow_scan": bulk.arrow_scan,
    "arrow_append": bulk.arrow_append,
    "small_batches": small_batches.small_batches,
    "keyed": small_batches.keyed,
    "speedups": speedups.both,
    "transactions": transacting.transactions,
    "overhead": compare.overhead,
    "open": limits.open_segments,
    "recovery": limits.recovery,
    "memory": limits.memory,
    "handles": limits.handles,
    "growth": growth.growth,
    "consumer": clients.consumer,
    "latency": clients.latency,
    "asyncio": event_loops.event_loops,
    "compaction": compaction.compaction,
    "compaction_memory": compaction.compaction_memory,
    "replication": replicating.replication,
    "cluster_rules": cluster_rules.cluster_rules,
    **CURVES,
    **growth.CURVES,
    "spark_read": spark_read.spark_read,
    "spark_write": spark_write.spark_write,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="small data, few repetitions")
    parser.add_argument("--tiny", action="store_true", help="next to no data: shows only that curves can run")
    parser.add_argument("--rows", metavar="NAME,...", help=f"only these rows, of: {', '.join(ROWS)}")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the results as JSON")
    parser.add_argument("--dir", metavar="PATH", type=Path, help="put the data below this directory")
    options = parser.parse_args()
    usual = [name for name in ROWS if name not in growth.CURVES]
    options.names = names_of(options.rows) if options.rows else usual
    unknown = [name for name in options.names if name not in ROWS]
    if unknown:
        parser.error(f"no row {unknown[0]!r}; there are {', '.join(ROWS)}")
    return options


def names_of(rows: str) -> list[str]:
    """Read the list of rows, in which "curves" and "growth_curves" stand for several."""
    several = {"curves": list(CURVES), "growth_curves": list(growth.CURVES)}
    names = [several.get(name, [name]) for name in rows.split(",")]
    return [name for part in names for name in part]


def setting(bench: Bench) -> dict[str, str]:
    """Say what was measured, on what, and how."""
    versions = {store.name: store.version for store in compare.READERS}
    versions |= {"Python": platform.python_version()}
    versions |= {"numpy": numpy.__version__, "pyarrow": pyarrow.__version__}
    return {
        "machine": f"{machine()}, Linux {platform.release()}",
        "speedups": f"{commitlog.speedups.status}; the row speedups measures both; COMMITLOG_PURE=1 stops it",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "records": "10-byte key, value of 90 or of 60..120 random bytes; offset, timestamp kept and returned",
        "method": f"best of {bench.repeats} rounds (curves: {curves.rounds(bench)}), engines taking turns "
        "within each round; gc on for all",
    }


def main() -> None:
    options = arguments()
    if options.dir:
        options.dir.mkdir(parents=True, exist_ok=True)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="commitlog-bench-", dir=options.dir) as root:
        bench = Bench(Path(root), options.quick, options.tiny)
        report = Report(setting(bench))
        for name, text in report.setting.items():
            print(f"{name}: {text}")
        print(flush=True)
        failed = [name for name in options.names if not measured(name, bench, report, options.json)]
    misses = report.misses()
    print("Every target was reached." if not misses else "Missed: " + "; ".join(misses))
    if failed:
        sys.exit(f"Failed, see above: {', '.join(failed)}")


def measured(name: str, bench: Bench, report: Report, results: Path | None) -> bool:
    """Run a row, and keep what is known so far: a row that fails must not cost half an hour of others."""
    start, before = perf_counter(), sum(os.times()[:4])
    try:
        for found in ROWS[name](bench):
            report.add(found)
            if results:
                results.write_text(json.dumps(report.as_json(), indent=2))
    except Exception:
        traceback.print_exc()
        return False
    busy = sum(os.times()[:4]) - before  # with children; far less than the clock's: the machine was not quiet
    print(f"{name} took {perf_counter() - start:.0f} s, {busy:.0f} s of processors\n", flush=True)
    return True


if __name__ == "__main__":
    main()
