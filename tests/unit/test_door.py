"""The door: what a user types first, and what a notebook, an editor or an event loop makes of it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import commitlog
from commitlog import (
    CommitLog,
    ConfigError,
    ConsumerConfig,
    ProducerConfig,
    TopicExistsError,
    UnknownTopicError,
)
from commitlog.config import ConsumerSettings, ProducerSettings
from commitlog.errors import CommitLogError, OffsetOutOfRangeError

WRONG = """
import commitlog

with commitlog.open("data") as log:
    topic = log.topic("t")
    topic.partition(0).append("text", kee=3)
    topic[0].append_many(["text"])
    log.producer(acks=2)
    log.producer(ack="all")
    log.consumer("t", auto_offset_reset="first")
    log.create_topic("t", exists_okay=True)
    commitlog.open("data", mode="rw")
    size: str = len(topic)
    for record in topic[0]:
        record.values
"""
RIGHT = """
import commitlog

async def main() -> None:
    with commitlog.open("data", mode="shared") as log:
        topic = log.create_topic("t", 2, exists_ok=True)
        offset: int = topic[0].append(b"value", key=b"key")
        offsets: range = topic.partition(0).append_many([b"a", b"b"], sync=True)
        values = [record.value for record in topic[0]] + [record.value for record in topic.records()]
        with log.producer(acks="all", linger_ms=0) as producer:
            place = await producer.send("t", b"value")
            where: int = place.offset
        with log.consumer(["t"], group_id="g", auto_offset_reset="earliest") as consumer:
            for record in consumer:
                print(record.value)
        print(offset, offsets, values, where, len(topic))
