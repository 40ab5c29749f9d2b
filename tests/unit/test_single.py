from __future__ import annotations

from typing import Any

import pytest
from crc32c import crc32c
from helpers import encoded, gappy, stored

from commitlog import CommitLog, CorruptionError, Record, RecordTooLargeError, TopicConfig
from commitlog.batches import format
from commitlog.batches.single import Shapes, encode_one, read_ones, shapes_for

FAR = 1 << 62


def one(
    value: bytes | None, key: bytes | None = None, *, offset: int = 0, timestamp: int = 77, flags: int = 0
) -> bytes:
    crc, body, size = encode_one(value, key, timestamp, flags, 1 << 20)
    assert size == 16 + len(body)
    return format.stamp(offset, 0, crc) + body


def length(item: bytes | None) -> int | None:
    return None if item is None else len(item)


@pytest.mark.parametrize("value", [b"", b"v", b"v" * 300, b"v" * 70_000, None])
@pytest.mark.parametrize("key", [b"", b"k", b"k" * 300, None])
@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_the_bytes_of_one_record_are_those_of_a_batch_of_one(
    value: bytes | None, key: bytes | None, timestamp_type: Any
) -> None:
    config = TopicConfig(message_timestamp_type=timestamp_type)
    flags = format.LOG_APPEND_TIME if timestamp_type == "LogAppendTime" else 0
    batch = encoded([value], keys=[key], timestamps=[77], config=config, now_ms=77)
    assert one(value, key, offset=5, flags=flags) == stored(batch, 5)


@pytest.mark.parametrize("value", [b"", b"v", b"v" * 300, None])
@pytest.mark.parametrize("key", [b"", b"k", b"k" * 300, None])
@pytest.mark.parametrize("flags", [0, format.LOG_APPEND_TIME])
def test_a_shape_packs_what_encode_one_does(value: bytes | None, key: bytes | None, flags: int) -> None:
    for shapes in (shapes_for(flags, 1 << 20), shapes_for(flags, 700)):
        shape = shapes[length(key), length(value)]
        assert shape is not None
        pack, front, back, size = shape
        body = pack(front, 77, 77, back, key or b"", value or b"")
        assert (crc32c(body), body, size) == encode_one(value, key, 77, flags, 1 << 20)


def test_there_is_no_shape_for_a_record_above_max_message_bytes_or_a_kilobyte() -> None:
    small, usual = shapes_for(0, 10), shapes_for(0, 1 << 20)
    assert [small[5, 5] is None, small[5, 6] is None, small[None, 11] is None] == [False, True, True]
    assert [usual[24, 1000] is None, usual[25, 1000] is None] == [False, True]


def test_the_table_of_shapes_is_bounded() -> None:
    shapes = Shapes(0, 1 << 20)
    for size in range(5000):
        shape = shapes[None, size]
        assert shape is None or shape[3] == 80 + (size + 7) // 8 * 8
    assert len(shapes) == 4096
    assert shapes[None, 0] is not None


def test_one_record_costs_eighty_bytes_and_its_padding() -> None:
    for size in range(17):
        assert len(one(bytes(size))) == 80 + (size + 7) // 8 * 8


def test_key_and_value_count_together_against_max_message_bytes() -> None:
    encode_one(b"12345", b"67890", 0, 0, 10)
    with pytest.raises(RecordTooLargeError) as caught:
        encode_one(b"123456", b"67890", 0, 0, 10)
    assert caught.value.args == (0, 11, 10)


def test_a_run_of_single_records_is_read() -> None:
    expected = [
        Record(10, 1, None, b"a"),
        Record(11, 2, b"k", None),
        Record(12, 3, b"", b""),
        Record(13, 4, None, None),
    ]
    raw = b"".join(one(r.value, r.key, offset=r.offset, timestamp=r.timestamp) for r in expected)
    assert read_ones(raw, 0, len(raw), FAR) == (expected, len(raw))
    shifted = b"\xff" * 24 + raw + b"\xff" * 24
    assert read_ones(shifted, 24, 24 + len(raw), FAR) == (expected, 24 + len(raw))


