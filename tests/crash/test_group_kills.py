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
from contextlib import ExitStack, contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from helpers import wait_until
from soak import SEED, SOAK, count

import commitlog
from commitlog import CommitLog, RebalanceListener, TopicPartition
from commitlog.groups.directory import GroupDirectory
from commitlog.groups.offsets import TOPIC_CONFIG as OFFSETS_CONFIG
from commitlog.locks import ProcessLock

from . import group_kills
from .group_checks import check_group, check_no_errors, check_numbered, check_sent, contents
from .group_kills import BEAT_MS, PARTITIONS, SESSION_MS, consume, read

SECONDS = 120 if SOAK else 4
CONFIG = {"segment_bytes": 8 * 1024, "index_interval_bytes": 256, "flush_ms": 50}
QUICK = {"session_timeout_ms": SESSION_MS, "heartbeat_interval_ms": BEAT_MS}
STRATEGIES = {
    "after": "cooperative-sticky",
    "before": "range",
    "auto": ("sticky", "cooperative-sticky"),
}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log with small segments, of committed offsets too; and nothing is compacted, to see them all."""
    for setting, value in {**CONFIG, "min_compaction_lag_ms": 1 << 40}.items():
        monkeypatch.setitem(OFFSETS_CONFIG, setting, value)
    with commitlog.open(tmp_path / "log", mode="shared") as log:
        log.create_topic("t", PARTITIONS, CONFIG)
        log.consumer(group_id="first")
    return tmp_path / "log"


# --- at random


class Role:
    """A writer or a member that is started again and again."""

    may_double = True  # whether a new one may start while the one before is stopped

    def __init__(self, name: str, path: Path, chance: random.Random) -> None:
        self.name = name
        self.folder = path.parent
        self._path = path
        self._chance = chance
        self.lives = 0
        self.living: list[BaseProcess] = []

    def start(self) -> BaseProcess:
        self.lives += 1
        process = self._started(self.folder, str(self._path), self._chance.randrange(1 << 30))
        self.living.append(process)
        return process

    def _started(self, folder: Path, path: str, seed: int) -> BaseProcess:
        raise NotImplementedError

    def bury(self) -> None:
        """Forget those that have ended."""
        self.living = [process for process in self.living if process.is_alive()]


class Member(Role):
    def _started(self, folder: Path, path: str, seed: int) -> BaseProcess:
        group, _, number = self.name.partition("-")
        mode = ["r", "shared"][self.lives % 2]
        settings: dict[str, Any] = {"partition_assignment_strategy": STRATEGIES[group], **QUICK}
        if number == "0":
            settings["group_instance_id"] = self.name  # a static member
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


def has_begun(writer: Role) -> bool:
    return (writer.folder / f"{writer.name}.writer").exists()


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
        wait_until(lambda: all(map(has_begun, self.writers)), 60)  # chance may not touch one of them again
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
            count("processes killed")
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
    owners: dict[Any, str] = {one: member.member_id for member in about.members for one in member.partitions}
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
            for role in chaos.members:
                role.start()  # the others may just be on their way out
            for group in STRATEGIES:
                wait_until(lambda group=group: is_drained(log, group), 60)  # type: ignore[misc]
            chaos.kill(chaos.members)
            started = {role: role.start() for role in chaos.members}
            for group in STRATEGIES:
                own = [process for role, process in started.items() if role.name.startswith(group)]
                wait_until(lambda group=group, own=own: has_settled(log, group, own), 60)  # type: ignore[misc]
        chaos.end(chaos.members)
    finally:
        for role in chaos.roles:
            for process in role.living:
                process.kill()
    check_no_errors(path.parent)
    with commitlog.open(path, mode="shared") as log:
        found = contents(log)
        assert min(len(records) for records in found) > 10
        for name in ("n1", "n2"):
            check_numbered(name, read(path.parent / f"{name}.writer"), found)
        for name in ("one", "all"):
            check_sent(name, read(path.parent / f"{name}.writer"), found)
        for group in STRATEGIES:
            check_group(log, path.parent, group, found)


# --- one by one

PATIENT_MS = 1500  # a session timeout that a busy machine does not come near


def start_members(path: Path, count: int) -> list[BaseProcess]:
    """Start members of the group "after", one with the log open for reading, one for writing, and so on."""
    settings = {"session_timeout_ms": PATIENT_MS, "heartbeat_interval_ms": BEAT_MS}
    known = len(list(path.parent.glob("after-*.member")))
    return [
        group_kills.start(
            consume, path.parent / f"after-{known + number}.member", str(path), "after",
            ["r", "shared"][number % 2], settings, number,
        )
        for number in range(count)
    ]  # fmt: skip


@contextmanager
def killed_in_the_end(processes: list[BaseProcess]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def until_settled(log: CommitLog, processes: list[BaseProcess]) -> None:
    wait_until(lambda: "after" in log.groups() and has_settled(log, "after", processes), 60)


@pytest.mark.parametrize("who", ["the other member", "a new member", "who looks"])
def test_killed_members_are_kept_for_their_session_timeout_and_no_longer(path: Path, who: str) -> None:
    members = start_members(path, 2)
    with killed_in_the_end(members), commitlog.open(path, mode="r") as log:
        until_settled(log, members)
        directory = GroupDirectory(str(path), "after")
        dying = members[:1] if who == "the other member" else members[:2]
        for process in dying:
            process.kill()
            process.join()
        pids = {str(process.pid) for process in dying}
        with directory.lock:
            state = directory.look()
            dead = [one for one in state.members.values() if one.process.rpartition(":")[2] in pids]
        last_beats = {one.member_id: directory.heartbeats.last_beat(one.slot) for one in dead}
        if who == "a new member":
            members += start_members(path, 1)
        deadline = time.monotonic() + 60
        while last_beats:
            assert time.monotonic() < deadline, "they stay for ever"
            if who == "who looks":
                log.describe_group("after")
            with directory.lock:
                state = directory.look()
                gone = last_beats.keys() - state.members.keys()
                owners = set(state.owners.values())
            for member_id in gone:
                assert time.monotonic_ns() - last_beats.pop(member_id) > PATIENT_MS * 1_000_000
                assert member_id not in owners
            time.sleep(0.005)
        living = [process for process in members if process not in dying]
        if living:
            until_settled(log, living)
        else:
            assert log.describe_group("after").state == "Empty"


def stop_without_locks(process: BaseProcess, path: Path) -> None:
    """Stop a process at a moment when it has no lock that others wait for."""
    names = [*path.glob("groups/*.lock"), path / ".catalog-lock"]
    for kind in ("compaction", "sync", "append"):
        names += sorted(path.glob(f"*/{kind}.lock"))
    with ExitStack() as held:
        for name in names:
            held.enter_context(ProcessLock(str(name)))
        send(process, signal.SIGSTOP)
        # a thread that waits for a lock takes it if it is let go before the signal has come
        wait_until(lambda: states_of(process) == {"T"})


def states_of(process: BaseProcess) -> set[str]:
    """The states of a process's threads; T is a stopped one."""
    threads = Path(f"/proc/{process.pid}/task").glob("*/stat")
    return {stat.read_text().rpartition(")")[2].split()[0] for stat in threads}


