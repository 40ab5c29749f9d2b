"""A publisher dies, the power goes, the disk is full: an epoch is published whole and once, or not at all."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from helpers import full_after, stage
from soak import SEED, SOAK, count

import commitlog
from commitlog import CommitLog, DiskFullError
from commitlog.batches import staged
from commitlog.errors import UnfinishedPublicationError
from commitlog.partitions import adopter
from commitlog.publishing import staging
from commitlog.publishing.publisher import Publisher
from commitlog.publishing.receiver import Receiver

from . import zygote
from .disk import write_image
from .power import Moment, moments, release_lock
from .publishers import (
    FILES,
    LEAST_PARTS,
    PLACES,
    ROWS,
    log_for_publishing,
    published_epochs,
    stage_all,
    value_of,
)
from .windows import crashed_at

WAYS = ["copied", "adopted"]
UNREPORTED = "a staged file that nobody was told of -> remove_leftovers() after a day"
COMMITTED = "committed, nothing appended -> the next publish() or open() appends it"
PARTLY = "committed, part of it appended -> the next publish() or open() appends the rest"
APPENDED = "all appended, still listed -> the next publish() or open() finds nothing missing"
RECEIVED = "a received file that nobody was told of -> the next publish() of its epoch removes it"
PUBLISHED = "published, staged files still there -> remove_leftovers() after a day"

VARIANTS = 8 if SOAK else 3
SAMPLE = 200 if SOAK else 40
STEPS = len(PLACES) * FILES * ROWS  # appends of one publication, if its files are copied
ADOPTIONS = len(PLACES) * FILES  # and otherwise
WINDOWS = [(COMMITTED, 1), *((PARTLY, hit) for hit in range(1, STEPS + 1)), (APPENDED, 1), (PUBLISHED, 1)]
SOME_WINDOWS = WINDOWS if SOAK else [WINDOWS[number] for number in (0, 2, 5, 10, STEPS, -2, -1)]


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are copied, batch by batch, unless a test says otherwise."""
    monkeypatch.setattr(staging, "_TARGET_ROWS", 1)
    monkeypatch.setattr(staged, "_CHUNK_BATCHES", 1)
    monkeypatch.setattr(adopter, "_LEAST_PART", LEAST_PARTS["copied"])


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, small_steps: None, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(adopter, "_LEAST_PART", LEAST_PARTS[request.param])
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def staged_files(path: Path) -> list[str]:
    return sorted(os.listdir(path / "staging"))


def check_published(log: CommitLog, *epochs: int) -> None:
    assert published_epochs(log) == [list(epochs)] * len(PLACES)
    assert log.published("query") == (epochs[-1] if epochs else None)


# --- a kill in each window


@pytest.mark.usefixtures("quick_disk")
@pytest.mark.parametrize("by", ["open", "shared open", "publish"])
@pytest.mark.parametrize(("window", "hit"), WINDOWS)
def test_kill_in_each_window_of_a_publication(
    path: Path, tmp_path: Path, window: str, hit: int, by: str
) -> None:
    """After the commit point all of it is there, once.

    crash: committed, nothing appended -> the next publish() or open() appends it
    crash: committed, part of it appended -> the next publish() or open() appends the rest
    crash: all appended, still listed -> the next publish() or open() finds nothing missing
    crash: published, staged files still there -> remove_leftovers() after a day
    """
    log_for_publishing(path)
    left = tmp_path / "left"
    with commitlog.open(path, mode="shared" if by != "open" else "w") as log:
        assert log.publish("query", 0, stage_all(log, 0))
        with crashed_at(window, path, left, hit):
            assert log.publish("query", 1, stage_all(log, 1))
    assert len(staged_files(left)) == len(PLACES) * FILES
    with commitlog.open(left, mode="r") as reader:
        assert reader.published("query") == (1 if window == PUBLISHED else 0)
    if by == "publish":
        with (
            _nothing_finished_at_open(),
            commitlog.open(left, mode="shared") as living,
        ):
            assert living.published("query") == (1 if window == PUBLISHED else 0)
            assert not living.publish("query", 1, stage_all(living, 1))
            check_published(living, 0, 1)
    with commitlog.open(left, mode="shared" if by != "open" else "w") as log:
        check_published(log, 0, 1)
        assert not log.publish("query", 1, stage_all(log, 1))
        assert log.publish("query", 2, stage_all(log, 2))
    with commitlog.open(left) as log:
        check_published(log, 0, 1, 2)
    if window != PUBLISHED:
        assert staged_files(left) == []
        return
    for name in staged_files(left):
        os.utime(left / "staging" / name, (0, 0))
    commitlog.open(left).close()
    assert staged_files(left) == []


