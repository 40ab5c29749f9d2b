"""Spark Connect: a server on the cluster, and a client that has neither the log nor a JVM."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import commitlog

from .cluster import HOST, OTHER_MACHINE, PATIENCE_S, Cluster, entering
from .copying import ROWS, Job
from .sinks import digest

CLIENT = Path(__file__).with_name("connect_client.py")
SERVER = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]


@pytest.fixture
def address(cluster: Cluster) -> Iterator[str]:
    """The address of a server, for the time of a test."""
    conf = {
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": "0",
        "spark.log.level": "INFO",
    }
    server = cluster.start("spark-internal", options=SERVER, conf=conf)
    yield "sc://" + server.said(r"Spark Connect server started at: /?(\S+:\d+)")
    server.kill()


@pytest.mark.usefixtures("elsewhere")
def test_a_client_without_the_log_can_do_everything(
    cluster: Cluster, job: Job, address: str, tmp_path: Path
) -> None:
    with commitlog.open(job.log) as log:
        table = log.create_topic("table", partitions=2, config={"cleanup_policy": "compact"})
        table.append_many([b"value"] * 10, keys=[b"%d" % number for number in range(10)])
    (tmp_path / "nothing").mkdir()
    hidden = ["sh", "-c", f'mount --bind {tmp_path / "nothing"} {job.log} && exec "$@"', "sh"]
    done = subprocess.run(
        [*entering(), *hidden, sys.executable, str(CLIENT), address, str(job.log), str(tmp_path)],
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [digest(job.log, topic) for topic in ("batch", "stream")] == [digest(job.log, "in")] * 2
    assert found == {
        "here": [],
        "mapped": ROWS,
        "verified": ROWS,
        "exported": ROWS,
        "compacted": [0, 1],
        "refused": found["refused"],
    }
    compacted, *missing = found["refused"]
    assert compacted.startswith("ConfigError: cleanup_policy")
    for error in missing:
        assert error.startswith(f"PathNotMountedError: {tmp_path / 'nowhere'} cannot be read on host ")
        assert any(f"on host {host} " in error for host in (OTHER_MACHINE, socket.gethostname()))
