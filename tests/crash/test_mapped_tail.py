"""Single records are stored into a mapped tail: what a kill, a power cut or a full disk makes of it."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from soak import SOAK, count

import commitlog
from commitlog import CommitLog, CorruptionError, Partition, files, segment_writer
from commitlog.errors import TornTailError

from . import children, zygote
from .disk import FakeDisk
from .logs import (
    MARKER,
    QUIET,
    append_to,
    check_goes_on,
    check_records,
    crash,
    flipped,
    mode,
    open_partition,
    overwrite,
    segment_files,
    value_of,
    values,
    zeros_from,
)

pytestmark = pytest.mark.usefixtures("quick_disk", "mapped_tail")

END = 40


def mapped(log: CommitLog, end: int = END, **config: object) -> Partition:
    """A partition of single records, most of them stored into a mapped tail."""
    partition = log.create_topic("t", config={**QUIET, "index_interval_bytes": 500, **config}).partition(0)
    append_to(partition, end)
    assert partition._state.writer.tail is not None
    return partition


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """What a killed writer leaves: records, and zeros behind them. Half of the records are synced."""
    log = commitlog.open(tmp_path / "log")
    partition = mapped(log, END // 2)
    partition.sync()
    append_to(partition, END)
    path = crash(log, tmp_path / "killed")
    assert segment_files(path)[0].stat().st_size > end_of(path)
    return path


def end_of(path: Path) -> int:
    return commitlog.Segment.open(segment_files(path)[0]).size_bytes


def starts(path: Path) -> dict[int, int]:
    return {one.base_offset: one.position for one in commitlog.Segment.open(segment_files(path)[0]).batches()}


# --- a kill


@pytest.mark.parametrize("name", ["cut", "absolute", "salvage"])
def test_zeros_behind_the_last_batch_are_no_torn_tail(killed: Path, name: str) -> None:
    with commitlog.open(killed, mode="r") as log:
        check_records(open_partition(log), 0, END)
        assert open_partition(log).verify().ok
    with commitlog.open(killed, config=mode(name)) as log:
        partition = open_partition(log)
        check_records(partition, 0, END)
        report = partition.recovery
        assert (report.clean, report.bytes_cut, report.salvaged) == (False, 0, ())
        assert partition.verify().ok
        assert segment_files(killed)[0].stat().st_size == partition.size_bytes
    check_goes_on(killed)


def test_zeros_are_no_torn_tail_without_a_state_page_either(killed: Path) -> None:
    (killed / "t-0" / "state").unlink()
    with commitlog.open(killed, config=mode("absolute")) as log:
        check_records(open_partition(log), 0, END)
    check_goes_on(killed)


def test_zeros_behind_a_sealed_segment_are_cut_too(killed: Path) -> None:
    """The cut of a segment that was sealed is lost in a power cut, the name of its successor is not."""
    (killed / "t-0" / f"{END:020d}.log").touch()
    with commitlog.open(killed, mode="r") as log:
        check_records(open_partition(log), 0, END)
    with commitlog.open(killed, config=mode("absolute")) as log:
        partition = open_partition(log)
        check_records(partition, 0, END)
        assert len(partition.segments) == 2
        assert partition.verify().ok
    check_goes_on(killed)


@pytest.mark.parametrize("back", range(1, 150, 1 if SOAK else 7))
def test_a_torn_batch_before_the_zeros_is_a_torn_tail(killed: Path, back: int) -> None:
    segment, places, position = segment_files(killed)[0], starts(killed), end_of(killed) - back
    left = max(offset for offset, start in places.items() if start <= position)
    before = segment.read_bytes()
    zeros_from(position)(segment)
    if segment.read_bytes() == before:  # zeros over padding
        left = END
    torn = left < END and position != places[left]  # of a whole batch nothing is left that could be missed
    if torn:
        with pytest.raises(TornTailError):
            commitlog.open(killed, config=mode("absolute"))
    with commitlog.open(killed, mode="r") as log:
        check_records(open_partition(log), 0, left)
    with commitlog.open(killed) as log:
        check_records(open_partition(log), 0, left)
        assert (open_partition(log).recovery.bytes_cut > 0) == torn
    check_goes_on(killed)


def test_a_lost_page_takes_what_follows_it_for_good(killed: Path) -> None:
    """Pages of a map reach the disk in any order: sound batches behind a hole must not come to life."""
    segment, start = segment_files(killed)[0], starts(killed)[30]
    overwrite(segment, start, bytes(starts(killed)[32] - start))
    with pytest.raises(TornTailError):
        commitlog.open(killed, config=mode("absolute"))
    with commitlog.open(killed) as log:
        partition = open_partition(log)
        check_records(partition, 0, 30)
        append_to(partition, 32)  # exactly as long as what was lost
        crashed = crash(log, killed.with_name("again"))
    with commitlog.open(crashed) as log:
        check_records(open_partition(log), 0, 32)


def test_zeros_where_records_were_synced_are_damage_and_nothing_is_touched(killed: Path) -> None:
    segment = segment_files(killed)[0]
    zeros_from(starts(killed)[END // 2 - 3])(segment)
    before = segment.read_bytes()
    for name in ("cut", "absolute"):
        with pytest.raises(CorruptionError):
            commitlog.open(killed, config=mode(name))
    assert segment.read_bytes() == before
    with commitlog.open(killed, config=mode("salvage")) as log:
        partition = open_partition(log)
        assert partition.next_offset == END // 2
        assert [one.offset for one in partition.records()] == list(range(END // 2 - 3))


def test_salvage_of_a_flipped_bit_keeps_what_is_before_the_zeros(killed: Path) -> None:
    flipped(starts(killed)[30] + 70, 3)(segment_files(killed)[0])
    with commitlog.open(killed, config=mode("salvage")) as log:
        partition = open_partition(log)
        assert [one.offset for one in partition.records()] == [*range(30), *range(31, END)]
        assert partition.recovery.salvaged[0].lost == ((30, 31),)
        assert partition.verify().ok


def test_a_killed_writer_of_single_records_loses_nothing(tmp_path: Path) -> None:
    """The real threshold counts in the child."""
    path, progress = tmp_path / "log", children.Progress(tmp_path / "progress")
    for seed in range(30 if SOAK else 4):
        child = zygote.start("children.write", path, tmp_path / "progress", "tail", seed)
        assert child.stdout.readline() == "ready\n", "the writer does not start"
        goal = progress.get("next") + 1_500 + 500 * seed
        children.until(lambda goal=goal: progress.get("next") > goal, "the child writes")  # type: ignore[misc]
        child.kill()
        child.wait()
        count("processes killed")
        written = progress.get("next")
        with commitlog.open(path) as log:  # a kill may come in the middle of a store, at a page's edge
            partition = open_partition(log)
            found = [children.read_value(one.value)[0] for one in partition.records()]
            assert found == list(range(partition.next_offset))
            assert partition.next_offset >= written
            assert partition.verify().ok


# --- how long the file is


def test_a_roll_and_a_close_give_the_file_its_true_size(tmp_path: Path) -> None:
    with commitlog.open(tmp_path / "log") as log:
        partition = mapped(log)
        first, size = segment_files(tmp_path / "log")[0], partition.size_bytes
        assert first.stat().st_size > size
        assert first.stat().st_blocks * 512 >= 64 * 1024
        partition.roll()
        assert first.stat().st_size == size
        append_to(partition, 2 * END)
    sizes = [segment.size_bytes for segment in partition.segments]
    assert [one.stat().st_size for one in segment_files(tmp_path / "log")] == sizes
    assert partition._state.writer.tail is None
    with commitlog.open(tmp_path / "log") as log:
        assert open_partition(log).recovery.clean
        check_records(open_partition(log), 0, 2 * END)


def test_the_tail_never_goes_past_segment_bytes(tmp_path: Path) -> None:
    with commitlog.open(tmp_path / "log") as log:
        partition = mapped(log, 200, segment_bytes=3_000)
        assert max(one.stat().st_size for one in segment_files(tmp_path / "log")) <= 3_000
        assert len(partition.segments) > 5
        check_records(partition, 0, 200)


def test_bulk_appends_reserve_nothing_and_go_through_a_mapped_tail(tmp_path: Path) -> None:
    with commitlog.open(tmp_path / "log") as log:
        partition = log.create_topic("t", config=QUIET).partition(0)
        for _ in range(20):
            partition.append_many(values(partition.next_offset, partition.next_offset + 500))
        assert segment_files(tmp_path / "log")[0].stat().st_size == partition.size_bytes
        for count in (3, 700, 2, 6_000):  # the last one goes past the end of the tail
            append_to(partition, partition.next_offset + 7)
            partition.append_many(values(partition.next_offset, partition.next_offset + count))
        append_to(partition, end := partition.next_offset + 9)
        check_records(partition, 0, end)
        path = crash(log, tmp_path / "killed")
    with commitlog.open(path, config=mode("absolute")) as log:
        check_records(open_partition(log), 0, end)


def test_small_batches_map_the_tail_as_single_records_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_writer, "_SINGLES", 32)
    with commitlog.open(tmp_path / "log") as log:
        partition = log.create_topic("t", config=QUIET).partition(0)
        for count in range(40):
            assert (partition._state.writer.tail is not None) == (count >= 32)
            partition.append_many(values(partition.next_offset, partition.next_offset + 5))
        check_records(partition, 0, 200)
        path = crash(log, tmp_path / "killed")
    with commitlog.open(path, config=mode("absolute")) as log:
        check_records(open_partition(log), 0, 200)


def test_a_preallocated_segment_is_mapped_and_cut_as_well(tmp_path: Path) -> None:
    log = commitlog.open(tmp_path / "log")
    partition = mapped(log, preallocate=True, segment_bytes=200_000)
    assert segment_files(tmp_path / "log")[0].stat().st_size == 200_000
    path = crash(log, tmp_path / "killed")
    assert segment_files(tmp_path / "log")[0].stat().st_size == partition.size_bytes
    with commitlog.open(path, config=mode("absolute")) as log:
        check_records(open_partition(log), 0, END)


def test_large_records_are_written_and_not_stored(tmp_path: Path) -> None:
    with commitlog.open(tmp_path / "log") as log:
        partition = log.create_topic("t", config=QUIET).partition(0)
        for _ in range(20):
            partition.append(bytes(5_000))
        assert partition._state.writer.tail is None


# --- no room, or no such thing


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EOPNOTSUPP, errno.ENODEV])
def test_without_room_to_reserve_appends_go_on_and_nobody_asks_again_before_the_roll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    asked: list[int] = []

    def refuse(fd: int, start: int, end: int) -> None:
        asked.append(start)
        raise OSError(code, os.strerror(code))

    with commitlog.open(tmp_path / "log") as log:
        partition = log.create_topic("t", config=QUIET).partition(0)
        with monkeypatch.context() as patch:
            patch.setattr(files, "map_tail", refuse)
            append_to(partition, 10)
            partition.append_many(values(10, 15))
            append_to(partition, 30)
            assert len(asked) == 1
            partition.roll()
            append_to(partition, 40)
            assert len(asked) == 2
        partition.roll()
        append_to(partition, 50)
        assert partition._state.writer.tail is not None
        check_records(partition, 0, 50)


@pytest.mark.parametrize(
    ("name", "instead"), [("_file_system", lambda device: "btrfs"), ("_IN_ORDER", {"another machine"})]
)
def test_where_a_store_is_not_as_safe_as_a_write_nothing_is_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, instead: object
) -> None:
    monkeypatch.setattr(files, name, instead)
    with commitlog.open(tmp_path / "log") as log:
        partition = log.create_topic("t", config=QUIET).partition(0)
        append_to(partition, END)
        assert partition._state.writer.tail is None
        assert segment_files(tmp_path / "log")[0].stat().st_size == partition.size_bytes
        check_records(partition, 0, END)


@pytest.mark.parametrize("seed", range(3))
def test_a_file_that_may_not_grow_is_a_full_disk_behind_a_mapped_tail(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "log"
    end = int(children.run("fill_a_mapped_tail", path, seed))
    with commitlog.open(path) as log:
        children.check(open_partition(log))
        assert open_partition(log).next_offset == end


# --- appends that fail, and power cuts


def fail_after_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bulk appends fail when all their bytes are in the file."""
    real = files.write_at

    def write_at(*args: object) -> None:
        real(*args)  # type: ignore[arg-type]
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(files, "write_at", write_at)


