from __future__ import annotations

import contextlib
import os
import shutil
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import CODECS, contents, copy_as_if_killed, fill, flip, names, tree, wait_until

import commitlog
from commitlog import (
    ClosedError,
    CommitLog,
    CorruptionError,
    InvalidRecordError,
    OffsetOutOfRangeError,
    Partition,
    PartitionFailedError,
    Record,
    RecordTooLargeError,
    files,
)
from commitlog.errors import BatchTooLargeError

QUIET = {"flush_ms": -1}  # no syncs behind a test's back


@pytest.fixture
def small(log: CommitLog) -> Partition:
    """A partition that rolls every few records and syncs only when told."""
    return log.create_topic(
        "small", config={"segment_bytes": 1_000, "index_interval_bytes": 200, **QUIET}
    ).partition(0)


# --- appending


def test_offsets_count_from_zero_and_next_offset_is_one_more_than_the_last(partition: Partition) -> None:
    assert (partition.start_offset, partition.next_offset) == (0, 0)
    assert partition.append(b"a") == 0
    assert partition.next_offset == 1
    assert partition.append_many([b"b", b"c"]) == range(1, 3)
    assert partition.append(b"d") == 3
    assert partition.next_offset == partition.high_watermark == 4
    assert [record.offset for record in partition.records()] == [0, 1, 2, 3]


def test_a_record_comes_back_as_it_was_given(partition: Partition) -> None:
    headers = [("trace", b"1"), ("trace", None), ("", b"")]
    partition.append(b"value", key=b"key", headers=headers, timestamp=77)
    assert contents(partition) == [Record(0, 77, b"key", b"value", tuple(headers))]


@pytest.mark.parametrize("value", [b"", b"v", b"v" * 1_000, None])
@pytest.mark.parametrize("key", [b"", b"k", None])
@pytest.mark.parametrize("headers", [(), [("a", b"1"), ("a", None)]])
def test_one_record_appended_alone_or_in_a_batch_reads_the_same(
    partition: Partition, value: bytes | None, key: bytes | None, headers: Any
) -> None:
    partition.append(value, key=key, headers=headers, timestamp=77)
    partition.append(value, key=key, headers=headers)
    partition.append_many([value], keys=[key], headers=[headers], timestamps=[77])
    first, second, third = contents(partition)
    assert first[1:] == third[1:] == (77, key, value, tuple(headers))
    assert second[2:] == (key, value, tuple(headers))


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_gives_back_what_was_appended(log: CommitLog, codec: str) -> None:
    partition = log.create_topic("t", config={"compression_type": codec}).partition(0)
    values = [b"again and again " * 20, None, b"", b"x"]
    partition.append_many(values, keys=[None, b"k", b"", b"k"], headers=[(), [("h", b"1")], (), ()])
    partition.append(b"single " * 50, key=b"k")
    records = contents(partition)
    assert [record.value for record in records] == [*values, b"single " * 50]
    assert [record.key for record in records] == [None, b"k", b"", b"k", b"k"]
    assert records[1].headers == (("h", b"1"),)
    assert {batch.header.compression_type for batch in partition.batches()} == {codec}


def test_a_record_without_a_timestamp_gets_the_time_of_its_append(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 1_234_567_890_123_999_999)
    partition.append(b"a")
    partition.append_many([b"b"])
    partition.append(None)
    assert [record.timestamp for record in partition.records()] == [1_234_567_890_123] * 3


def test_with_log_append_time_the_given_timestamp_does_not_count(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"message_timestamp_type": "LogAppendTime"}
    partition = log.create_topic("t", config=config).partition(0)
    monkeypatch.setattr("time.time_ns", lambda: 5_000_000_000)
    partition.append(b"a", timestamp=1)
    partition.append_many([b"b", b"c"], timestamps=[1, 2])
    assert [record.timestamp for record in partition.records()] == [5_000] * 3


def test_single_appends_are_sound_on_both_sides_of_offset_two_to_the_32(tmp_path: Path) -> None:
    with commitlog.open(tmp_path) as log:
        log.create_topic("t", config=QUIET)
    for file in (tmp_path / "t-0").iterdir():
        file.unlink()
    first = 2**32 - 3
    (tmp_path / "t-0" / f"{first:020d}.log").touch()
    with commitlog.open(tmp_path) as log:
        partition = log.topic("t").partition(0)
        assert [partition.append(b"v", key=b"k") for _ in range(6)] == list(range(first, first + 6))
        assert [batch.base_offset for batch in partition.batches()] == list(range(first, first + 6))
        assert partition.verify().ok


