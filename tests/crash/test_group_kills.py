"""Writers and members of groups are stopped and killed: nothing is lost, nothing is there twice, and nothing
is delivered but as the group promises.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from helpers import wait_until

import commitlog
from commitlog import CommitLog

from . import group_kills
from .group_checks import check_group, check_no_errors, check_numbered, check_sent, contents
from .group_kills import BEAT_MS, PARTITIONS, SESSION_MS, consume, read
from .logs import SOAK

SECONDS = 60 if SOAK else 4
SEED = int(os.environ.get("COMMITLOG_SEED", time.time_ns() % 1_000_000 if SOAK else 1))
CONFIG = {"segment_bytes": 8 * 1024, "index_interval_bytes": 256, "flush_ms": 50}
QUICK = {"session_timeout_ms": SESSION_MS, "heartbeat_interval_ms": BEAT_MS}
STRATEGIES = {
    "after": "cooperative-sticky",
    "before": "range",
    "auto": ("sticky", "cooperative-sticky"),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with commitlog.open(tmp_path / "log", shared=True) as log:
        log.create_topic("t", PARTITIONS, CONFIG)
    return tmp_path / "log"


# --- at random


class Role:
    """A writer or a member that is started again and again."""

    may_double = True  # whether a new one may start while the one before is stopped

    def __init__(self, name: str, path: Path, chance: random.Random) -> None:
        self.name = name
        self._path = path
        self._chance = chance
        self.lives = 0
        self.living: list[BaseProcess] = []

    def start(self) -> BaseProcess:
        self.lives += 1
        process = self._started(self._path.parent, str(self._path), self._chance.randrange(1 << 30))
        self.living.append(process)
        return process

    def _started(self, folder: Path, path: str, seed: int) -> BaseProcess:
        raise NotImplementedError

    def bury(self) -> None:
        """Forget those that have ended."""
        self.living = [process for process in self.living if process.is_alive()]


class Member(Role):
    def _started(self, folder: Path, path: str, seed: int) -> BaseProcess:
        group = self.name.partition("-")[0]
        mode = ["r", "shared"][self.lives % 2]
        settings = {"partition_assignment_strategy": STRATEGIES[group], **QUICK}
        journal = folder / f"{self.name}-{self.lives}.member"
        return group_kills.start(consume, journal, path, group, mode, settings, seed)


class Numbered(Role):
    def _started(self, folder: Path, path: str, seed: int) -> BaseProcess:
        journal, number = folder / f"{self.name}.writer", crc32(self.name.encode())
        return group_kills.start(group_kills.write_numbered, journal, path, self.name, number, seed)


class Sender(Role):
    may_double = False  # it would send other records of the same keys

    def _started(self, folder: Path, path: str, seed: int) -> BaseProcess:
        journal, acks = folder / f"{self.name}.writer", "all" if self.name == "all" else 1
        program = group_kills.write_through_a_producer
        return group_kills.start(program, journal, path, self.name, acks, self.lives, seed)


class Chaos:
    """Writers and members that come, stop, go on, end and are killed, as chance has it."""

    def __init__(self, path: Path, seed: int) -> None:
        self._chance = random.Random(seed)
        self.writers: list[Role] = [
            Numbered("n1", path, self._chance), Numbered("n2", path, self._chance),
            Sender("one", path, self._chance), Sender("all", path, self._chance),
        ]  # fmt: skip
        self.members: list[Role] = [
            Member(f"{group}-{number}", path, self._chance)
            for group in STRATEGIES
            for number in range(3 if SOAK else 2)
        ]
        self._stopped: list[tuple[float, BaseProcess]] = []

    @property
    def roles(self) -> list[Role]:
        return [*self.writers, *self.members]

    def run(self, seconds: float) -> None:
        for role in self.roles:
            role.start()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._act(self._chance.choice(self.roles))
            time.sleep(self._chance.random() * 0.2)
            self._go_on(time.monotonic())
        self._go_on(float("inf"))

    def _act(self, role: Role) -> None:
        role.bury()
        if not role.living:
            role.start()
            return
        process, action = self._chance.choice(role.living), self._chance.random()
        if action < 0.4:
            process.kill()
            process.join()
            role.start()
        elif action < 0.8:
            until = time.monotonic() + self._chance.random() * 2.5 * SESSION_MS / 1000
            send(process, signal.SIGSTOP)
            self._stopped.append((until, process))
            if role.may_double and action < 0.6:
                role.start()
        else:
            process.terminate()

    def _go_on(self, now: float) -> None:
        for until, process in self._stopped:
            if until <= now:
                send(process, signal.SIGCONT)
        self._stopped = [(until, process) for until, process in self._stopped if until > now]

    def end(self, roles: list[Role]) -> None:
        """Let them come to a good end."""
        for role in roles:
            role.bury()
            for process in role.living:
                process.terminate()
        for role in roles:
            for process in role.living:
                process.join(60)
                # SIGTERM may have come before it was listened to
                assert process.exitcode in (0, -signal.SIGTERM), f"{role.name}: {process.exitcode}"

    def kill(self, roles: list[Role]) -> None:
        for process in [process for role in roles for process in role.living]:
            process.kill()
            process.join()


def send(process: BaseProcess, number: int) -> None:
    if process.is_alive():
        assert process.pid is not None
        os.kill(process.pid, number)


@contextmanager
def watched(path: Path) -> Iterator[None]:
    """Look at the groups all the while: nothing goes back, and a partition has one owner."""
    over, problems = threading.Event(), []

    def watch() -> None:
        seen: dict[Any, int] = {}
        try:
            with commitlog.open(path, mode="r") as log:
                while not over.wait(0.05):
                    for group in log.groups():
                        look(log, group, seen)
        except BaseException as problem:
            problems.append(problem)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
    if problems:
        raise problems[0]


def look(log: CommitLog, group: str, seen: dict[Any, int]) -> None:
    about = log.describe_group(group)
    owners = {one: member.member_id for member in about.members for one in member.partitions}
    assert len(owners) == sum(len(member.partitions) for member in about.members)
    assert about.generation >= seen.get(group, 0)
    seen[group] = about.generation
    for one in about.partitions:
        assert one.member_id == owners.get((one.topic, one.partition))
        committed = one.committed or 0
        assert seen.get((group, one.partition), 0) <= committed <= one.end_offset
        seen[group, one.partition] = committed


def is_drained(log: CommitLog, group: str) -> bool:
    about = log.describe_group(group)
    return len(about.partitions) == PARTITIONS and all(one.lag == 0 for one in about.partitions)


def has_settled(log: CommitLog, group: str, processes: list[BaseProcess]) -> bool:
    """Whether just these processes are members, and have all partitions."""
    about = log.describe_group(group)
    members = {member.process.rpartition(":")[2] for member in about.members}
    return (
        members == {str(process.pid) for process in processes}
        and about.state == "Stable"
        and all(one.member_id is not None for one in about.partitions)
    )


def test_nothing_is_lost_or_there_twice_while_writers_and_members_are_killed(path: Path) -> None:
    print(f"COMMITLOG_SEED={SEED}")
    chaos = Chaos(path, SEED)
    try:
        with watched(path):
            chaos.run(SECONDS)
        chaos.end(chaos.writers)
        check_no_errors(path.parent)
        with commitlog.open(path, mode="r") as log:
            for group in STRATEGIES:
                wait_until(lambda group=group: is_drained(log, group), 60)
            chaos.kill(chaos.members)
            started = {role: role.start() for role in chaos.members}
            for group in STRATEGIES:
                own = [process for role, process in started.items() if role.name.startswith(group)]
                wait_until(lambda group=group, own=own: has_settled(log, group, own), 60)
        chaos.end(chaos.members)
    finally:
        for role in chaos.roles:
            for process in role.living:
                process.kill()
    check_no_errors(path.parent)
    with commitlog.open(path, shared=True) as log:
        found = contents(log)
        assert min(len(records) for records in found) > 50
        for name in ("n1", "n2"):
            check_numbered(name, read(path.parent / f"{name}.writer"), found)
        for name in ("one", "all"):
            check_sent(name, read(path.parent / f"{name}.writer"), found)
        for group in STRATEGIES:
            check_group(log, path.parent, group, found)
