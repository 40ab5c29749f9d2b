from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers import flip

from commitlog.index import Index, IndexEntry, OffsetIndex, TimeIndex

LIMIT = 1 << 20


@pytest.fixture
def offsets(tmp_path: Path) -> OffsetIndex:
    return OffsetIndex.open_writable(str(tmp_path / "00000000000000000100.index"), LIMIT)


@pytest.fixture
def times(tmp_path: Path) -> TimeIndex:
    return TimeIndex.open_writable(str(tmp_path / "00000000000000000100.timeindex"), LIMIT)


@pytest.fixture(params=[OffsetIndex, TimeIndex])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def path_of(kind: type[Index], directory: Path) -> str:
    return str(directory / f"00000000000000000100{kind.suffix}")


def put(index: Any, number: int) -> None:
    """Append the entry with this number to either kind of index."""
    entry = (100 + number, 800 * number)
    index.append(*entry) if isinstance(index, OffsetIndex) else index.append(1_000 + number, *entry)


def test_looking_up_in_an_empty_index_gives_the_start_of_the_segment(
    offsets: OffsetIndex, times: TimeIndex
) -> None:
    for wanted in (0, 99, 100, 10**12):
        assert offsets.lookup(wanted) == IndexEntry(100, 0)
        assert times.lookup(wanted) == IndexEntry(100, 0)
    assert offsets.last() is None
    assert len(times) == 0


def test_looking_up_an_offset_gives_the_greatest_entry_at_or_below_it(offsets: OffsetIndex) -> None:
    offsets.append(110, 800)
    offsets.append(150, 1_600)
    offsets.append(151, 2_400)
    expected = {
        99: (100, 0), 100: (100, 0), 109: (100, 0), 110: (110, 800), 149: (110, 800),
        150: (150, 1_600), 151: (151, 2_400), 10**15: (151, 2_400),
    }  # fmt: skip
    for wanted, (offset, position) in expected.items():
        assert offsets.lookup(wanted) == IndexEntry(offset, position)


def test_looking_up_a_time_gives_the_greatest_entry_at_or_below_it(times: TimeIndex) -> None:
    times.append(1_000, 110, 800)
    times.append(2_000, 150, 1_600)
    expected = {
        0: (100, 0, None), 999: (100, 0, None), 1_000: (110, 800, 1_000), 1_999: (110, 800, 1_000),
        2_000: (150, 1_600, 2_000), 10**15: (150, 1_600, 2_000),
    }  # fmt: skip
    for wanted, entry in expected.items():
        assert times.lookup(wanted) == IndexEntry(*entry)


@pytest.mark.parametrize(
    ("offset", "position"), [(110, 1_600), (109, 1_600), (111, 800), (111, 792), (50, 1_600)]
)
def test_an_entry_that_is_not_after_the_last_one_is_refused(
    offsets: OffsetIndex, offset: int, position: int
) -> None:
    offsets.append(110, 800)
    with pytest.raises(ValueError, match=r"00000000000000000100\.index"):
        offsets.append(offset, position)
    assert len(offsets) == 1
    assert offsets.last() == IndexEntry(110, 800)


@pytest.mark.parametrize(
    "entry", [(1_000, 111, 1_600), (999, 111, 1_600), (1_001, 110, 1_600), (1_001, 111, 800)]
)
def test_neither_timestamps_nor_offsets_of_a_time_index_go_down(
    times: TimeIndex, entry: tuple[int, int, int]
) -> None:
    times.append(1_000, 110, 800)
    with pytest.raises(ValueError, match="timeindex"):
        times.append(*entry)
    assert len(times) == 1


def test_a_full_index_takes_no_more(tmp_path: Path, kind: Any) -> None:
    index = kind.open_writable(path_of(kind, tmp_path), 64)
    capacity = 64 // (8 * kind.words)
    for number in range(1, capacity + 1):
        assert index.has_room(1)
        put(index, number)
    assert not index.has_room(1)
    with pytest.raises(ValueError, match="full"):
        put(index, capacity + 1)
    assert len(index) == capacity


def test_an_index_grows_far_beyond_its_first_page(tmp_path: Path, kind: Any) -> None:
    index = kind.open_writable(path_of(kind, tmp_path), LIMIT)
    for number in range(1, 5_000):
        put(index, number)
    assert len(index) == 4_999
    assert [index[number].offset for number in range(4_999)] == list(range(101, 5_100))
    assert kind.open(index.path)[4_998] == index[4_998]


