"""Coordinator: decides the transactions of a log, and ends what their owners left open.

The partitions themselves know which transactions are open: a transaction is open in a partition from its
first batch there to its marker. The coordinator keeps what was decided. A commit in several partitions is one
record in __transaction_state. The markers follow, and the next writer adds those that are missing. A commit
in one partition, by the only process that writes the log, needs no record: its marker is the decision.

Each owner of a transactional id has its own producer id, and each of its transactions its own epoch, so that
nothing that comes late can touch a later transaction. An open transaction is aborted if its producer owns no
id any more, or has begun a later one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from commitlog.batches.encode import EncodedBatch
from commitlog.batches.format import MAX_EPOCH
from commitlog.errors import (
    ClosedError,
    CommitLogError,
    ConfigError,
    CorruptionError,
    NotLeaderError,
    TransactionAbortedError,
    TransactionFencedError,
    TransactionStateError,
    TransactionTimeoutError,
    UnfinishedTransactionError,
    UnknownPartitionError,
    UnknownTopicError,
)
from commitlog.groups.admin import Groups
from commitlog.locks import ProcessLock
from commitlog.partition import Partition
from commitlog.partitions.producer_state import OpenTransaction
from commitlog.record import TopicPartition
from commitlog.topic import Topic
from commitlog.topics.catalog import INTERNAL
from commitlog.topics.topic_set import TopicSet
from commitlog.transactions.state_log import TOPIC, TOPIC_CONFIG, OwnedId, Place, TransactionLog
from commitlog.transactions.transaction import Transaction

LOCK_NAME = ".transactions-lock"
DEFAULT_TIMEOUT_MS = 60_000
_ANONYMOUS = "anonymous-"
_SWEEP_SECONDS = 60.0  # at the latest; sooner where something is open
_RETRY_SECONDS = 1.0
_LOOK_SECONDS = 10.0  # between two looks for topics of other processes
_LONGEST_ID = 1024  # bytes
_EXPIRES_MS = 7 * 24 * 60 * 60 * 1000  # how long an id without transactions is kept; Kafka's default
_EXPIRE_SECONDS = 3600.0  # between two looks for ids that have expired
_logger = logging.getLogger("commitlog.transactions")

TransactionState = Literal["Empty", "Ongoing", "PrepareCommit", "CompleteCommit", "CompleteAbort"]


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The last transaction of a transactional id.

    `state` is Ongoing while it is open in `partitions`, PrepareCommit if it is committed but some of them
    lack the marker, then CompleteCommit or CompleteAbort; Empty if the id has decided nothing yet. `age_ms`
    is None unless it is Ongoing or PrepareCommit. `process` is the owner's host and process id.
    """

    transactional_id: str
    state: TransactionState
    producer_id: int
    epoch: int
    timeout_ms: int
    process: str
    age_ms: int | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class TransactionMetrics:
    """What this process has decided since it opened the log, and what is open in the log now.

    `oldest_ms` is the age of the oldest open transaction, 0 if there is none.
    """

    open: int
    committed: int
    aborted: int
    timed_out: int
    oldest_ms: int


class _Left(NamedTuple):
    """A transaction that is open in these partitions."""

    producer_id: int
    epoch: int
    partitions: list[tuple[TopicPartition, Partition, OpenTransaction]]


class Owner:
    """A producer that owns a transactional id, until another one takes it over. One transaction at a time."""

    def __init__(
        self, coordinator: Coordinator, owned: OwnedId, *, recorded: bool, has_name: bool = True
    ) -> None:
        self.owned = owned
        self.recorded = recorded  # whether the state log has it
        self.has_name = has_name  # otherwise it serves one log.transaction() after another
        self.current: Transaction | None = None
        self.unfinished: Transaction | None = None  # committed, but some markers are missing
        self._coordinator = coordinator
        self._next_epoch = 0

    @property
    def transactional_id(self) -> str:
        """The id."""
        return self.owned.transactional_id

    @property
    def producer_id(self) -> int:
        """The producer id of its next transaction."""
        return self.owned.producer_id

    def begin(self) -> Transaction:
        """Begin a transaction; the one before must have ended."""
        return self._coordinator.begin(self)

    def take_epoch(self) -> int:
        """Return the epoch of the next transaction."""
        if self._next_epoch > MAX_EPOCH:
            self.owned = self._coordinator.renewed(self.owned, recorded=self.recorded)
            self._next_epoch = 0
        epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        return epoch


