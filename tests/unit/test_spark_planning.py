from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog import CommitLog, ConfigError, TopicPartition, UnknownTopicError
from commitlog.errors import DataLossError, UnknownPartitionError
from commitlog.spark.options import ReadOptions
from commitlog.spark.planning import (
    Range,
    batch_ranges,
    cut,
    dump,
    grouped,
    load,
    stream_ranges,
    subscribed,
)


@pytest.fixture
def shop(log: CommitLog, log_path: Path) -> Iterator[CommitLog]:
    """Topics: "orders", 2 partitions with 100 and 50 records in batches of 10; "bills" with 1; "empty"."""
    orders = log.create_topic("orders", partitions=2)
    for number in range(10):
        orders.partition(0).append_many([b"o"] * 10, timestamps=range(number * 100, number * 100 + 10))
    for number in range(5):
        orders.partition(1).append_many([b"o"] * 10, timestamps=range(number * 100, number * 100 + 10))
    log.create_topic("bills").append(b"b", timestamp=5)
    log.create_topic("empty")
    with commitlog.open(log_path, mode="r") as reading:
        yield reading


def options(**given: Any) -> ReadOptions:
    texts = {name: one if isinstance(one, str) else json.dumps(one) for name, one in given.items()}
    return ReadOptions.of({"path": "/data/log", **texts})


def ranges(log: CommitLog, **given: Any) -> list[tuple[Any, ...]]:
    return places(batch_ranges(log, options(**given)))


def places(ranges: Iterable[Range]) -> list[tuple[Any, ...]]:
    """Ranges without ids."""
    return [tuple(one)[:4] for one in ranges]


def test_without_a_subscription_all_topics_are_read(shop: CommitLog) -> None:
    assert ranges(shop) == [("bills", 0, 0, 1), ("orders", 0, 0, 100), ("orders", 1, 0, 50)]


def test_topics_are_named_matched_or_assigned(shop: CommitLog) -> None:
    def names(**given: Any) -> list[tuple[object, ...]]:
        return [tuple(name) for name in subscribed(shop, options(**given))]

    assert names(subscribe="orders,empty") == [("empty", 0), ("orders", 0), ("orders", 1)]
    assert names(subscribePattern="o.*|b.*") == [("bills", 0), ("orders", 0), ("orders", 1)]
    assert names(subscribePattern="order") == []
    assert names(assign={"orders": [1], "bills": [0]}) == [("bills", 0), ("orders", 1)]


def test_what_is_named_must_be_there_unless_a_query_runs_already(shop: CommitLog) -> None:
    with pytest.raises(UnknownTopicError, match="ordres"):
        subscribed(shop, options(subscribe="orders,ordres"))
    with pytest.raises(UnknownPartitionError, match="no partition 7"):
        subscribed(shop, options(assign={"orders": [0, 7]}))
    assert len(subscribed(shop, options(subscribe="orders,ordres"), all_there=False)) == 2
    assert len(subscribed(shop, options(assign={"orders": [0, 7]}), all_there=False)) == 1


def test_a_topic_that_is_deleted_while_topics_are_listed_is_just_not_there(
    shop: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shop, "topics", lambda: ["bills", "gone", "orders"])
    assert {name.topic for name in subscribed(shop, options(), all_there=False)} == {"bills", "orders"}
    with pytest.raises(UnknownTopicError):
        subscribed(shop, options())


def test_offsets_bound_a_query_on_both_sides(shop: CommitLog) -> None:
    found = ranges(
        shop,
        subscribe="orders",
        startingOffsets={"orders": {"0": 7, "1": -2}},
        endingOffsets={"orders": {"0": 93, "1": -1}},
    )
    assert found == [("orders", 0, 7, 93), ("orders", 1, 0, 50)]
    assert ranges(shop, subscribe="orders", startingOffsets="latest") == []


def test_timestamps_bound_a_query_on_both_sides(shop: CommitLog) -> None:
    found = ranges(shop, subscribe="orders", startingTimestamp="105", endingTimestamp="401")
    assert found == [("orders", 0, 15, 41), ("orders", 1, 15, 41)]
    by_partition = {"orders": {"0": 900, "1": 0}}
    found = ranges(shop, subscribe="orders", startingOffsetsByTimestamp=by_partition, endingTimestamp="905")
    assert found == [("orders", 0, 90, 95), ("orders", 1, 0, 50)]


def test_a_start_as_late_as_no_record_is_an_error_or_the_end(shop: CommitLog) -> None:
    with pytest.raises(ConfigError, match=r"startingTimestamp = 500: orders-1 has no record as late as that"):
        ranges(shop, subscribe="orders", startingTimestamp="500")
    found = ranges(
        shop, subscribe="orders", startingTimestamp="500", startingOffsetsByTimestampStrategy="latest"
    )
    assert found == [("orders", 0, 50, 100)]


def test_bounds_by_partition_must_name_all_of_them_and_no_others(shop: CommitLog) -> None:
    with pytest.raises(ConfigError, match="no others, but orders-1 is missing"):
        ranges(shop, subscribe="orders", startingOffsets={"orders": {"0": 1}})
    with pytest.raises(ConfigError, match="no others, but bills-0 is not subscribed to"):
        ranges(shop, assign={"orders": [0]}, endingOffsets={"orders": {"0": 1}, "bills": {"0": 1}})


