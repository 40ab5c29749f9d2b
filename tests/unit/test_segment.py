from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers import encoded, flip, gappy, stored, write_segment

from commitlog import CommitLog, CorruptionError, Segment
from commitlog.open_files import OpenFiles
from commitlog.replication.remote.fetched import FetchedSegment
from commitlog.segment import companions, segment_path


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Ten batches of three records from offset 100 on; timestamps go up, but for a dip in batch 5."""
    batches = []
    for number in range(10):
        first = 1_000 + 10 * number if number != 5 else 500
        batches.append(encoded([b"x" * 700] * 3, timestamps=[first, first + 1, first + 2]))
    return write_segment(tmp_path, batches, 100)


def offsets(segment: Segment, start: int | None = None, end: int = 1 << 63) -> list[int]:
    low = segment.base_offset if start is None else start
    return [
        record.offset for batch in segment.batches(start, end) for record in batch.slice(low, end).records()
    ]


def test_a_segment_file_can_be_opened_and_read_by_itself(path: str) -> None:
    segment = Segment.open(path)
    assert segment.base_offset == 100
    assert segment.size_bytes == os.path.getsize(path)
    assert offsets(segment) == list(range(100, 130))
    assert segment.max_timestamp == 1_092


def test_a_segment_of_a_partition_can_be_opened_by_itself(log: CommitLog) -> None:
    partition = log.create_topic("t").partition(0)
    partition.append_many([b"a", b"b"])
    partition.roll()
    partition.append(b"c")
    first, second = (Segment.open(segment.path) for segment in partition.segments)
    assert [record.value for batch in first.batches() for record in batch.records()] == [b"a", b"b"]
    assert [record.offset for batch in second.batches() for record in batch.records()] == [2]


def test_reading_an_empty_segment_gives_nothing(tmp_path: Path) -> None:
    segment = Segment.open(write_segment(tmp_path, [], 100))
    assert offsets(segment) == []
    assert list(segment.headers()) == []
    assert segment.max_timestamp == -1
    assert segment.position_of_time(0) == 0


def test_every_range_of_a_segment_is_read_right(path: str) -> None:
    segment = Segment.open(path)
    for start in range(100, 132):
        for end in range(start, 132, 3):
            assert offsets(segment, start, end) == list(range(start, min(end, 130)))


def test_reading_past_the_last_record_gives_nothing(path: str) -> None:
    segment = Segment.open(path)
    assert offsets(segment, 130) == []
    assert offsets(segment, 10**9) == []
    assert segment.position_of(130) == segment.size_bytes


def test_reading_an_offset_in_a_gap_starts_at_the_next_record_after_it(tmp_path: Path) -> None:
    batches = [gappy([0, 4], 20), gappy([], 5), gappy([1], 3), encoded([b"a", b"b"])]
    segment = Segment.open(write_segment(tmp_path, batches, 100))
    there = [100, 104, 126, 128, 129]
    for start in range(100, 131):
        assert offsets(segment, start) == [offset for offset in there if offset >= start]


def test_offsets_that_are_missing_between_batches_are_damage(tmp_path: Path) -> None:
    path = segment_path(str(tmp_path), 0)
    first, second = encoded([b"x"] * 3), encoded([b"y"])
    with open(path, "wb") as file:
        for batch, base in ((first, 0), (second, 50)):
            file.write(b"".join(bytes(piece) for piece in batch.stamped(base, 0)))
    segment = Segment.open(path)
    for start in (3, 20):
        with pytest.raises(CorruptionError, match="was expected"):
            offsets(segment, start)
    assert offsets(segment, 50) == [50]
    assert offsets(segment, 51) == []


def test_no_record_before_the_position_of_a_time_is_as_late(path: str) -> None:
    segment = Segment.open(path)
    records = [(batch.position, record) for batch in segment.batches() for record in batch.records()]
    for timestamp in range(490, 1_100):
        position = segment.position_of_time(timestamp)
        assert all(record.timestamp < timestamp for place, record in records if place < position)


def test_the_latest_timestamp_may_stand_in_any_batch(tmp_path: Path) -> None:
    for latest in range(8):
        stamps = [1_000 + (9_000 if number == latest else number) for number in range(8)]
        batches = [encoded([b"x" * 3_000], timestamps=[stamp]) for stamp in stamps]
        path = write_segment(tmp_path, batches, 100 * latest)
        assert Segment.open(path).max_timestamp == 10_000


def test_only_the_published_bytes_of_a_segment_are_read(path: str) -> None:
    whole = Segment.open(path)
    third = list(whole.headers())[3][0]
    segment = Segment(path, 100, third)
    assert offsets(segment) == list(range(100, 109))


def test_a_torn_tail_is_an_error_when_a_segment_is_read_by_itself(path: str) -> None:
    with open(path, "ab") as file:
        file.write(b"torn")
    segment = Segment.open(path)
    with pytest.raises(CorruptionError) as caught:
        offsets(segment)
    assert caught.value.path == path
    assert caught.value.position == segment.size_bytes - 4


def test_damage_in_the_middle_is_an_error_and_what_stands_before_it_is_read(path: str) -> None:
    position = list(Segment.open(path).headers())[4][0]
    flip(path, position + 100)
    found = []
    with pytest.raises(CorruptionError) as caught:
        for batch in Segment.open(path).batches():
            found += batch.offsets.tolist()
    assert found == list(range(100, 112))
    assert caught.value.position == position


def test_a_file_that_is_shorter_than_published_is_an_error(path: str) -> None:
    size = os.path.getsize(path)
    for missing in (1, 8, 3_000):
        os.truncate(path, size - missing)
        with pytest.raises(CorruptionError, match="ends before byte"):
            list(Segment(path, 100, size).batches())


def test_a_file_that_is_gone_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Segment.open(tmp_path / "00000000000000000000.log")


def test_reading_goes_on_after_the_maps_were_let_go(path: str) -> None:
    segment = Segment.open(path)
    read = segment.batches()
    found = next(read).offsets.tolist()
    segment.release()
    for batch in read:
        found += batch.offsets.tolist()
    assert found == list(range(100, 130))
    assert offsets(segment, 115) == list(range(115, 130))


def test_several_readers_of_the_active_segment_know_what_is_left(log: CommitLog) -> None:
    partition = log.create_topic("t").partition(0)
    for number in range(30):
        partition.append(b"%d" % number)
    for start, end in [(0, 10), (0, 20), (10, 20)]:
        assert len(list(partition.records(start, end))) == end - start
    batch_bytes = partition.size_bytes // 30
    assert [partition.known_bytes_after(end) for end in (10, 20, 15)] == [
        20 * batch_bytes,
        10 * batch_bytes,
        None,
    ]
    for start in range(30):  # only a few are remembered
        assert [one.offset for one in partition.records(start, start + 1)] == [start]
    assert partition.known_bytes_after(10) is None
    partition.segments[-1].release()
    assert partition.known_bytes_after(30) is None


def test_a_batch_outlives_the_file_it_was_read_from(path: str) -> None:
    segment = Segment.open(path)
    batch = next(segment.batches())
    segment.release()
    os.unlink(path)
    assert batch.values() == [b"x" * 700] * 3


def test_a_segment_too_large_for_one_read_is_mapped(tmp_path: Path) -> None:
    batches = [encoded([bytes(20_000)] * 5) for _ in range(8)]
    segment = Segment.open(write_segment(tmp_path, batches, 7))
    assert segment.size_bytes > 700_000
    assert offsets(segment) == list(range(7, 47))
    assert offsets(segment, 44) == [44, 45, 46]


def test_the_handle_cache_keeps_few_segments_open(tmp_path: Path) -> None:
    cache = OpenFiles(3)
    segments = []
    for number in range(10):
        path = write_segment(tmp_path, [encoded([bytes(100_000)])], number)
        segments.append(Segment(path, number, os.path.getsize(path), cache))
    for _ in range(2):
        for segment in segments:
            assert len(list(segment.batches())) == 1
            assert len(cache) <= 3


def test_a_forgotten_segment_leaves_the_handle_cache(path: str) -> None:
    cache = OpenFiles(3)
    segment = Segment(path, 100, os.path.getsize(path), cache)
    offsets(segment, 115)
    cache.forget(segment)
    assert len(cache) == 0


def test_the_files_of_a_segment_have_kafkas_names(tmp_path: Path) -> None:
    path = segment_path(str(tmp_path), 1_234)
    assert os.path.basename(path) == "00000000000000001234.log"
    assert [os.path.basename(one) for one in companions(path)] == [
        "00000000000000001234.index",
        "00000000000000001234.timeindex",
    ]


def test_the_repr_of_a_segment_names_its_file(path: str) -> None:
    assert path in repr(Segment.open(path))


def test_batches_of_another_node_that_begin_after_the_offset_asked_for_are_damage() -> None:
    data = stored(encoded([b"x"] * 3), 20)
    for offset in (20, 22):
        assert next(FetchedSegment("t-0", data, offset).batches(offset)).base_offset == 20
    with pytest.raises(CorruptionError, match="offset 20 where 5 was expected"):
        FetchedSegment("t-0", data, 5)
