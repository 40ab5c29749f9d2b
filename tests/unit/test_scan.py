from __future__ import annotations

from pathlib import Path

import pytest
from helpers import encoded, stored, write_segment

from commitlog import CorruptionError, Segment
from commitlog.batches.scan import check_batches, only_zeros, without_reserved


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Three batches; the value of the last one ends in zeros."""
    values = [b"first" * 200_000, b"second" * 150_000, b"third" + bytes(100)]
    return Path(write_segment(tmp_path, [encoded([value]) for value in values]))


def add(path: Path, data: bytes) -> int:
    """Put something behind the batches; returns where it begins."""
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(data)
    return size


def test_only_zeros_are_only_zeros(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc" + bytes(3_000_000) + b"d")
    assert only_zeros(str(path), 3, 3_000_003)
    assert not only_zeros(str(path), 2, 3_000_003)
    assert not only_zeros(str(path), 3, 3_000_004)
    assert only_zeros(str(path), 7, 7)
    path.write_bytes(b"abc")  # cut meanwhile
    assert only_zeros(str(path), 3, 3_000_003)


def test_a_batch_that_ends_in_zeros_is_whole(path: Path) -> None:
    segment = Segment.open(path)
    assert segment.size_bytes == path.stat().st_size
    assert len(list(segment.batches())) == 3


@pytest.mark.parametrize("zeros", [8, 64, 100, 4096, 3_000_000])
def test_a_segment_ends_before_its_reserved_blocks(path: Path, zeros: int) -> None:
    size = add(path, bytes(zeros))
    segment = Segment.open(path)
    assert segment.size_bytes == size
    assert [one.base_offset for one in segment.batches()] == [0, 1, 2]
    assert len(list(segment.headers())) == 3
    assert segment.next_offset == 3


def test_a_file_of_zeros_is_an_empty_segment(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000007.log"
    path.write_bytes(bytes(10_000))
    assert Segment.open(path).size_bytes == 0
    assert list(Segment.open(path).batches()) == []


def test_zeros_before_anything_else_are_damage(path: Path) -> None:
    size = add(path, bytes(1000) + stored(encoded([b"behind a hole"]), 3) + bytes(1000))
    segment = Segment.open(path)
    with pytest.raises(CorruptionError) as caught:
        list(segment.batches())
    assert caught.value.position == size


def test_a_torn_batch_before_zeros_is_damage(path: Path) -> None:
    size = add(path, stored(encoded([b"torn" * 30]), 3)[:-40] + bytes(1000))
    with pytest.raises(CorruptionError) as caught:
        list(Segment.open(path).batches())
    assert caught.value.position == size


def test_a_batch_cut_off_in_its_zeros_is_damage(path: Path) -> None:
    size = path.stat().st_size
    assert without_reserved(str(path), size) == size
    with path.open("r+b") as file:
        file.truncate(size - 16)
    with pytest.raises(CorruptionError, match="cut off"):
        list(Segment.open(path).batches())


# --- checking many batches


@pytest.mark.parametrize("count", [1, 3, 500])
def test_batches_that_do_not_start_at_the_expected_offset_are_damage_at_their_start(
    tmp_path: Path, count: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"".join(stored(encoded([b"v"]), 5 + number) for number in range(count)))
    checked = check_batches(str(path), 0, path.stat().st_size, 3)
    assert (checked.next_offset, checked.max_timestamp) == (3, -1)
    assert checked.damage is not None
    assert (checked.damage.position, "offset 5 where 3" in str(checked.damage)) == (0, True)
    assert check_batches(str(path), 0, path.stat().st_size, 5) == (5 + count, None, 1_000)


@pytest.mark.parametrize("times", [[900, 5, 7], [5, 900, 7], [5, 7, 900], [900]])
def test_the_latest_timestamp_is_that_of_any_batch(tmp_path: Path, times: list[int]) -> None:
    path = tmp_path / "file"
    batches = [encoded([b"v"], timestamps=[time]) for time in times]
    path.write_bytes(b"".join(stored(one, number) for number, one in enumerate(batches)))
    assert check_batches(str(path), 0, path.stat().st_size, 0).max_timestamp == 900


@pytest.mark.parametrize("bad", [0, 1, 250, 499])
def test_the_first_damaged_batch_is_named_and_what_is_before_it_counts(tmp_path: Path, bad: int) -> None:
    path = tmp_path / "file"
    pieces = [stored(encoded([b"v" * (number % 7)]), number) for number in range(500)]
    start = sum(map(len, pieces[:bad]))
    raw = bytearray(b"".join(pieces))
    raw[start + 66] ^= 1
    path.write_bytes(raw)
    checked = check_batches(str(path), 0, len(raw), 0)
    assert checked.next_offset == bad
    assert checked.damage is not None
    assert checked.damage.position == start
