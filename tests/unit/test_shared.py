"""Two logs opened in mode "shared" in one process are to each other what two processes are."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import contents, names

import commitlog
from commitlog import (
    CommitLog,
    ConfigError,
    CorruptionError,
    LogConfig,
    LogLockedError,
    Partition,
    PartitionFailedError,
    TopicConfig,
    UnknownTopicError,
    files,
)
from commitlog.partitions.compactor import Compactor
from commitlog.partitions.recovery import Recovery

CONFIG = {"segment_bytes": 1_000, "flush_ms": -1, "file_delete_delay_ms": 0, "index_interval_bytes": 100}


@pytest.fixture
def logs(log_path: Path) -> Iterator[tuple[CommitLog, CommitLog]]:
    with commitlog.open(log_path, mode="shared") as one, commitlog.open(log_path, mode="shared") as other:
        yield one, other


@pytest.fixture
def pair(logs: tuple[CommitLog, CommitLog]) -> tuple[Partition, Partition]:
    """One partition, as two writers have it."""
    logs[0].create_topic("t", config=CONFIG)
    return logs[0].topic("t").partition(0), logs[1].topic("t").partition(0)


def append_in_turns(pair: tuple[Partition, Partition], count: int) -> list[bytes]:
    values = [b"value %d " % number * (1 + number % 4) for number in range(count)]
    for number, value in enumerate(values):
        partition = pair[number % 2]
        if number % 5 == 3:
            assert partition.append_many([value], timestamps=[number]) == range(number, number + 1)
        else:
            assert partition.append(value, timestamp=number) == number
    return values


def test_writers_in_turns_make_one_log(pair: tuple[Partition, Partition], log_path: Path) -> None:
    values = append_in_turns(pair, 100)
    assert len(pair[0].segments) > 5
    with commitlog.open(log_path, mode="r") as reading:
        for side in (*pair, reading.topic("t").partition(0)):
            assert [record.value for record in side.records()] == values
            assert [side.get(offset).value for offset in range(100)] == values
            assert [side.offset_for_timestamp(offset) for offset in range(100)] == list(range(100))
            assert side.verify().damage == ()


def test_what_one_writer_appends_the_other_waits_for(pair: tuple[Partition, Partition]) -> None:
    appending = threading.Timer(0.01, lambda: pair[0].append(b"here"))
    appending.start()
    assert pair[1].wait_for(0, timeout=30)
    assert contents(pair[1])[0].value == b"here"
    appending.join()


def test_what_one_writer_syncs_is_durable_for_the_other(pair: tuple[Partition, Partition]) -> None:
    append_in_turns(pair, 30)
    pair[0].sync()
    assert pair[1].durable_offset == 30
    pair[1].append(b"synced", sync=True)
    assert pair[0].durable_offset == 31


def test_a_writer_goes_on_after_another_rolled_trimmed_or_truncated(
    pair: tuple[Partition, Partition],
) -> None:
    one, other = pair
    append_in_turns(pair, 40)
    one.roll()
    assert other.append(b"after a roll") == 40
    one.trim_before(25)
    assert other.append(b"after a trim") == 41
    assert other.start_offset == 25
    other.truncate_from(30)
    assert one.append(b"after a truncation") == 30
    assert [record.offset for record in other.records()] == list(range(25, 31))
    assert contents(one) == contents(other)
    assert one.verify().ok


def test_one_writer_compacts_while_the_other_appends(logs: tuple[CommitLog, CommitLog]) -> None:
    config = {**CONFIG, "cleanup_policy": "compact", "min_cleanable_dirty_ratio": 1.0}
    logs[0].create_topic("t", config=config)
    one, other = (log.topic("t").partition(0) for log in logs)
    for number in range(300):
        (one, other)[number % 2].append(b"%d" % number, key=b"k%d" % (number % 7))
        if number % 60 == 59:
            one.roll()
            (other, one)[number % 2].compact()
    assert len(contents(one)) < 100
    expected = {b"k%d" % (number % 7): b"%d" % number for number in range(293, 300)}
    assert dict(one.latest()) == dict(other.latest()) == expected
    assert one.verify().ok


def test_a_topic_is_created_grown_altered_and_deleted_for_all(logs: tuple[CommitLog, CommitLog]) -> None:
    one, other = logs
    one.create_topic("t", config=CONFIG)
    assert other.topics() == ["t"]
    other.topic("t").add_partitions(3)
    assert len(one.topic("t").partitions) == 3
    one.topic("t").alter_config(retention_ms=5)
    assert other.topic("t").config.retention_ms == 5
    partition = other.topic("t").partition(2)
    partition.append(b"x")
    one.delete_topic("t")
    assert other.topics() == []
    with pytest.raises(UnknownTopicError):
        partition.append(b"lost")
    with pytest.raises(UnknownTopicError):
        other.topic("t")


def test_altering_a_topic_keeps_the_partitions_and_settings_that_others_gave_it(
    logs: tuple[CommitLog, CommitLog],
) -> None:
    one, other = logs
    topic = one.create_topic("t", config=CONFIG)
    other.topic("t").add_partitions(3)
    other.topic("t").alter_config(retention_ms=-1)
    other.topic("t").partition(2).append(b"x")
    topic.alter_config(max_message_bytes=100)
    assert topic.config.retention_ms == -1
    for log in logs:
        assert [record.value for record in log.topic("t").partition(2).records()] == [b"x"]
        assert (log.topic("t").config.retention_ms, log.topic("t").config.max_message_bytes) == (-1, 100)


def test_partitions_that_others_added_are_not_taken_away_by_adding_fewer(
    logs: tuple[CommitLog, CommitLog],
) -> None:
    one, other = logs
    topic = one.create_topic("t", config=CONFIG)
    other.topic("t").add_partitions(5)
    with pytest.raises(ConfigError, match="cannot be removed"):
        topic.add_partitions(3)
    other.topic("t").partition(4).append(b"x")
    topic.add_partitions(6)
    assert len(topic.partitions) == len(other.topic("t").partitions) == 6
    assert topic.partition(4).get(0).value == b"x"


def test_a_topic_that_was_made_again_is_not_altered_through_the_one_before(
    logs: tuple[CommitLog, CommitLog],
) -> None:
    one, other = logs
    topic = one.create_topic("t", config=CONFIG)
    other.delete_topic("t")
    made_again = other.create_topic("t", 2)
    for change in (lambda: topic.alter_config(retention_ms=1), lambda: topic.add_partitions(3)):
        with pytest.raises(UnknownTopicError):
            change()
    assert one.topic("t").topic_id == made_again.topic_id


def test_a_page_is_not_believed_if_the_process_that_was_recovering_the_partition_died(
    log_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with commitlog.open(log_path, mode="shared") as log:
        partition = log.create_topic("t", config={"flush_ms": -1}).partition(0)
        partition.append(b"0", sync=True)
        shutil.copy(Path(partition.path, "state"), tmp_path / "state")
        for number in range(1, 10):
            partition.append(b"%d" % number, sync=True)
    shutil.copy(tmp_path / "state", log_path / "t-0" / "state")  # a power cut left an older one
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Recovery, "run", killed)
        commitlog.open(log_path, mode="shared")
    # another process came while the lock was held, and waited for it
    try_lock, held = files.try_lock, [log_path / "t-0" / "members.lock"]

    def try_in_vain(fd: int, *, shared: bool = False) -> bool:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if path in held:
            held.remove(path)
            return False
        return try_lock(fd, shared=shared)

    monkeypatch.setattr(files, "try_lock", try_in_vain)
    with commitlog.open(log_path, mode="shared") as log:
        assert not held
        found = list(log.topic("t").partition(0).records())
    assert [record.value for record in found] == [b"%d" % number for number in range(10)]


def killed(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_nothing_else_is_cut_when_the_active_segment_is_removed(pair: tuple[Partition, Partition]) -> None:
    one, other = pair
    append_in_turns(pair, 40)
    one.sync()
    *sealed, active = [Path(segment.path) for segment in one.segments]
    sizes = [path.stat().st_size for path in sealed]
    assert active.stat().st_size < sizes[-1]
    active.unlink()
    with pytest.raises(PartitionFailedError, match="removed"):
        one.check_linked()
    with pytest.raises(CorruptionError, match="missing"):
        other.append(b"more")
    with pytest.raises(PartitionFailedError, match="missing"):
        other.append(b"more")
    assert [path.stat().st_size for path in sealed] == sizes


@pytest.mark.parametrize("first", [True, False])
def test_a_log_is_shared_or_exclusive(log_path: Path, first: bool) -> None:
    with commitlog.open(log_path, mode="shared" if first else "w"), pytest.raises(LogLockedError):
        commitlog.open(log_path, mode="shared" if not first else "w")
    commitlog.open(log_path, mode="shared" if not first else "w").close()


def test_only_writers_share(log_path: Path) -> None:
    commitlog.open(log_path).close()
    with pytest.raises(ConfigError):
        commitlog.open(log_path, mode="rw")  # type: ignore[arg-type]


def test_a_reader_follows_shared_writers_and_what_they_left(log_path: Path) -> None:
    with commitlog.open(log_path, mode="shared") as log:
        log.create_topic("t", config=CONFIG)
        with commitlog.open(log_path, mode="r") as reading:
            reader = reading.topic("t").partition(0)
            for number in range(30):
                log.topic("t").partition(0).append(b"%d" % number)
                assert reader.next_offset == number + 1
        whole = contents(log.topic("t").partition(0))
    with commitlog.open(log_path, mode="r") as reading:
        assert contents(reading.topic("t").partition(0)) == whole
    with commitlog.open(log_path) as alone:
        assert contents(alone.topic("t").partition(0)) == whole
        alone.topic("t").partition(0).append(b"alone")
    with commitlog.open(log_path, mode="shared") as again:
        assert again.topic("t").partition(0).append(b"shared again") == 31


def test_a_full_append_that_fails_in_one_writer_does_not_show_in_the_other(
    pair: tuple[Partition, Partition], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    append_in_turns(pair, 5)

    def failing(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("commitlog.files.write_at", failing)
        with pytest.raises(commitlog.DiskFullError):
            one.append_many([b"a", b"b"])
    assert other.append(b"next") == 5
    assert one.append(b"and next") == 6
    assert contents(one) == contents(other)


def test_threads_and_writers_at_once_lose_nothing(pair: tuple[Partition, Partition]) -> None:
    def work(partition: Partition, name: int) -> None:
        for number in range(100):
            partition.append(b"%d %d" % (name, number))

    threads = [threading.Thread(target=work, args=(pair[name % 2], name)) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    values = [record.value.split() for record in contents(pair[0])]
    assert len(values) == 600
    for name in range(6):
        assert [int(number) for owner, number in values if int(owner) == name] == list(range(100))


def test_a_shared_log_leaves_no_clean_marker_and_no_leftovers(log_path: Path) -> None:
    with commitlog.open(log_path, mode="shared") as log:
        log.create_topic("t", config=TopicConfig()).append(b"x", sync=True)
    assert "clean-shutdown" not in names(log_path)
    with commitlog.open(log_path) as log:
        assert log.recovery[0].bytes_checked == 0


# --- what cannot be opened, and what others are still writing


@pytest.fixture
def compacted(log_path: Path) -> Iterator[tuple[Partition, Partition]]:
    """A partition with something to compact, as two writers have it; nobody compacts it in the background."""
    config = LogConfig(cleaner_enable=False)
    with (
        commitlog.open(log_path, mode="shared", config=config) as one,
        commitlog.open(log_path, mode="shared", config=config) as other,
    ):
        partition = one.create_topic("t", config={**CONFIG, "cleanup_policy": "compact"}).partition(0)
        for number in range(100):
            partition.append(b"value %d" % number, key=b"%d" % (number % 7))
        yield partition, other.topic("t").partition(0)


def test_a_partition_that_cannot_be_opened_keeps_no_lock_though_somebody_keeps_the_exception(
    log_path: Path,
) -> None:
    with commitlog.open(log_path) as log:
        partition = log.create_topic("t", config=CONFIG).partition(0)
        partition.append_many([b"value"] * 10)
        partition.sync()
    (log_path / "t-0" / f"{0:020d}.log").unlink()
    kept = []
    for _ in range(3):
        with pytest.raises(CorruptionError) as caught:
            commitlog.open(log_path, mode="shared")
        kept.append(caught.value)
    with open(log_path / "t-0" / "members.lock") as file:
        assert files.try_lock(file.fileno())


def test_a_writer_that_puts_right_what_a_dead_one_left_spares_what_a_living_one_compacts(
    compacted: tuple[Partition, Partition], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B dies in a roll while A compacts, and C puts that right."""
    one, other = compacted
    spared: list[int] = []
    real = Compactor._swap

    def swap(compactor: Compactor, *args: Any) -> bool:
        if not spared:
            other._state.page.begin_change()  # what is left of a writer that was killed as it rolled
            other.append(b"other", key=b"other")
            spared.append(len(list(Path(one.path).glob("*.cleaned"))))
        return real(compactor, *args)

    monkeypatch.setattr(Compactor, "_swap", swap)
    report = one.compact()
    assert spared == [3]
    assert one.failure is None
    assert report.stopped_by in (None, "changed")
    assert one.compact().stopped_by in (None, "nothing to clean")
    assert one.append(b"more", key=b"more") == 101
    assert {record.key for record in other.records()} == {
        *(b"%d" % key for key in range(7)),
        b"other",
        b"more",
    }
    assert list(Path(one.path).glob("*.cleaned")) == []


def test_what_a_dead_writer_was_compacting_is_removed_by_who_puts_it_right(
    pair: tuple[Partition, Partition],
) -> None:
    left = Path(pair[0].path) / f"{0:020d}.log.cleaned"
    left.write_bytes(b"half")
    pair[0]._state.page.begin_change()
    pair[1].append(b"value")
    assert not left.exists()


def test_a_segment_that_another_writer_compacted_meanwhile_is_not_taken_for_lost(
    compacted: tuple[Partition, Partition],
) -> None:
    one, other = compacted
    before = [segment.path for segment in one._state.segments.segments]
    for number in range(60):  # a later pass joins the segments that an earlier one made small
        other.append(b"value", key=b"%d" % (number % 7))
        if number % 20 == 0:
            other.compact()
    gone = [path for path in before if not Path(path).exists()]
    assert gone
    for path in gone:
        one._compactor._check_not_lost(path)
