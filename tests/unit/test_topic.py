from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers import contents, tree

import commitlog
from commitlog import (
    CommitLog,
    ConfigError,
    InvalidRecordError,
    RecordTooLargeError,
    Topic,
    TopicConfig,
    UnknownTopicError,
)
from commitlog.errors import BatchTooLargeError, UnknownPartitionError
from commitlog.topics.partitioner import murmur2

KEYS = [b"key-%d" % number for number in range(40)]


@pytest.fixture
def topic(log: CommitLog) -> Topic:
    return log.create_topic("orders", partitions=3, config={"flush_ms": -1})


def ends(topic: Topic) -> list[int]:
    return [partition.next_offset for partition in topic.partitions]


def test_a_topic_has_a_name_a_config_and_partitions(topic: Topic) -> None:
    assert topic.name == "orders"
    assert topic.config == TopicConfig(flush_ms=-1)
    assert len(topic.partitions) == 3
    assert [partition.name for partition in topic.partitions] == ["orders-0", "orders-1", "orders-2"]
    assert topic.partition(2) is topic.partitions[2]
    assert repr(topic) == "<Topic orders with 3 partitions>"


@pytest.mark.parametrize("number", [-1, 3, 100])
def test_a_partition_that_is_not_there_is_said_to_be_unknown(topic: Topic, number: int) -> None:
    for call in (
        lambda: topic.partition(number),
        lambda: topic.append(b"x", partition=number),
        lambda: topic.append_many([b"x"], partition=number),
    ):
        with pytest.raises(UnknownPartitionError) as caught:
            call()
        assert caught.value.args == ("orders", number, 3)
    assert ends(topic) == [0, 0, 0]


def test_a_key_always_goes_to_the_same_partition(topic: Topic) -> None:
    first = {key: topic.append(b"1", key=key)[0] for key in KEYS}
    assert {key: topic.append(b"2", key=key)[0] for key in KEYS} == first
    assert set(first.values()) == {0, 1, 2}
    for partition in topic.partitions:
        for record in partition.records():
            assert f"orders-{first[record.key]}" == partition.name


def test_an_append_tells_where_the_record_went(topic: Topic) -> None:
    number, offset = topic.append(b"v", key=b"k", headers=[("h", b"1")], timestamp=7)
    assert topic.partition(number).get(offset) == (offset, 7, b"k", b"v", (("h", b"1"),))


def test_unkeyed_records_take_turns(topic: Topic) -> None:
    for _ in range(9):
        topic.append(b"v")
    assert ends(topic) == [3, 3, 3]


def test_a_record_goes_where_the_caller_says(topic: Topic) -> None:
    assert topic.append(b"v", key=b"k", partition=1) == (1, 0)
    assert topic.append_many([b"v"] * 4, keys=KEYS[:4], partition=1) == {1: range(1, 5)}
    assert ends(topic) == [0, 5, 0]


def test_a_batch_is_divided_by_key_and_keeps_its_order_in_each_partition(topic: Topic) -> None:
    single = {key: topic.append(b"", key=key)[0] for key in KEYS}
    before = ends(topic)
    values = [b"%d" % number for number in range(120)]
    shares = topic.append_many(
        values,
        keys=KEYS * 3,
        headers=[[("row", value)] for value in values],
        timestamps=range(120),
    )
    for number, offsets in shares.items():
        assert offsets.start == before[number]
        records = list(topic.partition(number).records(offsets.start))
        rows = [row for row, key in enumerate(KEYS * 3) if single[key] == number]
        assert [record.value for record in records] == [b"%d" % row for row in rows]
        assert [record.timestamp for record in records] == rows
        assert [record.key for record in records] == [(KEYS * 3)[row] for row in rows]
        assert [record.headers for record in records] == [(("row", b"%d" % row),) for row in rows]
    assert sum(len(offsets) for offsets in shares.values()) == 120


def test_unkeyed_batches_take_turns_as_a_whole(topic: Topic) -> None:
    went = [topic.append_many([b"a", b"b"]) for _ in range(3)]
    assert sorted(number for shares in went for number in shares) == [0, 1, 2]
    assert ends(topic) == [2, 2, 2]