def test_a_failed_append_leaves_nothing_in_the_mapped_tail_that_could_come_to_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither after a kill nor after a power cut, when one byte-identical in length was appended since."""
    path = tmp_path / "log"
    with commitlog.open(path) as log:
        partition = mapped(log)
        partition.sync()
        disk = FakeDisk(path)
        with disk.watching():
            batches = partition.encode([value_of(END)]) + partition.encode([b"never acknowledged"])
            with monkeypatch.context() as patch:
                fail_after_writing(patch)
                with pytest.raises(OSError, match="broken"):
                    partition.append_encoded(batches)
            assert partition._state.writer.tail is None
            append_to(partition, END + 1)
            left = segment_files(path)[0].name
            for image in (disk.lost(), disk.kept(), *(disk.some(random.Random(seed)) for seed in range(20))):
                partition_files = image["t-0"]
                assert isinstance(partition_files, dict)
                contents = partition_files[left]
                assert isinstance(contents, bytes)
                assert b"never acknowledged" not in contents
            append_to(partition, END + 9)
            assert partition._state.writer.tail is not None
        check_records(partition, 0, END + 9)


@pytest.mark.parametrize("act", [Partition.roll, CommitLog.close], ids=["roll", "close"])
def test_a_cut_that_fails_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[object], None]
) -> None:
    path = tmp_path / "log"

    def broken(fd: int, size: int) -> None:
        raise OSError(errno.EIO, "broken")

    log = commitlog.open(path)
    partition = mapped(log)
    with monkeypatch.context() as patch:
        patch.setattr(files, "cut", broken)
        with pytest.raises(OSError, match="broken"):
            act(partition if act is Partition.roll else log)
    if act is Partition.roll:
        append_to(partition, END + 5)
        partition.roll()
        append_to(partition, END + 9)
        check_records(partition, 0, END + 9)
        log.close()
    else:
        assert not (path / MARKER).exists()
    with commitlog.open(path) as log:
        check_records(open_partition(log), 0, END + 9 if act is Partition.roll else END)
        assert open_partition(log).verify().ok


def test_a_sync_covers_what_was_stored_into_the_map(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with commitlog.open(path) as log:
        partition = mapped(log)
        partition.sync()
        disk = FakeDisk(path)
        with disk.watching():
            append_to(partition, END + 10)
            before = disk.lost()
            partition.sync()
            after = disk.lost()
    name = segment_files(path)[0].name
    images: list[Any] = [before, after]
    held = [b"<%d>" % (END + 9) in image["t-0"][name] for image in images]
    assert held == [False, True]


def test_only_many_single_records_without_a_sync_between_them_map_the_tail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_writer, "_SINGLES", 256)
    with commitlog.open(tmp_path / "log") as log:
        partition = log.create_topic("t", config=QUIET).partition(0)
        append_to(partition, 255)
        assert partition._state.writer.tail is None
        append_to(partition, 256)
        assert partition._state.writer.tail is not None
        partition.sync()
        assert partition._state.writer.tail is None
        append_to(partition, 511)
        assert partition._state.writer.tail is None
        append_to(partition, 512)
        assert partition._state.writer.tail is not None
        append_to(partition, 600)
        check_records(partition, 0, 600)
