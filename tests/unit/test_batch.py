from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from helpers import CODECS, decoded, encoded, gappy, stored

from commitlog import CorruptionError, RecordBatch, TopicConfig
from commitlog.batches import format

VALUES = [b"zero", None, b"", b"three" * 20, b"four"]
KEYS = [None, b"k1", b"", b"k3", None]
HEADERS = [(), (("h", b"1"), ("h", None)), (), (("", b""),), ()]
TIMESTAMPS = [50, 10, 70, 20, 60]
RECORDS = list(zip(range(100, 105), TIMESTAMPS, KEYS, VALUES, HEADERS, strict=True))


@pytest.fixture(params=CODECS)
def batch(request: pytest.FixtureRequest) -> RecordBatch:
    config = TopicConfig(compression_type=request.param)
    columns: dict[str, Any] = {"keys": KEYS, "headers": HEADERS, "timestamps": TIMESTAMPS}
    return decoded(encoded(VALUES, **columns, config=config), 100)


def test_a_batch_gives_its_columns_and_its_records(batch: RecordBatch) -> None:
    assert len(batch) == 5
    assert (batch.base_offset, batch.next_offset) == (100, 105)
    assert batch.offsets.tolist() == [100, 101, 102, 103, 104]
    assert batch.timestamps.tolist() == TIMESTAMPS
    assert batch.key_lengths.tolist() == [-1, 2, 0, 2, -1]
    assert batch.value_lengths.tolist() == [4, -1, 0, 100, 4]
    assert batch.keys() == KEYS
    assert batch.values() == VALUES
    assert batch.headers() == HEADERS
    assert list(batch.records()) == RECORDS


def test_columns_are_numpy_arrays_of_int64(batch: RecordBatch) -> None:
    for column in (batch.offsets, batch.timestamps, batch.key_lengths, batch.value_lengths):
        assert isinstance(column, np.ndarray)
        assert column.dtype == np.int64


def test_every_slice_of_a_batch_agrees_with_the_same_slice_of_its_records(batch: RecordBatch) -> None:
    for start in range(98, 108):
        for end in range(98, 108):
            part = batch.slice(start, end)
            expected = [record for record in RECORDS if start <= record[0] < end]
            assert list(part.records()) == expected
            assert len(part) == len(expected)
            assert part.offsets.tolist() == [record[0] for record in expected]
            assert part.timestamps.tolist() == [record[1] for record in expected]
            assert part.key_lengths.tolist() == [-1 if one[2] is None else len(one[2]) for one in expected]
            assert part.keys() == [record[2] for record in expected]
            assert part.values() == [record[3] for record in expected]
            assert part.headers() == [record[4] for record in expected]


def test_a_slice_of_a_slice_is_cut_by_both(batch: RecordBatch) -> None:
    part = batch.slice(101, 104).slice(102, 200)
    assert list(part.records()) == RECORDS[2:4]
    assert (part.base_offset, part.next_offset) == (102, 104)


def test_a_slice_never_grows_again(batch: RecordBatch) -> None:
    assert list(batch.slice(102, 104).slice(0, 200).records()) == RECORDS[2:4]


def test_a_slice_that_takes_everything_is_the_batch_itself(batch: RecordBatch) -> None:
    assert batch.slice(0, 1_000) is batch


@pytest.mark.parametrize("deltas", [[0, 3, 9], [4], [9], [0], [2, 3, 4], [0, 70_000]])
def test_a_batch_with_gaps_tells_true_offsets(deltas: list[int]) -> None:
    span = deltas[-1] + 3
    batch = decoded(gappy(deltas, span), 100)
    offsets = [100 + delta for delta in deltas]
    assert batch.next_offset == 100 + span
    assert batch.offsets.tolist() == offsets
    assert [record.offset for record in batch.records()] == offsets
    assert [record.value for record in batch.records()] == [b"%d" % delta for delta in deltas]


def test_a_batch_with_gaps_is_sliced_by_offset_not_by_row() -> None:
    batch = decoded(gappy([0, 3, 9], 12), 100)
    for start in range(99, 114):
        for end in range(start, 114):
            part = batch.slice(start, end)
            expected = [offset for offset in (100, 103, 109) if start <= offset < end]
            assert [record.offset for record in part.records()] == expected
            assert part.values() == [b"%d" % (offset - 100) for offset in expected]


def test_a_batch_from_which_compaction_removed_everything_has_no_records() -> None:
    batch = decoded(gappy([], 5), 100)
    assert len(batch) == 0
    assert (batch.base_offset, batch.next_offset) == (100, 105)
    assert list(batch.records()) == []
    assert list(batch.slice(102, 104).records()) == []


def test_a_batch_is_read_from_any_position_of_a_buffer() -> None:
    first, second = encoded([b"one"]), encoded([b"two", b"three"])
    buffer = stored(first, 0) + stored(second, 1)
    batch = RecordBatch.decode(buffer, first.size)
    assert batch.values() == [b"two", b"three"]
    assert batch.position == first.size


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_batch_is_read_from_anything_bytes_like(kind: type) -> None:
    assert RecordBatch.decode(kind(stored(encoded([b"a", None])))).values() == [b"a", None]


def test_damage_names_the_file_and_the_byte() -> None:
    raw = bytearray(stored(encoded([b"one"])))
    raw[70] ^= 1
    with pytest.raises(CorruptionError) as caught:
        RecordBatch.decode(raw, path="7.log", shift=4_096)
    assert (caught.value.path, caught.value.position) == ("7.log", 4_096)


@pytest.mark.parametrize("ask", [RecordBatch.to_arrow, RecordBatch.values, RecordBatch.keys])
def test_lengths_beyond_the_body_are_damage_though_the_checksum_is_right(
    ask: Callable[[RecordBatch], object],
) -> None:
    pytest.importorskip("pyarrow")
    raw = bytearray(stored(encoded([b"a", b"bb"])))
    assert raw[80:82] == b"\1\2"
    raw[81] = 200
    raw[:16] = format.stamp(0, 0, crc32c(raw[16:]))
    batch = RecordBatch.decode(raw)
    with pytest.raises(CorruptionError, match="a column of 201 bytes ends after the body"):
        ask(batch)


def test_values_share_the_buffer_until_python_objects_are_asked_for() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    raw = bytearray(stored(encoded([b"x" * 10_000] * 3)))
    address = pyarrow.py_buffer(raw).address
    values = RecordBatch.decode(raw).to_arrow().column("value")
    assert address <= values.buffers()[2].address < address + len(raw)


def test_the_repr_of_a_batch_says_where_it_is(batch: RecordBatch) -> None:
    assert "[100, 105)" in repr(batch)
