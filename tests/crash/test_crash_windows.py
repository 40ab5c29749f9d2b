"""A kill in each window that the source marks `# crash:`; each docstring quotes the comment it tests."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

import commitlog
from commitlog import DiskFullError, Partition
from commitlog.partitions.state import LogState
from commitlog.segment_writer import SegmentWriter

from .logs import (
    MARKER,
    QUIET,
    append_to,
    check_goes_on,
    check_records,
    crash,
    flipped,
    mode,
    open_partition,
    overwrite,
    segment_files,
    value_of,
    values,
)
from .windows import crashed_at

pytestmark = pytest.mark.usefixtures("quick_disk")

SMALL = {**QUIET, "segment_bytes": 512}


@pytest.fixture
def live(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """Where the kill leaves its copy."""
    return tmp_path / "left"


def names(path: Path) -> set[str]:
    return {one.name for one in (path / "t-0").iterdir()}


def filled(log: commitlog.CommitLog, end: int = 20, *, synced: bool = True) -> Partition:
    """A partition of many small segments."""
    partition: Partition = log.create_topic("t", config=SMALL).partition(0)
    append_to(partition, end)
    assert len(partition.segments) > 3
    if synced:
        partition.sync()
    return partition


# --- partition.py


@pytest.mark.parametrize("synced", [True, False])
def test_kill_in_a_roll(live: Path, left: Path, synced: bool) -> None:
    """crash: an empty segment after the active one -> open() goes on in it"""
    window = "an empty segment after the active one -> open() goes on in it"
    with commitlog.open(live) as log:
        partition = log.create_topic("t", config=QUIET).partition(0)
        append_to(partition, 5)
        if synced:
            partition.sync()
        with crashed_at(window, live, left):
            partition.roll()
    assert [one.stat().st_size > 0 for one in segment_files(left)] == [True, False]
    with commitlog.open(left, mode="r") as log:
        check_records(open_partition(log), 0, 5)
    with commitlog.open(left) as log:
        partition = open_partition(log)
        check_records(partition, 0, 5)
        partition.append(value_of(5))
        assert [segment.base_offset for segment in partition.segments] == [0, 5]
    check_goes_on(left)


@pytest.mark.parametrize("offset", [3, 10, 20])
def test_kill_in_a_trim(live: Path, left: Path, offset: int) -> None:
    """crash: segments below start_offset are still there -> open() removes them"""
    window = "segments below start_offset are still there -> open() removes them"
    with commitlog.open(live) as log:
        partition = filled(log)
        with crashed_at(window, live, left):
            partition.trim_before(offset)
    assert segment_files(left)[0].name == f"{0:020d}.log"
    with commitlog.open(left, mode="r") as log:
        check_records(open_partition(log), offset, 20)
    with commitlog.open(left) as log:
        check_records(open_partition(log), offset, 20)
        assert [segment.base_offset <= offset for segment in open_partition(log).segments].count(True) == 1
    check_goes_on(left)


def test_kill_in_a_trim_of_everything_on_a_full_disk(
    live: Path, left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """crash: only the active segment is there, and start_offset is at its end -> open() goes on in it"""
    window = "only the active segment is there, and start_offset is at its end -> open() goes on in it"
    roll, refused = LogState.roll, list[str]()

    def full_at_first(state: LogState, **choices: bool) -> SegmentWriter:
        if not refused:
            refused.append(state.name)
            raise DiskFullError(state.path, "no space left on device")
        return roll(state, **choices)

    with commitlog.open(live) as log:
        partition = filled(log)
        monkeypatch.setattr(LogState, "roll", full_at_first)
        with crashed_at(window, live, left):
            partition.trim_before(20)
    assert refused
    assert len(segment_files(left)) == 1
    with commitlog.open(left, mode="r") as log:
        check_records(open_partition(log), 20, 20)
    with commitlog.open(left) as log:
        check_records(open_partition(log), 20, 20)
    check_goes_on(left)


@pytest.mark.parametrize("synced", [True, False])
@pytest.mark.parametrize("offset", [0, 7, 19])
def test_kill_before_a_truncation_has_removed_anything(
    live: Path, left: Path, offset: int, synced: bool
) -> None:
    """crash: the recovery point is lower than it need be -> open() checks more and finds every record"""
    window = "the recovery point is lower than it need be -> open() checks more and finds every record"
    with commitlog.open(live) as log:
        partition = filled(log, synced=synced)
        with crashed_at(window, live, left):
            partition.truncate_from(offset)
    with commitlog.open(left, mode="r") as log:
        check_records(open_partition(log), 0, 20)
    with commitlog.open(left) as log:
        assert open_partition(log).durable_offset <= offset
        check_records(open_partition(log), 0, 20)
    check_goes_on(left)


@pytest.mark.parametrize("offset", [0, 7, 19])
def test_kill_after_a_truncation_has_removed_later_segments(live: Path, left: Path, offset: int) -> None:
    """crash: the log ends with the segment that holds `offset` -> open() finds its records again"""
    window = "the log ends with the segment that holds `offset` -> open() finds its records again"
    with commitlog.open(live) as log:
        partition = filled(log)
        bases = [segment.base_offset for segment in partition.segments] + [20]
        with crashed_at(window, live, left):
            partition.truncate_from(offset)
    end = min(base for base in bases if base > offset)
    with commitlog.open(left, mode="r") as log:
        check_records(open_partition(log), 0, end)
    with commitlog.open(left) as log:
        check_records(open_partition(log), 0, end)
    check_goes_on(left)


# --- segment_files.py


@pytest.mark.parametrize("offset", [7, 8, 19])
def test_kill_before_a_truncation_replaces_the_segment(live: Path, left: Path, offset: int) -> None:
    """crash: the copy is still .tmp -> open() removes it, the segment is whole"""
    window = "the copy is still .tmp -> open() removes it, the segment is whole"
    with commitlog.open(live) as log:
        partition = filled(log)
        bases = [segment.base_offset for segment in partition.segments] + [20]
        with crashed_at(window, live, left):
            partition.truncate_from(offset)
    assert any(name.endswith(".tmp") for name in names(left))
    with commitlog.open(left) as log:
        check_records(open_partition(log), 0, min(base for base in bases if base > offset))
        assert not any(name.endswith(".tmp") for name in names(left))
    check_goes_on(left)


def test_kill_when_a_truncated_segment_has_no_indexes(live: Path, left: Path) -> None:
    """crash: no indexes -> open() rebuilds them"""
    with commitlog.open(live) as log:
        partition = filled(log)
        last = segment_files(live)[-1]
        with crashed_at("no indexes -> open() rebuilds them", live, left):
            partition.truncate_from(19)
    assert last.with_suffix(".index").name not in names(left)
    with commitlog.open(left) as log:
        check_records(open_partition(log), 0, 20)
        assert open_partition(log).verify().damage == ()
    check_goes_on(left)


@pytest.mark.parametrize("hit", [1, 2, 3, 4, 5])
def test_kill_when_only_some_files_of_a_segment_are_out_of_sight(live: Path, left: Path, hit: int) -> None:
    """crash: indexes without their segment -> open() removes them"""
    with commitlog.open(live) as log:
        partition = filled(log)
        with crashed_at("indexes without their segment -> open() removes them", live, left, hit):
            partition.trim_before(12)
    with commitlog.open(left) as log:
        check_records(open_partition(log), 12, 20)
        kept = {f"{segment.base_offset:020d}" for segment in open_partition(log).segments}
        found = names(left)
        assert {name.partition(".")[0] for name in found if name != "state"} == kept
        assert not any(name.endswith(".deleted") for name in found)
    check_goes_on(left)


# --- recovery.py


@pytest.mark.parametrize("lost_bytes", [1, 88, 100_000])
@pytest.mark.parametrize("number", [0, 1])
def test_a_power_cut_that_lost_the_end_of_a_segment_but_not_its_successor(
    live: Path, left: Path, number: int, lost_bytes: int
) -> None:
    """crash: the end of an unsynced segment was lost, its successor was not"""
    log = commitlog.open(live)
    filled(log, synced=False)
    segment = segment_files(crash(log, left))[number]
    starts = {batch.base_offset: batch.position for batch in commitlog.Segment.open(segment).batches()}
    size = max(segment.stat().st_size - lost_bytes, 0)
    os.truncate(segment, size)
    end = max(offset for offset, position in starts.items() if position <= size)
    with commitlog.open(left, mode="r") as log:
        check_records(open_partition(log), 0, end)
    with commitlog.open(left) as log:
        check_records(open_partition(log), 0, end)
        assert open_partition(log).recovery.segments_dropped > 0
    check_goes_on(left)


@pytest.mark.parametrize("lost", [1, 2])
def test_a_power_cut_that_lost_the_first_segments_but_not_the_ones_after(
    live: Path, left: Path, lost: int
) -> None:
    """crash: the first segment was never synced and is lost -> what follows it goes too"""
    log = commitlog.open(live)
    filled(log, synced=False)
    for segment in segment_files(crash(log, left))[:lost]:
        segment.unlink()
    with commitlog.open(left, mode="r") as log:
        check_records(open_partition(log), 0, 0)
    with pytest.raises(commitlog.errors.TornTailError):
        commitlog.open(left, config=mode("absolute"))
    with commitlog.open(left) as log:
        check_records(open_partition(log), 0, 0)
        assert open_partition(log).recovery.segments_dropped > 0
    check_goes_on(left)


def test_without_a_state_page_nothing_is_skipped_silently(live: Path, left: Path) -> None:
    log = commitlog.open(live)
    filled(log, synced=False)
    crash(log, left)
    (left / "t-0" / "state").unlink()
    os.truncate(segment_files(left)[1], 0)
    with contextlib.suppress(commitlog.CorruptionError), commitlog.open(left) as log:
        partition = open_partition(log)
        offsets = [record.offset for record in partition.records()]
        assert offsets == list(range(partition.start_offset, partition.next_offset))


# --- files.py and catalog.py


@pytest.mark.parametrize("hit", [1, 2])
def test_kill_before_a_small_file_is_in_place(live: Path, left: Path, hit: int) -> None:
    """crash: the temporary file stays beside the old one -> the next write_whole overwrites it"""
    window = "the temporary file stays beside the old one -> the next write_whole overwrites it"
    with crashed_at(window, live, left, hit), commitlog.open(live) as log:
        log.create_topic("t")
    assert list(left.rglob("*.tmp"))
    with commitlog.open(left) as log:
        assert log.topics() == []
        append_to(log.create_topic("t").partition(0), 3)
    with commitlog.open(left) as log:
        assert not list(left.rglob("*.tmp"))
    check_goes_on(left)


def test_kill_before_a_changed_topic_is_in_place(live: Path, left: Path) -> None:
    with commitlog.open(live) as log:
        topic = log.create_topic("t", config=QUIET)
        window = "the temporary file stays beside the old one -> the next write_whole overwrites it"
        with crashed_at(window, live, left):
            topic.alter_config(retention_ms=5)
    with commitlog.open(left) as log:
        assert log.topic("t").config.retention_ms != 5
        log.topic("t").alter_config(retention_ms=6)
    with commitlog.open(left) as log:
        assert log.topic("t").config.retention_ms == 6


def test_kill_before_a_new_directory_is_a_log(live: Path, left: Path) -> None:
    """crash: a lock and a folder -> still vacant, the next open starts over"""
    with crashed_at("a lock and a folder -> still vacant, the next open starts over", live, left):
        commitlog.open(live).close()
    with pytest.raises(commitlog.errors.NotALogError):
        commitlog.open(left, mode="r")
    with commitlog.open(left) as log:
        append_to(log.create_topic("t").partition(0), 2)
    check_goes_on(left)


@pytest.mark.parametrize(
    "window",
    [
        "marked, partitions still there -> finish_deletions() at the next open",
        "marked, partitions out of sight -> finish_deletions() at the next open",
        "directories out of sight -> finish_deletions() removes them",
    ],
)
def test_kill_in_a_deletion(live: Path, left: Path, window: str) -> None:
    """The three windows of Catalog.delete.

    crash: marked, partitions still there -> finish_deletions() at the next open
    crash: marked, partitions out of sight -> finish_deletions() at the next open
    crash: directories out of sight -> finish_deletions() removes them
    """
    with commitlog.open(live) as log:
        log.create_topic("other").partition(0).append(b"stays")
        for partition in log.create_topic("t", partitions=3).partitions:
            append_to(partition, 3)
        with crashed_at(window, live, left):
            log.delete_topic("t")
    with commitlog.open(left, mode="r") as log:
        assert log.topics() == ["other"]
        with pytest.raises(commitlog.UnknownTopicError):
            log.topic("t")
    with commitlog.open(left) as log:
        assert log.topics() == ["other"]
        assert not [one.name for one in left.iterdir() if one.name.startswith("t-")]
        assert not list(left.glob("*.deleted"))
        assert [one.value for one in log.topic("other").partition(0).records()] == [b"stays"]
        append_to(log.create_topic("t").partition(0), 1)
    check_goes_on(left)


# --- log.py


def test_kill_before_anything_is_loaded(live: Path, left: Path) -> None:
    """crash: no marker -> the next open checks the log from its recovery points on"""
    with commitlog.open(live) as log:
        filled(log)
    window = "no marker -> the next open checks the log from its recovery points on"
    assert (live / MARKER).exists()
    with crashed_at(window, live, left):
        commitlog.open(live).close()
    assert not (left / MARKER).exists()
    with commitlog.open(left) as log:
        assert not open_partition(log).recovery.clean
        check_records(open_partition(log), 0, 20)
    check_goes_on(left)


def test_kill_before_a_new_topic_is_stored(live: Path, left: Path) -> None:
    """crash: empty partition directories without a topic -> create_topic() takes them over"""
    window = "empty partition directories without a topic -> create_topic() takes them over"
    with crashed_at(window, live, left), commitlog.open(live) as log:
        log.create_topic("t", partitions=3)
    assert (left / "t-2").is_dir()
    with commitlog.open(left) as log:
        assert log.topics() == []
        append_to(log.create_topic("t", partitions=2).partition(0), 3)
    check_goes_on(left)


def test_kill_before_new_partitions_are_stored(live: Path, left: Path) -> None:
    """crash: empty partition directories beyond the topic's count -> the next call takes them over"""
    window = "empty partition directories beyond the topic's count -> the next call takes them over"
    with commitlog.open(live) as log:
        topic = log.create_topic("t", config=QUIET)
        append_to(topic.partition(0), 3)
        with crashed_at(window, live, left):
            topic.add_partitions(3)
    assert (left / "t-2").is_dir()
    with commitlog.open(left) as log:
        topic = log.topic("t")
        assert len(topic.partitions) == 1
        topic.add_partitions(4)
        append_to(topic.partition(3), 2)
        check_records(topic.partition(3), 0, 2)
    check_goes_on(left)