def test_anything_bytes_like_can_be_a_value_or_a_key(partition: Partition) -> None:
    for given in (bytearray(b"abc"), memoryview(b"abc"), memoryview(b"a-b-c-")[::2]):
        partition.append(given, key=given)
    partition.append(memoryview(np.array([1, 2], np.uint16).data))
    records = contents(partition)
    assert [(record.key, record.value) for record in records[:3]] == [(b"abc", b"abc")] * 3
    assert records[3].value == b"\1\0\2\0"


def test_what_was_appended_does_not_change_with_the_buffer_it_came_from(partition: Partition) -> None:
    buffer = bytearray(b"before")
    partition.append(buffer)
    partition.append_many([buffer])
    buffer[:] = b"after!"
    assert [record.value for record in partition.records()] == [b"before", b"before"]


@pytest.mark.parametrize("timestamps", [None, []])
def test_appending_nothing_gives_an_empty_range_and_changes_nothing(
    partition: Partition, timestamps: list[int] | None
) -> None:
    assert partition.append_many([], timestamps=timestamps) == range(0, 0)
    partition.append(b"a")
    before = tree(partition.path)
    assert partition.append_many([], keys=[], headers=[], timestamps=timestamps) == range(1, 1)
    assert tree(partition.path) == before
    assert partition.next_offset == 1


BAD_RECORDS = [
    ({"value": "text"}, InvalidRecordError),
    ({"value": 5}, InvalidRecordError),
    ({"value": b"", "key": "text"}, InvalidRecordError),
    ({"value": b"", "headers": [("a", "text")]}, InvalidRecordError),
    ({"value": b"", "headers": [(b"a", b"")]}, InvalidRecordError),
    ({"value": b"", "headers": [("\ud800", b"")]}, InvalidRecordError),
    ({"value": b"", "headers": 5}, InvalidRecordError),
    ({"value": b"", "timestamp": -1}, InvalidRecordError),
    ({"value": b"", "timestamp": 2**63}, InvalidRecordError),
    ({"value": b"", "timestamp": 1.5}, InvalidRecordError),
    ({"value": b"", "timestamp": "now"}, InvalidRecordError),
    ({"value": bytes(1_001)}, RecordTooLargeError),
    ({"value": bytes(501), "key": bytes(500)}, RecordTooLargeError),
    ({"value": bytes(900), "headers": [("h" * 50, bytes(51))]}, RecordTooLargeError),
]


@pytest.mark.parametrize(("record", "error"), BAD_RECORDS, ids=repr)
@pytest.mark.parametrize("compression_type", ["none", "zstd"])
def test_a_bad_record_is_refused_and_leaves_nothing_behind(
    log: CommitLog, record: dict[str, Any], error: type[Exception], compression_type: str
) -> None:
    config = {"max_message_bytes": 1_000, "compression_type": compression_type, **QUIET}
    partition = log.create_topic("t", config=config).partition(0)
    partition.append(b"good")
    before = tree(log.path)
    with pytest.raises(error):
        partition.append(**record)
    several: dict[str, Any] = {"values": [b"good", record["value"]]}
    if "key" in record:
        several["keys"] = [None, record["key"]]
    if "headers" in record:
        several["headers"] = [(), record["headers"]]
    if "timestamp" in record:
        several["timestamps"] = [1, record["timestamp"]]
    with pytest.raises(error) as caught:
        partition.append_many(**several)
    assert caught.value.args[0] == 1
    assert tree(log.path) == before
    assert partition.next_offset == 1
    assert [record.value for record in partition.records()] == [b"good"]
    assert partition.append(b"next") == 1


@pytest.mark.parametrize(
    "columns",
    [{"keys": [b"k"]}, {"headers": [()] * 3}, {"timestamps": [1]}, {"timestamps": range(5)}],
    ids=repr,
)
def test_columns_of_different_lengths_are_refused_and_leave_nothing_behind(
    partition: Partition, columns: dict[str, Any]
) -> None:
    before = tree(partition.path)
    with pytest.raises(InvalidRecordError, match="2 values, but"):
        partition.append_many([b"a", b"b"], **columns)
    assert tree(partition.path) == before
    assert partition.next_offset == 0


def test_a_record_of_exactly_max_message_bytes_is_taken(log: CommitLog) -> None:
    partition = log.create_topic("t", config={"max_message_bytes": 10}).partition(0)
    partition.append(b"12345", key=b"67890")
    with pytest.raises(RecordTooLargeError) as caught:
        partition.append(b"123456", key=b"67890")
    assert caught.value.args == (0, 11, 10)


