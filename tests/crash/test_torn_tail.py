"""What an unfinished append leaves at the end of a log is cut at open, counted, and never served."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from soak import SOAK, count

import commitlog
from commitlog.errors import TornTailError

from .disk import FakeDisk
from .logs import (
    QUIET,
    Damage,
    append_to,
    check_goes_on,
    check_records,
    crash,
    cut,
    garbage_from,
    mode,
    open_partition,
    segment_files,
    value_of,
    values,
    zeros_from,
)

pytestmark = pytest.mark.usefixtures("quick_disk")

DURABLE = 4  # records synced before the crash
TAIL = [4, 5, 8, 9, 11]  # where the unsynced batches start: single appends and batches of many
END = 11


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """A log of one segment whose last batches were never synced."""
    log = commitlog.open(tmp_path / "log")
    partition = log.create_topic("t", config={**QUIET, "index_interval_bytes": 100}).partition(0)
    append_to(partition, DURABLE)
    partition.sync()
    for start, end in itertools.pairwise(TAIL):
        partition.append_many(values(start, end))
    return crash(log, tmp_path / "crashed")


def batch_starts(path: Path) -> dict[int, int]:
    """The position of each batch in the first segment, by base_offset; the end of the last one too."""
    segment = commitlog.Segment.open(segment_files(path)[0])
    found = {batch.base_offset: batch.position for batch in segment.batches()}
    return {**found, END: segment.size_bytes}


def hurt(crashed: Path, damage: Damage) -> Path:
    """Damage a copy of the log."""
    copy = crashed.with_name("hurt")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(crashed, copy)
    damage(segment_files(copy)[0])
    count("damaged logs opened")
    return copy


def survivors(starts: dict[int, int], before: bytes, after: bytes) -> int:
    """The next_offset of a log of which only the bytes before the first difference are left."""
    pairs = zip(before, after, strict=False)
    same = next((place for place, (old, new) in enumerate(pairs) if old != new), len(after))
    return max(offset for offset, start in starts.items() if start <= same)


@pytest.mark.parametrize("kind", [cut, zeros_from, garbage_from])
def test_a_tail_torn_at_any_byte_is_cut_and_everything_before_it_stays(
    crashed: Path, kind: Callable[[int], Damage]
) -> None:
    starts = batch_starts(crashed)
    before = segment_files(crashed)[0].read_bytes()
    for position in range(starts[DURABLE], starts[END], 1 if SOAK or kind is cut else 7):
        path = hurt(crashed, kind(position))
        after = segment_files(path)[0].read_bytes()
        end = survivors(starts, before, after)
        with commitlog.open(path, mode="r") as log:
            check_records(open_partition(log), 0, end)
        with commitlog.open(path) as log:
            partition = open_partition(log)
            check_records(partition, 0, end)
            reserved = not any(after[starts[end] :])  # nobody can tell them from blocks reserved ahead
            assert partition.recovery.bytes_cut == (0 if reserved else len(after) - starts[end])
            assert not partition.recovery.clean
            assert partition.durable_offset == DURABLE


@pytest.mark.parametrize("kind", [cut, zeros_from, garbage_from])
def test_records_appended_after_a_torn_tail_survive_the_next_open(
    crashed: Path, kind: Callable[[int], Damage]
) -> None:
    starts = batch_starts(crashed)
    for position in range(starts[DURABLE], starts[END], 3 if SOAK else 31):
        check_goes_on(hurt(crashed, kind(position)))


@pytest.mark.parametrize("kind", [cut, zeros_from, garbage_from])
def test_damage_from_the_middle_of_batch_n_to_the_end_keeps_exactly_the_batches_before_n(
    crashed: Path, kind: Callable[[int], Damage]
) -> None:
    starts = batch_starts(crashed)
    for start, end in itertools.pairwise(TAIL):
        path = hurt(crashed, kind((starts[start] + starts[end]) // 2))
        with commitlog.open(path) as log:
            check_records(open_partition(log), 0, start)


def test_what_is_cut_off_is_off_the_disk_before_anything_can_be_appended(crashed: Path) -> None:
    """Or a power cut could bring it back, behind what was appended where the tear was."""
    starts = batch_starts(crashed)
    segment = segment_files(crashed)[0]
    garbage_from(starts[8])(segment)
    disk = FakeDisk(crashed)
    with disk.watching():
        log = commitlog.open(crashed)
        left: Any = disk.lost()
        log.close()
    assert len(left["t-0"][segment.name]) == starts[8]


def test_the_tail_is_cut_once(crashed: Path) -> None:
    path = hurt(crashed, cut(batch_starts(crashed)[END] - 1))
    with commitlog.open(path) as log:
        assert open_partition(log).recovery.bytes_cut > 0
    (path / "clean-shutdown").unlink()
    with commitlog.open(path) as log:
        assert open_partition(log).recovery.bytes_cut == 0


@pytest.mark.parametrize("kind", [cut, zeros_from, garbage_from])
def test_mode_absolute_refuses_a_torn_tail_and_touches_nothing(
    crashed: Path, kind: Callable[[int], Damage]
) -> None:
    starts = batch_starts(crashed)
    position = starts[9] + 20
    path = hurt(crashed, kind(position))
    segment = segment_files(path)[0]
    before = segment.read_bytes()
    with pytest.raises(TornTailError) as caught:
        commitlog.open(path, config=mode("absolute"))
    assert caught.value.args == (str(segment), starts[9], len(before) - starts[9])
    assert segment.read_bytes() == before
    with commitlog.open(path) as log:
        check_records(open_partition(log), 0, 9)


def test_mode_absolute_opens_a_log_without_a_torn_tail(crashed: Path) -> None:
    with commitlog.open(crashed, config=mode("absolute")) as log:
        check_records(open_partition(log), 0, END)


def test_mode_salvage_keeps_the_sound_batches_after_a_tear(crashed: Path) -> None:
    starts = batch_starts(crashed)

    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[starts[5] + 40] ^= 1
        path.write_bytes(data)

    path = hurt(crashed, damage)
    with commitlog.open(path, config=mode("salvage")) as log:
        partition = open_partition(log)
        assert [one.offset for one in partition.records()] == [0, 1, 2, 3, 4, 8, 9, 10]
        assert all(one.value == value_of(one.offset) for one in partition.records())
        (salvage,) = partition.recovery.salvaged
        assert salvage.lost == ((5, 8),)
        assert salvage.bytes_lost == starts[8] - starts[5]
        assert partition.append(value_of(END)) == END


def test_without_its_state_page_a_log_loses_nothing_but_its_torn_tail(crashed: Path) -> None:
    starts = batch_starts(crashed)
    path = hurt(crashed, cut(starts[9] + 1))
    (path / "t-0" / "state").unlink()
    with commitlog.open(path) as log:
        check_records(open_partition(log), 0, 9)
    check_goes_on(path)


@pytest.mark.parametrize("contents", [b"", b"x", bytes(4096), b"nonsense" * 512, b"nonsense" * 10])
def test_a_state_page_of_nonsense_is_made_anew(crashed: Path, contents: bytes) -> None:
    (crashed / "t-0" / "state").write_bytes(contents)
    with commitlog.open(crashed, mode="r") as log:
        check_records(open_partition(log), 0, END)
    with commitlog.open(crashed) as log:
        check_records(open_partition(log), 0, END)
    check_goes_on(crashed)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("contents", [b"", b"x" * 77, bytes(4096), b"nonsense" * 512, b"\xff" * 4096])
def test_indexes_of_nonsense_are_rebuilt(crashed: Path, suffix: str, contents: bytes) -> None:
    segment_files(crashed)[0].with_suffix(suffix).write_bytes(contents)
    with commitlog.open(crashed, mode="r") as log:
        assert [open_partition(log).get(offset).value for offset in range(END)] == values(0, END)
    with commitlog.open(crashed) as log:
        partition = open_partition(log)
        assert [partition.get(offset).value for offset in range(END)] == values(0, END)
        assert partition.verify().damage == ()
    check_goes_on(crashed)


# --- a tear with segments after it


@pytest.fixture
def many_segments(tmp_path: Path) -> Path:
    """A log of several segments, only the first two records of the first one synced."""
    log = commitlog.open(tmp_path / "log")
    partition = log.create_topic("t", config={**QUIET, "segment_bytes": 512}).partition(0)
    append_to(partition, 2)
    partition.sync()
    append_to(partition, 20)
    assert len(partition.segments) > 3
    return crash(log, tmp_path / "crashed")


def test_unsynced_segments_after_a_tear_are_dropped_and_do_not_come_back(many_segments: Path) -> None:
    second = segment_files(many_segments)[1]
    later = segment_files(many_segments)[2:]
    dropped = sum(one.stat().st_size for one in later)
    last = [batch.position for batch in commitlog.Segment.open(second).batches()][-1]
    cut(last + 3)(second)
    end = int(later[0].stem) - 1
    with commitlog.open(many_segments, mode="r") as log:
        check_records(open_partition(log), 0, end)
    with commitlog.open(many_segments) as log:
        partition = open_partition(log)
        check_records(partition, 0, end)
        assert partition.recovery.bytes_cut == 3 + dropped
        assert partition.recovery.segments_dropped == len(later)
        assert not any(one.exists() for one in later)
    check_goes_on(many_segments)


def test_mode_absolute_refuses_a_tear_before_the_last_segment(many_segments: Path) -> None:
    second = segment_files(many_segments)[1]
    cut(second.stat().st_size - 1)(second)
    with pytest.raises(TornTailError):
        commitlog.open(many_segments, config=mode("absolute"))


def test_an_unsynced_segment_that_is_missing_ends_the_log_there(many_segments: Path) -> None:
    found = segment_files(many_segments)
    found[2].unlink()
    with commitlog.open(many_segments) as log:
        check_records(open_partition(log), 0, int(found[2].stem))
    check_goes_on(many_segments)


def test_mode_salvage_keeps_the_segments_after_a_tear(many_segments: Path) -> None:
    found = segment_files(many_segments)
    last = [batch.position for batch in commitlog.Segment.open(found[1]).batches()][-1]
    cut(last + 3)(found[1])
    lost = int(found[2].stem) - 1
    with commitlog.open(many_segments, config=mode("salvage")) as log:
        partition = open_partition(log)
        assert [one.offset for one in partition.records()] == [*range(lost), *range(lost + 1, 20)]
        assert partition.append(value_of(20)) == 20
    with commitlog.open(many_segments) as log:
        partition = open_partition(log)
        assert [one.offset for one in partition.records()] == [*range(lost), *range(lost + 1, 21)]


# --- preallocated files


def test_blocks_reserved_ahead_are_no_torn_tail(tmp_path: Path) -> None:
    log = commitlog.open(tmp_path / "log")
    config = {**QUIET, "segment_bytes": 4096, "preallocate": True}
    partition = log.create_topic("t", config=config).partition(0)
    append_to(partition, 3)
    path = crash(log, tmp_path / "crashed")
    assert segment_files(path)[0].stat().st_size == 4096
    with commitlog.open(path, mode="r") as log:
        check_records(open_partition(log), 0, 3)
    with commitlog.open(path, config=mode("absolute")) as log:
        partition = open_partition(log)
        check_records(partition, 0, 3)
        assert partition.recovery.bytes_cut == 0
    check_goes_on(path)


def test_a_preallocated_segment_torn_at_any_byte_keeps_what_is_before(tmp_path: Path) -> None:
    log = commitlog.open(tmp_path / "log")
    config = {**QUIET, "segment_bytes": 2048, "preallocate": True}
    partition = log.create_topic("t", config=config).partition(0)
    append_to(partition, 5)
    crashed = crash(log, tmp_path / "crashed")
    segment = commitlog.Segment(str(segment_files(crashed)[0]), 0, partition.segments[0].size_bytes)
    starts = {batch.base_offset: batch.position for batch in segment.batches()} | {5: segment.size_bytes}
    before = segment_files(crashed)[0].read_bytes()
    for position in range(starts[3], starts[5], 1 if SOAK else 5):
        path = hurt(crashed, zeros_from(position))
        end = survivors(starts, before, segment_files(path)[0].read_bytes())
        with commitlog.open(path) as log:
            check_records(open_partition(log), 0, end)
        check_goes_on(path)