def test_a_member_that_stood_still_is_refused_and_comes_back_as_another(path: Path) -> None:
    members = start_members(path, 2)
    with killed_in_the_end(members), commitlog.open(path, mode="shared") as log:
        until_settled(log, members)
        before = {member.member_id for member in log.describe_group("after").members}
        stop_without_locks(members[0], path)
        for number in range(100):
            log.topic("t").partition(number % PARTITIONS).append(b"v", key=b"k")
        until_settled(log, members[1:])
        wait_until(lambda: is_drained(log, "after"), 60)
        send(members[0], signal.SIGCONT)
        until_settled(log, members)
        after = {member.member_id for member in log.describe_group("after").members}
        assert len(before & after) == 1
        for process in members:
            process.terminate()
            process.join(60)
        check_no_errors(path.parent)
        check_group(log, path.parent, "after", contents(log))
    (stood_still,) = [read(one) for one in path.parent.glob("after-0.member")]
    assert "lost" in [line[0] for line in stood_still]


def test_members_that_wait_for_the_groups_lock_are_not_taken_for_dead(path: Path) -> None:
    members = start_members(path, 3)
    with killed_in_the_end(members), commitlog.open(path, mode="r") as log:
        until_settled(log, members)
        directory = GroupDirectory(str(path), "after")
        with directory.lock:
            state = directory.look()
            before = list(state.members)
            waited_from = time.monotonic()
            while time.monotonic() - waited_from < 1.5 * PATIENT_MS / 1000:
                time.sleep(0.01)
        deadline = time.monotonic() + PATIENT_MS / 2000
        while time.monotonic() < deadline:
            with directory.lock:
                state = directory.look()
                assert list(state.members) == before
            time.sleep(0.01)


def test_what_a_member_was_to_commit_before_it_was_removed_is_not_committed_after_it_came_back(
    path: Path,
) -> None:
    with commitlog.open(path, mode="shared") as log:
        log.topic("t").partition(0).append_many([b"v"] * 100)
        consumer = log.consumer("t", group_id="g", enable_auto_commit=False)
        session = consumer._session
        assert session is not None
        session.stop()  # nothing is done behind its back
        assert len(consumer.poll(max_records=20)[TopicPartition("t", 0)]) == 20
        told: list[Exception | None] = []
        consumer.commit_async(callback=lambda _, problem: told.append(problem))
        with session.member.directory.lock, session.member.directory.changing() as state:
            state.remove(list(state.members), {})
        log.reset_offsets("g", offset=70, topics=["t"])
        assert consumer.poll(60)[TopicPartition("t", 0)][0].offset == 70
        session.commit_pending()
        assert consumer.committed(("t", 0)) == 70
        assert [type(problem) for problem in told] == [commitlog.errors.CommitFailedError]