@pytest.mark.parametrize("ask", ["lookup", "places", "in_order", "last"])
def test_a_reader_that_opened_an_index_while_it_was_small_finds_what_came_since(
    tmp_path: Path, kind: Any, ask: str
) -> None:
    writer = kind.open_writable(path_of(kind, tmp_path), LIMIT)
    put(writer, 1)
    reader = kind.open(path_of(kind, tmp_path))
    for number in range(2, 2_001):
        put(writer, number)
    if ask == "lookup":
        assert reader.lookup(10**12)[:2] == (2_100, 1_600_000)
    elif ask == "places":
        assert [len(column) for column in reader.places()] == [2_000, 2_000]
    elif ask == "in_order":
        writer._cells[writer.words * 1_900 - 1] -= 1
        assert not reader.in_order()
    else:
        assert reader.last()[:2] == (2_100, 1_600_000)


def test_an_index_in_memory_grows_too_and_writes_nothing(tmp_path: Path, kind: Any) -> None:
    index = kind.in_memory(path_of(kind, tmp_path))
    for number in range(1, 2_000):
        put(index, number)
    assert [index[number].position for number in range(1_999)] == list(range(800, 800 * 2_000, 800))
    assert list(tmp_path.iterdir()) == []


def test_a_reopened_index_has_the_same_entries_and_goes_on(tmp_path: Path, kind: Any) -> None:
    path = path_of(kind, tmp_path)
    index = kind.open_writable(path, LIMIT)
    for number in range(1, 10):
        put(index, number)
    again = kind.open_writable(path, LIMIT)
    assert [again[number] for number in range(len(again))] == [index[number] for number in range(9)]
    put(again, 10)
    assert len(kind.open(path)) == 10


def test_a_reader_sees_entries_that_are_appended_after_it_opened(tmp_path: Path, kind: Any) -> None:
    path = path_of(kind, tmp_path)
    index = kind.open_writable(path, LIMIT)
    reader = kind.open(path)
    for number in range(1, 1_500):
        put(index, number)
        if number % 100 == 0:
            assert reader.last() == index.last()
    assert len(reader) == 1_499


def test_an_index_is_longer_than_its_entries_but_the_padding_does_not_count(
    tmp_path: Path, kind: Any
) -> None:
    path = path_of(kind, tmp_path)
    put(kind.open_writable(path, LIMIT), 1)
    assert Path(path).stat().st_size >= 4_096
    assert len(kind.open(path)) == 1


def test_a_page_of_zeros_holds_no_entries(tmp_path: Path, kind: Any) -> None:
    path = path_of(kind, tmp_path)
    Path(path).write_bytes(bytes(8_192))
    assert len(kind.open(path)) == 0
    assert kind.open(path).lookup(10**9) == IndexEntry(100, 0)


def test_an_empty_file_holds_no_entries(tmp_path: Path, kind: Any) -> None:
    path = path_of(kind, tmp_path)
    Path(path).touch()
    assert len(kind.open(path)) == 0
    assert kind.open(path).lookup(10**9) == IndexEntry(100, 0)
    index = kind.open_writable(path, LIMIT)
    put(index, 1)
    assert len(index) == 1


def test_a_missing_index_is_said_to_be_missing(tmp_path: Path, kind: Any) -> None:
    with pytest.raises(FileNotFoundError):
        kind.open(path_of(kind, tmp_path))


@pytest.mark.parametrize("size", [1, 7, 9, 15, 17, 4_095, 4_097, 5_003])
def test_a_file_that_is_no_whole_number_of_entries_long_can_be_read_and_written(
    tmp_path: Path, kind: Any, size: int
) -> None:
    path = path_of(kind, tmp_path)
    Path(path).write_bytes(bytes(size))
    assert len(kind.open(path)) == 0
    index = kind.open_writable(path, LIMIT)
    for number in range(1, 700):
        put(index, number)
    assert [index[number].offset for number in range(699)] == list(range(101, 800))
    assert len(kind.open(path)) == 699


def test_truncating_after_the_end_changes_nothing(tmp_path: Path, kind: Any) -> None:
    index = kind.open_writable(path_of(kind, tmp_path), LIMIT)
    index.truncate(0)
    for number in range(1, 6):
        put(index, number)
    before = [index[number] for number in range(5)]
    index.truncate(800 * 5 + 1)
    index.truncate(10**9)
    assert [index[number] for number in range(len(index))] == before


def test_truncating_at_an_entry_drops_it_and_it_can_be_appended_again(tmp_path: Path, kind: Any) -> None:
    index = kind.open_writable(path_of(kind, tmp_path), LIMIT)
    for number in range(1, 6):
        put(index, number)
    index.truncate(800 * 3)
    assert len(index) == 2
    assert index.last().position == 1_600
    assert len(kind.open(index.path)) == 2
    put(index, 3)
    assert index.last().position == 2_400
    index.truncate(0)
    assert len(index) == 0
    put(index, 5)
    assert [entry.offset for entry in (index[0],)] == [105]


