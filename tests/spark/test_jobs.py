"""Work over a whole log as one Spark job."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import flip
from pyspark.sql import SparkSession

import commitlog
from commitlog import CommitLog, CompactionReport, ConfigError, LogLockedError, Partition, TopicPartition
from commitlog.spark import compact, dividing, export, jobs, verify


@pytest.fixture
def path(log_path: Path) -> str:
    """A closed log: a topic of two days, and a compacted one of ten keys in small segments."""
    with commitlog.open(log_path) as log:
        topic = log.create_topic("t", partitions=2)
        for number in (0, 1):
            times = [(number * 10 + hour) * 3_600_000 for hour in range(20)]
            topic.append_many([b"v%d" % time for time in times], timestamps=times, partition=number)
        config = {"cleanup_policy": "compact", "segment_bytes": 1024, "min_compaction_lag_ms": 0}
        table = log.create_topic("table", partitions=2, config=config)
        for round_ in range(50):
            table.append_many([b"%d" % round_] * 10, keys=[b"%d" % key for key in range(10)])
    return str(log_path)


def test_verify_finds_the_damage_of_each_partition(spark: SparkSession, path: str) -> None:
    reports = verify(spark, path)
    assert sorted(reports) == [TopicPartition(name, number) for name in ("t", "table") for number in (0, 1)]
    assert all(report.ok for report in reports.values())
    assert sum(report.records for report in reports.values()) == 540
    segment = sorted(Path(path, "t-1").glob("*.log"))[0]
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    reports = verify(spark, path, ["t"])
    assert [report.ok for _, report in sorted(reports.items())] == [True, False]
    assert reports[TopicPartition("t", 1)].damage[0].path == str(segment)


@pytest.fixture
def divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let even a small log be worth several tasks."""
    monkeypatch.setattr(dividing, "LEAST_BYTES", 1)


@pytest.mark.usefixtures("divided")
def test_verify_is_divided_by_segments_and_finds_what_one_pass_finds(
    spark: SparkSession, log: CommitLog, log_path: Path
) -> None:
    topic = log.create_topic("t", partitions=2, config={"segment_bytes": 1024})
    for number in range(40):
        topic.append_many([bytes(100)] * 3, partition=number % 4 // 3)  # three times as many in the first
    rotten, before_hole, lost = (Path(topic.partition(0).segments[number].path) for number in (3, 5, 6))
    flip(rotten, rotten.stat().st_size // 2)
    lost.unlink()
    reports = verify(spark, str(log_path))
    zero, one = TopicPartition("t", 0), TopicPartition("t", 1)
    with commitlog.open(log_path, mode="r") as seen:
        assert reports == {name: seen.topic("t").partition(name.partition).verify() for name in (zero, one)}
    found = [damage for damage in reports[zero].damage if damage.path.endswith(".log")]
    assert [damage.path for damage in found] == [str(rotten), str(before_hole)]
    assert found[1].reason == f"offsets [{int(lost.stem)}, {int(lost.stem) + 6}) are missing"
    assert reports[one].ok


@pytest.mark.usefixtures("divided")
def test_what_nobody_may_have_looked_at_is_checked_once_more(
    spark: SparkSession, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = verify(spark, path)
    monkeypatch.setattr(jobs, "joined", lambda parts: None)  # as if segments had been merged meanwhile
    assert verify(spark, path) == expected


@pytest.mark.usefixtures("divided")
def test_export_makes_folders_of_topics_and_dates(spark: SparkSession, path: str, tmp_path: Path) -> None:
    target = tmp_path / "parquet"
    assert export(spark, path, "t", str(target)) == 40
    folders = sorted(str(one.relative_to(target)) for one in target.glob("*/*") if one.is_dir())
    assert folders == ["topic=t/date=1970-01-01", "topic=t/date=1970-01-02"]
    rows = spark.read.parquet(str(target)).where("partition = 1").orderBy("offset").collect()
    assert [(row.offset, bytes(row.value)) for row in rows] == [
        (hour, b"v%d" % ((10 + hour) * 3_600_000)) for hour in range(20)
    ]
    with pytest.raises(Exception, match="already exists"):
        export(spark, path, ["t", "table"], str(target))


def test_compact_leaves_what_is_current(spark: SparkSession, path: str) -> None:
    with commitlog.open(path) as log:
        before = log.topic("table").latest()
        with pytest.raises(LogLockedError):
            compact(spark, path, "table")
    reports = compact(spark, path, "table")
    assert sorted(reports) == [TopicPartition("table", 0), TopicPartition("table", 1)]
    # a log that is open for writing compacts by itself, so that a task may find nothing left to do
    assert {report.stopped_by for report in reports.values()} <= {None, "nothing to clean"}
    with commitlog.open(path, mode="r") as log:
        table = log.topic("table")
        assert sum(1 for partition in table.partitions for _ in partition.records()) < 150
        assert dict(table.latest()) == dict(before)
    with pytest.raises(ConfigError, match="must contain compact"):
        compact(spark, path, "t")


def test_a_pass_that_another_one_overtook_is_run_again(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compact_once, answers = Partition.compact, ["changed", "changed"]

    def overtaken(partition: Partition, *now: Any) -> CompactionReport:
        report = compact_once(partition, *now)
        return replace(report, stopped_by=answers.pop()) if answers else report

    monkeypatch.setattr(Partition, "compact", overtaken)
    assert jobs._compact(path, None, TopicPartition("table", 0)).stopped_by in (None, "nothing to clean")
    assert answers == []


@pytest.mark.usefixtures("divided")
def test_a_bar_shows_on_a_terminal(spark: SparkSession, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    spark.sparkContext.setJobGroup("mine", "what the user calls it")
    assert len(verify(spark, path)) == 4
    monkeypatch.undo()
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") == "mine"
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    assert "verify" in terminal.getvalue()
    assert re.search(r"([2-9])/\1", terminal.getvalue())
