from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
from helpers import encoded, flip, names, tree, write_segment

from commitlog import CorruptionError, TopicConfig, files
from commitlog.batches.encode import EncodedBatch
from commitlog.segment import Segment, companions, segment_path
from commitlog.segment_files import CleanedFile, finish_swaps, list_segments, swap_in
from commitlog.segment_writer import open_builder

CONFIG = TopicConfig(index_interval_bytes=0)


def batch(count: int, timestamp: int = 1_000) -> EncodedBatch:
    return encoded([b"v"] * count, timestamps=[timestamp] * count)


@pytest.fixture
def segments(tmp_path: Path) -> list[Segment]:
    """Four sealed segments of ten offsets each, with indexes."""
    found = []
    for base_offset in range(0, 40, 10):
        segment = Segment.open(write_segment(tmp_path, [batch(4), batch(6)], base_offset))
        open_builder(segment, CONFIG, trust_indexes=False).finish(segment.size_bytes, base_offset + 10)
        found.append(segment)
    return found


def cleaned(directory: Path, base_offset: int, end: int) -> CleanedFile:
    """A finished file with a batch of ten for each ten offsets in [base_offset, end)."""
    file = CleanedFile.create(segment_path(str(directory), base_offset), CONFIG)
    for offset in range(base_offset, end, 10):
        new = batch(10)
        file.write(new.stamped(offset, 0), new.size, offset, 1_000)
    file.finish(end)
    return file


def spans(segments: list[Segment]) -> list[tuple[int, int]]:
    return [(segment.base_offset, segment.find_next_offset()) for segment in segments]


def retire(segment: Segment) -> None:
    for path in (segment.path, *companions(segment.path)):
        os.replace(path, path + ".deleted")


def test_a_cleaned_file_is_out_of_sight(tmp_path: Path, segments: list[Segment]) -> None:
    file = cleaned(tmp_path, 10, 30)
    assert names(tmp_path, ".cleaned") == [
        f"{10:020d}.index.cleaned", f"{10:020d}.log.cleaned", f"{10:020d}.timeindex.cleaned",
    ]  # fmt: skip
    assert spans(list_segments(str(tmp_path), None)) == spans(segments)
    assert file.size_bytes == os.path.getsize(file.path + ".cleaned")


def test_a_discarded_file_leaves_nothing_and_may_be_discarded_twice(
    tmp_path: Path, segments: list[Segment]
) -> None:
    before = tree(tmp_path)
    file = CleanedFile.create(segments[1].path, CONFIG)
    file.write(batch(3).stamped(10, 0), batch(3).size, 10, 1_000)
    for _ in range(2):
        file.discard()
        assert tree(tmp_path) == before
    cleaned(tmp_path, 10, 30).discard()
    assert tree(tmp_path) == before


def test_what_an_earlier_pass_left_is_written_over(tmp_path: Path, segments: list[Segment]) -> None:
    (tmp_path / f"{10:020d}.log.cleaned").write_bytes(b"leftover" * 1_000)
    (tmp_path / f"{10:020d}.index.cleaned").write_bytes(b"leftover" * 1_000)
    new = swap_in(cleaned(tmp_path, 10, 30), segments[1:3], retire)
    assert spans([new]) == [(10, 30)]
    assert new.next_offset == 30


