"""`commitlog topics`."""

from __future__ import annotations

from pathlib import Path

import commitlog
from cli.rig import call, ok, ok_json


def test_a_topic_is_created_with_its_log_listed_and_described(tmp_path: Path) -> None:
    made = ok_json("topics", "create", tmp_path / "new", "orders", "-p", 2, "-c", "retention.ms=1000")
    assert made == {"topic": "orders", "partitions": 2, "config": {"retention_ms": 1000}}
    listed = ok_json("topics", "list", tmp_path / "new")
    assert [row["topic"] for row in listed] == ["orders"]
    described = ok_json("topics", "describe", tmp_path / "new", "orders")
    assert described["config"] == {"retention_ms": 1000}
    assert [row["partition"] for row in described["partitions"]] == [0, 1]
    assert "retention_ms = 1000" in ok("topics", "describe", tmp_path / "new", "orders")


def test_settings_are_altered_and_set_back(tmp_path: Path) -> None:
    ok("topics", "create", tmp_path, "t")
    assert ok_json("topics", "alter", tmp_path, "t", "-c", "flush.ms=7")["config"] == {"flush_ms": 7}
    assert ok_json("topics", "alter", tmp_path, "t", "--delete-config", "flush.ms")["config"] == {}


def test_a_wrong_setting_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    for wrong in ("no_such=1", "retention_ms=soon", "retention_ms"):
        result = call("topics", "create", tmp_path, "t", "--config", wrong)
        assert result.exit_code == 2
        assert "Traceback" not in result.output
        assert "Error: " in result.stderr
    assert call("topics", "alter", tmp_path, "t").exit_code == 2


def test_a_topic_is_deleted_only_when_somebody_says_so(tmp_path: Path) -> None:
    ok("topics", "create", tmp_path, "t")
    refused = call("topics", "delete", tmp_path, "t", stdin="n\n")
    assert refused.exit_code == 1
    assert call("topics", "delete", tmp_path, "t", stdin="").exit_code == 1
    assert ok_json("topics", "list", tmp_path)
    ok("topics", "delete", tmp_path, "t", stdin="y\n")
    assert ok("topics", "list", tmp_path) == "no topics\n"
    ok("topics", "create", tmp_path, "t")
    assert ok_json("topics", "delete", tmp_path, "t", "--yes") == {"topic": "t", "deleted": True}


def test_partitions_are_added(tmp_path: Path) -> None:
    ok("topics", "create", tmp_path, "t")
    assert ok_json("topics", "add-partitions", tmp_path, "t", 3) == {"topic": "t", "partitions": 3}
    with commitlog.open(tmp_path, mode="r") as log:
        assert len(log.topic("t").partitions) == 3
    assert call("topics", "add-partitions", tmp_path, "t", 2).exit_code == 2
