"""A writer is killed in the middle of its work, many times: nothing is lost, nothing torn served."""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from soak import SEED, SOAK, count

import commitlog
from commitlog import Record
from commitlog.partitions import sources

from . import zygote
from .children import KINDS, Progress, read_value

ROUNDS = 1_100 if SOAK else 4
MANY = {"rolls": 300}  # records: a log that has more makes room for a new one


def kill_after_a_while(folder: Path, progress: Progress, kind: str, chance: random.Random) -> None:
    """Start a writer and kill it when it has done an amount of work that chance decides."""
    seed = chance.randrange(1 << 30)
    child = zygote.start("children.write", folder / "log", folder / "progress", kind, seed)
    try:
        assert child.stdout.readline() == "ready\n", "the writer does not start"
        work = chance.choice([0, 1, 10, 50, 300, 1000 if kind != "rolls" else 100])
        goal, deadline = progress.get("next") + work, time.monotonic() + 30
        while progress.get("next") < goal and time.monotonic() < deadline:
            if progress.get("cut_asked") >= 0 and chance.random() < 0.2:
                break  # in the middle of a truncation
            os.sched_yield()
        time.sleep(chance.random() * 0.01)  # anywhere, not only where a record was acknowledged
        assert child.is_alive(), "the writer ended by itself"
    finally:
        child.kill()
        child.wait()
    count("processes killed")


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
    return records


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_acknowledged_is_lost_and_nothing_torn_is_served(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "CHANGE_SECONDS", 0.0)  # nobody lives who could end a change
    chance = random.Random(f"{SEED} {kind}")
    done = 0
    while done < ROUNDS:
        folder = tmp_path / f"from-{done}"
        done += kill_again_and_again(folder, kind, chance, ROUNDS - done)
        shutil.rmtree(folder)


def kill_again_and_again(folder: Path, kind: str, chance: random.Random, most: int) -> int:
    """Kill writers of one log, until it is long; returns how many."""
    path, records = folder / "log", 0
    folder.mkdir()
    progress = Progress(folder / "progress")
    progress.set("cut_asked", -1)
    for number in range(1, most + 1):
        kill_after_a_while(folder, progress, kind, chance)
        with commitlog.open(path, mode="r") as log:
            partition = log.topic("t").partition(0)
            seen = check(partition, progress)
            # a reader may meet a segment whose indexes the writer was just about to make
            assert not [one for one in partition.verify().damage if one.path.endswith(".log")]
        with commitlog.open(path) as log:
            assert not log.recovery[0].clean
            partition = log.topic("t").partition(0)
            assert check(partition, progress) == seen
            assert partition.verify().damage == ()
            settle(progress, partition)
            records = partition.next_offset - partition.start_offset
        if records > MANY.get(kind, 1_500):
            return number
    return most


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
