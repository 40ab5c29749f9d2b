from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import contents, fill, names, tree

import commitlog
from commitlog import CommitLog, CorruptionError, LogConfig, TopicExistsError, TopicPartition, files
from commitlog.errors import InvalidTopicError, NotALogError, UnsupportedFormatError

GOOD_NAMES = [
    "a",
    "A-b_c.9",
    "0",
    "...",
    "-",
    "_",
    "x" * 249,
    "a.tmp",
    "new",
    "new.tmp",
    "a.json",
    "a.deleted",
    "topics",
    "state",
]
BAD_NAMES: list[Any] = [
    "",
    ".",
    "..",
    "a/b",
    "a b",
    "ä",
    "x" * 250,
    "a\n",
    "a\0",
    "../up",
    "/etc",
    None,
    5,
    b"bytes",
    "a:b",
]


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_every_name_of_kafkas_alphabet_can_name_a_topic(log_path: Path, name: str) -> None:
    with commitlog.open(log_path) as log:
        log.create_topic(name, partitions=2).append(b"x", partition=1)
        assert log.topics() == [name]
    with commitlog.open(log_path) as log:
        assert log.topics() == [name]
        assert contents(log.topic(name).partition(1))[0].value == b"x"
        log.delete_topic(name)
        assert log.topics() == []
    with commitlog.open(log_path) as log:
        assert log.topics() == []


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_a_name_outside_kafkas_alphabet_is_refused_and_leaves_nothing_behind(
    log: CommitLog, name: Any
) -> None:
    before = tree(log.path)
    for call in (log.create_topic, log.topic, log.delete_topic):
        with pytest.raises(InvalidTopicError) as caught:
            call(name)
        assert repr(name) in str(caught.value)
    assert tree(log.path) == before
    assert names(log.path) == names(log.path)


def test_names_that_look_alike_do_not_share_partitions(log: CommitLog) -> None:
    for name in ("a", "a-0", "a-1", "a-0-0"):
        log.create_topic(name, partitions=2).append(name.encode(), partition=0)
    for name in ("a", "a-0", "a-1", "a-0-0"):
        assert [record.value for record in log.topic(name).partition(0).records()] == [name.encode()]


def test_a_topic_that_exists_is_not_created_again(log: CommitLog) -> None:
    log.create_topic("t").append(b"x")
    before = tree(log.path)
    with pytest.raises(TopicExistsError, match="'t'"):
        log.create_topic("t", partitions=5)
    assert tree(log.path) == before
    assert len(log.topic("t").partitions) == 1


# --- directories that are not ours


def test_a_new_directory_and_its_parents_are_created(tmp_path: Path) -> None:
    with commitlog.open(tmp_path / "a" / "b" / "c") as log:
        log.create_topic("t").append(b"x")
    with commitlog.open(tmp_path / "a" / "b" / "c") as log:
        assert log.topic("t").partition(0).next_offset == 1


def test_an_empty_directory_becomes_a_log(tmp_path: Path) -> None:
    with commitlog.open(tmp_path) as log:
        assert log.topics() == []


@pytest.mark.parametrize("mode", ["r", "w"])
def test_a_directory_that_holds_something_else_is_refused_and_not_touched(tmp_path: Path, mode: Any) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"cheese")
    with pytest.raises(NotALogError, match=str(tmp_path)):
        commitlog.open(tmp_path, mode=mode)
    assert names(tmp_path) == ["photo.jpg"]


@pytest.mark.parametrize("mode", ["r", "w"])
def test_a_file_is_refused_and_not_touched(tmp_path: Path, mode: Any) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"cheese")
    with pytest.raises(NotALogError, match=str(path)):
        commitlog.open(path, mode=mode)
    assert path.read_bytes() == b"cheese"


def test_reading_a_directory_that_does_not_exist_is_refused_and_does_not_create_it(tmp_path: Path) -> None:
    with pytest.raises(NotALogError, match="does not exist"):
        commitlog.open(tmp_path / "missing", mode="r")
    assert names(tmp_path) == []