def test_what_is_asked_for_and_not_there_is_lost(
    log: CommitLog, shop: CommitLog, caplog: pytest.LogCaptureFixture
) -> None:
    log.topic("orders").partition(0).trim_before(30)
    below = {"assign": {"orders": [0]}, "startingOffsets": {"orders": {"0": 10}}}
    above = {"assign": {"orders": [0]}, "endingOffsets": {"orders": {"0": 200}}}
    with pytest.raises(
        DataLossError, match=r"orders-0: offsets \[10, 30\) were removed; with failOnDataLoss"
    ):
        ranges(shop, **below)
    with pytest.raises(DataLossError, match="offset 200 is after its end, 100"):
        ranges(shop, **above)
    with caplog.at_level(logging.WARNING):
        assert ranges(shop, **below, failOnDataLoss="false") == [("orders", 0, 30, 100)]
        assert ranges(shop, **above, failOnDataLoss="false") == [("orders", 0, 30, 100)]
    assert len(caplog.records) == 2


def test_earliest_is_where_the_log_starts_now(log: CommitLog, shop: CommitLog) -> None:
    log.topic("orders").partition(0).trim_before(30)
    assert ranges(shop, assign={"orders": [0]}) == [("orders", 0, 30, 100)]


# --- pieces


def pieces(log: CommitLog, **given: Any) -> list[tuple[int, int, int]]:
    chosen = options(subscribe="orders", **given)
    return [one[1:4] for one in cut(log, chosen, batch_ranges(log, chosen))]


def test_ranges_are_cut_where_stored_batches_begin(shop: CommitLog) -> None:
    assert pieces(shop, maxRecordsPerPartition="35") == [
        (0, 0, 30), (0, 30, 60), (0, 60, 90), (0, 90, 100), (1, 0, 30), (1, 30, 50),
    ]  # fmt: skip


def test_no_piece_has_more_records_than_allowed_even_where_a_stored_batch_has(shop: CommitLog) -> None:
    found = pieces(shop, maxRecordsPerPartition="7")
    assert max(end - start for _, start, end in found) <= 7
    assert sum(end - start for _, start, end in found) == 150


@pytest.mark.parametrize("least", [1, 2, 3, 4, 7, 15, 40])
def test_there_are_at_least_as_many_pieces_as_asked_for(shop: CommitLog, least: int) -> None:
    found = pieces(shop, minPartitions=str(least))
    assert max(least, 2) <= len(found) <= least + 2
    assert [one[0] for one in found] == sorted(one[0] for one in found)
    for number, end in ((0, 100), (1, 50)):
        bounds = [one[1:] for one in found if one[0] == number]
        assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
        assert bounds[-1][1] == end


def test_nothing_is_cut_unless_asked_for(shop: CommitLog) -> None:
    assert pieces(shop) == [(0, 0, 100), (1, 0, 50)]
    assert pieces(shop, startingOffsets="latest", minPartitions="5") == []


def test_small_ranges_share_a_task() -> None:
    ranges = [Range("t", number, 0, 3_000) for number in range(7)]
    assert [len(group) for group in grouped(ranges)] == [3, 3, 1]
    assert [one for group in grouped(ranges) for one in group] == ranges
    assert grouped([]) == []


# --- streams


def test_offsets_have_one_form_whatever_order_they_come_in() -> None:
    names = [TopicPartition("b", 10), TopicPartition("b", 9), TopicPartition("a", 0)]
    there = dict.fromkeys(names, 5)
    back = dict.fromkeys(reversed(names), 5)
    assert json.dumps(dump(there)) == json.dumps(dump(back)) == '{"a": {"0": 5}, "b": {"9": 5, "10": 5}}'
    assert load(json.loads(json.dumps(dump(there)))) == there
    assert load({}) == {}


def test_a_micro_batch_is_what_lies_between_two_offsets(shop: CommitLog) -> None:
    name, other = TopicPartition("orders", 0), TopicPartition("orders", 1)
    found = stream_ranges(shop, options(), {name: 10, other: 50}, {name: 30, other: 50})
    assert places(found) == [("orders", 0, 10, 30)]


def test_a_partition_that_is_new_is_read_from_its_beginning(shop: CommitLog) -> None:
    found = stream_ranges(shop, options(), {}, {TopicPartition("orders", 1): 20})
    assert places(found) == [("orders", 1, 0, 20)]


def test_a_micro_batch_that_ends_before_it_starts_is_empty(shop: CommitLog) -> None:
    name = TopicPartition("orders", 0)
    assert stream_ranges(shop, options(), {name: 300}, {name: 100}) == []


def test_a_micro_batch_of_a_deleted_topic_is_lost(log: CommitLog, shop: CommitLog) -> None:
    name = TopicPartition("bills", 0)
    log.delete_topic("bills")
    with pytest.raises(DataLossError, match="bills-0: it was deleted"):
        stream_ranges(shop, options(), {name: 0}, {name: 1})
    assert stream_ranges(shop, options(failOnDataLoss="false"), {name: 0}, {name: 1}) == []
