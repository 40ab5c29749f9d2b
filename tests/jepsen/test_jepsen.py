"""Real nodes on hosts of their own: cuts, kills, pauses and full disks lose nothing acknowledged."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from soak import SEED, SOAK, count

import commitlog

from . import rig
from .checker import FOREVER, Append, History, Read, check

REQUIRED = os.environ.get("COMMITLOG_REQUIRE_NAMESPACES") == "1"
SECONDS = 240 if SOAK else 10


@pytest.fixture
def namespaces() -> None:
    """Skip the test, or fail it where it must run, if this machine allows no namespaces."""
    reason = rig.missing()
    if reason is not None and REQUIRED:
        pytest.fail(f"COMMITLOG_REQUIRE_NAMESPACES is set, but {reason}")
    if reason is not None:
        pytest.skip(f"needs network namespaces: {reason}")


def lines(path: Path) -> Iterator[tuple[int, str, list[Any]]]:
    for line in path.read_text().splitlines():
        when, what, *rest = json.loads(line)
        yield when, what, rest


def history_of(directory: Path) -> History:
    appends: dict[str, Append] = {}  # by their first value
    reads = []
    for path in sorted(directory.glob("*.history")):
        for when, what, rest in lines(path):
            if what == "append":
                appends[rest[1][0]] = Append(rest[0], tuple(rest[1]), when)
            elif what == "ok":
                begun = appends[rest[0]]
                appends[rest[0]] = Append(begun.partition, begun.values, begun.invoked, when, rest[1])
            elif what == "read":
                reads.append(Read(rest[0], tuple(map(tuple, rest[1]))))
    replicas = {path.name: contents(path) for path in sorted(directory.glob("replica-*"))}
    return History(list(appends.values()), reads, replicas)


def contents(path: Path) -> dict[int, list[tuple[int, str]]]:
    with commitlog.open(path, mode="r") as log:
        return {
            number: [(record.offset, record.value.decode().rstrip()) for record in partition.records()]
            for number, partition in enumerate(log.topic("orders").partitions)
        }


@pytest.mark.usefixtures("namespaces")
def test_what_is_acknowledged_and_what_was_read_is_there_in_the_end_once_and_in_order(tmp_path: Path) -> None:
    done = rig.run(SECONDS, SEED, tmp_path, SECONDS + 240)
    history = history_of(tmp_path)
    acknowledged = sum(len(one.values) for one in history.appends if one.returned < FOREVER)
    assert len(history.replicas) == 3
    assert acknowledged > 100
    assert check(history) == [], f"COMMITLOG_SEED={SEED}; what was done is in {tmp_path / 'nemesis.log'}"
    count("processes killed", done["kills"])
    count("real nodes: records acknowledged to acks=all", acknowledged)
    for what in ("cuts", "pauses", "full disks"):
        count(f"real nodes: {what}", done[what])
