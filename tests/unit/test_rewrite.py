from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers import CODECS, encoded, gappy, names, write_segment

from commitlog import Segment, TopicConfig
from commitlog.config import CompressionType
from commitlog.segment_files import put_in_place, shorter_copy


def opened(path: str) -> Segment:
    return Segment(path, int(os.path.basename(path)[:20]), os.path.getsize(path))


def shortened(segment: Segment, offset: int) -> Segment:
    return put_in_place(segment, shorter_copy(segment, offset))


def offsets(segment: Segment) -> list[int]:
    return [record.offset for batch in segment.batches() for record in batch.records()]


@pytest.mark.parametrize("codec", CODECS)
def test_a_segment_is_shortened_at_any_offset(tmp_path: Path, codec: CompressionType) -> None:
    config = TopicConfig(compression_type=codec)
    batches = [
        encoded(
            [b"value %d " % number * 10, None, b""],
            keys=[b"k", None, b""],
            headers=[[("h", b"1")], (), [("i", None)]],
            timestamps=[30 - number, number, 50],
            config=config,
        )
        for number in range(4)
    ]
    whole = [
        one
        for batch in Segment.open(write_segment(tmp_path, batches, 100)).batches()
        for one in batch.records()
    ]
    for offset in range(100, 113):
        segment = shortened(opened(write_segment(tmp_path, batches, 100)), offset)
        records = [one for batch in segment.batches() for one in batch.records()]
        assert records == whole[: offset - 100]
        assert segment.size_bytes == os.path.getsize(segment.path)
        assert segment.base_offset == 100
        assert names(tmp_path, ".tmp") == []


@pytest.mark.parametrize(
    ("offset", "left"),
    [
        (100, []),
        (101, [100]),
        (104, [100]),
        (105, [100, 104]),
        (119, [100, 104]),
        (120, [100, 104]),
        (121, [100, 104, 120]),
    ],
)
def test_shortening_at_an_offset_in_a_gap_removes_the_records_after_the_gap(
    tmp_path: Path, offset: int, left: list[int]
) -> None:
    path = write_segment(tmp_path, [gappy([0, 4], 20), encoded([b"a", b"b"])], 100)
    assert offsets(shortened(opened(path), offset)) == left


def test_a_reader_of_the_old_file_is_not_disturbed(tmp_path: Path) -> None:
    path = write_segment(tmp_path, [encoded([bytes(20_000)]) for _ in range(10)], 0)
    reader = opened(path)
    read = reader.batches()
    found = [next(read).base_offset]
    shortened(opened(path), 3)
    found += [batch.base_offset for batch in read]
    assert found == list(range(10))


def test_indexes_of_the_longer_segment_do_not_stay_behind(tmp_path: Path) -> None:
    path = write_segment(tmp_path, [encoded([b"a"]), encoded([b"b"])], 0)
    for suffix in ("index", "timeindex"):
        (tmp_path / f"{0:020d}.{suffix}").write_bytes(b"\xff" * 4_096)
    shortened(opened(path), 1)
    assert names(tmp_path) == [f"{0:020d}.log"]
