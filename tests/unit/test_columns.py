from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from commitlog import InvalidRecordError
from commitlog.batches.columns import (
    ALL_NULL,
    BITMAP,
    CONSTANT,
    NO_NULLS,
    U8,
    U16,
    U32,
    U64,
    BytesColumn,
    Ints,
    Strings,
    as_int64,
    narrow,
    narrow_lengths,
    pack_bytes,
    padded,
    widened,
)
from commitlog.batches.columns import DTYPES as FORMS


def read_back(column: BytesColumn, count: int) -> Strings:
    lengths, nulls, bitmap, blob = column
    stored = None if lengths.form == CONSTANT else np.frombuffer(lengths.data, FORMS[lengths.form], count)
    ints = Ints(count, lengths.constant, stored)
    return Strings(ints, nulls, memoryview(bitmap) if nulls == BITMAP else None, memoryview(blob))


@pytest.mark.parametrize(("size", "expected"), [(0, 0), (1, 8), (7, 8), (8, 8), (9, 16)])
def test_everything_is_padded_to_eight_bytes(size: int, expected: int) -> None:
    assert padded(size) == expected


@pytest.mark.parametrize(
    ("values", "form", "size"),
    [
        ([], CONSTANT, 0),
        ([7, 7, 7], CONSTANT, 0),
        ([0, 255], U8, 2),
        ([0, 256], U16, 4),
        ([0, 65_535], U16, 4),
        ([0, 65_536], U32, 8),
        ([0, 2**32 - 1], U32, 8),
        ([0, 2**32], U64, 16),
        ([0, 2**63 - 1], U64, 16),
    ],
)
def test_integers_are_stored_at_their_narrowest_width(values: list[int], form: int, size: int) -> None:
    column = narrow(np.array(values, np.int64))
    assert column.form == form
    assert len(column.data) == size
    assert widened(column, len(values)).tolist() == values


@pytest.mark.parametrize(
    ("lengths", "form"),
    [([3, 3], CONSTANT), ([0, 255], U8), ([0, 256], U16), ([70_000, 1], U32), ([], CONSTANT)],
)
def test_lengths_are_stored_at_their_narrowest_width(lengths: list[int], form: int) -> None:
    column = narrow_lengths([bytes(length) for length in lengths])
    assert column.form == form
    assert widened(column, len(lengths)).tolist() == lengths


@pytest.mark.parametrize(
    ("items", "nulls"),
    [
        ([b"a", b"bc", b""], NO_NULLS),
        ([b"", b""], NO_NULLS),
        ([None, None], ALL_NULL),
        ([None, b""], BITMAP),
        ([b"", None, b"long" * 100, None], BITMAP),
        ([b"same", b"size", b"each"], NO_NULLS),
        ([b"same", None, b"each"], BITMAP),
        ([b"x"] * 9 + [None], BITMAP),
    ],
)
def test_byte_strings_come_back_whole_and_by_ranges(items: list[bytes | None], nulls: int) -> None:
    column = pack_bytes(items, "value")
    assert column.nulls == nulls
    strings = read_back(column, len(items))
    assert strings.tolist(0, len(items)) == items
    assert strings.lengths_or_minus_one().tolist() == [-1 if one is None else len(one) for one in items]
    for start in range(len(items) + 1):
        for end in range(start, len(items) + 1):
            assert strings.tolist(start, end) == items[start:end]
    assert [strings.item(row) for row in range(len(items))] == items


def test_anything_bytes_like_is_taken() -> None:
    wide = np.array([1, 2], np.uint32).data.cast("B").cast("I")
    items: list[Any] = [b"a", bytearray(b"bc"), memoryview(b"def"), wide, memoryview(b"")]
    expected = [b"a", b"bc", b"def", bytes(wide), b""]
    assert read_back(pack_bytes(items, "value"), 5).tolist(0, 5) == expected
    assert read_back(pack_bytes([*items, None], "value"), 6).tolist(0, 6) == [*expected, None]


@pytest.mark.parametrize("others", [[], [b"x"], [None]])
def test_a_memoryview_with_steps_is_taken_as_the_bytes_it_shows(others: list[Any]) -> None:
    items = [memoryview(b"a-b-c-")[::2], *others]
    assert read_back(pack_bytes(items, "value"), len(items)).tolist(0, 1) == [b"abc"]


@pytest.mark.parametrize("others", [[], [b"x"], [None]])
def test_a_memoryview_of_a_single_number_is_taken_as_its_bytes(others: list[Any]) -> None:
    number = ctypes.c_uint32(5)
    items = [memoryview(number), *others]
    assert read_back(pack_bytes(items, "value"), len(items)).tolist(0, 1) == [bytes(number)]


@pytest.mark.parametrize("wrong", ["text", 5, 1.5, [], {}, object()])
@pytest.mark.parametrize("nulls", [False, True])
def test_what_is_not_bytes_like_is_refused_by_row_and_field(wrong: Any, nulls: bool) -> None:
    items = [b"fine", None if nulls else b"fine", wrong]
    with pytest.raises(InvalidRecordError, match=f"record 2: key must be bytes-like.*{type(wrong).__name__}"):
        pack_bytes(items, "key")


@pytest.mark.parametrize(
    "given",
    [
        [1, 2],
        (1, 2),
        iter([1, 2]),
        np.array([1, 2]),
        np.array([1, 2], np.uint8),
        range(1, 3),
        [1, np.int32(2)],
    ],
    ids=lambda given: type(given).__name__,
)
def test_integers_are_taken_in_any_collection(given: Any) -> None:
    found = as_int64(given, "timestamp")
    assert found.dtype == np.int64
    assert found.tolist() == [1, 2]


@pytest.mark.parametrize("given", [[], (), np.array([])])
def test_no_integers_are_fine(given: Any) -> None:
    assert as_int64(given, "timestamp").tolist() == []


@pytest.mark.parametrize(
    ("given", "row"),
    [
        ([1, -1], 1),
        ([1.5], 0),
        ([1, 2, "3"], 2),
        ([None], 0),
        ([5, None], 1),
        ([2**63], 0),
        ([1, 2**63], 1),
        ([2**64], 0),
        ([True], 0),
        (np.array([1, 2**63], np.uint64), 1),
        (np.array([[1]]), 0),
        ([[1], [2, 3]], 0),
    ],
    ids=repr,
)
def test_what_is_no_time_in_milliseconds_is_refused_by_row(given: Any, row: int) -> None:
    with pytest.raises(InvalidRecordError) as caught:
        as_int64(given, "timestamp")
    assert caught.value.args[0] == row
    assert "timestamp" in str(caught.value)


def test_the_largest_timestamp_is_fine() -> None:
    assert as_int64([0, 2**63 - 1], "timestamp").tolist() == [0, 2**63 - 1]
