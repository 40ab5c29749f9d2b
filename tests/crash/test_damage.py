"""Damage that a crash cannot explain is an error that names file and byte; nothing sound is lost to it."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from helpers import copy_as_if_killed, encoded, stored
from soak import SOAK, count

import commitlog
from commitlog import CorruptionError, Partition
from commitlog.partitions.page import StatePage

from .logs import (
    MARKER,
    QUIET,
    Damage,
    append_to,
    check_records,
    crash,
    cut,
    flipped,
    garbage_from,
    mode,
    open_partition,
    overwrite,
    segment_files,
    value_of,
    values,
    zeros_from,
)

pytestmark = pytest.mark.usefixtures("quick_disk")

KINDS = [cut, zeros_from, garbage_from]
END = 32


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A log of several segments, all of it synced."""
    path = tmp_path / "log"
    with commitlog.open(path) as log:
        partition = log.create_topic("t", config={**QUIET, "segment_bytes": 700}).partition(0)
        append_to(partition, 6)
        partition.append_many(values(6, 9))
        append_to(partition, 14)
        partition.append_many(values(14, 17))
        append_to(partition, END)
        assert len(partition.segments) > 3
    return path


def hurt(path: Path, number: int, damage: Damage) -> Path:
    """Damage a segment of a copy of the log, and take the copy's clean marker away."""
    copy = path.with_name("hurt")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path, copy)
    (copy / MARKER).unlink(missing_ok=True)
    damage(segment_files(copy)[number])
    count("damaged logs opened")
    return copy


def batches(segment: Path) -> list[commitlog.RecordBatch]:
    return list(commitlog.Segment.open(segment).batches())


def read_until_damage(partition: Any) -> tuple[list[int], CorruptionError | None]:
    """Return the offsets that can be read from the start on, each one checked, and what stopped it."""
    found = []
    try:
        for record in partition.records():
            assert record.value == value_of(record.offset)
            found.append(record.offset)
    except CorruptionError as problem:
        return found, problem
    return found, None


# --- at the end of the log, below durable_offset


@pytest.mark.parametrize("kind", KINDS)
def test_a_synced_batch_that_is_gone_is_noticed_at_open(closed: Path, kind: Callable[[int], Damage]) -> None:
    for batch in batches(segment_files(closed)[-1]):
        # a file may be cut anywhere; of a batch that is overwritten recovery may look at the header only
        for place in [0, 8, 16, batch.size_bytes - 1] if kind is cut else [0, 8, 16]:
            path = hurt(closed, -1, kind(batch.position + place))
            for reading in ("r", "w"):
                with pytest.raises(CorruptionError), commitlog.open(path, mode=reading) as log:
                    open_partition(log)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reading", ["r", "w"])
def test_a_synced_tail_that_is_damaged_is_refused_and_never_cut(
    closed: Path, kind: Callable[[int], Damage], reading: Any
) -> None:
    last = segment_files(closed)[-1]
    before = last.read_bytes()
    starts = [batch.position for batch in batches(last)]
    for position in range(0, len(before), 1 if SOAK else 11):
        path = hurt(closed, -1, kind(position))
        segment = segment_files(path)[-1]
        after = segment.read_bytes()
        if after == before:  # zeros over padding
            continue
        with pytest.raises(CorruptionError) as caught, commitlog.open(path, mode=reading) as log:
            # damage inside a synced batch shows when it is read: recovery starts at the recovery point
            assert open_partition(log).next_offset == END
            list(open_partition(log).records())
        assert caught.value.path == str(segment)
        assert caught.value.position in (*starts, len(after))
        assert segment.read_bytes() == after, "it is as it was found"


def test_a_synced_log_without_its_last_segment_is_refused(closed: Path) -> None:
    path = hurt(closed, -1, Path.unlink)
    with pytest.raises(CorruptionError):
        commitlog.open(path)


def test_a_synced_log_without_any_segment_is_refused(closed: Path) -> None:
    path = hurt(closed, -1, Path.unlink)
    for segment in segment_files(path):
        segment.unlink()
    with pytest.raises(CorruptionError):
        commitlog.open(path)


