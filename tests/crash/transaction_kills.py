"""Processes that read, transform and write in transactions, and are killed: for test_transaction_kills.py.

The input is numbered, in each of its partitions; an output record has the number of its input, doubled. What
is aborted on purpose is NEVER, so that nobody may read it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, NoReturn

import commitlog
from commitlog import CommitLog, Consumer, ConsumerRecord, Partition, Producer, aborted_index, files
from commitlog.aborted_index import Aborted, AbortedRanges
from commitlog.batches.batch import RecordBatch
from commitlog.compaction import Pass
from commitlog.errors import (
    CommitFailedError,
    FencedMemberError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionFencedError,
    UnstableOffsetsError,
)
from commitlog.partitions.page import StatePage
from commitlog.transactions import coordinator
from commitlog.transactions.coordinator import Coordinator
from commitlog.transactions.state_log import OwnedId, TransactionLog
from commitlog.transactions.transaction import Transaction

INPUT, DUEL, OUTPUT, LATEST, TOKENS = "input", "duel", "output", "latest", "tokens"
SMALL = {"segment_bytes": 4096, "index_interval_bytes": 256, "file_delete_delay_ms": 0, "flush_ms": 20}
TOPICS: dict[str, tuple[int, dict[str, Any]]] = {
    INPUT: (3, SMALL),
    DUEL: (1, SMALL),
    OUTPUT: (4, SMALL),
    LATEST: (2, {**SMALL, "cleanup_policy": "compact", "delete_retention_ms": 0}),
    TOKENS: (2, SMALL),
}
GROUPS = {"workers": INPUT, "duelists": DUEL}  # what they read
NEVER = b"never"
READY, ROUND, OPEN = "ready", "round", "open"  # what a process prints, beside its tokens
_KEYS = 3  # of each partition of an input
SESSION_MS, BEAT_MS = 1_000, 100
TIMEOUT_MS = 500  # of transactions

# after them somebody else has the id, the transaction or the partitions: begin again at what is committed
MOVED_ON = (
    CommitFailedError,
    FencedMemberError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionFencedError,
    UnstableOffsetsError,
)


@dataclass(frozen=True)
class Role:
    """What a process does. It travels as a text."""

    path: str
    name: str  # its transactional id
    seed: int = 0
    mode: Literal["w", "shared"] = "w"
    group: str = "workers"  # "" to read nothing
    assigns: bool = True  # whether it takes all partitions, or what the group assigns to it
    static: bool = True  # whether it is a static member of the group
    feeds: bool = False  # whether it appends input
    drains: bool = False  # whether it ends when everything is processed
    kind: str = ""  # the only kind of transaction, if not all
    bug: str = ""
    dies: str = ""  # a step and a number: it kills itself after that step was done so often
    waits: str = ""  # when the first transaction waits, "begun" or "sent", and for which file
    timeout_ms: int = TIMEOUT_MS  # of its transactions

    def text(self) -> str:
        return json.dumps(asdict(self))


def key_of(topic: str, partition: int, number: int) -> bytes:
    return b"%s.%d.%d" % (topic.encode(), partition, number % _KEYS)


def create_topics(log: CommitLog) -> None:
    for topic, (partitions, config) in TOPICS.items():
        log.create_topic(topic, partitions, config)


def numbers_in(partition: Any) -> list[int]:
    """The numbers that can be read in a partition of an input."""
    return [int(record.value) for record in partition.records()]


# --- the process


def work(text: str) -> None:
    """Work until killed, or until everything is processed."""
    role = Role(**json.loads(text))
    plant(role.bug)
    if role.dies:
        die_after(*role.dies.split())
    coordinator.DEFAULT_TIMEOUT_MS = TIMEOUT_MS
    chance = random.Random(role.seed)
    with opened(role) as log:
        over = False
        while not over:
            try:
                with contextlib.ExitStack() as stack:
                    over = Worker(role, log, chance, stack).run()
            except MOVED_ON:
                time.sleep(chance.random() * 0.02)  # so that the other one gets something done


def opened(role: Role) -> CommitLog:
    if role.mode == "w":
        return commitlog.open(role.path)
    return commitlog.open(role.path, mode="shared")


class Worker:
    """One that owns its transactional ids until somebody else takes them."""

    def __init__(
        self, role: Role, log: CommitLog, chance: random.Random, stack: contextlib.ExitStack
    ) -> None:
        self._role, self._log, self._chance = role, log, chance
        self._waits = role.waits
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._feeder: Producer | None = None
        if role.feeds:
            self._feeder = stack.enter_context(self._new_producer("feeder"))
            self._numbers = {
                (topic, number): len(numbers_in(partition))
                for topic in GROUPS.values()
                for number, partition in enumerate(log.topic(topic).partitions)
            }
        if role.group:
            self._producer = stack.enter_context(self._new_producer(role.name))  # first: it ends what is open
            self._consumer = stack.enter_context(self._new_consumer())

    def _new_producer(self, transactional_id: str) -> Producer:
        return self._log.producer(
            transactional_id=transactional_id,
            transaction_timeout_ms=self._role.timeout_ms,
            batch_size=self._chance.choice([100, 1_000, 16_384]),
            linger_ms=self._chance.choice([0, 1, 5]),
        )

    def _new_consumer(self) -> Consumer:
        role, topic = self._role, GROUPS[self._role.group]
        settings: dict[str, Any] = {"session_timeout_ms": SESSION_MS, "heartbeat_interval_ms": BEAT_MS}
        if role.static and not role.assigns:
            settings["group_instance_id"] = role.name
        consumer = self._log.consumer(
            group_id=role.group, enable_auto_commit=False, auto_offset_reset="earliest", **settings
        )
        if role.assigns:
            consumer.assign([(topic, number) for number in range(TOPICS[topic][0])])
        else:
            consumer.subscribe(topic)
        return consumer

    def run(self) -> bool:
        """Work; returns when everything is processed, if that is the aim."""
        print(READY, flush=True)
        while True:
            if self._feeder is not None:
                self._feed(self._feeder)
                if not self._role.group:
                    time.sleep(0.005)  # the others have more to do
            if self._producer is not None and self._consumer is not None:
                found = self._consumer.poll(0.01, max_records=self._chance.randint(1, 30))
                records = [record for part in found.values() for record in part]
                if records:
                    self._process(records, self._producer, self._consumer)
                elif self._role.drains and self._is_drained():
                    return True
            self._keep_house()
            print(ROUND, flush=True)

    def _is_drained(self) -> bool:
        return is_drained(self._log, self._role.group)

    # --- input

    def _feed(self, producer: Producer) -> None:
        """Append input to a partition: plainly, in a transaction, or after one that is aborted."""
        topic, number = place = self._chance.choice(list(self._numbers))
        partition, first = self._log.topic(topic).partition(number), self._numbers[place]
        numbers = range(first, first + self._chance.randint(1, 15))
        values, keys = [b"%d" % one for one in numbers], [key_of(topic, number, one) for one in numbers]
        way = self._chance.random()
        if way < 0.4:
            partition.append_many(values, keys=keys)
        else:
            if way < 0.7:
                with suppressed_abort(), producer.transaction():
                    for key in keys:
                        producer.send(topic, NEVER, key, partition=number)
                    raise GivenError
            with producer.transaction():
                for value, key in zip(values, keys, strict=True):
                    producer.send(topic, value, key, partition=number)
        self._numbers[place] = numbers.stop

    # --- output

    def _process(self, records: list[ConsumerRecord], producer: Producer, consumer: Consumer) -> None:
        """Transform what was polled, in one transaction that counts."""
        kind = self._role.kind or self._chance.choice(["block", "calls", "aborted", "raised", "synced"])
        if kind == "aborted":
            producer.begin_transaction()
            self._send(records, producer, NEVER)
            if self._chance.random() < 0.5:
                producer.send_offsets(consumer)
            producer.abort_transaction()
        if kind == "raised":
            with suppressed_abort(), producer.transaction():
                self._send(records, producer, NEVER)
                producer.send_offsets(consumer)
                producer.flush()
                raise GivenError
        if kind in ("calls", "aborted"):
            producer.begin_transaction()
            self._wait("begun")
            producer.send_offsets(consumer)
            self._send(records, producer)
            producer.commit_transaction()
            producer.commit_transaction()
            return
        with producer.transaction(sync=kind == "synced"):
            self._wait("begun")
            self._send(records, producer)
            self._wait("sent")
            producer.send_offsets(consumer)

    def _send(self, records: list[ConsumerRecord], producer: Producer, instead: bytes | None = None) -> None:
        for record in records:
            assert record.key is not None and record.value is not None
            value = record.value if record.value == NEVER else b"%d" % (2 * int(record.value))
            producer.send(OUTPUT, instead or value, record.key)
            producer.send(LATEST, instead or value, b"ghost" if instead else record.key)
        if self._chance.random() < 0.5 or self._role.kind:
            producer.flush()  # otherwise much of it is discarded when it is aborted

    def _wait(self, moment: str) -> None:
        """Let the test do something while the first transaction is open."""
        wanted, _, path = self._waits.partition(" ")
        if wanted == moment:
            assert self._producer is not None
            self._producer.flush()
            print(OPEN, flush=True)
            while not os.path.exists(path):
                time.sleep(0.001)
            self._waits = ""

    # --- the rest

    def _keep_house(self) -> None:
        """Now and then: compact, roll, and write the same token to two partitions."""
        what = self._chance.random()
        if self._role.kind == "aborted":
            for partition in self._log.topic(LATEST).partitions:
                partition.roll()
                partition.compact()
        elif what < 0.1:
            partition = self._chance.choice(self._log.topic(LATEST).partitions)
            if what < 0.05:
                partition.roll()
            partition.compact()
        elif what < 0.13:
            self._chance.choice(self._log.topic(OUTPUT).partitions).roll()
        elif what < 0.3 and not self._role.drains:
            token = b"%s.%d" % (self._role.name.encode(), self._chance.randrange(1 << 40))
            with self._log.transaction() as transaction:
                for number in range(TOPICS[TOKENS][0]):
                    transaction.append(TOKENS, token, partition=number)
            print(token.decode(), flush=True)


class GivenError(Exception):
    """A reason to abort."""


def suppressed_abort() -> contextlib.AbstractContextManager[None]:
    return contextlib.suppress(GivenError)


def is_drained(log: Any, group: str) -> bool:
    """Whether a group has processed all of its topic."""
    if group not in log.groups():
        return not any(map(numbers_in, log.topic(GROUPS[group]).partitions))
    lags = {one.partition: one.lag for one in log.describe_group(group).partitions}
    return all(
        lags.get(number) == 0 or not numbers_in(partition)
        for number, partition in enumerate(log.topic(GROUPS[group]).partitions)
    )


# --- a moment to die


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("it is dead")


def die_after(step: str, times: str) -> None:
    """Let this process kill itself right after a step was done so many times."""
    left = int(times)

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            die()

    if step == "marker":  # of a commit
        end_transaction = Partition.end_transaction

        def ended(self: Partition, producer_id: int, epoch: int, *, commits: bool) -> int | None:
            offset = end_transaction(self, producer_id, epoch, commits=commits)
            if commits:
                count()
            return offset

        Partition.end_transaction = ended  # type: ignore[method-assign]
    elif step == "decision":
        write = TransactionLog.write

        def written(self: TransactionLog, owned: OwnedId, *, sync: bool = False) -> None:
            write(self, owned, sync=sync)
            if owned.decision == "commit":
                count()

        TransactionLog.write = written  # type: ignore[method-assign]
    else:
        assert (
            step == "list"
        )  # of what is aborted in a segment: the old one is removed, the new one not there
        store = aborted_index.store

        def stored(log_path: str, entries: list[Aborted], sealed: tuple[int, int] | None = None) -> None:
            if entries:
                files.remove(aborted_index.path_beside(log_path))
                count()
            store(log_path, entries, sealed)

        aborted_index.store = stored  # type: ignore[assignment]


# --- planted bugs


def plant(bug: str) -> None:
    """Change the engine in this process, so that it has a bug."""
    if bug:
        BUGS[bug]()


def marker_before_the_decision() -> None:
    commit = Coordinator.commit

    def committed(self: Coordinator, transaction: Transaction, *, sync: bool) -> None:
        if len(transaction.parts()) > 1:
            transaction.flush()
            for partition in transaction.written().values():
                partition.end_transaction(transaction.producer_id, transaction.epoch, commits=True)
        commit(self, transaction, sync=sync)

    Coordinator.commit = committed  # type: ignore[method-assign]


def stable_offset_too_high() -> None:
    publish = StatePage.publish_transactions

    def published(self: StatePage, undecided: int | None, aborts: int) -> None:
        publish(self, None, aborts)

    StatePage.publish_transactions = published  # type: ignore[method-assign]


def fencing_skipped() -> None:
    def nothing(*_: object) -> None:
        pass

    Coordinator.check = nothing  # type: ignore[method-assign,assignment]
    Coordinator._check_owner = nothing  # type: ignore[method-assign,assignment]
    Coordinator._abort_all = nothing  # type: ignore[method-assign,assignment]


def aborted_data_kept_by_compaction() -> None:
    init: Any = Pass.__init__

    def made(self: Any, *arguments: Any) -> None:
        *others, aborted = arguments
        init(self, *others, AbortedRanges() if aborted is not None else None)

    def write_marker(self: Pass, marker: RecordBatch, group: Any) -> None:
        group.merger.skip(marker)
        group.next_offset = marker.next_offset

    Pass.__init__ = made  # type: ignore[method-assign,assignment]
    Pass._write_marker = write_marker  # type: ignore[method-assign]


def missing_list_believed_to_be_empty() -> None:
    load = aborted_index.load

    def loaded(log_path: str, size_bytes: int, count: int | None = None) -> list[Aborted] | None:
        if not os.path.exists(aborted_index.path_beside(log_path)):
            return []
        return load(log_path, size_bytes, count)

    aborted_index.load = loaded


def decision_forgotten_before_its_markers() -> None:
    def sweep(self: Coordinator) -> float:
        return 60.0  # it might come first

    Coordinator.sweep = sweep  # type: ignore[method-assign]
    Coordinator._finish = lambda *_, **__: None  # type: ignore[method-assign]


BUGS: dict[str, Callable[[], None]] = {
    "marker before the decision": marker_before_the_decision,
    "stable offset too high": stable_offset_too_high,
    "fencing skipped": fencing_skipped,
    "aborted data kept by compaction": aborted_data_kept_by_compaction,
    "missing list believed to be empty": missing_list_believed_to_be_empty,
    "decision forgotten before its markers": decision_forgotten_before_its_markers,
}


# --- directed input


def feed_once(path: str, count: str, dies: str = "") -> None:
    """Append as many records to each partition of the inputs, after an aborted transaction, and roll."""
    if dies:
        die_after(*dies.split())
    with commitlog.open(path) as log:
        for topic in GROUPS.values():
            for number, partition in enumerate(log.topic(topic).partitions):
                with suppressed_abort(), log.transaction() as transaction:
                    transaction.append_many(topic, [NEVER], keys=[b"ghost"], partition=number)
                    transaction.flush()
                    raise GivenError
                numbers = range(int(count))
                keys = [key_of(topic, number, one) for one in numbers]
                partition.append_many([b"%d" % one for one in numbers], keys=keys)
                partition.roll()
