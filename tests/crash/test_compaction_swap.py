"""A kill at each step of the swap that ends a pass leaves all the old records, or the cleaned ones."""

from __future__ import annotations

from pathlib import Path

import pytest

import commitlog
from commitlog import Partition, Record
from commitlog.partitions.page import StatePage

from .logs import QUIET, crash, open_partition
from .windows import crashed_at

pytestmark = pytest.mark.usefixtures("quick_disk")

CONFIG = {**QUIET, "cleanup_policy": "compact", "segment_bytes": 1024, "index_interval_bytes": 100}
KEYS = 7
END = 60

# each of them is quoted from the source
STEPS = [
    "the copy is still .cleaned -> open() removes it, the old segments are whole",
    ".swap beside the old segments -> open() finishes the swap",
    "some of the old segments are gone -> open() finishes the swap",
    ".swap alone -> open() finishes the swap",
    ".swap beside its own indexes -> open() finishes the swap",
]


def filled(log: commitlog.CommitLog) -> Partition:
    """A partition of several segments, all sealed but for an empty one, that a pass will make one of."""
    partition: Partition = log.create_topic("t", config=CONFIG).partition(0)
    for number in range(END):
        value = None if number % 17 == 5 else b"%d" % number * (1 + number % 9)
        partition.append(value, key=b"k%d" % (number % KEYS), timestamp=1_000 + number)
    partition.roll()
    assert len(partition.segments) > 4
    log.topic("t").alter_config(segment_bytes=1 << 20)
    return partition


def state_of(records: list[Record]) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in records}


def check(path: Path, before: list[Record]) -> int:
    """Whatever is left says the same of every key, in records as they were; returns how many there are."""
    found = []
    for mode in ("r", "w", "w"):
        with commitlog.open(path, mode=mode) as log:
            partition = open_partition(log)
            records = list(partition.records())
            assert (partition.start_offset, partition.next_offset) == (0, END)
            assert set(records) <= set(before)
            assert [one.offset for one in records] == sorted({one.offset for one in records})
            assert state_of(records) == state_of(before)
            assert [partition.get(one.offset) for one in records] == records
            assert mode == "r" or partition.verify().damage == ()
            found.append(len(records))
    assert len(set(found)) == 1, "a reader sees what the next writer will"
    names = [one.name for one in (path / "t-0").iterdir()]
    assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]
    return found[0]


@pytest.mark.parametrize("step", STEPS)
def test_kill_in_a_swap(tmp_path: Path, step: str) -> None:
    """crash: the copy is still .cleaned -> open() removes it, the old segments are whole
    crash: .swap beside the old segments -> open() finishes the swap
    crash: some of the old segments are gone -> open() finishes the swap
    crash: .swap alone -> open() finishes the swap
    crash: .swap beside its own indexes -> open() finishes the swap
    """
    with commitlog.open(tmp_path / "log") as log:
        partition = filled(log)
        before = list(partition.records())
        with crashed_at(step, tmp_path / "log", tmp_path / "left"):
            partition.compact()
        after = len(list(partition.records()))
        assert after < len(before)
    left = check(tmp_path / "left", before)
    assert left == (len(before) if ".cleaned" in step else after)


@pytest.mark.parametrize("step", STEPS[1:])
def test_kill_while_a_killed_swap_is_finished(tmp_path: Path, step: str) -> None:
    """crash: .swap alone, once more -> the next open() finishes it"""
    with commitlog.open(tmp_path / "log") as log:
        partition = filled(log)
        before = list(partition.records())
        with crashed_at(step, tmp_path / "log", tmp_path / "left"):
            partition.compact()
        after = len(list(partition.records()))
    window = ".swap alone, once more -> the next open() finishes it"
    with crashed_at(window, tmp_path / "left", tmp_path / "left again"):
        commitlog.open(tmp_path / "left").close()
    assert check(tmp_path / "left again", before) == after


@pytest.mark.parametrize("step", STEPS)
def test_kill_in_a_later_swap_of_several(tmp_path: Path, step: str) -> None:
    """A pass with nothing to put together swaps each segment by itself: some are done, one is not."""
    with commitlog.open(tmp_path / "log") as log:
        partition = filled(log)
        before = list(partition.records())
        log.topic("t").alter_config(segment_bytes=512)
        with crashed_at(step, tmp_path / "log", tmp_path / "left", hit=2):
            partition.compact()
    check(tmp_path / "left", before)


def test_a_damaged_swap_file_is_refused_and_nothing_is_deleted_on_its_word(tmp_path: Path) -> None:
    log = commitlog.open(tmp_path / "log")
    partition = filled(log)
    with crashed_at(STEPS[1], tmp_path / "log", tmp_path / "left"):
        partition.compact()
    log.close()
    (swap,) = (tmp_path / "left" / "t-0").glob("*.swap")
    whole = swap.read_bytes()
    swap.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    before = sorted(one.name for one in (tmp_path / "left" / "t-0").iterdir())
    with pytest.raises(commitlog.CorruptionError):
        commitlog.open(tmp_path / "left")
    assert sorted(one.name for one in (tmp_path / "left" / "t-0").iterdir()) == before


def test_a_log_killed_after_a_pass_has_what_the_pass_left(tmp_path: Path) -> None:
    log = commitlog.open(tmp_path / "log")
    partition = filled(log)
    before = list(partition.records())
    report = partition.compact()
    after = crash(log, tmp_path / "left")
    assert check(after, before) == report.records_after
    with commitlog.open(after) as again:
        assert open_partition(again).clean_offset == END


@pytest.mark.parametrize("step", STEPS[1:])
def test_a_reader_goes_on_while_the_next_writer_finishes_a_killed_swap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Between the end of the swap and the end of recovery no writer tells what the segments are."""
    with commitlog.open(tmp_path / "log") as log:
        partition = filled(log)
        with crashed_at(step, tmp_path / "log", tmp_path / "left"):
            partition.compact()
        after = list(partition.records())
    seen: list[list[Record]] = []
    real = StatePage.create.__func__  # type: ignore[attr-defined]

    def create(directory: str) -> StatePage:
        seen.append(list(following.records()))
        page: StatePage = real(StatePage, directory)
        return page

    with commitlog.open(tmp_path / "left", mode="r") as reading:
        following = open_partition(reading)
        seen.append(list(following.records()))
        monkeypatch.setattr(StatePage, "create", create)
        with commitlog.open(tmp_path / "left"):
            seen.append(list(following.records()))
        seen.append(list(following.records()))
    assert seen == [after] * 4