def test_reading_an_empty_directory_is_refused_and_leaves_it_empty(tmp_path: Path) -> None:
    with pytest.raises(NotALogError):
        commitlog.open(tmp_path, mode="r")
    assert names(tmp_path) == []


@pytest.mark.parametrize("mode", ["r", "w"])
@pytest.mark.parametrize("version", [2, 99, 0, "1"])
def test_another_format_version_is_refused_and_nothing_is_touched(
    log_path: Path, mode: Any, version: Any
) -> None:
    with commitlog.open(log_path) as log:
        fill(log.create_topic("t").partition(0), 3)
    (log_path / "commitlog.json").write_text(json.dumps({"format": version}))
    before = {path: path.read_bytes() for path in sorted(log_path.rglob("*")) if path.is_file()}
    with pytest.raises(UnsupportedFormatError) as caught:
        commitlog.open(log_path, mode=mode)
    assert str(version) in str(caught.value)
    assert {path: path.read_bytes() for path in sorted(log_path.rglob("*")) if path.is_file()} == before


@pytest.mark.parametrize("junk", ["", "{", "[]", "{}", "null", "\xff"])
@pytest.mark.parametrize("mode", ["r", "w"])
def test_a_damaged_description_of_the_log_is_damage(log_path: Path, junk: str, mode: Any) -> None:
    with commitlog.open(log_path):
        pass
    (log_path / "commitlog.json").write_bytes(junk.encode("latin-1"))
    with pytest.raises(CorruptionError, match=r"commitlog\.json"):
        commitlog.open(log_path, mode=mode)


@pytest.mark.parametrize(
    "junk",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"partitions": 1}',
        '{"partitions": "x", "config": {}}',
        '{"partitions": 1, "config": {"no_such": 1}}',
    ],
)
def test_a_damaged_description_of_a_topic_is_damage_and_the_lock_is_let_go(log_path: Path, junk: str) -> None:
    with commitlog.open(log_path) as log:
        log.create_topic("t")
        log.create_topic("u")
    (log_path / "topics" / "u.json").write_text(junk)
    for _ in range(2):
        with pytest.raises((CorruptionError, commitlog.ConfigError)) as caught:
            commitlog.open(log_path)
        assert not isinstance(caught.value, commitlog.LogLockedError)


# --- crashes between two steps


def test_a_crash_while_the_log_was_created_is_no_obstacle(log_path: Path) -> None:
    (log_path / "topics").mkdir(parents=True)
    (log_path / ".lock").touch()
    (log_path / "new.tmp").touch()
    with commitlog.open(log_path) as log:
        log.create_topic("t").append(b"x")


def test_a_crash_while_a_topic_was_created_is_no_obstacle(log_path: Path) -> None:
    with commitlog.open(log_path):
        pass
    (log_path / "t-0").mkdir()
    (log_path / "topics" / "new.tmp").write_bytes(b"{")
    with commitlog.open(log_path) as log:
        assert log.topics() == []
        log.create_topic("t", partitions=2).append(b"x", partition=0)
        assert names(log_path / "topics") == ["t.json"]


