"""`commitlog dump`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import commitlog
from cli.rig import call, ok
from commitlog import TopicConfig


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A partition of three batches, with an index entry for each but the first."""
    with commitlog.open(tmp_path / "data") as log:
        config = TopicConfig(index_interval_bytes=0, compression_type="zstd")
        partition = log.create_topic("t", config=config).partition(0)
        partition.append_many(
            [b"x" * 100, None], keys=[b"k", None], headers=[[("h", b"1")], []], timestamps=[1, 2]
        )
        partition.append_many([b"y"], timestamps=[3], producer=(7, 0, 0))
        partition.append_many([b"\xff\n"], timestamps=[4])
    return tmp_path / "data" / "t-0"


def dumped(*arguments: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ok("dump", *arguments, "--json").splitlines()]


def test_the_batches_of_a_segment(folder: Path) -> None:
    first, second, third = dumped(folder / f"{0:020d}.log")
    assert (first["base_offset"], first["last_offset"], first["count"], first["position"]) == (0, 1, 2, 0)
    assert (first["base_timestamp"], first["max_timestamp"], first["compression_type"]) == (1, 2, "zstd")
    assert (second["producer_id"], second["base_sequence"], second["last_sequence"]) == (7, 0, 0)
    assert third["position"] == first["size"] + second["size"]
    assert {one["kind"] for one in (first, second, third)} == {"batch"}
    assert all(one["valid"] for one in (first, second, third))


def test_the_records_of_a_segment_each_on_its_line(folder: Path) -> None:
    found = [one for one in dumped(folder / f"{0:020d}.log", "--records") if one["kind"] == "record"]
    assert [(one["offset"], one["key_size"], one["value_size"]) for one in found] == [
        (0, 1, 100), (1, -1, -1), (2, -1, 1), (3, -1, 2)
    ]  # fmt: skip
    assert found[0]["headers"] == [{"key": "h", "value": "1"}]
    assert found[3]["value_base64"] == "/wo="
    lines = ok("dump", folder / f"{0:020d}.log", "--records").splitlines()
    assert len(lines) == 1 + 3 + 4
    assert lines[2].startswith("| offset: 0 timestamp: 1 key_size: 1 value_size: 100 headers: [")


def test_the_entries_of_indexes(folder: Path) -> None:
    offsets = dumped(folder / f"{0:020d}.index")
    times = dumped(folder / f"{0:020d}.timeindex")
    assert [one["offset"] for one in offsets] == [2, 3]
    positions = [one["position"] for one in offsets]
    assert [(one["timestamp"], one["position"]) for one in times] == list(zip([3, 4], positions, strict=True))


def test_the_state_page_and_its_checkpoint(folder: Path) -> None:
    state, checkpoint = dumped(folder / "state")
    assert (state["kind"], state["next_offset"], state["durable_offset"]) == ("state", 4, 4)
    assert (checkpoint["kind"], checkpoint["next_offset"]) == ("checkpoint", 4)


def test_the_leader_epochs(tmp_path: Path) -> None:
    with commitlog.open(tmp_path) as log:
        partition = log.create_topic("t").partition(0)
        partition.lead(3)
        partition.append(b"x")
    (found,) = dumped(tmp_path / "t-0" / "leader-epoch-checkpoint")
    assert (found["leader_epoch"], found["start_offset"]) == (3, 0)


def test_damage_is_shown_where_it_is_and_told_by_the_exit_code(folder: Path) -> None:
    path = folder / f"{0:020d}.log"
    _, second, _ = dumped(path)
    raw = bytearray(path.read_bytes())
    raw[second["position"] + 70] ^= 1
    path.write_bytes(raw)
    result = call("dump", path, "--json")
    assert result.exit_code == 1
    kinds = [json.loads(line)["kind"] for line in result.stdout.splitlines()]
    assert kinds == ["batch", "damage", "batch"]
    assert f"DAMAGE position: {second['position']} " in call("dump", path).stdout


@pytest.mark.parametrize("name", ["state", "leader-epoch-checkpoint"])
def test_a_file_that_is_not_what_its_name_says_is_damage(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"nonsense")
    assert call("dump", tmp_path / name).exit_code == 1


def test_an_index_that_does_not_fit_its_segment_is_damage(folder: Path) -> None:
    path = folder / f"{0:020d}.index"
    raw = bytearray(path.read_bytes())
    raw[24:32] = (1 << 32 | 16).to_bytes(8, "little")
    path.write_bytes(raw)
    assert "DAMAGE reason: the entries do not match" in call("dump", path).stdout


def test_an_empty_segment_has_nothing(tmp_path: Path) -> None:
    ok("topics", "create", tmp_path, "t")
    assert dumped(tmp_path / "t-0" / f"{0:020d}.log") == []


def test_another_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    result = call("dump", tmp_path / "notes.txt")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert call("dump", tmp_path / "none.log").exit_code == 2
    assert call("dump").exit_code == 2
