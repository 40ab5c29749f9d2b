from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import CODECS, decoded, encoded, gappy, stored
from hypothesis import given
from hypothesis import strategies as st
from property.strategies import codecs, columns

from commitlog import RecordBatch, TopicConfig
from commitlog.batches import compression
from commitlog.batches.columns import pack_bytes
from commitlog.batches.encode import Columns, EncodedBatch, assemble, encode_empty
from commitlog.batches.merge import TARGET_ROWS, BatchMerger

ALL = slice(None)


class Written:
    """Takes what a merger writes."""

    def __init__(self, codec_name: str = "none") -> None:
        self.batches: list[RecordBatch] = []
        self.merger = BatchMerger(self._write, compression.IDS[codec_name])

    def _write(self, batch: EncodedBatch, base_offset: int, leader_epoch: int) -> None:
        if self.batches:
            assert base_offset == self.batches[-1].next_offset, "offsets have no holes"
        self.batches.append(RecordBatch.decode(stored(batch, base_offset, leader_epoch)))
        assert self.batches[-1].size_bytes == batch.size

    def keep(self, batch: RecordBatch, rows: Any = ALL, delete_horizon: int | None = None) -> None:
        self.merger.keep(batch, np.arange(len(batch))[rows], delete_horizon, batch.header.producer)

    def records(self) -> list[Any]:
        self.merger.write_out()
        return [record for batch in self.batches for record in batch.records()]


def at(base_offset: int, values: list[Any], **given: Any) -> RecordBatch:
    """A batch of records with these values, the first at `base_offset`."""
    return decoded(encoded(values, **given), base_offset)


def of_producer(base_offset: int, sequence: int, values: list[bytes]) -> RecordBatch:
    data = Columns(keys=pack_bytes(values, "key"), values=pack_bytes(values, "value"))
    return decoded(assemble(data, len(values), 5, 0, producer=(7, 0, sequence)), base_offset)


@given(st.data(), st.lists(columns(most=12), min_size=1, max_size=4), codecs)
def test_picked_rows_of_several_batches_come_out_as_they_were(
    data: st.DataObject, given_columns: list[dict[str, Any]], codec_name: str
) -> None:
    config = TopicConfig(compression_type=codec_name)  # type: ignore[arg-type]
    written, expected, offset = Written(codec_name), [], 0
    for one in given_columns:
        batch = decoded(encoded(**one, config=config), offset)
        rows = sorted(data.draw(st.sets(st.integers(0, len(batch) - 1))))
        horizon = data.draw(st.sampled_from([None, 5]))
        if rows:
            expected += [list(batch.records())[row] for row in rows]
            room = written.merger.pending_bytes
            written.merger.keep(batch, np.array(rows), horizon, batch.header.producer)
            assert room == 0 or written.batches or written.merger.pending_bytes >= room
        else:
            written.merger.skip(batch)
        offset = batch.next_offset
    pending = written.merger.pending_bytes
    count = len(written.batches)
    assert written.records() == expected
    assert (written.batches[0].base_offset, written.batches[-1].next_offset) == (0, offset)
    assert sum(batch.size_bytes for batch in written.batches[count:]) <= pending


@pytest.mark.parametrize("values", [[b""], [None], [b"", None], [b"abc", b"def"], [b"abc", b"d", None, b""]])
def test_empty_strings_stay_apart_from_nulls(values: list[bytes | None]) -> None:
    written = Written()
    for number in range(3):
        written.keep(at(number * len(values), values, keys=[b"k"] * len(values)))
    assert [record.value for record in written.records()] == values * 3
    assert len(written.batches) == 1


@pytest.mark.parametrize("codec_name", CODECS)
def test_a_batch_keeps_its_codec_and_one_without_gets_the_topics(codec_name: str) -> None:
    config = TopicConfig(compression_type=codec_name)  # type: ignore[arg-type]
    written = Written("zstd")
    values = [b"compress me " * 20] * 50
    written.keep(at(0, values, config=config))
    written.keep(at(50, values))
    assert [record.value for record in written.records()] == values * 2
    kept = "zstd" if codec_name == "none" else codec_name
    assert [batch.header.compression_type for batch in written.batches] == (
        ["zstd"] if kept == "zstd" else [kept, "zstd"]
    )


