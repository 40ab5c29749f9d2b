"""Transactions of several owners, in one log or shared by two, and everything that may happen meanwhile."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers import copy_linked
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import commitlog
from commitlog import CommitLog, Partition, TopicPartition, aborted_index, files, tasks
from commitlog.config import IsolationLevel
from commitlog.errors import (
    CommitLogError,
    TransactionAbortedError,
    TransactionFencedError,
    TransactionStateError,
    TransactionTimeoutError,
    UnstableOffsetsError,
)
from commitlog.groups.member import GroupMetadata
from commitlog.groups.offsets import TOPIC as OFFSETS_TOPIC
from commitlog.groups.offsets import OffsetAndMetadata, encoded
from commitlog.partitions.counters import Counters
from commitlog.partitions.page import StatePage
from commitlog.partitions.state import LogState
from commitlog.segment_writer import SegmentWriter
from commitlog.transactions import transaction as transaction_module
from commitlog.transactions.state_log import TransactionLog
from commitlog.transactions.transaction import Transaction

from .transaction_model import Model, Row, Seen, Txn

pa = pytest.importorskip("pyarrow")

PLACES = ("a-0", "a-1", "c-0")
OFFSETS = f"{OFFSETS_TOPIC}-0"
LEVELS: tuple[IsolationLevel, ...] = ("read_committed", "read_uncommitted")
GROUP = GroupMetadata("g", -1, "")
# where a process can be killed: between these calls, something of a transaction is stored
STEPS: tuple[tuple[Any, str], ...] = (
    (SegmentWriter, "append"), (Counters, "batched"), (StatePage, "publish_transactions"),
    (StatePage, "publish_layout"), (aborted_index, "write_entry"), (aborted_index, "store"),
    (TransactionLog, "_append"), (Partition, "sync"), (LogState, "roll"), (files, "replace"),
)  # fmt: skip

places = st.sampled_from(PLACES)
keys = st.sampled_from([b"k", b"l", b"m", bytes(8)])
contents = st.lists(st.tuples(keys, st.sampled_from([b"", b"long " * 12, None])), min_size=1, max_size=4)
ways = st.sampled_from(["one by one", "many", "arrow"])
some_writes = st.lists(st.tuples(places, contents, ways, st.booleans()), min_size=1, max_size=3)
handles = st.sampled_from([0, 1])
players = st.integers(0, 5)
steps = st.integers(1, 50)


@dataclass(eq=False)
class Player:
    """Somebody who makes transactions: a producer with an id, or a block without one."""

    name: str
    handle: int
    producer: commitlog.Producer | None = None
    block: AbstractContextManager[Transaction] | None = None
    transaction: Transaction | None = None
    txn: Txn | None = None
    fenced: bool = False

    @property
    def is_busy(self) -> bool:
        return self.txn is not None


class TransactionMachine(RuleBasedStateMachine):
    """One process writes the log."""

    shared = False

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="commitlog-machine-"))
        self.path = self.home / "log0"
        self.copies = self.made = 0
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(tasks.Task, "start", lambda task: None)
        for name in ("fsync", "fdatasync"):
            self.patch.setattr(os, name, lambda fd: None)
        self.patch.setattr(files, "sync_map", lambda view: None)
        self.logs: list[CommitLog] = []
        self.retired: list[CommitLog] = []  # of processes that do nothing any more
        self.players: list[Player] = []
        self.dead: list[Player] = []  # kept: a block that is collected ends its transaction
        self.model = Model([*PLACES, OFFSETS])
        self.now = 10**13
        self.lose = ""  # the suffix of files that the next death takes away

    @initialize(
        held=st.sampled_from([1, 300, 1 << 20]),
        retention=st.sampled_from([0, 2_000]),
        segment_bytes=st.sampled_from([700, 4_000]),
        codec=st.sampled_from(["none", "lz4"]),
    )
    def create(self, held: int, retention: int, segment_bytes: int, codec: str) -> None:
        self.patch.setattr(transaction_module, "_MOST_HELD_BYTES", held)
        self.retention = retention
        self.open()
        config = {
            "segment_bytes": segment_bytes, "index_interval_bytes": 100, "flush_ms": -1,
            "file_delete_delay_ms": 0, "compression_type": codec,
        }  # fmt: skip
        self.log(0).create_topic("a", 2, config)
        compacted = {**config, "cleanup_policy": "compact", "delete_retention_ms": retention}
        self.log(0).create_topic("c", 1, compacted)
        self.commit_offsets(0)

    # --- the log, and who uses it

    def log(self, handle: int) -> CommitLog:
        return self.logs[handle % len(self.logs)]

    def open(self) -> None:
        if self.shared:
            self.logs = [commitlog.open(self.path, mode="shared") for _ in range(2)]
        else:
            self.logs = [commitlog.open(self.path)]
        self.reading = commitlog.open(self.path, mode="r")

    def close(self) -> None:
        self.reading.close()
        for player in self.players:
            if player.producer is not None:
                with suppress(TransactionAbortedError, TransactionFencedError):  # of records not sent yet
                    player.producer.close()
        for log in [*self.logs, *self.retired]:
            log.close()
        self.logs, self.retired, self.dead = [], [], []

    def teardown(self) -> None:
        if self.logs:
            self.close()
        self.patch.undo()
        shutil.rmtree(self.home)

    def partition(self, name: str, log: CommitLog | None = None) -> Partition:
        log = log or self.log(0)
        if name == OFFSETS:
            return log._groups.offsets().partition
        topic, _, number = name.rpartition("-")
        return log.topic(topic).partition(int(number))

    def rows(self, drawn: list[tuple[bytes, bytes | None]]) -> list[Row]:
        """Make values that no other record has."""
        found: list[Row] = []
        for key, more in drawn:
            self.made += 1
            found.append((key, None if more is None else b"%d " % self.made + more))
        return found

    def look(self) -> None:
        """Let the model explain what is new."""
        for name, place in self.model.places.items():
            partition = self.partition(name)
            self.model.look(name, partition.stored_batches(place.next))
            assert place.next == partition.next_offset
        self.model.check_fates()

    def chosen(self, number: int, *, busy: bool | None = None, fenced: bool = False) -> Player | None:
        some = self.available(busy=busy, fenced=fenced)
        return some[number % len(some)] if some else None

    def available(self, *, busy: bool | None = None, fenced: bool = False) -> list[Player]:
        return [one for one in self.players if one.fenced == fenced and (busy is None or one.is_busy == busy)]

    # --- owners

    @rule(name=st.sampled_from("xy"), handle=handles)
    def take_an_id(self, name: str, handle: int) -> None:
        before = [one for one in self.players if one.name == name and not one.fenced]
        producer = self.log(handle).producer(transactional_id=name, acks=1, linger_ms=10_000)
        self.taken_over(name, before)
        self.players.append(Player(name, handle % len(self.logs), producer))
        self.look()

    def taken_over(self, name: str, before: list[Player]) -> None:
        """The owners before can do nothing any more, and what they left is decided."""
        for one in before:
            one.fenced = True
            if one.txn is not None and one.txn.fate == "open":
                one.txn.fate = "aborted"
        for txn in self.model.txns.values():
            if txn.label == name and txn.fate == "open":
                txn.fate = "aborted"

    @rule(
        name=st.sampled_from(["", "x", "y"]),
        handle=handles,
        writes=some_writes,
        offsets=st.booleans(),
        sync=st.booleans(),
    )
    def transact_and_commit(
        self, name: str, handle: int, writes: list[Any], offsets: bool, sync: bool
    ) -> None:
        self.transact(name, handle, writes, offsets, "commit, synced" if sync else "commit")

    @rule(
        name=st.sampled_from(["", "x", "y"]),
        handle=handles,
        writes=some_writes,
        offsets=st.booleans(),
        end=st.sampled_from(["abort", "leave", "leave"]),
    )
    def transact(self, name: str, handle: int, writes: list[Any], offsets: bool, end: str) -> None:
        """A whole transaction at once, except that it may be left open."""
        numbers = [number for number, one in enumerate(self.available(busy=False)) if one.name == name]
        if name and not numbers:
            self.take_an_id(name, handle)
            numbers = [number for number, one in enumerate(self.available(busy=False)) if one.name == name]
        self.begin(numbers[0] if name else 0, handle, bool(name))
        player = next(one for one in reversed(self.players) if one.is_busy and one.name == name)
        for place, drawn, way, flush in writes:
            if player.is_busy:
                self.write(self.number_of(player), place, drawn, way, flush)
        if offsets and player.is_busy:
            self.send_offsets(self.number_of(player), "c")
        if player.is_busy and end.startswith("commit"):
            self.commit(self.number_of(player), end.endswith("synced"))
        elif player.is_busy and end == "abort":
            self.abort(self.number_of(player))

    def number_of(self, player: Player) -> int:
        return self.available(busy=True).index(player)

    @rule(number=players, handle=handles, named=st.booleans())
    def begin(self, number: int, handle: int, named: bool) -> None:
        player = self.chosen(number, busy=False) if named else None
        if player is None:
            block = self.log(handle).transaction()
            transaction = block.__enter__()
            player = Player("", handle % len(self.logs), block=block)
            self.players.append(player)
        else:
            assert player.producer is not None
            player.producer.begin_transaction()
            assert player.producer._transaction is not None
            transaction = player.producer._transaction
        player.transaction = transaction
        player.txn = self.model.begin(player.name, (transaction.producer_id, transaction.epoch))

    # --- writing

    @precondition(lambda self: self.available(busy=True))
    @rule(number=players, place=places, drawn=contents, way=ways, flush=st.booleans())
    def write(self, number: int, place: str, drawn: list[Any], way: str, flush: bool) -> None:
        player = self.chosen(number, busy=True)
        if player is None:
            return
        assert player.txn is not None
        rows = self.rows(drawn)
        try:
            self.do_write(player, place, rows, way, flush)
        except CommitLogError as problem:
            self.check_refusal(player, problem)
            self.give_up(player)
        else:
            if player.txn.fate == "open":
                self.look()
            else:
                assert way != "arrow" or player.producer is not None, "it has ended"
                self.give_up(player)

    def do_write(self, player: Player, name: str, rows: list[Row], way: str, flush: bool) -> None:
        topic, _, number = name.rpartition("-")
        assert player.txn is not None
        if player.producer is not None:
            player.txn.wants(name, rows)
            for key, value in rows:
                player.producer.send(topic, value, key, partition=int(number))
            if flush:
                player.producer.flush()
            return
        assert player.transaction is not None
        player.txn.wants(name, rows)
        if way == "one by one":
            for key, value in rows:
                player.transaction.append(topic, value, key=key, partition=int(number))
        elif way == "many":
            some_keys, values = [row[0] for row in rows], [row[1] for row in rows]
            player.transaction.append_many(topic, values, keys=some_keys, partition=int(number))
        else:
            columns = {
                "value": pa.array([row[1] for row in rows], pa.binary()),
                "key": pa.array([row[0] for row in rows], pa.binary()),
            }
            player.transaction.append_arrow(topic, pa.table(columns), partition=int(number))

    def check_refusal(self, player: Player, problem: Exception) -> None:
        """Say whether an error was to be expected."""
        assert player.txn is not None
        if player.txn.fate == "aborted":
            assert isinstance(problem, TransactionAbortedError | TransactionFencedError), repr(problem)
        else:
            assert self.disturbed(player.txn), repr(problem)

    def disturbed(self, txn: Txn) -> bool:
        """Whether a truncation cut into it, or into one of the same producer before it."""
        return any(one.cut for key, one in self.model.txns.items() if key[0] == txn.key[0])

    def give_up(self, player: Player) -> None:
        """Abort what cannot go on; its owner may begin another one."""
        assert player.txn is not None
        if player.txn.fate == "open":
            player.txn.fate = "aborted"
        self.do_abort(player)
        self.look()
        self.over(player)

    def over(self, player: Player) -> None:
        player.txn = player.transaction = None
        if player.producer is None:
            self.players.remove(player)

    @rule(place=places, drawn=contents, handle=handles, single=st.booleans())
    def write_outside(self, place: str, drawn: list[Any], handle: int, single: bool) -> None:
        rows = self.rows(drawn)
        partition = self.partition(place, self.log(handle))
        self.model.places[place].waiting += rows
        if single:
            for key, value in rows:
                partition.append(value, key=key)
        else:
            partition.append_many([row[1] for row in rows], keys=[row[0] for row in rows])
        self.look()

    # --- offsets of a group

    def offsets(self, topic: str) -> dict[TopicPartition, OffsetAndMetadata]:
        self.made += 1
        return {TopicPartition(topic, 0): OffsetAndMetadata(self.made, "")}

    @precondition(lambda self: self.available(busy=True))
    @rule(number=players, topic=st.sampled_from("ac"))
    def send_offsets(self, number: int, topic: str) -> None:
        player = self.chosen(number, busy=True)
        if player is None or player.producer is None:
            return
        assert player.txn is not None
        offsets = self.offsets(topic)
        some_keys, values = encoded("g", offsets)
        try:
            player.producer.send_offsets_to_transaction(offsets, GROUP)
        except CommitLogError as problem:
            self.check_refusal(player, problem)
            self.give_up(player)
        else:
            player.txn.wants(OFFSETS, zip(some_keys, values, strict=True))
            self.look()

    def commit_offsets(self, handle: int) -> None:
        offsets = self.offsets("a")
        some_keys, values = encoded("g", offsets)
        self.model.places[OFFSETS].waiting += zip(some_keys, values, strict=True)
        self.log(handle)._groups.offsets().commit("g", offsets)
        self.look()

    # --- the end of a transaction

    @precondition(lambda self: self.available(busy=True))
    @rule(number=players, sync=st.booleans())
    def commit(self, number: int, sync: bool) -> None:
        player = self.chosen(number, busy=True)
        if player is None:
            return
        self.try_commit(player, sync)
        self.look()
        self.over(player)

    def try_commit(self, player: Player, sync: bool) -> None:
        txn = player.txn
        assert txn is not None
        try:
            self.do_commit(player, sync)
        except CommitLogError as problem:
            self.check_refusal(player, problem)
            if txn.fate == "open":
                txn.fate = "aborted"
            self.do_abort(player)
        else:
            assert txn.fate == "open", f"{txn} was aborted, and is committed"
            txn.fate = "committed"

    def do_commit(self, player: Player, sync: bool) -> None:
        if player.producer is not None:
            player.producer.commit_transaction(sync=sync)
            player.producer.commit_transaction()  # once more is fine
            with pytest.raises(TransactionStateError):
                player.producer.abort_transaction()
        else:
            assert player.block is not None
            assert player.transaction is not None
            player.transaction.commit(sync=sync)
            player.block.__exit__(None, None, None)

    @precondition(lambda self: self.available(busy=True))
    @rule(number=players)
    def abort(self, number: int) -> None:
        player = self.chosen(number, busy=True)
        if player is None:
            return
        assert player.txn is not None
        if player.txn.fate == "open":
            player.txn.fate = "aborted"
        self.do_abort(player)
        self.look()
        assert not any(
            player.txn in place.open_here() for place in self.model.places.values() if not player.txn.cut
        )
        self.over(player)

    def do_abort(self, player: Player) -> None:
        if player.producer is not None:
            player.producer.abort_transaction()
        else:
            assert player.block is not None
            assert player.transaction is not None
            player.transaction.abort()
            player.block.__exit__(ValueError, None, None)  # its block raises

    @precondition(lambda self: self.available(busy=True))
    @rule(number=players, handle=handles)
    def time_out(self, number: int, handle: int) -> None:
        """The transaction is too old; the next thing its owner does is refused."""
        player = self.chosen(number, busy=True)
        if player is None:
            return
        assert player.txn is not None
        assert player.transaction is not None
        player.transaction._began -= 3_600
        self.log(player.handle)._coordinator.sweep()
        was_open = player.txn.fate == "open"
        player.txn.fate = "aborted"
        self.look()
        assert not self.model.is_open_anywhere(player.txn) or player.txn.cut
        if player.producer is not None and was_open:
            with pytest.raises(TransactionTimeoutError):
                player.producer.commit_transaction()

    @precondition(lambda self: self.available(busy=True))
    @rule(number=players, handle=handles)
    def abort_by_id(self, number: int, handle: int) -> None:
        player = self.chosen(number, busy=True)
        if player is None or not player.name:
            return
        assert player.txn is not None
        log = self.log(handle)
        listed = {one.transactional_id: one for one in log.transactions()}
        if listed[player.name].state == "Ongoing":
            assert player.txn.fate == "open" or player.txn.cut
            log.abort_transaction(player.name)
            player.txn.fate = "aborted"
        else:
            with pytest.raises(TransactionStateError):
                log.abort_transaction(player.name)
        self.look()

    @precondition(lambda self: self.available(fenced=True))
    @rule(number=players, drawn=contents)
    def a_fenced_owner_is_refused(self, number: int, drawn: list[Any]) -> None:
        player = self.chosen(number, fenced=True)
        if player is None or player.producer is None:
            return
        producer = player.producer
        if player.txn is None:
            with pytest.raises(TransactionFencedError):
                producer.begin_transaction()
            return
        for act in (
            lambda: (producer.send("a", b"late", partition=0), producer.flush()),
            lambda: producer.send_offsets_to_transaction({TopicPartition("a", 0): 1}, GROUP),
            lambda: producer.commit_transaction(sync=False),
        ):
            with pytest.raises((TransactionFencedError, TransactionAbortedError)):
                act()
        self.do_abort(player)
        self.over(player)
        self.look()

    @rule(handle=handles)
    def sweep(self, handle: int) -> None:
        """The timeout of transactions that nobody owns passes."""
        handle %= len(self.logs)
        coordinator = self.log(handle)._coordinator
        for _ in range(2):
            coordinator.sweep()
            coordinator._seen = {key: when - 3_600 for key, when in coordinator._seen.items()}
        coordinator.sweep()
        # to others, a transaction of a living process that does nothing looks as if it was left
        others = [one.txn for one in self.players if one.txn is not None and one.handle != handle]
        for txn in others:
            txn.left = txn.fate == "open"
        self.look()
        for place in self.model.places.values():
            for txn in place.open_here():
                assert not txn.left, f"{place.name}: {txn} is left open"
        for txn in others:
            txn.left = False

    # --- what changes the files

    @rule(
        how=st.sampled_from(["roll", "roll", "trim", "truncate"]),
        place=places,
        fraction=st.floats(0, 1),
        back=st.integers(0, 6),
        handle=handles,
    )
    def change(self, how: str, place: str, fraction: float, back: int, handle: int) -> None:
        if how == "roll":
            self.roll(place, handle)
        elif how == "trim":
            self.trim(place, fraction, handle)
        else:
            self.truncate(place, back, handle)

    @rule(place=st.sampled_from(["c-0", "c-0", OFFSETS, "decisions"]), handle=handles)
    def compact_everything(self, place: str, handle: int) -> None:
        if place == "decisions":
            self.compact_the_decisions(handle)
        else:
            self.compact_all(place, handle)

    def roll(self, place: str, handle: int) -> None:
        self.partition(place, self.log(handle)).roll()

    @rule(place=st.sampled_from(["c-0", OFFSETS]), passing=st.sampled_from([0, 1, 3_000]), handle=handles)
    def compact(self, place: str, passing: int, handle: int) -> None:
        self.now += passing
        partition, model = self.partition(place, self.log(handle)), self.model.places[place]
        before = model.latest(model.committed(min(model.stable())))
        partition.compact(now=self.now)
        self.check_compacted(place)
        assert model.latest(model.committed(min(model.stable()))) == before

    def check_compacted(self, place: str) -> None:
        partition, model = self.partition(place), self.model.places[place]
        stored = [
            (record.offset, False, batch.header.is_transactional)
            for batch in partition.stored_batches()
            for record in batch.records()
            if record.offset >= partition.start_offset
        ] + [
            (batch.header.base_offset, True, True)
            for batch in partition.stored_batches()
            if batch.header.is_marker
        ]
        model.compacted(stored, partition.clean_offset, self.now, partition.config.delete_retention_ms)

    def compact_all(self, place: str, handle: int) -> None:
        """Everything that is decided is cleaned, and the markers go."""
        self.roll(place, handle)
        for passing in (0, 10**8, 10**8):
            self.compact(place, passing, handle)

    def compact_the_decisions(self, handle: int) -> None:
        partition = self.log(handle)._coordinator._opened(False)
        if partition is not None and partition.next_offset > 0:
            partition.roll()
            partition.compact(now=self.now)

    def trim(self, place: str, fraction: float, handle: int) -> None:
        model = self.model.places[place]
        offset = model.start + round(fraction * (model.next - model.start))
        self.partition(place, self.log(handle)).trim_before(offset)
        model.trim(offset)

    def truncate(self, place: str, back: int, handle: int) -> None:
        model = self.model.places[place]
        offset = max(model.next - back, model.start)
        before = model.open_here().keys()
        self.partition(place, self.log(handle)).truncate_from(offset)
        model.truncate(offset)
        self.look()
        assert model.open_here().keys() <= before, "what was decided stays so, without its old marker"

    # --- closing and dying

    @rule()
    def reopen(self) -> None:
        """The processes come to a good end: what is open is aborted."""
        self.model.everybody_died(exclusive=True)
        for txn in self.model.txns.values():
            txn.left = True
        self.close()
        self.players = []
        self.open()
        self.look()

    @rule(
        when=st.sampled_from(["now", "commit", "commit", "commit", "abort", "take", "pass", "recovery"]),
        number=players,
        step=steps,
        sync=st.booleans(),
        place=st.sampled_from(["c-0", OFFSETS]),
        lose=st.sampled_from(["", "", ".txnindex", ".snapshot"]),
        name=st.sampled_from(["", "x", "y"]),
        writes=some_writes,
    )
    def kill(
        self,
        when: str,
        number: int,
        step: int,
        sync: bool,
        place: str,
        lose: str,
        name: str,
        writes: list[Any],
    ) -> None:
        """Everybody dies, in the middle of something; who comes next finds the files as they are, or without
        those that are derived.
        """
        self.lose = lose
        if when in ("commit", "abort") and not self.available(busy=True):
            self.transact(name, number, writes, True, "leave")
        if when == "commit":
            self.kill_in_a_commit(number, sync, step)
        elif when == "abort":
            self.kill_in_an_abort(number, step)
        elif when == "take":
            self.kill_while_an_id_is_taken("xy"[number % 2], step)
        elif when == "pass":
            self.kill_in_a_pass(place, step, number * 1_000)
        elif when == "recovery":
            self.kill_in_recovery(step)
        else:
            self.kill_all()

    def kill_all(self) -> None:
        with self.dying(0):
            pass
        self.after_death()

    def kill_in_a_commit(self, number: int, sync: bool, step: int) -> None:
        player = self.chosen(number, busy=True)
        if player is None or player.txn is None or player.txn.fate != "open" or player.txn.cut:
            return
        with self.dying(step) as reached:
            self.try_commit(player, sync)
        if reached() and player.txn.fate == "committed":
            player.txn.fate = "doubt"
        self.after_death()

    def kill_in_an_abort(self, number: int, step: int) -> None:
        player = self.chosen(number, busy=True)
        if player is None:
            return
        with self.dying(step):
            self.do_abort(player)
        self.after_death()

    def kill_while_an_id_is_taken(self, name: str, step: int) -> None:
        with self.dying(step):
            self.log(0).producer(transactional_id=name)
        self.after_death()

    def kill_in_a_pass(self, place: str, step: int, passing: int) -> None:
        self.now += passing
        model = self.model.places[place]
        with self.dying(step):
            self.partition(place).compact(now=self.now)
            partition = self.partition(place)
            for one in model.entries:  # what the pass has seen, before it died or not
                if one.marker and one.offset < partition.clean_offset:
                    model.may_go.setdefault(one.offset, self.now + partition.config.delete_retention_ms)
        self.after_death(compacted=place)

    def kill_in_recovery(self, step: int) -> None:
        with self.dying(0):
            pass
        self.go_on_with_the_copy()
        copy = self.next_copy()
        with at_step(step, lambda: copy_linked(self.path, copy)):
            self.open()
        if copy.exists():
            self.close()
            self.path = copy
            self.open()
        self.look_after_death()

    @contextmanager
    def dying(self, step: int) -> Iterator[Callable[[], bool]]:
        """Copy the files at step number `step` of what is done here, or after all of it.

        Yields a function that says whether the step was reached.
        """
        self.copy = self.next_copy()
        with at_step(step, lambda: copy_linked(self.path, self.copy)):
            yield self.copy.exists
        self.reached = self.copy.exists()
        if not self.reached:
            copy_linked(self.path, self.copy)

    def next_copy(self) -> Path:
        self.copies += 1
        return self.home / f"log{self.copies}"

    def go_on_with_the_copy(self) -> None:
        self.close()
        shutil.rmtree(self.path)
        self.path = self.copy
        if self.lose:
            for derived in self.path.glob(f"*/*{self.lose}"):
                derived.unlink()
        self.players = []
        self.model.everybody_died(exclusive=not self.shared)

    def after_death(self, compacted: str | None = None) -> None:
        self.go_on_with_the_copy()
        self.open()
        self.look_after_death(compacted)

    def look_after_death(self, compacted: str | None = None) -> None:
        self.look()
        if compacted is not None:
            self.check_compacted(compacted)
        for txn in self.model.txns.values():
            if txn.fate == "doubt" and not self.shared:
                txn.fate = "aborted"  # nothing of it was stored
        if not self.shared:
            for place in self.model.places.values():
                assert not place.open_here(), "an exclusive open ends everything"
                ended = place.decided_here()
                place.trimmed = {txn: first for txn, first in place.trimmed.items() if txn in ended}

    # --- reading

    @rule(
        how=st.sampled_from(["part", "consume", "get", "list"]),
        name=places,
        one=st.floats(0, 1),
        other=st.floats(0, 1),
        level=st.sampled_from(LEVELS),
        side=st.sampled_from([0, 1, 2]),
    )
    def read(self, how: str, name: str, one: float, other: float, level: IsolationLevel, side: int) -> None:
        if how == "part":
            self.read_a_part(name, one, other)
        elif how == "consume":
            self.consume(name, level, side)
        elif how == "get":
            self.get(name)
        else:
            self.open_ones_are_listed()

    def sides(self) -> list[CommitLog]:
        return [*self.logs, self.reading]

    def read_a_part(self, name: str, one: float, other: float) -> None:
        place = self.model.places[name]
        low, high = sorted(place.start + round(part * (place.next - place.start)) for part in (one, other))
        assert self.partition(name).verify().damage == ()
        for log in self.sides():
            partition = self.partition(name, log)
            for level, expected in self.views(name, partition).items():
                part = [row for row in expected if low <= row[0] < high]
                found = list(partition.records(low, high, isolation_level=level))
                assert [(record.offset, record.key, record.value) for record in found] == part
                assert partition.count_records(low, high, isolation_level=level) == len(part)
                batches = partition.batches(low, high, isolation_level=level)
                assert [row for batch in batches for row in _rows_of(batch.records())] == part
                table = partition.to_arrow(low, high, ["offset", "key", "value"], isolation_level=level)
                columns = [table.column(name).to_pylist() for name in ("offset", "key", "value")]
                assert list(zip(*columns, strict=True)) == part

    def consume(self, name: str, level: IsolationLevel, handle: int) -> None:
        topic, _, number = name.rpartition("-")
        log = self.sides()[handle % len(self.sides())]
        with log.consumer(isolation_level=level, max_poll_records=3) as consumer:
            consumer.assign([(topic, int(number))])
            consumer.seek_to_beginning()
            found: list[Any] = []
            while some := consumer.poll(0):
                found += [record for records in some.values() for record in records]
            assert consumer.lag() == {(topic, int(number)): 0}
        assert _rows_of(found) == self.views(name, self.partition(name, log))[level]

    def get(self, name: str) -> None:
        partition = self.partition(name, self.reading)
        for level, expected in self.views(name, partition).items():
            there = {row[0]: row for row in expected}
            for offset in range(partition.start_offset, partition.end_offset(level)):
                record = partition.get(offset, isolation_level=level)
                assert (None if record is None else _rows_of([record])[0]) == there.get(offset)

    def open_ones_are_listed(self) -> None:
        for log in self.sides():
            listed = {
                (one.producer_id, one.epoch): one for one in log.transactions() if one.age_ms is not None
            }
            for name in PLACES:
                for txn in self.model.places[name].open_here():
                    if txn.key in listed:
                        topic, _, number = name.rpartition("-")
                        assert TopicPartition(topic, int(number)) in listed[txn.key].partitions
                    else:  # a later one of the same producer is open as well
                        assert any(key[0] == txn.key[0] for key in listed), f"{txn} is not listed"

    def views(self, name: str, partition: Any) -> dict[IsolationLevel, list[Seen]]:
        """What a reader of each level sees."""
        place = self.model.places[name]
        end = partition.last_stable_offset
        assert end in place.stable(), f"{name}: stable up to {end}, not {place.stable()}"
        return {"read_committed": place.committed(end), "read_uncommitted": place.uncommitted()}

    @invariant()
    def everybody_sees_what_the_model_says(self) -> None:
        if not self.logs:
            return
        for log in self.sides():
            for name in PLACES:
                partition, place = self.partition(name, log), self.model.places[name]
                assert (partition.start_offset, partition.next_offset) == (place.start, place.next), name
                for level, expected in self.views(name, partition).items():
                    assert _rows_of(partition.records(isolation_level=level)) == expected
                    latest = partition.latest(isolation_level=level)
                    assert dict(latest) == place.latest(expected)

    @invariant()
    def offsets_are_as_the_model_says(self) -> None:
        if not self.logs:
            return
        place = self.model.places[OFFSETS]
        expected = place.latest(place.committed())
        pending = bool(place.open_here())
        for log in self.sides():
            offsets = log._groups.offsets()
            found = offsets.committed("g")
            stored = dict(zip(*encoded("g", found), strict=True))
            assert stored == expected
            try:
                stable = offsets.stable("g", timeout_ms=0)
            except UnstableOffsetsError:
                assert pending
            else:
                assert stable == found
                assert not pending


class SharedTransactionMachine(TransactionMachine):
    """Two processes write the log, here two handles of one; either may do nothing any more at any moment."""

    shared = True

    @precondition(lambda self: len(self.logs) == 2)
    @rule(handle=handles)
    def abandon(self, handle: int) -> None:
        """A process stops: what it has open stays, until its time is over or its id is taken."""
        self.retired.append(self.logs[handle])
        self.logs[handle] = commitlog.open(self.path, mode="shared")
        for player in [one for one in self.players if one.handle == handle]:
            if player.txn is not None and player.txn.fate == "open":
                player.txn.left, player.txn.waiting = True, {}
            self.players.remove(player)
            self.dead.append(player)


def _rows_of(records: Any) -> list[Seen]:
    return [(record.offset, record.key, record.value) for record in records]


@contextmanager
def at_step(number: int, act: Callable[[], object]) -> Iterator[None]:
    """Act once, before or after one of the calls to STEPS."""
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if done == number:
            act()

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            step()
            result = real(*args, **kwargs)
            step()
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in STEPS:
            patch.setattr(owner, name, watched(getattr(owner, name)))
        yield
