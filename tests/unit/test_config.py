from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from commitlog import ConfigError, LogConfig, TopicConfig

INTEGERS = [
    # name, smallest, largest, whether -1 means "no limit"
    ("file_delete_delay_ms", 0, 2**63 - 1, False),
    ("flush_messages", 1, 2**63 - 1, True),
    ("flush_ms", 1, 2**63 - 1, True),
    ("index_interval_bytes", 0, 2**31 - 1, False),
    ("max_message_bytes", 1, 2**31 - 1, False),
    ("min_insync_replicas", 1, 2**31 - 1, False),
    ("retention_bytes", 0, 2**63 - 1, True),
    ("retention_ms", 0, 2**63 - 1, True),
    ("segment_bytes", 512, 2**31 - 1, False),
    ("segment_index_bytes", 64, 2**31 - 1, False),
    ("segment_ms", 1, 2**63 - 1, True),
]
CHOICES: dict[str, list[str]] = {
    "cleanup_policy": ["delete", "compact", "compact,delete"],
    "compression_type": ["none", "zstd", "lz4", "gzip", "snappy"],
    "message_timestamp_type": ["CreateTime", "LogAppendTime"],
}


def configured(name: str, value: Any) -> TopicConfig:
    return TopicConfig(**{name: value})


def test_the_defaults_are_kafkas_but_for_flush_ms() -> None:
    config = TopicConfig()
    assert config.segment_bytes == 1 << 30
    assert config.segment_ms == 7 * 24 * 3_600_000
    assert config.retention_ms == 7 * 24 * 3_600_000
    assert config.retention_bytes == -1
    assert config.cleanup_policy == "delete"
    assert config.flush_messages == -1
    assert config.flush_ms == 1_000
    assert config.index_interval_bytes == 4_096
    assert config.segment_index_bytes == 10 << 20
    assert config.message_timestamp_type == "CreateTime"
    assert config.file_delete_delay_ms == 60_000
    assert config.preallocate is False
    assert config.min_insync_replicas == 1
    assert config.unclean_leader_election_enable is False


@pytest.mark.parametrize(("name", "low", "high", "unlimited"), INTEGERS)
def test_an_integer_setting_takes_its_whole_range_and_nothing_else(
    name: str, low: int, high: int, unlimited: bool
) -> None:
    for value in (low, high, *([-1] if unlimited else [])):
        assert getattr(configured(name, value), name) == value
    refused: list[Any] = [low - 1, high + 1, -2, 1.5, "10", None, True]
    if unlimited:
        refused = [value for value in refused if value != -1]
    for value in refused:
        with pytest.raises(ConfigError) as caught:
            TopicConfig(**{name: value})
        message = str(caught.value)
        assert name in message
        assert repr(value) in message
        assert str(low) in message
        assert str(high) in message
        assert ("-1" in message.partition(":")[2]) == unlimited


@pytest.mark.parametrize("name", CHOICES)
def test_a_setting_of_words_takes_those_and_names_them_when_it_refuses(name: str) -> None:
    for value in CHOICES[name]:
        assert getattr(configured(name, value), name) == value
    for wrong in ("Delete", "", None, 3):
        with pytest.raises(ConfigError) as caught:
            configured(name, wrong)
        for value in CHOICES[name]:
            assert value in str(caught.value)


@pytest.mark.parametrize(("name", "wrong"), [("preallocate", 1), ("preallocate", "yes"), ("partitioner", 3)])
def test_a_setting_of_another_type_is_refused(name: str, wrong: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        TopicConfig(**{name: wrong})


def test_a_config_cannot_be_changed_in_place() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TopicConfig().segment_bytes = 5  # type: ignore[misc]


def test_configs_pickle_and_compare() -> None:
    topic = TopicConfig(segment_bytes=1_000, compression_type="zstd")
    log = LogConfig(topic_defaults=topic, recovery_mode="absolute")
    assert pickle.loads(pickle.dumps(topic)) == topic
    assert pickle.loads(pickle.dumps(log)) == log
    assert topic != TopicConfig()
    assert hash(topic) == hash(TopicConfig(segment_bytes=1_000, compression_type="zstd"))


def test_kafkas_dotted_names_and_textual_values_are_understood() -> None:
    config = TopicConfig.from_kafka(
        {
            "retention.ms": "3600000",
            "segment.bytes": 1_048_576,
            "cleanup.policy": "delete, compact",
            "compression.type": "zstd",
            "message.timestamp.type": "LogAppendTime",
            "preallocate": "true",
            "flush.ms": "9223372036854775807",
            "flush.messages": "9223372036854775807",
            "retention.bytes": "-1",
            "min.insync.replicas": "2",
            "unclean.leader.election.enable": "true",
        }
    )
    assert config == TopicConfig(
        retention_ms=3_600_000,
        segment_bytes=1_048_576,
        cleanup_policy="compact,delete",
        compression_type="zstd",
        message_timestamp_type="LogAppendTime",
        preallocate=True,
        flush_ms=-1,
        flush_messages=-1,
        min_insync_replicas=2,
        unclean_leader_election_enable=True,
    )


@pytest.mark.parametrize("kafkas", ["producer", "uncompressed"])
def test_kafkas_words_for_no_compression_mean_none(kafkas: str) -> None:
    assert TopicConfig.from_kafka({"compression.type": kafkas}).compression_type == "none"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"retention.hours": 1}, "retention.hours"),
        ({"retention.ms": "soon"}, "retention_ms"),
        ({"segment.bytes": "1"}, "segment_bytes"),
        ({"preallocate": "perhaps"}, "preallocate"),
        ({"cleanup.policy": "burn"}, "cleanup_policy"),
    ],
)
def test_what_kafka_would_not_accept_is_refused_by_name(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        TopicConfig.from_kafka(settings)


def test_an_altered_config_changes_only_what_was_asked() -> None:
    config = TopicConfig(segment_bytes=1_000)
    altered = config.altered({"retention_ms": 5, "flush.ms": "7"})
    assert (altered.segment_bytes, altered.retention_ms, altered.flush_ms) == (1_000, 5, 7)
    assert config.retention_ms == TopicConfig().retention_ms


def test_only_settings_that_differ_from_the_defaults_are_kept_on_disk() -> None:
    assert TopicConfig().overrides() == {}
    config = TopicConfig(segment_bytes=1_000, preallocate=True)
    assert config.overrides() == {"segment_bytes": 1_000, "preallocate": True}
    assert TopicConfig().altered(config.overrides()) == config


@pytest.mark.parametrize(
    "settings",
    [
        {"max_open_segments": 0},
        {"recovery_mode": "hope"},
        {"retention_check_ms": 0},
        {"topic_defaults": {"segment_bytes": 1_000}},
    ],
)
def test_a_log_config_is_checked_too(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        LogConfig(**settings)
