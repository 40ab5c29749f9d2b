"""A staged file becomes a segment, and something happens: its records are in the log once, or not yet."""

from __future__ import annotations

import errno
import gc
import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import soak
from soak import SEED, SOAK

import commitlog
from commitlog import CommitLog, Partition, PartitionFailedError, files
from commitlog.errors import UnfinishedPublicationError
from commitlog.partitions import adopter
from commitlog.publishing import staging
from commitlog.segment_writer import SegmentWriter

from . import zygote
from .interrupts import Interrupt, open_files
from .publishers import FILES, PLACES, ROWS, log_for_publishing, published_epochs, stage_all
from .windows import crashed_at

STAMPING = "some batches of a staged file have other stamps -> they are not looked at when it is read"
STAMPED = "stamped, not adopted -> the staged file is read as before"
LINKED = "a staged file with a second name that is no segment's -> open() removes that"
INDEXED = "indexes of an adopted segment without it -> open() removes or rebuilds them"
ADOPTED = "an adopted segment of which no page tells -> open() and the next writer count it in"

ADOPTIONS = len(PLACES) * FILES
WINDOWS = [
    *((STAMPING, hit) for hit in range(1, ADOPTIONS * ROWS + 1)),
    *((window, hit) for window in (STAMPED, LINKED, INDEXED, ADOPTED) for hit in range(1, ADOPTIONS + 1)),
]
SOME_WINDOWS = WINDOWS if SOAK else [WINDOWS[number] for number in (0, 4, 19, 24, 26, 31, 36, 37, -1)]
MOMENTS = 500 if SOAK else 25


@pytest.fixture(autouse=True)
def a_record_is_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_TARGET_ROWS", 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def check_published(log: CommitLog, *epochs: int) -> None:
    """Each epoch is there once, and every byte is sound."""
    assert published_epochs(log) == [list(epochs)] * len(PLACES)
    assert log.published("query") == (epochs[-1] if epochs else None)
    for topic, number in PLACES:
        report = log.topic(topic).partition(number).verify()
        assert report.ok, report


def append_others(log: CommitLog) -> None:
    for topic, number in PLACES:
        log.topic(topic).partition(number).append(b"other")


def leftovers(path: Path) -> list[Path]:
    return [*path.glob("*/*.adopted"), *path.glob("staging/*")]


def _full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "no room")


# --- a kill in each window


@pytest.mark.usefixtures("quick_disk")
@pytest.mark.parametrize("before", ["nothing", "records"])
@pytest.mark.parametrize("by", ["open", "shared open", "publish"])
@pytest.mark.parametrize(("window", "hit"), WINDOWS if SOAK else WINDOWS[::3])
def test_kill_in_each_window_of_an_adoption(
    path: Path, tmp_path: Path, window: str, hit: int, by: str, before: str
) -> None:
    """The first file of a partition takes the place of an empty segment, or follows one with records.

    crash: some batches of a staged file have other stamps -> they are not looked at when it is read
    crash: stamped, not adopted -> the staged file is read as before
    crash: a staged file with a second name that is no segment's -> open() removes that
    crash: indexes of an adopted segment without it -> open() removes or rebuilds them
    crash: an adopted segment of which no page tells -> open() and the next writer count it in
    """
    log_for_publishing(path)
    left = tmp_path / "left"
    with commitlog.open(path, mode="shared" if by != "open" else "w") as log:
        if before == "records":
            append_others(log)
        with crashed_at(window, path, left, hit):
            assert log.publish("query", 0, stage_all(log, 0))
        check_published(log, 0)
    with commitlog.open(left, mode="r") as reader:
        assert reader.published("query") is None
    if by == "publish":
        with pytest.MonkeyPatch.context() as patch, commitlog.open(left, mode="shared") as living:
            patch.setattr(commitlog.publishing.publisher.Publisher, "finish_left", lambda self: None)
            append_others(living)
            assert not living.publish("query", 0, stage_all(living, 0))
            check_published(living, 0)
    with commitlog.open(left, mode="shared" if by != "open" else "w") as log:
        check_published(log, 0)
        append_others(log)
        assert not log.publish("query", 0, stage_all(log, 0))
        assert log.publish("query", 1, stage_all(log, 1))
    with commitlog.open(left) as log:
        check_published(log, 0, 1)
    assert leftovers(left) == []


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("window", "hit"), SOME_WINDOWS)
def test_a_publisher_that_is_killed_as_it_adopts_is_put_right_by_the_next(
    path: Path, window: str, hit: int, shared: bool
) -> None:
    log_for_publishing(path, shared=shared)
    child = zygote.start("publishers.die_at", path, window, hit, shared, 0, "adopted")
    assert child.wait() == -signal.SIGKILL
    soak.count("processes killed")
    with commitlog.open(path, mode="shared" if shared else "w") as log:
        check_published(log, 0)
        assert not log.publish("query", 0, stage_all(log, 0))
        assert log.publish("query", 1, stage_all(log, 1))
        check_published(log, 0, 1)
    assert leftovers(path) == []


def test_a_living_writer_finishes_the_adoptions_of_a_killed_one_and_others_append_between(path: Path) -> None:
    log_for_publishing(path, shared=True)
    with commitlog.open(path, mode="shared") as log:
        for number, (window, hit) in enumerate(SOME_WINDOWS):
            child = zygote.start("publishers.die_at", path, window, hit, True, number, "adopted")
            assert child.wait() == -signal.SIGKILL
            soak.count("processes killed")
            append_others(log)
            assert log.publish("another", number, [])
            check_published(log, *range(number + 1))
    with commitlog.open(path) as log:
        check_published(log, *range(len(SOME_WINDOWS)))


