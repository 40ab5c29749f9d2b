from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers import contents, copy_as_if_killed, fill, flip, names

import commitlog
from commitlog import CommitLog, CorruptionError, Partition, Segment
from commitlog.segment import companions


@pytest.fixture
def filled(log: CommitLog) -> Partition:
    """Thirty records in segments of a few, all synced."""
    partition = log.create_topic("t", config={"segment_bytes": 1_000, "index_interval_bytes": 200}).partition(
        0
    )
    fill(partition, 30)
    partition.sync()
    return partition


def test_a_sound_partition_verifies(filled: Partition) -> None:
    report = filled.verify()
    assert report.ok
    assert report.damage == ()
    assert (report.batches, report.records) == (30, 30)
    assert report.segments == len(filled.segments)
    assert report.bytes_checked == filled.size_bytes


def test_an_empty_partition_verifies(partition: Partition) -> None:
    report = partition.verify()
    assert report.ok
    assert report.records == 0


def test_every_damaged_byte_of_a_segment_is_found(filled: Partition) -> None:
    victim = filled.segments[1].path
    for position in range(16, os.path.getsize(victim), 7):
        flip(victim, position)
        (damage,) = [one for one in filled.verify().damage if one.path == victim]
        assert damage.position <= position < damage.end_position
        assert damage.reason
        flip(victim, position)
    assert filled.verify().ok


def test_damage_in_several_places_is_listed_place_by_place(filled: Partition) -> None:
    first, second = filled.segments[0], filled.segments[2]
    positions = [position for position, _ in Segment.open(first.path).headers()]
    flip(first.path, positions[1] + 75)
    flip(first.path, positions[4] + 75)
    flip(second.path, 75)
    report = filled.verify()
    assert [(damage.path, damage.position) for damage in report.damage] == [
        (first.path, positions[1]),
        (first.path, positions[4]),
        (second.path, 0),
    ]
    assert report.records == 27


@pytest.mark.parametrize("which", [0, 1])
def test_an_index_that_is_missing_or_not_true_is_listed(filled: Partition, which: int) -> None:
    index = companions(filled.segments[0].path)[which]
    raw = Path(index).read_bytes()
    Path(index).write_bytes(raw.replace(raw[16:24], b"\xff" * 8, 1))
    (damage,) = filled.verify().damage
    assert damage.path == index
    os.unlink(index)
    (damage,) = filled.verify().damage
    assert damage.path == index
    assert "missing" in damage.reason


def test_verifying_changes_nothing(filled: Partition) -> None:
    flip(filled.segments[1].path, 75)
    before = {name: (Path(filled.path) / name).read_bytes() for name in names(filled.path) if name != "state"}
    filled.verify()
    after = {name: (Path(filled.path) / name).read_bytes() for name in names(filled.path) if name != "state"}
    assert after == before


def test_repairing_a_sound_partition_changes_no_record(filled: Partition) -> None:
    whole = contents(filled)
    report = filled.repair()
    assert (report.salvaged, report.indexes_rebuilt) == ((), 0)
    assert contents(filled) == whole
    assert filled.append(b"next") == 30


def test_repair_keeps_every_sound_record_and_the_damaged_file(filled: Partition) -> None:
    whole = contents(filled)
    victim = filled.segments[1]
    damaged_bytes = bytearray(Path(victim.path).read_bytes())
    positions = [position for position, _ in Segment.open(victim.path).headers()]
    flip(victim.path, positions[2] + 75)
    damaged_bytes[positions[2] + 75] ^= 0xFF
    lost = victim.base_offset + 2
    with pytest.raises(CorruptionError):
        contents(filled)
    report = filled.repair()
    (salvage,) = report.salvaged
    assert salvage.path == victim.path
    assert salvage.lost == ((lost, lost + 1),)
    assert salvage.bytes_lost == positions[3] - positions[2]
    assert Path(salvage.kept_as).read_bytes() == damaged_bytes
    assert contents(filled) == [record for record in whole if record.offset != lost]
    assert filled.verify().ok
    assert filled.get(lost) is None
    assert filled.next_offset == 30


