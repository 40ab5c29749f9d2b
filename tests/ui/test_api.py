from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from helpers import fill, flip, names, tree, wait_until

import commitlog
from commitlog import CommitLog, TopicPartition
from commitlog.ui import server

from .client import Client, served


def test_the_page_tells_which_log_it_shows_and_that_it_only_looks(client: Client, log: CommitLog) -> None:
    assert client.get("about") == {"path": log.path, "writable": False, "version": commitlog.__version__}


def test_a_log_without_topics_is_an_empty_list(client: Client) -> None:
    assert client.get("topics") == {"topics": [], "from": 0, "total": 0}
    assert client.get("groups") == {"groups": [], "from": 0, "total": 0}


def test_topics_are_listed_with_their_sizes(client: Client, log: CommitLog) -> None:
    orders = log.create_topic("orders", 2, {"cleanup_policy": "compact"})
    fill(orders.partition(1), 10)
    orders.partition(1).trim_before(4)
    (listed,) = client.get("topics")["topics"]
    assert (listed["name"], listed["partitions"], listed["segments"], listed["records"]) == (
        "orders",
        2,
        2,
        6,
    )
    assert listed["bytes"] == orders.partition(1).size_bytes
    assert listed["cleanup_policy"] == "compact"


def test_long_lists_come_in_pages_and_can_be_searched(client: Client, log: CommitLog) -> None:
    for number in range(60):
        log.create_topic(f"topic-{number:02d}")
    first, second = client.get("topics"), client.get("topics?from=50")
    assert (len(first["topics"]), len(second["topics"]), second["total"]) == (50, 10, 60)
    found = client.get("topics?search=IC-1")
    assert [one["name"] for one in found["topics"]] == [f"topic-{number}" for number in range(10, 20)]
    assert client.get("topics?from=1000")["topics"] == []


def test_the_partitions_of_a_topic_come_in_pages(client: Client, log: CommitLog) -> None:
    log.create_topic("wide", 120)
    assert [one["partition"] for one in client.get("topics/wide")["listed"]] == list(range(50))
    assert [one["partition"] for one in client.get("topics/wide?from=100")["listed"]] == list(range(100, 120))


def test_a_partition_is_described_with_its_bars(client: Client, log: CommitLog) -> None:
    partition = log.create_topic("t", config={"segment_bytes": 2000}).partition(0)
    fill(partition, 100)
    found = client.get("topics/t/partitions/0")
    assert (found["start_offset"], found["next_offset"], found["high_watermark"]) == (0, 100, 100)
    assert found["segments"] == len(partition.segments) == len(found["bars"])
    assert found["bars"][-1]["state"] == "active"
    bar = found["bars"][0]
    about = client.get(f"topics/t/partitions/0/details?base_offset=0&end_offset={bar['end_offset']}")
    assert about["records"] == bar["end_offset"]
    assert about["first_timestamp"] == 1000


def test_a_partition_with_very_many_segments_is_drawn_with_few_bars(client: Client, log: CommitLog) -> None:
    partition = log.create_topic("t", config={"file_delete_delay_ms": 0}).partition(0)
    for _ in range(500):
        partition.append(b"x")
        partition.roll()
    assert len(client.get("topics/t/partitions/0")["bars"]) <= 251
    assert len(client.get("topics/t")["listed"][0]["bars"]) <= 65


def test_records_are_found_by_offset_time_and_key(client: Client, log: CommitLog) -> None:
    fill(log.create_topic("t").partition(0), 100)  # at offset n: time 1000 + n, key k(n % 3)

    def offsets(query: str) -> list[int]:
        return [one["offset"] for one in client.get(f"topics/t/partitions/0/records?{query}")["records"]]

    assert offsets("limit=3") == [0, 1, 2]
    assert offsets("from=40&limit=3") == [40, 41, 42]
    assert offsets("order=newest&limit=3") == [99, 98, 97]
    assert offsets("order=newest&from=40&limit=3") == [39, 38, 37]
    assert offsets("time=1060&limit=2") == [60, 61]
    assert offsets("time=5000") == []
    assert offsets("key=k1&from=50&limit=2") == [52, 55]
    assert offsets("key=6b31&key_format=hex&limit=2") == [1, 4]
    assert offsets("contains=99") == [99]


def test_the_place_of_a_key_is_where_the_partitioner_puts_it(client: Client, log: CommitLog) -> None:
    topic = log.create_topic("t", 16)
    for name in ("alice", "bob", ""):
        assert client.get(f"topics/t/place?key={name}") == {
            "partition": topic.append(b"x", key=name.encode())[0]
        }
    assert client.get("topics/t/place?key=616c696365&key_format=hex") == client.get(
        "topics/t/place?key=alice"
    )


def test_a_page_of_records_says_where_the_next_one_starts(client: Client, log: CommitLog) -> None:
    fill(log.create_topic("t").partition(0), 10)
    page = client.get("topics/t/partitions/0/records?limit=4")
    assert (page["next"], page["looked_at"], page["end_offset"]) == (4, [0, 4], 10)
    assert client.get("topics/t/partitions/0/records?from=4&limit=6")["next"] is None
    assert client.get("topics/t/partitions/0/records?order=newest&limit=4")["next"] == 6
    assert client.get("topics/t/partitions/0/records?order=newest&from=2&limit=4")["next"] is None


