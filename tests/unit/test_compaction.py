from __future__ import annotations

import contextlib
import errno
import gc
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import CODECS, contents, encoded, flip, names, stored, tree

import commitlog
from commitlog import (
    ClosedError,
    CommitLog,
    ConfigError,
    CorruptionError,
    DiskFullError,
    InvalidRecordError,
    LogConfig,
    Partition,
    VerifyReport,
    compaction,
    files,
    keymap,
    maintenance,
    tasks,
)
from commitlog.batches.columns import pack_bytes
from commitlog.batches.encode import Columns, EncodedBatch, assemble, encode_empty
from commitlog.batches.format import LOG_APPEND_TIME
from commitlog.partitions import reader
from commitlog.partitions.state import LogState
from commitlog.segment import segment_path
from commitlog.segment_files import CleanedFile

ONE_KEY = 1  # bytes, for a map with room for one key
CONFIG = {"cleanup_policy": "compact", "flush_ms": -1, "file_delete_delay_ms": 0}
LATER = 1_000_000

Pair = tuple[bytes | None, bytes | None]


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pass runs but those that a test asks for."""
    monkeypatch.setattr(tasks.Task, "start", lambda self: None)


@pytest.fixture
def opened(log_path: Path) -> Iterator[Callable[..., CommitLog]]:
    """Opens the log with other settings, after closing it if it is open."""
    with contextlib.ExitStack() as last:

        def again(**settings: Any) -> CommitLog:
            last.close()
            return last.enter_context(commitlog.open(log_path, config=LogConfig(**settings)))

        yield again


@pytest.fixture
def compacted(log: CommitLog) -> Partition:
    """A partition of a topic with cleanup_policy=compact."""
    partition: Partition = log.create_topic("c", config=CONFIG).partition(0)
    return partition


def put(partition: Partition, *pairs: Pair, timestamp: int = 1_000, roll: bool = True) -> None:
    """Append a batch, as a segment of its own."""
    partition.append_many(
        [value for _, value in pairs], keys=[key for key, _ in pairs], timestamps=[timestamp] * len(pairs)
    )
    if roll:
        partition.roll()


def put_each(partition: Partition, *pairs: Pair) -> None:
    """Append records, each as a segment of its own."""
    for pair in pairs:
        put(partition, pair)


def numbered(keys: Sequence[int]) -> list[Pair]:
    return [(b"key %d" % key, b"value %d" % place) for place, key in enumerate(keys)]


def offsets(partition: Partition) -> list[int]:
    return [record.offset for record in partition.records()]


def bases(partition: Partition) -> list[int]:
    return [segment.base_offset for segment in partition.segments]


def during_a_pass(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Act once, when a pass has written its first file and is about to put it in place."""
    real = CleanedFile.finish
    pending = [act]

    def finish(self: CleanedFile, next_offset: int) -> None:
        real(self, next_offset)
        while pending:
            pending.pop()()

    monkeypatch.setattr(CleanedFile, "finish", finish)


# --- what stays


def test_only_the_latest_record_of_each_key_stays_as_it_was(compacted: Partition) -> None:
    put(compacted, *numbered([0, 1, 0, 2]))
    put(compacted, *numbered([1, 1, 3]))
    before = contents(compacted)
    report = compacted.compact()
    assert contents(compacted) == [before[place] for place in (2, 3, 5, 6)]
    assert (compacted.start_offset, compacted.next_offset, compacted.clean_offset) == (0, 7, 7)
    assert (report.records_before, report.records_after, report.keys) == (7, 4, 4)
    assert (report.first_dirty_offset, report.clean_offset, report.stopped_by) == (0, 7, None)
    assert report.bytes_after < report.bytes_before


def test_readers_see_how_far_compaction_came(log_path: Path) -> None:
    with commitlog.open(log_path) as log, commitlog.open(log_path, mode="r") as reader_log:
        compacted = log.create_topic("c", config=CONFIG).partition(0)
        seen = reader_log.topic("c").partition(0)
        put(compacted, *numbered([0, 1, 0]))
        assert seen.clean_offset == 0
        compacted.compact()
        assert seen.clean_offset == 3
    with commitlog.open(log_path, mode="r") as reader_log:
        assert reader_log.topic("c").partition(0).clean_offset == 3
    with commitlog.open(log_path, mode="shared") as log:
        assert log.topic("c").partition(0).clean_offset == 3


def test_a_pass_over_a_map_of_one_key_gets_on_key_by_key(opened: Callable[..., CommitLog]) -> None:
    log = opened(cleaner_dedupe_buffer_bytes=ONE_KEY)
    partition = log.create_topic("c", config=CONFIG).partition(0)
    put_each(partition, *numbered([0, 1, 0, 1, 0]))
    left = []
    for _ in range(5):
        report = partition.compact()
        left.append(offsets(partition))
    assert left == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [1, 2, 3, 4], [2, 3, 4], [3, 4]]
    assert (report.stopped_by, report.map_use) == (None, 1.0)