def test_offsets_far_above_the_base_are_kept_exactly(offsets: OffsetIndex) -> None:
    offsets.append(100 + 0xFFFF_FFFF, 0xFFFF_FFF8)
    assert offsets.lookup(2**62) == IndexEntry(100 + 0xFFFF_FFFF, 0xFFFF_FFF8)
    assert offsets.lookup(100 + 0xFFFF_FFFE) == IndexEntry(100, 0)


def test_the_latest_timestamp_there_is_is_kept_exactly(times: TimeIndex) -> None:
    times.append(2**63 - 1, 101, 800)
    assert times.lookup(2**63 - 1).timestamp == 2**63 - 1
    assert times.lookup(2**63 - 2) == IndexEntry(100, 0)


def word(number: int) -> bytes:
    """How offset and position of the entry with this number stand in the file."""
    return (number << 32 | 800 * number).to_bytes(8, "little")


def exchange(path: str, one: bytes, other: bytes) -> None:
    raw = Path(path).read_bytes()
    assert raw.count(one) == 1
    assert raw.count(other) == 1
    Path(path).write_bytes(raw.replace(one, b"<-here->").replace(other, one).replace(b"<-here->", other))


def test_an_index_knows_when_its_entries_are_out_of_order(tmp_path: Path, kind: Any) -> None:
    path = path_of(kind, tmp_path)
    index = kind.open_writable(path, LIMIT)
    for number in range(1, 9):
        put(index, number)
    assert kind.open(path).in_order()
    exchange(path, word(3), word(4))
    assert not kind.open(path).in_order()


def test_a_time_index_knows_when_its_timestamps_go_down(tmp_path: Path) -> None:
    path = path_of(TimeIndex, tmp_path)
    index = TimeIndex.open_writable(path, LIMIT)
    for number in range(1, 9):
        put(index, number)
    exchange(path, (1_003).to_bytes(8, "little"), (1_004).to_bytes(8, "little"))
    assert not TimeIndex.open(path).in_order()


def test_a_seal_holds_as_long_as_nothing_changes(tmp_path: Path, kind: Any) -> None:
    path = path_of(kind, tmp_path)
    index = kind.open_writable(path, LIMIT)
    for number in range(1, 9):
        put(index, number)
    assert not index.seal_holds(8_000)
    index.seal(8_000, 70)
    assert index.seal_holds(8_000)
    assert kind.open(path).seal_holds(8_000)
    assert not kind.open(path).seal_holds(8_008)
    assert not kind.open(path).seal_holds(0)


def test_a_seal_is_broken_by_any_change_of_an_entry(tmp_path: Path, kind: Any) -> None:
    path = path_of(kind, tmp_path)
    index = kind.open_writable(path, LIMIT)
    for number in range(1, 5):
        put(index, number)
    index.seal(8_000, 70)
    for position in range(16 + 4 * 8 * kind.words):
        flip(path, position, 1)
        assert not kind.open(path).seal_holds(8_000), position
        flip(path, position, 1)
    assert kind.open(path).seal_holds(8_000)


def test_an_index_that_is_unsealed_to_be_appended_to_has_no_seal(tmp_path: Path, kind: Any) -> None:
    path = path_of(kind, tmp_path)
    index = kind.open_writable(path, LIMIT)
    put(index, 1)
    index.seal(1_600, 70)
    index.unseal()
    assert not index.seal_holds(1_600)
    put(index, 2)
    index.seal(2_400, 70)
    assert kind.open(path).seal_holds(2_400)


def test_an_empty_index_can_be_sealed_but_zeros_are_no_seal(tmp_path: Path, kind: Any) -> None:
    path = path_of(kind, tmp_path)
    index = kind.open_writable(path, LIMIT)
    assert not index.seal_holds(88)
    index.seal(88, 70)
    assert kind.open(path).seal_holds(88)


def test_a_position_that_no_batch_can_have_is_out_of_order(tmp_path: Path) -> None:
    index = OffsetIndex.open_writable(path_of(OffsetIndex, tmp_path), LIMIT)
    index.append(101, 801)
    assert not index.in_order()


def test_an_entry_that_is_not_there_is_an_index_error(kind: Any, tmp_path: Path) -> None:
    index = kind.open_writable(path_of(kind, tmp_path), LIMIT)
    for number in (0, -1, 1):
        with pytest.raises(IndexError, match="entries"):
            index[number]
    put(index, 1)
    assert index[0].offset == 101
    with pytest.raises(IndexError):
        index[1]