@pytest.mark.parametrize("number", [0, 3, -1])
def test_a_lost_range_at_the_start_middle_or_end_of_a_segment_is_told_right(
    filled: Partition, number: int
) -> None:
    victim = filled.segments[1]
    headers = list(Segment.open(victim.path).headers())
    position, header = headers[number]
    flip(victim.path, position + 75)
    (salvage,) = filled.repair().salvaged
    assert salvage.lost == ((header.base_offset, header.base_offset + 1),)


def test_damage_to_the_active_segment_is_repaired_and_offsets_go_on(filled: Partition) -> None:
    whole = contents(filled)
    active = filled.segments[-1]
    flip(active.path, 75)
    (salvage,) = filled.repair().salvaged
    assert salvage.lost == ((active.base_offset, active.base_offset + 1),)
    assert contents(filled) == [record for record in whole if record.offset != active.base_offset]
    assert filled.append(b"next") == 30


def test_a_segment_of_nothing_but_damage_becomes_empty(filled: Partition) -> None:
    whole = contents(filled)
    victim, after = filled.segments[1:3]
    Path(victim.path).write_bytes(b"\xee" * victim.size_bytes)
    (salvage,) = filled.repair().salvaged
    assert salvage.lost == ((victim.base_offset, after.base_offset),)
    kept = [one for one in whole if not victim.base_offset <= one.offset < after.base_offset]
    assert contents(filled) == kept
    assert filled.verify().ok


def test_false_indexes_are_rebuilt_by_repair(filled: Partition) -> None:
    whole = contents(filled)
    for segment in filled.segments[:2]:
        for index in companions(segment.path):
            Path(index).write_bytes(b"\xab" * 4_096)
    assert len(filled.verify().damage) == 4
    assert filled.repair().indexes_rebuilt == 4
    assert filled.verify().ok
    assert [filled.get(offset) for offset in range(30)] == whole
    assert [filled.offset_for_timestamp(record.timestamp) for record in whole] == list(range(30))


def test_a_repaired_partition_is_the_same_after_a_clean_and_an_unclean_stop(
    filled: Partition, log: CommitLog, tmp_path: Path
) -> None:
    flip(filled.segments[1].path, 75)
    fill(filled, 5)
    filled.repair()
    whole = contents(filled)
    killed = copy_as_if_killed(log, tmp_path / "killed")
    path = log.path
    log.close()
    for place in (killed, path):
        with commitlog.open(place) as again:
            partition = again.topic("t").partition(0)
            assert contents(partition) == whole
            assert partition.next_offset == 35
            assert partition.verify().ok


def test_unsynced_records_after_a_repaired_gap_survive_a_kill(log: CommitLog, tmp_path: Path) -> None:
    partition = log.create_topic("t", config={"flush_ms": -1}).partition(0)
    fill(partition, 10)
    partition.roll()
    fill(partition, 5)
    size = partition.segments[0].size_bytes // 10
    flip(partition.segments[0].path, 9 * size + 75)
    partition.repair()
    whole = contents(partition)
    assert [record.offset for record in whole] == [*range(9), *range(10, 15)]
    with commitlog.open(copy_as_if_killed(log, tmp_path / "copy")) as again:
        assert contents(again.topic("t").partition(0)) == whole


def test_repairing_twice_loses_nothing_more_and_keeps_both_damaged_files(filled: Partition) -> None:
    victim = filled.segments[1]
    positions = [position for position, _ in Segment.open(victim.path).headers()]
    flip(victim.path, positions[1] + 75)
    (first,) = filled.repair().salvaged
    flip(victim.path, positions[2] + 75)
    (second,) = filled.repair().salvaged
    assert first.kept_as != second.kept_as
    assert os.path.exists(first.kept_as)
    assert os.path.exists(second.kept_as)
    assert len(contents(filled)) == 28


def test_truncating_into_the_gap_at_a_segments_start_survives_a_kill(log: CommitLog, tmp_path: Path) -> None:
    partition = log.create_topic("t", config={"flush_ms": -1}).partition(0)
    partition.append_many([b"x"] * 10)
    partition.append_many([b"y"] * 10)
    partition.roll()
    partition.append(b"z")
    flip(partition.segments[0].path, 75)
    partition.repair()
    partition.truncate_from(5)
    assert (contents(partition), partition.next_offset) == ([], 5)
    with commitlog.open(copy_as_if_killed(log, tmp_path / "copy")) as again:
        assert again.topic("t").partition(0).append(b"next") == 5
