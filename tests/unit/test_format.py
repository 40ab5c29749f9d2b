from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from helpers import encoded, gappy, stored

from commitlog import CorruptionError, RecordBatch, TopicConfig
from commitlog.batches import format
from commitlog.batches.format import BatchHeader
from commitlog.errors import UnsupportedFormatError

FLAGS_POSITION = 62


def resealed(raw: bytes | bytearray) -> bytes:
    """Give changed bytes a checksum that matches: what a newer version, not a fault, would write."""
    base_offset, leader_epoch = struct.unpack_from("<qi", raw)
    return format.stamp(base_offset, leader_epoch, crc32c(bytes(raw[16:]))) + bytes(raw[16:])


def with_flags(raw: bytes, flags: int) -> bytes:
    changed = bytearray(raw)
    changed[FLAGS_POSITION : FLAGS_POSITION + 2] = struct.pack("<H", flags)
    return resealed(changed)


@pytest.fixture
def raw() -> bytes:
    return stored(encoded([b"one", b"three"], keys=[b"k", None], timestamps=[1_000, 1_005]), 40, 7)


def test_the_sizes_of_the_format_are_pinned() -> None:
    assert format.STAMP.size == 16
    assert format.CHECKED.size == 48
    assert format.HEADER.size == format.HEADER_BYTES == 64
    assert format.DESCRIPTOR.size == 16
    assert format.HEADERS_DESCRIPTOR.size == 16
    assert format.COMPRESSED.size == 8
    assert format.SMALLEST_BATCH_BYTES == 80


def test_a_header_tells_everything_about_its_batch(raw: bytes) -> None:
    header = format.check(raw, 0, len(raw), "x.log")
    assert isinstance(header, BatchHeader)
    assert header.base_offset == 40
    assert header.next_offset == 42
    assert header.leader_epoch == 7
    assert header.size == len(raw)
    assert header.record_count == 2
    assert header.last_offset_delta == 1
    assert (header.base_timestamp, header.max_timestamp) == (1_000, 1_005)
    assert header.producer == format.NO_PRODUCER == (-1, -1, -1)
    assert header.compression_type == "none"


def test_batches_are_aligned_to_eight_bytes() -> None:
    for size in range(20):
        assert len(stored(encoded([bytes(size)]))) % 8 == 0


def test_every_flipped_bit_is_noticed(raw: bytes) -> None:
    for position in range(len(raw)):
        for bit in range(8):
            damaged = bytearray(raw)
            damaged[position] ^= 1 << bit
            with pytest.raises(CorruptionError, match=r"x\.log, byte 0"):
                format.check(damaged, 0, len(damaged), "x.log")


@pytest.mark.parametrize("base_offset", [0, 1_000_000, 2**40 + 7, 2**62])
def test_a_batch_can_be_stamped_anew_without_touching_anything_else(raw: bytes, base_offset: int) -> None:
    crc = crc32c(raw[16:])
    batch = RecordBatch.decode(format.stamp(base_offset, 9, crc) + raw[16:])
    assert [record.offset for record in batch.records()] == [base_offset, base_offset + 1]
    assert batch.header.leader_epoch == 9


@pytest.mark.parametrize("size", [64, 80, 4_096])
def test_zeros_are_never_a_batch(size: int) -> None:
    zeros = bytes(size)
    assert format.header_at(zeros, 0) is None
    with pytest.raises(CorruptionError):
        format.peek(zeros, 0, "x.log")
    with pytest.raises(CorruptionError):
        format.check(zeros, 0, size, "x.log")


def test_a_batch_cut_off_anywhere_is_refused_and_the_byte_is_named(raw: bytes) -> None:
    for size in range(len(raw)):
        with pytest.raises(CorruptionError) as caught:
            format.check(raw[:size], 0, size, "x.log", shift=800)
        assert caught.value.path == "x.log"
        assert caught.value.position == 800


def test_a_header_that_is_not_all_there_is_no_header(raw: bytes) -> None:
    for size in range(64):
        assert format.header_at(raw[:size], 0) is None


def test_peeking_at_a_header_that_is_cut_off_is_a_corruption_error(raw: bytes) -> None:
    for size in range(64):
        with pytest.raises(CorruptionError) as caught:
            format.peek(raw[:size], 0, "x.log", 160)
        assert caught.value.position == 160


def test_the_smallest_batch_and_the_shortest_buffer_for_a_header_are_enough() -> None:
    raw = stored(encoded([None]), 3)
    assert len(raw) == format.SMALLEST_BATCH_BYTES
    assert format.check(raw, 0, len(raw), "x.log").next_offset == 4
    for position, buffer in ((0, raw[:64]), (8, bytes(8) + raw[:64])):
        header = format.header_at(buffer, position)
        assert header is not None
        assert header.size == 80
        assert format.peek(buffer, position, "x.log") == (3, 4, 80)


