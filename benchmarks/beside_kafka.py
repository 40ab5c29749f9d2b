"""Measure commitlog beside Kafka on this machine, in turns, and print a table in Markdown.

* `python benchmarks/beside_kafka.py`: everything, about a quarter of an hour and 15 GB of disk; the machine
  should be quiet;
* `python benchmarks/beside_kafka.py --quick`: small data, which shows that it works;
* `python benchmarks/beside_kafka.py --only produce_1,latency`: only these rows.

Kafka and Spark's connector for it are fetched by Maven once, into a cache. Kafka runs as one node on
loopback, with the heap and the collector of its own start script; its clients are used as they come, and
tuned for throughput. Where Maven, Java, a client or pyspark is missing, the table says so.
"""

from __future__ import annotations

import argparse
import json
import platform
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import kafka_clients
import kafka_node
import kafka_spark
from bench import Bench
from kafka_node import NotMeasuredError
from kafka_spark import Session
from kafka_turns import COLUMNS, Row, Run, end_children, heading, markdown, not_measured
from report import machine

import commitlog

SPARK_ROWS: dict[str, Callable[[Run, Session], Iterator[Row]]] = {
    "spark_read": kafka_spark.read,
    "spark_stream": kafka_spark.stream,
    "spark_write": kafka_spark.write,
}
CLIENT_ROWS: dict[str, Callable[[Run], Iterator[Row]]] = {
    "produce_1": partial(kafka_clients.produce, partitions=1),
    "produce_4": partial(kafka_clients.produce, partitions=4),
    "produce_synced": partial(kafka_clients.produce, partitions=1, acks="all"),
    "produce_awaited": kafka_clients.produce_awaited,
    "consume": kafka_clients.consume,
    "latency": kafka_clients.latency,
    "compaction": kafka_clients.compact,
    "zstd": kafka_clients.packed,
}
ROWS = [*SPARK_ROWS, *CLIENT_ROWS]


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="small data, three rounds")
    parser.add_argument("--rows", metavar="N", type=positive, help="records of every row")
    parser.add_argument("--only", metavar="NAME,...", help=f"only these, of: {', '.join(ROWS)}")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the results as JSON")
    parser.add_argument("--dir", metavar="PATH", type=Path, help="put the data below this directory")
    parser.add_argument("--cache", metavar="PATH", type=Path, help="keep the jars below this directory")
    options = parser.parse_args(given)
    options.names = options.only.split(",") if options.only else ROWS
    unknown = [name for name in options.names if name not in ROWS]
    if unknown:
        parser.error(f"no row {unknown[0]!r}; there are {', '.join(ROWS)}")
    options.cache = options.cache or kafka_node.default_cache()
    return options


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def setting() -> dict[str, str]:
    """Say what was measured, on what, and how."""
    versions = {
        "commitlog": commitlog.__version__,
        "Kafka": kafka_node.KAFKA,
        "Python": platform.python_version(),
    }
    return {
        "machine": f"{machine()}, Linux {platform.release()}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "method": "median of the rounds, with the range; engines take turns within each round. A ratio above "
        "1 means that Kafka takes that many times what we take. Processor time is that of the client, its "
        "children and the broker. Counts and hashes of the records are compared.",
    }


def main() -> None:
    options = arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit("ended by a signal"))  # so that everything is cleaned up
    for path in (options.dir, options.json and options.json.parent):
        if path:
            path.mkdir(parents=True, exist_ok=True)
    about = setting()
    for name, text in about.items():
        print(f"{name}: {text}")
    print(f"\n{heading()}", flush=True)
    with ExitStack() as stack:
        root = stack.enter_context(
            tempfile.TemporaryDirectory(
                prefix="commitlog-beside-kafka-", dir=options.dir, ignore_cleanup_errors=True
            )
        )
        stack.callback(end_children)  # what an interrupt has left
        run = started(options, Path(root), stack)
        session = Session(run, options.cache)
        stack.callback(session.end)
        rows: list[Row] = []
        failed = [name for name in options.names if not measured(name, run, session, rows, options.json)]
    for note in dict.fromkeys(f"{row.work}: {row.note}" for row in rows if row.note):
        print(f"\n* {note}", end="")
    print()
    if failed:
        sys.exit(f"Failed, see above: {', '.join(failed)}")


def started(options: argparse.Namespace, root: Path, stack: ExitStack) -> Run:
    """Start Kafka, or find out why not."""
    bench = Bench(root, quick=options.quick)
    try:
        for name in ("confluent-kafka", "aiokafka"):
            if find_spec(name.replace("-", "_")) is None:
                raise NotMeasuredError(f"{name} is not installed")
        kafka_node.find_java()
        jars = kafka_node.broker_jars(options.cache)
        node = stack.enter_context(kafka_node.running(jars, root / "kafka"))
    except NotMeasuredError as missing:
        return Run(bench, options.rows, None, str(missing))
    return Run(bench, options.rows, node)


def measured(name: str, run: Run, session: Session, rows: list[Row], results: Path | None) -> bool:
    """Run a row, and keep what is known so far: a row that fails must not cost the others."""
    try:
        for row in found(name, run, session):
            rows.append(row)
            print(markdown(row.cells()), flush=True)
            if results:
                known = {"setting": setting(), "columns": COLUMNS, "rows": [one.as_json() for one in rows]}
                results.write_text(json.dumps(known, indent=2))
    except Exception:
        traceback.print_exc()
        return False
    return True


def found(name: str, run: Run, session: Session) -> Iterator[Row]:
    if name in CLIENT_ROWS:
        session.end()
        yield from CLIENT_ROWS[name](run)
        return
    try:
        yield from SPARK_ROWS[name](run, session)
    except NotMeasuredError as missing:
        yield not_measured(name, name, str(missing))


if __name__ == "__main__":
    main()
