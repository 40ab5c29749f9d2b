"""Symbolic links inside a log: they would lead out of it, so they are refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from helpers import tree

import commitlog
from commitlog import CommitLogError, CorruptionError, files

INSIDE = [
    "commitlog.json",
    "topics",
    "topics/t.json",
    "topics/new.tmp",
    "t-0",
    "t-0/00000000000000000000.log",
    "t-0/00000000000000000000.index",
    "t-0/00000000000000000099.log",
    "t-0/state",
    "lock",
    "groups",
    "groups/made-up",
    "new.tmp",
    "clean-shutdown",
    "abc.deleted",
]


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A log with one topic, and a group that has committed."""
    with commitlog.open(tmp_path / "data") as log:
        log.create_topic("t").append(b"a record")
        with log.consumer(group_id="g", enable_auto_commit=False) as consumer:
            consumer.assign([("t", 0)])
            consumer.commit({("t", 0): 1})
    return tmp_path / "data"


def put_link(path: Path, outside: Path) -> None:
    """Move what is at a path elsewhere, and leave a link; where nothing is, link to somebody's file."""
    if path.exists():
        path.rename(outside)
    else:
        outside.write_bytes(b"somebody's")
    path.symlink_to(outside)


def found_in(outside: Path) -> object:
    return tree(outside) if outside.is_dir() else outside.read_bytes()


@pytest.mark.parametrize("mode", ["r", "w", "shared"])
@pytest.mark.parametrize("name", INSIDE)
def test_a_link_inside_a_log_is_refused_and_what_it_leads_to_stays_as_it_is(
    closed: Path, tmp_path: Path, name: str, mode: Any
) -> None:
    outside = tmp_path / "outside"
    put_link(closed / name, outside)
    before = found_in(outside), tree(closed)
    with pytest.raises(CorruptionError, match="a symbolic link") as refused:  # noqa: SIM117
        with commitlog.open(closed, mode=mode) as log:
            log.topic("t")
    assert refused.value.path == str(closed / name)
    if mode == "r":
        assert (found_in(outside), tree(closed)) == before
    else:
        assert found_in(outside) == before[0]


def test_the_directory_of_a_log_may_be_reached_through_a_link(closed: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(closed)
    with commitlog.open(tmp_path / "link") as log:
        log.topic("t").append(b"another")
        log.create_topic("u")
        log.delete_topic("u")
    with commitlog.open(closed, mode="r") as log:
        assert log.topic("t").partition(0).next_offset == 2


def test_a_partition_that_became_a_link_is_not_made_a_topic(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    with commitlog.open(tmp_path / "data") as log:
        (tmp_path / "data" / "t-0").symlink_to(outside)
        with pytest.raises(CommitLogError):
            log.create_topic("t")
        assert log.topics() == []
    assert os.listdir(outside) == []


def test_deleting_a_topic_removes_nothing_behind_a_link(closed: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"precious")
    with commitlog.open(closed) as log:
        (closed / "t-0" / "link").symlink_to(outside)
        log.delete_topic("t")
    assert (outside / "precious").read_bytes() == b"precious"
    with commitlog.open(closed) as log:
        log.create_topic("t")
        (closed / "t-0").rename(closed / "elsewhere")
        (closed / "t-0").symlink_to(outside)
        log.delete_topic("t")
    assert (outside / "precious").read_bytes() == b"precious"


def test_files_and_folders_are_made_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with commitlog.open(tmp_path / "data") as log:
            log.create_topic("t").append(b"private")
    finally:
        os.umask(before)
    assert [path for path in (tmp_path / "data").rglob("*") if path.stat().st_mode & 0o077] == []


def test_files_are_neither_written_nor_mapped_through_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"precious")
    link.symlink_to(target)
    for call in (
        lambda: files.write_whole(str(tmp_path / "new"), b"x", str(link)),
        lambda: files.write_unsynced(str(link), b"x"),
        lambda: files.map_writable(str(link), 4096),
        lambda: files.map_file(str(link)),
        lambda: files.open_same(str(link), None),
    ):
        with pytest.raises(OSError, match="symbolic link"):
            call()
    assert target.read_bytes() == b"precious"