def test_a_batch_larger_than_a_segment_is_refused_and_leaves_nothing_behind(small: Partition) -> None:
    small.append(b"good")
    before = tree(small.path)
    for call in (
        lambda: small.append_many([bytes(300)] * 4),
        lambda: small.append(bytes(1_000)),
        lambda: small.append(bytes(1_000), timestamp=5),
    ):
        with pytest.raises(BatchTooLargeError) as caught:
            call()
        assert caught.value.args[1] == 1_000
        assert tree(small.path) == before
    assert len(small.segments) == 1
    assert small.append(b"next") == 1


def test_a_batch_of_exactly_segment_bytes_fits(log: CommitLog) -> None:
    partition = log.create_topic("t", config={"segment_bytes": 1_000}).partition(0)
    partition.append(bytes(1_000 - 80))
    partition.append(bytes(1_000 - 80))
    assert [segment.size_bytes for segment in partition.segments] == [1_000, 1_000]


# --- reading


def test_every_range_of_offsets_is_read_right(small: Partition) -> None:
    small.append_many([b"%d" % number for number in range(7)])
    fill(small, 20)
    small.append_many([b"%d" % number for number in range(9)])
    whole = contents(small)
    assert [record.offset for record in whole] == list(range(36))
    assert len(small.segments) > 3
    for start in range(37):
        for end in (*range(start, 38, 5), None):
            assert list(small.records(start, end)) == whole[start:end]


def test_an_end_before_the_start_gives_nothing(small: Partition) -> None:
    fill(small, 10)
    assert list(small.records(5, 2)) == []
    assert list(small.records(0, 0)) == []


def test_reading_at_next_offset_gives_nothing(partition: Partition) -> None:
    assert list(partition.records(0)) == []
    fill(partition, 3)
    assert list(partition.records(3)) == []
    assert list(partition.batches(3)) == []
    assert partition.to_arrow(3).num_rows == 0


@pytest.mark.parametrize("offset", [-1, 1, 21, 10**12])
def test_reading_below_start_offset_or_above_next_offset_is_out_of_range(
    small: Partition, offset: int
) -> None:
    fill(small, 20)
    small.trim_before(2)
    for call in (small.records, small.batches, small.to_arrow, small.get):
        with pytest.raises(OffsetOutOfRangeError) as caught:
            call(offset)
        assert caught.value.args == (small.name, offset, 2, 20)


def test_one_record_is_got_by_its_offset(small: Partition) -> None:
    fill(small, 20)
    small.append_many([b"a", b"b"])
    whole = contents(small)
    assert [small.get(offset) for offset in range(22)] == whole
    for offset in (-1, 22):
        with pytest.raises(OffsetOutOfRangeError):
            small.get(offset)


def test_a_range_is_fixed_when_it_is_asked_for(small: Partition) -> None:
    fill(small, 5)
    read = small.records()
    fill(small, 30)
    assert [record.offset for record in read] == [0, 1, 2, 3, 4]


def test_batches_stop_after_max_bytes_but_not_before_the_first(small: Partition) -> None:
    fill(small, 20)
    size = next(small.batches()).size_bytes
    assert len(list(small.batches(max_bytes=0))) == 1
    assert len(list(small.batches(max_bytes=1))) == 1
    assert len(list(small.batches(max_bytes=size))) == 1
    assert len(list(small.batches(max_bytes=3 * size))) == 3
    assert len(list(small.batches(max_bytes=10**9))) == 20


def test_batches_are_cut_to_the_range(partition: Partition) -> None:
    partition.append_many([b"0", b"1", b"2", b"3"])
    partition.append_many([b"4", b"5"])
    found = [batch.values() for batch in partition.batches(2, 5)]
    assert found == [[b"2", b"3"], [b"4"]]


def test_a_timestamp_finds_the_first_offset_that_late(small: Partition) -> None:
    stamps = [50, 10, 20, 60, 55, 40, 70, 70, 65, 100, 1, 2, 3, 4, 90, 120]
    for stamp in stamps:
        small.append(bytes(100), timestamp=stamp)
    small.append_many([b""] * 3, timestamps=[5, 200, 150])
    stamps += [5, 200, 150]
    assert len(small.segments) > 2
    for wanted in range(0, 210):
        expected = next((offset for offset, stamp in enumerate(stamps) if stamp >= wanted), None)
        assert small.offset_for_timestamp(wanted) == expected


