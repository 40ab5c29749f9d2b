"""`commitlog compact`, `trim`, `roll` and `stats`."""

from __future__ import annotations

from pathlib import Path

import pytest

import commitlog
from cli.rig import call, ok, ok_json


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A log with a compacted topic of 100 records and two keys, and one with two partitions of ten."""
    with commitlog.open(tmp_path / "data") as log:
        users = log.create_topic("users", config={"cleanup_policy": "compact"})
        users.append_many([b"%d" % number for number in range(100)], keys=[b"a", b"b"] * 50)
        orders = log.create_topic("orders", partitions=2)
        for number in range(2):
            orders.append_many([b"x"] * 10, timestamps=range(10), partition=number)
    return tmp_path / "data"


def test_compaction_leaves_one_record_a_key(data: Path) -> None:
    (early,) = ok_json("compact", data)
    assert early["stopped_by"] == "nothing to clean"  # all of it is in the active segment
    (report,) = ok_json("compact", data, "users", "--roll")
    assert (report["partition"], report["records_before"], report["records_after"]) == ("users-0", 100, 2)
    assert ok("consume", data, "users") == "98\n99\n"
    assert "users-0" in ok("compact", data)


def test_a_topic_that_is_not_compacted_is_wrong_usage(data: Path) -> None:
    assert call("compact", data, "orders").exit_code == 2


def test_a_log_without_compacted_topics_says_so(tmp_path: Path) -> None:
    ok("topics", "create", tmp_path, "t")
    assert ok("compact", tmp_path) == "no topic has cleanup_policy compact\n"


@pytest.mark.parametrize(
    ("how", "starts"),
    [
        (["--before", 4, "-p", 1], [0, 4]),
        (["--before-time", 7], [7, 7]),
        (["--before-time", "2100-01-01", "-p", 0], [10, 0]),
        (["--all"], [10, 10]),
    ],
)
def test_records_are_trimmed(data: Path, how: list[object], starts: list[int]) -> None:
    done = ok_json("trim", data, "orders", *how, "--yes")
    assert done["removed"] == sum(starts)
    found = ok_json("topics", "describe", data, "orders")["partitions"]
    assert [row["start_offset"] for row in found] == starts
    assert [row["next_offset"] for row in found] == [10, 10]
    assert ok_json("trim", data, "orders", *how)["removed"] == 0  # so it does not ask


def test_trim_asks(data: Path) -> None:
    assert call("trim", data, "orders", "--all", stdin="n\n").exit_code == 1
    assert ok_json("stats", data, "orders")["records"] == 20
    assert "remove 20 offsets" in call("trim", data, "orders", "--all", stdin="y\n").stderr


def test_trim_refuses_what_is_not_there_or_not_clear(data: Path) -> None:
    assert call("trim", data, "orders", "--before", 11, "-p", 0, "-y").exit_code == 1
    assert call("trim", data, "orders", "--before", 1).exit_code == 2
    assert call("trim", data, "orders").exit_code == 2
    assert call("trim", data, "orders", "--all", "--before", 1).exit_code == 2


def test_roll_seals_the_active_segments(data: Path) -> None:
    rolled = ok_json("roll", data, "orders")["partitions"]
    assert rolled == [{"partition": 0, "base_offset": 10}, {"partition": 1, "base_offset": 10}]
    assert "base_offset" in ok("roll", data, "orders", "-p", 1)
    assert [one["segments"] for one in ok_json("stats", data)["topic_partitions"]["orders"]] == [2, 2]


def test_stats_count_and_tell_the_lag(data: Path) -> None:
    ok("consume", data, "orders", "--group", "g", "--max", 3)
    found = ok_json("stats", data)
    assert (found["topics"], found["partitions"], found["records"]) == (2, 3, 120)
    assert found["bytes"] == sum(path.stat().st_size for path in data.glob("[ou]*-?/*.log"))
    assert found["groups"] == [{"group": "g", "state": "Empty", "lag": 17}]
    assert ok_json("stats", data, "users")["groups"] == []
    assert "2 topics, 3 partitions, 120 records" in ok("stats", data)


def test_stats_tell_what_compaction_has_to_do(data: Path) -> None:
    def users() -> tuple[int, float]:
        (row,) = ok_json("stats", data)["topic_partitions"]["users"]
        return row["records"], row["dirty_ratio"]

    ok("roll", data, "users")
    dirty = users()
    ok("compact", data)
    assert (dirty, users()) == ((100, 1.0), (2, 0.0))


def test_stats_of_an_empty_log(tmp_path: Path) -> None:
    commitlog.open(tmp_path).close()
    assert ok("stats", tmp_path) == "0 topics, 0 partitions, 0 records, 0 segments, 0 bytes\n"
