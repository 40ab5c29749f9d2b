from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers import contents, encoded, fill, flip, names, write_segment

import commitlog
from commitlog import CommitLog, Partition, TopicConfig, retention
from commitlog.segment import Segment


@pytest.fixture
def segments(tmp_path: Path) -> list[Segment]:
    """Five segments of one record each, written at 1000, 2000, .. 5000."""
    found = []
    for number in range(5):
        path = write_segment(tmp_path, [encoded([bytes(100)], timestamps=[1_000 * (number + 1)])], number)
        found.append(Segment(path, number, os.path.getsize(path)))
    return found


SIZE = 80 + 104


def expired(segments: list[Segment], now_ms: int = 0, **settings: object) -> int:
    config = TopicConfig(**{"retention_ms": -1, **settings})  # type: ignore[arg-type]
    return count_expired(segments, 5_000, config, now_ms)


def count_expired(segments: list[Segment], active_max: int, config: TopicConfig, now_ms: int) -> int:
    sizes = [segment.size_bytes for segment in segments]
    count, damage = retention.expired(segments, sizes, active_max, config, now_ms, len(segments))
    assert damage is None
    return count


@pytest.mark.parametrize(
    ("now_ms", "count"),
    [(0, 0), (1_500, 0), (1_501, 1), (2_501, 2), (3_500, 2), (5_500, 4), (5_501, 5), (10**15, 5)],
)
def test_segments_whose_latest_record_is_too_old_expire(
    segments: list[Segment], now_ms: int, count: int
) -> None:
    assert expired(segments, now_ms, retention_ms=500) == count


@pytest.mark.parametrize(
    ("retention_bytes", "count"),
    [(10**9, 0), (5 * SIZE, 0), (5 * SIZE - 1, 0), (4 * SIZE, 1), (4 * SIZE - 1, 1), (3 * SIZE, 2), (0, 4)],
)
def test_segments_expire_as_long_as_the_rest_is_large_enough(
    segments: list[Segment], retention_bytes: int, count: int
) -> None:
    assert expired(segments, retention_bytes=retention_bytes) == count


def test_the_stricter_of_time_and_size_counts(segments: list[Segment]) -> None:
    assert expired(segments, 2_501, retention_ms=500, retention_bytes=4 * SIZE) == 2
    assert expired(segments, 1_501, retention_ms=500, retention_bytes=2 * SIZE) == 3


def test_without_limits_nothing_expires(segments: list[Segment]) -> None:
    assert expired(segments, 10**15) == 0


def test_a_compacted_topic_keeps_everything(segments: list[Segment]) -> None:
    limits = {"retention_ms": 0, "retention_bytes": 0}
    assert expired(segments, 10**15, cleanup_policy="compact", **limits) == 0
    assert expired(segments, 10**15, cleanup_policy="compact,delete", **limits) == 5


def test_an_empty_active_segment_does_not_expire(tmp_path: Path, segments: list[Segment]) -> None:
    empty = Segment(write_segment(tmp_path, [], 5), 5, 0)
    config = TopicConfig(retention_ms=500)
    assert count_expired([*segments, empty], -1, config, 10**15) == 5
    assert count_expired([empty], -1, config, 10**15) == 0


def test_a_younger_segment_protects_the_older_ones_behind_it(tmp_path: Path) -> None:
    found = []
    for number, stamp in enumerate([1_000, 9_000, 1_000, 1_000]):
        path = write_segment(tmp_path, [encoded([b""], timestamps=[stamp])], number)
        found.append(Segment(path, number, os.path.getsize(path)))
    assert count_expired(found, 1_000, TopicConfig(retention_ms=500), 5_000) == 1


# --- over a partition


@pytest.fixture
def aging(log: CommitLog) -> Partition:
    """Thirty records, written at 1000, 1001 .. in segments of a few."""
    config = {"segment_bytes": 1_000, "retention_ms": 10, "flush_ms": -1}
    partition = log.create_topic("t", config=config).partition(0)
    fill(partition, 30)
    return partition