@pytest.mark.parametrize("failing", [1, 2])
def test_a_file_that_cannot_be_created_leaves_nothing(
    tmp_path: Path, segments: list[Segment], monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    gc.collect()  # what other tests left open would be closed any time
    before, handles = tree(tmp_path), len(os.listdir("/proc/self/fd"))
    left, real = failing, files.reserve

    def reserve(fd: int, size: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise OSError(28, "full")
        real(fd, size)

    monkeypatch.setattr(files, "reserve", reserve)
    with pytest.raises(OSError):
        CleanedFile.create(segments[0].path, CONFIG)
    assert (tree(tmp_path), len(os.listdir("/proc/self/fd"))) == (before, handles)


def test_a_swap_puts_one_segment_in_the_place_of_several(tmp_path: Path, segments: list[Segment]) -> None:
    new = swap_in(cleaned(tmp_path, 10, 30), segments[1:3], retire)
    found = list_segments(str(tmp_path), None)
    assert spans(found) == [(0, 10), (10, 30), (30, 40)]
    assert (new.path, new.size_bytes, new.inode) == (found[1].path, found[1].size_bytes, found[1].inode)
    assert new.max_timestamp == 1_000
    assert len(names(tmp_path, ".deleted")) == 6
    assert names(tmp_path, ".swap") == names(tmp_path, ".cleaned") == []
    assert names(tmp_path, ".index") == [f"{base:020d}.index" for base in (0, 10, 30)]


def swap_left_behind(directory: Path, base_offset: int, end: int) -> Path:
    """What a crash leaves after a cleaned file got its name and before anything was taken away."""
    file = cleaned(directory, base_offset, end)
    files.replace(file.path + ".cleaned", file.path + ".swap")
    return Path(file.path + ".swap")


def test_a_swap_file_stands_for_the_segments_in_its_range(tmp_path: Path, segments: list[Segment]) -> None:
    swap_left_behind(tmp_path, 10, 30)
    assert spans(list_segments(str(tmp_path), None)) == [(0, 10), (10, 30), (30, 40)]


@pytest.mark.parametrize("gone", [(), (10,), (20,), (10, 20)])
def test_an_interrupted_swap_is_finished(
    tmp_path: Path, segments: list[Segment], gone: tuple[int, ...]
) -> None:
    swap_left_behind(tmp_path, 10, 30)
    for segment in segments:
        if segment.base_offset in gone:
            retire(segment)
    for _ in range(2):
        finish_swaps(str(tmp_path))
        assert spans(list_segments(str(tmp_path), None)) == [(0, 10), (10, 30), (30, 40)]
        assert names(tmp_path, ".swap") == []
    assert f"{20:020d}.index" not in names(tmp_path)


def test_several_interrupted_swaps_are_finished(tmp_path: Path, segments: list[Segment]) -> None:
    swap_left_behind(tmp_path, 0, 20)
    swap_left_behind(tmp_path, 20, 40)
    finish_swaps(str(tmp_path))
    assert spans(list_segments(str(tmp_path), None)) == [(0, 20), (20, 40)]


@pytest.mark.parametrize("damage", ["flipped", "cut", "hole", "other offset"])
def test_nothing_is_deleted_on_the_word_of_a_damaged_swap_file(
    tmp_path: Path, segments: list[Segment], damage: str
) -> None:
    swap = swap_left_behind(tmp_path, 10, 40)
    raw = swap.read_bytes()
    size = batch(10).size
    swap.write_bytes(
        {
            "flipped": raw[: size + 70] + bytes([raw[size + 70] ^ 1]) + raw[size + 71 :],
            "cut": raw[:-8],
            "hole": raw[:size] + raw[2 * size :],
            "other offset": raw[size:],
        }[damage]
    )
    before = tree(tmp_path)
    with pytest.raises(CorruptionError):
        finish_swaps(str(tmp_path))
    with pytest.raises(CorruptionError):
        list_segments(str(tmp_path), None)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("retired", [0, 1, 2])
def test_salvage_gets_past_a_damaged_swap_file_and_keeps_it(
    tmp_path: Path, segments: list[Segment], retired: int
) -> None:
    file = cleaned(tmp_path, 10, 30)
    os.replace(file.path + ".cleaned", file.path + ".swap")
    for segment in segments[1 : 1 + retired]:
        retire(segment)
    flip(file.path + ".swap", 100)
    with pytest.raises(CorruptionError):
        finish_swaps(str(tmp_path))
    finish_swaps(str(tmp_path), salvage=True)
    if retired == 0:
        assert spans(list_segments(str(tmp_path), None)) == spans(segments)
        assert names(tmp_path, ".damaged") == [f"{10:020d}.log.swap.damaged"]
    else:
        left = [segment.base_offset for segment in list_segments(str(tmp_path), None)]
        assert left == ([0, 10, 20, 30] if retired == 1 else [0, 10, 30])
        assert names(tmp_path, ".swap") == []
