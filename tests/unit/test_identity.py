"""Ids that tell a log from every other, and a topic from an earlier one of its name."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import contents

import commitlog
from commitlog import CommitLog, ConfigError, CorruptionError, ReadOnlyError
from commitlog.ids import is_id

GOLDEN = Path(__file__).parent.parent / "golden" / "v1" / "log"


def test_every_log_has_an_id_of_its_own_that_stays(tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        with commitlog.open(tmp_path / name) as log:
            found.append(log.log_id)
        ways: list[dict[str, Any]] = [{"mode": "r"}, {"mode": "w"}, {"mode": "shared"}]
        for how in ways:
            with commitlog.open(tmp_path / name, **how) as log:
                assert log.log_id == found[-1]
    assert all(map(is_id, found))
    assert found[0] != found[1]


def test_a_copy_keeps_the_ids_until_it_is_given_its_own(log_path: Path, tmp_path: Path) -> None:
    with commitlog.open(log_path) as log:
        log_id, topic_id = log.log_id, log.create_topic("t").topic_id
    shutil.copytree(log_path, tmp_path / "copy")
    with commitlog.open(tmp_path / "copy") as log:
        assert (log.log_id, log.topic("t").topic_id) == (log_id, topic_id)
        renewed = log.renew_id()
        assert renewed == log.log_id != log_id
    with commitlog.open(tmp_path / "copy", mode="r") as log:
        assert log.log_id == renewed
        with pytest.raises(ReadOnlyError):
            log.renew_id()
    with commitlog.open(tmp_path / "copy", mode="shared") as log, pytest.raises(ConfigError):
        log.renew_id()


def test_processes_that_make_a_shared_log_together_agree_on_its_id(log_path: Path) -> None:
    program = (
        "import sys, commitlog\n"
        "sys.stdin.readline()\n"
        "with commitlog.open(sys.argv[1], mode='shared') as log: print(log.log_id)"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(log_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    found = {child.communicate()[0] for child in children}
    assert len(found) == 1
    with commitlog.open(log_path, mode="r") as log:
        assert found == {f"{log.log_id}\n"}


def test_a_topic_keeps_its_id_when_it_changes_and_gets_another_when_it_is_made_again(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        topic = log.create_topic("t")
        first = topic.topic_id
        topic.add_partitions(3)
        topic.alter_config(retention_ms=5)
        assert is_id(first)
        assert first != log.create_topic("u").topic_id
    with commitlog.open(log_path) as log:
        assert log.topic("t").topic_id == first
        log.delete_topic("t")
        assert log.create_topic("t").topic_id != first


def test_a_reader_sees_that_a_topic_was_made_again(log: CommitLog) -> None:
    log.create_topic("t").append(b"old")
    with commitlog.open(log.path, mode="r") as reader:
        before = reader.topic("t")
        log.delete_topic("t")
        log.create_topic("t").append_many([b"new", b"newer"])
        after = reader.topic("t")
        assert after.topic_id == log.topic("t").topic_id != before.topic_id
        assert [record.value for record in contents(after.partition(0))] == [b"new", b"newer"]


def test_a_log_from_before_there_were_ids_gets_them_from_its_next_writer(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "log")
    with commitlog.open(tmp_path / "log", mode="r") as log:
        assert log.log_id is None
        assert log.topic("orders").topic_id is None
    with commitlog.open(tmp_path / "log") as log:
        log_id, topic_ids = log.log_id, {name: log.topic(name).topic_id for name in log.topics()}
    assert is_id(log_id)
    assert all(map(is_id, topic_ids.values()))
    assert len(set(topic_ids.values())) == len(topic_ids)
    with commitlog.open(tmp_path / "log", mode="r") as log:
        assert log.log_id == log_id
        assert {name: log.topic(name).topic_id for name in log.topics()} == topic_ids


@pytest.mark.parametrize("junk", ["", "short", 7, {}, "A" * 23])
def test_an_id_that_is_none_is_damage(log_path: Path, junk: object) -> None:
    with commitlog.open(log_path) as log:
        log.create_topic("t")
    topic, about = log_path / "topics" / "t.json", log_path / "commitlog.json"
    sound = topic.read_text()
    topic.write_text(json.dumps(json.loads(sound) | {"topic_id": junk}))
    with pytest.raises(CorruptionError, match=r"t\.json"):
        commitlog.open(log_path)
    topic.write_text(sound)
    about.write_text(json.dumps({"format": 1, "log_id": junk}))
    with pytest.raises(CorruptionError, match=r"commitlog\.json"):
        commitlog.open(log_path)