def test_a_position_is_committed_even_if_the_member_had_committed_it_before_others_went_on(
    path: Path,
) -> None:
    with commitlog.open(path, mode="shared") as log:
        log.topic("t").partition(0).append_many([b"v"] * 100)
        with log.consumer("t", group_id="g") as consumer:
            assert len(consumer.poll(max_records=20)[TopicPartition("t", 0)]) == 20
            consumer.unsubscribe()
            log.reset_offsets("g", offset=70)
            consumer.subscribe("t")
            assert consumer.poll()[TopicPartition("t", 0)][0].offset == 70
            consumer.seek(("t", 0), 20)
        assert [one.committed for one in log.describe_group("g").partitions] == [20, 0, 0, 0]


@pytest.mark.parametrize("strategy", ["range", "sticky", "cooperative-sticky"])
def test_a_static_member_that_comes_back_during_a_rebalance_gives_up_what_is_not_its_own_any_more(
    path: Path, strategy: str
) -> None:
    settings: dict[str, Any] = {"group_id": "g", "partition_assignment_strategy": strategy}
    with commitlog.open(path, mode="shared") as log:
        before = log.consumer("t", group_instance_id="name", **settings)
        before.poll()
        assert len(before.assignment()) == PARTITIONS
        other = log.consumer("t", **settings)
        listener = Noted()
        back = log.consumer(group_instance_id="name", **settings)
        back.subscribe("t", listener=listener)

        def settled() -> bool:
            for one in (back, other):
                one.poll()
            return len(back.assignment()) == len(other.assignment()) == PARTITIONS // 2

        wait_until(settled)
        assert log.describe_group("g").state == "Stable"
        assert listener.revoked <= listener.assigned


class Noted(RebalanceListener):
    def __init__(self) -> None:
        self.assigned: set[TopicPartition] = set()
        self.revoked: set[TopicPartition] = set()

    def on_assigned(self, partitions: set[TopicPartition]) -> None:
        self.assigned |= partitions

    def on_revoked(self, partitions: set[TopicPartition]) -> None:
        self.revoked |= partitions


def test_a_member_whose_name_another_one_has_taken_can_be_closed(path: Path) -> None:
    with commitlog.open(path, mode="shared") as log:
        log.topic("t").partition(0).append_many([b"v"] * 100)
        one, other = (log.consumer(group_id="g", group_instance_id="name") for _ in range(2))
        one.subscribe("t")
        assert len(one.poll(max_records=20)[TopicPartition("t", 0)]) == 20
        other.subscribe("t")
        one.close()
        assert other.poll()[TopicPartition("t", 0)][0].offset == 0


# --- sent again


@pytest.mark.parametrize("between", ["nobody", "another writer", "one that is alone"])
@pytest.mark.parametrize("moment", ["rolled", "written", "half published", "published", "appended"])
def test_a_batch_whose_answer_was_lost_is_there_once_when_it_is_sent_again(
    tmp_path: Path, moment: str, between: str
) -> None:
    path, values, producer = tmp_path / "log", [b"%d" % number * 200 for number in range(3)], (7, 0, 0)
    with ExitStack() as opened:
        log = opened.enter_context(commitlog.open(path, mode="shared"))
        other = log.create_topic("t", config={**CONFIG, "segment_bytes": 1024}).partition(0)
        other.append(b"before" * 100)  # the batch goes to another segment
        if between != "another writer":
            opened.close()
        process = group_kills.start(
            group_kills.append_and_die, tmp_path / "journal", str(path), moment, producer, values
        )
        process.join(60)
        assert process.exitcode == -signal.SIGKILL, read(tmp_path / "journal")
        if between == "another writer":
            other.append_many([b"another"], producer=(8, 0, 0))
        with commitlog.open(path, mode="shared" if between != "one that is alone" else "w") as again:
            check_sent_again(again, producer, values)
    for shared in (True, False):
        with commitlog.open(path, mode="shared" if shared else "w") as log:
            check_sent_again(log, producer, values)
            log.topic("t").partition(0).append_many([b"next"], producer=(7, 0, 3))


def check_sent_again(log: CommitLog, producer: tuple[int, int, int], values: list[bytes]) -> None:
    partition = log.topic("t").partition(0)
    offsets = partition.append_many(values, producer=producer)
    assert partition.append_many(values, producer=producer) == offsets
    found = [record.value for record in partition.records()]
    assert found[offsets.start : offsets.stop] == values
    assert len(found) == partition.next_offset
    assert len(set(found)) == len(found), "one is there twice"
    assert partition.verify().damage == ()
