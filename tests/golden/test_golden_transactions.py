"""Transactions that an earlier version wrote must mean the same to every later one."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import commitlog

HERE = Path(__file__).parent
GOLDEN = HERE / "v1_transactions"
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_text())


def load_maker() -> Any:
    spec = importlib.util.spec_from_file_location("make_v1_transactions", HERE / "make_v1_transactions.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


maker = load_maker()


def copied(name: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / name, tmp_path / name))


@pytest.mark.parametrize("mode", ["r", "w", "shared"])
def test_readers_of_both_levels_find_what_was_committed_and_what_was_not(tmp_path: Path, mode: Any) -> None:
    with commitlog.open(copied("log", tmp_path), mode=mode) as log:
        assert maker.described(log) == EXPECTED["log"]


@pytest.mark.parametrize("mode", ["r", "w"])
def test_the_log_files_alone_are_enough(tmp_path: Path, mode: Any) -> None:
    path = copied("log", tmp_path)
    (path / "clean-shutdown").unlink()
    for derived in [*path.glob("*/*index"), *path.glob("*/*.snapshot"), *path.glob("*/state")]:
        derived.unlink()
    with commitlog.open(path, mode=mode) as log:
        assert maker.described(log) == EXPECTED["log"]


def test_a_writer_ends_what_a_kill_left_open(tmp_path: Path) -> None:
    with commitlog.open(copied("killed", tmp_path)) as log:
        assert maker.described(log) == EXPECTED["killed"]
        transfers = log.topic("transfers")
        values = [[record.value for record in partition] for partition in transfers]
        assert [one.count(b"decided") for one in values] == [1, 1]
        assert [one.count(b"undecided") for one in values] == [0, 0]
        assert all(one.state not in ("Ongoing", "PrepareCommit") for one in log.transactions())


def test_a_reader_of_what_a_kill_left_sees_nothing_that_is_open(tmp_path: Path) -> None:
    with commitlog.open(copied("killed", tmp_path), mode="r") as log:
        for name, partitions in EXPECTED["log"].items():
            for partition, before in zip(log.topic(name), partitions, strict=True):
                assert partition.last_stable_offset == before["last_stable_offset"]
                found = [[one.offset, one.timestamp] for one in partition.records()]
                assert found == [row[:2] for row in before["read_committed"]]


def test_a_pass_goes_on_where_one_of_version_1_ended(tmp_path: Path) -> None:
    with commitlog.open(copied("log", tmp_path)) as log:
        partition = log.topic("balances").partition(0)
        before = dict(partition.latest())
        partition.roll()
        partition.compact(now=maker.NOW_MS + 2 * partition.config.delete_retention_ms)
        assert dict(partition.latest()) == before
        markers = [batch.header for batch in partition.stored_batches() if batch.header.is_marker]
        assert len(markers) == 1  # that of the transaction after the first pass
        assert partition.verify().ok


def test_the_golden_logs_hold_what_they_should() -> None:
    with commitlog.open(GOLDEN / "log", mode="r") as log:
        headers = [one.header for part in log.topic("transfers") for one in part.stored_batches()]
        assert {one.commits for one in headers if one.is_marker} == {True, False}
        assert any(one.is_transactional for one in headers)
        balances = list(log.topic("balances").partition(0).stored_batches())
        assert any(one.header.is_marker and one.delete_horizon for one in balances)


def test_this_version_still_writes_the_same_transactions(tmp_path: Path) -> None:
    maker.make(tmp_path / "made")
    assert json.loads((tmp_path / "made" / "expected.json").read_text()) == EXPECTED
