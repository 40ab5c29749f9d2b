from __future__ import annotations

import logging
from typing import Any

import pytest

from commitlog import ConfigError, TopicPartition
from commitlog.spark import parsing
from commitlog.spark.options import Bound, ReadOptions


def options(**given: str) -> ReadOptions:
    return ReadOptions.of({"path": "/data/log", **given})


def refused(**given: str) -> str:
    with pytest.raises(ConfigError) as caught:
        options(**given)
    return str(caught.value)


def test_only_a_path_is_needed() -> None:
    assert options() == ReadOptions("/data/log")
    with pytest.raises(ConfigError, match=r"path = None: must be the log's directory, as in .load"):
        ReadOptions.of({})


def test_names_have_no_case_as_in_spark() -> None:
    assert options(MINPARTITIONS="3").min_partitions == 3
    assert options(subscribepattern="a.*").subscribe_pattern == "a.*"


def test_every_option_reaches_its_field() -> None:
    found = options(
        subscribe="b, a,b",
        startingOffsetsByTimestampStrategy="LATEST",
        failOnDataLoss="False",
        includeHeaders="true",
        minPartitions="2",
        maxRecordsPerPartition="10",
        maxOffsetsPerTrigger="100",
        maxBytesPerTrigger="4096",
        minOffsetsPerTrigger="5",
        maxTriggerDelay="90s",
        groupId="g",
        isolationLevel="READ_UNCOMMITTED",
    )
    assert found == ReadOptions(
        "/data/log", ("a", "b"), None, None, None, None, "latest", False, True, 2, 10, 100, 4096, 5, 90.0,
        "g", "read_uncommitted",
    )  # fmt: skip


def test_a_wrong_value_is_told_in_one_sentence_with_what_is_allowed() -> None:
    assert refused(minPartitions="many") == "minPartitions = 'many': must be a positive integer"
    assert refused(minPartitions="0") == "minPartitions = '0': must be a positive integer"
    assert refused(failOnDataLoss="maybe") == "failOnDataLoss = 'maybe': must be true or false"
    assert refused(subscribe="a,,b") == "subscribe = 'a,,b': must be names separated by commas"
    assert refused(subscribePattern="a[").startswith("subscribePattern = 'a[': is not a regular expression: ")
    assert refused(startingOffsetsByTimestampStrategy="x").endswith("must be error or latest")
    assert refused(maxTriggerDelay="soon").endswith("must be a duration such as 500ms, 30s, 15m or 1h")
    assert refused(startingTimestamp="noon").endswith("or a time such as 2024-05-01T12:00:00Z")
    assert refused(assign="orders").endswith('must be JSON such as {"orders": [0, 1]}')
    assert (
        refused(isolationLevel="committed")
        == "isolationLevel = 'committed': must be read_committed or read_uncommitted"
    )


@pytest.mark.parametrize(
    "text", ["", "now", "[1]", "{}", '{"a": 3}', '{"a": {}}', '{"a": {"x": 1}}', '{"a": {"0": true}}']
)
def test_offsets_that_are_not_kafkas_json_are_refused(text: str) -> None:
    assert refused(startingOffsets=text).endswith(
        'must be earliest, latest, or JSON such as {"orders": {"0": 23, "1": -2}}'
    )


def test_offsets_below_earliest_are_refused() -> None:
    assert "-2 for earliest" in refused(startingOffsets='{"a": {"0": -3}}')


@pytest.mark.parametrize("text", ['{"a": 0}', '{"a": ["0"]}', '{"a": [-1]}', '{"a": [true]}', "{}", "[]"])
def test_an_assignment_that_is_not_kafkas_json_is_refused(text: str) -> None:
    assert "assign" in refused(assign=text)


def test_only_one_way_to_subscribe_is_allowed() -> None:
    assert (
        refused(subscribe="a", assign='{"a":[0]}')
        == "assign = '{\"a\":[0]}': cannot be combined with subscribe"
    )


def test_the_least_and_the_most_of_a_trigger_must_agree() -> None:
    assert "must be at most maxOffsetsPerTrigger = 5" in refused(
        minOffsetsPerTrigger="6", maxOffsetsPerTrigger="5"
    )


def test_a_misspelt_option_is_refused_with_what_may_be_meant() -> None:
    assert refused(minPartition="3") == "minPartition = '3': no such option; did you mean minPartitions?"
    assert refused(subscribeTo="a") == "subscribeTo = 'a': no such option; did you mean subscribe?"
    assert "the options are assign, endingOffsets" in refused(colour="red")


