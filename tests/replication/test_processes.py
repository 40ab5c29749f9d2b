"""Real processes on loopback: leaders that are killed, or stand still and come back, under load."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import wait_until
from soak import SOAK, count

import commitlog

from .replicas import Replicas, Writer

SOAK_SECONDS = 60 if SOAK else 0
KILLS = 2  # at least


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    made = Replicas(tmp_path, segment_bytes=20_000)
    try:
        yield made
    finally:
        made.close()


def check(replicas: Replicas, writers: list[Writer]) -> None:
    """All that was acknowledged is there, and all replicas are the same, byte for byte."""
    acknowledged = {offset: value for writer in writers for offset, value in writer.acknowledged.items()}
    wait_until(lambda: len(replicas.state().isr) == 3)
    with replicas.connect() as remote:
        orders = remote.topic("orders").partition(0)
        end = orders.append(b"the last one", acks="all") + 1
        found = {record.offset: record.value for record in orders.records()}
    assert sorted(found) == list(range(end))
    assert {offset: found[offset] for offset in acknowledged} == acknowledged
    mine = [value for writer in writers for value in writer.acknowledged.values()]
    assert len(mine) == len(set(mine)) == len(acknowledged), "an offset, or a record, was given twice"
    values = [value for value in found.values() if value != b"the last one"]
    assert len(values) == len(set(values)), "a retry left a record twice"
    replicas.close()
    logs = [files_of(replicas.path / str(node_id) / "orders-0") for node_id in (1, 2, 3)]
    assert logs[0] == logs[1] == logs[2]
    replicas.processes.clear()


def files_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.glob("*.log"))}


def more_than(writers: list[Writer], before: int) -> None:
    wait_until(lambda: sum(len(writer.acknowledged) for writer in writers) > before, 60)


def test_leaders_that_are_killed_under_load_take_nothing_acknowledged_along(replicas: Replicas) -> None:
    wait_until(lambda: replicas.state().leader is not None)
    writers = [Writer(replicas, b"a"), Writer(replicas, b"b")]
    try:
        began, kills = time.monotonic(), 0
        while kills < KILLS or time.monotonic() - began < SOAK_SECONDS:
            more_than(writers, sum(len(writer.acknowledged) for writer in writers) + 100)
            leader = replicas.state().leader
            assert leader is not None
            replicas.kill(leader)
            kills += 1
            count("processes killed")
            wait_until(lambda leader=leader: replicas.state().leader not in (None, leader))  # type: ignore[misc]
            replicas.start(leader)
            wait_until(lambda: len(replicas.state().isr) == 3)
    finally:
        for writer in writers:
            writer.end()
    check(replicas, writers)


def test_a_leader_that_stood_still_is_fenced_when_it_comes_back(replicas: Replicas) -> None:
    wait_until(lambda: replicas.state().leader is not None)
    writer = Writer(replicas, b"a")
    try:
        more_than([writer], 100)
        zombie, epoch = replicas.state().leader, replicas.state().leader_epoch
        assert zombie is not None
        replicas.signal(zombie, signal.SIGSTOP)
        wait_until(lambda: replicas.state().leader not in (None, zombie))
        assert replicas.state().leader_epoch > epoch
        more_than([writer], len(writer.acknowledged) + 100)
        replicas.signal(zombie, signal.SIGCONT)
        with replicas.connect(zombie) as remote:  # it may believe that it leads, or know better
            orders = remote.topic("orders").partition(0)
            try:
                offset = orders.append(b"through the zombie", acks="all")
            except commitlog.CommitLogError:
                pass
            else:
                writer.acknowledged[offset] = b"through the zombie"
        more_than([writer], len(writer.acknowledged) + 100)
    finally:
        writer.end()
    check(replicas, [writer])