@pytest.mark.parametrize("room", [ONE_KEY, 24 * 3, 24 * 5, 24 * 11, 1 << 16])
@pytest.mark.parametrize("batch", [1, 7, 100])
def test_passes_with_a_map_of_any_size_end_with_one_record_a_key(
    opened: Callable[..., CommitLog], room: int, batch: int
) -> None:
    log = opened(cleaner_dedupe_buffer_bytes=room)
    partition = log.create_topic("c", config={**CONFIG, "segment_bytes": 1_000}).partition(0)
    chance = random.Random(1)
    pairs = numbered([chance.randrange(9) for _ in range(60)])
    for start in range(0, 60, batch):
        put(partition, *pairs[start : start + batch], roll=False)
    partition.roll()
    passes = 0
    while partition.clean_offset < 60:
        before, passes = partition.clean_offset, passes + 1
        assert partition.compact().clean_offset > before
        assert {one.key: one.value for one in contents(partition)} == dict(pairs)
    assert offsets(partition) == sorted({key: place for place, (key, _) in enumerate(pairs)}.values())
    assert passes == 1 or room < 1 << 16


def test_a_second_pass_changes_nothing(compacted: Partition) -> None:
    put_each(compacted, *numbered([0, 1, 0, 2, 1]))
    compacted.compact()
    files_after, records = tree(compacted.path), contents(compacted)
    report = compacted.compact()
    assert (report.records_before, report.records_after) == (3, 3)
    assert (tree(compacted.path), contents(compacted)) == (files_after, records)


@pytest.mark.parametrize("codec", CODECS)
def test_what_stays_has_its_codec_headers_nulls_and_timestamps(log: CommitLog, codec: str) -> None:
    config = {**CONFIG, "compression_type": codec, "delete_retention_ms": 10**9}
    partition = log.create_topic("c", config=config).partition(0)
    chance = random.Random(codec)
    for _ in range(6):
        count = chance.randint(1, 40)
        partition.append_many(
            [chance.choice([None, b"", b"value" * chance.randint(1, 30)]) for _ in range(count)],
            keys=[b"%d" % chance.randrange(60) * chance.choice([1, 1, 9]) for _ in range(count)],
            headers=[[("h", None), ("é", b"x" * chance.randint(0, 9))][: chance.randint(0, 2)]] * count,
            timestamps=[chance.randrange(10**6) for _ in range(count)],
        )
        partition.roll()
    latest = {record.key: record for record in partition.records()}
    partition.compact()
    assert contents(partition) == sorted(latest.values())
    found = {batch.header.compression_type for batch in partition.batches()}
    assert found <= {codec, "none"}
    assert codec in found


def test_records_without_a_key_stay_in_a_topic_that_became_compacted(log: CommitLog) -> None:
    topic = log.create_topic("c", config={"flush_ms": -1, "delete_retention_ms": 0})
    partition = topic.partition(0)
    put(partition, (b"a", b"1"), (None, b"no key"), (None, None), (b"a", None))
    put(partition, (None, None), (None, b"no key"))
    put(partition, (b"b", b"1"), (b"b", b"2"))
    topic.alter_config(cleanup_policy="compact")
    for now in (LATER, LATER + 1, LATER + 2):
        partition.compact(now)
    assert offsets(partition) == [1, 2, 4, 5, 7]
    assert partition.latest() == {b"b": b"2"}


def test_records_without_a_key_stay_beside_others_in_a_batch_that_passes_reach_in_part(
    opened: Callable[..., CommitLog],
) -> None:
    topic = opened(cleaner_dedupe_buffer_bytes=ONE_KEY).create_topic("c", config={"flush_ms": -1})
    partition = topic.partition(0)
    put(partition, (None, b"0"), (b"a", b"1"), (b"b", b"2"), (None, None), (b"a", b"4"), (None, b"5"))
    topic.alter_config(cleanup_policy="compact")
    left = []
    for _ in range(3):
        partition.compact()
        left.append(offsets(partition))
    assert left == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], [0, 2, 3, 4, 5]]


def test_only_a_compacted_topic_is_compacted(partition: Partition) -> None:
    with pytest.raises(ConfigError):
        partition.compact()


# --- what is not touched


def test_the_active_segment_is_not_touched(compacted: Partition) -> None:
    put(compacted, *numbered([0, 0, 1]))
    put(compacted, *numbered([0, 0, 1]), roll=False)
    assert compacted.compact().clean_offset == 3
    assert offsets(compacted) == [1, 2, 3, 4, 5]


def test_a_log_with_an_active_segment_only_has_nothing_to_clean(compacted: Partition) -> None:
    put(compacted, *numbered([0, 0]), roll=False)
    assert compacted.compact().stopped_by == "nothing to clean"
    assert offsets(compacted) == [0, 1]


