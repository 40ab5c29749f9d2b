from __future__ import annotations

import pytest
from crc32c import crc32c
from helpers import encoded, gappy, stored

from commitlog import CorruptionError, RecordBatch, TopicConfig
from commitlog.batches.encode import EncodedBatch, Rules, encode, encode_empty
from commitlog.errors import UnsupportedFormatError
from commitlog.partitions.epochs import EpochStart
from commitlog.partitions.slices import Received, received


def batches(*given: tuple[EncodedBatch, int], base_offset: int = 0) -> bytes:
    """The bytes of batches that follow one another, each with its leader epoch."""
    pieces = []
    for batch, epoch in given:
        pieces.append(stored(batch, base_offset, epoch))
        base_offset += batch.span
    return b"".join(pieces)


def take(data: bytes, base_offset: int = 0) -> Received:
    return received(data, base_offset, "here")


ONE, TWO = encoded([b"one"], timestamps=[7]), encoded([b"a", b"b"], timestamps=[9, 8])


def test_batches_are_told_by_place_offset_and_timestamp() -> None:
    found = take(batches((ONE, 3), (TWO, 3), (ONE, 3), base_offset=40), 40)
    assert (found.base_offset, found.next_offset) == (40, 44)
    places = [0, ONE.size, ONE.size + TWO.size]
    assert found.places == list(zip([40, 41, 43], places, [7, 9, 7], strict=True))
    assert found.epochs == [EpochStart(3, 40)]


def test_each_epoch_is_told_where_it_begins() -> None:
    found = take(batches((ONE, 0), (ONE, 0), (TWO, 4), (ONE, 4), (ONE, 9)))
    assert found.epochs == [EpochStart(0, 0), EpochStart(4, 2), EpochStart(9, 5)]


def test_large_offsets_and_epochs_are_no_special_case() -> None:
    found = take(batches(*[(ONE, 2**31 - 1)] * 5, base_offset=2**40), 2**40)
    assert found.next_offset == 2**40 + 5 and len(found.places) == 5


def test_no_bit_rots_unnoticed_on_the_way() -> None:
    data = batches((ONE, 1), (ONE, 1), (TWO, 1))
    for position in range(len(data)):
        bad = bytearray(data)
        bad[position] ^= 4
        with pytest.raises((CorruptionError, UnsupportedFormatError)):
            take(bytes(bad))


def test_batches_that_are_cut_off_are_refused() -> None:
    data = batches((ONE, 1), (TWO, 1))
    for size in range(1, len(data)):
        if size != ONE.size:
            with pytest.raises(CorruptionError):
                take(data[:size])


@pytest.mark.parametrize("expected", [0, 39, 42])
def test_batches_of_other_offsets_are_refused(expected: int) -> None:
    with pytest.raises(CorruptionError, match="was expected"):
        take(batches((ONE, 1), (ONE, 1), base_offset=40), expected)


def test_a_hole_between_batches_is_refused() -> None:
    with pytest.raises(CorruptionError, match="offset 2 where 1 was expected"):
        take(stored(ONE, 0, 1) + stored(ONE, 2, 1))


@pytest.mark.parametrize("epochs", [(5, 4), (0, -1)])
def test_leader_epochs_that_go_down_are_refused(epochs: tuple[int, int]) -> None:
    with pytest.raises(CorruptionError, match="leader epoch"):
        take(batches((ONE, epochs[0]), (TWO, epochs[1])))


def test_what_a_repair_put_in_the_place_of_lost_records_may_have_any_epoch() -> None:
    found = take(batches((ONE, 5), (encode_empty(3, 0), 0), (ONE, 5), (ONE, 6)))
    assert found.epochs == [EpochStart(5, 0), EpochStart(6, 5)]
    assert found.next_offset == 6


def test_flags_that_are_not_known_are_refused() -> None:
    strange = encoded([b"one"])
    head = bytearray(strange.parts[0])
    head[46:48] = (1 << 15).to_bytes(2, "little")
    parts = (bytes(head), *strange.parts[1:])
    data = EncodedBatch(crc32c(b"".join(parts)), parts, strange.size, 1, 7)
    with pytest.raises(UnsupportedFormatError):
        take(stored(data, 0, 1))


# --- a batch that begins before


def test_only_the_rest_of_a_batch_that_begins_before_is_taken() -> None:
    five = encoded([b"%d" % number for number in range(5)], timestamps=range(10, 15))
    found = take(batches((five, 2), (ONE, 2), base_offset=10), 13)
    assert (found.base_offset, found.next_offset) == (13, 16)
    assert [offset for offset, _, _ in found.places] == [13, 15]
    batch = RecordBatch.decode(found.data)
    assert [(one.offset, one.value, one.timestamp) for one in batch.records()] == [
        (13, b"3", 13),
        (14, b"4", 14),
    ]
    assert batch.header.leader_epoch == 2


def test_the_rest_of_a_compacted_batch_has_the_gaps_that_it_had() -> None:
    found = take(stored(gappy([0, 4, 6], 9), 10, 1), 12)
    batch = RecordBatch.decode(found.data)
    assert [one.offset for one in batch.records()] == [14, 16]
    assert (batch.header.base_offset, batch.header.next_offset) == (12, 19)


def test_the_rest_of_a_batch_of_a_producer_goes_on_in_its_sequence() -> None:
    (batch,) = encode([b"x"] * 5, None, None, None, Rules(TopicConfig()), 0, (77, 1, 2**31 - 2))
    found = take(stored(batch, 10, 1), 13)
    assert [header.producer for header in found.numbered] == [(77, 1, 1)]
