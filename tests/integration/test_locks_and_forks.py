"""One process writes. A second one is told who has the log; a forked child does not write for its parent."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

import commitlog
from commitlog import CommitLog, LogLockedError

from . import children

FORKS = str(Path(__file__).with_name("forks.py"))


def test_a_second_writer_in_the_same_process_is_refused(log: CommitLog, log_path: Path) -> None:
    with pytest.raises(LogLockedError, match=rf"{log_path} is open for writing in process {os.getpid()}\b"):
        commitlog.open(log_path)
    log.create_topic("t").partition(0).append(b"the first one goes on")


def test_a_second_writer_in_another_process_is_told_who_has_the_log(log: CommitLog, log_path: Path) -> None:
    assert f"process {os.getpid()} " in children.run("try_to_write", log_path)
    log.close()
    assert children.run("try_to_write", log_path) == "opened"


def test_a_refused_writer_leaves_the_log_as_it_is(log: CommitLog, log_path: Path) -> None:
    partition = log.create_topic("t", config={"flush_ms": -1}).partition(0)
    partition.append(b"value")
    before = {one: one.read_bytes() for one in log_path.rglob("*") if one.is_file()}
    with pytest.raises(LogLockedError):
        commitlog.open(log_path)
    assert {one: one.read_bytes() for one in log_path.rglob("*") if one.is_file()} == before


def test_the_lock_of_a_killed_writer_is_free(log_path: Path) -> None:
    writer = children.start("hold_the_lock", log_path)
    children.until_ready(writer)
    with pytest.raises(LogLockedError, match=f"process {writer.pid} "):
        commitlog.open(log_path)
    writer.kill()
    writer.communicate()
    commitlog.open(log_path).close()


def test_many_readers_do_not_keep_a_writer_out(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        log.create_topic("t").partition(0).append(b"value")
    readers = [commitlog.open(log_path, mode="r") for _ in range(20)]
    for _ in range(3):
        with commitlog.open(log_path) as log:
            log.topic("t").append(b"more")
            assert all(one.topic("t").partition(0).next_offset > 1 for one in readers)
    for one in readers:
        one.close()


@pytest.mark.parametrize(
    "program",
    [
        "writes_are_refused",
        "a_child_leaves_the_mapped_tail_alone",
        "reads_are_right_or_refused",
        "the_parent_keeps_the_lock",
        "forks_under_load",
        "readers_fork_too",
        "clients_with_quotas_fork_too",
        "a_child_opens_for_itself",
        "consumers_stay_with_the_parent",
        "producers_stay_with_the_parent",
    ],
)
def test_a_program_that_forks(log_path: Path, program: str) -> None:
    log_path.mkdir()
    assert children.run(program, log_path / "log", script=FORKS) == "done"


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_the_lock_is_free_when_the_parent_is_done_though_its_child_lives_on(log_path: Path, how: str) -> None:
    parent = children.start("the_lock_goes_with_the_parent", log_path, how, script=FORKS)
    assert parent.stdout is not None
    line = parent.stdout.readline()
    assert line, parent.communicate()[1]
    orphan = json.loads(line)
    try:
        if how == "killed":
            parent.wait(60)
        os.kill(orphan, 0)  # it lives
        with commitlog.open(log_path) as log:
            assert [one.value for one in log.topic("t").partition(0).records()] == [b"value"]
    finally:
        os.kill(orphan, signal.SIGKILL)
        parent.kill()
        parent.communicate()
