from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers import copy_as_if_killed, full_after, names, stage, tree

import commitlog
from commitlog import (
    CommitLog,
    ConfigError,
    CorruptionError,
    DiskFullError,
    InvalidRecordError,
    LogConfig,
    Partition,
    PartitionFailedError,
    ReadOnlyError,
    StagedFile,
    UnknownTopicError,
    files,
)
from commitlog.batches import staged
from commitlog.batches.staged import Claim
from commitlog.errors import (
    BatchTooLargeError,
    InvalidTopicError,
    UnfinishedPublicationError,
    UnknownPartitionError,
    WrongLogError,
)
from commitlog.locks import ProcessLock
from commitlog.partitions.appender import Appender
from commitlog.partitions.producer_state import Producers, Published, snapshots
from commitlog.publishing import publications, staging
from commitlog.publishing import publisher as publishing

QUIET = {"flush_ms": -1, "file_delete_delay_ms": 0}
SMALL = {**QUIET, "segment_bytes": 512, "index_interval_bytes": 100}


@pytest.fixture(params=[False, True], ids=["exclusive", "shared"])
def log(log_path: Path, request: pytest.FixtureRequest) -> Iterator[CommitLog]:
    """A log with topics "t" of three partitions, and "u" of one."""
    with commitlog.open(log_path, mode="shared" if request.param else "w") as opened:
        opened.create_topic("t", partitions=3, config=QUIET)
        opened.create_topic("u", config=QUIET)
        yield opened


def values(log: CommitLog, topic: str = "t", partition: int = 0) -> list[bytes | None]:
    """The values of a partition, whose offsets must be dense."""
    found = log.topic(topic).partition(partition)
    records = list(found.records())
    assert [record.offset for record in records] == list(range(found.start_offset, found.next_offset))
    return [record.value for record in records]


def three(log: CommitLog, mark: bytes = b"") -> list[StagedFile]:
    """One staged file for each of three partitions."""
    places = [("t", 0), ("t", 2), ("u", 0)]
    return [stage(log, *place, [mark + b"%s-%d" % (place[0].encode(), place[1])] * 2) for place in places]


def staged_names(log: CommitLog) -> list[str]:
    return names(os.path.join(log.path, "staging"))


def leave_unfinished(log: CommitLog, appended: int, staged: list[StagedFile], epoch: int = 1) -> None:
    with full_after(appended), pytest.raises(UnfinishedPublicationError):
        log.publish("query", epoch, staged)


# --- what it is for


def test_staged_files_are_published_together(log: CommitLog) -> None:
    log.topic("t").partition(0).append(b"before")
    assert log.published("query") is None
    assert log.publish("query", 7, three(log))
    assert log.published("query") == 7
    assert values(log) == [b"before", b"t-0", b"t-0"]
    assert (values(log, "t", 1), values(log, "t", 2), values(log, "u")) == ([], [b"t-2"] * 2, [b"u-0"] * 2)
    assert staged_names(log) == []


def test_what_is_published_is_durable(log: CommitLog) -> None:
    log.publish("query", 0, three(log))
    for partition in (log.topic("t").partition(0), log.topic("t").partition(2), log.topic("u").partition(0)):
        assert partition.durable_offset == 2


def test_files_of_one_partition_are_published_in_the_order_given(log: CommitLog) -> None:
    staged = [stage(log, "t", 0, [b"%d" % number] * 2) for number in range(20)]
    log.publish("query", 0, [*staged[10:], *staged[:10]])
    assert values(log) == [b"%d" % number for number in [*range(10, 20), *range(10)] for _ in range(2)]


def test_an_epoch_is_published_once_and_its_files_are_just_removed(log: CommitLog) -> None:
    assert log.publish("query", 3, three(log))
    assert not log.publish("query", 3, three(log, b"again "))
    assert not log.publish("query", 2, three(log, b"older "))
    assert values(log, "u") == [b"u-0"] * 2
    assert staged_names(log) == []
    assert log.published("query") == 3


def test_transactions_do_not_see_each_other(log: CommitLog) -> None:
    assert log.publish("one", 5, [stage(log, "t", 0, [b"one"])])
    assert log.publish("two", 1, [stage(log, "t", 0, [b"two"])])
    assert log.publish("two", 4, [stage(log, "t", 0, [b"four"])])
    assert (log.published("one"), log.published("two"), log.published("three")) == (5, 4, None)
    assert values(log) == [b"one", b"two", b"four"]


