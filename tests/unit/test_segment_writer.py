from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import encoded, names

from commitlog import TopicConfig
from commitlog.batches.encode import EncodedBatch, totals
from commitlog.index import OffsetIndex, TimeIndex
from commitlog.open_files import OpenFiles
from commitlog.segment import Segment, companions
from commitlog.segment_writer import SegmentWriter

CONFIG = TopicConfig(segment_bytes=20_000, index_interval_bytes=1_000, segment_ms=5_000)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[SegmentWriter]:
    writer = SegmentWriter.create(str(tmp_path), 100, CONFIG, OpenFiles(8))
    yield writer
    writer.close()


def put(writer: SegmentWriter, offset: int, *batches: EncodedBatch) -> int:
    size, span, latest = totals(batches)
    writer.append(batches, size, latest, offset, 0)
    return offset + span


def offsets(segment: Segment) -> list[int]:
    return [record.offset for batch in segment.batches() for record in batch.records()]


def test_a_new_segment_has_a_log_and_two_indexes(writer: SegmentWriter, tmp_path: Path) -> None:
    assert names(tmp_path) == [f"{100:020d}.{suffix}" for suffix in ("index", "log", "timeindex")]
    assert writer.segment.size_bytes == 0
    assert writer.max_timestamp == -1


def test_what_is_appended_can_be_read(writer: SegmentWriter) -> None:
    offset = put(writer, 100, encoded([b"a", b"b"]))
    offset = put(writer, offset, encoded([b"c"]), encoded([b"d", b"e"]))
    assert offset == 105
    assert offsets(writer.segment) == [100, 101, 102, 103, 104]
    assert os.path.getsize(writer.segment.path) == writer.segment.size_bytes


def test_an_index_entry_is_due_every_interval(writer: SegmentWriter) -> None:
    offset = 100
    for number in range(10):
        offset = put(writer, offset, encoded([bytes(520)], timestamps=[1_000 + number]))
    offset_index, time_index = (
        kind.open(path)
        for kind, path in zip((OffsetIndex, TimeIndex), companions(writer.segment.path), strict=True)
    )
    positions = [offset_index[number].position for number in range(len(offset_index))]
    assert positions == [1_200, 2_400, 3_600, 4_800]
    assert [time_index[number].timestamp for number in range(len(time_index))] == [1_002, 1_004, 1_006, 1_008]


def test_sealing_gives_the_latest_timestamp_an_entry(tmp_path: Path) -> None:
    writer = SegmentWriter.create(str(tmp_path), 100, CONFIG, OpenFiles(8))
    put(writer, put(writer, 100, encoded([b"a"], timestamps=[5])), encoded([b"b"], timestamps=[9]))
    writer.seal(102)
    last = TimeIndex.open(companions(writer.segment.path)[1]).last()
    assert last is not None
    assert last.timestamp == 9
    assert Segment.open(writer.segment.path).max_timestamp == 9


def test_a_segment_has_room_until_it_would_grow_beyond_segment_bytes(writer: SegmentWriter) -> None:
    assert writer.has_room(20_000, 100, 0)
    assert not writer.has_room(20_001, 100, 0)
    batch = encoded([bytes(500)])
    put(writer, 100, batch)
    assert writer.has_room(20_000 - batch.size, 101, 0)
    assert not writer.has_room(20_000 - batch.size + 8, 101, 0)


def test_an_empty_segment_never_rolls_by_time(writer: SegmentWriter) -> None:
    assert writer.has_room(100, 100, 2**63 - 1)


def test_roll_time_runs_from_the_timestamp_of_the_first_records(writer: SegmentWriter) -> None:
    put(writer, 100, encoded([b""], timestamps=[50_000]))
    assert writer.has_room(100, 101, 55_000)
    assert not writer.has_room(100, 101, 55_001)
    assert writer.has_room(100, 101, 3)


def test_roll_time_is_the_same_after_the_segment_was_opened_again(writer: SegmentWriter) -> None:
    put(writer, put(writer, 100, encoded([b""], timestamps=[50_000])), encoded([b""], timestamps=[54_000]))
    again = SegmentWriter.open(writer.segment, CONFIG)
    try:
        assert again.has_room(100, 102, 55_000)
        assert not again.has_room(100, 102, 55_001)
    finally:
        again.close()


