"""`commitlog verify` and `commitlog repair`."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

import commitlog
from cli.rig import call, ok, ok_json
from commitlog import TopicConfig


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A log with three sealed segments in "t", and a healthy topic beside it."""
    with commitlog.open(tmp_path / "data") as log:
        partition = log.create_topic("t", config=TopicConfig()).partition(0)
        for _ in range(3):
            partition.append_many([b"x" * 100] * 10)
            partition.roll()
        log.create_topic("other").append(b"fine")
    return tmp_path / "data"


def damage(data: Path, base_offset: int) -> Path:
    path = data / "t-0" / f"{base_offset:020d}.log"
    raw = bytearray(path.read_bytes())
    raw[500] ^= 1
    path.write_bytes(raw)
    return path


def test_a_sound_log_is_verified_also_while_it_is_written(data: Path) -> None:
    with commitlog.open(data) as log:
        log.topic("other").append(b"another")
        found = ok_json("verify", data)
    assert found["ok"]
    assert {row["partition"]: row["records"] for row in found["partitions"]} == {"other-0": 2, "t-0": 30}
    assert ok("verify", data, "t").splitlines()[1].split()[0] == "t-0"


def test_damage_is_listed_and_told_by_the_exit_code(data: Path) -> None:
    path = damage(data, 10)
    result = call("verify", data)
    assert result.exit_code == 1
    assert f"{path}, bytes [0, " in result.stdout
    found = call("verify", data, "--json")
    assert (found.exit_code, '"ok": false' in found.stdout) == (1, True)


def test_a_missing_segment_is_damage_though_the_topic_does_not_open(data: Path) -> None:
    (data / "t-0" / f"{10:020d}.log").unlink()
    result = call("verify", data)
    assert result.exit_code == 1
    assert "offsets [10, 20) are missing" in result.stdout


def test_internal_topics_are_verified_too(data: Path) -> None:
    ok("consume", data, "t", "--group", "g")
    assert "__consumer_offsets-0" in [row["partition"] for row in ok_json("verify", data)["partitions"]]


def test_repair_keeps_what_is_sound_and_the_damaged_file(data: Path) -> None:
    path = damage(data, 10)
    (row,) = ok_json("repair", data, "--yes")["repaired"]
    assert (row["partition"], row["salvaged"][0]["lost"]) == ("t-0", [[10, 20]])
    assert Path(str(path) + ".damaged").exists()
    assert ok_json("verify", data)["ok"]
    with commitlog.open(data, mode="r") as log:
        offsets = [record.offset for record in log.topic("t").partition(0).records()]
    assert offsets == [*range(10), *range(20, 30)]


def test_repair_shows_the_damage_and_asks(data: Path) -> None:
    path = damage(data, 0)
    before = path.read_bytes()
    refused = call("repair", data, stdin="n\n")
    assert refused.exit_code == 1
    assert str(path) in refused.stderr
    assert path.read_bytes() == before
    assert "bytes lost, offsets [0, 10)" in ok("repair", data, stdin="y\n")


def test_repair_fills_the_place_of_a_segment_that_is_gone(data: Path) -> None:
    (data / "t-0" / f"{10:020d}.log").unlink()
    ok("repair", data, "--yes")
    assert ok_json("verify", data)["ok"]


def test_repair_makes_a_false_index_anew(data: Path) -> None:
    (data / "t-0" / f"{10:020d}.index").unlink()
    assert call("verify", data).exit_code == 1
    ok("repair", data, "--yes")
    assert ok_json("verify", data)["ok"]


def test_a_path_that_is_no_text_is_shown_somehow(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "commitlog")  # a report that names it cannot be sent to xdist
    data = tmp_path / os.fsdecode(b"\xff")
    with commitlog.open(data) as log:
        log.create_topic("t").partition(0).append_many([b"x" * 100] * 10)
    damage(data, 0)
    assert call("verify", data).exit_code == 1
    assert call("verify", data, "--json").exit_code == 1
    assert call("dump", data / "t-0" / f"{0:020d}.log").exit_code == 1
    ok("repair", data, "--yes")


def test_there_may_be_nothing_to_repair(data: Path) -> None:
    assert ok("repair", data) == "there is nothing to repair\n"
    assert ok_json("repair", data) == {"repaired": []}
    assert not list((data / "other-0").glob("*1.log"))  # nothing was rolled
