"""The power goes at every call that changes or syncs something, before it takes effect and after."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers import map_tails
from soak import SEED, SOAK

from .disk import write_image
from .power import Moment, Promise, Writer, check_all, moments

VARIANTS = 8 if SOAK else 4
SAMPLE = 800 if SOAK else 250
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


def rests(writer: Writer) -> None:
    writer.append(3)
    writer.rest()
    writer.sync()
    writer.append(2)
    writer.rest()
    writer.append(1, sync=True)
    writer.rest()
    writer.roll()
    writer.append_many(4)
    writer.rest()
    writer.truncate(8)
    writer.append(1)
    writer.rest()
    writer.trim(2)
    writer.append(2)
    writer.rest()
    writer.close()
    writer.open()
    writer.trim(4)
    writer.close()
    writer.open()
    writer.append(1, sync=True)


def preallocated(writer: Writer) -> None:
    writer.append(4)
    writer.sync()
    writer.append(10)
    writer.truncate(6)
    writer.append(1, sync=True)
    writer.close()
    writer.open()
    writer.append(3)


def restart(writer: Writer) -> None:
    """Make the recovery point durable: damage above it is a torn tail to the next open."""
    writer.close()
    writer.open()


def repairs(writer: Writer) -> None:
    writer.append(20)
    restart(writer)
    writer.rot(5)
    writer.rot(19)
    writer.append(2)
    writer.repair()
    writer.append(3)
    writer.append(1, sync=True)
    writer.kill()
    writer.open()
    restart(writer)
    writer.rot(23)
    writer.append(2)
    writer.repair()
    writer.close()
    writer.open()
    writer.append(1)


def repairs_of_lost_segments(writer: Writer) -> None:
    writer.append_many(4)
    writer.append(16, sync=True)
    restart(writer)
    writer.lose_segment(7)
    writer.repair()
    writer.append(2, sync=True)
    writer.trim(3)
    restart(writer)
    writer.lose_segment(20)
    writer.repair()
    writer.append(1)
    writer.trim(9)
    writer.append(1, sync=True)


def damage_of_sealed_segments_right_after_a_sync(writer: Writer) -> None:
    writer.append(12)
    writer.sync()
    writer.rot(5)
    writer.append(6, sync=True)
    writer.lose_segment(10)
    writer.append(3)
    writer.repair()
    writer.append(1)


def salvages_of_the_middle(writer: Writer) -> None:
    writer.append(20)
    writer.close()
    writer.lose_segment(7)
    writer.open("salvage")
    writer.append(3)
    writer.kill()
    writer.open()
    writer.sync()
    writer.trim(8)
    writer.append(1, sync=True)
    writer.truncate(9)
    writer.append(2, sync=True)


def salvages_of_the_end(writer: Writer) -> None:
    writer.append(18, sync=True)
    restart(writer)
    writer.append(1)
    writer.kill()
    writer.rot(17)
    writer.open("salvage")
    writer.append(2)
    writer.append(1, sync=True)
    restart(writer)
    writer.kill()
    writer.lose_segment(20)
    writer.open("salvage")
    writer.append(1, sync=True)
    writer.close()
    writer.open()
    writer.append(1)


def salvages_of_the_start(writer: Writer) -> None:
    writer.append(12, sync=True)
    writer.trim(2)
    restart(writer)
    writer.kill()
    writer.lose_segment(2)
    writer.open("salvage")
    writer.append(2, sync=True)
    writer.truncate(9)
    writer.append(2)
    writer.close()
    writer.open()
    writer.append(1)


def long_tails(writer: Writer) -> None:
    writer.append(30)
    writer.append(2, sync=True)
    writer.append(30)
    writer.append_many(9)
    writer.append(5)
    writer.roll()
    writer.append(12)
    writer.kill()
    writer.open()
    writer.append(6)
    writer.truncate(len(writer.promise.timeline) - 3)
    writer.append(5)
    writer.close()
    writer.open()
    writer.append(7)


def into_a_map(story: Story) -> Story:
    """Let single records be stored into a map: its pages reach the disk in any order."""

    @functools.wraps(story)
    def told(writer: Writer) -> None:
        with pytest.MonkeyPatch.context() as patch:
            map_tails(patch, least_bytes=2 * 4096)
            story(writer)

    told.__name__ += "_into_a_map"
    return told


STORIES: list[tuple[Story, Mapping[str, Any]]] = [
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
    (rests, SMALL_SEGMENTS),
    (preallocated, {**SMALL_SEGMENTS, "preallocate": True}),
    (repairs, SMALL_SEGMENTS),
    (repairs_of_lost_segments, SMALL_SEGMENTS),
    (damage_of_sealed_segments_right_after_a_sync, SMALL_SEGMENTS),
    (salvages_of_the_middle, SMALL_SEGMENTS),
    (salvages_of_the_end, SMALL_SEGMENTS),
    (salvages_of_the_start, SMALL_SEGMENTS),
    (into_a_map(long_tails), {"index_interval_bytes": 500}),
    (into_a_map(single_appends), {}),
    (into_a_map(rolls), SMALL_SEGMENTS),
    (into_a_map(truncations), SMALL_SEGMENTS),
    (into_a_map(kills), SMALL_SEGMENTS),
    (into_a_map(rests), SMALL_SEGMENTS),
    (into_a_map(preallocated), {**SMALL_SEGMENTS, "preallocate": True}),
]
NAMES = [story.__name__ for story, _ in STORIES]


def from_the_start(story: Story) -> Story:
    def whole(writer: Writer) -> None:
        writer.open()
        writer.create()
        story(writer)

    return whole


def told(story: Story, config: Mapping[str, Any], root: Path) -> list[Moment]:
    """Run a story from the creation of the log on; returns (a sample of) the moments to check."""
    chance = random.Random(f"{SEED} {story.__name__}")
    root.mkdir()
    writer = Writer(root / "log", Promise(), config)
    found = moments(root, from_the_start(story), writer, chance, VARIANTS)
    return chance.sample(found, min(len(found), SAMPLE))


@pytest.mark.parametrize(("story", "config"), STORIES, ids=NAMES)
def test_a_power_cut_loses_nothing_that_was_synced_and_serves_nothing_torn(
    story: Story, config: Mapping[str, Any], tmp_path: Path
) -> None:
    check_all(told(story, config, tmp_path / "live"), tmp_path)


@pytest.mark.parametrize(("story", "config"), STORIES, ids=NAMES)
def test_a_second_power_cut_during_recovery_loses_nothing_more(
    story: Story, config: Mapping[str, Any], tmp_path: Path
) -> None:
    def go_on(writer: Writer) -> None:
        writer.open("salvage" if writer.promise.hurt else "cut")
        if writer.partition is not None:
            writer.truncated(writer.partition.next_offset)  # what recovery cut off must not come back
            if writer.promise.hurt:
                writer.note_lost()
                writer.repair()
            writer.append(1)
            writer.append(1, sync=True)

    first = told(story, config, tmp_path / "live")
    chance = random.Random(f"{SEED} {story.__name__}")
    for number, moment in enumerate(chance.sample(first, min(len(first), 20 if SOAK else 4))):
        root = tmp_path / f"again-{number}"
        write_image(moment.image, root)
        again = moments(root, go_on, Writer(root / "log", moment.promise, config), chance, VARIANTS)
        check_all(chance.sample(again, min(len(again), 40)), tmp_path)


# --- topics


def topics_come_and_go(writer: Writer) -> None:
    writer.open()
    writer.create("kept", 2)
    writer.mark("kept", 1)
    writer.create("gone", 2)
    writer.mark("gone", 0)
    writer.grow("kept", 4)
    writer.mark("kept", 3)
    writer.delete("gone")
    writer.create("gone", 1)
    writer.mark("gone", 0)
    writer.delete("gone")
    writer.close()


def test_a_power_cut_leaves_topics_whole_or_not_there(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    root = tmp_path / "live"
    root.mkdir()
    found = moments(root, topics_come_and_go, Writer(root / "log", Promise(), {}), chance, VARIANTS)
    check_all(chance.sample(found, min(len(found), SAMPLE)), tmp_path)


def test_a_log_in_new_nested_directories_is_there_once_a_record_was_synced(tmp_path: Path) -> None:
    root = tmp_path / "live"
    root.mkdir()
    where = "new/newer/log"
    writer, chance = Writer(root / where, Promise(), {}), random.Random(SEED)
    found = moments(root, from_the_start(single_appends), writer, chance, VARIANTS)
    check_all(found[-SAMPLE:], tmp_path, where)
