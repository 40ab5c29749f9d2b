"""Ctrl-C at any moment of a transaction: it is committed everywhere or aborted everywhere, and says which."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import commitlog
from commitlog import CommitLog, DiskFullError, LogConfig, Partition, TopicPartition
from commitlog.errors import TransactionStateError, UnfinishedTransactionError
from commitlog.groups.member import GroupMetadata
from commitlog.groups.offsets import OffsetAndMetadata
from commitlog.transactions.coordinator import Owner
from commitlog.transactions.transaction import Transaction

from .interrupts import Interrupt
from .logs import QUIET
from .test_interrupt import at_each_moment, check_files_free, check_free, quiet_ends

__all__ = ["quiet_ends"]
pytestmark = pytest.mark.usefixtures("quick_disk", "quiet_ends")

PARTITIONS = 2
GROUP = GroupMetadata("g", -1, "")
INPUT = TopicPartition("input", 0)
Act = Callable[[Transaction], object]


def fill(transaction: Transaction, partitions: int = PARTITIONS, *, offsets: bool = True) -> None:
    for number in range(partitions):
        transaction.append("t", b"new %d" % number, partition=number)
    if offsets:
        transaction.send_offsets({INPUT: OffsetAndMetadata(2)}, GROUP)


def flushed(transaction: Transaction) -> None:
    fill(transaction)
    transaction.flush()


def in_one(transaction: Transaction) -> None:
    fill(transaction, 1, offsets=False)


def flushed_in_one(transaction: Transaction) -> None:
    in_one(transaction)
    transaction.flush()


def nothing(transaction: Transaction) -> None:
    pass


def all_of_it(transaction: Transaction) -> None:
    with transaction:
        fill(transaction)


# what was done before, what is interrupted, and whether it may commit
CASES: dict[str, tuple[Act, Act, bool]] = {
    "commit": (fill, lambda transaction: transaction.commit(), True),
    "synced commit": (fill, lambda transaction: transaction.commit(sync=True), True),
    "commit of what is appended": (flushed, lambda transaction: transaction.commit(), True),
    "commit in one partition": (in_one, lambda transaction: transaction.commit(), True),
    "synced commit in one partition": (in_one, lambda transaction: transaction.commit(sync=True), True),
    "commit in one partition that has it": (flushed_in_one, lambda transaction: transaction.commit(), True),
    "abort": (flushed, Transaction.abort, False),
    "abort in one partition": (flushed_in_one, Transaction.abort, False),
    "abort of what is held": (in_one, Transaction.abort, False),
    "append": (nothing, fill, False),
    "flush": (in_one, Transaction.flush, False),
    "append and flush": (nothing, flushed, False),
    "all of it": (nothing, all_of_it, True),
}


def visible(log: CommitLog) -> list[list[bytes]]:
    return [[one.value for one in partition.records()] for partition in log.topic("t").partitions]


def outcome(log: CommitLog) -> bool:
    """Whether the transaction shows: it does so everywhere or nowhere."""
    assert [one for one in log.transactions() if one.state in ("Ongoing", "PrepareCommit")] == []
    for partition in log.topic("t").partitions:
        assert partition.open_transactions() == []
        assert partition.last_stable_offset == partition.high_watermark
    new = [[value for value in values if value.startswith(b"new")] for values in visible(log)]
    used = any(new)
    shows = [bool(values) for values in new]
    if log._groups.offsets().stable("g", 0)[INPUT].offset == 2:
        assert shows == [True] * PARTITIONS
    else:
        assert shows in ([False] * PARTITIONS, [True] + [False] * (PARTITIONS - 1))
    return used


def template(folder: Path, mode: str) -> Path:
    """A log with a transaction in it: the topics of our own are there."""
    path = folder / "template"
    with commitlog.open(path, mode=mode, config=LogConfig(cleaner_enable=False)) as log:  # type: ignore[arg-type]
        log.create_topic("t", PARTITIONS, QUIET)
        log.commit_offsets("g", {INPUT: 1})
        with log.transaction() as transaction:
            for number in range(PARTITIONS):
                transaction.append("t", b"before", partition=number)
    return path


def check_locks(log: CommitLog, path: Path) -> None:
    """No lock is held."""
    for partition in log.topic("t").partitions:
        check_free(partition)
    check_files_free([one for one in path.rglob("*") if "lock" in one.name and one != path / ".lock"])


def in_another_thread(act: Callable[[], object]) -> None:
    """Do something that would wait for ever if a lock of a thread were held."""
    problems = list[BaseException]()

    def run() -> None:
        try:
            act()
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert problems == []


def noting_wakes(log: CommitLog) -> list[str]:
    """Return a list that has something in it once the task that ends transactions is woken."""
    woken = list[str]()
    log._coordinator.wake_with(lambda: woken.append("woken"))
    return woken


def end_rest(log: CommitLog, woken: list[str]) -> None:
    """Add the markers that are missing, as the task does that was woken for them."""
    if any(partition.open_transactions() for partition in log.topic("t").partitions):
        assert woken
        in_another_thread(log._coordinator.sweep)


@pytest.mark.parametrize("shared", [False, True], ids=["exclusive", "shared"])
@pytest.mark.parametrize("name", CASES)
def test_an_interrupted_transaction_is_committed_everywhere_or_nowhere_and_says_which(
    name: str, shared: bool, tmp_path: Path
) -> None:
    (prepare, act, commits), path = CASES[name], tmp_path / "log"
    mode = "shared" if shared else "w"
    source = template(tmp_path, mode)

    def run(interruption: Interrupt) -> None:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(source, path)
        log = commitlog.open(path, mode=mode, config=LogConfig(cleaner_enable=False))  # type: ignore[arg-type]
        owner = log._coordinator.own("a", 60_000)
        transaction = owner.begin()
        prepare(transaction)
        woken = noting_wakes(log)
        with interruption:
            act(transaction)
        check_locks(log, path)
        in_another_thread(transaction.give_up)  # what a `with` block does then
        assert not transaction.is_open
        end_rest(log, woken)
        shown = outcome(log)
        assert shown == transaction.is_committed
        assert commits or not shown
        if not interruption.raised and commits:
            assert shown
        in_another_thread(lambda: go_on(log, owner))
        assert outcome(log) == shown
        left = path.with_name("left")
        shutil.rmtree(left, ignore_errors=True)
        shutil.copytree(path, left)
        log.close()
        for one in (left, path):
            check_again(one, shown)

    at_each_moment(f"{name} {shared}", run)


def go_on(log: CommitLog, owner: Owner) -> None:
    """The owner's next transaction, and one without an id, commit."""
    for transaction in (owner.begin(), log.transaction()):
        with transaction:
            for number in range(PARTITIONS):
                transaction.append("t", b"after", partition=number)


