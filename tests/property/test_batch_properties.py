from __future__ import annotations

from typing import Any

import numpy as np
from helpers import decoded, encoded, gappy, stored
from hypothesis import given
from hypothesis import strategies as st

from commitlog import CorruptionError, RecordBatch, TopicConfig
from commitlog.batches.encode import reencode

from .strategies import codecs, columns, rows

base_offsets = st.one_of(st.integers(0, 100), st.integers(0, 2**62))


@given(columns(), codecs, base_offsets)
def test_what_is_encoded_is_decoded_again(given_columns: Any, codec: str, base_offset: int) -> None:
    expected = rows(given_columns, base_offset)
    config = TopicConfig(compression_type=codec)  # type: ignore[arg-type]
    batch = decoded(encoded(**given_columns, config=config), base_offset)
    assert list(batch.records()) == expected
    assert batch.offsets.tolist() == [row[0] for row in expected]
    assert batch.timestamps.tolist() == given_columns["timestamps"]
    assert batch.keys() == given_columns["keys"]
    assert batch.values() == given_columns["values"]
    assert batch.headers() == given_columns["headers"]
    assert batch.key_lengths.tolist() == [-1 if key is None else len(key) for key in given_columns["keys"]]
    assert batch.header.max_timestamp == max(given_columns["timestamps"])
    assert batch.header.base_timestamp == min(given_columns["timestamps"])
    assert batch.next_offset == base_offset + len(expected)
    assert batch.size_bytes % 8 == 0


@given(columns(), codecs, st.data())
def test_slices_agree_with_slices_of_a_list(given_columns: Any, codec: str, data: st.DataObject) -> None:
    expected = rows(given_columns, 50)
    config = TopicConfig(compression_type=codec)  # type: ignore[arg-type]
    part = decoded(encoded(**given_columns, config=config), 50)
    for _ in range(data.draw(st.integers(1, 3))):
        start, end = data.draw(st.integers(45, 90)), data.draw(st.integers(45, 90))
        part = part.slice(start, end)
        expected = [row for row in expected if start <= row[0] < end]
        assert list(part.records()) == expected
        assert part.offsets.tolist() == [row[0] for row in expected]
        assert part.timestamps.tolist() == [row[1] for row in expected]
        assert part.keys() == [row[2] for row in expected]
        assert part.values() == [row[3] for row in expected]
        assert part.headers() == [row[4] for row in expected]
        assert len(part) == len(expected)


@given(columns(), codecs, st.data())
def test_the_front_of_a_batch_encoded_again_is_the_front(
    given_columns: Any, codec: str, data: st.DataObject
) -> None:
    expected = rows(given_columns, 50)
    config = TopicConfig(compression_type=codec)  # type: ignore[arg-type]
    whole = decoded(encoded(**given_columns, config=config), 50)
    end = data.draw(st.integers(51, 50 + len(expected)))
    part = decoded(reencode(whole.slice(50, end), end - 50), 50)
    assert list(part.records()) == expected[: end - 50]
    assert part.next_offset == end


@given(st.sets(st.integers(0, 400)), st.integers(1, 10), st.data())
def test_gaps_are_kept_by_slicing_and_by_encoding_anew(
    deltas: set[int], beyond: int, data: st.DataObject
) -> None:
    there = sorted(deltas)
    span = (there[-1] if there else 0) + beyond
    batch = decoded(gappy(there, span), 1_000)
    assert batch.offsets.tolist() == [1_000 + delta for delta in there]
    assert batch.next_offset == 1_000 + span
    start, end = data.draw(st.integers(990, 1_420)), data.draw(st.integers(1_001, 1_420))
    part = batch.slice(start, end)
    expected = [1_000 + delta for delta in there if start <= 1_000 + delta < end]
    assert [record.offset for record in part.records()] == expected
    assert part.values() == [b"%d" % (offset - 1_000) for offset in expected]
    front = decoded(reencode(batch.slice(1_000, end), end - 1_000), 1_000)
    assert front.offsets.tolist() == [1_000 + delta for delta in there if 1_000 + delta < end]


@given(columns(most=5), codecs, st.data())
def test_a_flipped_bit_is_never_served(given_columns: Any, codec: str, data: st.DataObject) -> None:
    config = TopicConfig(compression_type=codec)  # type: ignore[arg-type]
    raw = bytearray(stored(encoded(**given_columns, config=config), 7))
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    try:
        list(RecordBatch.decode(raw).records())
    except CorruptionError:
        return
    raise AssertionError(f"bit {bit} flipped and nobody noticed")


@given(st.binary(max_size=400))
def test_nonsense_is_never_a_batch(raw: bytes) -> None:
    try:
        RecordBatch.decode(raw)
    except CorruptionError:
        return
    raise AssertionError("a batch was found in nonsense")


@given(columns())
def test_the_bytes_do_not_depend_on_how_the_columns_were_given(given_columns: Any) -> None:
    plain = stored(encoded(**given_columns))
    other = stored(
        encoded(
            [value if value is None else bytearray(value) for value in given_columns["values"]],
            keys=tuple(key if key is None else memoryview(key) for key in given_columns["keys"]),
            headers=[list(pairs) for pairs in given_columns["headers"]],
            timestamps=np.array(given_columns["timestamps"], np.int64),
        )
    )
    assert other == plain
