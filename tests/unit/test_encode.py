from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from helpers import CODECS, decoded, encoded, gappy

from commitlog import InvalidRecordError, RecordTooLargeError, TopicConfig
from commitlog.batches.columns import pack_bytes
from commitlog.batches.encode import Columns, Rules, assemble, encode, reencode
from commitlog.batches.format import NO_PRODUCER
from commitlog.config import CompressionType

PLAIN = Rules(TopicConfig())


def test_ten_thousand_records_cost_at_most_four_bytes_each_above_their_contents() -> None:
    count = 10_000
    keys = [b"%010d" % number for number in range(count)]
    values = [bytes(80 + number % 21) for number in range(count)]
    batch = encoded(values, keys=keys, timestamps=[10**12 + number // 7 for number in range(count)])
    payload = sum(map(len, keys)) + sum(map(len, values))
    assert (batch.size - payload) / count <= 4


def test_a_missing_timestamp_is_the_time_of_the_append() -> None:
    assert [record.timestamp for record in decoded(encoded([b"a", b"b"], now_ms=123)).records()] == [123, 123]


def test_with_log_append_time_the_given_timestamps_do_not_count() -> None:
    config = TopicConfig(message_timestamp_type="LogAppendTime")
    many = decoded(encoded([b"a", b"b"], timestamps=[1, 2], config=config, now_ms=500))
    assert many.timestamps.tolist() == [500, 500]


def test_with_log_append_time_timestamps_are_checked_all_the_same() -> None:
    config = TopicConfig(message_timestamp_type="LogAppendTime")
    with pytest.raises(InvalidRecordError, match="timestamps"):
        encoded([b"a", b"b"], timestamps=[1], config=config)


@pytest.mark.parametrize("timestamps", [[0, 2**63 - 1], [2**63 - 1, 0], [5, 5], [2**62, 2**62 + 2**33]])
def test_timestamps_may_lie_as_far_apart_as_they_like(timestamps: list[int]) -> None:
    batch = decoded(encoded([b""] * 2, timestamps=timestamps))
    assert batch.timestamps.tolist() == timestamps
    assert batch.header.max_timestamp == max(timestamps)


def test_a_body_that_compression_would_make_longer_is_stored_plain() -> None:
    noise = np.random.default_rng(1).bytes(2_000)
    for codec in CODECS:
        batch = decoded(encoded([noise], config=TopicConfig(compression_type=codec)))
        assert batch.header.compression_type == "none"
        assert batch.values() == [noise]


@pytest.mark.parametrize("codec", CODECS)
def test_a_body_that_compresses_is_stored_compressed(codec: CompressionType) -> None:
    config = TopicConfig(compression_type=codec)
    batch = decoded(encoded([b"again and " * 100] * 5, config=config))
    assert batch.header.compression_type == codec
    assert batch.size_bytes < 500 or codec == "none"
    assert batch.values() == [b"again and " * 100] * 5


def test_nothing_to_encode_gives_no_batch() -> None:
    assert encode([], None, None, None, PLAIN, 0) == ()
    assert encode([], [], [], [], PLAIN, 0) == ()


@pytest.mark.parametrize(
    "columns",
    [
        {"keys": [b"a"]},
        {"keys": [b"a"] * 3},
        {"keys": []},
        {"headers": [()]},
        {"headers": [()] * 3},
        {"timestamps": [1]},
        {"timestamps": [1, 2, 3]},
        {"timestamps": []},
    ],
    ids=repr,
)
def test_columns_of_different_lengths_are_refused_and_both_lengths_named(columns: dict[str, Any]) -> None:
    ((name, column),) = columns.items()
    with pytest.raises(InvalidRecordError, match=f"2 values, but {len(column)} {name}"):
        encoded([b"x", b"y"], **columns)


@pytest.mark.parametrize("columns", [{"keys": [b"a"]}, {"headers": [()]}, {"timestamps": [1]}], ids=repr)
def test_a_column_for_no_values_is_refused_too(columns: dict[str, Any]) -> None:
    given = {"keys": None, "headers": None, "timestamps": None, **columns}
    with pytest.raises(InvalidRecordError, match="0 values, but 1"):
        encode([], **given, rules=PLAIN, now_ms=0)


def test_columns_may_be_any_iterables() -> None:
    batch = decoded(
        encoded(
            iter([b"a", b"b"]),  # type: ignore[arg-type]
            keys=(key for key in [b"k", None]),  # type: ignore[arg-type]
            headers=iter([[("h", b"")], ()]),  # type: ignore[arg-type]
            timestamps=iter([1, 2]),
        )
    )
    assert list(batch.records()) == [(0, 1, b"k", b"a", (("h", b""),)), (1, 2, None, b"b", ())]


@pytest.mark.parametrize("wrong", ["text", 5, 1.5, [b"x"], object()])
def test_a_value_or_key_that_is_not_bytes_like_is_refused(wrong: Any) -> None:
    reason = rf"must be bytes-like or None, not {type(wrong).__name__}"
    with pytest.raises(InvalidRecordError, match=rf"record 1: value {reason}"):
        encoded([b"", wrong])
    with pytest.raises(InvalidRecordError, match=rf"record 1: key {reason}"):
        encoded([b"", b""], keys=[None, wrong])


@pytest.mark.parametrize("given", [bytearray(b"abc"), memoryview(b"abc"), memoryview(b"a-b-c-")[::2]])
def test_a_value_may_be_anything_bytes_like(given: Any) -> None:
    for batch in (encoded([given], keys=[given]), encoded([given, None], keys=[given, None])):
        record = next(decoded(batch).records())
        assert (record.key, record.value) == (b"abc", b"abc")


def test_a_value_of_wider_items_is_stored_byte_by_byte() -> None:
    numbers = memoryview((ctypes.c_uint16 * 3)(1, 2, 3)).cast("B").cast("H")
    assert decoded(encoded([numbers])).values() == [b"\1\0\2\0\3\0"]


@pytest.mark.parametrize(
    "wrong",
    [
        [("name",)],
        [(b"name", b"value")],
        [("name", "value")],
        [("name", 5)],
        [("a", b"", b"")],
        [None],
        ["ab"],
        5,
        {"ab": b"1"},
        [("\ud800", b"")],
    ],
    ids=repr,
)
def test_headers_that_are_not_pairs_of_text_and_bytes_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidRecordError, match="record 1: headers"):
        encoded([b"", b""], headers=[(), wrong])


@pytest.mark.parametrize("wrong", [-1, 2**63, 2**64, 1.5, "1", True], ids=repr)
def test_a_timestamp_that_is_no_time_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidRecordError, match="timestamp"):
        encoded([b""], timestamps=[wrong])