def check_again(path: Path, shown: bool) -> None:
    """It is the same after the log was opened again."""
    with commitlog.open(path, config=LogConfig(cleaner_enable=False)) as log:
        assert outcome(log) == shown
        assert [values[-2:] for values in visible(log)] == [[b"after", b"after"]] * PARTITIONS
        assert all(partition.verify().ok for partition in log.topic("t").partitions)


# --- calls that begin a transaction, or end that of another owner


def without_an_id(log: CommitLog) -> None:
    with log.transaction() as transaction:
        fill(transaction)


def with_a_producer(log: CommitLog) -> None:
    with log.producer(transactional_id="b") as producer, producer.transaction():
        for number in range(PARTITIONS):
            producer.send("t", b"new %d" % number, partition=number)
        producer.send_offsets_to_transaction({INPUT: 2}, GROUP)


def take_over(log: CommitLog) -> None:
    log._coordinator.own("a", 60_000)


def abort_by_id(log: CommitLog) -> None:
    log.abort_transaction("a")


def sweep(log: CommitLog) -> None:
    for transaction in log._coordinator._live.values():
        transaction._began -= 3600  # it has timed out
    log._coordinator.sweep()


BEGINS = {"a transaction without an id": without_an_id, "a producer": with_a_producer}
ENDS = {"another owner": take_over, "abort_transaction": abort_by_id, "a sweep": sweep}


def end_all(log: CommitLog) -> None:
    """What a timeout does to transactions whose `with` block was never entered."""
    for transaction in list(log._coordinator._live.values()):
        transaction.give_up()