def test_records_without_a_topic_are_not_taken_over_by_a_new_topic(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        log.create_topic("t").append(b"precious")
    (log_path / "topics" / "t.json").unlink()
    with commitlog.open(log_path) as log, pytest.raises(TopicExistsError, match="t-0"):
        log.create_topic("t")
    assert names(log_path / "t-0", ".log")


def test_a_deletion_that_a_crash_interrupted_is_finished_at_open(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        log.create_topic("t", partitions=3).append(b"x", partition=1)
        log.create_topic("kept").append(b"y")
    os.rename(log_path / "topics" / "t.json", log_path / "topics" / "t.gone")
    os.rename(log_path / "t-0", log_path / "0123456789abcdef.deleted")
    with commitlog.open(log_path, mode="r") as log:
        assert log.topics() == ["kept"]
    with commitlog.open(log_path) as log:
        assert log.topics() == ["kept"]
        assert [name for name in names(log_path) if name.startswith("t-") or name.endswith(".deleted")] == []
        assert log.create_topic("t").partition(0).next_offset == 0


def test_a_deleted_topic_takes_its_files_with_it(log: CommitLog) -> None:
    before = tree(log.path)
    fill(log.create_topic("t", partitions=2, config={"segment_bytes": 1_000}).partition(0), 30)
    log.delete_topic("t")
    assert tree(log.path) == before
    assert log.create_topic("t").partition(0).next_offset == 0


def limited(program: str, log_path: Path, most: int = 256) -> str:
    """Run a program that may open only a few files, with the path of a log as its argument."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({most}, {most}))\n"
    command = [sys.executable, "-c", limit + "import sys, commitlog\n" + program, str(log_path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_topic_with_more_partitions_than_files_may_be_open_is_refused_and_leaves_nothing_behind(
    log_path: Path,
) -> None:
    """Of a shared log: partitions that one process has alone let their files go while they are idle."""
    program = """
with commitlog.open(sys.argv[1], mode="shared") as log:
    log.create_topic("small").append(b"x")
    small = log.topic("small")
    for make in (lambda: log.create_topic("large", partitions=60), lambda: small.add_partitions(60)):
        try:
            make()
        except commitlog.errors.TooManyOpenFilesError as error:
            print(error)
    print(log.topics(), log.topic("small").append(b"y"), len(log.topic("small").partitions))
"""
    before, after, end = limited(program, log_path).splitlines()
    assert before.startswith("large: 60 more partitions need 512 file descriptors, and ")
    assert after.startswith("small: 59 more partitions need 504 file descriptors, and ")
    assert end == "['small'] (0, 1) 1"
    assert sorted(name for name in os.listdir(log_path) if name[0] != ".") == [
        "commitlog.json", "small-0", "topics"
    ]  # fmt: skip


def test_a_log_with_more_partitions_than_files_may_be_open_is_an_error_that_says_so(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        log.create_topic("t", partitions=80)
    program = """
try:
    commitlog.open(sys.argv[1], mode="shared")
except commitlog.errors.TooManyOpenFilesError as error:
    print(error)
"""
    assert "Too many open files; raise the limit of open files" in limited(program, log_path)


def test_a_topic_that_cannot_be_stored_leaves_no_directories(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str, *_: object) -> None:
        raise OSError(errno.EIO, "Input/output error", path)

    before = tree(log.path)
    with monkeypatch.context() as broken:
        broken.setattr(files, "write_whole", fail)
        with pytest.raises(OSError, match="Input/output error"):
            log.create_topic("t", partitions=3)
    assert tree(log.path) == before
    assert [name for name in os.listdir(log.path) if name.startswith("t-")] == []
    log.create_topic("t", partitions=3).append(b"x")


# --- descriptions that do not match what is there


def with_partitions(log_path: Path, count: object) -> Path:
    """Write another number of partitions into the description of topic t; returns its path."""
    path = log_path / "topics" / "t.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "partitions": count}))
    return path


@pytest.mark.parametrize("mode", ["r", "w"])
@pytest.mark.parametrize("count", [10**9, 10_000, 0, -1, True, "2", 2.0, None])
def test_a_number_of_partitions_that_no_topic_has_is_damage(log_path: Path, count: object, mode: Any) -> None:
    with commitlog.open(log_path) as log:
        log.create_topic("t", partitions=2)
    path = with_partitions(log_path, count)
    with pytest.raises(CorruptionError) as caught, commitlog.open(log_path, mode=mode) as log:
        log.topic("t")
    assert caught.value.path == str(path)


@pytest.mark.parametrize("mode", ["r", "w", "shared"])
@pytest.mark.parametrize("how", ["more in the description", "a directory is lost"])
def test_a_partition_without_its_directory_is_damage(log_path: Path, how: str, mode: Any) -> None:
    with commitlog.open(log_path) as log:
        log.create_topic("t", partitions=2).append_many([b"a", b"b"])
    if how == "a directory is lost":
        shutil.rmtree(log_path / "t-1")
    else:
        with_partitions(log_path, 3)
    missing = str(log_path / ("t-1" if how == "a directory is lost" else "t-2"))
    with pytest.raises(CorruptionError) as caught, commitlog.open(log_path, mode=mode) as log:
        log.topic("t")
    assert caught.value.path == missing
    assert not os.path.exists(missing), "nothing was made in its place"
    with commitlog.open(log_path, config=LogConfig(recovery_mode="salvage")) as log:
        assert [len(contents(one)) for one in log.topic("t").partitions].count(0) >= 1


def test_salvage_does_not_make_thousands_of_partitions_for_a_wrong_number(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        log.create_topic("t", partitions=2)
        log.create_topic("t-5", partitions=3)  # its directories look almost the same
    path, before = with_partitions(log_path, 5_000), sorted(log_path.glob("t-*"))
    with pytest.raises(CorruptionError, match="4998 of them have no directory") as caught:
        commitlog.open(log_path, config=LogConfig(recovery_mode="salvage"))
    assert caught.value.path == str(path)
    assert sorted(log_path.glob("t-*")) == before
    with_partitions(log_path, 500)
    with commitlog.open(log_path, config=LogConfig(recovery_mode="salvage")) as log:
        assert len(log.topic("t").partitions) == 500


@pytest.mark.parametrize("mode", ["r", "w"])
def test_partitions_that_a_description_leaves_out_are_noticed(log_path: Path, mode: Any) -> None:
    with commitlog.open(log_path) as log:
        topic = log.create_topic("t", partitions=2)
        for partition in topic.partitions:
            partition.append(b"x")
    with_partitions(log_path, 1)
    with pytest.raises(CorruptionError) as caught, commitlog.open(log_path, mode=mode) as log:
        log.topic("t")
    assert caught.value.path == str(log_path / "t-1")
    with commitlog.open(log_path, config=LogConfig(recovery_mode="salvage")) as log:
        assert len(log.topic("t").partitions) == 1


@pytest.mark.parametrize("name", ["__consumer_offsets", "__publications"])
def test_a_lost_description_of_an_internal_topic_is_noticed(log_path: Path, name: str) -> None:
    with commitlog.open(log_path) as log:
        log.create_topic("t").append(b"x")
        log.commit_offsets("g", {TopicPartition("t", 0): 1})
        log.publish("txn", 1, [])
    path = log_path / "topics" / f"{name}.json"
    path.unlink()
    with pytest.raises(CorruptionError) as caught:
        commitlog.open(log_path)
    assert caught.value.path == str(path)
    assert not path.exists()
    with pytest.raises(CorruptionError), commitlog.open(log_path, mode="r") as log:
        assert log.published("txn") == 1, "the other one is there"
        log.describe_group("g")
    with commitlog.open(log_path, config=LogConfig(recovery_mode="salvage")) as log:
        assert log.describe_group("g").partitions[0].committed == 1
        assert log.published("txn") == 1
    with commitlog.open(log_path) as log:
        assert log.describe_group("g").partitions[0].committed == 1


MODES = [{"mode": "r"}, {"mode": "w"}, {"mode": "shared"}, {"config": LogConfig(recovery_mode="salvage")}]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "change",
    [
        {"config": []},
        {"config": None},
        {"config": {"no_such_setting": 1}},
        {"config": {"retention_ms": "soon"}},
        {"topic_id": "not an id"},
        {"partitions": 10**9},
    ],
    ids=str,
)
def test_a_topic_file_that_cannot_be_true_is_an_error_that_names_it(
    log_path: Path, mode: dict[str, Any], change: dict[str, Any]
) -> None:
    with commitlog.open(log_path) as log:
        log.create_topic("t")
    path = log_path / "topics" / "t.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CorruptionError, match=r"topics/t\.json"), commitlog.open(log_path, **mode) as log:
        list(log.topic("t").partition(0).records())