@pytest.mark.parametrize("kind", KINDS)
def test_damage_below_the_recovery_point_of_a_sealed_segment_does_not_drop_what_follows(
    tmp_path: Path, kind: Callable[[int], Damage]
) -> None:
    log = commitlog.open(tmp_path / "live")
    partition = log.create_topic("t", config=QUIET).partition(0)
    append_to(partition, 5)
    partition.sync()
    append_to(partition, 10)
    partition.roll()
    append_to(partition, 12)
    shutil.copytree(tmp_path / "live", tmp_path / "log")
    log.close()
    first = segment_files(tmp_path / "log")[0]
    starts = [batch.position for batch in batches(first)]
    for number in range(5):
        path = hurt(tmp_path / "log", 0, kind(starts[number] + 4 * (number % 2)))
        sizes = [one.stat().st_size for one in segment_files(path)]
        with pytest.raises(CorruptionError):
            commitlog.open(path)
        assert [one.stat().st_size for one in segment_files(path)] == sizes


# --- segments that are not there


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("reading", ["r", "w"])
def test_a_segment_that_somebody_deleted_is_noticed_at_open(closed: Path, clean: bool, reading: Any) -> None:
    for number in range(len(segment_files(closed))):
        path = hurt(closed, number, Path.unlink)
        if clean:
            (path / MARKER).touch()
        left = [one.name for one in segment_files(path)]
        with pytest.raises(CorruptionError), commitlog.open(path, mode=reading) as log:
            open_partition(log)
        assert [one.name for one in segment_files(path)] == left


@pytest.mark.parametrize("clean", [True, False])
def test_a_sealed_segment_cut_at_a_batch_is_noticed_at_open(closed: Path, clean: bool) -> None:
    for number in range(len(segment_files(closed)) - 1):
        last = batches(segment_files(closed)[number])[-1]
        path = hurt(closed, number, cut(last.position))
        if clean:
            (path / MARKER).touch()
        with pytest.raises(CorruptionError, match="missing"):
            commitlog.open(path)


@pytest.mark.parametrize("clean", [True, False])
def test_salvage_keeps_what_is_left_around_a_deleted_segment(closed: Path, clean: bool) -> None:
    bases = [int(one.stem) for one in segment_files(closed)] + [END]
    for number in range(len(bases) - 1):
        path = hurt(closed, number, Path.unlink)
        if clean:
            (path / MARKER).touch()
        with commitlog.open(path, config=mode("salvage")) as log:
            partition = open_partition(log)
            kept = [*range(bases[number]), *range(bases[number + 1], END)]
            assert [one.offset for one in partition.records()] == kept
            assert partition.verify().ok
            (salvage,) = partition.recovery.salvaged
            assert salvage.lost == ((bases[number], bases[number + 1]),)
            assert partition.append(value_of(END)) == END
        with commitlog.open(path) as log:
            assert [one.offset for one in open_partition(log).records()] == [*kept, END]


def test_a_segment_deleted_under_an_open_log_is_noticed_by_reads_and_verify_and_repaired(
    closed: Path,
) -> None:
    victim = segment_files(closed)[1]
    bases = [int(one.stem) for one in segment_files(closed)]
    with commitlog.open(closed) as log:
        partition = open_partition(log)
        victim.unlink()
        found, problem = read_until_damage(partition)
        assert found == list(range(bases[1]))
        assert problem is not None
        assert problem.path == str(victim)
        (damage,) = partition.verify().damage
        assert damage.path == str(victim)
        (salvage,) = partition.repair().salvaged
        assert salvage.lost == ((bases[1], bases[2]),)
        assert partition.verify().ok
        assert [one.offset for one in partition.records()] == [*range(bases[1]), *range(bases[2], END)]