@contextmanager
def _nothing_finished_at_open() -> Iterator[None]:
    """As it is for one that had the log open all the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Publisher, "finish_left", lambda self: None)
        yield


@pytest.mark.usefixtures("quick_disk")
def test_kill_before_the_commit_point_publishes_nothing(path: Path, tmp_path: Path) -> None:
    """crash: a staged file that nobody was told of -> remove_leftovers() after a day"""
    log_for_publishing(path)
    left = tmp_path / "left"
    with commitlog.open(path) as log, crashed_at(UNREPORTED, path, left, hit=3):
        stage_all(log, 0)
    with commitlog.open(left) as log:
        check_published(log)
        assert len(staged_files(left)) == 3
        assert log.publish("query", 0, stage_all(log, 0))
    with commitlog.open(left) as log:
        check_published(log, 0)
    for name in staged_files(left):
        os.utime(left / "staging" / name, (0, 0))
    commitlog.open(left).close()
    assert staged_files(left) == []


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("window", "hit"), SOME_WINDOWS)
def test_a_publisher_that_is_killed_in_a_window_is_put_right_by_the_next(
    path: Path, window: str, hit: int, shared: bool
) -> None:
    log_for_publishing(path, shared=shared)
    child = zygote.start("publishers.die_at", path, window, hit, shared, 1, "copied")
    assert child.wait() == -signal.SIGKILL
    count("processes killed")
    with commitlog.open(path, mode="shared" if shared else "w") as log:
        check_published(log, 1)
        assert not log.publish("query", 1, stage_all(log, 1))
        assert log.publish("query", 2, stage_all(log, 2))
        check_published(log, 1, 2)


def test_a_living_writer_finishes_what_a_killed_publisher_left_and_others_appended_between(
    path: Path,
) -> None:
    log_for_publishing(path, shared=True)
    with commitlog.open(path, mode="shared") as log:
        for number, (window, hit) in enumerate(SOME_WINDOWS):
            child = zygote.start("publishers.die_at", path, window, hit, True, number, "copied")
            assert child.wait() == -signal.SIGKILL
            count("processes killed")
            for topic, partition in PLACES:
                log.topic(topic).partition(partition).append(b"other %d" % number)
            assert log.publish("another", number, [])
            check_published(log, *range(number + 1))


# --- several processes at once


def test_of_several_processes_that_publish_an_epoch_one_wins_while_others_append(
    path: Path, way: str
) -> None:
    log_for_publishing(path, shared=True)
    last = 60 if SOAK else 4
    appender = zygote.start("publishers.append_for_ever", path)
    assert appender.stdout.readline() == "ready\n"
    children = [zygote.start("publishers.publish_for_ever", path, name, last, way) for name in ("one", "two")]
    won = [child.stdout.read().split() for child in children]
    appender.kill()
    appender.wait()
    assert [child.wait() for child in children] == [0, 0]
    assert sorted(map(int, won[0] + won[1])) == list(range(last + 1)), "each epoch is won once"
    with commitlog.open(path) as log:
        check_published(log, *range(last + 1))
        assert all(log.topic(topic).partition(number).verify().ok for topic, number in PLACES)


@pytest.mark.parametrize("number", range(25 if SOAK else 1))
def test_publishers_killed_at_random_publish_each_epoch_once(path: Path, way: str, number: int) -> None:
    log_for_publishing(path, shared=True)
    chance = random.Random(f"{SEED} {way} {number}")
    for _ in range(20 if SOAK else 4):
        child = zygote.start("publishers.publish_for_ever", path, "any", 1_000_000, way)
        for _ in range(chance.randint(1, 8)):
            child.stdout.readline()
        child.kill()
        child.wait()
        count("processes killed")
    with commitlog.open(path, mode="shared" if chance.random() < 0.5 else "w") as log:
        done = log.published("query")
        assert done is not None
        check_published(log, *range(done + 1))


# --- full disks


@pytest.mark.parametrize("hit", range(0, STEPS, 1 if SOAK else 4))
def test_a_disk_that_isfull_after_the_commit_point_only_delays(path: Path, hit: int) -> None:
    log_for_publishing(path)
    with commitlog.open(path) as log:
        files = stage_all(log, 0)
        with pytest.raises(UnfinishedPublicationError) as caught, full_after(hit):
            log.publish("query", 0, files)
        assert isinstance(caught.value.__cause__, DiskFullError)
        assert log.health().ok
        with pytest.raises(UnfinishedPublicationError), full_after(0):
            log.publish("query", 0, files)
        assert not log.publish("query", 0, files), "committed at the first try, finished now"
        check_published(log, 0)


# --- the power goes


@dataclass(frozen=True)
class Promise:
    """`must` are the epochs that publish() has committed, `may` those it was called for."""

    must: tuple[int, ...] = ()
    may: tuple[int, ...] = ()


class Writer:
    """Publishes what a story tells, and keeps the promise that goes with it."""

    def __init__(self, path: Path, shared: bool) -> None:
        self._path = path
        self._shared = shared
        self.promise = Promise()
        self.log: CommitLog

    def open(self) -> None:
        self.log = commitlog.open(self._path, mode="shared" if self._shared else "w")

    def kill(self) -> None:
        """Forget everything in memory; the files stay as they are."""
        release_lock(self._path)

    def publish(self, epoch: int, fail_after: int | None = None) -> None:
        files = stage_all(self.log, epoch)
        self.promise = replace(self.promise, may=(*self.promise.may, epoch))
        if fail_after is None:
            self.log.publish("query", epoch, files)
        else:
            with pytest.raises(UnfinishedPublicationError), full_after(self._steps(fail_after)):
                self.log.publish("query", epoch, files)
        self.promise = replace(self.promise, must=self.promise.may)

    def _steps(self, appended: int) -> int:
        """How many steps of a publication come to so many batches."""
        return appended if LEAST_PARTS["copied"] == adopter._LEAST_PART else appended * ADOPTIONS // STEPS

    def append(self) -> None:
        for topic, number in PLACES:
            self.log.topic(topic).partition(number).append(b"other")

    def roll(self) -> None:
        for topic, number in PLACES:
            self.log.topic(topic).partition(number).roll()

    def trim(self) -> None:
        """Trim everything from the first two partitions."""
        for topic, number in PLACES[:2]:
            partition = self.log.topic(topic).partition(number)
            partition.append(b"other", sync=True)
            partition.trim_before(partition.next_offset)

    def now(self) -> Promise:
        return self.promise


Story = Callable[[Writer], None]


def one_after_another(writer: Writer) -> None:
    writer.publish(0)
    writer.append()
    writer.publish(1)


def after_a_failure(writer: Writer) -> None:
    writer.publish(0)
    writer.publish(1, fail_after=7)
    writer.append()
    writer.publish(2)


def after_a_kill(writer: Writer) -> None:
    writer.publish(0, fail_after=10)
    writer.kill()
    writer.open()
    writer.append()
    writer.publish(1)


def trimmed_before_the_end(writer: Writer) -> None:
    writer.publish(0, fail_after=14)
    writer.trim()
    for _ in range(3):
        writer.append()
        writer.roll()
    writer.kill()
    writer.open()


def _moments(folder: Path, story: Story, shared: bool) -> list[Moment]:
    root = folder / "root"
    root.mkdir()
    log_for_publishing(root / "log", shared=shared)
    writer = Writer(root / "log", shared)

    def told(_: object) -> None:
        writer.open()
        story(writer)

    found = moments(root, told, writer, random.Random(SEED), VARIANTS)  # type: ignore[arg-type]
    return found if len(found) <= SAMPLE else random.Random(SEED).sample(found, SAMPLE)


def _check_each(found: list[Moment], folder: Path, check: Callable[[Path, Promise], None]) -> None:
    for number, moment in enumerate(found):
        left = folder / f"left-{number}"
        write_image(moment.image, left)
        try:
            check(left / "log", moment.promise)  # type: ignore[arg-type]
        except BaseException as problem:
            problem.add_note(f"the power went {moment.label}; the log is in {left}\n{moment.promise}")
            raise
        count("power-cut images opened")
        shutil.rmtree(left)


@pytest.mark.usefixtures("quick_disk", "way")
@pytest.mark.parametrize("shared", [False, True], ids=["exclusive", "shared"])
@pytest.mark.parametrize("story", [one_after_another, after_a_failure, after_a_kill])
def test_a_power_cut_leaves_all_of_an_epoch_or_nothing(tmp_path: Path, story: Story, shared: bool) -> None:
    def check(path: Path, promise: Promise) -> None:
        with commitlog.open(path, mode="shared" if shared else "w") as log:
            epochs = published_epochs(log)
            assert epochs == epochs[:1] * len(PLACES), "the same in all partitions"
            assert promise.must <= tuple(epochs[0]) <= promise.may
            assert log.published("query") == (epochs[0][-1] if epochs[0] else None)
            for epoch in promise.may:
                assert log.publish("query", epoch, stage_all(log, epoch)) == (epoch not in epochs[0])
        with commitlog.open(path) as log:
            check_published(log, *promise.may)

    _check_each(_moments(tmp_path, story, shared), tmp_path, check)


@pytest.mark.usefixtures("quick_disk", "way")
@pytest.mark.parametrize("shared", [False, True], ids=["exclusive", "shared"])
def test_a_power_cut_does_not_bring_back_what_was_trimmed_of_a_publication(
    tmp_path: Path, shared: bool
) -> None:
    """Whoever finishes it appends nothing that was there before, though nothing of it is there any more."""

    def check(path: Path, promise: Promise) -> None:
        with commitlog.open(path, mode="shared" if shared else "w") as log:
            for topic, number in PLACES[:2]:
                records = log.topic(topic).partition(number).records()
                ours = [(one.offset, one.value) for one in records if one.value != b"other"]
                assert ours in (whole, []), f"{topic}-{number}"
            assert log.published("query") in ((0,) if promise.must else (0, None))

    values = [value_of(0, file, row) for file in range(FILES) for row in range(ROWS)]
    whole = list(enumerate(values))
    _check_each(_moments(tmp_path, trimmed_before_the_end, shared), tmp_path, check)


@pytest.mark.usefixtures("quick_disk")
def test_kill_of_a_node_that_has_just_received_a_file(path: Path, tmp_path: Path) -> None:
    """crash: a received file that nobody was told of -> the next publish() of its epoch removes it"""
    left, claim = tmp_path / "left", ("query", 0)
    with commitlog.open(path) as log:
        log.create_topic("t")
        staged = stage(log, "t", 0, [b"x"] * 10, claim=claim)
        raw = Path(log.path, staged.path).read_bytes()
        log.discard(*claim)
        receiver = Receiver(log.path)  # as a node receives the file from another machine
        receiver.receive(staged, 0, raw)
        with crashed_at(RECEIVED, path, left):
            receiver.finish(staged, lambda place: None)
    with commitlog.open(left) as log:
        assert len(staged_files(left)) == 1
        assert log.publish(*claim, [stage(log, "t", 0, [b"x"] * 10, claim=claim)])
        assert log.topic("t")[0].next_offset == 10
    assert staged_files(left) == []
