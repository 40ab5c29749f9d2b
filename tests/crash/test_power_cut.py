"""The power goes at every call that changes or syncs something, before it takes effect and after."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from .disk import write_image
from .power import TOPIC, Moment, Promise, Writer, check, moments

SOAK = os.environ.get("COMMITLOG_SOAK") == "1"
VARIANTS = 20 if SOAK else 4
MOST_CHECKS = 100_000 if SOAK else 120
SMALL_SEGMENTS = {"segment_bytes": 512, "index_interval_bytes": 100}

pytestmark = pytest.mark.usefixtures("quick_disk")
Story = Callable[[Writer], None]


def single_appends(writer: Writer) -> None:
    writer.append(2)
    writer.append(2, sync=True)
    writer.append(3)
    writer.sync()
    writer.append(1)


def batches(writer: Writer) -> None:
    writer.append_many(5)
    writer.append_many(40, sync=True)
    writer.append_many(200)
    writer.append_many(1, sync=True)
    writer.append_many(30)


def rolls(writer: Writer) -> None:
    writer.append(6)
    writer.roll()
    writer.append(2, sync=True)
    writer.append(12)
    writer.sync()
    writer.roll()
    writer.roll()
    writer.append(7)


def trims(writer: Writer) -> None:
    writer.append(20)
    writer.trim(3)
    writer.append(2, sync=True)
    writer.trim(15)
    writer.append(9)
    writer.trim(30)
    writer.append(1)
    writer.trim(32)
    writer.append(3, sync=True)


def trims_of_everything(writer: Writer) -> None:
    writer.append(10)
    writer.trim(10)
    writer.append(1)
    writer.trim(11)
    writer.append(1, sync=True)
    writer.trim(12)
    writer.close()
    writer.open()
    writer.append(1)


def truncations(writer: Writer) -> None:
    writer.append(20)
    writer.sync()
    writer.truncate(17)
    writer.append(1)
    writer.append(2, sync=True)
    writer.truncate(3)
    writer.append(12)
    writer.truncate(9)
    writer.append(8, sync=True)
    writer.truncate(0)
    writer.append(2)


def truncations_inside_a_batch(writer: Writer) -> None:
    writer.append_many(6, sync=True)
    writer.append_many(6)
    writer.truncate(8)
    writer.append(3)
    writer.truncate(4)
    writer.append_many(3, sync=True)
    writer.truncate(6)
    writer.truncate(5)
    writer.append(2)


def trims_then_truncations(writer: Writer) -> None:
    writer.append(20)
    writer.trim(8)
    writer.truncate(12)
    writer.append(2, sync=True)
    writer.truncate(8)
    writer.append(1)
    writer.trim(9)
    writer.truncate(9)
    writer.append(3, sync=True)


def clean_restarts(writer: Writer) -> None:
    writer.append(5)
    writer.close()
    writer.open()
    writer.append(9)
    writer.close()
    writer.open()
    writer.roll()
    writer.close()
    writer.open()
    writer.truncate(4)
    writer.close()


def kills(writer: Writer) -> None:
    writer.append(3)
    writer.sync()
    writer.append(3)
    writer.roll()
    writer.append(8)
    writer.kill()
    writer.open()
    writer.sync()
    writer.append(1)
    writer.kill()
    writer.open()
    writer.append(1, sync=True)
    writer.truncate(5)
    writer.kill()
    writer.open()
    writer.append(9, sync=True)


def preallocated(writer: Writer) -> None:
    writer.append(4)
    writer.sync()
    writer.append(10)
    writer.truncate(6)
    writer.append(1, sync=True)
    writer.close()
    writer.open()
    writer.append(3)


STORIES: list[tuple[Story, dict[str, object]]] = [
    (single_appends, {}),
    (batches, {"index_interval_bytes": 100}),
    (rolls, SMALL_SEGMENTS),
    (trims, SMALL_SEGMENTS),
    (trims_of_everything, SMALL_SEGMENTS),
    (truncations, SMALL_SEGMENTS),
    (truncations_inside_a_batch, {"compression_type": "zstd"}),
    (trims_then_truncations, SMALL_SEGMENTS),
    (clean_restarts, SMALL_SEGMENTS),
    (kills, SMALL_SEGMENTS),
    (preallocated, {**SMALL_SEGMENTS, "preallocate": True}),
]


def told(story: Story, config: dict[str, object], root: Path) -> list[Moment]:
    """Run a story from the creation of the log on; returns the moments to check, a sample of them by default."""

    def from_the_start(writer: Writer) -> None:
        writer.open()
        writer.create()
        story(writer)

    chance = random.Random(story.__name__)
    root.mkdir()
    writer = Writer(root / "log", Promise(), config)
    found = moments(root, from_the_start, writer, chance, VARIANTS)
    return found if len(found) <= MOST_CHECKS else chance.sample(found, MOST_CHECKS)


def check_all(found: list[Moment], tmp_path: Path) -> None:
    for number, moment in enumerate(found):
        left = tmp_path / f"left-{number}"
        try:
            check(moment, left)
        except BaseException as problem:
            problem.add_note(f"the power went {moment.label}; the log is in {left}")
            raise
        shutil.rmtree(left)


@pytest.mark.parametrize(("story", "config"), STORIES, ids=lambda one: getattr(one, "__name__", ""))
def test_a_power_cut_loses_nothing_that_was_synced_and_serves_nothing_torn(
    story: Story, config: dict[str, object], tmp_path: Path
) -> None:
    check_all(told(story, config, tmp_path / "live"), tmp_path)


@pytest.mark.parametrize(("story", "config"), STORIES, ids=lambda one: getattr(one, "__name__", ""))
def test_a_second_power_cut_during_recovery_loses_nothing_more(
    story: Story, config: dict[str, object], tmp_path: Path
) -> None:
    def go_on(writer: Writer) -> None:
        writer.open()
        if TOPIC not in writer.promise.topics:
            return
        assert writer.partition is not None
        end = writer.partition.next_offset
        # what was found, whatever it is, is the log from now on; the rest must not come back
        writer.promise = replace_timeline(writer.promise, end)
        writer.append(1)
        writer.append(1, sync=True)

    first = told(story, config, tmp_path / "live")
    chance = random.Random(story.__name__ + " again")
    for number, moment in enumerate(chance.sample(first, min(len(first), 400 if SOAK else 4))):
        root = tmp_path / f"again-{number}"
        write_image(moment.image, root)
        writer = Writer(root / "log", moment.promise, config)
        found = moments(root, go_on, writer, chance, VARIANTS)
        check_all(chance.sample(found, min(len(found), 40)), tmp_path)


def replace_timeline(promise: Promise, end: int) -> Promise:
    from dataclasses import replace

    return replace(promise, timeline=promise.timeline[:end])
