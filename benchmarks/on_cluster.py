"""Measure Spark on a cluster of this machine beside local mode, and cold executors beside Kafka's connector.

* `python benchmarks/on_cluster.py`: everything, about ten minutes; the machine should be quiet;
* `python benchmarks/on_cluster.py --quick`: small data, which shows that it works.

The cluster is that of the tests: a master, and two workers with an executor of one core each. The same
program (on_cluster_program.py) is submitted to it and to local[2], in turns. Kafka's node and connector come
by Maven; where that is missing, the table says so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import engine
import kafka_node
import pyarrow.parquet as pq
import pyspark
import spark_read
from bench import Bench
from kafka_spark import READER, copied
from kafka_turns import Run

import commitlog

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from spark.cluster import Cluster

PROGRAM = Path(__file__).with_name("on_cluster_program.py")
LOCAL, CLUSTER = "local[2]", "cluster"
# Java's default collector has threads of its own, which take cores from executors that have one each.
COLLECTOR = "-XX:+UseSerialGC"
JAVA = {"spark.driver.extraJavaOptions": COLLECTOR, "spark.executor.extraJavaOptions": COLLECTOR}
MEMORY = {"spark.driver.memory": "1g", "spark.executor.memory": "1g"}
SERVER = """
import sys, commitlog
with commitlog.open(sys.argv[1]) as log, commitlog.serve(log) as server:
    print(server.path, flush=True)
    sys.stdin.read()
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small data, few rounds")
    options = parser.parse_args()
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="commitlog-on-cluster-")))
        cluster = stack.enter_context(Cluster(made(root / "cluster")))
        measured = Measured(cluster, root, options.quick)
        print("| | rows | local[2] | cluster | cluster / local |\n|---|---|---|---|---|")
        for line in measured.warm():
            print(line, flush=True)
        print(
            "\n| first read of a new application | commitlog | Kafka's connector | ratio |\n|---|---|---|---|"
        )
        try:
            print(measured.cold(stack), flush=True)
        except kafka_node.NotMeasuredError as missing:
            print(f"| not measured: {missing} | | | |")


def made(path: Path) -> Path:
    path.mkdir()
    return path


class Measured:
    """The data of the measurements, and the runs over it."""

    def __init__(self, cluster: Cluster, root: Path, quick: bool) -> None:
        self._cluster, self._root, self._quick = cluster, root, quick
        self._read_rows, self._written_rows = (200_000, 100_000) if quick else (4_000_000, 2_000_000)
        self._log = root / "log"
        spark_read.fill(self._log, self._read_rows)
        self._parquet = made(root / "parquet")
        with commitlog.open(self._log, mode="r") as log:
            for number, partition in enumerate(log.topic("t")):
                table = partition.to_arrow(columns=["key", "value"]).slice(0, self._written_rows // 4)
                pq.write_table(table, self._parquet / f"{number}.parquet", compression="none")

    def _submit(self, job: str, *arguments: object, where: str = CLUSTER, jars: str = "") -> Any:
        options = ["--master", where] if where == LOCAL else []
        conf = {**JAVA, **MEMORY, "spark.jars": jars} if jars else {**JAVA, **MEMORY}
        done = self._cluster.submit(PROGRAM, job, *arguments, conf=conf, options=options)
        if done.returncode:
            sys.exit(done.stderr[-4000:])
        return json.loads(done.stdout.splitlines()[-1])

    def warm(self) -> Iterator[str]:
        """Measure reads and writes in turns: local, cluster, cluster, local."""
        rounds = 3 if self._quick else 5
        found: dict[str, dict[str, list[float]]] = {}
        with served(self._root / "served") as path:
            for turn, where in enumerate((LOCAL, CLUSTER, CLUSTER, LOCAL)):
                sink = self._root / f"sink-{turn}"
                create(sink)
                seconds = self._submit("warm", self._log, self._parquet, sink, path, rounds, where=where)
                for job, taken in seconds.items():
                    found.setdefault(job, {}).setdefault(where, []).extend(taken)
        for job, work, rows in (
            ("read", "read all columns to nowhere", self._read_rows),
            ("write", "write by key, shared directory", self._written_rows),
            ("served", "write by key, through commitlog://", self._written_rows),
        ):
            local, cluster = (median(found[job][where]) for where in (LOCAL, CLUSTER))
            yield f"| {work} | {rows:,} | {local:.2f} s | {cluster:.2f} s | {cluster / local:.2f} |"

    def cold(self, stack: ExitStack) -> str:
        """Measure the first query of new applications, in turns."""
        cache = kafka_node.default_cache()
        node = stack.enter_context(kafka_node.running(kafka_node.broker_jars(cache), self._root / "kafka"))
        jars = kafka_node.connector_jars(cache, pyspark.__version__)
        topic = copied(Run(Bench(self._root), None, node), self._log, spark_read.PARTITIONS)
        ours, theirs = [], []
        for _ in range(2 if self._quick else 5):
            ours.append(self._submit("first", "commitlog", self._log, "{}"))
            options = {"kafka.bootstrap.servers": node.address, "subscribe": topic, **READER}
            listed = ",".join(map(str, jars))
            theirs.append(self._submit("first", "kafka", "", json.dumps(options), jars=listed))
        one, other = median(ours), median(theirs)
        return (
            f"| {self._read_rows:,} rows, cold executors | {one:.2f} s | {other:.2f} s | {one / other:.2f} |"
        )


def create(path: Path) -> None:
    with commitlog.open(path) as log:
        log.create_topic("t", spark_read.PARTITIONS, commitlog.TopicConfig(**engine.WRITTEN))


@contextmanager
def served(path: Path) -> Iterator[str]:
    """A log that a process of its own has open and serves."""
    create(path)
    child = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    try:
        yield child.stdout.readline().strip()
    finally:
        child.communicate()


if __name__ == "__main__":
    main()