class Coordinator:
    """The transactions of one log in this process. Threads may share it.

    `shared` says that other processes write the log, too: then every decision is a record, made under a lock.
    """

    def __init__(self, path: str, topics: TopicSet, groups: Groups, *, shared: bool) -> None:
        self._path = path
        self._topics = topics
        self.groups = groups
        self.shared = shared
        self._log = TransactionLog(self._opened)
        self._mutex = threading.RLock()  # for decisions, and for everything below
        self._process_lock: ProcessLock | None = None
        self._idle: list[Owner] = []  # owners without a name, for log.transaction()
        self._mine: set[int] = set()  # the producer ids of owners here, also of earlier ones
        self._live: dict[tuple[int, int], Transaction] = {}
        self._told: set[tuple[TopicPartition, int, int]] = set()  # what stays undecided because of damage
        self._seen: dict[tuple[int, int], float] = {}  # when open ones of other processes were first seen
        self._committed = self._aborted = self._timed_out = 0
        self._wake: Callable[[], None] = lambda: None
        self._sweep_at = float("inf")  # when sweep() runs next
        self._look_at = 0.0  # when it looks for new topics
        self._expire_at = 0.0  # when it looks for ids that have expired

    def wake_with(self, wake: Callable[[], None]) -> None:
        """Call `wake` when a transaction begins that times out before sweep() is due."""
        self._wake = wake

    def _opened(self, create: bool) -> Partition | None:
        if create:
            return self._topics.join_internal(TOPIC, TOPIC_CONFIG).partition(0)
        return self._topics.find(TOPIC).partition(0) if self._topics.counts([TOPIC]) else None

    @property
    def _alone(self) -> threading.RLock | ProcessLock:
        """The lock that keeps other processes from deciding; it is taken once `_mutex` is held."""
        if not self.shared:
            return self._mutex
        if self._process_lock is None:
            self._process_lock = ProcessLock(os.path.join(self._path, LOCK_NAME))
        return self._process_lock

    # --- owners

    def own(self, transactional_id: str, timeout_ms: int) -> Owner:
        """Take an id over: end what its owner before left, and let that do nothing any more."""
        try:
            size = len(transactional_id.encode())
        except (AttributeError, UnicodeEncodeError):  # not text, or with half a surrogate pair
            size = 0
        if not 0 < size <= _LONGEST_ID:
            reason = f"must be text of 1 to {_LONGEST_ID} bytes"
            raise ConfigError("transactional_id", transactional_id, reason)
        owned = OwnedId(transactional_id, self._new_producer_id(), timeout_ms, _process())
        with self._mutex, self._alone:
            return Owner(self, self._take_over(owned, sync=True), recorded=True)

    def renewed(self, owned: OwnedId, *, recorded: bool) -> OwnedId:
        """Give an owner another producer id, because it has used all epochs of the one it has."""
        renewed = OwnedId(owned.transactional_id, self._new_producer_id(), owned.timeout_ms, owned.process)
        if not recorded:
            return renewed
        with self._mutex, self._alone:
            self._check_owner(owned)
            return self._take_over(renewed, sync=False)

    def _take_over(self, owned: OwnedId, *, sync: bool) -> OwnedId:
        """Give an id to another owner, or to the same with another producer id; nobody else decides."""
        before = self._log.of(owned.transactional_id)
        if before is not None:
            self._finish(before, sync=True)  # a decision is forgotten only once its markers are durable
        try:
            self._log.write(owned, sync=sync)
            # crash: an open transaction whose producer owns no id any more -> it is aborted
            if before is not None:
                self._look_for_topics()
                self._abort_all(before.producer_id)
                self._mine.discard(before.producer_id)
        except BaseException:
            self._wake()  # it may be open still, and readers wait
            raise
        return owned

    def _new_producer_id(self) -> int:
        producer_id = int.from_bytes(os.urandom(8), "little") >> 1
        self._mine.add(producer_id)
        return producer_id

    def anonymous(self) -> Owner:
        """Return an owner for a transaction without an id of its own; release() takes it back."""
        with self._mutex:
            while self._idle:
                owner = self._idle.pop()
                if not owner.recorded or self._owns(owner.owned):  # otherwise it has expired
                    return owner
        producer_id = self._new_producer_id()
        owned = OwnedId(f"{_ANONYMOUS}{producer_id:016x}", producer_id, DEFAULT_TIMEOUT_MS, _process())
        if self.shared:  # others abort what no id owns
            self._log.write(owned)
        return Owner(self, owned, recorded=self.shared, has_name=False)

    def release(self, transaction: Transaction) -> None:
        """Take back the owner of a transaction that has ended, if anonymous() returned it."""
        owner = transaction.owner
        if not owner.has_name:
            with self._mutex:
                if owner.current is transaction and owner.unfinished is None:
                    owner.current = None
                    self._idle.append(owner)

    # --- transactions

    def begin(self, owner: Owner, *, sync: bool = False) -> Transaction:
        """Begin a transaction of an owner."""
        with self._mutex:
            if owner.current is not None and owner.current.is_open:
                raise TransactionStateError(owner.transactional_id, "a transaction has begun already")
            if owner.unfinished is not None:
                self._finish_markers(owner, owner.unfinished, sync=True)
            if owner.recorded:
                self._check_owner(owner.owned)
            transaction = Transaction(self, owner, owner.take_epoch(), sync=sync)
            owner.current = transaction
            self._live[transaction.producer_id, transaction.epoch] = transaction
        if time.monotonic() + owner.owned.timeout_ms / 1000 < self._sweep_at:
            self._wake()  # not each time: measured, a switch to the thread costs more than the transaction
        return transaction

    def check(self, transaction: Transaction) -> None:
        """Raise the reason why a transaction cannot go on, if others have ended it."""
        if not transaction.owner.recorded:
            return
        owned = self._log.of(transaction.owner.transactional_id)
        if owned is None or owned.producer_id != transaction.producer_id:
            raise TransactionFencedError(transaction.owner.transactional_id)
        if owned.is_decided(transaction.epoch):
            raise self._ended_by_others(transaction)

    def _check_owner(self, owned: OwnedId) -> None:
        if not self._owns(owned):
            raise TransactionFencedError(owned.transactional_id)

    def _owns(self, owned: OwnedId) -> bool:
        known = self._log.of(owned.transactional_id)
        return known is not None and known.producer_id == owned.producer_id

    def _ended_by_others(self, transaction: Transaction) -> TransactionAbortedError:
        owned = transaction.owner.owned
        if transaction.age_ms >= owned.timeout_ms:
            return TransactionTimeoutError(owned.transactional_id, owned.timeout_ms)
        return TransactionAbortedError(owned.transactional_id, "another process has aborted it")

    def commit(self, transaction: Transaction, *, sync: bool) -> None:
        """Commit a transaction: all its batches are appended, except those that it holds."""
        owner = transaction.owner
        only = None if self.shared else transaction.only_part()
        if only is not None:
            self._commit_alone(transaction, *only, sync=sync)
            return
        self._check_not_replicated(transaction)
        transaction.flush()
        places = transaction.places()
        if sync:
            for partition, end in transaction.ends():
                partition.sync_to(end)
        try:
            with self._mutex, self._alone:
                self.check(transaction)
                if places:
                    owned = owner.owned.decided(transaction.epoch, "commit", places)
                    self._log.write(owned)
                    owner.owned, owner.recorded = owned, True  # last: what is not stored is not decided
                    # crash: decided, no marker, or some -> the next writer adds those that are missing
                    owner.unfinished = transaction
                self._end(transaction, committed=True)
            if places:
                self._finish_markers(owner, transaction, sync=sync)
        except BaseException:
            if not transaction.is_open:
                self._wake()  # until the markers are there, readers wait
            raise

    def _commit_alone(
        self, transaction: Transaction, partition: Partition, held: tuple[EncodedBatch, ...], *, sync: bool
    ) -> None:
        """Commit in one partition: the marker, which comes with the last batches, is the decision."""
        leader_epoch = partition.leader_epoch
        with self._mutex:
            self.check(transaction)
            if held:
                marker: int | None = partition.append_and_commit(held).stop
            else:
                marker = partition.end_transaction(transaction.producer_id, transaction.epoch, commits=True)
            if marker is None:
                raise self._ended_by_others(transaction)
            # crash: the marker is there -> committed
            self._end(transaction, committed=True)
        if sync:
            try:
                partition.acknowledge(leader_epoch, marker + 1)  # by every in-sync replica, too
            except (CommitLogError, OSError) as error:
                raise UnfinishedTransactionError(transaction.owner.transactional_id, str(error)) from error

    def _check_not_replicated(self, transaction: Transaction) -> None:
        parts = transaction.parts()
        for name, partition in parts.items():
            if len(parts) > 1 and partition.replicated:
                reason = (
                    f"{TopicPartition(*name)} is replicated, and such a transaction may not write to other "
                    "partitions yet"
                )
                raise TransactionStateError(transaction.owner.transactional_id, reason)

    def _finish_markers(self, owner: Owner, transaction: Transaction, *, sync: bool = False) -> None:
        """Append the markers of a commit that is decided."""
        markers: list[tuple[Partition, int]] = []
        try:
            if sync:  # outside the lock, so that threads share a sync
                self._log.sync()
            for partition in transaction.written().values():
                try:
                    end = _mark_committed(partition, transaction.producer_id, transaction.epoch)
                    # crash: decided, some markers missing -> the next writer adds them
                except (UnknownTopicError, ClosedError):
                    continue  # deleted meanwhile
                markers.append((partition, end))
            if sync:  # the next decision of this id replaces the record of this one
                for partition, end in markers:
                    with _gone():
                        partition.sync_to(end)
        except (CommitLogError, OSError) as error:
            raise UnfinishedTransactionError(owner.transactional_id, str(error)) from error
        owner.unfinished = None

    def abort(self, transaction: Transaction) -> bool:
        """Abort a transaction; returns whether all markers could be appended: those missing are added later.

        If Ctrl-C has ended commit() after the decision, it is committed, and its markers are appended.
        """
        done = False
        try:
            with self._mutex:
                if (transaction.producer_id, transaction.epoch) not in self._live:  # of the parent of a fork
                    transaction.ended(committed=False)
                    done = True
                    return done
                committed = self._is_decided(transaction)
                if committed:
                    transaction.owner.unfinished = transaction
                self._end(transaction, committed=committed)
            if committed:
                self._finish_markers(
                    transaction.owner, transaction, sync=True
                )  # it may have begun with a sync
            done = committed or self._append_aborts(transaction)
            return done
        finally:
            if not done:
                self._wake()  # until the markers are there, readers wait

    def _append_aborts(self, transaction: Transaction) -> bool:
        """Append the markers that abort a transaction; returns whether all of them could be."""
        done = True
        for name, partition in transaction.written().items():
            try:
                with _gone():
                    partition.end_transaction(transaction.producer_id, transaction.epoch, commits=False)
                    # crash: some markers missing -> the next writer adds them
            except (CommitLogError, OSError) as problem:
                done = False
                _logger.warning(
                    "%s: the records of an aborted transaction stay open: %s", TopicPartition(*name), problem
                )
        return done

    def _is_decided(self, transaction: Transaction) -> bool:
        """Say whether a transaction is committed, by a record or by a marker."""
        producer_id, epoch, written = transaction.producer_id, transaction.epoch, transaction.written()
        if len(written) > 1 or self.shared:
            return _is_committed(self._log.of_producer(producer_id), epoch)
        return any(partition.decided(producer_id, epoch) for partition in written.values())

    def _end(self, transaction: Transaction, *, committed: bool) -> None:
        """Note that a transaction has ended."""
        transaction.ended(committed=committed)  # first: nothing may be unsaid if Ctrl-C comes
        self._live.pop((transaction.producer_id, transaction.epoch), None)
        if committed:
            self._committed += 1
        else:
            self._aborted += 1

    # --- what others left open

    def recover(self) -> None:
        """End what the process that wrote the log before left open; for a process that writes it alone."""
        for left in self._left_open():
            owned = self._log.of_producer(left.producer_id)
            self._end_left(left, commits=_is_committed(owned, left.epoch))
        if self._topics.counts([TOPIC]):
            for owned in self._log.all():
                if _is_anonymous(owned.transactional_id):
                    try:
                        self._finish(owned, sync=True)
                        self._log.forget(owned.transactional_id)
                    except (CommitLogError, OSError) as problem:  # a full disk must not prevent the open
                        _logger.warning("%s is not forgotten: %s", owned.transactional_id, problem)

    def sweep(self) -> float:
        """End what timed out or was left behind; returns the seconds until the next run."""
        pause = _RETRY_SECONDS if self.shared else _SWEEP_SECONDS  # others begin transactions, and die
        for key, transaction in list(self._live.items()):
            if not transaction.is_open:  # Ctrl-C came as it ended
                self._live.pop(key, None)
                continue
            left_ms = transaction.owner.owned.timeout_ms - transaction.age_ms
            if left_ms > 0:
                pause = min(pause, left_ms / 1000)
            elif transaction.time_out():
                self._timed_out += 1
            else:  # a thread is using it
                pause = min(pause, _RETRY_SECONDS)
        seen: dict[tuple[int, int], float] = {}
        if time.monotonic() >= self._look_at:
            self._look_for_topics()
        if time.monotonic() >= self._expire_at:
            self.expire(time.time_ns() // 1_000_000)
            self._expire_at = time.monotonic() + _EXPIRE_SECONDS
        for left in self._left_open():
            key = left.producer_id, left.epoch
            live = self._live.get(key)
            is_ours = live is not None and live.is_open and not self._is_fenced(live)
            if not is_ours and not self._swept(left, seen):
                pause = min(pause, _RETRY_SECONDS)
        self._seen, self._sweep_at = seen, time.monotonic() + pause
        return pause

    def expire(self, now_ms: int) -> None:
        """Forget the ids that no process has used for a week, and that have nothing open."""
        if not self._topics.counts([TOPIC]):
            return
        busy = self._mine | {left.producer_id for left in self._left_open()}
        for owned in self._log.unchanged_since(now_ms - _EXPIRES_MS):
            if owned.producer_id not in busy:
                with self._mutex, self._alone:
                    if self._log.of(owned.transactional_id) == owned:  # nobody has used it just now
                        self._finish(owned, sync=True)
                        self._log.forget(owned.transactional_id)

    def _swept(self, left: _Left, seen: dict[tuple[int, int], float]) -> bool:
        """End a transaction that no thread here has open, if that is due; returns whether it was.

        `seen` gets the time when it was first seen, if another process may still have it open.
        """
        owned = self._log.of_producer(left.producer_id)
        if owned is None:
            foreign = any(partition.replicated for _, partition, _ in left.partitions)  # of another node
        else:
            # not by owned.process: this process may have the log open twice, and containers share numbers
            mine = left.producer_id in self._mine
            foreign = self.shared and not mine and not owned.is_decided(left.epoch)
        if not foreign:
            return self._end_left(left, commits=_is_committed(owned, left.epoch))
        timeout_ms = DEFAULT_TIMEOUT_MS if owned is None else owned.timeout_ms
        key, now = (left.producer_id, left.epoch), time.monotonic()
        began = seen[key] = self._seen.get(key, now)
        if (now - began) * 1000 < timeout_ms or not _can_be_ended(left):
            return False
        self._timed_out += 1
        return self._end_left(left, commits=False) if owned is None else self._abort_open(owned, left.epoch)

    def _left_open(self) -> list[_Left]:
        """Return the transactions that are open in partitions of this process, also where it only follows."""
        found: dict[tuple[int, int], _Left] = {}
        for name, partition in self._partitions():
            with contextlib.suppress(CommitLogError):  # closed or deleted meanwhile
                if not partition.is_undecided or partition.failure is not None:
                    continue
                for one in partition.open_transactions():
                    key = one.producer_id, one.epoch
                    left = found.setdefault(key, _Left(*key, []))
                    left.partitions.append((name, partition, one))
        return list(found.values())

    def _look_for_topics(self) -> None:
        """Open the topics and partitions that other processes have created: they may have transactions."""
        if self.shared:
            for name in [*self._topics.names(), *self._topics.counts(INTERNAL)]:
                with contextlib.suppress(UnknownTopicError):  # deleted meanwhile
                    self._topics.find(name)
            self._look_at = time.monotonic() + _LOOK_SECONDS

    def _partitions(self) -> Iterator[tuple[TopicPartition, Partition]]:
        for topic in self._topics.all():
            for number, partition in enumerate(topic.partitions):
                if partition.writable and partition.has_transactions:
                    yield TopicPartition(topic.name, number), partition

    def _end_left(self, left: _Left, *, commits: bool, asked: bool = False) -> bool:
        """Append the markers that end a transaction; returns whether all of them could be.

        Where its own marker may be in a damaged part of the log, it is aborted only if a user has `asked`.
        """
        done = True
        try:
            if commits:
                self._log.sync()  # a power cut must not lose the decision and keep a marker
        except (CommitLogError, OSError) as problem:
            _logger.warning("a transaction of producer %d stays open: %s", left.producer_id, problem)
            return False
        for name, partition, one in left.partitions:
            if one.unsure and not (commits or asked):
                self._tell_unsure(name, one)
                continue
            try:
                with _gone():
                    partition.end_transaction(left.producer_id, left.epoch, commits=commits)
                    if commits:
                        partition.sync()  # the next decision of its id replaces the record of this one
            except NotLeaderError:
                continue  # it follows, and gets the marker from its leader
            except (CommitLogError, OSError) as problem:
                done = False
                _logger.warning("%s: a transaction that was left open stays so: %s", name, problem)
            else:
                ended = "committed" if commits else "aborted"
                _logger.info("%s: a transaction of producer %d is %s", name, left.producer_id, ended)
        return done

    def _tell_unsure(self, name: TopicPartition, one: OpenTransaction) -> None:
        if (name, one.producer_id, one.epoch) not in self._told:
            self._told.add((name, one.producer_id, one.epoch))
            _logger.error(
                "%s: the transaction of producer %d from offset %d stays undecided: its marker may be in a "
                "damaged part of the log; abort_transaction() ends it",
                name, one.producer_id, one.first_offset,
            )  # fmt: skip

    def _finish(self, owned: OwnedId, *, sync: bool) -> None:
        """Append the markers that a decided commit lacks."""
        if owned.decision != "commit":
            return
        self._log.sync()  # a power cut must not lose the decision and keep a marker
        for place in owned.places:
            partition = self._found(place)
            if partition is not None:
                with _gone():
                    _mark_committed(partition, owned.producer_id, owned.epoch)
                    if sync:
                        partition.sync()

    def _abort_all(self, producer_id: int, *, asked: bool = False) -> None:
        for left in self._left_open():
            if left.producer_id == producer_id:
                self._end_left(left, commits=False, asked=asked)

    def _abort_open(self, owned: OwnedId, epoch: int, *, asked: bool = False) -> bool:
        """Abort an open transaction of an id that another process, or nobody, owns; returns whether all its
        markers could be appended.
        """
        with self._mutex, self._alone:
            known = self._log.of(owned.transactional_id)
            if known is None or known.producer_id != owned.producer_id or known.is_decided(epoch):
                return False  # decided meanwhile
            self._log.write(known.decided(epoch, "abort"))
            # crash: decided, markers missing -> the next writer adds them
            self._aborted += 1
            done = True
            for left in self._left_open():
                if left[:2] == (owned.producer_id, epoch):
                    done = self._end_left(left, commits=False, asked=asked) and done
            return done

    # --- inspection

    def describe_all(self) -> list[TransactionDescription]:
        """Return the last transaction of every id, and the open ones of owners without a name."""
        open_ones = {left.producer_id: left for left in self._open_anywhere()}
        known = {one.producer_id: one for one in self._log.all()}
        for transaction in self._open_here():
            known.setdefault(transaction.producer_id, transaction.owner.owned)
        for producer_id in open_ones:
            unknown = f"{_ANONYMOUS}{producer_id:016x}"
            known.setdefault(producer_id, OwnedId(unknown, producer_id, DEFAULT_TIMEOUT_MS, ""))
        live = {one.producer_id: one for one in self._open_here()}
        described = [self._described(one, open_ones.get(key), live.get(key)) for key, one in known.items()]
        shown = [
            one for one in described if one.age_ms is not None or not _is_anonymous(one.transactional_id)
        ]
        return sorted(shown, key=lambda one: one.transactional_id)

    def _open_here(self) -> list[Transaction]:
        return [one for one in list(self._live.values()) if one.is_open and not self._is_fenced(one)]

    def _is_fenced(self, transaction: Transaction) -> bool:
        """Say whether the id of a transaction has another owner, which has aborted it."""
        if not transaction.owner.recorded:
            return False
        known = self._log.of(transaction.owner.transactional_id)
        return known is None or known.producer_id != transaction.producer_id

    def _open_anywhere(self) -> list[_Left]:
        found: dict[tuple[int, int], _Left] = {}
        for name, partition in self._readable():
            with contextlib.suppress(CommitLogError):
                if partition.last_stable_offset < partition.high_watermark:
                    for one in partition.open_transactions():
                        left = found.setdefault(one[:2], _Left(*one[:2], []))
                        left.partitions.append((name, partition, one))
        return list(found.values())

    def _readable(self) -> Iterator[tuple[TopicPartition, Partition]]:
        for partition in self._topics.readers():
            topic, _, number = partition.name.rpartition("-")
            if partition.has_transactions:
                yield TopicPartition(topic, int(number)), partition

    def _described(
        self, owned: OwnedId, left: _Left | None, live: Transaction | None
    ) -> TransactionDescription:
        state: TransactionState = "Empty"
        epoch, age_ms, names = (
            owned.epoch,
            None,
            tuple(TopicPartition(p.topic, p.partition) for p in owned.places),
        )
        if left is not None:
            names = tuple(sorted(name for name, _, _ in left.partitions))
            epoch, age_ms = left.epoch, self._age_ms(left) if live is None else live.age_ms
            state = "PrepareCommit" if _is_committed(owned, left.epoch) else "Ongoing"
        elif live is not None and not owned.is_decided(live.epoch):  # otherwise others have aborted it
            epoch, age_ms, state = live.epoch, live.age_ms, "Ongoing"
            names = tuple(TopicPartition(*name) for name in sorted(live.parts()))
        elif owned.decision is not None:
            state = "CompleteCommit" if owned.decision == "commit" else "CompleteAbort"
        return TransactionDescription(
            owned.transactional_id, state, owned.producer_id, epoch, owned.timeout_ms, owned.process, age_ms,
            names,
        )  # fmt: skip

    def _age_ms(self, left: _Left) -> int:
        """Return the age of a transaction of another process, from the timestamps of its first records."""
        firsts = []
        for _, partition, one in left.partitions:
            with contextlib.suppress(CommitLogError):
                for batch in partition.stored_batches(one.first_offset, one.first_offset + 1):
                    firsts.append(batch.header.max_timestamp)
        now = time.time_ns() // 1_000_000
        return max(now - min(firsts, default=now), 0)

    def abort_by_id(self, transactional_id: str) -> None:
        """Abort the open transaction of an id, whoever owns it; TransactionStateError if there is none."""
        found = [one for one in self.describe_all() if one.transactional_id == transactional_id]
        if not found or found[0].state != "Ongoing":
            raise TransactionStateError(transactional_id, "it has no open transaction")
        left = [one for one in self._left_open() if one.producer_id == found[0].producer_id]
        if left and not any(map(_can_be_ended, left)):
            raise TransactionStateError(transactional_id, "another node leads its partition: abort it there")
        transaction = self._live.get((found[0].producer_id, found[0].epoch))
        if transaction is not None:
            problem = TransactionAbortedError(transactional_id, "abort_transaction() was called for its id")
            # wait: otherwise it could still be committed, after it is aborted here
            if transaction.end_from_outside(problem, wait=True):
                return
        owned = self._log.of(transactional_id)
        if owned is not None and not owned.is_decided(found[0].epoch):
            self._abort_open(owned, found[0].epoch, asked=True)
        else:
            self._abort_all(found[0].producer_id, asked=True)

    def metrics(self) -> TransactionMetrics:
        """Return the counters, and what is open. Nothing is read from files unless a transaction is open."""
        ages = {(one.producer_id, one.epoch): one.age_ms for one in self._open_here()}
        for left in self._open_anywhere():
            key = left.producer_id, left.epoch
            if key not in ages and not _is_committed(self._log.of_producer(left.producer_id), left.epoch):
                ages[key] = self._age_ms(left)
        return TransactionMetrics(
            len(ages), self._committed, self._aborted, self._timed_out, max(ages.values(), default=0)
        )

    # --- the end

    def close(self) -> None:
        """Abort what is open, and forget owners without a name."""
        for transaction in list(self._live.values()):
            with contextlib.suppress(CommitLogError):
                transaction.abort()
        for owner in self._idle:
            if owner.recorded:
                with contextlib.suppress(CommitLogError, OSError):
                    self._finish(owner.owned, sync=True)
                    self._log.forget(owner.transactional_id)
        self._idle = []

    def forked(self) -> None:
        """In a forked child: replace the lock, which a thread of the parent may have held."""
        self._mutex = threading.RLock()
        self._live, self._idle, self._mine = {}, [], set()

    # --- places

    def _found(self, place: Place) -> Partition | None:
        """Return a partition that a transaction wrote to; None if its topic was deleted."""
        try:
            topic: Topic = self._topics.find(place.topic)
            return topic.partition(place.partition) if topic.topic_id == place.topic_id else None
        except (UnknownTopicError, UnknownPartitionError):
            return None

    def topic(self, name: str) -> Topic:
        """Return a topic that a transaction writes to."""
        return self._topics.show(name)


def _mark_committed(partition: Partition, producer_id: int, epoch: int) -> int:
    """Append the marker of a commit that is decided, unless it is there; returns an offset after it."""
    marker = partition.end_transaction(producer_id, epoch, commits=True)
    if marker is not None:
        return marker + 1
    if partition.decided(producer_id, epoch) is False:
        raise CorruptionError(
            partition.path, 0, f"a transaction of producer {producer_id} that is committed was aborted"
        )
    return partition.next_offset  # the sweeper was quicker


def _is_committed(owned: OwnedId | None, epoch: int) -> bool:
    return owned is not None and owned.decision == "commit" and owned.epoch == epoch


def _can_be_ended(left: _Left) -> bool:
    """Say whether this process may append a marker to any of the partitions: not if it only follows."""
    return any(partition.accepts_appends for _, partition, _ in left.partitions)


def _is_anonymous(transactional_id: str) -> bool:
    return transactional_id.startswith(_ANONYMOUS)


@contextlib.contextmanager
def _gone() -> Iterator[None]:
    """Ignore that a topic was deleted: with it went its part of the transaction."""
    with contextlib.suppress(UnknownTopicError, ClosedError):
        yield


def _process() -> str:
    return f"{os.uname().nodename}:{os.getpid()}"
