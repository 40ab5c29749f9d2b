"""Measure commitlog beside SQLite, LMDB and RocksDB on the same data in the same run, and print tables.

* `python benchmarks/run.py`: everything, about ten minutes and 12 GB of disk;
* `python benchmarks/run.py --quick`: small data, about two minutes; the noise is larger;
* `python benchmarks/run.py --rows records,append_one`: only these.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import bulk
import clients
import compaction
import compare
import counting
import growth
import limits
import numpy
import producing
import pyarrow
import replicating
import spark_read
import spark_write
from bench import Bench
from report import Group, Report, machine

ROWS: dict[str, Callable[[Bench], Iterator[Group]]] = {
    "append_many": compare.append_many,
    "append_one": compare.append_one,
    "producer": producing.producer,
    "counting": counting.counting,
    "records": compare.records,
    "values": compare.values,
    "arrow_scan": bulk.arrow_scan,
    "arrow_append": bulk.arrow_append,
    "overhead": compare.overhead,
    "open": limits.open_segments,
    "recovery": limits.recovery,
    "memory": limits.memory,
    "handles": limits.handles,
    "growth": growth.growth,
    "consumer": clients.consumer,
    "latency": clients.latency,
    "compaction": compaction.compaction,
    "compaction_memory": compaction.compaction_memory,
    "replication": replicating.replication,
    "spark_read": spark_read.spark_read,
    "spark_write": spark_write.spark_write,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="small data, few repetitions")
    parser.add_argument("--rows", metavar="NAME,...", help=f"only these rows, of: {', '.join(ROWS)}")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the results as JSON")
    parser.add_argument("--dir", metavar="PATH", type=Path, help="put the data below this directory")
    options = parser.parse_args()
    options.names = options.rows.split(",") if options.rows else list(ROWS)
    unknown = [name for name in options.names if name not in ROWS]
    if unknown:
        parser.error(f"no row {unknown[0]!r}; there are {', '.join(ROWS)}")
    return options


def setting(bench: Bench) -> dict[str, str]:
    """Say what was measured, on what, and how."""
    versions = {store.name: store.version for store in compare.READERS}
    versions |= {"Python": platform.python_version()}
    versions |= {"numpy": numpy.__version__, "pyarrow": pyarrow.__version__}
    return {
        "machine": f"{machine()}, Linux {platform.release()}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "records": "10-byte key, value of 90 or of 60..120 random bytes; offset, timestamp kept and returned",
        "method": f"best of {bench.repeats} rounds, engines taking turns within each round; gc on for all",
    }


def main() -> None:
    options = arguments()
    if options.dir:
        options.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="commitlog-bench-", dir=options.dir) as root:
        bench = Bench(Path(root), options.quick)
        report = Report(setting(bench))
        for name, text in report.setting.items():
            print(f"{name}: {text}")
        print(flush=True)
        for name in options.names:
            for group in ROWS[name](bench):
                report.add(group)
    misses = report.misses()
    print("Every target was reached." if not misses else "Missed: " + "; ".join(misses))
    if options.json:
        options.json.write_text(json.dumps(report.as_json(), indent=2))


if __name__ == "__main__":
    main()
