"""Ctrl-C at any moment: what was acknowledged stays, memory and disk stay in step, locks are let go."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import random
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import soak
from soak import SEED, SOAK

import commitlog
from commitlog import (
    ClosedError,
    CommitLog,
    CommitLogError,
    CorruptionError,
    DiskFullError,
    LogConfig,
    Partition,
    PartitionFailedError,
    TopicPartition,
    files,
    segment_writer,
)
from commitlog.partitions import compactor, shortener
from commitlog.partitions.layout import Layout
from commitlog.partitions.page import StatePage
from commitlog.partitions.producer_state import Producers, SentBatch
from commitlog.partitions.state import LogState
from commitlog.segment_files import swap_in
from commitlog.segment_writer import SegmentWriter

from .interrupts import Interrupt, open_files
from .logs import (
    MARKER,
    QUIET,
    append_to,
    flipped,
    mode,
    open_partition,
    segment_files,
    value_of,
)

pytestmark = pytest.mark.usefixtures("quick_disk", "quiet_ends", "mapped_tail")

SYNCED, END = 20, 24  # what is in the log before anything is interrupted, and how much of it is synced
CONFIG = {**QUIET, "segment_bytes": 512, "index_interval_bytes": 0}
ONE_SEGMENT = {"segment_bytes": 100_000}
NEVER = 1 << 30
MOMENTS = 400 if SOAK else 12
Values = dict[int, bytes]


@dataclass(frozen=True)
class Case:
    """Something to interrupt, and the offsets that it takes away when it is done.

    `survives` says whether the partition takes appends afterwards, whatever the moment.
    """

    act: Callable[[Partition], object]
    takes: range = range(0)
    config: dict[str, Any] = field(default_factory=dict)
    hurt: Callable[[Path], range] = lambda path: range(0)  # damages the log's files; returns what is lost
    survives: bool = True


def append_rolling(partition: Partition) -> None:
    partition.append(b"new" * 100)
    partition.append(b"new" * 100)


def append_four(partition: Partition) -> None:
    for _ in range(4):
        partition.append(b"new")


def map_then(act: Callable[[Partition], object]) -> Callable[[Partition], object]:
    """Store a few records into a mapped tail first."""

    def whole(partition: Partition) -> None:
        append_four(partition)
        act(partition)

    return whole


def a_flipped_bit(path: Path) -> range:
    segment = segment_files(path)[1]
    bad = list(commitlog.Segment.open(segment).batches())[1]
    flipped(bad.position + 70, 3)(segment)
    return range(bad.base_offset, bad.next_offset)


def a_deleted_segment(path: Path) -> range:
    victim, after = segment_files(path)[1:3]
    victim.unlink()
    return range(int(victim.stem), int(after.stem))


def false_indexes(path: Path) -> range:
    for suffix in (".index", ".timeindex"):
        segment_files(path)[1].with_suffix(suffix).write_bytes(b"nonsense" * 512)
    return range(0)


def rest_then(call: Callable[[Partition], object]) -> Callable[[Partition], object]:
    def rested(partition: Partition) -> object:
        partition._state.rest()
        return call(partition)

    return rested


CASES: dict[str, Case] = {
    "append": Case(lambda partition: partition.append(b"new")),
    "append that rolls": Case(append_rolling),
    "synced append": Case(lambda partition: partition.append(b"new", sync=True)),
    "append_many": Case(lambda partition: partition.append_many([b"new"] * 5, keys=[b"k"] * 5)),
    "sync": Case(Partition.sync),
    "roll": Case(Partition.roll),
    "rest": Case(lambda partition: partition._state.rest()),
    "append after a rest": Case(rest_then(lambda partition: partition.append(b"new"))),
    "roll after a rest": Case(rest_then(Partition.roll)),
    "truncate_from after a rest": Case(
        rest_then(lambda partition: partition.truncate_from(7)), range(7, END)
    ),
    "roll of a preallocated segment": Case(Partition.roll, config={"preallocate": True}),
    "appends that map the tail": Case(append_four, config=ONE_SEGMENT),
    "append_many into a mapped tail": Case(
        map_then(lambda partition: partition.append_many([b"new"] * 5)), config=ONE_SEGMENT
    ),
    "roll of a mapped tail": Case(map_then(Partition.roll), config=ONE_SEGMENT),
    "truncate_from a mapped tail": Case(
        map_then(lambda partition: partition.truncate_from(END)), config=ONE_SEGMENT
    ),
    "trim_before": Case(lambda partition: partition.trim_before(13), range(13)),
    "trim_before of everything": Case(lambda partition: partition.trim_before(END), range(END)),
    "truncate_from": Case(lambda partition: partition.truncate_from(7), range(7, END)),
    "truncate_from of little": Case(lambda partition: partition.truncate_from(END - 1), range(END - 1, END)),
    "truncate_from of everything": Case(lambda partition: partition.truncate_from(0), range(END)),
    "restart_at": Case(lambda partition: partition.restart_at(100), range(END)),
    "restart_at a lower offset": Case(lambda partition: partition.restart_at(3), range(END)),
    "repair of nothing": Case(Partition.repair, survives=False),
    "repair of a flipped bit": Case(Partition.repair, hurt=a_flipped_bit, survives=False),
    "repair of a deleted segment": Case(Partition.repair, hurt=a_deleted_segment, survives=False),
    "repair of indexes": Case(Partition.repair, hurt=false_indexes, survives=False),
}


@pytest.fixture
def quiet_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt while Python lets an object go is reported, not raised; pytest would keep the object."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)


def at_each_moment(name: str, run: Callable[[Interrupt], object]) -> None:
    """Interrupt something at every moment, or at some of them."""
    run(counting := Interrupt(NEVER))
    count = counting.passed
    assert count > 5
    for moment in sorted(random.Random(f"{SEED} {name}").sample(range(1, count + 1), min(count, MOMENTS))):
        interruption = Interrupt(moment)
        try:
            run(interruption)
        except BaseException as problem:
            problem.add_note(f"interrupted at moment {moment} of {count}, {interruption.place}")
            raise
        soak.count("operations interrupted")


def template(path: Path, config: Mapping[str, Any] = CONFIG) -> Path:
    """A log as a killed writer left it: some of it synced."""
    with commitlog.open(path / "live") as log:
        partition = log.create_topic("t", config={**CONFIG, **config}).partition(0)
        append_to(partition, SYNCED)
        partition.sync()
        append_to(partition, END)
        shutil.copytree(path / "live", path / "template")
    return path / "template"


@contextmanager
def no_handle_left(interruption: Interrupt) -> Iterator[None]:
    before = open_files()
    yield
    interruption.error = None  # and with it the frames, and what they have
    gc.collect()
    assert open_files() <= before + interruption.fresh, "a handle is left open"


# --- calls of a partition


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_an_interrupted_call_is_done_or_not_and_the_partition_goes_on(
    name: str, shared: bool, tmp_path: Path
) -> None:
    """The exception is kept meanwhile, as a shell keeps it: no lock may hang on that."""
    case, path = CASES[name], tmp_path / "log"
    source = template(tmp_path, CASES[name].config)

    def run(interruption: Interrupt) -> None:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(source, path)
        with no_handle_left(interruption):
            log = commitlog.open(path, mode="shared" if shared else "w")
            lost = case.hurt(path)
            with interruption:
                case.act(open_partition(log))
            acknowledged = check_open(log, case, lost)
            log.close()
            del log
        check_reopened(path, case, lost, acknowledged)

    at_each_moment(name, run)


def check_open(log: CommitLog, case: Case, lost: range) -> Values:
    """The partition is as before, or the call is done, or health() says why not; returns what is added."""
    partition = open_partition(log)
    check_free(partition)
    assert partition.failure is None or not case.survives
    page = StatePage.open(partition.path)
    assert page is not None
    assert page.generation % 2 == 0, "readers do not wait for a change that nobody makes"
    assert log.health().failed_partitions == (
        () if partition.failure is None else (("t-0", partition.failure),)
    )
    found, damaged = read(partition)
    check_values(found, case, lost, damaged)
    if partition.failure is None:
        assert set(found) >= set(range(END)) - set(lost) or damaged or not set(found) & set(case.takes)
        with commitlog.open(log.path, mode="r") as reader:
            assert read(open_partition(reader)) == (found, damaged)
    return go_on(partition)


def check_free(partition: Partition) -> None:
    """No lock is held, neither from other threads nor from other processes."""
    for lock in (partition._state.lock, partition._state.sync_lock, partition._state.access.compaction_lock):
        assert not lock.locked()
    check_files_free(Path(partition.path).glob("*.lock"))


def check_files_free(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.name != "members.lock":  # held as long as the partition is open
            with open(path) as file:
                assert files.try_lock(file.fileno()), path


def read(partition: Any) -> tuple[Values, bool]:
    """What can be read, and whether damage ended it."""
    found: Values = {}
    try:
        for record in partition.records():
            assert record.offset not in found
            found[record.offset] = record.value
    except CorruptionError:
        return found, True
    return found, False


def go_on(partition: Partition) -> Values:
    """Append more, synced; a partition that refuses must say so in `failure`."""
    acknowledged = {}
    for number in range(3):
        value = b"after %d" % number
        try:
            acknowledged[partition.append(value, sync=True)] = value
        except CommitLogError:
            assert partition.failure is not None
    return acknowledged


def check_values(found: Values, case: Case, lost: range, damaged: bool) -> None:
    """Every record is one that was appended, and none is missing that should not be."""
    for offset, value in found.items():
        assert value == value_of(offset) or value.startswith((b"new", b"after"))
    kept = set(range(END)) - set(case.takes) - set(lost)
    assert damaged or kept <= set(found)
    assert not set(lost) & set(found)


def check_reopened(path: Path, case: Case, lost: range, acknowledged: Values) -> None:
    """Nothing is lost: after an open that believes what was left, and after one that checks everything."""
    for clean in (True, False):
        if not clean:
            (path / MARKER).unlink(missing_ok=True)
        with commitlog.open(path, config=mode("salvage")) as log:
            partition = open_partition(log)
            if not partition.verify().ok:
                partition.repair()
            found, damaged = read(partition)
            check_values(found, case, lost, damaged)
            assert not damaged
            assert acknowledged.items() <= found.items()
            assert set(range(partition.start_offset, partition.next_offset)) - set(found) <= set(lost)
            assert partition.verify().ok


@pytest.mark.parametrize("shared", [False, True])
def test_an_interrupted_compaction_leaves_the_last_record_of_each_key_and_the_partition_goes_on(
    shared: bool, tmp_path: Path
) -> None:
    path, latest = tmp_path / "log", {}
    with commitlog.open(tmp_path / "live") as log:
        config = {**CONFIG, "cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.0}
        partition = log.create_topic("t", config=config).partition(0)
        for number in range(40):
            key = b"%d" % (number % 6)
            latest[key] = partition.append(b"value %d" % number * 5, key=key)
    source = tmp_path / "live"

    def found(partition: Any) -> dict[bytes | None, int]:
        return {record.key: record.offset for record in partition.records()}

    def run(interruption: Interrupt) -> None:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(source, path)
        with no_handle_left(interruption):
            log = commitlog.open(
                path, mode="shared" if shared else "w", config=LogConfig(cleaner_enable=False)
            )
            partition = open_partition(log)
            with interruption:
                partition.compact()
            check_free(partition)
            assert partition.failure is None
            assert found(partition) == latest
            with commitlog.open(path, mode="r") as reader:
                assert found(open_partition(reader)) == latest
            partition.compact()
            assert partition.append(b"more", key=b"more") == 40
            log.close()
            del log, partition
        assert list(path.glob("t-0/*.cleaned")) == []
        with commitlog.open(path) as log:
            assert found(open_partition(log)) == {**latest, b"more": 40}
            assert open_partition(log).verify().ok

    at_each_moment(f"compact {shared}", run)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("place", ["generation", "of"])
def test_a_swap_that_is_interrupted_as_readers_hear_of_it_is_known_to_this_process_too(
    place: str, shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = commitlog.open(
        tmp_path / "log", mode="shared" if shared else "w", config=LogConfig(cleaner_enable=False)
    )
    config = {**CONFIG, "cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.0}
    partition = log.create_topic("t", config=config).partition(0)
    latest = {key: partition.append(b"value" * 10, key=key) for key in [b"%d" % (n % 6) for n in range(40)]}
    end_change = StatePage.end_change

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    def told(page: StatePage) -> None:
        end_change(page)
        monkeypatch.undo()
        if place == "generation":  # a Python function, as is each of the calls that follow
            raise KeyboardInterrupt
        monkeypatch.setattr(Layout, "_replace", lambda *args, **others: monkeypatch.undo() or interrupted())

    def swapped(*args: Any) -> Any:
        monkeypatch.setattr(StatePage, "end_change", told)
        return swap_in(*args)

    monkeypatch.setattr(compactor, "swap_in", swapped)
    with pytest.raises(KeyboardInterrupt):
        partition.compact()
    assert {record.key: record.offset for record in partition.records()} == latest
    assert partition.failure is None
    assert partition._state.segments.generation == partition._state.page.generation
    log.close()


def interrupting_once(patch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """Interrupt the next call of a function as it starts."""

    def interrupted(*_: Any) -> None:
        patch.undo()
        raise KeyboardInterrupt

    patch.setattr(owner, name, interrupted)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("place", [(Producers, "note"), (SentBatch, "__new__")])
def test_a_producers_batch_that_is_there_when_ctrl_c_comes_is_recognised_when_it_is_sent_again(
    place: tuple[type, str], shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with commitlog.open(tmp_path / "log", mode="shared" if shared else "w") as log:
        partition = log.create_topic("t", config=CONFIG).partition(0)
        for producer_id in (1, 2):
            interrupting_once(monkeypatch, *place)
            with pytest.raises(KeyboardInterrupt):
                partition.append_many([b"once"], producer=(producer_id, 0, 0))
            assert partition.append_many([b"once"], producer=(producer_id, 0, 0)).start == producer_id - 1
            partition.roll()
        assert read(partition)[0] == {0: b"once", 1: b"once"}


@pytest.mark.parametrize("interval", [0, 4096])
def test_records_are_found_by_their_time_after_one_with_a_later_time_was_undone(
    interval: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with commitlog.open(tmp_path / "log") as log:
        partition = log.create_topic("t", config={**QUIET, "index_interval_bytes": interval}).partition(0)
        for timestamp in (10, 20):
            partition.append_many([b"before"], timestamps=[timestamp])
        interrupting_once(monkeypatch, SegmentWriter, "_foresee")
        with pytest.raises(KeyboardInterrupt):
            partition.append_many([b"undone"], timestamps=[1_000])
        assert partition.append_many([b"after"], timestamps=[30]).start == 2
        for _ in range(2):
            assert [partition.offset_for_timestamp(time) for time in (5, 15, 25, 35)] == [0, 1, 2, None]
            partition.roll()


class InterruptedWords:
    """The words of a state page, where Ctrl-C comes before the first one is stored."""

    def __setitem__(self, index: int, value: int) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("several", [False, True])
def test_readers_everywhere_hear_of_an_append_that_is_interrupted_once_this_process_has_it(
    several: bool, shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with commitlog.open(tmp_path / "log", mode="shared" if shared else "w") as log:
        partition = log.create_topic("t", config=CONFIG).partition(0)
        partition.append(b"first")
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(partition._state, "words", InterruptedWords())
            if several:
                partition.append_many([b"second", b"third"])
            else:
                partition.append(b"second")
        assert partition._state.next_offset == partition._state.page.next_offset == 2 + several
        with commitlog.open(tmp_path / "log", mode="r") as reader:
            assert read(open_partition(reader)) == read(partition)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "no room")])
def test_the_segment_of_a_roll_that_is_undone_cannot_come_back_among_what_is_appended_then(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def noted(name: str) -> Callable[[str], None]:
        real = getattr(files, name)
        return lambda path: (steps.append(f"{name} {Path(path).name}"), real(path))[0]

    def fails(*_: Any, **__: Any) -> None:
        raise error

    with commitlog.open(tmp_path / "log") as log:
        partition = log.create_topic("t", config=CONFIG).partition(0)
        partition.append(b"first")
        with monkeypatch.context() as patch, pytest.raises((KeyboardInterrupt, DiskFullError)):
            patch.setattr(files, "remove", noted("remove"))
            patch.setattr(files, "sync_directory", noted("sync_directory"))
            if isinstance(error, OSError):
                patch.setattr(segment_writer, "open_builder", fails)
            else:
                patch.setattr(SegmentWriter, "seal", fails)
            partition.roll()
        assert steps.index("remove 00000000000000000001.log") < steps.index("sync_directory t-0")
        assert partition.append(b"second") == 1


@pytest.mark.parametrize("shared", [False, True])
def test_an_append_that_is_interrupted_twice_ends_the_partition_and_leaves_the_files_sound(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    log = commitlog.open(tmp_path / "log", mode="shared" if shared else "w")
    partition = log.create_topic("t", config=CONFIG).partition(0)
    partition.append(b"first")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(SegmentWriter, "_foresee", interrupted)  # its bytes are in the file then
        patch.setattr(SegmentWriter, "roll_back", interrupted)
        partition.append_many([b"a longer one"])
    check_free(partition)
    assert partition.failure is not None
    with pytest.raises(PartitionFailedError):
        partition.append(b"third")
    if shared:
        with commitlog.open(tmp_path / "log", mode="shared") as other:
            assert open_partition(other).append(b"2") == 1
            assert open_partition(other).verify().ok
    log.close()
    with commitlog.open(tmp_path / "log") as log:
        assert open_partition(log).verify().ok
        found, damaged = read(open_partition(log))
        assert not damaged
        # nobody was told of the interrupted one, so it may be there or not
        assert found in ({0: b"first"}, {0: b"first", 1: b"2" if shared else b"a longer one"})


def test_after_a_truncation_that_is_interrupted_twice_the_next_shared_writer_recovers_the_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    log = commitlog.open(tmp_path / "log", mode="shared")
    partition = log.create_topic("t", config=CONFIG).partition(0)
    append_to(partition, END)
    partition.sync()
    assert partition.segments[-1].size_bytes < partition.segments[1].size_bytes
    cut_at = partition.segments[2].base_offset - 1  # of a segment larger than the active one, most stays
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shortener, "put_in_place", interrupted)  # the segments after it are gone then
        patch.setattr(LogState, "take_up_files", interrupted)
        partition.truncate_from(cut_at)
    assert partition.failure is not None
    with commitlog.open(tmp_path / "log", mode="shared") as other:
        found, damaged = read(open_partition(other))
        assert not damaged
        assert found.keys() >= set(range(cut_at))
        assert open_partition(other).append(b"more") == len(found)
        assert open_partition(other).verify().ok
    log.close()


# --- what a log does with locks between processes


def commit_some(log: CommitLog) -> None:
    log.commit_offsets("g", {TopicPartition("t", 0): 3})


def join_group(log: CommitLog) -> None:
    with log.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.poll(1)
        consumer.commit()


def publish_some(log: CommitLog) -> None:
    with log.stage("t", 0) as writer:
        writer.append(pa.table({"value": [b"staged"]}))
        log.publish("query", 0, [writer.finish()])


def send_some(log: CommitLog) -> None:
    with log.producer(client_id="slow") as producer:
        producer.send("t", b"sent")


CALLS: dict[str, Callable[[CommitLog], object]] = {
    "create a topic": lambda log: log.create_topic("new", 2),
    "delete a topic": lambda log: log.delete_topic("t"),
    "add partitions": lambda log: log.topic("t").add_partitions(3),
    "commit": commit_some,
    "join a group": join_group,
    "publish": publish_some,
    "set a quota": lambda log: log.set_quota("alice", producer_byte_rate=1000),
    "send under a quota": send_some,
}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_no_interrupted_call_of_a_log_leaves_a_lock_held(name: str, shared: bool, tmp_path: Path) -> None:
    """The exception is kept, as a shell keeps it, and then another thread makes the same call."""
    path, problems = tmp_path / "log", []

    def again(log: CommitLog) -> None:
        try:
            for call in (CALLS[name], *CALLS.values()):
                with contextlib.suppress(CommitLogError):  # it was done before
                    call(log)
        except BaseException as problem:
            problems.append(problem)

    def run(interruption: Interrupt) -> None:
        shutil.rmtree(path, ignore_errors=True)
        log = commitlog.open(path, mode="shared" if shared else "w")
        log.create_topic("t")
        log.set_quota("slow", producer_byte_rate=1 << 30)
        for call in (commit_some, publish_some):  # the topics of our own are there
            call(log)
        with interruption:
            CALLS[name](log)
        locks = [one for one in path.rglob("*") if "lock" in one.name and one != path / ".lock"]
        assert len(locks) > 3
        check_files_free([*locks, *path.glob("quotas/*.account")])
        thread = threading.Thread(target=again, args=(log,), daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        assert problems == []
        assert log.health().failed_partitions == ()
        with contextlib.suppress(ClosedError):  # what an interrupted close() left is for a topic that is gone
            log.close()

    at_each_moment(f"{name} {shared}", run)


def test_what_an_interrupted_sync_did_not_reach_is_synced_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[int] = set()
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd: synced.add(os.fstat(fd).st_ino))

    def run(interruption: Interrupt) -> None:
        with commitlog.open(tmp_path / f"log-{interruption.moment}") as log:
            partition = log.create_topic("t", config=CONFIG).partition(0)
            append_to(partition, END)
            synced.clear()
            with interruption:
                partition.sync()
            partition.sync()
            assert partition.durable_offset == END
            needed = [partition.path, *(segment.path for segment in partition.segments)]
            assert {os.stat(path).st_ino for path in needed} <= synced

    at_each_moment("sync", run)


# --- the log itself


def closed(path: Path) -> range:
    commitlog.open(path).close()
    return range(0)


def torn_tail(path: Path) -> range:
    last = segment_files(path)[-1]
    flipped(commitlog.Segment.open(last).size_bytes - 20, 3)(last)  # there are zeros behind it
    return range(END - 1, END)


def no_state_page(path: Path) -> range:
    (path / "t-0" / "state").unlink()
    return range(0)


OPENS: dict[str, tuple[Callable[[Path], range], str]] = {
    "open after a clean shutdown": (closed, "cut"),
    "open after a kill": (lambda path: range(0), "cut"),
    "open that cuts a torn tail": (torn_tail, "cut"),
    "open that salvages a torn tail": (torn_tail, "salvage"),
    "open that salvages a deleted segment": (a_deleted_segment, "salvage"),
    "open without a state page": (no_state_page, "cut"),
}


@pytest.mark.parametrize("name", OPENS)
def test_an_interrupted_open_lets_go_of_everything_and_the_next_one_finds_everything(
    name: str, tmp_path: Path
) -> None:
    (prepare, recovery_mode), path = OPENS[name], tmp_path / "log"
    source = template(tmp_path)

    def run(interruption: Interrupt) -> None:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(source, path)
        lost = prepare(path)
        with no_handle_left(interruption), interruption:
            commitlog.open(path, config=mode(recovery_mode)).close()
        for _ in range(2):
            with commitlog.open(path, config=mode(recovery_mode)) as log:
                partition = open_partition(log)
                assert read(partition) == (
                    {one: value_of(one) for one in range(END) if one not in lost},
                    False,
                )
                assert partition.verify().ok

    at_each_moment(name, run)


def test_an_interrupted_open_of_a_new_log_leaves_none_or_one(tmp_path: Path) -> None:
    def run(interruption: Interrupt) -> None:
        shutil.rmtree(tmp_path / "log", ignore_errors=True)
        with no_handle_left(interruption), interruption:
            commitlog.open(tmp_path / "log").close()
        with commitlog.open(tmp_path / "log") as log:
            assert log.topics() == []
            assert log.create_topic("t").partition(0).append(b"first") == 0

    at_each_moment("new", run)


def test_an_interrupted_close_lets_nobody_write_without_the_lock_and_closing_again_ends_it(
    tmp_path: Path,
) -> None:
    path, source = tmp_path / "log", template(tmp_path)

    def run(interruption: Interrupt) -> None:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(source, path)
        with no_handle_left(interruption):
            log = commitlog.open(path)
            partitions = [open_partition(log), *log.create_topic("u", 2, QUIET).partitions]
            with interruption:
                log.close()
            added = add_unless_closed(partitions[0]) if is_locked(path) else {}
            log.close()
            for partition in partitions:
                with pytest.raises(CommitLogError):
                    partition.append(b"lost")
            del log, partitions, partition
        with commitlog.open(path) as log:
            assert read(open_partition(log)) == (
                {**{one: value_of(one) for one in range(END)}, **added},
                False,
            )
            assert [one.next_offset for one in log.topic("u").partitions] == [0, 0]

    at_each_moment("close", run)


def add_unless_closed(partition: Partition) -> Values:
    try:
        return {partition.append(b"added"): b"added"}
    except CommitLogError:
        return {}


def is_locked(path: Path) -> bool:
    with open(path / ".lock") as file:
        free = files.try_lock(file.fileno())
    return not free