# --- quotas.py


def test_kill_before_the_first_quota_is_stored(live: Path, left: Path) -> None:
    """crash: an empty folder -> there are no quotas, the next set() continues"""
    window = "an empty folder -> there are no quotas, the next set() continues"
    with commitlog.open(live) as log, crashed_at(window, live, left):
        log.set_quota("a", producer_byte_rate=5)
    assert (left / "quotas").is_dir()
    with commitlog.open(left) as log:
        assert log.quotas() == {}
        log.set_quota("a", producer_byte_rate=6)
    with commitlog.open(left) as log:
        assert log.quotas() == {"a": commitlog.Quota(6)}


def test_kill_before_a_changed_quota_is_in_place(live: Path, left: Path) -> None:
    window = "the temporary file stays beside the old one -> the next write_whole overwrites it"
    with commitlog.open(live) as log:
        log.set_quota("a", producer_byte_rate=5)
        with crashed_at(window, live, left):
            log.set_quota("a", producer_byte_rate=6)
    with commitlog.open(left) as log:
        assert log.quotas() == {"a": commitlog.Quota(5)}
        log.set_quota("a", producer_byte_rate=7)
        assert log.quotas() == {"a": commitlog.Quota(7)}
    assert not list(left.rglob("*.tmp"))


# --- repair.py