# --- the state page


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("reading", ["r", "w"])
def test_no_flipped_bit_of_the_state_page_costs_a_record(closed: Path, clean: bool, reading: Any) -> None:
    with commitlog.open(closed) as log:
        open_partition(log).trim_before(5)
    state = Path("t-0", "state")
    used = [place for place, byte in enumerate((closed / state).read_bytes()) if byte]
    assert 30 < len(used) < 300
    for place in used:
        path = hurt(closed, 0, lambda _: None)
        if clean:
            (path / MARKER).touch()
        flipped(place, place % 8)(path / state)
        with commitlog.open(path, mode=reading) as log:
            partition = open_partition(log)
            check_records(partition, partition.start_offset, END)
            assert partition.start_offset in (0, 5)
            if place >= 512:
                assert partition.start_offset == 5
            if reading == "w":
                assert partition.append(value_of(END)) == END


# --- in the middle of sealed segments


def rotten_places(segment: Path) -> list[tuple[int, int]]:
    """Bytes of a segment's second batch, and a bit to flip in each."""
    first, second, third = (batch.position for batch in batches(segment)[:3])
    assert first == 0
    return [(place, place % 8) for place in range(second, third)]


@pytest.mark.parametrize("clean", [True, False])
def test_a_flipped_bit_is_never_served_and_loses_only_its_batch(closed: Path, clean: bool) -> None:
    segment = segment_files(closed)[1]
    inside = batches(segment)
    bad = inside[1]
    for place, bit in rotten_places(segment):
        path = hurt(closed, 1, flipped(place, bit))
        if clean:
            (path / MARKER).touch()
        with commitlog.open(path) as log:
            partition = open_partition(log)
            assert (partition.start_offset, partition.next_offset) == (0, END)
            found, problem = read_until_damage(partition)
            assert problem is not None, f"bit {bit} of byte {place} went unnoticed"
            assert found == list(range(bad.base_offset))
            assert (problem.path, problem.position) == (str(segment_files(path)[1]), bad.position)
            check_others(partition, after=inside[-1].next_offset)


def check_others(partition: Partition, after: int) -> None:
    """What is not damaged can be read: always in other segments; in the damaged one it may take a repair."""
    assert [one.offset for one in partition.records(after)] == list(range(after, END))
    for offset in range(END):
        try:
            record = partition.get(offset)
        except CorruptionError:
            assert offset < after
        else:
            assert record is not None
            assert record.value == value_of(offset)