def test_keyed_and_unkeyed_records_of_a_batch_are_all_stored(topic: Topic) -> None:
    keys = [key if number % 3 else None for number, key in enumerate(KEYS)]
    topic.append_many([b"%d" % number for number in range(40)], keys=keys)
    stored = {record.value: record.key for one in topic.partitions for record in contents(one)}
    assert stored == {b"%d" % number: key for number, key in enumerate(keys)}
    homes = {one.name for one in topic.partitions for record in contents(one) if record.key is None}
    assert len(homes) == 1


def test_an_empty_batch_changes_nothing(topic: Topic) -> None:
    before = tree(topic.partition(0).path)
    assert topic.append_many([]) == {}
    assert topic.append_many([], keys=[], timestamps=[]) == {}
    assert tree(topic.partition(0).path) == before


def test_columns_may_be_any_iterables(topic: Topic) -> None:
    shares = topic.append_many(iter([b"a", b"b"]), keys=iter([b"k", b"k"]), timestamps=iter([1, 2]))
    assert [len(offsets) for offsets in shares.values()] == [2]


@pytest.mark.parametrize(
    ("columns", "error", "row"),
    [
        ({"values": [b""] * 39 + ["text"], "keys": KEYS}, InvalidRecordError, 39),
        ({"values": [b""] * 40, "keys": [*KEYS[:39], 5]}, InvalidRecordError, 39),
        ({"values": [b""] * 40, "keys": [*KEYS[:39], "text"]}, InvalidRecordError, 39),
        ({"values": [b""] * 40, "keys": KEYS[:39]}, InvalidRecordError, 39),
        ({"values": [b""] * 40, "keys": KEYS, "timestamps": range(39)}, InvalidRecordError, 39),
        ({"values": [b""] * 40, "keys": KEYS, "timestamps": [*range(39), -1]}, InvalidRecordError, 39),
        ({"values": [b""] * 40, "keys": KEYS, "headers": [()] * 39}, InvalidRecordError, 39),
        ({"values": [b""] * 40, "keys": KEYS, "headers": [*[()] * 39, [("a", "b")]]}, InvalidRecordError, 39),
        ({"values": [b""] * 39 + [bytes(2_000)], "keys": KEYS}, RecordTooLargeError, 39),
        ({"values": [], "keys": [b"k"]}, InvalidRecordError, 0),
        ({"values": [], "timestamps": [1]}, InvalidRecordError, 0),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else None,
)
def test_a_bad_row_is_refused_by_its_number_and_no_partition_gets_anything(
    log: CommitLog, columns: dict[str, Any], error: type[Exception], row: int
) -> None:
    topic = log.create_topic("t", partitions=3, config={"max_message_bytes": 1_000, "flush_ms": -1})
    before = tree(log.path)
    with pytest.raises(error) as caught:
        topic.append_many(**columns)
    assert caught.value.args[0] == row
    assert ends(topic) == [0, 0, 0]
    assert tree(log.path) == before


@pytest.mark.parametrize("key", [5, "text", 1.5, [b"k"]])
def test_a_key_that_is_not_bytes_like_is_refused(topic: Topic, key: Any) -> None:
    with pytest.raises(InvalidRecordError, match="key must be bytes-like"):
        topic.append(b"", key=key)
    assert ends(topic) == [0, 0, 0]


def test_a_share_that_fits_in_no_segment_is_refused_before_any_other_is_written(log: CommitLog) -> None:
    topic = log.create_topic("t", partitions=2, config={"segment_bytes": 1_000, "flush_ms": -1})
    home = {key: topic.append(b"", key=key)[0] for key in KEYS}
    before = ends(topic)
    light = next(key for key in KEYS if home[key] == 0)
    heavy = next(key for key in KEYS if home[key] == 1)
    for keys in ([light, heavy, heavy], [heavy, heavy, light]):
        with pytest.raises(BatchTooLargeError):
            topic.append_many([bytes(600)] * 3, keys=keys)
        assert ends(topic) == before


def test_a_synced_append_is_durable(topic: Topic) -> None:
    number, offset = topic.append(b"v", sync=True)
    assert topic.partition(number).durable_offset == offset + 1
    for number, offsets in topic.append_many([b"v"] * 40, keys=KEYS, sync=True).items():
        assert topic.partition(number).durable_offset == offsets.stop


# --- changing


def test_partitions_can_be_added_and_stay(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        topic = log.create_topic("t")
        topic.append(b"old")
        topic.add_partitions(4)
        assert len(topic.partitions) == 4
        assert log.topic("t").partitions == topic.partitions
        topic.append(b"new", partition=3)
        assert {topic.append(b"", key=key)[0] for key in KEYS} == {0, 1, 2, 3}
    with commitlog.open(log_path) as log:
        topic = log.topic("t")
        assert len(topic.partitions) == 4
        assert contents(topic.partition(0))[0].value == b"old"
        assert contents(topic.partition(3))[0].value == b"new"


def test_adding_no_partitions_is_fine(topic: Topic) -> None:
    topic.add_partitions(3)
    assert len(topic.partitions) == 3


@pytest.mark.parametrize("count", [2, 0, -1, 10_000, 3.5, "4", True])
def test_partitions_only_grow(topic: Topic, log: CommitLog, count: Any) -> None:
    before = tree(log.path)
    with pytest.raises(ConfigError, match="partitions"):
        topic.add_partitions(count)
    assert len(topic.partitions) == 3
    assert tree(log.path) == before


def test_settings_change_at_once_and_stay(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        topic = log.create_topic("t", config={"max_message_bytes": 10, "flush_ms": 50})
        with pytest.raises(RecordTooLargeError):
            topic.append(bytes(11))
        topic.alter_config(max_message_bytes=100, compression_type="zstd")
        topic.append(bytes(100), key=b"")
        topic.append_many([bytes(100)])
        assert topic.config == TopicConfig(max_message_bytes=100, flush_ms=50, compression_type="zstd")
    with commitlog.open(log_path) as log:
        topic = log.topic("t")
        assert topic.config == TopicConfig(max_message_bytes=100, flush_ms=50, compression_type="zstd")
        assert {batch.header.compression_type for batch in topic.partition(0).batches()} == {"zstd"}


def test_a_new_segment_size_counts_from_the_next_roll_on(log: CommitLog) -> None:
    topic = log.create_topic("t", config={"segment_bytes": 1_000})
    partition = topic.partition(0)
    topic.alter_config(segment_bytes=100_000)
    partition.append(bytes(50_000))
    topic.alter_config(segment_bytes=600)
    for _ in range(10):
        partition.append(bytes(200))
    assert [record.offset for record in partition.records()] == list(range(11))
    partition.roll()
    for _ in range(10):
        partition.append(bytes(200))
    assert partition.segments[-1].size_bytes <= 600


def test_another_partitioner_counts_from_the_next_append_on(topic: Topic) -> None:
    hashed = {key: topic.append(b"", key=key)[0] for key in KEYS}
    topic.alter_config(partitioner="murmur2")
    murmured = {key: topic.append(b"", key=key)[0] for key in KEYS}
    assert murmured == {key: murmur2(key) % 3 for key in KEYS} != hashed


def test_kafkas_names_may_be_given_when_settings_change(topic: Topic) -> None:
    topic.alter_config(**{"retention.ms": "5"})
    assert topic.config.retention_ms == 5


@pytest.mark.parametrize("changes", [{"retention_ms": -5}, {"no_such_setting": 1}, {"segment_bytes": "x"}])
def test_a_wrong_setting_is_refused_and_nothing_changes(
    topic: Topic, log: CommitLog, changes: dict[str, Any]
) -> None:
    before, config = tree(log.path), topic.config
    with pytest.raises(ConfigError):
        topic.alter_config(**changes)
    assert topic.config is config
    assert tree(log.path) == before


def test_a_deleted_topic_does_not_come_back_through_an_old_handle(topic: Topic, log: CommitLog) -> None:
    log.delete_topic("orders")
    before = tree(log.path)
    with pytest.raises(UnknownTopicError):
        topic.alter_config(retention_ms=5)
    with pytest.raises(UnknownTopicError):
        topic.add_partitions(5)
    assert log.topics() == []
    assert tree(log.path) == before


def test_an_old_handle_does_not_touch_a_new_topic_of_the_same_name(topic: Topic, log: CommitLog) -> None:
    log.delete_topic("orders")
    new = log.create_topic("orders")
    with pytest.raises(commitlog.CommitLogError):
        topic.append(b"x", partition=0)
    with pytest.raises(commitlog.CommitLogError):
        topic.alter_config(retention_ms=5)
    assert ends(new) == [0]
    assert new.config == TopicConfig()