def test_a_timestamp_is_not_found_below_start_offset(small: Partition) -> None:
    fill(small, 20)
    small.trim_before(7)
    assert small.offset_for_timestamp(0) == 7
    assert small.offset_for_timestamp(1_005) == 7
    assert small.offset_for_timestamp(1_015) == 15
    assert small.offset_for_timestamp(1_020) is None


def test_an_empty_partition_has_no_offset_for_any_timestamp(partition: Partition) -> None:
    assert partition.offset_for_timestamp(0) is None


def test_sizes_add_up(small: Partition) -> None:
    fill(small, 20)
    on_disk = sum(os.path.getsize(segment.path) for segment in small.segments)
    assert small.size_bytes == on_disk


# --- segments


def test_a_partition_rolls_when_a_segment_is_full(small: Partition) -> None:
    fill(small, 30)
    segments = small.segments
    assert all(0 < segment.size_bytes <= 1_000 for segment in segments)
    assert segments[0].base_offset == 0
    assert all(one.base_offset < other.base_offset for one, other in pairwise(segments))
    assert names(small.path, ".log") == [f"{segment.base_offset:020d}.log" for segment in segments]


def test_an_empty_segment_does_not_roll(partition: Partition) -> None:
    partition.roll()
    assert len(partition.segments) == 1
    partition.append(b"a")
    partition.roll()
    partition.roll()
    assert [segment.base_offset for segment in partition.segments] == [0, 1]
    assert partition.next_offset == 1


def test_a_partition_rolls_when_a_record_is_segment_ms_after_the_first(log: CommitLog) -> None:
    partition = log.create_topic("t", config={"segment_ms": 1_000}).partition(0)
    for stamp in (10_000, 11_000, 5, 11_001, 11_500, 12_001, 12_002):
        partition.append(b"x", timestamp=stamp)
    assert [segment.base_offset for segment in partition.segments] == [0, 3, 6]


