"""`commitlog produce`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import commitlog
from cli.rig import call, ok, ok_json
from commitlog import Record


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A log with a topic of one partition, "t", and one of three, "many"."""
    with commitlog.open(tmp_path / "data") as log:
        log.create_topic("t")
        log.create_topic("many", partitions=3)
        log.create_topic("users", config={"cleanup_policy": "compact"})
    return tmp_path / "data"


def records(data: Path, topic: str = "t", partition: int = 0) -> list[Record]:
    with commitlog.open(data, mode="r") as log:
        return list(log.topic(topic).partition(partition).records())


def values(data: Path, topic: str = "t", partition: int = 0) -> list[bytes | None]:
    return [record.value for record in records(data, topic, partition)]


def test_every_line_of_stdin_is_a_record(data: Path) -> None:
    assert ok("produce", data, "t", stdin="a\nb\n") == "2 records appended to t\n"
    assert ok_json("produce", data, "t", stdin="c\n") == {
        "topic": "t",
        "records": 1,
        "offsets": {"0": [2, 3]},
    }
    assert values(data) == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a", [b"a"]),
        (b"a\n\nb", [b"a", b"", b"b"]),
        (b"\xff\x00\r\n\xfe", [b"\xff\x00\r", b"\xfe"]),
    ],
)
def test_bytes_stay_as_they_are_and_a_last_line_needs_no_end(
    data: Path, given: bytes, expected: object
) -> None:
    ok("produce", data, "t", stdin=given)
    assert values(data) == expected


def test_files_are_read_one_after_another_also_large_ones(data: Path, tmp_path: Path) -> None:
    lines = [b"%d" % number * (number % 40) for number in range(200_000)]
    (tmp_path / "one").write_bytes(b"\n".join(lines[:150_000]))
    (tmp_path / "two").write_bytes(b"\n".join(lines[150_000:]) + b"\n")
    ok("produce", data, "t", tmp_path / "one", tmp_path / "two")
    assert values(data) == lines


def test_lines_without_a_key_go_to_partitions_in_turn_or_to_the_one_named(data: Path) -> None:
    ok("produce", data, "many", "--partition", 2, stdin="a\n")
    assert values(data, "many", 2) == [b"a"]
    assert call("produce", data, "many", "--partition", 3, stdin="a\n").exit_code == 1


def test_a_separator_divides_key_and_value(data: Path) -> None:
    ok("produce", data, "users", "--key-separator", "::", stdin="k::v::w\nl::\n")
    assert [(one.key, one.value) for one in records(data, "users")] == [(b"k", b"v::w"), (b"l", b"")]


def test_a_line_without_the_separator_is_named_and_those_before_are_kept(data: Path) -> None:
    block = "k:v\n" * 3 + "nothing\n"
    result = call("produce", data, "t", "-k", ":", stdin=block)
    assert result.exit_code == 1
    assert (
        result.stderr == "Error: record 3: there is no ':' after the key (records appended before that: 0)\n"
    )


def test_the_null_marker_makes_tombstones(data: Path) -> None:
    ok("produce", data, "users", "-k", ":", "--null-marker", "NULL", stdin="a:1\na:NULL\n")
    assert [one.value for one in records(data, "users")] == [b"1", None]


def test_every_record_gets_the_headers(data: Path) -> None:
    ok("produce", data, "t", "--header", "source=cli", "-H", "n=1=2", stdin="a\nb\n")
    assert [one.headers for one in records(data)] == [(("source", b"cli"), ("n", b"1=2"))] * 2


def test_json_lines_are_whole_records(data: Path) -> None:
    given = [
        {"key": "k", "value": "v", "timestamp": 7, "headers": {"a": "b"}, "partition": 1},
        {"value": {"n": [1, None]}, "headers": [{"key": "h", "value": None}], "partition": 1},
        {"key_base64": "//4=", "value": None, "timestamp": "2026-01-31T12:00", "partition": 1},
    ]
    ok("produce", data, "many", "--format", "json", stdin="\n".join(map(json.dumps, given)) + "\n\n")
    first, second, third = records(data, "many", 1)
    assert first == Record(0, 7, b"k", b"v", (("a", b"b"),))
    assert (second.key, second.value, second.headers) == (None, b'{"n":[1,null]}', (("h", None),))
    assert (third.key, third.value, third.timestamp) == (b"\xff\xfe", None, 1_769_860_800_000)


@pytest.mark.parametrize(
    "wrong",
    ["{", "[]", '{"valu": 1}', '{"timestamp": {}}', '{"timestamp": "soon"}', '{"headers": 3}',
     '{"partition": "x"}', '{"value_base64": "?"}', '{"value": "", "value_base64": ""}', "[" * 100_000,
     '{"timestamp": -1}'],
)  # fmt: skip
def test_a_line_that_is_no_record_is_one_sentence(data: Path, wrong: str) -> None:
    result = call("produce", data, "t", "--format", "json", stdin='{"value": "fine"}\n' + wrong)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: record 1: ")
    assert result.stderr.count("\n") == 1


def test_what_consume_prints_as_json_produce_takes(data: Path) -> None:
    given = [
        {"key": "k", "value_base64": "/w==", "headers": [{"key": "h", "value": "x"}], "timestamp": 5},
        {"value": None},
    ]
    ok("produce", data, "t", "--format", "json", stdin="\n".join(map(json.dumps, given)))
    ok("topics", "create", data, "copy")
    ok("produce", data, "copy", "--format", "json", stdin=ok("consume", data, "t", "--json"))
    assert records(data, "copy") == records(data)


def test_a_line_that_is_too_long_is_refused_by_its_number_though_it_never_ends(data: Path) -> None:
    result = call("produce", data, "t", stdin=b"fine\n" + b"x" * (4 << 20))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: record 1 has ")
    assert result.stderr.endswith("max_message_bytes is 1048576 (records appended before that: 1)\n")


def test_a_record_that_is_too_long_is_refused_with_a_key_and_as_json(data: Path) -> None:
    long = "k:" + "x" * (1 << 20) + "\n"
    assert call("produce", data, "t", "-k", ":", stdin=long).exit_code == 1
    result = call("produce", data, "t", "--format", "json", stdin=json.dumps({"value": "x" * (2 << 20)}))
    assert result.stderr.startswith("Error: record 0 has 2097152 bytes")


def test_a_compacted_topic_asks_for_keys(data: Path) -> None:
    result = call("produce", data, "users", stdin="a\n")
    assert (result.exit_code, "needs a key" in result.stderr) == (1, True)


def test_options_that_do_not_go_together_are_wrong_usage(data: Path) -> None:
    assert call("produce", data, "t", "--format", "json", "-k", ":").exit_code == 2
    assert call("produce", data, "t", "-k", "").exit_code == 2
    assert call("produce", data, "t", "no such file").exit_code == 2
    assert call("produce", data, "t", "--header", "x").exit_code == 2