def test_a_record_counts_with_key_value_and_headers_against_max_message_bytes() -> None:
    config = TopicConfig(max_message_bytes=10)
    fits = {"key": b"123", "value": b"1234", "headers": [("ab", b"c")]}
    for wider in (
        {"key": b"1234"},
        {"value": b"12345"},
        {"headers": [("abc", b"c")]},
        {"headers": [("ab", b"cd")]},
    ):
        record: dict[str, Any] = {**fits, **wider}
        with pytest.raises(RecordTooLargeError) as caught:
            encoded(
                [b"", record["value"]],
                keys=[None, record["key"]],
                headers=[[("small", b"")], record["headers"]],
                config=config,
            )
        assert caught.value.args == (1, 11, 10)


def test_headers_count_where_all_keys_and_all_values_are_of_one_length() -> None:
    config = TopicConfig(max_message_bytes=10)
    headers: list[Any] = [(), [("abc", b"d")], ()]
    assert encoded([b"1234"] * 3, keys=[b"12"] * 3, headers=headers, config=config).span == 3
    with pytest.raises(RecordTooLargeError) as caught:
        encoded([b"1234"] * 3, keys=[b"123"] * 3, headers=headers, config=config)
    assert caught.value.args == (1, 11, 10)


def test_a_large_record_is_found_among_many_small_ones() -> None:
    values = [b"x"] * 1_000
    values[617] = bytes(300)
    with pytest.raises(RecordTooLargeError, match="record 617 has 300 bytes, max_message_bytes is 299"):
        encoded(values, config=TopicConfig(max_message_bytes=299))
    assert encoded(values, config=TopicConfig(max_message_bytes=300)).span == 1_000


@pytest.mark.parametrize("codec", CODECS)
def test_part_of_a_batch_encoded_again_keeps_offsets_timestamps_and_headers(codec: CompressionType) -> None:
    whole = decoded(
        encoded(
            [b"zero " * 30, None, b"two", b"three"],
            keys=[None, b"k1", b"k2", None],
            headers=[(), [("h", b"1")], (), [("h", None), ("i", b"")]],
            timestamps=[50, 10, 70, 20],
            config=TopicConfig(compression_type=codec),
        ),
        100,
    )
    for end in range(101, 105):
        part = decoded(reencode(whole.slice(100, end), end - 100), 100)
        assert list(part.records()) == list(whole.records())[: end - 100]
        assert part.header.next_offset == end
        assert part.header.flags & 8 == whole.header.flags & 8


def test_a_batch_with_gaps_encoded_again_keeps_its_gaps() -> None:
    whole = decoded(gappy([2, 5, 9], 12), 100)
    for end, left in [(103, [102]), (105, [102]), (106, [102, 105]), (112, [102, 105, 109]), (101, [])]:
        part = decoded(reencode(whole.slice(100, end), end - 100), 100)
        assert [record.offset for record in part.records()] == left
        assert part.header.next_offset == end


@pytest.mark.parametrize("producer", [NO_PRODUCER, (77, 3, 12)])
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("time", [0, 5, (1 << 63) - 1])
def test_a_record_alone_is_encoded_as_a_column_of_one_row_would_be(
    producer: tuple[int, int, int], kind: Any, time: int
) -> None:
    rules = Rules(TopicConfig(message_timestamp_type=kind))
    for value in (None, b"", b"value" * 20):
        for key in (None, b"", b"key"):
            (batch,) = encode([value], [key], None, [time], rules, time, producer)
            keys = pack_bytes([key], "key")
            columns = Columns(keys=keys, values=pack_bytes([value], "value"))
            expected = assemble(columns, 1, time, rules.flags, producer=producer)
            assert b"".join(batch.stamped(9, 2)) == b"".join(expected.stamped(9, 2))
            for name in ("size", "span", "max_timestamp", "producer"):
                assert getattr(batch, name) == getattr(expected, name)