def test_options_of_kafkas_clients_are_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = options(
            **{"kafka.bootstrap.servers": "a:9092", "kafka.group.id": "g", "fetchOffset.numRetries": "3"},
            groupIdPrefix="p",
        )
    assert found == ReadOptions("/data/log")
    assert len(caplog.records) == 4
    assert "kafka.bootstrap.servers is Kafka's and has no effect here" in caplog.text


def test_the_isolation_level_has_kafkas_name_too(caplog: pytest.LogCaptureFixture) -> None:
    def named(**both: str) -> dict[str, str]:
        return {"kafka.isolation.level": "read_uncommitted", **both}

    assert options().isolation_level == "read_committed"
    with caplog.at_level(logging.WARNING):
        assert options(**named()).isolation_level == "read_uncommitted"
        assert options(**named(isolationLevel="read_uncommitted")).isolation_level == "read_uncommitted"
        assert options(**{"Kafka.Isolation.Level": "read_uncommitted"}).isolation_level == "read_uncommitted"
    assert not caplog.records
    assert (
        refused(**named(isolationLevel="read_committed"))
        == "kafka.isolation.level = 'read_uncommitted': must not differ from isolationLevel"
    )
    assert refused(**{"kafka.isolation.level": "none"}).startswith("kafka.isolation.level = 'none': must be")


# --- bounds


def test_offsets_are_words_or_kafkas_json() -> None:
    assert options(startingOffsets="earliest").starting == Bound("startingOffsets", parsing.EARLIEST)
    assert options(startingOffsets=" Latest ").starting == Bound("startingOffsets", parsing.LATEST)
    each = options(endingOffsets='{"a": {"0": 23, "1": -1}}').ending
    assert each is not None
    assert each.where == {TopicPartition("a", 0): 23, TopicPartition("a", 1): -1}


def test_a_timestamp_counts_before_timestamps_by_partition_and_those_before_offsets() -> None:
    given = {
        "startingTimestamp": "5",
        "startingOffsetsByTimestamp": '{"a": {"0": 7}}',
        "startingOffsets": "earliest",
    }
    assert options(**given).starting == Bound("startingTimestamp", 5, by_time=True)
    del given["startingTimestamp"]
    by_partition = Bound("startingOffsetsByTimestamp", {TopicPartition("a", 0): 7}, by_time=True)
    assert options(**given).starting == by_partition
    del given["startingOffsetsByTimestamp"]
    assert options(**given).starting == Bound("startingOffsets", parsing.EARLIEST)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1700000000000", 1_700_000_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
        ("2023-11-15T00:13:20.250+02:00", 1_700_000_000_250),
        ("2023-11-14", 1_699_920_000_000),
    ],
)
def test_times_are_milliseconds_or_iso_8601(text: str, milliseconds: int) -> None:
    assert parsing.milliseconds("startingTimestamp", text) == milliseconds
    assert parsing.timestamps("x", f'{{"a": {{"0": "{text}"}}}}') == {TopicPartition("a", 0): milliseconds}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("100ms", 0.1),
        ("30s", 30),
        ("15m", 900),
        ("15 min", 900),
        ("2 hours", 7200),
        ("1d", 86400),
        ("250", 0.25),
    ],
)
def test_durations_are_written_as_spark_writes_them(text: str, seconds: float) -> None:
    assert parsing.seconds("maxTriggerDelay", text) == seconds


# --- what depends on the kind of query


def test_a_batch_query_must_not_end_at_the_earliest_offset() -> None:
    for text in ("earliest", '{"a": {"0": -2}}'):
        with pytest.raises(ConfigError, match="would end where it starts"):
            options(endingOffsets=text).for_batch()


def test_a_streaming_query_has_no_end() -> None:
    for name, text in [("endingOffsets", "latest"), ("endingTimestamp", "5")]:
        with pytest.raises(ConfigError, match=f"{name} = .*a streaming query has no end"):
            options(**{name: text}).for_stream()


def test_caps_of_triggers_have_no_effect_on_a_batch_query(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        options(maxOffsetsPerTrigger="5", groupId="g").for_batch()
    assert caplog.messages == [
        "option maxOffsetsPerTrigger has no effect on a batch query",
        "option groupId has no effect on a batch query",
    ]


def test_what_depends_on_the_moment_mentions_latest() -> None:
    def mentions(**given: str) -> Any:
        bound = options(**given).starting
        return bound and bound.mentions_latest

    assert mentions(startingOffsets="latest")
    assert mentions(startingOffsets='{"a": {"0": 3, "1": -1}}')
    assert not mentions(startingOffsets="earliest")
    assert not mentions(startingOffsets='{"a": {"0": 3}}')
    assert not mentions(startingTimestamp="5")
