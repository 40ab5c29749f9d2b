"""Processes that read, transform and write in transactions are killed: the output is the input, exactly once.

Readers live through it and see nothing that is not there in the end. Planted bugs show that the checks find
what they are for.
"""

from __future__ import annotations

import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from helpers import wait_until
from soak import SEED, SOAK, count

import commitlog
from commitlog import CommitLog

from . import zygote
from .transaction_kills import (
    BUGS,
    DUEL,
    GROUPS,
    INPUT,
    LATEST,
    NEVER,
    OPEN,
    OUTPUT,
    READY,
    ROUND,
    TOKENS,
    TOPICS,
    Role,
    create_topics,
    is_drained,
    key_of,
    numbers_in,
)

KILLS = 500 if SOAK else 40  # in each test; the long form has 20,000
ALONE = range(28) if SOAK else range(1)  # tests
SHARED = range(12) if SOAK else range(1)
A_LOG = 100  # kills, then a new one: recovery takes longer in a long one
WATCHED = (INPUT, DUEL, OUTPUT, TOKENS)  # nothing is compacted there
Seen = dict[tuple[str, int], list[tuple[int, bytes | None, bytes | None]]]  # offset, key and value


class Killed:
    """A process, and what it was told is committed."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self.child = zygote.start("transaction_kills.work", role.text())
        self._tokens: set[str] = set()

    def until(self, line: str) -> None:
        """Wait until it prints a line."""
        assert self._has_printed(line), f"{self.role.name} ended with {self.child.wait()}"

    def _has_printed(self, wanted: str | None) -> bool:
        for line in self.child.stdout:
            if line == f"{wanted}\n":
                return True
            if line.endswith("\n"):  # it may have died in the last one
                self._tokens |= {line.strip()} - {READY, ROUND, OPEN}
        return False

    def kill(self) -> set[str]:
        """Kill it; returns the tokens that it was told are committed."""
        self.child.kill()
        self._ends_with(-signal.SIGKILL)
        return self._tokens

    def ends(self) -> None:
        """Wait for its good end."""
        self._ends_with(0)

    def dies(self) -> None:
        """Wait until it has killed itself."""
        self._ends_with(-signal.SIGKILL)

    def _ends_with(self, code: int) -> None:
        self._has_printed(None)
        assert self.child.wait() == code, f"{self.role} came to another end"


def kill_after_a_while(killed: Killed, chance: random.Random) -> set[str]:
    """Kill a process when it has done an amount of work that chance decides; returns its tokens."""
    if chance.random() < 0.85:  # otherwise it may be opening the log
        killed.until(READY)
        for _ in range(chance.choice([0, 1, 3, 10])):
            killed.until(ROUND)
    time.sleep(chance.random() * chance.choice([0.002, 0.02]))  # anywhere in its work
    tokens = killed.kill()
    count("transactions: processes killed")
    return tokens


# --- readers


class Watcher:
    """Reads committed records in a thread, all the time, as another process does."""

    def __init__(self, path: Path) -> None:
        self.seen: Seen = {name: [] for name in places(WATCHED)}
        self._path = path
        self._over = threading.Event()
        self._rounds = 0
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with commitlog.open(self._path, mode="r") as log, log.consumer() as consumer:
                consumer.assign(places(WATCHED))
                consumer.seek_to_beginning()
                while not self._over.is_set():
                    for name, records in consumer.poll(0.02).items():
                        self.seen[name] += [(one.offset, one.key, one.value) for one in records]
                    self._rounds += 1
        except BaseException as problem:
            self._problem = problem

    def look(self) -> None:
        """Wait until it has read everything that it can read now."""
        goal = self._rounds + 2
        wait_until(lambda: self._rounds >= goal or self._problem is not None, 60)

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        if self._problem is not None:
            raise self._problem


def places(topics: tuple[str, ...]) -> list[Any]:
    return [(topic, number) for topic in topics for number in range(TOPICS[topic][0])]


def contents(log: Any) -> Seen:
    """What can be read now."""
    return {
        (topic, number): [
            (one.offset, one.key, one.value) for one in log.topic(topic).partition(number).records()
        ]
        for topic, number in places(WATCHED)
    }


@contextmanager
def watched(path: Path, told: set[str]) -> Iterator[Watcher]:
    """Make a log, watch it, and check it in the end; `told` has the tokens that are committed for sure."""
    with commitlog.open(path) as log:
        create_topics(log)
    watcher = Watcher(path)
    try:
        yield watcher
        with commitlog.open(path, mode="shared") as log:
            check(log, watcher, told)
    finally:
        watcher.end()


# --- what must hold in the end


def check(log: CommitLog, watcher: Watcher, told: set[str]) -> None:
    wait_until(lambda: not open_in(log), 60, every=0.01)
    for group in GROUPS:
        assert is_drained(log, group), f"{group} have not processed everything"
    check_output(log)
    check_latest(log)
    check_tokens(log, told)
    found = contents(log)
    wait_until(lambda: sum(map(len, watcher.seen.values())) >= sum(map(len, found.values())), 60)
    watcher.look()
    for name, records in found.items():
        seen = watcher.seen[name]
        assert sorted(set(seen) - set(records)) == [], f"{name}: a reader saw what is not there"
        assert sorted(set(records) - set(seen)) == [], f"{name}: a reader missed what is there"
        assert seen == records
    for topic in log.topics():
        for partition in log.topic(topic).partitions:
            assert partition.verify().ok
    assert log.health().ok


def open_in(log: CommitLog) -> list[Any]:
    return [one for one in log.transactions() if one.state in ("Ongoing", "PrepareCommit")]


def check_output(log: CommitLog) -> None:
    """Each input record has one output record, in the order of its key."""
    expected: dict[bytes, list[int]] = {}
    for topic, number in places((INPUT, DUEL)):
        numbers = numbers_in(log.topic(topic).partition(number))
        assert numbers == list(range(len(numbers))), "the input is appended exactly once"
        for one in numbers:
            expected.setdefault(key_of(topic, number, one), []).append(2 * one)
    found: dict[bytes, list[int]] = {}
    for record in log.topic(OUTPUT).records():
        assert record.key is not None and record.value is not None
        assert record.value != NEVER, "what is aborted was read"
        found.setdefault(record.key, []).append(int(record.value))
    assert found == expected, "the output is not the input"


def check_latest(log: CommitLog) -> None:
    """The latest of each key is its last output record, and nothing aborted has a key there."""
    expected: dict[bytes, bytes] = {}
    for record in log.topic(OUTPUT).records():
        assert record.key is not None and record.value is not None
        expected[record.key] = record.value
    assert dict(log.topic(LATEST).latest()) == expected, "the latest records are not the last ones"
    assert {record.value for record in log.topic(LATEST).records()}.isdisjoint({NEVER})


def check_tokens(log: CommitLog, told: set[str]) -> None:
    """A token is in both partitions, once, or in none; one that is told is in both."""
    first, second = (
        Counter((record.value or b"").decode() for record in partition.records())
        for partition in log.topic(TOKENS).partitions
    )
    assert first == second, "a transaction is in one partition and not in the other"
    assert set(first.values()) <= {1}
    assert told <= first.keys()


# --- at random, one process that writes


@pytest.mark.parametrize("part", ALONE)
def test_the_output_is_the_input_exactly_once_though_the_writer_is_killed(tmp_path: Path, part: int) -> None:
    print(f"COMMITLOG_SEED={SEED}")
    chance = random.Random(f"{SEED} alone {part}")
    for first in range(0, KILLS, A_LOG):
        kill_writers(tmp_path / "log", chance, min(A_LOG, KILLS - first))
        shutil.rmtree(tmp_path / "log")


def kill_writers(path: Path, chance: random.Random, most: int) -> None:
    """Kill writers of one log."""
    told: set[str] = set()
    role = Role(str(path), "worker", assigns=chance.random() < 0.5, feeds=True)
    prefixes: list[Seen] = []
    with watched(path, told) as watcher:
        for _ in range(most):
            killed = Killed(replace(role, seed=chance.randrange(1 << 30)))
            told |= kill_after_a_while(killed, chance)
            if chance.random() < 0.1:
                with commitlog.open(path, mode="r") as log:
                    prefixes.append(contents(log))
        Killed(replace(role, feeds=False, drains=True)).ends()
        Killed(replace(role, group="duelists", assigns=True, feeds=False, drains=True)).ends()
    for prefix in prefixes:
        for name, records in prefix.items():
            assert watcher.seen[name][: len(records)] == records, "nothing that was read is gone"


# --- at random, several processes that write


class Fleet:
    """Processes that are killed and started again; a feeder, workers of a group, and two that fight."""

    def __init__(self, path: Path, chance: random.Random) -> None:
        self._chance = chance
        self.told: set[str] = set()
        role = Role(str(path), "feeder", mode="shared")
        self._roles = [
            replace(role, group="", feeds=True),
            replace(role, name="first", assigns=False),
            replace(role, name="second", assigns=False),
            replace(role, name="orphan", assigns=False, static=False),  # nobody takes its id over
            replace(role, name="duelist", group="duelists"),
            replace(role, name="duelist", group="duelists"),
        ]
        self._living: list[Killed] = []
        self._lives = 0

    def run(self, kills: int) -> None:
        self._living = [self._started(role) for role in self._roles]
        for _ in range(kills):
            number = self._chance.randrange(len(self._living))
            self.told |= kill_after_a_while(self._living[number], self._chance)
            self._living[number] = self._started(self._roles[number])

    def _started(self, role: Role) -> Killed:
        self._lives += 1
        name = role.name if role.static else f"{role.name}-{self._lives}"
        return Killed(replace(role, name=name, seed=self._chance.randrange(1 << 30)))

    def end(self) -> None:
        """Kill all of them, and let others process what is left."""
        for killed in self._living:
            self.told |= killed.kill()
        self._living = []
        last = [Killed(replace(role, feeds=False, drains=True)) for role in (self._roles[1], self._roles[4])]
        for one in last:
            one.ends()

    def give_up(self) -> None:
        for killed in self._living:
            killed.child.kill()
            killed.child.wait()


@pytest.mark.parametrize("part", SHARED)
def test_the_output_is_the_input_exactly_once_though_some_of_the_writers_are_killed(
    tmp_path: Path, part: int
) -> None:
    print(f"COMMITLOG_SEED={SEED}")
    chance = random.Random(f"{SEED} shared {part}")
    for first in range(0, KILLS, A_LOG):
        kill_some_of_the_writers(tmp_path / "log", chance, min(A_LOG, KILLS - first))
        shutil.rmtree(tmp_path / "log")


def kill_some_of_the_writers(path: Path, chance: random.Random, most: int) -> None:
    """Kill writers of one log, where others live that end what those left."""
    fleet = Fleet(path, chance)
    try:
        with watched(path, fleet.told):
            survivor = chance.random() < 0.5  # which has nothing to do but to end what others left
            with commitlog.open(path, mode="shared") if survivor else nullcontext():
                fleet.run(most)
            fleet.end()
    finally:
        fleet.give_up()


# --- planted bugs: what the checks are for


def drain(role: Role) -> None:
    """Let processes with the same bug process all input."""
    for group in GROUPS:
        Killed(replace(role, group=group, dies="", waits="", drains=True)).ends()


def fed(path: Path, dies: str = "") -> None:
    child = zygote.start("transaction_kills.feed_once", path, 20, dies)
    assert child.wait() == (-9 if dies else 0)


def killed_between_markers(path: Path, bug: str, mode: Literal["w", "shared"], marker: int) -> None:
    role = Role(str(path), "worker", mode=mode, kind="calls", dies=f"marker {marker}", bug=bug)
    with watched(path, set()):
        fed(path)
        Killed(role).dies()
        drain(role)


def killed_after_the_decision(path: Path, bug: str) -> None:
    role = Role(str(path), "worker", mode="shared", kind="block", dies="decision 2", bug=bug)
    with watched(path, set()):
        fed(path)
        Killed(role).dies()
        drain(role)


def killed_in_the_middle_of_a_transaction(path: Path, bug: str) -> None:
    """And a reader looks just before that."""
    role = Role(str(path), "worker", kind="block", waits="sent never", timeout_ms=600_000, bug=bug)
    with watched(path, set()) as watcher:
        fed(path)
        killed = Killed(role)
        killed.until(OPEN)
        watcher.look()
        killed.kill()
        drain(role)


def superseded(path: Path, bug: str) -> None:
    """One stops in its transaction, another one takes its id over and goes on, and then the first does."""
    go = path.with_name("go")
    role = Role(str(path), "worker", mode="shared", kind="block", timeout_ms=600_000, bug=bug)
    with watched(path, set()):
        fed(path)
        first = Killed(replace(role, drains=True, waits=f"begun {go}"))
        first.until(OPEN)
        drain(role)
        go.touch()
        first.ends()


def compacted_after_aborts(path: Path, bug: str) -> None:
    with watched(path, set()):
        fed(path)
        drain(Role(str(path), "worker", kind="aborted", bug=bug))


def killed_without_a_list_of_what_is_aborted(path: Path, bug: str) -> None:
    with watched(path, set()):
        fed(path, dies="list 1")
        drain(Role(str(path), "worker", bug=bug))


SCENARIOS: dict[str, Callable[[Path, str], None]] = {
    "marker before the decision": lambda path, bug: killed_between_markers(path, bug, "w", 1),
    "stable offset too high": killed_in_the_middle_of_a_transaction,
    "fencing skipped": superseded,
    "aborted data kept by compaction": compacted_after_aborts,
    "missing list believed to be empty": killed_without_a_list_of_what_is_aborted,
    "decision forgotten before its markers": lambda path, bug: killed_between_markers(path, bug, "shared", 1),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_process_killed_at_the_worst_moment_does_no_harm(tmp_path: Path, scenario: str) -> None:
    SCENARIOS[scenario](tmp_path / "log", "")


SYMPTOMS = {
    "marker before the decision": "the output is not the input",
    "stable offset too high": "a reader saw what is not there",
    "fencing skipped": "the output is not the input",
    "aborted data kept by compaction": "the latest records are not the last ones",
    "missing list believed to be empty": "what is aborted was read",
    "decision forgotten before its markers": "the output is not the input",
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(tmp_path: Path, bug: str) -> None:
    with pytest.raises(AssertionError, match=SYMPTOMS[bug]):
        SCENARIOS[bug](tmp_path / "log", bug)


@pytest.mark.parametrize("marker", range(2, 6))
@pytest.mark.parametrize("mode", ["w", "shared"])
def test_a_process_killed_after_any_of_its_markers_does_no_harm(
    tmp_path: Path, mode: Literal["w", "shared"], marker: int
) -> None:
    killed_between_markers(tmp_path / "log", "", mode, marker)


def test_a_process_killed_after_its_decision_does_no_harm(tmp_path: Path) -> None:
    killed_after_the_decision(tmp_path / "log", "")