@pytest.mark.parametrize("shared", [False, True], ids=["exclusive", "shared"])
@pytest.mark.parametrize("name", BEGINS)
def test_an_interrupted_block_is_committed_everywhere_or_nowhere(
    name: str, shared: bool, tmp_path: Path
) -> None:
    path, mode = tmp_path / "log", "shared" if shared else "w"
    source = template(tmp_path, mode)

    def run(interruption: Interrupt) -> None:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(source, path)
        log = commitlog.open(path, mode=mode, config=LogConfig(cleaner_enable=False))  # type: ignore[arg-type]
        log._coordinator.sweep()
        woken = noting_wakes(log)
        with interruption:
            BEGINS[name](log)
        check_locks(log, path)
        in_another_thread(lambda: end_all(log))
        end_rest(log, woken)
        shown = outcome(log)
        assert shown or interruption.raised
        in_another_thread(lambda: go_on(log, log._coordinator.own("b", 60_000)))
        assert outcome(log) == shown
        log.close()
        check_again(path, shown)

    at_each_moment(f"{name} {shared}", run)


@pytest.mark.parametrize("shared", [False, True], ids=["exclusive", "shared"])
@pytest.mark.parametrize("decided", [False, True], ids=["open", "decided"])
@pytest.mark.parametrize("name", ENDS)
def test_a_call_that_ends_the_transaction_of_another_owner_can_be_interrupted_and_repeated(
    name: str, decided: bool, shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is committed and has no markers yet."""
    path, mode = tmp_path / "log", "shared" if shared else "w"
    source = template(tmp_path, mode)

    def no_marker(*_: object, **__: object) -> None:
        raise DiskFullError(str(path), "no room")

    def run(interruption: Interrupt) -> None:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(source, path)
        log = commitlog.open(path, mode=mode, config=LogConfig(cleaner_enable=False))  # type: ignore[arg-type]
        transaction = log._coordinator.own("a", 60_000).begin()
        flushed(transaction)
        if decided:
            with monkeypatch.context() as patch, pytest.raises(UnfinishedTransactionError):
                patch.setattr(Partition, "end_transaction", no_marker)
                transaction.commit()
        with interruption, contextlib.suppress(TransactionStateError):  # nothing to abort
            ENDS[name](log)
        check_locks(log, path)
        assert decided == transaction.is_committed
        in_another_thread(lambda: again(log))
        assert outcome(log) == decided
        in_another_thread(lambda: go_on(log, log._coordinator.own("a", 60_000)))
        assert outcome(log) == decided
        log.close()
        check_again(path, decided)

    def again(log: CommitLog) -> None:
        with contextlib.suppress(TransactionStateError):  # it was done before
            ENDS[name](log)
        log._coordinator.sweep()

    at_each_moment(f"{name} {decided} {shared}", run)


def learn_by_appending(log: CommitLog) -> None:
    log.topic("t")[0].append(b"plain")


def learn_by_a_transaction(log: CommitLog) -> None:
    without_an_id(log)


@pytest.mark.parametrize("act", [learn_by_appending, learn_by_a_transaction])
@pytest.mark.parametrize("truncated", [False, True], ids=["", "truncated"])
def test_a_process_that_was_interrupted_as_it_learned_what_others_did_shows_nothing_undecided(
    act: Callable[[CommitLog], None], truncated: bool, tmp_path: Path
) -> None:
    path, config = tmp_path / "log", LogConfig(cleaner_enable=False)
    source = template(tmp_path, "shared")

    def run(interruption: Interrupt) -> None:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(source, path)
        log = commitlog.open(path, mode="shared", config=config)
        other = commitlog.open(path, mode="shared", config=config)
        visible(log)
        if truncated:
            other.topic("t")[0].append(b"truncated")
            other.topic("t")[0].truncate_from(other.topic("t")[0].next_offset - 1)
        left_open = other.transaction()
        for number in range(PARTITIONS):
            left_open.append("t", b"open", partition=number)
        left_open.flush()
        with interruption:
            act(log)
        check_locks(log, path)
        in_another_thread(lambda: end_all(log))
        log._coordinator.sweep()  # ends its own transaction, and not that of the other
        for number in range(PARTITIONS):
            log.topic("t")[number].append(b"later")
            log.topic("t")[number].roll()  # with a snapshot of what it knows
        for handle in (log, other):
            assert not any(b"open" in values for values in visible(handle))
            assert all(partition.open_transactions() for partition in handle.topic("t").partitions)
        left_open.abort()
        for handle in (log, other):
            assert not any(b"open" in values for values in visible(handle))
            assert all(b"later" in values for values in visible(handle))
            handle.close()

    at_each_moment(f"{act.__name__} {truncated}", run)
