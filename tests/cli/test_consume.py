"""`commitlog consume`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import commitlog
from cli.rig import call, ok, ok_json
from commitlog import TopicConfig


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A log with ten records in "t", one of them a tombstone and one not text, six in "two", and "empty"."""
    with commitlog.open(tmp_path / "data") as log:
        topic = log.create_topic("t")
        for number in range(8):
            topic.append(b"v%d" % number, key=b"k%d" % number, timestamp=1000 * number)
        topic.append_many([None, b"\xff"], keys=[b"gone", None], headers=[[("a", b"b"), ("c", None)], []],
                          timestamps=[8000, 9000])  # fmt: skip
        two = log.create_topic("two", partitions=2)
        for number in range(2):
            two.append_many([b"%d%d" % (number, row) for row in range(3)], partition=number)
        log.create_topic("empty", partitions=2)
    return tmp_path / "data"


def lines(*arguments: object) -> list[str]:
    return ok("consume", *arguments).splitlines()


def test_values_are_printed_as_lines(data: Path) -> None:
    assert call("consume", data, "t").stdout_bytes == b"v0\nv1\nv2\nv3\nv4\nv5\nv6\nv7\nnull\n\xff\n"


def test_an_empty_topic_prints_nothing(data: Path) -> None:
    for more in ([], ["--json"], ["--last", 3], ["--from", "end"], ["--format", "raw"], ["--group", "g"]):
        assert ok("consume", data, "empty", *more) == ""


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("beginning", "v0"),
        ("3", "v3"),
        ("1970-01-01T00:00:05", "v5"),
        ("1970-01-01T00:00:04.001Z", "v5"),
        ("@4000", "v4"),
    ],
)
def test_it_begins_where_it_is_told_to(data: Path, start: str, first: str) -> None:
    assert lines(data, "t", "--from", start, "--max", 1) == [first]


def test_it_begins_at_the_end_with_nothing(data: Path) -> None:
    assert lines(data, "t", "--from", "end") == []
    assert lines(data, "t", "--from", "2100-01-01") == []
    assert lines(data, "t", "--from", 10) == []


def test_an_offset_that_is_not_there_is_one_sentence(data: Path) -> None:
    result = call("consume", data, "t", "--from", 11)
    assert (result.exit_code, result.stderr) == (1, "Error: t-0: offset 11 is outside [0, 10)\n")
    assert call("consume", data, "t", "--from", "yesterday").exit_code == 2


def test_the_last_are_those_of_each_partition(data: Path) -> None:
    assert lines(data, "two", "--last", 1) == ["02", "12"]
    assert len(lines(data, "two", "--last", 100)) == 6
    assert lines(data, "two", "--last", 0) == []


@pytest.mark.parametrize("limit", range(8))
def test_it_ends_after_as_many_records_as_are_wanted(data: Path, limit: int) -> None:
    assert len(lines(data, "two", "--max", limit)) == min(limit, 6)


def test_one_partition_may_be_read_alone(data: Path) -> None:
    assert lines(data, "two", "--partition", 1) == ["10", "11", "12"]
    assert call("consume", data, "two", "--partition", 2).exit_code == 1


def test_more_of_a_record_is_printed_on_demand(data: Path) -> None:
    wanted = ["--partitions", "--offsets", "--timestamps", "--headers", "--keys"]
    assert lines(data, "t", "--from", 7, "--max", 2, *wanted) == [
        "0\t7\t1970-01-01T00:00:07.000Z\t-\tk7\tv7",
        "0\t8\t1970-01-01T00:00:08.000Z\ta=b,c=null\tgone\tnull",
    ]
    assert lines(data, "t", "--max", 1, "--keys", "--separator", " = ") == ["k0 = v0"]


def test_json_lines_have_everything(data: Path) -> None:
    found = [json.loads(line) for line in lines(data, "t", "--json", "--last", 2)]
    assert found == [
        {"topic": "t", "partition": 0, "offset": 8, "timestamp": 8000, "key": "gone", "value": None,
         "headers": [{"key": "a", "value": "b"}, {"key": "c", "value": None}]},
        {"topic": "t", "partition": 0, "offset": 9, "timestamp": 9000, "key": None, "value_base64": "/w==",
         "headers": []},
    ]  # fmt: skip
    assert lines(data, "t", "--format", "json") == lines(data, "t", "--json")


def test_json_quotes_whatever_a_record_holds(tmp_path: Path) -> None:
    value = '"\\\n\t\x00\x7f é \u2028 😀'
    with commitlog.open(tmp_path) as log:
        log.create_topic("t").append(value.encode(), key=b'"')
    assert ok_json("consume", tmp_path, "t")["value"] == value


def test_hex_and_raw(data: Path) -> None:
    assert lines(data, "t", "--format", "hex", "--keys", "--last", 3) == [
        "6b37\t7637",
        "676f6e65\tnull",
        "null\tff",
    ]
    assert call("consume", data, "t", "--format", "raw").stdout_bytes == b"v0v1v2v3v4v5v6v7\xff"


def test_a_compacted_topic_is_read_over_its_gaps(tmp_path: Path) -> None:
    with commitlog.open(tmp_path) as log:
        config = TopicConfig(cleanup_policy="compact", min_compaction_lag_ms=1 << 40)
        partition = log.create_topic("t", config=config).partition(0)
        partition.append_many([b"%d" % number for number in range(100)], keys=[b"k"] * 100)
        partition.roll()
        partition.compact(1 << 42)
    assert lines(tmp_path, "t", "--offsets") == ["99\t99"]
    assert lines(tmp_path, "t", "--from", 5, "--max", 1) == ["99"]
    assert lines(tmp_path, "t", "--group", "g", "--offsets") == ["99\t99"]


def test_a_group_goes_on_where_it_was(data: Path) -> None:
    assert lines(data, "t", "--group", "g", "--max", 3) == ["v0", "v1", "v2"]
    assert lines(data, "t", "--group", "g", "--max", 1) == ["v3"]
    assert len(lines(data, "t", "--group", "g")) == 5 + 1
    assert lines(data, "t", "--group", "g") == []
    assert ok_json("groups", "describe", data, "g")["partitions"][0]["lag"] == 0


def test_a_limit_cuts_a_group_in_one_partition_and_leaves_the_others(data: Path) -> None:
    seen = [line for _ in range(3) for line in lines(data, "two", "--group", "g", "--max", 2)]
    assert sorted(seen) == ["00", "01", "02", "10", "11", "12"]


def test_a_new_group_may_begin_at_the_end(data: Path) -> None:
    assert lines(data, "t", "--group", "g", "--from", "end") == []


def test_options_that_do_not_go_together_are_wrong_usage(data: Path) -> None:
    for wrong in (
        ["--from", "3", "--last", 1],
        ["--group", "g", "--partition", 0],
        ["--group", "g", "--last", 1],
        ["--group", "g", "--from", "3"],
        ["--max", -1],
    ):
        assert call("consume", data, "t", *wrong).exit_code == 2
