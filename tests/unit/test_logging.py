"""What the standard library's logging is told."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import fill

import commitlog
from commitlog import CommitLog, Partition, PartitionFailedError, files
from commitlog.replication import Node, ReplicationConfig
from commitlog.testing import LocalNetwork, SimulatedController

CONFIG = {"segment_bytes": 1_000, "flush_ms": -1, "file_delete_delay_ms": 0}


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="commitlog")


def told(caplog: pytest.LogCaptureFixture, name: str, level: int = logging.INFO) -> list[str]:
    """The messages of one logger at one level."""
    return [one.getMessage() for one in caplog.records if (one.name, one.levelno) == (name, level)]


@pytest.fixture
def partition(log: CommitLog) -> Partition:
    found: Partition = log.create_topic("t", config=CONFIG).partition(0)
    return found


def test_nothing_is_printed_unless_the_application_asks(tmp_path: Path) -> None:
    program = (
        "import logging, commitlog\n"
        "with commitlog.open('log') as log: log.create_topic('t')\n"
        "logging.getLogger('commitlog.tasks').error('something failed')"
    )
    source = str(Path(commitlog.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_a_log_tells_when_it_opens_and_closes(log_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with commitlog.open(log_path) as log:
        log.create_topic("t", partitions=2)
        log.delete_topic("t")
    assert told(caplog, "commitlog.log") == [
        f"{log_path} is open: 0 partitions, 0 bytes checked in 0.000 s",
        "topic t is created, with 2 partitions",
        "topic t is deleted",
        f"{log_path} is closed",
    ]


def test_what_recovery_cut_is_a_warning(log_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with commitlog.open(log_path) as log:
        fill(log.create_topic("t").partition(0), 3)
    (log_path / "clean-shutdown").unlink()
    with open(log_path / "t-0" / "00000000000000000000.log", "ab") as file:
        file.write(b"torn")
    caplog.clear()
    commitlog.open(log_path).close()
    assert "1 partitions, 4 bytes checked" in told(caplog, "commitlog.log")[0]
    cut = "t-0: 4 bytes of unfinished appends were cut, with 0 segments"
    assert told(caplog, "commitlog.log", logging.WARNING) == [cut]


def test_appends_tell_nothing_and_rolls_at_debug(
    partition: Partition, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    caplog.set_level(logging.DEBUG, logger="commitlog")
    fill(partition, 5)
    assert caplog.records == []
    partition.roll()
    rolled = "t-0 has rolled: segment 5 is active"
    assert told(caplog, "commitlog.partition", logging.DEBUG) == [rolled]


def test_retention_tells_what_it_removed(
    log: CommitLog, partition: Partition, caplog: pytest.LogCaptureFixture
) -> None:
    fill(partition, 30)
    log.topic("t").alter_config(retention_bytes=0)
    removed = log.apply_retention()
    start = partition.start_offset
    told_of = f"t-0: retention removed {removed} segments, up to offset {start}"
    assert told(caplog, "commitlog.retention") == [told_of]


def test_a_pass_of_compaction_tells_what_it_left(log: CommitLog, caplog: pytest.LogCaptureFixture) -> None:
    partition = log.create_topic("t", config=CONFIG | {"cleanup_policy": "compact"}).partition(0)
    partition.compact()  # nothing to clean is nothing to tell
    fill(partition, 30)
    partition.roll()
    partition.compact()
    (message,) = told(caplog, "commitlog.compaction")
    assert message.startswith("t-0: a pass up to offset 30 left 3 of 30 records, ")


def test_a_group_tells_who_comes_and_goes(
    log: CommitLog, partition: Partition, caplog: pytest.LogCaptureFixture
) -> None:
    with log.consumer("t", group_id="g", client_id="reader") as consumer:
        consumer.poll(0)
    joined, left = told(caplog, "commitlog.groups")
    assert joined.startswith("reader-")
    assert joined.endswith(" joined group g: generation 1 has 1 members")
    assert left.endswith(" left group g: generation 2 has 0 members")


def test_a_partition_that_fails_is_an_error(
    partition: Partition, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "a broken disk")

    partition.append(b"one")
    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_data", broken)
        with pytest.raises(PartitionFailedError):
            partition.sync()
    (message,) = told(caplog, "commitlog.partition", logging.ERROR)
    assert message.startswith("t-0 takes no more appends until it is opened again: ")
    assert "a broken disk" in message


def test_a_node_tells_who_leads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    network = LocalNetwork()
    controller = SimulatedController(network, 6_000)
    logs = [commitlog.open(tmp_path / str(number)) for number in (1, 2)]
    nodes = [
        Node(log, network.transport(str(number)), controller, number, ReplicationConfig()).start()
        for number, log in enumerate(logs, 1)
    ]
    nodes[0].create_topic("t", 1, 2)
    network.run_until(lambda: len(told(caplog, "commitlog.replication")) >= 2, 60_000)
    assert sorted(told(caplog, "commitlog.replication")) == [
        "node 1: this node leads t-0 in epoch 0; in sync: 1, 2",
        "node 2: node 1 leads t-0 in epoch 0; in sync: 1, 2",
    ]
    for node, log in zip(nodes, logs, strict=True):
        node.stop(hand_over=False)
        log.close()
