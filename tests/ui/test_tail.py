from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from typing import Any

from helpers import fill

from commitlog import CommitLog
from commitlog.ui import tail_api
from commitlog.ui.tail_api import Follower

from .client import Client, served


@contextmanager
def following(client: Client, path: str) -> Iterator[Iterator[tuple[str, Any]]]:
    """Listen to a tail; gives its events, of which the first says that it listens."""
    connection = client.connect()
    connection.request("GET", f"{client.path}api/{path}")
    answer = connection.getresponse()
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/event-stream")
    try:
        yield _events(answer)
    finally:
        connection.close()


def _events(answer: HTTPResponse) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in answer:
        kind, _, text = line.decode().strip().partition(": ")
        if kind == "event":
            name = text
        elif kind == "data":
            yield name, json.loads(text)


def test_what_is_appended_arrives_at_who_listens(client: Client, log: CommitLog) -> None:
    topic = log.create_topic("t", 2)
    fill(topic.partition(0), 5)
    with following(client, "topics/t/tail") as events:
        assert next(events) == ("ready", {"partitions": 2})
        topic.append(b"three apples", key=b"alice", partition=1)
        name, news = next(events)
        assert name == "records"
        (one,) = news["partitions"]
        assert (one["partition"], one["skipped"], one["records"][0]["offset"]) == (1, 0, 0)
        assert one["records"][0]["value"]["text"] == "three apples"


def test_one_partition_can_be_followed_alone(client: Client, log: CommitLog) -> None:
    topic = log.create_topic("t", 2)
    with following(client, "topics/t/tail?partition=1") as events:
        assert next(events) == ("ready", {"partitions": 1})
        topic.append(b"not this", partition=0)
        topic.append(b"but this", partition=1)
        _, news = next(events)
        assert [one["partition"] for one in news["partitions"]] == [1]


def test_the_tail_of_what_is_not_there_is_refused(client: Client, log: CommitLog) -> None:
    log.create_topic("t")
    assert client.refused("topics/nothing/tail")[0] == 404
    assert client.refused("topics/t/tail?partition=3")[0] == 404


def test_a_tail_ends_with_the_server(log: CommitLog) -> None:
    log.create_topic("t")
    with served(log) as client, following(client, "topics/t/tail") as events:
        next(events)
        other = Client(client.url)
        assert other.get("topics")["total"] == 1
    # leaving the block joined the server's thread, although somebody was listening


def test_what_comes_too_fast_is_left_out_and_counted(log: CommitLog) -> None:
    topic = log.create_topic("t", 2)
    follower = Follower(dict(enumerate(topic.partitions)))
    assert follower.look() == []
    topic.append_many([b"x"] * 1000, partition=0)
    (news,) = follower.look()
    assert (news["skipped"], len(news["records"])) == (800, 200)
    assert news["records"][-1]["offset"] == 999
    topic.append_many([b"x"] * 300, partition=0)
    topic.append_many([b"x"] * 300, partition=1)
    assert [(one["skipped"], len(one["records"])) for one in follower.look()] == [(200, 100), (200, 100)]
    assert tail_api._MOST_RECORDS == 200


def test_a_partition_that_was_truncated_or_trimmed_is_followed_on(log: CommitLog) -> None:
    partition = log.create_topic("t").partition(0)
    fill(partition, 10)
    follower = Follower({0: partition})
    partition.truncate_from(4)
    assert follower.look() == []
    partition.append(b"again")
    ((record,),) = [one["records"] for one in follower.look()]
    assert record["offset"] == 4
    fill(partition, 10)
    partition.trim_before(10)
    (news,) = follower.look()
    assert (news["skipped"], [one["offset"] for one in news["records"]]) == (5, [10, 11, 12, 13, 14])