def test_kill_in_a_repair(live: Path, left: Path) -> None:
    """crash: the damaged segment has two names -> open() meets it again under the first"""
    window = "the damaged segment has two names -> open() meets it again under the first"
    with commitlog.open(live) as log:
        filled(log)
    bad = list(commitlog.Segment.open(segment_files(live)[1]).batches())[1]
    flipped(bad.position + 70, 3)(segment_files(live)[1])
    damaged = segment_files(live)[1].read_bytes()
    with commitlog.open(live) as log, crashed_at(window, live, left):
        open_partition(log).repair()
    for _ in range(2):
        with commitlog.open(left) as log:
            partition = open_partition(log)
            partition.repair()
            assert partition.verify().damage == ()
            assert [one.value for one in partition.records()] == [
                value for value in values(0, 20) if value != value_of(bad.base_offset)
            ]
    kept = list((left / "t-0").glob("*.damaged*"))
    assert kept
    assert all(one.read_bytes() == damaged for one in kept)


def test_kill_in_a_salvage(live: Path, left: Path) -> None:
    window = "the damaged segment has two names -> open() meets it again under the first"
    with commitlog.open(live) as log:
        filled(log)
    last = segment_files(live)[-1]
    bad = list(commitlog.Segment.open(last).batches())[-1]
    (live / MARKER).unlink()
    flipped(bad.position + 17, 3)(last)  # its magic
    with crashed_at(window, live, left), commitlog.open(live, config=mode("salvage")):
        pass
    with pytest.raises(commitlog.CorruptionError):
        commitlog.open(left)
    with commitlog.open(left, config=mode("salvage")) as log:
        partition = open_partition(log)
        assert [one.value for one in partition.records()] == values(0, bad.base_offset)
        assert partition.append(value_of(20)) == 20


def test_kill_before_the_indexes_of_a_salvaged_segment_are_sealed(live: Path, left: Path) -> None:
    with commitlog.open(live) as log:
        filled(log)
    segment_files(live)[1].unlink()
    (live / MARKER).unlink()
    with commitlog.open(live, config=mode("salvage")) as log:
        crash(log, left)
    filler = segment_files(left)[1]
    for suffix in (".index", ".timeindex"):
        overwrite(filler.with_suffix(suffix), 0, bytes(24))
    with commitlog.open(left) as log:
        assert open_partition(log).verify().ok