def test_a_run_ends_before_the_end_offset_and_before_the_limit() -> None:
    raw = b"".join(one(b"v", offset=offset) for offset in range(5))
    for end in range(6):
        records, position = read_ones(raw, 0, len(raw), end)
        assert [record.offset for record in records] == list(range(end))
        assert position == 88 * end
    for limit in range(len(raw)):
        assert len(read_ones(raw, 0, limit, FAR)[0]) == limit // 88


@pytest.mark.parametrize(
    "other",
    [
        stored(encoded([b"a", b"b"]), 1),
        stored(encoded([b"a"], headers=[[("h", b"")]]), 1),
        stored(encoded([b"a" * 500], config=TopicConfig(compression_type="zstd")), 1),
        stored(gappy([3], 5), 1),
        bytes(88),
        b"\xff" * 88,
        b"short",
    ],
    ids=["two records", "headers", "compressed", "gap", "zeros", "ones", "short"],
)
def test_a_run_ends_at_anything_else(other: bytes) -> None:
    raw = one(b"v") + other + one(b"w", offset=9)
    records, position = read_ones(raw, 0, len(raw), FAR)
    assert [record.value for record in records] == [b"v"]
    assert position == 88


def test_a_run_ends_where_offsets_do_not_follow_one_another() -> None:
    raw = b"".join(one(b"v", offset=offset) for offset in (5, 6, 7, 9, 8, 10))
    records, position = read_ones(raw, 0, len(raw), FAR)
    assert ([record.offset for record in records], position) == ([5, 6, 7], 3 * 88)


def test_a_run_ends_at_every_flipped_bit() -> None:
    good, raw = one(b"good", offset=6), one(b"value", b"key", offset=7)
    for position in range(len(raw)):
        for bit in range(8):
            damaged = bytearray(raw)
            damaged[position] ^= 1 << bit
            records, end = read_ones(good + damaged, 0, len(good) + len(raw), FAR)
            assert [record.value for record in records] == [b"good"], (position, bit)
            assert end == len(good)


def test_lengths_that_reach_beyond_their_batch_end_the_run() -> None:
    raw = bytearray(one(b"value"))
    raw[76:80] = (50).to_bytes(4, "little")
    resealed = format.stamp(0, 0, crc32c(bytes(raw[16:]))) + bytes(raw[16:])
    assert read_ones(resealed + bytes(100), 0, len(resealed) + 100, FAR) == ([], 0)


def test_single_records_larger_than_a_run_and_runs_longer_than_one_are_read(log: CommitLog) -> None:
    partition = log.create_topic("t").partition(0)
    values = [b"x" * size for size in (10, 70_000, 20, 65_000, 100, 30_000)] * 10
    for value in values:
        partition.append(value)
    assert [record.value for record in partition.records()] == values
    for start in range(0, 60, 7):
        assert [record.offset for record in partition.records(start, start + 5)] == list(
            range(start, min(start + 5, 60))
        )


def test_single_records_and_batches_in_any_mixture_are_read(log: CommitLog) -> None:
    partition = log.create_topic("t", config={"segment_bytes": 2_000}).partition(0)
    expected: list[bytes] = []
    for number in range(60):
        if number % 5 == 3:
            values = [b"%d" % number] * (number % 3 + 1)
            partition.append_many(values)
        else:
            values = [b"%d" % number]
            partition.append(values[0], headers=[("h", b"")] if number % 7 == 2 else ())
        expected += values
    assert [record.value for record in partition.records()] == expected
    for start in range(len(expected)):
        assert [record.value for record in partition.records(start)] == expected[start:]


def test_damage_in_a_run_of_single_records_is_an_error_not_an_end(log: CommitLog) -> None:
    partition = log.create_topic("t").partition(0)
    for number in range(10):
        partition.append(b"%d" % number)
    path = partition.segments[0].path
    for position in range(0, 88 * 10, 13):
        with open(path, "r+b") as file:
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ 4]))
        found = []
        with pytest.raises(CorruptionError) as caught:
            for record in partition.records():
                found.append(record.offset)
        assert found == list(range(position // 88))
        assert caught.value.position == position // 88 * 88
        with open(path, "r+b") as file:
            file.seek(position)
            file.write(bytes([byte]))
