from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers import contents, fill

import commitlog
from commitlog import CommitLog, TopicPartition

from .client import Client

COMPACT = {"cleanup_policy": "compact"}


@pytest.fixture
def shared(log_path: Path) -> Any:
    """The log of the writable page, in the hands of an application."""
    with commitlog.open(log_path, mode="shared") as log:
        yield log


def test_a_record_is_appended_as_it_was_given(shared: CommitLog, writable: Client) -> None:
    shared.create_topic("t", 2)
    headers = [{"name": "trace", "value": "7f"}, {"name": "none", "value": None}]
    body = {"key": "k", "value": "three äpples", "headers": headers, "partition": 1}
    assert writable.post("topics/t/append", body).json == {"partition": 1, "offset": 0}
    writable.post("topics/t/append", {"key_hex": "00ff", "value": None, "partition": 1})
    writable.post("topics/t/append", {"value": "", "partition": 1})
    first, second, third = contents(shared.topic("t").partition(1))
    assert (first.key, first.value) == (b"k", "three äpples".encode())
    assert first.headers == (("trace", b"7f"), ("none", None))
    assert (second.key, second.value, third.key, third.value) == (b"\x00\xff", None, None, b"")


def test_without_a_partition_the_key_decides(shared: CommitLog, writable: Client) -> None:
    topic = shared.create_topic("t", 8)
    place = topic.append(b"here", key=b"alice")[0]
    assert writable.post("topics/t/append", {"key": "alice", "value": "there"}).json["partition"] == place


def test_trim_roll_and_compact_do_as_they_say(shared: CommitLog, writable: Client) -> None:
    partition = shared.create_topic("c", config=COMPACT).partition(0)
    fill(partition, 30)
    assert writable.post("topics/c/partitions/0/roll", {}).json == {"segments": 2}
    made = writable.post("topics/c/partitions/0/compact", {}).json
    assert (made["records_before"], made["records_after"]) == (30, 3)
    assert writable.post("topics/c/partitions/0/trim", {"before": 28}).json == {"start_offset": 28}
    assert [record.offset for record in contents(partition)] == [28, 29]


def test_a_group_is_reset_where_it_has_no_members(shared: CommitLog, writable: Client) -> None:
    fill(shared.create_topic("t").partition(0), 10)
    name = TopicPartition("t", 0)
    shared.commit_offsets("g", {name: 7})
    for how, offset in (
        ({"to": "earliest"}, 0),
        ({"to": "latest"}, 10),
        ({"to": "offset", "offset": "4"}, 4),
    ):
        assert writable.post("group/reset", {"group_id": "g", **how}).json == {"offsets": {"t-0": offset}}
    answer = writable.post("group/reset", {"group_id": "g", "to": "timestamp", "timestamp": 1_006})
    assert answer.json == {"offsets": {"t-0": 6}}
    assert shared.describe_group("g").partitions[0].committed == 6
    with shared.consumer("t", group_id="g") as consumer:
        consumer.poll(1.0)
        refused = writable.post("group/reset", {"group_id": "g", "to": "earliest"})
        assert refused.status == 409


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("topics/t/append", {"value": 5}, 400),
        ("topics/t/append", {"value_hex": "zz"}, 400),
        ("topics/t/append", {"value": "x", "partition": 9}, 404),
        ("topics/t/append", {"value": "x", "headers": [{"value": "x"}]}, 400),
        ("topics/t/append", [], 400),
        ("topics/t/append", {"value": "x" * (2 << 20)}, 422),
        ("topics/t/append", {"value": "x" * (5 << 20)}, 400),
        ("topics/t/partitions/0/trim", {}, 400),
        ("topics/t/partitions/0/trim", {"before": 1.5}, 400),
        ("topics/t/partitions/0/trim", {"before": 5}, 409),
        ("topics/t/partitions/0/compact", {}, 422),
        ("group/reset", {"group_id": "g"}, 400),
        ("group/reset", {"to": "earliest"}, 400),
        ("group/reset", {"group_id": "nobody", "to": "earliest"}, 404),
        ("transaction/abort", {}, 400),
        ("transaction/abort", {"transactional_id": "nobody"}, 409),
    ],
)
def test_a_change_that_makes_no_sense_changes_nothing(
    shared: CommitLog, writable: Client, path: str, body: Any, status: int
) -> None:
    partition = shared.create_topic("t").partition(0)
    answer = writable.post(path, body)
    assert answer.status == status and answer.json["error"], answer
    assert (partition.start_offset, partition.next_offset) == (0, 0)


def test_a_page_that_only_looks_changes_nothing(client: Client, log: CommitLog) -> None:
    partition = log.create_topic("t").partition(0)
    fill(partition, 3)
    for path in (
        "topics/t/append",
        "topics/t/partitions/0/trim",
        "topics/t/partitions/0/roll",
        "topics/t/partitions/0/compact",
        "group/reset",
        "transaction/abort",
    ):
        body = {"value": "x", "before": 2, "group_id": "g", "to": "earliest", "transactional_id": "i"}
        answer = client.post(path, body)
        assert (answer.status, "read-only" in answer.json["error"]) == (403, True), path
    assert (partition.start_offset, partition.next_offset, len(partition.segments)) == (0, 3, 1)
