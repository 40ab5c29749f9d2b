"""The example of a pipeline: killed in the middle, its audit still holds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from soak import SOAK, count

import commitlog

from .cluster import Cluster
from .conftest import SHORT_LIFE

PROGRAM = Path(__file__).parents[2] / "examples" / "spark_pipeline" / "run.py"


def start(folder: Path) -> subprocess.Popen[str]:
    """Start the pipeline, with all its processes in a group of their own."""
    source = str(Path(commitlog.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(folder)],
        env={
            **os.environ,
            "PYTHONPATH": source,
            "SPARK_LOCAL_DIRS": str(folder / "scratch"),
            "JDK_JAVA_OPTIONS": SHORT_LIFE,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def kill_when_written(folder: Path, topic: str) -> None:
    """Start the pipeline, and kill it with all its processes when a topic has its first records."""
    run = start(folder)
    assert run.stdout is not None
    try:
        said = next(line for line in run.stdout if line.startswith("2."))  # the topics are there by now
        with commitlog.open(folder / "log", mode="r") as log:
            assert log.topic(topic).partition(0).wait_for(0, timeout=300), said
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        count("processes killed")  # and those that it had started, which are not counted
    assert "the audit" not in run.communicate()[0]


def test_the_audit_holds_after_kills_in_the_middle(tmp_path: Path) -> None:
    for topic in ("clean", "views") if SOAK else ("clean",):
        kill_when_written(tmp_path, topic)
    with start(tmp_path) as run:
        said, _ = run.communicate(timeout=300)
    assert run.returncode == 0, said
    assert "every window has what went in, once" in said
    assert "WRONG" not in said


def test_the_audit_holds_on_the_cluster_that_spark_submit_names(cluster: Cluster, tmp_path: Path) -> None:
    before = len(cluster.applications)
    done = cluster.submit(PROGRAM, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "every window has what went in, once" in done.stdout
    assert len(cluster.applications) == before + 1