def test_only_records_with_the_same_delete_horizon_are_put_together() -> None:
    written = Written()
    for number, horizon in enumerate([None, None, 5, 5, 6, None]):
        written.keep(at(number, [b"v"]), delete_horizon=horizon)
    written.merger.write_out()
    assert [(len(batch), batch.delete_horizon) for batch in written.batches] == [
        (2, None), (2, 5), (1, 6), (1, None),
    ]  # fmt: skip


def test_what_is_skipped_goes_with_its_neighbours_and_leaves_no_hole() -> None:
    written = Written()
    written.merger.skip(at(0, [b"gone"] * 3))
    written.keep(at(3, [b"0", b"1", b"2"]), [1])
    written.merger.skip(at(6, [b"gone"] * 4))
    assert [record.offset for record in written.records()] == [4]
    assert [(batch.base_offset, batch.next_offset) for batch in written.batches] == [(0, 10)]


def test_where_nothing_stays_an_empty_batch_remembers_offsets_and_time() -> None:
    written = Written()
    for number in range(3):
        written.merger.skip(at(number, [b"gone"], timestamps=[100 + number]))
    assert written.records() == []
    (batch,) = written.batches
    assert (batch.base_offset, batch.next_offset, batch.header.max_timestamp) == (0, 3, 102)


def test_batches_that_compaction_left_before_are_put_together_again() -> None:
    written = Written()
    written.keep(decoded(gappy([0, 7], 10), 0))
    written.keep(decoded(gappy([3], 4), 10))
    written.merger.skip(decoded(encode_empty(6, 1_000), 14))
    written.keep(decoded(gappy([1, 2], 5), 20), [1])
    assert [record.offset for record in written.records()] == [0, 7, 13, 22]
    assert [record.value for record in written.records()] == [b"0", b"7", b"3", b"2"]
    assert written.batches[0].next_offset == 25


def test_leader_epochs_are_not_mixed() -> None:
    written = Written()
    for offset, epoch in enumerate([0, 0, 3, 3, 4]):
        batch = RecordBatch.decode(stored(encoded([b"v"]), offset, epoch))
        if offset % 2:
            written.merger.skip(batch)
        else:
            written.keep(batch)
    written.merger.write_out()
    found = [(one.base_offset, one.next_offset, one.header.leader_epoch) for one in written.batches]
    assert found == [(0, 2, 0), (2, 4, 3), (4, 5, 4)]


def test_a_batch_of_a_producer_stays_by_itself_even_empty() -> None:
    written = Written()
    written.keep(at(0, [b"before"]))
    written.keep(of_producer(1, 10, [b"a", b"b"]), [1])
    written.keep(of_producer(3, 12, [b"c"]), slice(0))
    written.keep(at(4, [b"after"]))
    assert [record.offset for record in written.records()] == [0, 2, 4]
    found = [(one.base_offset, len(one), one.header.producer) for one in written.batches]
    assert found == [(0, 1, (-1, -1, -1)), (1, 1, (7, 0, 10)), (3, 0, (7, 0, 12)), (4, 1, (-1, -1, -1))]


def test_batches_do_not_grow_without_end() -> None:
    written = Written()
    for number in range(5):
        written.keep(at(number * 5_000, [b"v"] * 5_000))
    written.merger.write_out()
    assert all(len(batch) < 2 * TARGET_ROWS for batch in written.batches)
    assert sum(map(len, written.batches)) == 25_000
    large = Written()
    for number in range(8):
        large.keep(at(number, [bytes(300_000)]))
    large.merger.write_out()
    assert len(large.batches) == 2


def test_a_batch_takes_no_more_offsets_than_its_header_can_say() -> None:
    written = Written()
    span = (1 << 32) - 10
    for number in range(4):
        written.merger.skip(decoded(encode_empty(span, 0), number * span))
    written.keep(at(4 * span, [b"v"]))
    assert [record.offset for record in written.records()] == [4 * span]
    assert written.batches[0].base_offset == 0
    assert all(batch.next_offset - batch.base_offset <= 1 << 32 for batch in written.batches)
