"""A writer is killed in the middle of its work, many times: nothing is lost, nothing torn served."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog import Record

from . import children
from .children import WRITERS, Progress, read_value

SOAK = os.environ.get("COMMITLOG_SOAK") == "1"
ROUNDS = 150 if SOAK else 4


def kill_after_a_while(path: Path, progress: Progress, kind: str, chance: random.Random) -> None:
    """Start a writer and kill it when it has done an amount of work that chance decides."""
    child = children.start("write", path, path.with_name("progress"), kind, chance.randrange(1 << 30))
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "ready\n", child.communicate()[1]
        work = chance.choice([0, 1, 10, 300, 2000 if kind != "rolls" else 500])
        goal, deadline = progress.get("next") + work, time.monotonic() + 30
        while progress.get("next") < goal and time.monotonic() < deadline:
            if progress.get("cut_asked") >= 0 and chance.random() < 0.2:
                break  # in the middle of a truncation
        time.sleep(chance.random() * 0.01)  # anywhere, not only where a record was acknowledged
        assert child.poll() is None, child.communicate()[1]
    finally:
        child.kill()
        child.communicate()


def check(partition: Any, progress: Progress) -> list[Record]:
    """What the killed writer was told, it finds."""
    records = list(partition.records())
    start, end = partition.start_offset, partition.next_offset
    assert [record.offset for record in records] == list(range(start, end))
    generations = []
    for record in records:
        offset, generation = read_value(record.value)
        assert offset == record.offset
        generations.append(generation)
    cut_asked, generation = progress.get("cut_asked"), progress.get("generation")
    written = progress.get("next")
    assert end >= (written if cut_asked < 0 else min(cut_asked, written)), "what was written is there"
    assert progress.get("start") <= start <= max(progress.get("start_asked"), progress.get("start"))
    assert generations == sorted(generations), "what was truncated did not come back"
    if cut_asked < 0 and generation:
        cut = progress.get("cut")
        assert all(one == generation for one in generations[max(cut - start, 0) :])
    # a reader may meet a segment whose indexes the writer was just about to make
    assert not [one for one in partition.verify().damage if one.path.endswith(".log")]
    return records


@pytest.mark.parametrize("kind", WRITERS)
def test_nothing_acknowledged_is_lost_and_nothing_torn_is_served(tmp_path: Path, kind: str) -> None:
    chance = random.Random(kind)
    path = tmp_path / "log"
    progress = Progress(tmp_path / "progress")
    progress.set("cut_asked", -1)
    for _ in range(ROUNDS):
        kill_after_a_while(path, progress, kind, chance)
        with commitlog.open(path, mode="r") as log:
            seen = check(log.topic("t").partition(0), progress)
        with commitlog.open(path) as log:
            assert not log.recovery[0].clean
            partition = log.topic("t").partition(0)
            assert check(partition, progress) == seen
            assert partition.verify().damage == ()
            settle(progress, partition)


def settle(progress: Progress, partition: Any) -> None:
    """Begin the next round where recovery ended: what was in flight is decided now."""
    if progress.get("cut_asked") >= 0:
        progress.set("cut", progress.get("cut_asked"))
        progress.set("generation", progress.get("generation") + 1)
        progress.set("cut_asked", -1)
        # truncated or not, what follows is of the next generation
        progress.set("cut", partition.next_offset)
    progress.set("next", partition.next_offset)
    progress.set("start", partition.start_offset)
    progress.set("start_asked", partition.start_offset)