def test_a_huge_value_is_cut_and_shown_in_full_up_to_a_bound(client: Client, log: CommitLog) -> None:
    partition = log.create_topic("t", config={"max_message_bytes": 8 << 20}).partition(0)
    partition.append(b"x" * 100_000)
    partition.append(b"y" * (4 << 20))
    small, large = client.get("topics/t/partitions/0/records")["records"]
    assert (small["value"]["bytes"], small["value"]["shown"]) == (100_000, 2048)
    assert client.get("topics/t/partitions/0/records/0")["value"]["text"] == "x" * 100_000
    whole = client.get("topics/t/partitions/0/records/1")["value"]
    assert (large["value"]["bytes"], whole["bytes"], whole["shown"]) == (4 << 20, 4 << 20, 1 << 20)


def test_a_record_that_compaction_removed_is_said_to_be_removed(client: Client, log: CommitLog) -> None:
    partition = log.create_topic("c", config={"cleanup_policy": "compact"}).partition(0)
    partition.append_many([b"old", b"new"], keys=[b"k", b"k"])
    partition.roll()
    partition.compact()
    assert client.refused("topics/c/partitions/0/records/0") == (
        404,
        "there is no record at offset 0; compaction removed it",
    )


def test_groups_are_described_with_their_lag(client: Client, log: CommitLog) -> None:
    topic = log.create_topic("t", 3)
    for partition in topic.partitions:
        fill(partition, 10)
    log.commit_offsets("a/b?c", {TopicPartition("t", 0): 10, TopicPartition("t", 1): 4})
    (listed,) = client.get("groups")["groups"]
    assert (listed["group_id"], listed["state"], listed["lag"], listed["topics"]) == (
        "a/b?c",
        "Empty",
        6,
        ["t"],
    )
    found = client.get(f"group?group_id={quote('a/b?c', safe='')}")
    assert [(one["partition"], one["lag"]) for one in found["listed"]] == [(0, 0), (1, 6)]
    assert found["worst_lag"] == 6
    with log.consumer("t", group_id="live", client_id="worker") as consumer:
        consumer.poll(1.0)
        (member,) = client.get("group?group_id=live")["listed_members"]
        assert member["client_id"] == "worker"


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("topics/nothing", 404, "nothing"),
        ("topics/t/partitions/7", 404, "7"),
        ("topics/a%20b", 422, "a b"),
        ("topics/t/partitions/0/records?from=x", 400, "from must be a whole number"),
        ("topics/t/partitions/0/records?from=-1", 400, "from must be between"),
        ("topics/t/partitions/0/records?from=99999999999999999999", 400, "from must be between"),
        ("topics/t/partitions/0/records?limit=0", 400, "limit must be between"),
        ("topics/t/partitions/0/records?order=sideways", 400, "order must be oldest or newest"),
        ("topics/t/partitions/0/records?key=xyz&key_format=hex", 400, "'xyz' is not hex"),
        ("topics/t/partitions/0/records/5", 409, "5"),
        ("group?group_id=nobody", 404, "nobody"),
        ("group", 400, "group_id is missing"),
    ],
)
def test_a_mistake_is_answered_by_a_sentence(
    client: Client, log: CommitLog, path: str, status: int, sentence: str
) -> None:
    log.create_topic("t")
    answer = client.refused(path)
    assert answer[0] == status and sentence in answer[1], answer


def test_damage_is_answered_by_a_sentence_that_names_the_file(client: Client, log: CommitLog) -> None:
    partition = log.create_topic("t").partition(0)
    fill(partition, 1)
    flip(partition.segments[0].path, 90)
    status, sentence = client.refused("topics/t/partitions/0/records")
    assert status == 422 and "00000000000000000000.log" in sentence


def test_looking_writes_nothing_into_the_log(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        fill(log.create_topic("t").partition(0), 10)
    before = tree(log_path)
    with commitlog.open(log_path, mode="r") as reader, served(reader) as client:
        for path in (
            "topics",
            "topics/t",
            "topics/t/partitions/0",
            "topics/t/partitions/0/records",
            "groups",
        ):
            client.get(path)
    assert tree(log_path) == before


def test_a_page_that_nobody_looks_at_keeps_no_removed_files(
    log: CommitLog, log_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def removed() -> list[str]:
        maps = Path("/proc/self/maps").read_text().splitlines()
        return [line for line in maps if str(log_path) in line and line.endswith("(deleted)")]

    monkeypatch.setattr(server, "_RELEASE_SECONDS", 0.01)
    partition = log.create_topic("t", config={"file_delete_delay_ms": 0}).partition(0)
    with commitlog.open(log_path, mode="r") as reader, served(reader) as client:
        partition.append(b"x" * 500_000)
        partition.roll()
        client.get("topics/t/partitions/0/records")
        partition.append(b"y")
        partition.trim_before(1)
        wait_until(
            lambda: not any(name.startswith("00000000000000000000.") for name in names(partition.path))
        )
        wait_until(lambda: not removed())


def test_the_page_sees_a_log_that_is_written_meanwhile(client: Client, log: CommitLog) -> None:
    topic = log.create_topic("t")
    for number in range(5):
        topic.append(b"%d" % number)
        page = client.get("topics/t/partitions/0/records?order=newest&limit=1")
        assert page["records"][0]["value"]["text"] == str(number)
    log.delete_topic("t")
    assert client.refused("topics/t")[0] == 404