def test_a_reader_does_not_wait_for_a_change_that_a_killed_writer_began(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = hurt(closed, 1, flipped(70, 3))
    page = StatePage.create(str(path / "t-0"))
    page.begin_change()
    page.close()
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waits"))
    with commitlog.open(path, mode="r") as log, pytest.raises(CorruptionError):
        list(open_partition(log).records())


def test_verify_lists_a_flipped_bit_and_repair_keeps_everything_else(closed: Path) -> None:
    segment = segment_files(closed)[1]
    bad = batches(segment)[1]
    for place, bit in rotten_places(segment)[:: 1 if SOAK else 5]:
        path = hurt(closed, 1, flipped(place, bit))
        rotten = segment_files(path)[1]
        before = rotten.read_bytes()
        with commitlog.open(path, mode="r") as log:
            damage = open_partition(log).verify().damage
        with commitlog.open(path) as log:
            partition = open_partition(log)
            report = partition.verify()
            assert not report.ok
            assert report.damage == damage
            logs = [one for one in damage if one.path.endswith(".log")]
            assert [(one.path, one.position, one.end_position) for one in logs] == [
                (str(rotten), bad.position, bad.position + bad.size_bytes)
            ]
            (salvage,) = partition.repair().salvaged
            assert Path(salvage.kept_as).read_bytes() == before
            assert salvage.lost == ((bad.base_offset, bad.next_offset),)
            assert salvage.bytes_lost == bad.size_bytes
            check_repaired(partition, bad)
        with commitlog.open(path) as log:
            check_repaired(open_partition(log), bad)


def check_repaired(partition: Partition, bad: commitlog.RecordBatch) -> None:
    assert partition.verify().damage == ()
    assert (partition.start_offset, partition.next_offset) == (0, END)
    found, problem = read_until_damage(partition)
    assert problem is None
    assert found == [offset for offset in range(END) if offset not in bad.offsets.tolist()]


def test_a_large_hole_is_repaired_and_no_offset_is_given_twice(closed: Path) -> None:
    """Everything in a segment but its first and last batch is lost."""
    inside = batches(segment_files(closed)[1])
    size = inside[-1].position - inside[1].position
    path = hurt(closed, 1, lambda one: overwrite(one, inside[1].position, b"\x5a" * size))
    with commitlog.open(path) as log:
        partition = open_partition(log)
        partition.repair()
        lost = range(inside[1].base_offset, inside[-1].base_offset)
        found, problem = read_until_damage(partition)
        assert problem is None
        assert found == [offset for offset in range(END) if offset not in lost]
        assert partition.append(value_of(END)) == END


def test_repair_of_the_active_segment_keeps_next_offset(closed: Path) -> None:
    last = batches(segment_files(closed)[-1])[-1]
    path = hurt(closed, -1, flipped(last.position + 70, 0))
    (path / MARKER).touch()
    with commitlog.open(path) as log:
        partition = open_partition(log)
        partition.repair()
        assert partition.next_offset == END
        assert partition.append(value_of(END), sync=True) == END
    (path / MARKER).unlink()
    with commitlog.open(path) as log:
        found, problem = read_until_damage(open_partition(log))
        assert problem is None
        assert found == [*range(last.base_offset), END]


def test_repair_of_a_sound_partition_changes_no_record(closed: Path) -> None:
    with commitlog.open(closed) as log:
        partition = open_partition(log)
        report = partition.repair()
        assert report.salvaged == ()
        check_records(partition, 0, END)
    assert not list((closed / "t-0").glob("*.damaged"))


def test_repairing_twice_keeps_both_damaged_files(closed: Path) -> None:
    path = hurt(closed, 1, lambda one: None)
    kept = []
    for _ in range(2):
        first = batches(segment_files(path)[1])[0]
        flipped(first.position + 70, 1)(segment_files(path)[1])
        rotten = segment_files(path)[1].read_bytes()
        with commitlog.open(path) as log:
            (salvage,) = open_partition(log).repair().salvaged
        kept.append((Path(salvage.kept_as), rotten))
    for file, contents in kept:
        assert file.read_bytes() == contents


@pytest.mark.parametrize("offset", [12, 13])
def test_a_truncation_never_goes_by_a_header_that_rotted(tmp_path: Path, offset: int) -> None:
    with commitlog.open(tmp_path / "log") as log:
        append_to(log.create_topic("t", config=QUIET).partition(0), 20)
    (segment,) = segment_files(tmp_path / "log")
    flipped(batches(segment)[8].position, 2)(segment)  # offset 8 becomes 12
    before = segment.read_bytes()
    with commitlog.open(tmp_path / "log") as log, pytest.raises(CorruptionError):
        open_partition(log).truncate_from(offset)
    assert segment.read_bytes() == before
    with commitlog.open(tmp_path / "log", config=mode("salvage")) as log:
        assert [one.offset for one in open_partition(log).records()] == [*range(8), *range(9, 20)]


def test_repair_rebuilds_indexes_that_are_not_true(closed: Path) -> None:
    index = segment_files(closed)[1].with_suffix(".index")
    index.write_bytes(b"nonsense" * 512)
    with commitlog.open(closed) as log:
        partition = open_partition(log)
        assert [one.path for one in partition.verify().damage] == [str(index)]
        assert [partition.get(offset).value for offset in range(END)] == values(0, END), "read around it"
        assert partition.repair().indexes_rebuilt == 1
        assert partition.verify().damage == ()


def test_a_damaged_batch_can_be_truncated_away(closed: Path) -> None:
    for bad in batches(segment_files(closed)[-1]):
        path = hurt(closed, -1, flipped(bad.position + 70, 1))
        (path / MARKER).touch()
        with commitlog.open(path) as log:
            partition = open_partition(log)
            partition.truncate_from(bad.base_offset)
            check_records(partition, 0, bad.base_offset)
            assert partition.verify().ok
            assert partition.append(b"new", sync=True) == bad.base_offset


# --- recovery mode salvage


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_salvage_of_a_synced_tail_keeps_what_is_sound_and_gives_no_offset_twice(
    closed: Path, kind: Callable[[int], Damage], clean: bool
) -> None:
    last = segment_files(closed)[-1]
    for batch in batches(last):
        path = hurt(closed, -1, kind(batch.position + 8))
        if clean:
            (path / MARKER).touch()
        damaged = segment_files(path)[-1].read_bytes()
        with commitlog.open(path, config=mode("salvage")) as log:
            partition = open_partition(log)
            (salvage,) = partition.recovery.salvaged
            assert Path(salvage.kept_as).read_bytes() == damaged
            found, problem = read_until_damage(partition)
            assert problem is None
            assert found == list(range(batch.base_offset))
            assert partition.append(value_of(END)) == END
        (path / MARKER).unlink()
        with commitlog.open(path) as log:
            found, problem = read_until_damage(open_partition(log))
            assert problem is None
            assert found == [*range(batch.base_offset), END]


def test_salvage_before_anything_is_appended_is_good_for_every_later_open(closed: Path) -> None:
    last = segment_files(closed)[-1]
    bad = batches(last)[-2]
    path = hurt(closed, -1, garbage_from(bad.position))
    with commitlog.open(path, config=mode("salvage")) as log:
        assert open_partition(log).next_offset == END
    for marker in (True, False, False):
        if not marker:
            (path / MARKER).unlink()
        with commitlog.open(path) as log:
            partition = open_partition(log)
            assert partition.next_offset == END
            assert read_until_damage(partition) == (list(range(bad.base_offset)), None)


def test_salvage_of_a_missing_last_segment_gives_no_offset_twice(closed: Path) -> None:
    path = hurt(closed, -1, Path.unlink)
    lost = int(segment_files(closed)[-1].stem)
    with commitlog.open(path, config=mode("salvage")) as log:
        partition = open_partition(log)
        assert read_until_damage(partition) == (list(range(lost)), None)
        assert partition.append(value_of(END)) == END


@pytest.mark.parametrize("clean", [True, False])
def test_salvage_of_a_sealed_segment_that_ends_inside_a_batch(closed: Path, clean: bool) -> None:
    for number in range(len(segment_files(closed)) - 1):
        last = batches(segment_files(closed)[number])[-1]
        path = hurt(closed, number, cut(last.position + 20))
        if clean:
            (path / MARKER).touch()
        with commitlog.open(path, config=mode("salvage")) as log:
            partition = open_partition(log)
            assert partition.verify().ok
            lost = range(last.base_offset, last.next_offset)
            assert [one.offset for one in partition.records()] == [x for x in range(END) if x not in lost]
            (salvage,) = partition.recovery.salvaged
            assert salvage.lost == ((lost.start, lost.stop),)


@pytest.mark.parametrize("clean", [True, False])
def test_salvage_of_a_sealed_segment_with_garbage_behind_it_loses_nothing(closed: Path, clean: bool) -> None:
    path = hurt(closed, 1, lambda one: overwrite(one, one.stat().st_size, b"garbage!" * 9))
    if clean:
        (path / MARKER).touch()
    with commitlog.open(path, config=mode("salvage")) as log:
        check_records(open_partition(log), 0, END)


@pytest.mark.parametrize("clean", [True, False])
def test_salvage_of_an_emptied_segment_leaves_one_segment_in_its_place(closed: Path, clean: bool) -> None:
    bases = [int(one.stem) for one in segment_files(closed)] + [END]
    for number, (base, after) in enumerate(pairwise(bases)):
        path = hurt(closed, number, cut(0))
        if clean:
            (path / MARKER).touch()
        with commitlog.open(path, config=mode("salvage")) as log:
            partition = open_partition(log)
            found = [segment.base_offset for segment in partition.segments]
            assert found == sorted(set(found))
            assert [one.offset for one in partition.records()] == [*range(base), *range(after, END)]
            partition.trim_before(base + 1)
            assert partition.verify().ok
        with commitlog.open(path) as log:
            assert [one.offset for one in open_partition(log).records()] == list(range(after, END))


def test_salvage_of_a_log_of_emptied_segments_gives_no_offset_twice(closed: Path) -> None:
    path = hurt(closed, 0, cut(0))
    for segment in segment_files(path):
        os.truncate(segment, 0)
    with commitlog.open(path, config=mode("salvage")) as log:
        partition = open_partition(log)
        assert partition.append(value_of(END), sync=True) == END
    (path / MARKER).unlink()
    with commitlog.open(path) as log:
        assert [one.offset for one in open_partition(log).records()] == [END]


def test_salvage_keeps_what_follows_a_first_segment_that_was_never_synced(tmp_path: Path) -> None:
    log = commitlog.open(tmp_path / "live")
    append_to(log.create_topic("t", config={**QUIET, "segment_bytes": 700}).partition(0), END)
    path = crash(log, tmp_path / "log")
    first, second = segment_files(path)[:2]
    first.unlink()
    with commitlog.open(path, config=mode("salvage")) as log:
        check_records(open_partition(log), int(second.stem), END)


@pytest.mark.parametrize("how", ["repair", "salvage"])
@pytest.mark.parametrize("offset", [1, 2, 3, 1000])
@pytest.mark.parametrize("place", [70, 17, 8])  # in its body, its magic, its epoch
def test_a_batch_inside_a_damaged_value_is_not_taken_for_one_of_the_log(
    tmp_path: Path, how: str, offset: int, place: int
) -> None:
    foreign = stored(encoded([b"foreign"]), offset)
    with commitlog.open(tmp_path / "log") as log:
        partition = log.create_topic("t", config=QUIET).partition(0)
        append_to(partition, 1)
        partition.append(b"8 bytes." + foreign * 3)
        append_to(partition, 6)
    segment = segment_files(tmp_path / "log")[0]
    flipped(batches(segment)[1].position + place, 0)(segment)
    if how == "salvage":
        (tmp_path / "log" / MARKER).unlink()
        (tmp_path / "log" / "t-0" / "state").unlink()  # so that all of it is checked
    with commitlog.open(tmp_path / "log", config=mode("salvage")) as log:
        partition = open_partition(log)
        if how == "repair":
            partition.repair()
        assert [one.value for one in partition.records()] == [value_of(0), *values(2, 6)]


def test_what_salvage_filled_can_be_read_trimmed_and_truncated_like_the_rest(closed: Path) -> None:
    base, after = (int(one.stem) for one in segment_files(closed)[1:3])
    path = hurt(closed, 1, Path.unlink)
    with commitlog.open(path, config=mode("salvage")) as log:
        partition = open_partition(log)
        assert partition.to_arrow(base, after).num_rows == 0
        assert partition.to_arrow().num_rows == END - (after - base)
        assert list(partition.batches(base, after)) == []
        assert partition.get(base) is None
        assert partition.offset_for_timestamp(0) == 0
        partition.truncate_from(after - 1)
        assert partition.append(b"new") == after - 1
        partition.trim_before(base + 1)
        assert [one.offset for one in partition.records()] == [after - 1]
        partition.truncate_from(base + 1)
        assert partition.append(b"newer", sync=True) == base + 1
        assert partition.offset_for_timestamp(0) == base + 1
        assert partition.verify().ok
    for marker in (True, False):
        if not marker:
            (path / MARKER).unlink()
        with commitlog.open(path) as log:
            assert [one.value for one in open_partition(log).records()] == [b"newer"]


def test_a_reader_that_has_begun_goes_on_over_what_a_repair_filled(closed: Path) -> None:
    with commitlog.open(closed) as log, commitlog.open(closed, mode="r") as other:
        partition, reader = open_partition(log), open_partition(other)
        reading = reader.records()
        found = [next(reading).offset for _ in range(2)]
        deleted, damaged, after = segment_files(closed)[1:4]
        bad = batches(damaged)[1]
        flipped(bad.position + 70, 1)(damaged)
        deleted.unlink()
        partition.repair()
        lost = {*range(int(deleted.stem), int(damaged.stem)), *range(bad.base_offset, bad.next_offset)}
        kept = [offset for offset in range(END) if offset not in lost]
        assert int(after.stem) in kept
        assert [*found, *(one.offset for one in reading)] == kept
        assert [one.offset for one in reader.records()] == kept
        assert reader.verify().ok


@pytest.mark.parametrize("clean", [True, False])
def test_timestamps_are_found_around_what_a_repair_filled(tmp_path: Path, clean: bool) -> None:
    path = tmp_path / "log"
    with commitlog.open(path) as log:
        partition = log.create_topic("t", config={**QUIET, "segment_bytes": 700, "segment_ms": 50}).partition(
            0
        )
        for offset in range(END):
            partition.append(value_of(offset), timestamp=1000 + offset * 7 % 13)
        damaged = segment_files(path)[1]
        flipped(batches(damaged)[0].position + 70, 1)(damaged)
        partition.repair()
    if not clean:
        (path / MARKER).unlink()
        for index in (path / "t-0").glob("*index"):
            index.unlink()
    with commitlog.open(path) as log:
        partition = open_partition(log)
        records = list(partition.records())
        assert len(records) == END - 1
        for timestamp in range(995, 1020):
            late = next((one.offset for one in records if one.timestamp >= timestamp), None)
            assert partition.offset_for_timestamp(timestamp) == late


@pytest.mark.parametrize("retired", [0, 1])
def test_salvage_gets_past_a_damaged_swap_file(tmp_path: Path, retired: int) -> None:
    path = tmp_path / "log"
    with commitlog.open(path) as log:
        config = {**QUIET, "cleanup_policy": "compact", "file_delete_delay_ms": 0}
        partition = log.create_topic("t", config=config).partition(0)
        for offset in range(20):
            partition.append(value_of(offset), key=b"%d" % offset)
            if offset in (9, 19):
                partition.roll()
        before = copy_as_if_killed(log, tmp_path / "before")
        partition.compact()
        assert [one.base_offset for one in partition.segments] == [0, 20]
        swap = before / "t-0" / f"{0:020d}.log.swap"
        shutil.copy(partition.segments[0].path, swap)
    flipped(100, 3)(swap)
    for segment in segment_files(before)[:retired]:
        segment.unlink()
    with pytest.raises(CorruptionError):
        commitlog.open(before)
    with commitlog.open(before, config=mode("salvage")) as log:
        partition = open_partition(log)
        assert [one.offset for one in partition.records()] == list(range(10 * retired, 20))
        assert partition.verify().ok
        assert partition.append(b"next", key=b"20") == 20
    assert list((before / "t-0").glob("*.damaged"))


# --- what opening a damaged log leaves behind


def test_a_refused_open_lets_the_lock_and_all_handles_go(tmp_path: Path) -> None:
    with commitlog.open(tmp_path / "log") as log:
        topic = log.create_topic("t", partitions=3, config=QUIET)
        for partition in topic.partitions:
            append_to(partition, 5)
    (tmp_path / "log" / MARKER).unlink()
    garbage_from(10)(next((tmp_path / "log" / "t-2").glob("*.log")))
    gc.collect()  # what other tests left open would be closed any time
    before = sorted(one.name for one in Path("/proc/self/fd").iterdir())
    for _ in range(5):
        with pytest.raises(CorruptionError) as caught:
            commitlog.open(tmp_path / "log")
        del caught
    gc.collect()
    after = sorted(one.name for one in Path("/proc/self/fd").iterdir())
    assert len(after) <= len(before) + 1


def test_one_damaged_partition_can_be_read_and_verified_without_writing(closed: Path) -> None:
    path = hurt(closed, -1, garbage_from(0))
    with pytest.raises(CorruptionError):
        commitlog.open(path)
    with commitlog.open(path, config=mode("salvage")) as log:
        assert open_partition(log).next_offset == END


# --- every bit of what decides


@dataclass(frozen=True)
class Original:
    """A log to be damaged: how it was left, and whether its records were synced."""

    path: Path
    synced: bool


YOUNG = 2_000_000_000_000
SMALL = {**QUIET, "segment_bytes": 700, "index_interval_bytes": 150, "segment_ms": -1}


@pytest.fixture
def originals(tmp_path: Path) -> list[Original]:
    """A closed log, and two that were killed: one of them synced."""
    found = []
    for name, synced in (("closed", True), ("killed", True), ("killed-unsynced", False)):
        log = commitlog.open(tmp_path / "live")
        partition = log.create_topic("t", config=SMALL).partition(0)
        for offset in range(6):
            partition.append(value_of(offset), timestamp=YOUNG + offset)
        partition.append_many(values(6, 9), timestamps=[YOUNG + offset for offset in range(6, 9)])
        for offset in range(9, END):
            partition.append(value_of(offset), timestamp=YOUNG + offset)
        if synced:
            partition.sync()
        if name == "closed":
            log.close()
            shutil.copytree(tmp_path / "live", tmp_path / name)
        else:
            crash(log, tmp_path / name)
        shutil.rmtree(tmp_path / "live")
        found.append(Original(tmp_path / name, synced))
    return found


def bits_that_decide(path: Path) -> list[tuple[Path, int, int]]:
    """Every bit of the headers of all batches, of the state page's words and slots, and of all indexes."""
    places = []
    for file in sorted((path / "t-0").iterdir()):
        if file.suffix == ".log":
            used = [batch.position + byte for batch in batches(file) for byte in range(64)]
        elif file.name == "state":
            used = [*range(112), *range(512, 584), *range(1024, 1096)]
        else:
            used = list(range(len(file.read_bytes().rstrip(b"\0")) + 1))
        places += [(file, byte, bit) for byte in used for bit in range(8)]
    return places


def test_a_log_whose_next_append_meets_damage_can_be_closed(originals: list[Original]) -> None:
    """A bit of the first batch of the active segment rotted after a clean shutdown."""
    path = originals[0].path
    active = sorted((path / "t-0").glob("*.log"))[-1]
    before = active.read_bytes()
    flipped(0, 0)(active)
    for _ in range(2):
        with commitlog.open(path) as log:
            partition = open_partition(log)
            for _ in range(2):
                with pytest.raises(CorruptionError, match=active.name):
                    partition.append(b"v")
    assert active.read_bytes()[8:] == before[8:]
    with commitlog.open(path, config=mode("salvage")) as log:
        assert open_partition(log).append(b"v") == END


@pytest.mark.parametrize("reading", ["r", "cut", "salvage"])
def test_no_rotten_bit_hides_loses_or_deletes_a_record(originals: list[Original], reading: str) -> None:
    rng = random.Random(reading)
    for original in originals:
        places = bits_that_decide(original.path)
        for file, byte, bit in places if SOAK else rng.sample(places, 40):
            copy = original.path.with_name("copy")
            shutil.copytree(original.path, copy)
            flipped(byte, bit)(copy / "t-0" / file.name)
            check_damaged(copy, original.synced, reading)
            shutil.rmtree(copy)


def check_damaged(path: Path, synced: bool, reading: str) -> None:
    try:
        log = commitlog.open(path, mode="r") if reading == "r" else commitlog.open(path, config=mode(reading))
        partition = open_partition(log)
    except CorruptionError:
        assert synced, "a crash explains what was not synced"
        assert reading != "salvage", "it opens whatever is damaged"
        return
    with log:
        gone = () if reading == "r" else partition.recovery.salvaged
        lost = {offset for one in gone for start, end in one.lost for offset in range(start, end)}
        assert len(lost) <= 3, "one batch"
        end = END if synced else partition.next_offset
        assert (partition.start_offset, partition.next_offset) == (0, end)
        found, problem = read_until_damage(partition)
        if problem is None:
            assert found == [offset for offset in range(end) if offset not in lost]
        else:
            assert (
                found
                == [offset for offset in range(len(found) + len(lost)) if offset not in lost][: len(found)]
            )
            assert not partition.verify().ok
        for offset in range(end):
            with contextlib.suppress(CorruptionError):
                late = partition.offset_for_timestamp(YOUNG + offset)
                assert late == next((one for one in range(offset, end) if one not in lost), None)
        if reading != "r":
            assert log.apply_retention(now_ms=YOUNG + 1_000) == 0
            assert partition.start_offset == 0
            try:
                assert partition.append(value_of(end)) == end
            except CorruptionError:  # after a clean shutdown files are opened by the first append
                assert problem is not None, "what is damaged for a writer is damaged for readers"