def test_what_is_no_batch_is_refused_where_it_stands_in_the_file() -> None:
    junk = bytes(16) + b"\xff" * 100
    for refusing in (
        lambda: format.peek(junk, 16, "x.log", 4_000),
        lambda: format.check(junk, 16, len(junk), "x.log", 4_000),
    ):
        with pytest.raises(CorruptionError, match="no batch starts here") as caught:
            refusing()
        assert caught.value.position == 4_016


def test_bytes_after_the_end_do_not_belong_to_the_batch(raw: bytes) -> None:
    with pytest.raises(CorruptionError, match="cut off"):
        format.check(raw + raw, 0, len(raw) - 8, "x.log")
    assert format.check(raw + b"garbage", 0, len(raw) + 7, "x.log").size == len(raw)


@pytest.mark.parametrize("batch", [encoded([b"a"]), encoded([b"a", b"b"]), gappy([0, 7], 12), gappy([3], 5)])
def test_peeking_agrees_with_reading_the_header(batch: object) -> None:
    raw = bytes(24) + stored(batch, 100)  # type: ignore[arg-type]
    header = format.header_at(raw, 24)
    assert header is not None
    assert format.peek(raw, 24, "x.log") == (100, header.next_offset, header.size)
    assert header.next_offset == 100 + batch.span  # type: ignore[attr-defined]


@pytest.mark.parametrize("size_field", [0, 8, 79, 81, 2**32 - 8])
def test_an_impossible_size_is_refused(raw: bytes, size_field: int) -> None:
    changed = bytearray(raw)
    changed[20:24] = struct.pack("<I", size_field)
    with pytest.raises(CorruptionError):
        format.check(resealed(changed), 0, len(changed), "x.log")


@pytest.mark.parametrize("bit", [7, 8, 9, 10, 11, 15])
def test_a_flag_from_the_future_is_refused_as_such(raw: bytes, bit: int) -> None:
    with pytest.raises(UnsupportedFormatError, match=r"x\.log, byte 640"):
        format.check(with_flags(raw, 1 << bit), 0, len(raw), "x.log", 640)


@pytest.mark.parametrize("codec_id", [5, 6, 7])
def test_a_codec_from_the_future_is_refused_as_such(raw: bytes, codec_id: int) -> None:
    with pytest.raises(UnsupportedFormatError):
        RecordBatch.decode(with_flags(raw, codec_id)).values()


@pytest.mark.parametrize("codec_id", [1, 2, 3, 4])
def test_a_body_that_does_not_decompress_is_damage(codec_id: int) -> None:
    raw = stored(encoded([bytes(range(200))] * 3, config=TopicConfig(compression_type="zstd")))
    changed = bytearray(with_flags(raw, codec_id))
    changed[80:100] = b"\x55" * 20
    batch = RecordBatch.decode(resealed(changed), path="x.log")
    with pytest.raises(CorruptionError, match=r"x\.log, byte 0"):
        batch.values()


@pytest.mark.parametrize("codec", ["zstd", "gzip", "lz4", "snappy"])
@pytest.mark.parametrize("difference", [-8, 8, 10**6])
def test_a_body_that_decompresses_to_another_size_is_damage(codec: Any, difference: int) -> None:
    raw = bytearray(stored(encoded([b"again " * 100] * 3, config=TopicConfig(compression_type=codec))))
    (raw_size,) = struct.unpack_from("<I", raw, 64)
    raw[64:68] = struct.pack("<I", raw_size + difference)
    batch = RecordBatch.decode(resealed(raw), path="x.log")
    with pytest.raises(CorruptionError, match=r"x\.log, byte 0"):
        batch.values()


@pytest.mark.parametrize("position", range(64, 80))
def test_a_body_that_contradicts_itself_is_damage_not_a_crash(position: int) -> None:
    raw = bytearray(stored(encoded([b"one", b"three", None], keys=[b"k", None, b"kkk"])))
    for value in (1, 5, 200, 255):
        raw[position] = value
        batch = RecordBatch.decode(resealed(raw), path="x.log")
        try:
            list(batch.records())
        except CorruptionError as error:
            assert error.path == "x.log"


def test_index_entries_are_confirmed_by_the_batches_they_point_at() -> None:
    first, second = encoded([b"a", b"b"]), encoded([b"c"])
    raw = stored(first, 10) + stored(second, 12)

    def confirmed(position: int, offset: int) -> bool:
        return format.batches_start_at(raw, np.array([position]), np.array([offset]))

    assert confirmed(0, 10)
    assert confirmed(first.size, 12)
    assert not confirmed(first.size, 11)
    assert not confirmed(8, 10)