@pytest.mark.usefixtures("quick_disk")
@pytest.mark.parametrize("shared", [False, True])
def test_a_file_that_lost_its_name_as_a_segment_is_copied_though_others_appended_to_it(
    path: Path, tmp_path: Path, shared: bool
) -> None:
    """What a power cut leaves if directories are not synced: the staged file, longer than it was."""
    log_for_publishing(path)
    left = tmp_path / "left"
    with commitlog.open(path, mode="shared" if shared else "w") as log:
        with pytest.MonkeyPatch.context() as patch, pytest.raises(UnfinishedPublicationError):
            patch.setattr(Partition, "sync", _full)
            log.publish("query", 0, stage_all(log, 0))
        append_others(log)
        shutil.copytree(path, left)
    for topic, number in PLACES:
        for one in (left / f"{topic}-{number}").glob("000*"):
            one.unlink()
        (left / f"{topic}-{number}" / f"{0:020d}.log").touch()
    sizes = {one.stat().st_size for one in (left / "staging").iterdir()}
    assert len(sizes) == 2, "the last file of each partition was appended to"
    with commitlog.open(left, mode="shared" if shared else "w") as log:
        check_published(log, 0)
    assert leftovers(left) == []


# --- errors


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("place", ["link", "index", "seal", "rename", "stamp"])
@pytest.mark.parametrize("before", ["nothing", "records"])
def test_a_full_disk_at_any_step_of_an_adoption_only_delays(
    path: Path, monkeypatch: pytest.MonkeyPatch, place: str, before: str, shared: bool
) -> None:
    broken: dict[str, tuple[Any, str]] = {
        "link": (files, "link"),
        "index": (files, "map_writable"),
        "seal": (SegmentWriter, "prepare_to_seal"),
        "rename": (files, "replace"),
        "stamp": (adopter, "stamp_batches"),
    }
    log_for_publishing(path, shared=shared)
    with commitlog.open(path, mode="shared" if shared else "w") as log:
        assert log.publish("other", 0, [])
        for topic, number in PLACES if before == "records" else ():
            log.topic(topic).partition(number).append(b"other")
        staged = stage_all(log, 0)
        for _ in range(2):
            with monkeypatch.context() as patch, pytest.raises(UnfinishedPublicationError, match="no room"):
                patch.setattr(*broken[place], _full)
                log.publish("query", 0, staged)
            assert log.health().ok
            assert list(path.glob("*/*.adopted")) == []
            append_others(log)
        assert not log.publish("query", 0, staged), "committed at the first try, finished now"
        check_published(log, 0)
    with commitlog.open(path) as log:
        check_published(log, 0)


@pytest.mark.parametrize("shared", [False, True])
def test_stamps_that_could_not_be_synced_end_the_partition_until_it_is_opened_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    real, syncs = files.sync_data, 0

    def broken(fd: int) -> None:
        nonlocal syncs
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".staged"):
            syncs += 1
            raise OSError(errno.EIO, "broken")
        real(fd)

    log_for_publishing(path, shared=shared)
    with commitlog.open(path, mode="shared" if shared else "w") as log:
        staged = stage_all(log, 0)
        with monkeypatch.context() as patch:
            patch.setattr(files, "sync_data", broken)
            for _ in range(2):
                with pytest.raises(UnfinishedPublicationError, match="broken"):
                    log.publish("query", 0, staged)
        assert syncs == 1, "a sync that failed is never tried again"
        with pytest.raises(PartitionFailedError):
            log.topic("t").partition(0).append(b"other")
        assert log.published("query") is None
    with commitlog.open(path, mode="shared" if shared else "w") as log:
        check_published(log, 0)


# --- Ctrl-C


@pytest.mark.usefixtures("quick_disk")
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("before", ["nothing", "records"])
def test_an_interrupted_adoption_is_done_or_not_and_the_partitions_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool, before: str
) -> None:
    """In a shared log another process goes on at once, though the exception is kept, as in a shell."""
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)

    def run(interruption: Interrupt) -> None:
        path, opened = tmp_path / f"log-{interruption.moment}", open_files()
        log_for_publishing(path, shared=shared)
        log = commitlog.open(path, mode="shared" if shared else "w")
        other = commitlog.open(path, mode="shared") if shared else None
        if before == "records":
            append_others(log)
        assert log.publish("first", 0, [])
        staged = stage_all(log, 0)
        with interruption:
            log.publish("query", 0, staged)
        assert log.health().failed_partitions == ()
        if other is not None:
            append_others(other)
            assert other.publish("query", 0, staged) is False or log.published("query") == 0
            check_published(other, 0)
            other.close()
        else:
            log.publish("query", 0, staged)
            check_published(log, 0)
        log.close()
        del log, other
        interruption.error = None
        gc.collect()
        assert open_files() <= opened + interruption.fresh, "a handle is left open"
        for _ in range(2):
            with commitlog.open(path, mode="shared" if shared else "w") as log:
                if log.published("query") is None:  # it was interrupted before the commit
                    assert log.publish("query", 0, staged)
                check_published(log, 0)
        shutil.rmtree(path)

    run(counting := Interrupt(1 << 40))
    chance, count = random.Random(f"{SEED} {shared} {before}"), counting.passed
    for moment in sorted(chance.sample(range(1, count + 1), min(count, MOMENTS))):
        interruption = Interrupt(moment)
        try:
            run(interruption)
        except BaseException as problem:
            problem.add_note(f"interrupted at moment {moment} of {count}, {interruption.place}")
            raise
        soak.count("operations interrupted")