def test_without_segment_ms_a_segment_never_rolls_by_time(tmp_path: Path) -> None:
    writer = SegmentWriter.create(str(tmp_path), 0, TopicConfig(segment_ms=-1), OpenFiles(8))
    put(writer, 0, encoded([b""], timestamps=[0]))
    assert writer.has_room(100, 1, 2**63 - 1)
    writer.close()


def test_a_segment_rolls_before_an_index_entry_cannot_hold_its_offset(writer: SegmentWriter) -> None:
    put(writer, 100, encoded([b""]))
    assert not writer.has_room(100, 100 + 2**32, 0)


def test_a_full_index_makes_the_segment_full(tmp_path: Path) -> None:
    config = TopicConfig(index_interval_bytes=0, segment_index_bytes=64)
    writer = SegmentWriter.create(str(tmp_path), 0, config, OpenFiles(8))
    offset = 0
    while writer.has_room(100, offset, offset) and offset < 1_000:
        offset = put(writer, offset, encoded([b""], timestamps=[offset]))
    assert 3 <= offset < 10
    writer.seal(offset)
    assert Segment.open(writer.segment.path).max_timestamp == offset - 1


def test_more_batches_at_once_than_the_index_has_entries_are_all_found(tmp_path: Path) -> None:
    config = TopicConfig(index_interval_bytes=0, segment_index_bytes=64)
    writer = SegmentWriter.create(str(tmp_path), 0, config, OpenFiles(8))
    put(writer, 0, *(encoded([b""], timestamps=[number]) for number in range(50)))
    assert offsets(writer.segment) == list(range(50))
    writer.seal(50)
    segment = Segment.open(writer.segment.path)
    assert segment.max_timestamp == 49
    assert segment.next_offset == segment.find_next_offset() == 50
    for offset in range(50):
        assert next(segment.batches(offset)).base_offset == offset


def test_opening_cuts_what_lies_behind_the_known_end(writer: SegmentWriter) -> None:
    put(writer, 100, encoded([b"a"]))
    with open(writer.segment.path, "ab") as file:
        file.write(b"what a failed append left")
    again = SegmentWriter.open(writer.segment, CONFIG)
    assert os.path.getsize(writer.segment.path) == writer.segment.size_bytes
    put(again, 101, encoded([b"b"]))
    assert offsets(again.segment) == [100, 101]
    again.close()


def test_opening_drops_index_entries_behind_the_known_end(writer: SegmentWriter) -> None:
    offset = 100
    for number in range(10):
        offset = put(writer, offset, encoded([bytes(1_000)], timestamps=[number]))
    end = list(writer.segment.headers())[5][0]
    shorter = Segment(writer.segment.path, 100, end)
    again = SegmentWriter.open(shorter, CONFIG, trust_indexes=False)
    assert again.max_timestamp == 4
    put(again, 105, encoded([b"new"], timestamps=[2]))
    assert offsets(again.segment) == [100, 101, 102, 103, 104, 105]
    assert again.max_timestamp == 4
    again.close()


def test_a_rolled_back_append_leaves_nothing(writer: SegmentWriter) -> None:
    put(writer, 100, encoded([b"a"]))
    size = writer.segment.size_bytes
    with open(writer.segment.path, "ab") as file:
        file.write(b"half of a batch")
    writer.roll_back(size)
    assert os.path.getsize(writer.segment.path) == size


def test_a_preallocated_segment_has_its_blocks_until_it_is_sealed(tmp_path: Path) -> None:
    config = TopicConfig(segment_bytes=100_000, preallocate=True)
    writer = SegmentWriter.create(str(tmp_path), 0, config, OpenFiles(8))
    put(writer, 0, encoded([b"a"]))
    assert os.stat(writer.segment.path).st_blocks * 512 >= 100_000
    writer.prepare_to_seal()
    writer.seal(1)
    assert os.path.getsize(writer.segment.path) == writer.segment.size_bytes == 88