"""


def checked(tmp_path: Path, program: str) -> list[str]:
    path = tmp_path / "program.py"
    path.write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    return [line for line in done.stdout.splitlines() if "error:" in line]


def test_a_type_checker_refuses_what_would_fail_and_nothing_else(tmp_path: Path) -> None:
    assert checked(tmp_path, RIGHT) == []
    lines = {int(error.split(":")[1]) for error in checked(tmp_path, WRONG)}
    assert lines == {6, 7, 8, 9, 10, 11, 12, 13, 15}


@pytest.mark.parametrize(
    ("typed", "config"), [(ProducerSettings, ProducerConfig), (ConsumerSettings, ConsumerConfig)]
)
def test_the_typed_settings_are_those_of_the_config(typed: Any, config: Any) -> None:
    assert get_type_hints(typed) == get_type_hints(config)
    assert list(typed.__annotations__) == [setting.name for setting in fields(config)]


def test_a_topic_that_exists_is_created_again_only_if_asked(log: CommitLog) -> None:
    first = log.create_topic("t", 2)
    with pytest.raises(TopicExistsError):
        log.create_topic("t")
    assert log.create_topic("t", exists_ok=True) is first
    assert len(log.create_topic("u", 3, exists_ok=True)) == 3


def test_a_topic_is_a_sequence_of_partitions_and_a_partition_one_of_records(log: CommitLog) -> None:
    topic = log.create_topic("t", 2)
    topic[1].append_many([b"a", b"b"], keys=[b"k", b"l"])
    assert [len(topic), list(topic)] == [2, list(topic.partitions)]
    assert [record.value for record in topic[1]] == [b"a", b"b"]
    assert [(one.partition, one.offset, one.value) for one in topic.records()] == [(1, 0, b"a"), (1, 1, b"b")]
    table = topic.to_arrow()
    assert table.column_names == ["partition", "offset", "timestamp", "key", "value", "headers"]
    assert table["partition"].to_pylist() == [1, 1]
    assert topic.to_reader(["value"]).read_all().column_names == ["partition", "value"]


def test_a_consumer_takes_topics_one_by_one_or_as_a_list(log: CommitLog) -> None:
    for name in ("a", "b"):
        log.create_topic(name).append(b"value")
    for topics in (("a", "b"), (["a", "b"],), (["a"], "b")):
        with log.consumer(*topics, consumer_timeout_ms=0) as consumer:
            assert consumer.subscription() == {"a", "b"}


def test_a_name_that_is_nearly_right_gets_a_hint(log: CommitLog) -> None:
    log.create_topic("orders")
    with pytest.raises(UnknownTopicError, match="did you mean 'orders'"):
        log.topic("oders")
    with pytest.raises(UnknownTopicError, match=r"^no topic 'payments'$"):
        log.topic("payments")
    with pytest.raises(ConfigError, match="did you mean linger_ms"):
        log.producer(linger=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="did you mean retention_ms"):
        log.create_topic("t", config={"retention.mss": 3})
    with pytest.raises(ConfigError, match="there are acks"):
        log.producer(colour="red")  # type: ignore[call-arg]


def test_errors_have_named_fields(log: CommitLog) -> None:
    partition = log.create_topic("t").partition(0)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        partition.get(7)
    assert (caught.value.offset, caught.value.start_offset, caught.value.next_offset) == (7, 0, 0)
    assert caught.value.where == "t-0"


@pytest.mark.parametrize("error", CommitLogError.__subclasses__(), ids=lambda error: error.__name__)
def test_every_field_of_an_error_is_an_attribute(error: type[CommitLogError]) -> None:
    values = [f"value {number}" for number in range(len(error.fields))]
    made = error(*values)
    assert [getattr(made, name) for name in error.fields] == values
    assert str(made)


def test_a_future_can_be_awaited(log: CommitLog) -> None:
    log.create_topic("t")

    async def send() -> list[int]:
        with log.producer(linger_ms=20) as producer:
            places = await asyncio.gather(*(_awaited(producer.send("t", b"%d" % n)) for n in range(50)))
            return [place.offset for place in places]

    assert asyncio.run(send()) == list(range(50))


async def _awaited(future: commitlog.RecordFuture) -> commitlog.RecordMetadata:
    return await future


def test_an_awaited_future_raises_what_kept_its_record_from_being_there(log: CommitLog) -> None:
    partition = log.create_topic("t").partition(0)

    async def send() -> None:
        with log.producer(delivery_timeout_ms=0, linger_ms=20) as producer:
            partition._state.fail("broken")
            await producer.send("t", b"value")

    with pytest.raises(CommitLogError, match="broken"):
        asyncio.run(send())


def test_a_callback_added_to_a_future_is_called_once_before_or_after_its_end(log: CommitLog) -> None:
    log.create_topic("t")
    called: list[tuple[str, int]] = []
    with log.producer(linger_ms=1000) as producer:
        future = producer.send("t", b"value")
        future.add_done_callback(lambda done: called.append(("before", done.result().offset)))
        assert called == []
        producer.flush()
        assert called == [("before", 0)]
        future.add_done_callback(lambda done: called.append(("after", done.result().offset)))
    assert called == [("before", 0), ("after", 0)]


def test_clients_say_what_they_do(log: CommitLog) -> None:
    log.create_topic("t")
    with log.producer(client_id="shop", acks="all") as producer, log.consumer("t", group_id="g") as consumer:
        assert repr(producer) == "<Producer shop: acks='all', 0 open batches>"
        consumer.poll(0)
        assert repr(consumer) == "<Consumer of group 'g' reads t-0>"
    assert repr(producer) == "<Producer shop: closed>"
    assert repr(consumer) == "<Consumer of group 'g': closed>"


def test_a_notebook_shows_small_tables(log: CommitLog) -> None:
    topic = log.create_topic("t", 12, {"cleanup_policy": "compact"})
    topic[0].append_many([b"<b>%d</b>" % n for n in range(30)], keys=[b"k%d" % n for n in range(30)])
    shown = {
        "topic": topic._repr_html_(),
        "partition": topic[0]._repr_html_(),
        "batch": next(topic[0].batches())._repr_html_(),
        "latest": topic.latest()._repr_html_(),
    }
    for text in shown.values():
        assert text.startswith("<table>") and text.count("<tr>") <= 12
        assert "<b>" not in text
    assert "<td>29</td>" in shown["partition"] and "…" in shown["batch"]