def test_nothing_above_the_high_watermark_is_looked_at(
    compacted: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(compacted, *numbered([0, 0]))
    put(compacted, *numbered([1, 0]))
    put(compacted, *numbered([1, 0]))
    with monkeypatch.context() as patch:
        patch.setattr(LogState, "high_watermark", property(lambda self: 3))
        assert compacted.compact().clean_offset == 2
    assert offsets(compacted) == [1, 2, 3, 4, 5]


def test_nothing_younger_than_the_lag_is_looked_at(log: CommitLog) -> None:
    config = {**CONFIG, "min_compaction_lag_ms": 100}
    partition = log.create_topic("c", config=config).partition(0)
    put(partition, *numbered([0, 0]), timestamp=1_000)
    put(partition, *numbered([0, 0]), timestamp=2_000)
    put(partition, *numbered([0, 0]), timestamp=1_000)
    assert partition.compact(1_099).stopped_by == "nothing to clean"
    assert partition.compact(2_099).clean_offset == 2
    assert offsets(partition) == [1, 2, 3, 4, 5]
    assert partition.compact(2_100).clean_offset == 6
    assert offsets(partition) == [5]


def test_without_a_lag_a_record_dated_in_the_future_holds_nothing_up(compacted: Partition) -> None:
    put(compacted, *numbered([0, 0]), timestamp=10**15)
    put(compacted, *numbered([1, 1]))
    compacted.compact(LATER)
    assert offsets(compacted) == [1, 3]


def test_what_was_trimmed_inside_a_segment_goes_with_the_next_pass(compacted: Partition) -> None:
    put(compacted, *numbered([0, 1, 2, 3]))
    compacted.trim_before(2)
    report = compacted.compact()
    assert (report.records_before, report.records_after) == (4, 2)
    assert (compacted.start_offset, offsets(compacted)) == (2, [2, 3])


# --- tombstones


@pytest.mark.parametrize("timestamp", [0, 1_000, 10**15])
def test_a_tombstone_lives_from_the_pass_that_first_cleaned_it(log: CommitLog, timestamp: int) -> None:
    config = {**CONFIG, "delete_retention_ms": 500}
    partition = log.create_topic("c", config=config).partition(0)
    put(partition, (b"a", b"1"), (b"b", b"1"), (b"a", None), timestamp=timestamp)
    for now in (10_000, 10_001, 10_499):
        assert partition.compact(now).tombstones_removed == 0
        assert offsets(partition) == [1, 2]
    assert partition.compact(10_500).tombstones_removed == 1
    assert offsets(partition) == [1]
    assert partition.latest() == {b"b": b"1"}


def test_a_tombstone_that_a_pass_did_not_reach_has_its_time_from_the_next(
    opened: Callable[..., CommitLog],
) -> None:
    log = opened(cleaner_dedupe_buffer_bytes=ONE_KEY)
    partition = log.create_topic("c", config={**CONFIG, "delete_retention_ms": 500}).partition(0)
    put_each(partition, (b"a", b"1"), (b"b", None))
    assert partition.compact(1_000).clean_offset == 1
    partition.compact(1_400)
    partition.compact(1_899)
    assert offsets(partition) == [0, 1]
    partition.compact(1_900)
    assert offsets(partition) == [0]


def test_a_tombstone_keeps_its_time_when_it_is_copied_merged_and_reopened(
    opened: Callable[..., CommitLog],
) -> None:
    log = opened()
    partition = log.create_topic("c", config={**CONFIG, "delete_retention_ms": 500}).partition(0)
    put(partition, (b"a", None))
    partition.compact(1_000)
    for number in range(3):
        put(partition, (b"b", b"%d" % number))
        partition.compact(1_100 + number)
        partition = opened().topic("c").partition(0)
    assert offsets(partition) == [0, 3]
    partition.compact(1_499)
    assert offsets(partition) == [0, 3]
    partition.compact(1_500)
    assert offsets(partition) == [3]


def test_a_tombstone_with_a_later_value_goes_at_once(compacted: Partition) -> None:
    put(compacted, (b"a", b"1"), (b"a", None), (b"a", b"2"))
    assert compacted.compact().tombstones_removed == 0
    assert offsets(compacted) == [2]


def test_a_deleted_key_does_not_come_back_when_its_tombstone_goes(opened: Callable[..., CommitLog]) -> None:
    log = opened(cleaner_dedupe_buffer_bytes=ONE_KEY)
    partition = log.create_topic("c", config={**CONFIG, "delete_retention_ms": 0}).partition(0)
    put_each(partition, (b"a", b"1"), (b"b", b"1"), (b"a", None), (b"b", None))
    for now in range(12):
        partition.compact(now)
        assert partition.latest() == {}
    assert offsets(partition) == []
    assert partition.next_offset == 4


def test_a_tombstone_in_a_batch_that_a_pass_reached_in_part_stays_until_it_was_cleaned(
    opened: Callable[..., CommitLog],
) -> None:
    """Or it could go before the values that it deletes do."""
    log = opened(cleaner_dedupe_buffer_bytes=ONE_KEY)
    partition = log.create_topic("c", config={**CONFIG, "delete_retention_ms": 0}).partition(0)
    put(partition, (b"a", b"1"))
    put(partition, (b"b", b"1"), (b"c", b"1"), (b"d", b"1"), (b"a", None))
    for now in range(8):
        partition.compact(now)
        assert partition.latest() == {b"b": b"1", b"c": b"1", b"d": b"1"}
    assert offsets(partition) == [1, 2, 3]


# --- when a pass is due


def due(partition: Partition, now: int) -> bool:
    return partition.cleanable(now).is_due(partition.config, now)


def test_a_pass_is_due_when_enough_is_dirty(log: CommitLog) -> None:
    config = {**CONFIG, "min_cleanable_dirty_ratio": 0.5}
    partition = log.create_topic("c", config=config).partition(0)
    assert not due(partition, LATER)
    put(partition, *((b"%d" % number, bytes(100)) for number in range(10)))
    assert due(partition, LATER)
    partition.compact()
    assert not due(partition, LATER)
    put(partition, (b"0", bytes(100)))
    assert 0 < partition.cleanable(LATER).dirty_ratio < 0.5
    assert not due(partition, LATER)


def test_a_record_that_waits_too_long_makes_a_pass_due_whatever_the_ratio(log: CommitLog) -> None:
    config = {**CONFIG, "min_cleanable_dirty_ratio": 1.0, "max_compaction_lag_ms": 1_000}
    partition = log.create_topic("c", config=config).partition(0)
    put(partition, *((b"%d" % number, bytes(100)) for number in range(10)), timestamp=5_000)
    partition.compact(5_000)
    put(partition, (b"0", b"1"), timestamp=5_500)
    assert not due(partition, 6_500)
    assert due(partition, 6_501)
    log.topic("c").alter_config(max_compaction_lag_ms=-1)
    assert not due(partition, 6_501)


# --- segments put together


def test_small_neighbours_become_one_segment(compacted: Partition) -> None:
    put_each(compacted, *numbered([0, 1, 0, 2, 1]))
    report = compacted.compact()
    assert (report.segments_before, report.segments_after) == (5, 1)
    assert bases(compacted) == [0, 5]
    assert offsets(compacted) == [2, 3, 4]


def test_segments_are_put_together_only_as_long_as_they_fit(log: CommitLog) -> None:
    config = {**CONFIG, "segment_bytes": 2_000}
    partition = log.create_topic("c", config=config).partition(0)
    put_each(partition, *((b"%d" % number, os.urandom(300)) for number in range(20)))
    report = partition.compact()
    sealed = partition.segments[:-1]
    assert len(offsets(partition)) == 20
    assert report.segments_after == len(sealed)
    assert 4 <= len(sealed) <= 10
    assert all(segment.size_bytes <= 2_000 for segment in sealed)


def test_segments_are_put_together_only_as_long_as_their_offsets_fit_an_index(
    tmp_path: Path, opened: Callable[..., CommitLog]
) -> None:
    """A segment's index holds 32 bits for an offset."""
    config = {**CONFIG, "index_interval_bytes": 0}
    partition = opened().create_topic("c", config=config).partition(0)
    for span in (1 << 31, 1 << 32, 1 << 31, 1 << 31):
        partition.append_encoded((encode_empty(span - 64, 0),))
        partition.append_encoded((of_producer((span, 0, 0), (b"a", b"1")),))
        partition.append_encoded((of_producer((span, 0, 1), (b"a", b"2")),))
        partition.roll()
    before = offsets(partition)
    partition.compact()
    assert offsets(partition) == before[-1:]
    assert len(partition.segments) < 5
    assert partition.get(before[-1]) is not None
    assert partition.verify().ok


# --- records without a key


def test_a_record_without_a_key_is_refused_with_its_number(log: CommitLog) -> None:
    pa = pytest.importorskip("pyarrow")
    topic = log.create_topic("c", 1, CONFIG)
    partition = topic.partition(0)
    arrow = pa.table({"value": [b"1", b"2", b"3"], "key": [b"a", b"b", None]})
    attempts: list[tuple[int, Callable[[], object]]] = [
        (0, lambda: partition.append(b"1")),
        (0, lambda: partition.append(None, headers=[("a", b"b")])),
        (0, lambda: partition.append_many([b"1", b"2"])),
        (1, lambda: partition.append_many([b"1", b"2"], keys=[b"a", None])),
        (2, lambda: partition.append_arrow(arrow)),
        (4, lambda: partition.append_arrow(pa.concat_tables([arrow.slice(0, 2), arrow]))),
        (0, lambda: partition.append_arrow(arrow.select(["value"]))),
        (0, lambda: topic.append(b"1")),
        (0, lambda: topic.append_many([b"1", b"2"])),
        (1, lambda: topic.append_many([b"1", b"2"], keys=[b"a", None], partition=0)),
    ]
    for index, attempt in attempts:
        with pytest.raises(InvalidRecordError) as problem:
            attempt()
        assert problem.value.args[0] == index
        assert partition.next_offset == 0


def test_a_topic_refuses_a_record_without_a_key_by_its_place_in_the_whole_and_appends_nothing(
    log: CommitLog,
) -> None:
    topic = log.create_topic("c", 4, CONFIG)
    keys = [b"%d" % number for number in range(20)]
    for missing in (0, 7, 19):
        broken = [None if place == missing else key for place, key in enumerate(keys)]
        with pytest.raises(InvalidRecordError) as problem:
            topic.append_many([b"v"] * 20, keys=broken)
        assert problem.value.args[0] == missing
    assert [partition.next_offset for partition in topic.partitions] == [0, 0, 0, 0]


# --- hashes, producers, epochs


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("room", [24 * 50, 1 << 20])
def test_a_hash_of_which_one_half_is_always_the_same_loses_no_key(
    opened: Callable[..., CommitLog], monkeypatch: pytest.MonkeyPatch, half: int, room: int
) -> None:
    real = keymap.hash_keys

    def weak(keys: Sequence[bytes], seed: int) -> keymap.Hashes:
        hashes = real(keys, seed).copy()
        hashes[:, half] = 7
        return hashes

    monkeypatch.setattr(keymap, "hash_keys", weak)
    log = opened(cleaner_dedupe_buffer_bytes=room)
    partition = log.create_topic("c", config=CONFIG).partition(0)
    chance = random.Random(half)
    pairs = numbered([chance.randrange(300) for _ in range(1_000)])
    for start in range(0, 1_000, 100):
        put(partition, *pairs[start : start + 100])
    while partition.clean_offset < 1_000:
        partition.compact()
        assert partition.latest() == dict(pairs)
    assert len(offsets(partition)) == len(dict(pairs))


def of_producer(producer: tuple[int, int, int], *pairs: Pair) -> EncodedBatch:
    columns = Columns(
        keys=pack_bytes([key for key, _ in pairs], "key"),
        values=pack_bytes([value for _, value in pairs], "value"),
    )
    return assemble(columns, len(pairs), 1_000, 0, producer=producer)


def producers(partition: Partition) -> list[tuple[int, tuple[int, int, int], int]]:
    """The batches of producers in the files: where they start, whose they are, how many records are left."""
    return [
        (batch.header.base_offset, batch.header.producer, len(batch))
        for segment in partition.segments
        for batch in segment.batches()
        if batch.header.producer_id != -1
    ]


def test_the_last_batch_of_each_producer_stays_even_without_records(compacted: Partition) -> None:
    for producer in ((1, 0, 0), (2, 5, 40), (1, 0, 2)):
        compacted.append_encoded((of_producer(producer, *numbered([0, 1])),))
    compacted.append_encoded((of_producer((3, 1, 0), (b"other", b"1")),))
    put(compacted, *numbered([0, 1]))
    compacted.compact()
    expected = [(2, (2, 5, 40), 0), (4, (1, 0, 2), 0), (6, (3, 1, 0), 1)]
    assert producers(compacted) == expected
    assert offsets(compacted) == [6, 7, 8]
    compacted.compact()
    assert producers(compacted) == expected
    compacted.append_encoded((of_producer((1, 0, 4), (b"new", b"1")),))
    compacted.roll()
    compacted.compact()
    assert producers(compacted) == [expected[0], expected[2], (9, (1, 0, 4), 1)]
    assert compacted.verify().ok


def test_the_last_batch_of_a_producer_stays_when_a_full_map_ends_the_pass_before_it(
    opened: Callable[..., CommitLog],
) -> None:
    partition = opened(cleaner_dedupe_buffer_bytes=ONE_KEY).create_topic("c", config=CONFIG).partition(0)
    for sequence, pair in enumerate(numbered([0, 0, 1, 0, 1])):
        partition.append_encoded((of_producer((1, 0, sequence), pair),))
        partition.roll()
    for _ in range(5):
        partition.compact()
        assert producers(partition)[-1] == (4, (1, 0, 4), 1)
    assert offsets(partition) == [3, 4]


def test_batches_of_different_leader_epochs_are_not_put_together(
    log_path: Path, opened: Callable[..., CommitLog]
) -> None:
    opened().create_topic("c", config=CONFIG)
    opened().close()
    epochs = [1, 1, 2, 2, 2, 5]
    raw = b"".join(
        stored(encoded([b"v"], keys=[b"%d" % (offset % 4)]), offset, epoch)
        for offset, epoch in enumerate(epochs)
    )
    Path(segment_path(str(log_path / "c-0"), 0)).write_bytes(raw)
    for derived in (*names(log_path / "c-0", "index"), "state"):
        (log_path / "c-0" / derived).unlink()
    (log_path / "clean-shutdown").unlink()
    partition = opened().topic("c").partition(0)
    partition.roll()
    partition.compact()
    assert offsets(partition) == [2, 3, 4, 5]
    found = [
        (batch.header.base_offset, batch.header.next_offset, batch.header.leader_epoch)
        for batch in partition.segments[0].batches()
    ]
    assert found == [(0, 2, 1), (2, 5, 2), (5, 6, 5)]


# --- a pass that does not come to its end


def nothing_is_left_of_a_pass(partition: Partition) -> bool:
    return not [name for name in names(partition.path) if name.endswith((".cleaned", ".swap"))]


def test_a_cancelled_pass_leaves_nothing(compacted: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    put_each(compacted, *numbered([0, 0, 1, 0]))
    real = CleanedFile.create
    monkeypatch.setattr(CleanedFile, "create", lambda *args: (compacted.cancel_compaction(), real(*args))[1])
    report = compacted.compact()
    assert (report.stopped_by, compacted.clean_offset) == ("cancelled", 0)
    assert nothing_is_left_of_a_pass(compacted)
    assert offsets(compacted) == [0, 1, 2, 3]
    monkeypatch.undo()
    assert compacted.compact().stopped_by is None
    assert offsets(compacted) == [2, 3]


class Slow:
    """A pass in a thread, held to one byte a second: it waits until it is cancelled."""

    def __init__(self, partition: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reports: list[compaction.CompactionReport] = []
        self.problems: list[Exception] = []
        began = threading.Event()
        real = compaction.Pace.spend

        def spend(pace: compaction.Pace, size_bytes: int) -> None:
            began.set()
            real(pace, size_bytes)

        monkeypatch.setattr(compaction.Pace, "spend", spend)
        self._thread = threading.Thread(target=self._run, args=(partition,), daemon=True)
        self._thread.start()
        assert began.wait(30)

    def _run(self, partition: Partition) -> None:
        try:
            self.reports.append(partition.compact())
        except Exception as problem:
            self.problems.append(problem)

    def end(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()


def test_a_throttled_pass_waits_and_is_cancelled_from_another_thread(
    opened: Callable[..., CommitLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = opened(cleaner_io_max_bytes_per_second=1).create_topic("c", config=CONFIG).partition(0)
    put_each(partition, *numbered([0, 0, 1]))
    slow = Slow(partition, monkeypatch)
    put_each(partition, *numbered([0, 0, 1]))  # appends and rolls do not wait for it
    assert len(offsets(partition)) == 6
    partition.cancel_compaction()
    slow.end()
    assert [report.stopped_by for report in slow.reports] == ["cancelled"]
    assert nothing_is_left_of_a_pass(partition)


def test_closing_the_log_ends_a_pass(
    opened: Callable[..., CommitLog], log_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(cleaner_io_max_bytes_per_second=1)
    partition = log.create_topic("c", config=CONFIG).partition(0)
    put_each(partition, *numbered([0, 0, 1]))
    slow = Slow(partition, monkeypatch)
    log.close()
    slow.end()
    assert [report.stopped_by for report in slow.reports] == ["cancelled"]
    with commitlog.open(log_path) as again:
        assert again.recovery[0].clean
        found = again.topic("c").partition(0)
        assert (offsets(found), found.verify().ok) == ([0, 1, 2], True)
        assert nothing_is_left_of_a_pass(found)


def test_no_pass_begins_while_the_log_closes(
    opened: Callable[..., CommitLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cleaner may be about to begin one when close() has just cancelled those that are under way."""
    log = opened(cleaner_io_max_bytes_per_second=1)
    partition = log.create_topic("c", config=CONFIG).partition(0)
    put_each(partition, *numbered([0, 0, 1]))
    real = tasks.Task.stop
    began: list[object] = []

    def stop(task: tasks.Task) -> None:
        if task.name == "cleaner":
            with pytest.raises(ClosedError):
                partition.compact()
            began.append(task)
        real(task)

    monkeypatch.setattr(tasks.Task, "stop", stop)
    monkeypatch.setattr(compaction.Pace, "spend", lambda *_: pytest.fail("a pass has begun"))
    log.close()
    assert began


def test_a_trim_under_a_pass_ends_it(compacted: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    put_each(compacted, *numbered([0, 0, 1, 0]))
    during_a_pass(monkeypatch, lambda: compacted.trim_before(2))
    report = compacted.compact()
    assert report.stopped_by == "changed"
    assert (offsets(compacted), compacted.clean_offset) == ([2, 3], 0)
    assert nothing_is_left_of_a_pass(compacted)
    compacted.compact()
    assert (offsets(compacted), compacted.clean_offset) == ([2, 3], 4)


def test_a_record_whose_successor_is_truncated_under_a_pass_stays(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {**CONFIG, "segment_bytes": 512}
    partition = log.create_topic("c", config=config).partition(0)
    put(partition, (b"a", bytes(300)), (b"b", b"1"))
    put(partition, (b"c", bytes(300)))
    put(partition, (b"a", bytes(300)))
    during_a_pass(monkeypatch, lambda: partition.truncate_from(3))
    report = partition.compact()
    assert (report.stopped_by, partition.clean_offset) == ("changed", 0)
    assert offsets(partition) == [0, 1, 2]
    assert partition.latest().keys() == {b"a", b"b", b"c"}
    assert nothing_is_left_of_a_pass(partition)


def test_after_a_truncation_new_records_are_dirty(compacted: Partition) -> None:
    put(compacted, *numbered([0, 1, 2, 3]))
    compacted.compact()
    assert compacted.clean_offset == 4
    compacted.truncate_from(2)
    assert compacted.clean_offset == 2
    put(compacted, *numbered([0, 1, 0]))
    compacted.compact()
    assert offsets(compacted) == [3, 4]


@pytest.mark.parametrize("roll", [False, True])
def test_verify_takes_no_swap_for_damage(
    compacted: Partition, monkeypatch: pytest.MonkeyPatch, roll: bool
) -> None:
    put_each(compacted, *numbered([0, 0, 1, 0]))
    put(compacted, (b"active", b"1"), roll=False)
    looked, real = threading.Event(), reader.verify_segments  # type: ignore[attr-defined]
    reports: list[VerifyReport] = []

    def verify_segments(*given: Any) -> VerifyReport:
        report = real(*given)
        looked.set()
        return report

    def retire(state: LogState, segment: Any) -> None:
        real_retire(state, segment)
        if not looked.is_set():
            if roll:
                compacted.roll()
            verifying.start()
            assert looked.wait(30)

    real_retire = LogState.retire
    verifying = threading.Thread(target=lambda: reports.append(compacted.verify()))
    monkeypatch.setattr(reader, "verify_segments", verify_segments)
    monkeypatch.setattr(LogState, "retire", retire)
    compacted.compact()
    verifying.join(30)
    assert [report.damage for report in reports] == [()]


# --- a pass that fails


@pytest.fixture
def two(log: CommitLog) -> list[Partition]:
    """Two partitions with something to clean."""
    partitions: list[Partition] = list(log.create_topic("c", 2, CONFIG).partitions)
    for partition in partitions:
        put_each(partition, *numbered([0, 0, 1, 0]))
    return partitions


def is_set_aside(log: CommitLog, broken: Partition, sound: Partition, *, for_now: bool = False) -> None:
    """The cleaner leaves a partition alone after its pass failed, says so, and cleans the other."""
    again = maintenance.clean_what_is_due(lambda: [broken, sound], LATER, lambda: False)
    assert not again, "nothing more can be done now"
    assert broken.compaction_error
    assert log.health().uncleanable_partitions == ((broken.name, broken.compaction_error),)
    assert not log.health().ok
    assert (broken.clean_offset, sound.clean_offset) == (0, 4)
    assert offsets(sound) == [2, 3]
    assert maintenance.dirtiest([broken, sound], LATER) is (broken if for_now else None)
    assert nothing_is_left_of_a_pass(broken)


def test_a_damaged_partition_is_set_aside_until_it_is_repaired(log: CommitLog, two: list[Partition]) -> None:
    broken, sound = two
    flip(broken.segments[2].path, 90)
    is_set_aside(log, broken, sound)
    with pytest.raises(CorruptionError):
        broken.compact()
    broken.append(b"still", key=b"usable")
    broken.repair()
    broken.compact()
    assert log.health().uncleanable_partitions == ()


@pytest.mark.parametrize("place", [0, 8, 20])
def test_a_partition_whose_state_cannot_be_told_is_set_aside(
    log: CommitLog, two: list[Partition], place: int
) -> None:
    """A damaged header shows already when the cleaner looks what is due."""
    broken, sound = two
    log.topic("c").alter_config(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=1)
    put(sound, (b"more", b"1"))
    flip(broken.segments[0].path, place)
    assert not maintenance.clean_what_is_due(lambda: [broken, sound], LATER, lambda: False)
    assert log.health().uncleanable_partitions[0][0] == broken.name
    assert sound.clean_offset == 5


@pytest.mark.parametrize("number", [0, 2])
def test_a_partition_of_which_a_file_is_missing_is_set_aside(
    log: CommitLog, two: list[Partition], number: int
) -> None:
    broken, sound = two
    os.unlink(broken.segments[number].path)
    broken.segments[number].release()
    is_set_aside(log, broken, sound)
    with pytest.raises(CorruptionError, match="missing"):
        broken.compact()


@pytest.mark.parametrize("call", ["write_at", "map_writable", "sync_map", "sync_data"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_while_a_pass_writes_leaves_the_partition_as_it_was(
    log: CommitLog, two: list[Partition], monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    broken, sound = two
    for partition in two:
        partition.sync()
    gc.collect()  # what other tests left open would be closed any time
    before, handles = tree(broken.path), os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        patch.setattr(files, call, failing(getattr(files, call), broken.path, code))
        is_set_aside(log, broken, sound, for_now=code == errno.ENOSPC)
    assert broken.failure is None
    assert tree(broken.path) == before
    assert len(os.listdir("/proc/self/fd")) == len(handles)
    assert broken.append(b"v", key=b"k", sync=True) == 4
    assert broken.compact().stopped_by is None
    assert offsets(broken) == [2, 3, 4]
    assert log.health().uncleanable_partitions == ()


def failing(real: Callable[..., Any], directory: str, code: int) -> Callable[..., Any]:
    """Fail while a pass has unfinished files in this directory, or is to have them."""

    def call(what: Any, *args: Any) -> Any:
        unfinished = names(directory, ".cleaned") or str(what).startswith(directory)
        if unfinished:
            raise OSError(code, os.strerror(code))
        return real(what, *args)

    return call


@pytest.mark.parametrize("step", range(1, 12))
def test_a_full_disk_at_any_step_of_writing_is_told_and_leaves_nothing(
    log: CommitLog, two: list[Partition], monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    partition, _ = two
    partition.sync()
    before = tree(partition.path)
    done = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            nonlocal done
            done += 1
            if done == step:
                raise OSError(errno.ENOSPC, "full")
            return real(*args)

        return call

    with monkeypatch.context() as patch:
        for name in ("write_at", "reserve", "sync_map", "sync_data"):
            patch.setattr(files, name, counted(getattr(files, name)))
        try:
            partition.compact()
        except DiskFullError:
            assert tree(partition.path) == before
            assert offsets(partition) == [0, 1, 2, 3]
        else:
            assert done < step
    assert partition.failure is None
    partition.append(b"v", key=b"k", sync=True)
    partition.compact()
    assert (offsets(partition), partition.verify().ok) == ([2, 3, 4], True)


@pytest.mark.parametrize("step", range(1, 8))
def test_a_disk_that_fails_in_a_swap_stops_the_partition_until_it_is_reopened(
    opened: Callable[..., CommitLog], monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    log = opened()
    partition = log.create_topic("c", config=CONFIG).partition(0)
    put_each(partition, *numbered([0, 0, 1, 0]))
    partition.sync()
    left = step

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise OSError(errno.EIO, "broken")
            return real(*args)

        return call

    with monkeypatch.context() as patch:
        for name in ("replace", "sync_directory"):
            patch.setattr(files, name, counted(getattr(files, name)))
        with pytest.raises(OSError):
            partition.compact()
    assert partition.failure
    assert partition.compaction_error
    assert partition.latest() == {b"key 0": b"value 3", b"key 1": b"value 2"}
    with pytest.raises(commitlog.PartitionFailedError):
        partition.append(b"v", key=b"k")
    partition = opened().topic("c").partition(0)
    assert partition.latest() == {b"key 0": b"value 3", b"key 1": b"value 2"}
    assert (partition.next_offset, partition.verify().ok) == (4, True)
    assert nothing_is_left_of_a_pass(partition)


def test_a_closed_log_is_not_compacted(log: CommitLog, compacted: Partition) -> None:
    log.close()
    with pytest.raises(ClosedError):
        compacted.compact()


def test_where_a_pass_came_to_is_known_after_a_restart(opened: Callable[..., CommitLog]) -> None:
    partition = opened().create_topic("c", config=CONFIG).partition(0)
    put(partition, *numbered([0, 0, 1]))
    partition.compact()
    partition = opened().topic("c").partition(0)
    assert partition.clean_offset == 3
    put(partition, *numbered([1]))
    assert partition.compact().first_dirty_offset == 3
    assert np.array_equal(offsets(partition), [1, 3])


# --- large passes


def test_large_batches_that_stay_whole_are_copied_as_they_stand(compacted: Partition) -> None:
    for first in (0, 1_500, 3_000):
        pairs = [(b"%d" % number, b"v") for number in range(first, first + 1_500)]
        put(compacted, *pairs, (b"same", b"%d" % first))
    before = {batch.base_offset: bytes(batch.raw) for batch in compacted.batches()}
    put(compacted, *((b"%d" % number, b"new") for number in range(0, 1_500, 2)))
    compacted.compact()
    after = {batch.base_offset: bytes(batch.raw) for batch in compacted.batches()}
    assert len(compacted.segments) == 2
    assert [base for base in before if after.get(base) == before[base]] == [3_002]
    assert len(offsets(compacted)) == 4_501
    compacted.compact()
    assert {batch.base_offset: bytes(batch.raw) for batch in compacted.batches()} == after


@pytest.mark.parametrize("room", [24 * 7_000, 24 * 50_000, 1 << 24])
def test_a_pass_over_many_records_leaves_one_a_key(opened: Callable[..., CommitLog], room: int) -> None:
    """More than are hashed at once, more than a merged batch takes, more keys than the map first has."""
    log = opened(cleaner_dedupe_buffer_bytes=room)
    partition = log.create_topic("c", config={**CONFIG, "segment_bytes": 400_000}).partition(0)
    chance = np.random.default_rng(room)
    latest: dict[bytes, int] = {}
    for first in range(0, 60_000, 1_000):
        keys = [b"%d" % number for number in chance.integers(0, 20_000, 1_000)]
        partition.append_many([b"%d" % offset for offset in range(first, first + 1_000)], keys=keys)
        latest.update(zip(keys, range(first, first + 1_000), strict=True))
    partition.roll()
    while partition.clean_offset < 60_000:
        partition.compact()
    assert offsets(partition) == sorted(latest.values())
    assert partition.latest() == {key: b"%d" % offset for key, offset in latest.items()}
    assert all(segment.size_bytes <= 400_000 for segment in partition.segments)
    assert partition.verify().ok


def test_the_index_of_a_cleaned_segment_may_need_more_than_a_page(log: CommitLog) -> None:
    partition = log.create_topic("c", config={**CONFIG, "index_interval_bytes": 0}).partition(0)
    for number in range(1_200):
        partition.append_encoded((of_producer((number, 0, 0), (b"%d" % (number // 2), b"v")),))
    partition.roll()
    partition.compact()
    assert offsets(partition) == list(range(1, 1_200, 2))
    assert partition.verify().ok
    assert partition.get(1_199) is not None


def test_passes_leave_no_handles_or_maps_behind(log: CommitLog) -> None:
    partition = log.create_topic("c", config={**CONFIG, "segment_bytes": 100_000}).partition(0)

    def held() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text().splitlines()
        return len(os.listdir("/proc/self/fd")), sum(partition.path in line for line in maps)

    gc.collect()  # what other tests left open would be closed any time
    held_after = []
    for _ in range(30):
        put(partition, *((b"%d" % number, bytes(100)) for number in range(50)))
        partition.compact()
        assert len(offsets(partition)) == 50
        held_after.append(held())
    assert held_after[-1] == held_after[9]


# --- together with retention


def test_a_topic_may_be_compacted_and_trimmed_by_age(log: CommitLog) -> None:
    config = {**CONFIG, "cleanup_policy": "compact,delete", "retention_ms": 1_000, "segment_bytes": 750}
    partition = log.create_topic("c", config=config).partition(0)
    put(partition, (b"a", bytes(600)), timestamp=1_000)
    put(partition, (b"b", bytes(600)), (b"a", b"2"), timestamp=2_000)
    put(partition, (b"c", bytes(600)), (b"b", b"2"), timestamp=3_000)
    partition.compact(3_000)
    assert offsets(partition) == [2, 3, 4]
    assert partition.apply_retention(3_001) >= 1
    assert offsets(partition) == [3, 4]
    assert partition.compact(3_001).clean_offset == 5
    assert (offsets(partition), partition.verify().ok) == ([3, 4], True)


def test_records_keep_the_kind_of_their_timestamps(log: CommitLog) -> None:
    topic = log.create_topic("c", config={**CONFIG, "message_timestamp_type": "LogAppendTime"})
    partition = topic.partition(0)
    put(partition, *numbered([0, 1, 0]))
    topic.alter_config(message_timestamp_type="CreateTime")
    put(partition, *numbered([1, 2, 1]), timestamp=7)
    times = {record.offset: record.timestamp for record in partition.records()}
    partition.compact()
    assert {record.offset: record.timestamp for record in partition.records()} == {
        offset: times[offset] for offset in (2, 4, 5)
    }
    kinds = [(batch.base_offset, bool(batch.header.flags & LOG_APPEND_TIME)) for batch in partition.batches()]
    assert kinds == [(0, True), (3, False)]


def test_a_segment_that_does_not_end_where_the_next_one_begins_is_not_replaced(log: CommitLog) -> None:
    partition = log.create_topic("t", config=CONFIG).partition(0)
    put_each(partition, *numbered([0, 1, 0]))
    partition.roll()
    put_each(partition, *numbered([1, 0]))
    partition.roll()
    first = partition.segments[0]
    first.size_bytes = first.position_of(first.next_offset - 1)  # as if its last batch were not there
    before = names(partition.path, ".log")
    with pytest.raises(CorruptionError, match="ends at offset"):
        partition.compact(LATER)
    assert names(partition.path, ".log") == before
    assert partition.compaction_error