def test_a_reopened_partition_goes_on_in_its_active_segment(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        partition = log.create_topic("t").partition(0)
        fill(partition, 5)
    for round_ in range(3):
        with commitlog.open(log_path) as log:
            partition = log.topic("t").partition(0)
            assert partition.next_offset == 5 + round_
            fill(partition, 1)
            assert len(partition.segments) == 1
            assert [record.offset for record in partition.records()] == list(range(6 + round_))


# --- syncing


def test_durable_offset_moves_only_with_a_sync(small: Partition) -> None:
    fill(small, 20)
    assert small.durable_offset == 0
    small.sync()
    assert small.durable_offset == 20
    small.append(b"more")
    assert small.durable_offset == 20
    small.append(b"more", sync=True)
    assert small.durable_offset == 22
    small.append_many([b"more"] * 2, sync=True)
    assert small.durable_offset == 24


def synced_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the name of every file that is synced."""
    found: list[str] = []
    real = files.sync_data

    def recording(fd: int) -> None:
        found.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        real(fd)

    monkeypatch.setattr(files, "sync_data", recording)
    return found


def test_a_sync_covers_every_segment_that_was_sealed_since_the_last_one(
    small: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(small, 5)
    small.sync()
    fill(small, 25)
    synced = synced_files(monkeypatch)
    small.sync()
    assert {name for name in synced if name.endswith(".log")} == set(names(small.path, ".log"))
    synced.clear()
    small.sync()
    assert synced == []


def test_after_an_unclean_stop_the_durable_offset_stands_still_until_a_sync_covers_all(
    small: Partition, log: CommitLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(small, 5)
    small.sync()
    fill(small, 25)
    with commitlog.open(copy_as_if_killed(log, tmp_path / "copy")) as again:
        partition = again.topic("small").partition(0)
        assert (partition.durable_offset, partition.next_offset) == (5, 30)
        synced = synced_files(monkeypatch)
        partition.sync()
        assert partition.durable_offset == 30
        holding = [
            segment
            for segment, after in zip(partition.segments, [*partition.segments[1:], None], strict=True)
            if after is None or after.base_offset > 5
        ]
        assert {os.path.basename(segment.path) for segment in holding} <= set(synced)


def test_concurrent_synced_appends_share_syncs_and_are_all_durable(small: Partition) -> None:
    def work() -> None:
        for _ in range(20):
            offset = small.append(b"x" * 50, sync=True)
            assert small.durable_offset > offset

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert small.next_offset == small.durable_offset == 80
    assert [record.offset for record in small.records()] == list(range(80))


@pytest.mark.parametrize("change", ["roll", "append"])
def test_a_roll_in_the_middle_of_a_sync_does_not_disturb_it(
    small: Partition, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    fill(small, 5)
    real = files.sync_data
    rolled = threading.Event()

    def in_the_middle(fd: int) -> None:
        if not rolled.is_set():
            rolled.set()
            work = small.roll if change == "roll" else lambda: fill(small, 30)
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        real(fd)

    monkeypatch.setattr(files, "sync_data", in_the_middle)
    small.sync()
    assert len(small.segments) > 1
    assert small.durable_offset >= 5
    small.sync()
    assert small.durable_offset == small.next_offset
    assert small.failure is None


def test_a_failed_sync_ends_appends_until_the_log_is_opened_again(
    log_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = commitlog.open(log_path)
    partition = log.create_topic("t", config=QUIET).partition(0)
    partition.append(b"a")
    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_data", lambda fd: (_ for _ in ()).throw(OSError(5, "broken")))
        with pytest.raises(PartitionFailedError, match="broken"):
            partition.sync()
    for call in (
        lambda: partition.append(b"b"),
        lambda: partition.append_many([b"b"]),
        partition.sync,
        partition.roll,
        lambda: partition.trim_before(1),
        lambda: partition.truncate_from(0),
    ):
        with pytest.raises(PartitionFailedError, match=r"t-0.*broken"):
            call()
    assert partition.durable_offset == 0
    assert [record.value for record in partition.records()] == [b"a"]
    assert not log.health().ok
    log.close()
    with commitlog.open(log_path) as log:
        partition = log.topic("t").partition(0)
        assert not log.recovery[0].clean
        assert [record.value for record in partition.records()] == [b"a"]
        assert partition.append(b"b") == 1


# --- trimming and truncating


def test_trimming_removes_records_from_the_front_and_whole_segments_with_them(small: Partition) -> None:
    fill(small, 30)
    whole, segments = contents(small), small.segments
    for offset in range(0, 31):
        small.trim_before(offset)
        assert (small.start_offset, small.next_offset) == (offset, 30)
        assert contents(small) == whole[offset:]
        assert small.segments[0].base_offset <= offset
        assert len(small.segments) == 1 or small.segments[1].base_offset > offset
    assert len(small.segments) == 1
    assert segments[0].base_offset == 0


def test_trimming_everything_keeps_next_offset(small: Partition) -> None:
    fill(small, 30)
    small.trim_before(30)
    assert contents(small) == []
    assert small.size_bytes == 0
    assert small.append(b"next") == 30
    assert [record.offset for record in small.records()] == [30]


def test_trimming_inside_a_batch_hides_its_front(partition: Partition) -> None:
    partition.append_many([b"0", b"1", b"2", b"3"])
    partition.trim_before(2)
    assert [record.value for record in partition.records()] == [b"2", b"3"]
    assert partition.get(2).value == b"2"
    with pytest.raises(OffsetOutOfRangeError):
        partition.get(1)


def test_trimming_below_the_start_changes_nothing(small: Partition) -> None:
    fill(small, 10)
    small.trim_before(5)
    before = tree(small.path)
    small.trim_before(3)
    small.trim_before(5)
    small.trim_before(-7)
    assert small.start_offset == 5
    assert tree(small.path) == before


def test_trimming_above_next_offset_is_out_of_range_and_changes_nothing(small: Partition) -> None:
    fill(small, 10)
    before = tree(small.path)
    with pytest.raises(OffsetOutOfRangeError):
        small.trim_before(11)
    assert small.start_offset == 0
    assert tree(small.path) == before


def test_trimmed_records_stay_away_after_reopening(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        partition = log.create_topic("t", config={"segment_bytes": 1_000}).partition(0)
        fill(partition, 30)
        partition.trim_before(17)
        whole = contents(partition)
    with commitlog.open(log_path) as log:
        partition = log.topic("t").partition(0)
        assert (partition.start_offset, partition.next_offset) == (17, 30)
        assert contents(partition) == whole


def test_removed_segments_are_renamed_at_once_and_unlinked_when_their_time_has_come(log: CommitLog) -> None:
    config = {"segment_bytes": 1_000, "file_delete_delay_ms": 60_000}
    partition = log.create_topic("t", config=config).partition(0)
    fill(partition, 30)
    gone = [os.path.basename(segment.path) for segment in partition.segments[:-1]]
    partition.trim_before(30)
    assert not set(gone) & set(names(partition.path))
    assert {name + ".deleted" for name in gone} <= set(names(partition.path))
    partition.empty_trash(now=0.0)
    assert {name + ".deleted" for name in gone} <= set(names(partition.path))
    partition.empty_trash(now=float("inf"))
    assert names(partition.path, ".deleted") == []


def test_removed_segments_whose_time_never_came_go_at_the_next_open(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        partition = log.create_topic("t", config={"segment_bytes": 1_000}).partition(0)
        fill(partition, 30)
        partition.trim_before(20)
        assert names(partition.path, ".deleted")
    with commitlog.open(log_path) as log:
        assert names(log.topic("t").partition(0).path, ".deleted") == []


def test_a_reader_finishes_what_it_began_in_a_segment_that_is_trimmed_away(small: Partition) -> None:
    fill(small, 30)
    read = small.batches()
    first = next(read)
    small.trim_before(30)
    small.empty_trash(now=float("inf"))
    assert [record.offset for record in first.records()] == [0]
    with pytest.raises(OffsetOutOfRangeError):
        for _ in read:
            pass


def test_truncating_removes_records_from_the_back(small: Partition) -> None:
    small.append_many([b"%d" % number for number in range(7)])
    fill(small, 15)
    small.append_many([b"%d" % number for number in range(8)])
    whole = contents(small)
    for offset in range(30, -1, -1):
        small.truncate_from(offset)
        assert small.next_offset == offset
        assert contents(small) == whole[:offset]
        if offset:
            assert small.get(offset - 1) == whole[offset - 1]


def test_the_next_append_after_a_truncation_gets_the_offset_that_was_truncated(small: Partition) -> None:
    whole = fill(small, 20)
    small.truncate_from(13)
    assert small.append(b"new") == 13
    assert contents(small)[:13] == whole[:13]
    assert small.get(13).value == b"new"
    assert small.next_offset == 14


def test_truncating_at_next_offset_changes_nothing(small: Partition) -> None:
    fill(small, 20)
    before = tree(small.path)
    small.truncate_from(20)
    assert small.next_offset == 20
    assert tree(small.path) == before


@pytest.mark.parametrize("offset", [-1, 4, 21])
def test_truncating_outside_the_log_is_out_of_range_and_changes_nothing(
    small: Partition, offset: int
) -> None:
    fill(small, 20)
    small.trim_before(5)
    before = tree(small.path)
    with pytest.raises(OffsetOutOfRangeError):
        small.truncate_from(offset)
    assert (small.start_offset, small.next_offset) == (5, 20)
    assert tree(small.path) == before


def test_appending_two_and_truncating_the_second_thirty_times_over_keeps_the_first(
    partition: Partition,
) -> None:
    for number in range(30):
        assert partition.append(b"first %d" % number) == number
        assert partition.append(b"second") == number + 1
        partition.truncate_from(number + 1)
        assert [record.value for record in partition.records()] == [
            b"first %d" % earlier for earlier in range(number + 1)
        ]


def test_truncating_everything_resets_roll_time_and_indexes(log: CommitLog) -> None:
    config = {"segment_ms": 1_000, "index_interval_bytes": 0}
    partition = log.create_topic("t", config=config).partition(0)
    for stamp in range(10_000, 10_500, 10):
        partition.append(b"x" * 50, timestamp=stamp)
    partition.truncate_from(0)
    assert (partition.size_bytes, partition.next_offset) == (0, 0)
    assert partition.offset_for_timestamp(0) is None
    partition.append(b"late", timestamp=900_000)
    partition.append(b"early", timestamp=5)
    assert len(partition.segments) == 1
    assert partition.offset_for_timestamp(10_000) == 0
    assert partition.offset_for_timestamp(5) == 0
    assert partition.get(1).value == b"early"


def test_truncating_lowers_the_durable_offset(small: Partition) -> None:
    fill(small, 20)
    small.sync()
    small.truncate_from(12)
    assert small.durable_offset == 12
    small.append(b"x")
    assert small.durable_offset == 12


def test_a_truncated_partition_is_the_same_after_reopening(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        partition = log.create_topic("t", config={"segment_bytes": 1_000}).partition(0)
        partition.append_many([b"%d" % number for number in range(9)])
        fill(partition, 20)
        partition.truncate_from(5)
        partition.append(b"new")
        whole = contents(partition)
    with commitlog.open(log_path) as log:
        assert contents(log.topic("t").partition(0)) == whole


def test_truncating_into_a_gap_removes_what_follows_the_gap_and_keeps_the_offset(log: CommitLog) -> None:
    partition = log.create_topic("t", config=QUIET).partition(0)
    for number in range(10):
        partition.append(b"%d" % number)
    partition.roll()
    size = partition.segments[0].size_bytes // 10
    for number in (3, 4, 5, 6):
        flip(partition.segments[0].path, number * size + 70)
    partition.repair()
    assert [record.offset for record in partition.records()] == [0, 1, 2, 7, 8, 9]
    partition.truncate_from(5)
    assert [record.offset for record in partition.records()] == [0, 1, 2]
    assert partition.next_offset == 5
    assert partition.append(b"new") == 5
    assert [record.offset for record in partition.records()] == [0, 1, 2, 5]


# --- waiting


def test_waiting_for_an_offset_that_is_there_returns_at_once(partition: Partition) -> None:
    partition.append(b"a")
    assert partition.wait_for(0)
    assert partition.wait_for(0, timeout=0)


def test_waiting_in_vain_ends_with_the_timeout(partition: Partition) -> None:
    assert not partition.wait_for(0, timeout=0)
    assert not partition.wait_for(0, timeout=0.01)


@pytest.mark.parametrize("append", ["append", "append_many", "append_timestamped"])
def test_an_append_wakes_who_waits_for_it(partition: Partition, append: str) -> None:
    woken: list[bool] = []
    waiter = threading.Thread(target=lambda: woken.append(partition.wait_for(2, timeout=30)))
    waiter.start()
    wait_until(lambda: partition._state.waiters.count)
    for _ in range(3):
        if append == "append":
            partition.append(b"a")
        elif append == "append_many":
            partition.append_many([b"a"])
        else:
            partition.append(b"a", timestamp=5)
    waiter.join()
    assert woken == [True]


def test_closing_wakes_who_waits(log: CommitLog) -> None:
    partition = log.create_topic("t").partition(0)
    woken: list[bool] = []
    waiter = threading.Thread(target=lambda: woken.append(partition.wait_for(0, timeout=30)))
    waiter.start()
    wait_until(lambda: partition._state.waiters.count)
    log.close()
    waiter.join()
    assert woken == [False]


# --- threads


def test_threads_append_and_read_together_and_every_read_is_a_prefix(log: CommitLog) -> None:
    partition = log.create_topic("t", config={"segment_bytes": 2_000}).partition(0)
    problems: list[str] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            found = [record.offset for record in partition.records()]
            if found != list(range(len(found))):
                problems.append(f"read {found[:5]} .. {found[-5:]}")

    readers = [threading.Thread(target=read) for _ in range(2)]
    writers = [
        threading.Thread(target=lambda: [partition.append(b"x" * 30) for _ in range(300)]) for _ in range(3)
    ]
    for thread in (*readers, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    for thread in readers:
        thread.join()
    assert problems == []
    assert [record.offset for record in partition.records()] == list(range(900))


def test_appending_truncating_and_reading_together_never_shows_anything_but_a_prefix(log: CommitLog) -> None:
    partition = log.create_topic("t", config={"segment_bytes": 1_000, **QUIET}).partition(0)
    problems: list[Any] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            try:
                found = [(record.offset, record.value) for record in partition.records()]
            except OffsetOutOfRangeError:
                continue
            for number, (offset, value) in enumerate(found):
                if offset != number or value != b"%d" % offset:
                    problems.append((number, offset, value))

    reader = threading.Thread(target=read)
    reader.start()
    for round_ in range(30):
        for _ in range(10):
            partition.append(b"%d" % partition.next_offset)
        partition.truncate_from(partition.next_offset - round_ % 10)
    done.set()
    reader.join()
    assert problems == []
    assert [record.value for record in partition.records()] == [
        b"%d" % n for n in range(partition.next_offset)
    ]


# --- closing


def test_a_closed_partition_refuses_everything(log: CommitLog) -> None:
    partition = log.create_topic("t").partition(0)
    partition.append(b"a")
    log.close()
    for call in (
        lambda: partition.append(b"b"),
        lambda: partition.append(b"b", timestamp=5),
        lambda: partition.append_many([b"b"]),
        partition.sync,
        partition.roll,
        lambda: partition.trim_before(1),
        lambda: partition.truncate_from(0),
        partition.repair,
        partition.verify,
        lambda: list(partition.records()),
        lambda: list(partition.batches()),
        lambda: partition.get(0),
        partition.to_arrow,
        lambda: partition.offset_for_timestamp(0),
    ):
        with pytest.raises(ClosedError, match="t-0"):
            call()
    assert partition.next_offset == 1


def test_the_repr_of_a_partition_tells_its_name_and_range(small: Partition) -> None:
    fill(small, 5)
    small.trim_before(2)
    assert repr(small) == "<Partition small-0 [2, 5)>"


# --- damage


def test_damage_is_an_error_for_who_reads_there_and_for_nobody_else(small: Partition) -> None:
    whole = fill(small, 30)
    victim = small.segments[1]
    flip(victim.path, 75)
    with pytest.raises(CorruptionError) as caught:
        contents(small)
    assert caught.value.path == victim.path
    assert caught.value.position == 0
    assert list(small.records(0, victim.base_offset)) == whole[: victim.base_offset]
    after = small.segments[2].base_offset
    assert list(small.records(after)) == whole[after:]


# --- where offsets end


def test_appends_that_would_pass_the_last_offset_are_refused_before_anything_is_written(
    log_path: Path, tmp_path: Path
) -> None:
    end = 2**63 - 1
    with commitlog.open(log_path) as log:
        partition = log.create_topic("t", config=QUIET).partition(0)
        partition.restart_at(end - 5)
        assert partition.append(b"a") == end - 5
        assert list(partition.append_many([b"b", b"c"])) == [end - 4, end - 3]
        size = partition.size_bytes
        with pytest.raises(OffsetOutOfRangeError):
            partition.append_many([b"too", b"many", b"of them"])
        assert partition.size_bytes == size
        assert [partition.append(b"d"), partition.append(b"e")] == [end - 2, end - 1]
        for _ in range(2):
            with pytest.raises(OffsetOutOfRangeError, match=str(end)):
                partition.append(b"f", sync=True)
        partition.roll()
        with pytest.raises(OffsetOutOfRangeError):
            partition.append(b"f")
        assert [record.value for record in partition.records()] == [b"a", b"b", b"c", b"d", b"e"]
        killed = copy_as_if_killed(log, tmp_path / "killed")
    for path in (log_path, killed):
        for mode in ("r", "w"):
            with commitlog.open(path, mode=mode) as log:
                partition = log.topic("t").partition(0)
                assert (partition.next_offset, len(contents(partition))) == (end, 5)
                assert partition.verify().ok


def test_a_log_that_starts_over_beyond_the_last_offset_is_refused(log: CommitLog) -> None:
    partition = log.create_topic("t", config=QUIET).partition(0)
    for offset in (2**63, -1):
        with pytest.raises(OffsetOutOfRangeError):
            partition.restart_at(offset)
    partition.restart_at(2**63 - 1)
    with pytest.raises(OffsetOutOfRangeError):
        partition.append(b"x")


# --- files that somebody removed


@pytest.mark.parametrize("notices", ["sync", "append", "roll", "housekeeping", "close"])
@pytest.mark.parametrize("shared", [False, True])
def test_a_log_removed_under_its_writer_takes_no_more_appends(
    log_path: Path, notices: str, shared: bool
) -> None:
    log = commitlog.open(log_path, mode="shared" if shared else "w")
    partition = log.create_topic("t", config=QUIET).partition(0)
    partition.append(b"there", sync=True)
    shutil.rmtree(log_path)
    partition.append(b"into nothing")
    if notices == "housekeeping":
        wait_until(lambda: partition.failure)
    else:
        act = {
            "sync": partition.sync,
            "append": lambda: partition.append(b"x", sync=True),
            "roll": partition.roll,
            "close": log.close,
        }[notices]
        with pytest.raises(PartitionFailedError, match=r"\.log was removed"):
            act()
    with pytest.raises(PartitionFailedError if notices != "close" else commitlog.CommitLogError):
        partition.append(b"more")
    assert notices == "close" or log.health().failed_partitions[0][0] == "t-0"
    with contextlib.suppress(commitlog.CommitLogError, OSError):
        log.close()


@pytest.mark.parametrize("needs", ["a segment", "a longer index"])
def test_a_directory_renamed_under_its_writer_ends_its_partitions(log_path: Path, needs: str) -> None:
    with commitlog.open(log_path) as log:
        config = {**QUIET, "index_interval_bytes": 0, "segment_index_bytes": 1 << 20}
        partition = log.create_topic("t", config=config).partition(0)
        partition.append(b"there", sync=True)
        (log_path / "t-0").rename(log_path / "elsewhere")
        with pytest.raises(PartitionFailedError):
            if needs == "a segment":
                partition.roll()
            for _ in range(1_000):
                partition.append(b"x")
        assert log.health().failed_partitions[0][0] == "t-0"
        (log_path / "elsewhere").rename(log_path / "t-0")
    with commitlog.open(log_path) as log:
        records = contents(log.topic("t").partition(0))
        assert records[0].value == b"there"
        assert [record.offset for record in records] == list(range(len(records)))
