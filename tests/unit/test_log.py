from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from helpers import contents, copy_as_if_killed, fill, names, tree, wait_until

import commitlog
from commitlog import (
    ClosedError,
    CommitLog,
    ConfigError,
    LogConfig,
    PartitionFailedError,
    TopicConfig,
    UnknownTopicError,
    files,
)
from commitlog.errors import ForkedError
from commitlog.maintenance import Maintenance


def test_the_program_in_the_module_docstring_works(tmp_path: Path) -> None:
    with commitlog.open(tmp_path / "data") as log:
        orders = log.create_topic("orders", partitions=2)
        orders.append(b"three apples", key=b"alice")
        found = [record.value for partition in orders.partitions for record in partition.records()]
    assert found == [b"three apples"]


def test_a_log_is_opened_by_text_or_path(tmp_path: Path) -> None:
    with commitlog.open(str(tmp_path / "log")) as log:
        assert log.path == str(tmp_path / "log")
    with commitlog.open(tmp_path / "log") as log:
        assert log.path == str(tmp_path / "log")


def test_topics_are_listed_in_order(log: CommitLog) -> None:
    for name in ("b", "a", "c"):
        log.create_topic(name)
    assert log.topics() == ["a", "b", "c"]


def test_everything_is_there_after_reopening(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        for name in ("a", "b"):
            topic = log.create_topic(name, partitions=2, config={"retention_ms": 10**12})
            fill(topic.partition(0), 5)
            fill(topic.partition(1), 3)
        expected = {
            (name, number): contents(log.topic(name).partition(number)) for name in "ab" for number in (0, 1)
        }
    with commitlog.open(log_path) as log:
        assert log.topics() == ["a", "b"]
        assert log.topic("a").config == TopicConfig(retention_ms=10**12)
        for (name, number), records in expected.items():
            assert contents(log.topic(name).partition(number)) == records
        assert len(log.recovery) == 4
        assert all(report.clean for report in log.recovery)


def test_a_topic_is_the_same_object_each_time(log: CommitLog) -> None:
    topic = log.create_topic("t")
    assert log.topic("t") is topic


@pytest.mark.parametrize("call", ["topic", "delete_topic"])
def test_a_topic_that_is_not_there_is_said_to_be_unknown(log: CommitLog, call: str) -> None:
    with pytest.raises(UnknownTopicError, match="'missing'"):
        getattr(log, call)("missing")


def test_a_topic_takes_the_defaults_of_its_log_and_keeps_them(log_path: Path) -> None:
    defaults = LogConfig(topic_defaults=TopicConfig(retention_ms=5, segment_bytes=1_000))
    with commitlog.open(log_path, config=defaults) as log:
        assert log.create_topic("a").config == TopicConfig(retention_ms=5, segment_bytes=1_000)
        assert log.create_topic("b", config={"retention.ms": "7"}).config.segment_bytes == 1_000
        assert log.create_topic("c", config=TopicConfig(retention_ms=9)).config == TopicConfig(retention_ms=9)
    with commitlog.open(log_path) as log:
        assert log.topic("a").config == TopicConfig(retention_ms=5, segment_bytes=1_000)
        assert log.topic("b").config == TopicConfig(retention_ms=7, segment_bytes=1_000)
        assert log.topic("c").config == TopicConfig(retention_ms=9)


@pytest.mark.parametrize("partitions", [0, -1, 10_000, 1.5, "2", None, True])
def test_a_wrong_number_of_partitions_is_refused_and_leaves_nothing_behind(
    log: CommitLog, partitions: Any
) -> None:
    before = tree(log.path)
    with pytest.raises(ConfigError, match="partitions"):
        log.create_topic("t", partitions=partitions)
    assert tree(log.path) == before
    assert log.topics() == []


@pytest.mark.parametrize("config", [{"retention_ms": "soon"}, {"no.such.setting": 1}, {"segment_bytes": 1}])
def test_a_wrong_setting_is_refused_and_leaves_nothing_behind(log: CommitLog, config: Any) -> None:
    before = names(log.path), tree(log.path)
    with pytest.raises(ConfigError):
        log.create_topic("t", config=config)
    assert (names(log.path), tree(log.path)) == before


@pytest.mark.parametrize("mode", ["a", "", "rw", None, 1])
def test_an_unknown_mode_is_refused_and_nothing_is_created(tmp_path: Path, mode: Any) -> None:
    with pytest.raises(ConfigError, match="mode"):
        commitlog.open(tmp_path / "log", mode=mode)
    assert names(tmp_path) == []


@pytest.mark.parametrize("config", [{"max_open_segments": 5}, TopicConfig(), "fast", 1])
@pytest.mark.parametrize("mode", ["r", "w"])
def test_a_config_of_another_kind_is_refused_and_nothing_is_created_or_locked(
    tmp_path: Path, config: Any, mode: Any
) -> None:
    with pytest.raises(ConfigError, match="config"):
        commitlog.open(tmp_path / "log", config=config, mode=mode)
    assert names(tmp_path) == []
    with commitlog.open(tmp_path / "log"):
        pass


# --- closing


def test_a_closed_log_refuses_everything(log_path: Path) -> None:
    log = commitlog.open(log_path)
    topic = log.create_topic("t")
    log.close()
    before = tree(log_path)
    for call in (
        log.topics,
        lambda: log.topic("t"),
        lambda: log.create_topic("u"),
        lambda: log.delete_topic("t"),
        lambda: log.apply_retention(now_ms=0),
        lambda: topic.append(b"x"),
        lambda: topic.append_many([b"x"]),
        lambda: topic.add_partitions(5),
        lambda: topic.alter_config(retention_ms=5),
    ):
        with pytest.raises(ClosedError):
            call()
    assert tree(log_path) == before


@pytest.mark.parametrize("mode", ["r", "w"])
def test_closing_twice_is_fine(log_path: Path, mode: Any) -> None:
    commitlog.open(log_path).close()
    log = commitlog.open(log_path, mode=mode)
    log.close()
    log.close()
    with pytest.raises(ClosedError):
        log.topics()


def test_leaving_the_with_block_closes_even_after_an_error(log_path: Path) -> None:
    with pytest.raises(RuntimeError), commitlog.open(log_path) as log:
        raise RuntimeError
    with pytest.raises(ClosedError):
        log.topics()
    commitlog.open(log_path).close()


def test_closing_makes_everything_durable(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        partition = log.create_topic("t", config={"flush_ms": -1, "segment_bytes": 1_000}).partition(0)
        fill(partition, 30)
        assert partition.durable_offset == 0
    assert partition.durable_offset == 30
    with commitlog.open(log_path) as log:
        assert log.topic("t").partition(0).durable_offset == 30


def test_no_clean_marker_is_left_if_closing_failed(log_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = commitlog.open(log_path)
    fill(log.create_topic("t", config={"flush_ms": -1}).partition(0), 3)
    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_data", lambda fd: (_ for _ in ()).throw(OSError(5, "broken")))
        with pytest.raises(PartitionFailedError, match="broken"):
            log.close()
    assert "clean-shutdown" not in names(log_path)
    with commitlog.open(log_path) as log:
        assert not log.recovery[0].clean
        assert log.topic("t").partition(0).next_offset == 3


def test_an_open_that_failed_lets_the_lock_go_and_the_next_one_recovers(
    log_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with commitlog.open(log_path) as log:
        fill(log.create_topic("t", partitions=3).partition(2), 3)
    with monkeypatch.context() as patch:

        def failing(path: str, size: int) -> None:
            raise OSError(5, "broken")

        patch.setattr(files, "map_writable", failing)
        with pytest.raises(OSError, match="broken"):
            commitlog.open(log_path)
    with commitlog.open(log_path) as log:
        assert log.topic("t").partition(2).next_offset == 3


# --- background work


def test_the_flusher_syncs_within_flush_ms(log: CommitLog) -> None:
    partition = log.create_topic("t", config={"flush_ms": 1}).partition(0)
    partition.append(b"x")
    wait_until(lambda: partition.durable_offset == 1)
    partition.append_many([b"x", b"y"])
    wait_until(lambda: partition.durable_offset == 3)


def test_a_topic_that_comes_later_is_flushed_as_soon_as_it_wants(log: CommitLog) -> None:
    wait_until(lambda: log.health().tasks[0].runs)
    partition = log.create_topic("t", config={"flush_ms": 1}).partition(0)
    partition.append(b"x")
    wait_until(lambda: partition.durable_offset == 1)
    other = log.create_topic("u", config={"flush_ms": -1})
    other.partition(0).append(b"x")
    other.alter_config(flush_ms=1)
    wait_until(lambda: other.partition(0).durable_offset == 1)


@pytest.mark.parametrize("timestamp", [None, 5])
def test_the_flusher_syncs_when_flush_messages_wait(log: CommitLog, timestamp: int | None) -> None:
    config = {"flush_ms": -1, "flush_messages": 10}
    partition = log.create_topic("t", config=config).partition(0)
    for _ in range(10):
        partition.append(b"x", timestamp=timestamp)
    wait_until(lambda: partition.durable_offset == 10)


def test_without_flush_ms_nothing_is_synced_behind_the_callers_back(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = log.create_topic("t", config={"flush_ms": -1}).partition(0)
    partition.append(b"x")
    log._housekeeper.sync_due()
    assert partition.durable_offset == 0


def test_retention_runs_by_itself(log_path: Path) -> None:
    with commitlog.open(log_path, config=LogConfig(retention_check_ms=1)) as log:
        partition = log.create_topic("t", config={"retention_ms": 1_000}).partition(0)
        partition.append(b"old", timestamp=1)
        wait_until(lambda: partition.start_offset == 1)
        assert contents(partition) == []


def test_removed_files_are_unlinked_by_themselves(log: CommitLog) -> None:
    config = {"segment_bytes": 1_000, "file_delete_delay_ms": 0}
    partition = log.create_topic("t", config=config).partition(0)
    fill(partition, 30)
    partition.trim_before(30)
    wait_until(lambda: names(partition.path, ".deleted") == [])


def test_a_healthy_log_says_so(log: CommitLog) -> None:
    log.create_topic("t")
    health = log.health()
    assert health.ok
    assert {task.name for task in health.tasks} == {"flusher", "retention", "transactions", "cleaner"}
    assert health.failed_partitions == ()


def test_a_disk_that_fails_behind_the_callers_back_is_seen_in_health(
    log_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = commitlog.open(log_path)
    good = log.create_topic("good", config={"flush_ms": -1}).partition(0)
    bad = log.create_topic("bad", config={"flush_ms": -1, "flush_messages": 1}).partition(0)
    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_data", lambda fd: (_ for _ in ()).throw(OSError(5, "broken")))
        bad.append(b"x")
        wait_until(lambda: not log.health().ok)
    wait_until(lambda: log.health().failed_partitions)
    (failed,) = log.health().failed_partitions
    assert failed[0] == "bad-0"
    assert "broken" in failed[1]
    with pytest.raises(PartitionFailedError):
        bad.append(b"y")
    assert good.append(b"fine") == 0
    log.close()
    assert "clean-shutdown" not in names(log_path)


def test_a_failing_housekeeper_is_seen_in_health(log_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with commitlog.open(log_path, config=LogConfig(retention_check_ms=1)) as log:
        log.create_topic("t")

        def failing(self: Maintenance, now_ms: int) -> int:
            raise RuntimeError("cannot tidy up")

        with monkeypatch.context() as patch:
            patch.setattr(Maintenance, "apply_retention", failing)
            wait_until(lambda: not log.health().ok)
            task = next(task for task in log.health().tasks if task.name == "retention")
            assert "cannot tidy up" in (task.error or "")
        wait_until(lambda: log.health().ok)


# --- forks


def in_child(check: Any) -> int:
    child = os.fork()
    if child == 0:  # pragma: no cover - the parent sees its exit code
        code = 1
        try:
            check()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_must_not_write_through_its_parents_handles(log: CommitLog) -> None:
    topic = log.create_topic("t")
    partition = topic.partition(0)
    partition.append(b"parents")

    def check() -> None:
        for call in (
            lambda: partition.append(b"childs"),
            lambda: partition.append_many([b"childs"]),
            partition.sync,
            partition.roll,
            lambda: partition.truncate_from(0),
            lambda: topic.append(b"childs"),
            lambda: log.create_topic("u"),
            lambda: log.delete_topic("t"),
        ):
            try:
                call()
            except ForkedError:
                continue
            raise AssertionError(call)

    assert in_child(check) == 0
    assert partition.append(b"parents again") == 1
    assert log.topics() == ["t"]


def test_a_forked_child_that_exits_leaves_the_lock_with_its_parent(log: CommitLog, log_path: Path) -> None:
    assert in_child(log.close) == 0
    with pytest.raises(commitlog.LogLockedError):
        commitlog.open(log_path)
    assert log.create_topic("t").partition(0).append(b"x") == 0


def test_a_forked_child_may_open_the_log_for_reading(log: CommitLog, log_path: Path) -> None:
    log.create_topic("t").append(b"x")

    def check() -> None:
        with commitlog.open(log_path, mode="r") as reading:
            assert [record.value for record in reading.topic("t").partition(0).records()] == [b"x"]

    assert in_child(check) == 0


# --- handles


def test_open_files_stay_few_while_segments_grow_many(log_path: Path) -> None:
    with commitlog.open(log_path, config=LogConfig(max_open_segments=4)) as log:
        partition = log.create_topic("t", config={"segment_bytes": 600, "flush_ms": -1}).partition(0)
        fill(partition, 20)
        before = len(os.listdir("/proc/self/fd")), maps_of(log_path)
        fill(partition, 1_000)
        assert len(partition.segments) > 150
        contents(partition)
        for record in partition.records(0, 200):
            partition.offset_for_timestamp(record.timestamp)
        after = len(os.listdir("/proc/self/fd")), maps_of(log_path)
        assert after[0] <= before[0] + 8
        assert after[1] <= before[1] + 20


def maps_of(directory: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(directory))


def test_a_log_survives_many_unclean_stops_in_a_row(log_path: Path, tmp_path: Path) -> None:
    path = log_path
    for number in range(5):
        with commitlog.open(path) as log:
            topic = log.create_topic("t", config={"segment_bytes": 1_000}) if number == 0 else log.topic("t")
            assert topic.partition(0).next_offset == 7 * number
            fill(topic.partition(0), 7)
            path = copy_as_if_killed(log, tmp_path / f"copy{number}")
    with commitlog.open(path) as log:
        assert [record.offset for record in log.topic("t").partition(0).records()] == list(range(35))


@pytest.mark.parametrize("mode", ["w", "shared"])
def test_only_one_of_many_threads_deletes_a_topic(log_path: Path, mode: Any) -> None:
    with commitlog.open(log_path, mode=mode) as log:

        def delete(_: int) -> bool:
            try:
                log.delete_topic("t")
            except UnknownTopicError:
                return False
            return True

        for _ in range(50):
            log.create_topic("t").partition(0).append(b"value")
            with ThreadPoolExecutor(4) as threads:
                assert sum(threads.map(delete, range(4))) == 1
        assert log.topics() == []
