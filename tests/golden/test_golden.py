"""Bytes that an earlier version wrote must be read by every later one."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers import CODECS

import commitlog

HERE = Path(__file__).parent
GOLDEN = HERE / "v1"
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_text())


def load_maker() -> Any:
    spec = importlib.util.spec_from_file_location("make_v1", HERE / "make_v1.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


maker = load_maker()


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "log", tmp_path / "log"))


def described(log: commitlog.CommitLog) -> dict[str, Any]:
    return {name: maker.described(log.topic(name)) for name in log.topics()}


@pytest.mark.parametrize("mode", ["r", "w"])
def test_every_record_of_a_log_of_version_1_is_read(golden: Path, mode: Any) -> None:
    with commitlog.open(golden, mode=mode) as log:
        assert described(log) == EXPECTED


def test_a_log_of_version_1_opens_without_recovery_and_is_sound(golden: Path) -> None:
    with commitlog.open(golden) as log:
        assert all(report.clean for report in log.recovery)
        for name in log.topics():
            for partition in log.topic(name).partitions:
                assert partition.verify().damage == ()


@pytest.mark.parametrize("mode", ["r", "w"])
def test_the_log_files_of_version_1_alone_are_enough(golden: Path, mode: Any) -> None:
    (golden / "clean-shutdown").unlink()
    for path in golden.glob("*/*index"):
        path.unlink()
    with commitlog.open(golden, mode=mode) as log:
        assert described(log) == EXPECTED


def test_every_record_of_version_1_is_found_by_offset_and_by_time(golden: Path) -> None:
    with commitlog.open(golden) as log:
        for name, topic in EXPECTED.items():
            for number, one in enumerate(topic["partitions"]):
                partition = log.topic(name).partition(number)
                for offset, timestamp, *_ in one["records"]:
                    assert partition.get(offset).timestamp == timestamp
                    first = next(row[0] for row in one["records"] if row[1] >= timestamp)
                    assert partition.offset_for_timestamp(timestamp) == first


def test_a_log_of_version_1_can_be_written_on(golden: Path) -> None:
    with commitlog.open(golden) as log:
        for name, topic in EXPECTED.items():
            for number, one in enumerate(topic["partitions"]):
                partition = log.topic(name).partition(number)
                assert partition.append(b"more", key=b"key") == one["next_offset"]
    with commitlog.open(golden) as log:
        for name, topic in EXPECTED.items():
            for number, one in enumerate(topic["partitions"]):
                records = list(log.topic(name).partition(number).records())
                assert len(records) == len(one["records"]) + 1
                assert records[-1].value == b"more"


def test_the_golden_log_holds_what_it_should() -> None:
    with commitlog.open(GOLDEN / "log", mode="r") as log:
        codecs = {batch.header.compression_type for batch in log.topic("codecs").partition(0).batches()}
        assert codecs == set(CODECS)
        assert len(log.topic("orders").partition(0).segments) > 2
        assert log.topic("orders").partition(0).start_offset > 0
        profiles = log.topic("profiles").partition(0)
        assert any(batch.delete_horizon for batch in profiles.batches())
        assert len(list(profiles.records())) < profiles.next_offset
        gaps = log.topic("gaps").partition(0)
        assert gaps.next_offset > 70_000
        assert len(list(gaps.records())) < 10


def test_a_compacted_topic_of_version_1_can_be_compacted_on(golden: Path) -> None:
    with commitlog.open(golden) as log:
        partition = log.topic("profiles").partition(0)
        before = dict(partition.latest())
        partition.roll()
        partition.compact(now=maker.NOW_MS + 2 * partition.config.delete_retention_ms)
        assert {record.key: record.value for record in partition.records() if record.value} == before
        assert dict(partition.latest()) == before


def test_this_version_still_writes_the_same_records(tmp_path: Path) -> None:
    maker.make(tmp_path / "v1")
    assert json.loads((tmp_path / "v1" / "expected.json").read_text()) == EXPECTED
