"""`commitlog groups`."""

from __future__ import annotations

from pathlib import Path

import pytest

import commitlog
from cli.rig import call, ok, ok_json
from commitlog import TopicPartition


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A log whose group "billing" has read 3 and 1 of the 5 records in each of two partitions."""
    with commitlog.open(tmp_path / "data") as log:
        topic = log.create_topic("orders", partitions=2)
        for number in range(2):
            topic.append_many([b"x"] * 5, timestamps=range(1000, 6000, 1000), partition=number)
        log.commit_offsets("billing", {TopicPartition("orders", 0): 3, TopicPartition("orders", 1): 1})
    return tmp_path / "data"


def committed(data: Path, group: str = "billing") -> list[int | None]:
    with commitlog.open(data, mode="r") as log:
        return [one.committed for one in log.describe_group(group).partitions]


def test_groups_are_listed_with_their_lag(data: Path) -> None:
    assert ok_json("groups", "list", data) == [
        {"group": "billing", "state": "Empty", "members": 0, "partitions": 2, "lag": 6}
    ]
    assert ok("groups", "list", data).splitlines()[1].split() == ["billing", "Empty", "0", "2", "6"]


def test_a_log_without_groups_says_so(tmp_path: Path) -> None:
    ok("topics", "create", tmp_path, "t")
    assert ok("groups", "list", tmp_path) == "no groups\n"
    assert ok_json("groups", "list", tmp_path) == []


def test_a_group_is_described(data: Path) -> None:
    found = ok_json("groups", "describe", data, "billing")
    assert [(row["committed"], row["end_offset"], row["lag"]) for row in found["partitions"]] == [
        (3, 5, 2),
        (1, 5, 4),
    ]
    with commitlog.open(data, mode="r") as log, log.consumer("orders", group_id="billing") as consumer:
        consumer.poll()
        text = ok("groups", "describe", data, "billing")
    assert "orders-0 orders-1" in text
    assert text.startswith("group billing: Stable")


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (["--to-earliest"], [0, 0]),
        (["--to-latest"], [5, 5]),
        (["--to-offset", 2], [2, 2]),
        (["--to-datetime", "1970-01-01T00:00:03"], [2, 2]),
        (["--shift-by", -1], [2, 0]),
        (["--shift-by", 100], [5, 5]),
        (["--to-offset", 4, "--topic", "orders:1"], [3, 4]),
        (["--to-offset", 4, "--topic", "orders:0,1"], [4, 4]),
        (["--to-latest", "--topic", "orders"], [5, 5]),
    ],
)
def test_offsets_are_reset(data: Path, how: list[object], expected: list[int]) -> None:
    tried = ok_json("groups", "reset-offsets", data, "billing", *how, "--dry-run")
    assert committed(data) == [3, 1]
    done = ok_json("groups", "reset-offsets", data, "billing", *how)
    assert committed(data) == expected
    assert (tried["offsets"], tried["dry_run"], done["dry_run"]) == (done["offsets"], True, False)


def test_a_new_group_may_be_set_before_it_reads(data: Path) -> None:
    rows = ok_json("groups", "reset-offsets", data, "new", "--to-offset", 1, "--topic", "orders")["offsets"]
    assert [(row["before"], row["offset"]) for row in rows] == [(None, 1), (None, 1)]
    assert committed(data, "new") == [1, 1]


def test_a_name_that_looks_like_markup_is_shown_as_it_is(data: Path) -> None:
    with commitlog.open(data) as log:
        log.commit_offsets("[/bold] [red]x", {TopicPartition("orders", 0): 3})
    assert "[/bold] [red]x" in ok("groups", "list", data)


def test_a_group_with_members_is_left_alone(data: Path) -> None:
    with commitlog.open(data, mode="r") as log, log.consumer("orders", group_id="billing") as consumer:
        consumer.poll()
        for command in (
            ["reset-offsets", data, "billing", "--to-latest"],
            ["delete", data, "billing", "--yes"],
        ):
            result = call("groups", *command)
            assert (result.exit_code, result.stderr) == (
                1,
                "Error: group 'billing' has 1 members; stop them first\n",
            )


def test_wrong_usage(data: Path) -> None:
    for wrong in ([], ["--to-earliest", "--to-offset", 3], ["--to-latest", "--topic", "orders:x"]):
        assert call("groups", "reset-offsets", data, "billing", *wrong).exit_code == 2
    assert call("groups", "describe", data, "nobody").stderr == "Error: no group 'nobody'\n"
    assert call("groups", "reset-offsets", data, "nobody", "--to-latest").exit_code == 1


def test_a_group_is_deleted(data: Path) -> None:
    assert call("groups", "delete", data, "billing", stdin="n\n").stderr.endswith(
        "Error: nothing was changed\n"
    )
    assert ok_json("groups", "delete", data, "billing", "--yes") == {"group": "billing", "deleted": True}
    assert ok_json("groups", "list", data) == []