def test_retention_with_a_given_clock_removes_what_is_too_old(log: CommitLog, aging: Partition) -> None:
    bases = [segment.base_offset for segment in aging.segments]
    removed = log.apply_retention(now_ms=1_000 + bases[2] + 9)
    assert removed == 1
    assert aging.start_offset == bases[1]
    assert [record.offset for record in aging.records()] == list(range(bases[1], 30))


def test_retention_never_changes_next_offset_and_leaves_a_segment(log: CommitLog, aging: Partition) -> None:
    count = len(aging.segments)
    assert log.apply_retention(now_ms=10**15) == count
    assert contents(aging) == []
    assert (aging.start_offset, aging.next_offset) == (30, 30)
    assert len(aging.segments) == 1
    assert log.apply_retention(now_ms=10**15) == 0
    assert aging.append(b"next") == 30


def test_retention_by_size_keeps_the_active_segment(log: CommitLog) -> None:
    config = {"segment_bytes": 1_000, "retention_ms": -1, "retention_bytes": 0}
    partition = log.create_topic("t", config=config).partition(0)
    fill(partition, 30)
    active = partition.segments[-1]
    log.apply_retention(now_ms=0)
    assert partition.segments == (active,)
    assert partition.start_offset == active.base_offset


def test_what_retention_removed_stays_away_after_reopening(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        config = {"segment_bytes": 1_000, "retention_ms": 10}
        partition = log.create_topic("t", config=config).partition(0)
        fill(partition, 30)
        log.apply_retention(now_ms=1_025)
        whole, start = contents(partition), partition.start_offset
    with commitlog.open(log_path) as log:
        partition = log.topic("t").partition(0)
        assert partition.start_offset == start > 0
        assert contents(partition) == whole


def test_the_active_segments_latest_timestamp_is_known_after_reopening(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        partition = log.create_topic("t", config={"retention_ms": 10, "segment_ms": -1}).partition(0)
        for stamp in (1_000, 9_000, 2_000):
            partition.append(bytes(5_000), timestamp=stamp)
    with commitlog.open(log_path) as log:
        partition = log.topic("t").partition(0)
        assert log.apply_retention(now_ms=9_010) == 0
        assert log.apply_retention(now_ms=9_011) == 1
        assert (partition.start_offset, partition.next_offset) == (3, 3)


def test_retention_gets_past_a_segment_that_repair_left_empty(log: CommitLog) -> None:
    partition = log.create_topic("t", config={"retention_ms": 10, "segment_ms": -1}).partition(0)
    for stamp in (1, 2, 10**12):
        partition.append(b"x", timestamp=stamp)
        partition.roll()
    flip(partition.segments[0].path, 75)
    partition.repair()
    log.apply_retention(now_ms=1_000)
    assert [record.offset for record in partition.records()] == [2]


# --- damage: nothing is removed on the word of bytes that were not checked


NOW = 2_000_000_000_000


def young_and_old(log_path: Path, *, age_ms: int = 1_000) -> int:
    """Close a log with a sealed segment of records of age_ms and an active one; returns where its last batch
    starts.
    """
    with commitlog.open(log_path) as log:
        partition = log.create_topic("t", config={"flush_ms": -1, "segment_ms": -1}).partition(0)
        for number in range(50):
            partition.append(b"record", timestamp=NOW - age_ms + number)
        partition.roll()
        partition.append(b"active", timestamp=NOW)
        return partition.segments[0].position_of(49)


@pytest.mark.parametrize(("byte", "mask"), [(16, 1), (45, 1), (47, 0x80), (0, 1), (20, 8), (56, 1)])
@pytest.mark.parametrize("batch", ["first", "last"])
@pytest.mark.parametrize("indexes", ["there", "lost"])
def test_a_rotten_header_never_makes_a_young_segment_old(
    log_path: Path, byte: int, mask: int, batch: str, indexes: str
) -> None:
    position = young_and_old(log_path)
    flip(log_path / "t-0" / f"{0:020d}.log", byte + (position if batch == "last" else 0), mask)
    if indexes == "lost":
        for name in names(log_path / "t-0", "index"):
            (log_path / "t-0" / name).unlink()
    try:
        log = commitlog.open(log_path)
    except commitlog.CorruptionError:
        return  # noticed where segments are joined
    with log:
        partition = log.topic("t").partition(0)
        assert log.apply_retention(now_ms=NOW) == 0
        assert (partition.start_offset, len(partition.segments)) == (0, 2)


def test_a_damaged_segment_stays_with_those_behind_it_and_is_reported_until_it_is_repaired(
    log_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    week = 7 * 24 * 3_600_000
    young_and_old(log_path, age_ms=week + 100)
    flip(log_path / "t-0" / f"{0:020d}.log", 75)  # in the first batch: the last one has the latest timestamp
    with commitlog.open(log_path) as log:
        partition = log.topic("t").partition(0)
        partition.roll()
        partition.append(b"young", timestamp=NOW + week)
        for _ in range(2):
            assert log.apply_retention(now_ms=NOW + week + 1) == 0
        assert (partition.start_offset, len(partition.segments)) == (0, 3)
        ((name, cause),) = log.health().damaged_partitions
        assert name == "t-0"
        assert partition.segments[0].path in cause
        assert cause == partition.retention_error
        assert not log.health().ok
        told = [one for one in caplog.records if "damaged segment" in one.getMessage()]
        assert len(told) == 1, "once, not with every round"
        partition.repair()
        assert log.apply_retention(now_ms=NOW + week + 1) == 2
        assert log.health().damaged_partitions == ()
        assert [record.value for record in partition.records()] == [b"young"]


def test_retention_by_size_removes_a_damaged_segment_too(log_path: Path) -> None:
    young_and_old(log_path)
    flip(log_path / "t-0" / f"{0:020d}.log", 75)
    with commitlog.open(log_path) as log:
        log.topic("t").alter_config(retention_bytes=0)
        assert log.apply_retention(now_ms=NOW) == 1
        assert log.health().ok


def test_an_active_segment_with_damage_does_not_go_by_its_age(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        partition = log.create_topic("t", config={"flush_ms": -1}).partition(0)
        for stamp in (NOW, NOW - 10, NOW - 5):
            partition.append(b"young", timestamp=stamp)
        path = partition.segments[0].path
    flip(path, 45, 1)  # the first batch has the latest timestamp, and now another one
    with commitlog.open(log_path) as log:
        partition = log.topic("t").partition(0)
        assert log.apply_retention(now_ms=NOW + 1_000) == 0
        assert (partition.start_offset, partition.next_offset) == (0, 3)
        assert log.health().damaged_partitions[0][0] == "t-0"


def test_a_segment_file_that_is_lost_is_reported_by_retention(log: CommitLog, aging: Partition) -> None:
    Path(aging.segments[1].path).unlink()
    aging.segments[1].release()
    assert log.apply_retention(now_ms=10**15) == 0
    assert "missing" in (aging.retention_error or "")


def test_records_that_came_in_place_of_old_ones_meanwhile_are_kept(
    log: CommitLog, aging: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = retention.expired

    def replaced_meanwhile(*asked: object) -> retention.Expired:
        found = real(*asked)  # type: ignore[arg-type]
        aging.truncate_from(3)
        for _ in range(40):
            aging.append(b"new", timestamp=10**15)
        return found

    monkeypatch.setattr(retention, "expired", replaced_meanwhile)
    assert log.apply_retention(now_ms=10**15) == 0
    assert (aging.start_offset, aging.next_offset) == (0, 43)
