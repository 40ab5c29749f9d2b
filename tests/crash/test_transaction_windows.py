"""A kill in each window of a transaction: afterwards it is committed everywhere, or aborted everywhere."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from helpers import copy_linked, flip

import commitlog
from commitlog import CommitLog, LogConfig, Partition, TopicPartition
from commitlog.batches.format import TRANSACTIONAL
from commitlog.config import IsolationLevel
from commitlog.errors import TransactionAbortedError, UnfinishedTransactionError
from commitlog.groups.member import GroupMetadata
from commitlog.groups.offsets import OffsetAndMetadata
from commitlog.locks import ProcessLock
from commitlog.partitions.appender import Appender
from commitlog.partitions.state import LogState

from .logs import QUIET
from .windows import calling_at, crashed_at

pytestmark = pytest.mark.usefixtures("quick_disk")

PARTITIONS = 3
GROUP = GroupMetadata("g", -1, "")
INPUT = TopicPartition("input", 0)
SOME = "some of the records, no decision -> aborted"
UNOWNED = "a batch of a transaction that nobody owns -> the next writer aborts it"
LISTED = "what is about to be aborted is listed, no marker -> the next writer aborts it"
NOT_SO = "the page says that a transaction begins, or has not ended, which is not so -> corrected"
TAKEN_OVER = "an open transaction whose producer owns no id any more -> it is aborted"
DECIDED = "decided, no marker, or some -> the next writer adds those that are missing"
ALONE = "the marker is there -> committed"
ABORT_DECIDED = "decided, markers missing -> the next writer adds them"
NO_LIST = "no list of what was aborted -> readers look for the markers"
Values = list[list[bytes]]


@pytest.fixture
def live(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """Where the kill leaves its copy."""
    return tmp_path / "left"


@pytest.fixture(params=["w", "shared"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def opened(path: Path, mode: str = "w") -> CommitLog:
    return commitlog.open(path, mode=mode, config=LogConfig(cleaner_enable=False))  # type: ignore[arg-type]


def prepared(path: Path, mode: str) -> CommitLog:
    """A log with a record in each partition."""
    log = opened(path, mode)
    for partition in log.create_topic("t", PARTITIONS, QUIET).partitions:
        partition.append(b"before")
    log.commit_offsets("g", {INPUT: 1})
    return log


def value_of(name: str, number: int) -> bytes:
    return f"{name} {number}".encode()


def added(name: str, partitions: range = range(PARTITIONS)) -> Values:
    """What a transaction adds to each partition, if it is committed."""
    return [[value_of(name, one)] if one in partitions else [] for one in range(PARTITIONS)]


def together(*parts: Values) -> Values:
    return [sum(columns, list[bytes]()) for columns in zip(*parts, strict=True)]


BEFORE: Values = [[b"before"]] * PARTITIONS


def visible(log: CommitLog, level: IsolationLevel = "read_committed") -> Values:
    partitions = log.topic("t").partitions
    return [[one.value for one in p.records(isolation_level=level)] for p in partitions]


def fill(transaction: Any, name: str, partitions: range = range(PARTITIONS)) -> None:
    for number in partitions:
        transaction.append("t", value_of(name, number), partition=number)


def commit(log: CommitLog, name: str = "new", partitions: range = range(PARTITIONS)) -> None:
    """A transaction in the partitions and, if there are several, in the offsets of a group."""
    with log.transaction() as transaction:
        if len(partitions) > 1:
            transaction.send_offsets({INPUT: OffsetAndMetadata(2)}, GROUP)
        fill(transaction, name, partitions)


def is_ended(partition: Partition) -> bool:
    return not partition.open_transactions() and partition.last_stable_offset == partition.high_watermark


def check_ended(log: CommitLog) -> None:
    """No transaction is open anywhere."""
    assert [one for one in log.transactions() if one.state in ("Ongoing", "PrepareCommit")] == []
    for partition in [*log.topic("t").partitions, log._groups.offsets().partition]:
        assert is_ended(partition)
    assert log._coordinator.metrics().open == 0


def sweep(log: CommitLog) -> None:
    """End what timed out: the owner has been silent for longer than that."""
    log._coordinator.sweep()
    log._coordinator._seen = dict.fromkeys(log._coordinator._seen, float("-inf"))
    log._coordinator.sweep()


def check_left(path: Path, expected: Values, stored: Values, offset: int, mode: str = "w") -> None:
    """The next writer finds `expected` and goes on; `stored` is what readers of everything see."""
    with opened(path, mode) as log:
        sweep(log)  # a shared log is put in order by this, and not by the open
        check_ended(log)
        assert visible(log) == expected
        assert visible(log, "read_uncommitted") == stored
        assert log._groups.offsets().stable("g") == {INPUT: (offset, "")}
        commit(log, "after")
        assert visible(log) == together(expected, added("after"))
        copy = path.with_name(path.name + "-again")
        copy_linked(path, copy)
    for one in (path, copy):
        with opened(one) as log:
            check_ended(log)
            assert visible(log) == together(expected, added("after"))
            assert visible(log, "read_uncommitted") == together(stored, added("after"))
            assert log._groups.offsets().stable("g") == {INPUT: (2, "")}
            assert all(partition.verify().ok for partition in log.topic("t").partitions)
    shutil.rmtree(copy)


def check_seen(path: Path, expected: Values, stored: Values) -> None:
    """What readers see before a writer has opened the log again."""
    with commitlog.open(path, mode="r") as log:
        assert visible(log) == expected
        assert visible(log, "read_uncommitted") == stored


@contextmanager
def crashed_after_markers(count: int, live: Path, to: Path) -> Iterator[None]:
    """Copy `live` once so many markers are appended: what a kill there leaves."""
    real, done = Partition.end_transaction, list[int]()

    def end(self: Partition, producer_id: int, epoch: int, *, commits: bool) -> int | None:
        offset = real(self, producer_id, epoch, commits=commits)
        if offset is not None:
            done.append(offset)
            if len(done) == count:
                copy_linked(live, to)
        return offset

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Partition, "end_transaction", end)
        yield
    assert len(done) >= count


# --- before the decision


@pytest.mark.parametrize("hit", range(1, PARTITIONS + 1))
def test_kill_when_some_partitions_have_their_records(live: Path, left: Path, mode: str, hit: int) -> None:
    """crash: some of the records, no decision -> aborted"""
    with prepared(live, mode) as log, crashed_at(SOME, live, left, hit):
        commit(log)
    stored = together(BEFORE, added("new", range(hit)))
    check_seen(left, BEFORE, stored)
    check_left(left, BEFORE, stored, 1, mode)


@pytest.mark.parametrize("hit", range(1, PARTITIONS + 2))
def test_kill_right_after_a_batch_of_a_transaction(live: Path, left: Path, mode: str, hit: int) -> None:
    """crash: a batch of a transaction that nobody owns -> the next writer aborts it"""
    with prepared(live, mode) as log, crashed_at(UNOWNED, live, left, hit):
        commit(log)  # its offsets come first
    stored = together(BEFORE, added("new", range(hit - 1)))
    check_seen(left, BEFORE, stored)
    check_left(left, BEFORE, stored, 1, mode)


def test_a_batch_whose_owner_has_no_record_is_aborted_by_a_shared_writer(live: Path, left: Path) -> None:
    """crash: a batch of a transaction that nobody owns -> the next writer aborts it"""
    with prepared(live, "w") as log, crashed_at(UNOWNED, live, left, 3):
        commit(log)
    check_left(left, BEFORE, together(BEFORE, added("new", range(2))), 1, "shared")


@pytest.mark.parametrize("where", ["begins", "ended"])
def test_a_writer_that_dies_when_the_page_is_ahead_of_its_batch_or_behind_its_marker_hides_nothing(
    live: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """crash: the page says that a transaction begins, or has not ended, which is not so -> corrected"""
    with prepared(live, "shared") as dying, opened(live, "shared") as living:
        one, other = (log.topic("t").partition(0) for log in (dying, living))
        other.append(b"second")
        batches = one.encode([b"third"], producer=(7, 0, 0), more_flags=TRANSACTIONAL)

        def die(*_: Any) -> None:
            cast(ProcessLock, one._state.lock).skip_leaving()
            raise KeyboardInterrupt

        if where == "ended":
            one.append_transactional(batches)
        else:
            one._syncer.declare_transactions()
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(LogState, "publish_transactions", die)
            if where == "ended":
                one.end_transaction(7, 0, commits=True)
            else:
                patch.setattr(Appender, "_write", die)
                one.append_transactional(batches)
        end = 2 if where == "begins" else 4
        page = one._state.page
        assert (page.next_offset, page.undecided_offset) == (end, 2)
        expected = [b"before", b"second"] + [b"third"] * (where == "ended")
        with calling_at(NOT_SO, lambda: None):
            assert other.append(b"other") == end
        for partition in (one, other):
            assert partition.last_stable_offset == partition.high_watermark == end + 1
            assert [record.value for record in partition.records()] == [*expected, b"other"]
        check_seen(live, [[*expected, b"other"], *BEFORE[1:]], [[*expected, b"other"], *BEFORE[1:]])
        check_ended(living)


# --- the decision


@pytest.mark.parametrize("next_mode", ["w", "shared"])
def test_kill_right_after_the_decision(live: Path, left: Path, mode: str, next_mode: str) -> None:
    """crash: decided, no marker, or some -> the next writer adds those that are missing"""
    with prepared(live, mode) as log, crashed_at(DECIDED, live, left):
        commit(log)
    stored = together(BEFORE, added("new"))
    check_seen(left, BEFORE, stored)
    with commitlog.open(left, mode="r") as reader:
        assert [one.state for one in reader.transactions()] == ["PrepareCommit"]
    check_left(left, stored, stored, 2, next_mode)


@pytest.mark.parametrize("next_mode", ["w", "shared"])
@pytest.mark.parametrize("count", range(1, PARTITIONS + 2))
def test_kill_between_the_markers_of_a_commit(
    live: Path, left: Path, mode: str, count: int, next_mode: str
) -> None:
    """crash: decided, some markers missing -> the next writer adds them"""
    with prepared(live, mode) as log, crashed_after_markers(count, live, left):
        commit(log)
    stored = together(BEFORE, added("new"))
    check_seen(left, together(BEFORE, added("new", range(count - 1))), stored)  # the first is of the offsets
    check_left(left, stored, stored, 2, next_mode)


def test_kill_right_after_a_commit_in_one_partition(live: Path, left: Path) -> None:
    """crash: the marker is there -> committed"""
    with prepared(live, "w") as log, crashed_at(ALONE, live, left):
        commit(log, partitions=range(1, 2))
    stored = together(BEFORE, added("new", range(1, 2)))
    check_seen(left, stored, stored)
    check_left(left, stored, stored, 1)


def test_kill_right_after_a_commit_in_one_partition_that_had_its_records_before(
    live: Path, left: Path
) -> None:
    """crash: the marker is there -> committed"""
    with prepared(live, "w") as log, crashed_at(ALONE, live, left), log.transaction() as transaction:
        fill(transaction, "new", range(1))
        transaction.flush()
    stored = together(BEFORE, added("new", range(1)))
    check_seen(left, stored, stored)
    check_left(left, stored, stored, 1)


# --- aborts


def abort(log: CommitLog, name: str = "new", partitions: range = range(PARTITIONS)) -> None:
    with log.transaction() as transaction:
        fill(transaction, name, partitions)
        transaction.flush()
        transaction.abort()


@pytest.mark.parametrize("next_mode", ["w", "shared"])
@pytest.mark.parametrize("count", range(1, PARTITIONS + 1))
def test_kill_between_the_markers_of_an_abort(
    live: Path, left: Path, mode: str, count: int, next_mode: str
) -> None:
    """crash: some markers missing -> the next writer adds them"""
    with prepared(live, mode) as log, crashed_after_markers(count, live, left):
        abort(log)
    stored = together(BEFORE, added("new"))
    check_seen(left, BEFORE, stored)
    check_left(left, BEFORE, stored, 1, next_mode)


@pytest.mark.parametrize("rolls", [False, True])
@pytest.mark.parametrize("hit", range(1, PARTITIONS + 1))
def test_kill_when_an_abort_is_listed_and_has_no_marker(
    live: Path, left: Path, mode: str, hit: int, rolls: bool
) -> None:
    """crash: what is about to be aborted is listed, no marker -> the next writer aborts it"""
    with prepared(live, mode) as log:
        abort(log, "first")  # the list has an entry then
        if rolls:
            for partition in log.topic("t").partitions:
                partition.roll()
        with crashed_at(LISTED, live, left, hit):
            abort(log)
    stored = together(BEFORE, added("first"), added("new"))
    check_seen(left, BEFORE, stored)
    check_left(left, BEFORE, stored, 1, mode)


def test_kill_right_after_an_entry_for_an_abort_that_another_took_the_place_of(
    live: Path, left: Path
) -> None:
    """crash: what is about to be aborted is listed, no marker -> the next writer aborts it

    The entry tells of an offset at which another batch comes: a batch of a transaction that commits.
    """
    with prepared(live, "shared") as log, crashed_at(LISTED, live, left):
        abort(log, partitions=range(1))
    with opened(left, "shared") as log:
        log.topic("t").partition(0).append(b"other")  # where the entry says that the marker is
        with log.transaction() as transaction:
            fill(transaction, "later", range(1))
        sweep(log)
        check_ended(log)
        expected = together(BEFORE, [[b"other"], [], []], added("later", range(1)))
        assert visible(log) == expected
    stored = together(BEFORE, added("new", range(1)), [[b"other"], [], []], added("later", range(1)))
    check_left(left, expected, stored, 1)


def test_kill_when_the_abort_of_another_process_is_decided(
    live: Path, left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """crash: decided, markers missing -> the next writer adds them"""
    with prepared(live, "shared") as log:
        producer = log.producer(transactional_id="billing")
        producer.begin_transaction()
        for number in range(PARTITIONS):
            producer.send("t", value_of("new", number), partition=number)
        producer.flush()
        other = opened(live, "shared")
        with crashed_at(ABORT_DECIDED, live, left):
            other.abort_transaction("billing")
        with pytest.raises(TransactionAbortedError):
            producer.commit_transaction()
        other.close()
        assert visible(log) == BEFORE
    with opened(left, "shared") as log:
        assert [one.state for one in log.transactions()] == ["Ongoing"]
        log._coordinator.sweep()
        assert [one.state for one in log.transactions()] == ["CompleteAbort"]
    check_left(left, BEFORE, together(BEFORE, added("new")), 1)


# --- owners


@pytest.mark.parametrize("decided", [False, True])
def test_kill_when_an_id_has_another_owner_and_the_transaction_of_the_first_is_open(
    live: Path, left: Path, mode: str, decided: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """crash: an open transaction whose producer owns no id any more -> it is aborted

    One that is decided gets its markers before the id has another owner.
    """

    def no_marker(*_: Any, **__: Any) -> None:
        raise commitlog.DiskFullError(str(live), "no room")

    with prepared(live, mode) as log:
        producer = log.producer(transactional_id="billing")
        producer.begin_transaction()
        for number in range(PARTITIONS):
            producer.send("t", value_of("new", number), partition=number)
        producer.flush()
        if decided:
            with monkeypatch.context() as patch, pytest.raises(UnfinishedTransactionError):
                patch.setattr(Partition, "end_transaction", no_marker)
                producer.commit_transaction()
        with crashed_at(TAKEN_OVER, live, left):
            log.producer(transactional_id="billing")
    stored = together(BEFORE, added("new"))
    expected = stored if decided else BEFORE
    check_seen(left, expected, stored)
    check_left(left, expected, stored, 1, mode)


# --- compaction


@pytest.mark.parametrize("open_again", ["r", "w", "shared"])
def test_kill_when_a_compacted_segment_has_no_list_of_what_was_aborted(
    live: Path, left: Path, open_again: str
) -> None:
    """crash: no list of what was aborted -> readers look for the markers"""

    def seen(partition: Any, level: str = "read_committed") -> list[bytes | None]:
        return [one.value for one in partition.records(isolation_level=level)]

    config = {**QUIET, "cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.0}
    with opened(live) as log:
        partition = log.create_topic("t", config=config).partition(0)
        with log.transaction() as transaction:
            transaction.append("t", b"kept", key=b"a")
        producers = [log.producer(transactional_id=name) for name in ("one", "two")]
        for producer, value in zip(producers, (b"aborted", b"committed"), strict=True):
            producer.begin_transaction()
            producer.send("t", value, key=value)
            producer.flush()
        partition.roll()
        producers[1].commit_transaction()
        producers[0].abort_transaction()  # its marker is in another segment than its record
        partition.roll()
        partition.append(b"active", key=b"z")
        with crashed_at(NO_LIST, live, left):
            partition.compact()
    assert not (left / "t-0" / f"{0:020d}.txnindex").exists()
    with commitlog.open(left, mode=open_again, config=LogConfig(cleaner_enable=False)) as log:  # type: ignore[arg-type]
        partition = log.topic("t").partition(0)
        assert seen(partition) == [b"kept", b"committed", b"active"]
        assert b"aborted" not in seen(partition)
        assert [one for one in log.transactions() if one.state == "Ongoing"] == []
    with opened(left) as log:
        partition = log.topic("t").partition(0)
        partition.compact()
        for level in ("read_committed", "read_uncommitted"):
            assert seen(partition, level) == [b"kept", b"committed", b"active"]
        assert partition.verify().ok


# --- truncation


CUT = ".cut beside the segment and those that follow -> open() finishes the truncation"
GONE = "the log ends with the segment that holds `offset` -> open() finds its records again"
UNINDEXED = "no indexes -> open() rebuilds them"


@pytest.mark.parametrize("window", [CUT, GONE, UNINDEXED])
@pytest.mark.parametrize("offset", [2, 4])
def test_kill_when_a_truncation_takes_the_markers_of_what_stays(
    live: Path, left: Path, mode: str, window: str, offset: int
) -> None:
    """crash: .cut beside the segment and those that follow -> open() finishes the truncation

    And what was decided stays decided.
    """
    config = {**QUIET, "segment_bytes": 4096}
    with opened(live, mode) as log:
        partition = log.create_topic("t", 1, config).partition(0)
        partition.append(b"before")
        kept, lost = log.transaction(), log.transaction()
        for transaction, value in ((kept, b"kept"), (lost, b"lost")):
            transaction.append("t", value)
            transaction.flush()
        partition.append(b"after")
        partition.roll()
        kept.commit(sync=True)
        lost.abort()
        partition.append(b"more", sync=True)
        expected = [b"before", b"kept", b"after"][: 2 if offset == 2 else 3]
        with crashed_at(window, live, left):
            partition.truncate_from(offset)
        assert [one.value for one in partition.records()] == expected
    with commitlog.open(left, mode="r") as log:
        assert [one.value for one in log.topic("t").records()] == expected
    for _ in range(2):
        with opened(left, mode) as log:
            assert [one.value for one in log.topic("t").records()] == expected
            assert log.topic("t")[0].open_transactions() == []
            assert log.topic("t")[0].verify().ok
    assert not list(left.rglob("*.cut"))


@pytest.mark.parametrize("damage", ["a flipped bit", "nothing in it"])
def test_no_segment_goes_because_of_a_damaged_end_of_the_log(live: Path, left: Path, damage: str) -> None:
    with opened(live) as log:
        partition = log.create_topic("t", 1, QUIET).partition(0)
        txn = log.transaction()
        txn.append("t", b"kept")
        txn.flush()
        partition.roll()
        txn.commit()
        partition.append(b"more", sync=True)
        with crashed_at(CUT, live, left):
            partition.truncate_from(1)
    (cut,) = left.rglob("*.cut")
    if damage == "nothing in it":
        cut.write_bytes(b"")
    else:
        flip(cut, 70)
    before = sorted(one.name for one in left.glob("t-0/*.log"))
    with pytest.raises(commitlog.CorruptionError):
        opened(left)
    assert sorted(one.name for one in left.glob("t-0/*.log")) == before
    config = LogConfig(cleaner_enable=False, recovery_mode="salvage")
    with commitlog.open(left, config=config) as log:
        assert [one.value for one in log.topic("t").records()] == [b"kept", b"more"]