def test_an_epoch_without_records_counts(log: CommitLog) -> None:
    assert log.publish("query", 0, [])
    assert log.published("query") == 0
    assert not log.publish("query", 0, three(log))


def test_a_log_that_was_opened_again_knows_what_was_published(log: CommitLog) -> None:
    log.publish("query", 1, three(log))
    with commitlog.open(log.path, mode="r") as reader:
        assert reader.published("query") == 1
        log.publish("query", 2, [])
        assert (reader.published("query"), reader.published("other")) == (2, None)
    log.close()
    with commitlog.open(log.path) as again:
        assert again.published("query") == 2
        assert not again.publish("query", 2, three(again))
        assert again.publish("query", 3, three(again))
        assert values(again, "u") == [b"u-0"] * 4


def test_large_files_are_published_over_many_segments(
    log_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_TARGET_ROWS", 1)
    with commitlog.open(log_path) as log:
        partition = log.create_topic("t", config=SMALL).partition(0)
        with log.stage("t", 0) as writer:
            for number in range(100):
                writer.append(pa.table({"value": [b"%d" % number]}))
            staged = writer.finish()
        log.publish("query", 0, [staged])
        assert values(log) == [b"%d" % number for number in range(100)]
        assert len(partition.segments) > 10
        assert partition.verify().ok
        assert partition.published == Published(staged.file_id, 100, 99)


def test_the_topic_of_publications_is_hidden_and_ours(log: CommitLog) -> None:
    with pytest.raises(InvalidTopicError):
        log.create_topic("__publications")
    log.publish("query", 0, [])
    assert log.topics() == ["t", "u"]
    with pytest.raises(InvalidTopicError):
        log.delete_topic("__publications")


def test_opening_a_log_without_publications_makes_nothing(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        log.create_topic("t")
    before = tree(log_path)
    commitlog.open(log_path).close()
    with commitlog.open(log_path) as log:
        assert log.published("query") is None
    assert tree(log_path) == before


def test_readers_do_not_publish(log: CommitLog) -> None:
    staged = three(log)
    with commitlog.open(log.path, mode="r") as reader, pytest.raises(ReadOnlyError):
        reader.publish("query", 0, staged)
    assert log.publish("query", 0, staged)


def test_shared_logs_see_what_others_published(log_path: Path) -> None:
    with commitlog.open(log_path, mode="shared") as one, commitlog.open(log_path, mode="shared") as two:
        one.create_topic("t", partitions=3)
        one.create_topic("u")
        assert one.publish("query", 0, three(one))
        assert two.published("query") == 0
        assert not two.publish("query", 0, three(two))
        two.topic("t").partition(0).append(b"between")
        assert two.publish("query", 1, three(two))
        assert not one.publish("query", 1, three(one))
        assert values(one) == values(two) == [b"t-0", b"t-0", b"between", b"t-0", b"t-0"]


def test_threads_that_publish_the_same_epoch_publish_it_once(log: CommitLog) -> None:
    won: list[int] = []

    def publish() -> None:
        for epoch in range(10):
            if log.publish("query", epoch, [stage(log, "t", 0, [b"%d" % epoch] * 3)]):
                won.append(epoch)

    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == sorted(set(won))
    assert values(log) == [b"%d" % epoch for epoch in sorted(won) for _ in range(3)]
    assert staged_names(log) == []


# --- what is refused, with nothing published


def check_refused(
    log: CommitLog, error: type[Exception], staged: list[StagedFile], match: str | None = None
) -> None:
    with pytest.raises(error, match=match):
        log.publish("query", 0, staged)
    assert log.published("query") is None
    assert [values(log, "t", number) for number in range(3)] == [[], [], []]
    assert log.publish("query", 0, [])


@pytest.mark.parametrize(
    ("topic", "partition", "error"),
    [("other", 0, UnknownTopicError), ("t", 3, UnknownPartitionError), ("t", -1, UnknownPartitionError),
     ("__publications", 0, InvalidTopicError), ("../t", 0, InvalidTopicError)],
)  # fmt: skip
def test_places_that_are_not_there_are_refused(
    log: CommitLog, topic: str, partition: int, error: type[Exception]
) -> None:
    good = three(log)
    bad = replace(good[1], topic=topic, partition=partition)
    check_refused(log, error, [good[0], bad, good[2]])


def test_damaged_and_missing_files_are_refused(log: CommitLog) -> None:
    staged = three(log)
    path = os.path.join(log.path, staged[2].path)
    os.truncate(path, staged[2].size_bytes - 1)
    with pytest.raises(CorruptionError, match=path):
        log.publish("query", 0, staged)
    os.unlink(path)
    check_refused(log, CorruptionError, staged, path)


def test_null_keys_are_refused_where_the_topic_was_compacted_meanwhile(log: CommitLog) -> None:
    staged = [stage(log, "t", 0, [b"v", b"v"], key=[b"k", None])]
    log.topic("t").alter_config(cleanup_policy="compact")
    check_refused(log, InvalidRecordError, staged, "record 1: a compacted topic needs a key")


def test_batches_that_fit_in_no_segment_any_more_are_refused(log: CommitLog) -> None:
    staged = [stage(log, "t", 0, [b"v" * 2_000])]
    log.topic("t").alter_config(segment_bytes=1_000)
    check_refused(log, BatchTooLargeError, staged)


def test_wrong_arguments_are_refused(log: CommitLog) -> None:
    staged = three(log)
    check_refused(log, ConfigError, [*staged, staged[0]], "twice")
    wrong: list[tuple[Any, Any]] = [
        ("", 1), (7, 1), ("\ud800", 1), ("query", -1), ("query", True), ("query", "1"), ("query", 1 << 63),
    ]  # fmt: skip
    for txn_id, epoch in wrong:
        with pytest.raises(ConfigError):
            log.publish(txn_id, epoch, [])
        with pytest.raises(ConfigError):
            log.discard(txn_id, epoch)
        with pytest.raises(ConfigError):
            log.stage("t", 0, txn_id=txn_id, epoch=epoch)


def test_the_largest_epoch_is_finished_by_another_process(log: CommitLog, tmp_path: Path) -> None:
    largest = (1 << 63) - 1
    leave_unfinished(log, 0, [stage(log, "t", 0, [b"x"] * 2, claim=("query", largest))], largest)
    with commitlog.open(copy_as_if_killed(log, tmp_path / "left")) as again:
        assert again.published("query") == largest
        assert values(again) == [b"x"] * 2


def test_a_commit_for_which_there_is_no_room_publishes_nothing(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.publish("other", 0, [])
    real = files.write_at

    def full(fd: int, *rest: Any) -> None:
        if "__publications" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, "no room")
        real(fd, *rest)

    staged = three(log)
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_at", full)
        with pytest.raises(DiskFullError):
            log.publish("query", 0, staged)
    assert (log.published("query"), values(log)) == (None, [])
    assert log.publish("query", 0, staged)


def test_a_commit_whose_sync_failed_appends_nothing_until_the_log_is_opened_again(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.publish("other", 0, [])
    staged, real = three(log), files.sync_data

    def broken(fd: int) -> None:
        if "__publications" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EIO, "broken")
        real(fd)

    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_data", broken)
        with pytest.raises(PartitionFailedError):
            log.publish("query", 0, staged)
    for txn_id in ("query", "other"):
        with pytest.raises(PartitionFailedError):
            log.publish(txn_id, 9, [])
    assert (log.published("query"), values(log)) == (None, [])
    log.close()
    with commitlog.open(log.path) as again:
        assert again.published("query") in (0, None)
        again.publish("query", 0, [])
        assert len(values(again)) == len(values(again, "u"))


# --- after the commit point


@pytest.mark.parametrize("appended", [0, 1, 2])
def test_the_next_publication_finishes_one_that_failed(log: CommitLog, appended: int) -> None:
    staged = three(log)
    with full_after(appended), pytest.raises(UnfinishedPublicationError, match="no room") as caught:
        log.publish("query", 1, staged)
    assert caught.value.args[:2] == ("query", 1)
    assert isinstance(caught.value.__cause__, DiskFullError)
    assert log.published("query") is None
    log.topic("t").partition(0).append(b"between")
    assert log.publish("other", 0, [stage(log, "u", 0, [b"other"])])
    assert log.published("query") == 1
    assert sorted(values(log)) == [b"between", b"t-0", b"t-0"]
    assert (values(log, "t", 2), values(log, "u")) == ([b"t-2"] * 2, [b"u-0", b"u-0", b"other"])
    assert staged_names(log) == []
    assert not log.publish("query", 1, staged)


@pytest.mark.parametrize("appended", [0, 1, 2])
@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("shared", [False, True])
def test_the_next_open_finishes_one_that_failed(
    log: CommitLog, tmp_path: Path, appended: int, end: str, shared: bool
) -> None:
    log.publish("query", 0, [])
    leave_unfinished(log, appended, three(log))
    assert log.published("query") == 0
    left = copy_as_if_killed(log, tmp_path / "left")
    log.close()
    with commitlog.open(left if end == "killed" else log.path, mode="shared" if shared else "w") as again:
        assert again.published("query") == 1
        assert (values(again), values(again, "t", 2)) == ([b"t-0"] * 2, [b"t-2"] * 2)
        assert values(again, "u") == [b"u-0"] * 2
        assert staged_names(again) == []
        assert not again.publish("query", 1, [])


def test_a_commit_that_its_process_did_not_live_to_sync_is_synced_before_anything_is_appended(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = three(log)
    log.publish("other", 0, [])
    commits = log._topics.find("__publications").partition(0)
    key, value = publications._to_json(publications.Publication("query", 1, None, tuple(staged)))
    commits.append(value, key=key)
    assert commits.durable_offset == 1
    real = Partition.append_published

    def append(self: Partition, batches: Any) -> range:
        assert commits.durable_offset == 2
        return real(self, batches)

    monkeypatch.setattr(Partition, "append_published", append)
    log.publish("other", 1, [])
    assert (log.published("query"), values(log, "u")) == (1, [b"u-0"] * 2)


def test_calling_again_after_a_failure_finishes_it(log: CommitLog) -> None:
    staged = three(log)
    leave_unfinished(log, 1, staged)
    leave_unfinished(log, 0, staged)
    assert not log.publish("query", 1, staged), "it was committed before"
    assert values(log) == [b"t-0"] * 2
    assert log.publish("query", 2, three(log))
    assert values(log) == [b"t-0"] * 4


def test_a_file_of_many_chunks_goes_on_where_it_stopped(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_TARGET_ROWS", 1)
    monkeypatch.setattr(staged, "_CHUNK_BATCHES", 2)
    found = []
    for first in (0, 10, 20):
        with log.stage("t", 0) as writer:
            for number in range(first, first + 10):
                writer.append(pa.table({"value": [b"%d" % number]}))
            found.append(writer.finish())
    for appended in (0, 1, 3, 2, 0, 2, 4):
        leave_unfinished(log, appended, found)
    log.publish("other", 0, [])
    assert values(log) == [b"%d" % number for number in range(30)]


def test_an_interrupted_publication_is_finished_by_the_next(log: CommitLog) -> None:
    staged = three(log)
    with full_after(1, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        log.publish("query", 1, staged)
    assert not log.publish("query", 1, staged)
    assert (values(log), values(log, "u")) == ([b"t-0"] * 2, [b"u-0"] * 2)


def test_an_interruption_after_batches_were_written_does_not_let_them_be_forgotten(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Appender._append_locked

    def interrupted(self: Appender, batches: Any) -> int:
        offset = real(self, batches)
        if self._state.name == "t-0":
            raise KeyboardInterrupt
        return offset

    staged = three(log)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Appender, "_append_locked", interrupted)
        log.publish("query", 1, staged)
    assert not log.publish("query", 1, staged)
    assert values(log) == [b"t-0"] * 2


def test_a_full_disk_keeps_nobody_from_opening_the_log(
    log: CommitLog, caplog: pytest.LogCaptureFixture
) -> None:
    leave_unfinished(log, 1, three(log))
    for one in staged_names(log):
        os.utime(f"{log.path}/staging/{one}", (0, 0))  # much later
    log.close()
    with full_after(0), commitlog.open(log.path) as again:
        assert "epoch 1 of 'query' is committed" in caplog.text
        assert again.published("query") is None
        assert len(staged_names(again)) == 3
        with pytest.raises(UnfinishedPublicationError):
            again.publish("other", 0, [])
    with commitlog.open(log.path) as again:
        assert values(again, "u") == [b"u-0"] * 2
        assert staged_names(again) == []


def test_a_staged_file_that_is_lost_after_the_commit_is_damage(
    log: CommitLog, caplog: pytest.LogCaptureFixture
) -> None:
    staged = three(log)
    leave_unfinished(log, 1, staged)
    path = os.path.join(log.path, staged[1].path)
    os.unlink(path)
    with pytest.raises(CorruptionError, match=path):
        log.publish("other", 0, [])
    log.close()
    with pytest.raises(CorruptionError, match=path):
        commitlog.open(log.path)
    with commitlog.open(log.path, mode="r") as reader:
        assert values(reader) == [b"t-0"] * 2
    with commitlog.open(log.path, config=LogConfig(recovery_mode="salvage")) as again:
        assert path in caplog.text
        assert (values(again), values(again, "t", 2)) == ([b"t-0"] * 2, [])
        assert values(again, "u") == [b"u-0"] * 2
        assert again.published("query") == 1


def test_what_was_staged_for_a_topic_that_is_deleted_goes_with_it(log: CommitLog) -> None:
    staged = three(log)
    leave_unfinished(log, 1, staged)
    log.delete_topic("t")
    assert log.publish("query", 2, [])
    assert values(log, "u") == [b"u-0"] * 2
    assert staged_names(log) == []


def test_while_somebody_else_publishes_an_open_does_not_wait(log_path: Path) -> None:
    with commitlog.open(log_path, mode="shared") as one:
        one.create_topic("t", partitions=3)
        one.create_topic("u")
        leave_unfinished(one, 1, three(one))
        with (
            ProcessLock(str(log_path / publishing.LOCK_NAME)),
            commitlog.open(log_path, mode="shared") as two,
        ):
            assert two.published("query") is None
        with commitlog.open(log_path, mode="shared") as two:
            assert two.published("query") == 1


def test_publishers_remove_leftovers_now_and_then(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    old = stage(log, "t", 0, [b"old"])
    os.utime(f"{log.path}/{old.path}", (0, 0))
    log.publish("query", 0, [])
    assert len(staged_names(log)) == 1
    monkeypatch.setattr(publishing, "_TIDY_SECONDS", 0)
    log.publish("query", 1, [])
    assert staged_names(log) == []


# --- files that were staged for an epoch


def test_what_other_attempts_of_an_epoch_staged_is_removed_when_it_is_published(log: CommitLog) -> None:
    for _ in range(3):
        staged = [stage(log, "t", number, [b"x"], claim=("query", 4)) for number in range(2)]
    older = stage(log, "t", 0, [b"older"], claim=("query", 3))
    kept = [
        stage(log, "t", 0, [b"later"], claim=("query", 5)),
        stage(log, "t", 0, [b"another query"], claim=("other", 4)),
        stage(log, "t", 0, [b"anybody's"]),
    ]
    assert os.path.exists(f"{log.path}/{older.path}")
    assert log.publish("query", 4, staged)
    assert values(log) == [b"x"]
    assert {f"staging/{name}" for name in staged_names(log)} == {one.path for one in kept}
    assert log.publish("query", 5, kept[:1])
    assert log.publish("other", 4, kept[1:])
    assert values(log) == [b"x", b"later", b"another query", b"anybody's"]


@pytest.mark.parametrize("which", ["published", "left behind"])
def test_files_that_cannot_be_removed_do_not_make_a_publication_fail(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, which: str
) -> None:
    left, staged = (stage(log, "t", 0, [b"x"], claim=("query", 0)) for _ in range(2))
    stays = staged if which == "published" else left
    remove = files.remove

    def refuse(path: str) -> None:
        if path.endswith(stays.path):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        remove(path)

    monkeypatch.setattr(files, "remove", refuse)
    assert log.publish("query", 0, [staged])
    assert not log.publish("query", 0, [staged])
    log.close()
    with commitlog.open(log.path) as again:
        assert values(again) == [b"x"]
        assert os.path.basename(stays.path) in staged_names(again)
        assert "Permission denied" in caplog.text
        monkeypatch.undo()
        assert again.publish("query", 1, [])
        assert staged_names(again) == []


def test_an_attempt_that_ends_after_its_epoch_is_removed_by_the_next_publication(log: CommitLog) -> None:
    assert log.publish("query", 0, [stage(log, "t", 0, [b"x"], claim=("query", 0))])
    stage(log, "t", 0, [b"late"], claim=("query", 0))
    assert log.publish("another query", 0, [])
    assert staged_names(log) == []
    assert values(log) == [b"x"]


def test_a_file_is_published_by_its_own_epoch_only(log: CommitLog) -> None:
    staged = stage(log, "t", 0, [b"x"], claim=("query", 1))
    for txn_id, epoch in (("query", 2), ("other", 1)):
        with pytest.raises(ConfigError, match=f"was not staged for epoch {epoch} of '{txn_id}'"):
            log.publish(txn_id, epoch, [staged])
    assert log.publish("query", 1, [staged])


def test_an_epoch_that_is_given_up_leaves_no_files(log: CommitLog) -> None:
    for epoch in (0, 1):
        stage(log, "t", 0, [b"x"], claim=("query", epoch))
    log.discard("query", 0)
    log.discard("never heard of", 0)
    assert len(staged_names(log)) == 1
    log.discard("query", 1)
    assert staged_names(log) == []
    assert log.publish("query", 0, [stage(log, "t", 0, [b"again"], claim=("query", 0))])
    assert values(log) == [b"again"]


def test_an_epoch_that_is_committed_cannot_be_given_up(log: CommitLog) -> None:
    staged = [stage(log, "t", number, [b"x"] * 2, claim=("query", 1)) for number in range(3)]
    stage(log, "t", 0, [b"a failed attempt"], claim=("query", 1))
    leave_unfinished(log, 1, staged)
    assert log.unfinished_publications() == [("query", 1)]
    known = log._publisher._known()
    assert [known.is_over(Claim.of("query", epoch)) for epoch in range(3)] == [True, False, False]
    log.discard("query", 1)
    assert len(staged_names(log)) == 4
    assert log.publish("other", 0, [])
    assert [values(log, "t", number) for number in range(3)] == [[b"x"] * 2] * 3
    assert log.unfinished_publications() == []
    assert staged_names(log) == []


def test_a_file_of_another_log_is_refused(log: CommitLog, tmp_path: Path) -> None:
    with commitlog.open(tmp_path / "other") as other:
        other.create_topic("t")
        staged = stage(other, "t", 0, [b"x"])
        with pytest.raises(WrongLogError, match=f"is log {log.log_id}, not {other.log_id}"):
            log.publish("query", 0, [staged])


@pytest.mark.parametrize(
    "name", ["", "..", "0" * 15, "0" * 17, f"{'0' * 32}-01-{'0' * 16}", f"{'0' * 31}-1-{'0' * 16}", "A" * 16]
)
def test_a_name_that_is_not_of_a_staged_file_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="names no staged file"):
        staged.parse_name(name)


# --- what else happens to a partition before a publication is finished


@pytest.mark.parametrize("end", ["goes on", "closed", "killed"])
def test_records_that_were_trimmed_before_the_end_of_a_publication_do_not_come_back(
    log: CommitLog, tmp_path: Path, end: str
) -> None:
    partition = log.topic("t").partition(0)
    leave_unfinished(log, 2, three(log))
    partition.append(b"later")
    partition.trim_before(partition.next_offset)
    log.apply_retention()
    if end == "goes on":
        log.publish("other", 0, [])
        assert values(log) == []
        return
    left = copy_as_if_killed(log, tmp_path / "left")
    log.close()
    with commitlog.open(left if end == "killed" else log.path) as again:
        assert again.published("query") == 1
        assert (values(again), values(again, "u")) == ([], [b"u-0"] * 2)


def test_that_a_publication_is_trimmed_is_durable_before_its_segment_goes(
    log_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with commitlog.open(log_path) as log:
        partition = log.create_topic("t", config=QUIET).partition(0)
        log.publish("query", 0, [stage(log, "t", 0, [b"v"])])
        events: list[str] = []
        real_data, real_map = files.sync_data, files.sync_map

        def sync_data(fd: int) -> None:
            events.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
            real_data(fd)

        def sync_map(view: Any) -> None:
            events.append("page")
            real_map(view)

        monkeypatch.setattr(files, "sync_data", sync_data)
        monkeypatch.setattr(files, "sync_map", sync_map)
        partition.append(b"later")
        partition.trim_before(2)
        assert f"{2:020d}.snapshot" in events
        assert events.index(f"{2:020d}.snapshot") < events.index("page")
        events.clear()
        partition.append(b"later still")
        log.publish("query", 1, [stage(log, "t", 0, [b"v"])])
        partition.trim_before(3)
        assert not [event for event in events if event.endswith(".snapshot")], "its batch stays"


def test_truncated_records_are_published_again(log: CommitLog) -> None:
    leave_unfinished(log, 2, three(log))
    log.topic("t").partition(0).truncate_from(0)
    log.publish("other", 0, [])
    assert (values(log), values(log, "u")) == ([b"t-0"] * 2, [b"u-0"] * 2)


COMPACTED = {**SMALL, "cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.0}


@pytest.fixture
def compacted(log_path: Path) -> Iterator[CommitLog]:
    with commitlog.open(log_path) as log:
        log.create_topic("c", config=COMPACTED)
        log.create_topic("u", config=QUIET)
        yield log


def publish_keys(log: CommitLog, epoch: int, keys: bytes) -> StagedFile:
    """Publish a file with a record for each letter."""
    letters = [bytes([letter]) for letter in keys]
    staged = stage(log, "c", 0, [b"%s%d" % (letter, epoch) for letter in letters], key=letters)
    assert log.publish("query", epoch, [staged])
    return staged


def test_compaction_does_not_let_an_unfinished_publication_be_forgotten(
    compacted: CommitLog, tmp_path: Path
) -> None:
    partition = compacted.topic("c").partition(0)
    staged = [
        stage(compacted, "c", 0, [b"old"], key=[b"k"]),
        stage(compacted, "c", 0, [b"old"], key=[b"l"]),
        stage(compacted, "u", 0, [b"u"]),
    ]
    leave_unfinished(compacted, 2, staged)
    partition.append_many([b"new", b"new"], keys=[b"k", b"l"])
    partition.roll()
    partition.compact()
    assert partition.next_offset == 4
    left = copy_as_if_killed(compacted, tmp_path / "left")
    for snapshot in snapshots(str(left / "c-0")):
        os.unlink(snapshot)
    with commitlog.open(left) as again:
        assert values(again, "u") == [b"u"]
        assert again.topic("c").latest() == {b"k": b"new", b"l": b"new"}
        assert again.topic("c").partition(0).next_offset == 4


def test_compaction_forgets_all_but_the_last_publication(compacted: CommitLog) -> None:
    partition = compacted.topic("c").partition(0)
    for epoch in range(30):
        last = publish_keys(compacted, epoch, b"xyz" + bytes([130 + epoch]))
    partition.roll()
    partition.compact()
    headers = [header for segment in partition.segments for _, header in segment.headers()]
    assert [header.producer_id for header in headers if header.is_published] == [last.file_id]
    assert len(headers) < 10, "what stays of the others is put together"
    latest = partition.latest()
    assert latest[b"x"] == b"x29"
    assert len(latest) == 33
    for epoch in range(30, 60):
        last = publish_keys(compacted, epoch, b"xyz")
    partition.roll()
    partition.compact()
    partition.compact()
    headers = [header for segment in partition.segments for _, header in segment.headers()]
    assert [header.producer_id for header in headers if header.is_published] == [last.file_id]
    assert partition.latest()[b"x"] == b"x59"


# --- what a partition remembers


@pytest.mark.parametrize("end", ["closed", "killed", "killed without snapshots"])
def test_a_partition_remembers_how_far_the_last_publication_came(
    log: CommitLog, tmp_path: Path, end: str
) -> None:
    partition = log.topic("t").partition(0)
    assert partition.published is None
    log.publish("query", 0, [stage(log, "t", 0, [b"0"])])
    last = stage(log, "t", 0, [b"1", b"2"])
    log.publish("query", 1, [last])
    partition.append_many([b"3"], producer=(7, 0, 0))
    partition.roll()
    partition.append(b"4")
    expected = Published(last.file_id, 2, 1)
    assert partition.published == expected
    left = copy_as_if_killed(log, tmp_path / "left")
    log.close()
    if end == "killed without snapshots":
        for snapshot in snapshots(str(left / "t-0")):
            os.unlink(snapshot)
    with commitlog.open(log.path if end == "closed" else left) as again:
        partition = again.topic("t").partition(0)
        assert partition.published == expected
        assert partition.append_many([b"3"], producer=(7, 0, 0)) == range(3, 4), "producers are known as well"


def test_a_snapshot_keeps_the_last_publication(tmp_path: Path) -> None:
    producers = Producers()
    producers.note((7, 0, 5), 3, 10, 1_000)
    producers.note((99, -2, 0), 4, 20, 1_000)
    producers.note((2**63 - 1, -2, 2**31 - 5), 3, 30, 1_000)
    assert len(producers) == 2
    producers.next_offset = 33
    producers.save(str(tmp_path))
    loaded = Producers.load(snapshots(str(tmp_path))[0])
    assert loaded is not None
    assert loaded.published == Published(2**63 - 1, 2**31 - 2, 30)
    assert loaded.find((7, 0, 5), 3, "t-0") == 10
    loaded.forget_before(2_000)
    assert (len(loaded), loaded.published) == (1, producers.published)


@pytest.mark.parametrize("published", [True, False])
def test_that_batches_name_their_producer_is_durable_before_the_first_one_does(
    log_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, published: bool
) -> None:
    """A power cut that takes the page back to its last sync must not let a producer be forgotten."""
    left = tmp_path / "left"
    with commitlog.open(log_path) as log:
        partition = log.create_topic("t", config=QUIET).partition(0)
        page: list[bytes] = []
        watched = partition._state.page._map
        monkeypatch.setattr(
            files, "sync_map", lambda view: page.append(bytes(view)) if view is watched else None
        )
        if published:
            log.publish("query", 0, [stage(log, "t", 0, [b"v"])])
        else:
            partition.append_many([b"v"], producer=(7, 0, 0), sync=True)
        shutil.copytree(log_path, left)
        (left / "t-0" / "state").write_bytes(page[-1])
    with commitlog.open(left) as log:
        partition = log.topic("t").partition(0)
        if published:
            assert partition.published is not None
        else:
            assert partition.append_many([b"v"], producer=(7, 0, 0)) == range(0, 1)


# --- choosing partitions


@pytest.mark.parametrize("partitioner", ["xxhash", "murmur2"])
@pytest.mark.parametrize(
    "kind",
    [pa.binary(), pa.string(), pa.large_binary(), pa.dictionary(pa.int32(), pa.string()), pa.binary_view()],
)
def test_arrow_keys_go_where_appended_ones_do(log: CommitLog, partitioner: str, kind: pa.DataType) -> None:
    topic = log.create_topic("p", partitions=7, config={"partitioner": partitioner})
    keys = [b"%d" % number for number in range(200)]
    expected = [topic.append(b"v", key=key)[0] for key in keys]
    column = pa.array([key.decode() for key in keys], pa.string()).cast(kind)
    assert topic.partition_numbers(column).tolist() == expected
    assert topic.partition_numbers(pa.chunked_array([column[:50], column[50:]])).tolist() == expected
    assert topic.partition_numbers(column[100:110]).tolist() == expected[100:110]


def test_records_without_a_key_go_together_and_calls_take_turns(log: CommitLog) -> None:
    topic = log.topic("t")
    first, second = topic.partition_numbers(pa.nulls(10)), topic.partition_numbers(pa.nulls(10, pa.binary()))
    assert len(set(first.tolist())) == len(set(second.tolist())) == 1
    assert first[0] != second[0]
    mixed = topic.partition_numbers(pa.array([b"a", None, b"a", None]))
    assert mixed[0] == mixed[2]
    assert mixed[1] == mixed[3]
    hidden = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, 1]), pa.array([b"a", None]))
    assert hidden.null_count == 0
    assert topic.partition_numbers(hidden)[[0, 2]].tolist() == mixed[[0, 2]].tolist()
    for partitioner in ("xxhash", "murmur2"):
        topic.alter_config(partitioner=partitioner)
        assert topic.partition_numbers(pa.array([], pa.binary())).tolist() == []


def test_files_staged_for_a_topic_are_not_published_into_another_of_the_same_name(log: CommitLog) -> None:
    log.create_topic("again").append(b"old")
    staged = stage(log, "again", 0, [b"for the old topic"])
    log.delete_topic("again")
    again = log.create_topic("again").partition(0)
    with pytest.raises(UnknownTopicError, match="again"):
        log.publish("query", 0, [staged])
    assert again.next_offset == 0
    assert log.published("query") is None


def test_what_was_committed_for_a_topic_that_was_made_again_meanwhile_is_left_out(
    log: CommitLog, tmp_path: Path
) -> None:
    log.create_topic("again")
    staged = [stage(log, "again", 0, [b"old"]), stage(log, "t", 0, [b"new"])]
    leave_unfinished(log, 0, staged)
    log.delete_topic("again")
    again = log.create_topic("again").partition(0)
    assert log.publish("other", 0, []) is True  # finishes what was left
    assert log.published("query") == 1
    assert (again.next_offset, [record.value for record in log.topic("t").partition(0).records()]) == (
        0,
        [b"new"],
    )
