"""The settings of topics, logs, producers and consumers: Kafka's, under Kafka's names, checked when set.

-1 means "no limit" wherever it does in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self, TypedDict, get_args

from commitlog.errors import ConfigError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
DAY_MS = 24 * 60 * 60 * 1000
MAX_INT32, MAX_INT64 = (1 << 31) - 1, (1 << 63) - 1

_NO_LIMIT_AT_MAX = ("flush_ms", "flush_messages", "max_compaction_lag_ms", "segment_ms")  # Kafka's "never"

CompressionType = Literal["none", "zstd", "lz4", "gzip", "snappy"]
TimestampType = Literal["CreateTime", "LogAppendTime"]
CleanupPolicy = Literal["delete", "compact", "compact,delete"]
RecoveryMode = Literal["cut", "absolute", "salvage"]
Acks = Literal[0, 1, "all"]
ProducerCompression = Literal["topic", CompressionType]
OffsetReset = Literal["earliest", "latest", "none"]
IsolationLevel = Literal["read_uncommitted", "read_committed"]


def between(default: int, low: int, high: int = MAX_INT64, *, unlimited: bool = False) -> Any:
    """Declare an integer setting with its range; `unlimited` also allows -1."""
    return field(default=default, metadata={"low": low, "high": high, "unlimited": unlimited})


def fraction(default: float) -> Any:
    """Declare a setting from 0 to 1."""
    return field(default=default, metadata={"fraction": True})


def one_of(kind: Any, default: str | int) -> Any:
    """Declare a setting with the values of a Literal type."""
    return field(default=default, metadata={"allowed": get_args(kind)})


def function() -> Any:
    """Declare a setting that is a function or None."""
    return field(default=None, metadata={"callable": True})


@dataclass(frozen=True, slots=True)
class Config:
    """The base of all settings; each field is checked against its declared range."""

    def __post_init__(self) -> None:
        for setting in fields(self):
            _check(setting.name, getattr(self, setting.name), setting.metadata)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Build from settings by name; an unknown name is a ConfigError."""
        known = {setting.name for setting in fields(cls)}
        for name, value in settings.items():
            if name not in known:
                raise _unknown(name, value, sorted(known))
        return cls(**settings)


def _unknown(name: str, value: Any, known: Sequence[str]) -> ConfigError:
    from difflib import get_close_matches  # few programs need it

    similar = get_close_matches(name.replace(".", "_"), known, 1)
    hint = f"did you mean {similar[0]}?" if similar else f"there are {', '.join(known)}"
    return ConfigError(name, value, f"no such setting; {hint}")


def _check(name: str, value: Any, rule: Mapping[str, Any]) -> None:
    if "allowed" in rule:
        if value not in rule["allowed"]:
            raise ConfigError(name, value, f"must be one of {', '.join(map(str, rule['allowed']))}")
    elif "low" in rule:
        low, high, unlimited = rule["low"], rule["high"], rule["unlimited"]
        extra = ", or -1 for no limit" if unlimited else ""
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(name, value, f"must be an integer in [{low}, {high}]{extra}")
        if not (low <= value <= high or (unlimited and value == -1)):
            raise ConfigError(name, value, f"must be in [{low}, {high}]{extra}")
    elif "fraction" in rule:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ConfigError(name, value, "must be a number in [0, 1]")
    elif "callable" in rule:
        if value is not None and not callable(value):
            raise ConfigError(name, value, "must be a function, or None")
    elif (
        "type" in rule
        and not isinstance(value, rule["type"])
        and not (rule.get("optional") and value is None)
    ):
        raise ConfigError(name, value, f"must be a {rule['type'].__name__}")


def reads_committed(isolation_level: IsolationLevel) -> bool:
    """Return whether readers of this level leave out what is not committed."""
    _check("isolation_level", isolation_level, {"allowed": get_args(IsolationLevel)})
    return isolation_level == "read_committed"


@dataclass(frozen=True, slots=True)
class TopicConfig(Config):
    """The settings of one topic. Names and defaults are Kafka's, except that flush_ms is a second."""

    cleanup_policy: CleanupPolicy = one_of(CleanupPolicy, "delete")
    """What is removed: segments that are too old, records whose key has a later record, or both."""
    compression_type: CompressionType = one_of(CompressionType, "none")
    """The compression of batch bodies; lz4 and snappy need the extra `codecs`."""
    delete_retention_ms: int = between(DAY_MS, 0)
    """How long compaction keeps a tombstone after the first pass that saw it."""
    file_delete_delay_ms: int = between(60_000, 0)
    """How long the files of removed segments stay on disk, for readers that have yet to open them."""
    flush_messages: int = between(-1, 1, unlimited=True)
    """Start a background sync once this many records are unsynced."""
    flush_ms: int = between(1000, 1, unlimited=True)
    """The interval of background syncs: a power cut may cost this much."""
    index_interval_bytes: int = between(4 * KIB, 0, MAX_INT32)
    """Bytes of batches between two index entries."""
    max_compaction_lag_ms: int = between(-1, 1, unlimited=True)
    """Compaction reads every record within this time, whatever the dirty ratio."""
    max_message_bytes: int = between(MIB, 1, MAX_INT32)
    """The largest record accepted: key, value and headers together."""
    message_timestamp_type: TimestampType = one_of(TimestampType, "CreateTime")
    """A record's timestamp: the one given with it, or the time of the append."""
    min_cleanable_dirty_ratio: float = fraction(0.5)
    """Compaction starts when at least this fraction of the bytes is dirty."""
    min_compaction_lag_ms: int = between(0, 0)
    """Compaction does not touch records younger than this."""
    min_insync_replicas: int = between(1, 1, MAX_INT32)
    """With fewer replicas in sync, `acks="all"` is refused."""
    partitioner: str = field(default="xxhash", metadata={"type": str})
    """How keys choose partitions: `xxhash`, `murmur2` as in Kafka, or your own (`register_partitioner`)."""
    preallocate: bool = field(default=False, metadata={"type": bool})
    """Reserve the disk space of a whole segment when it is started."""
    retention_bytes: int = between(-1, 0, unlimited=True)
    """Remove the oldest segments of a partition while it is larger than this."""
    retention_ms: int = between(7 * DAY_MS, 0, unlimited=True)
    """Remove segments whose latest record is older than this."""
    segment_bytes: int = between(GIB, 512, MAX_INT32)
    """Roll when the active segment reaches this size; also the limit of one append."""
    segment_index_bytes: int = between(10 * MIB, 64, MAX_INT32)
    """Roll when an index reaches this size."""
    segment_ms: int = between(7 * DAY_MS, 1, unlimited=True)
    """Roll at an append whose timestamp is this much later than the segment's first."""
    unclean_leader_election_enable: bool = field(default=False, metadata={"type": bool})
    """If no in-sync replica is alive, let another replica lead and lose the records it lacks."""

    @classmethod
    def from_kafka(cls, settings: Mapping[str, Any]) -> Self:
        """Build from Kafka's dotted names, with numbers or the strings that Kafka's tools print.

        >>> TopicConfig.from_kafka({"retention.ms": "3600000"}).retention_ms
        3600000
        """
        return cls().altered(settings)

    @property
    def compacts(self) -> bool:
        """Whether only the latest record of each key is kept."""
        return "compact" in self.cleanup_policy

    def altered(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy with `changes`; dotted and underscored names both work."""
        types = {setting.name: setting.type for setting in fields(self)}
        known: dict[str, Any] = {}
        for name, value in changes.items():
            ours = name.replace(".", "_")
            if ours not in types:
                raise _unknown(name, value, list(types))
            known[ours] = _from_text(ours, value, str(types[ours]))
        return replace(self, **known)

    def overrides(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults, which are those stored on disk."""
        return {
            setting.name: getattr(self, setting.name)
            for setting in fields(self)
            if getattr(self, setting.name) != setting.default
        }


def _from_text(name: str, value: Any, kind: str) -> Any:
    """Convert Kafka's spelling of a value to ours."""
    if not isinstance(value, str):
        return value
    if kind == "float":
        try:
            return float(value)
        except ValueError:
            raise ConfigError(name, value, "must be a number in [0, 1]") from None
    if kind == "int":
        try:
            number = int(value)
        except ValueError:
            raise ConfigError(name, value, "must be an integer") from None
        never = number == MAX_INT64 and name in _NO_LIMIT_AT_MAX
        return -1 if never else number
    if kind == "bool":
        return {"true": True, "false": False}.get(value.lower(), value)
    if name == "compression_type" and value in ("producer", "uncompressed"):
        return "none"
    if name == "cleanup_policy":
        return ",".join(sorted(part.strip() for part in value.split(",")))
    return value


@dataclass(frozen=True, slots=True)
class LogConfig(Config):
    """The settings of a whole log, in addition to those of its topics."""

    cleaner_backoff_ms: int = between(15_000, 1)
    """How often the cleaner checks whether anything is due."""
    cleaner_dedupe_buffer_bytes: int = between(128 * MIB, 1)
    """The memory of a compaction pass: 24 bytes per key, at most nine tenths of it used."""
    cleaner_enable: bool = field(default=True, metadata={"type": bool})
    """Compact topics in the background."""
    cleaner_io_max_bytes_per_second: int = between(-1, 1, unlimited=True)
    """The rate limit of compaction's reads and writes."""
    max_open_segments: int = between(64, 1, 1 << 20)
    """The number of sealed segments that stay open and mapped; the least recently used is closed first."""
    recovery_mode: RecoveryMode = one_of(RecoveryMode, "cut")
    """What open does with an unfinished end: cut it off, refuse it, or salvage what is sound."""
    retention_check_ms: int = between(300_000, 1)
    """How often retention is applied."""
    topic_defaults: TopicConfig = field(default_factory=TopicConfig, metadata={"type": TopicConfig})
    """The default settings of new topics."""


@dataclass(frozen=True, slots=True)
class ProducerConfig(Config):
    """The settings of a producer, under Kafka's names; batch_size and buffer_memory are in bytes."""

    acks: Acks = one_of(Acks, 1)
    """What a future waits for: nothing (0), written (1), or synced and on all in-sync replicas (`"all"`)."""
    batch_size: int = between(MIB, 1)
    """A batch is appended when it reaches this many bytes."""
    buffer_memory: int = between(32 * MIB, 1)
    """With `acks="all"`, `send()` waits while this many bytes are unsynced."""
    client_id: str = field(default="", metadata={"type": str})
    """The name that quotas apply to."""
    compression_type: ProducerCompression = one_of(ProducerCompression, "topic")
    """The compression of the batches; `topic` uses the topic's."""
    delivery_timeout_ms: int = between(120_000, 0)
    """How long a batch that cannot be appended is retried."""
    enable_idempotence: bool = field(default=True, metadata={"type": bool})
    """Number the batches, so that a retried batch is in the log once."""
    key_serializer: Callable[[Any], bytes | None] | None = function()
    """Called with every key that is sent, also with None; returns bytes or None."""
    linger_ms: int = between(5, 0)
    """How long a batch that is not full waits for more records; with 0, each `send()` appends its own."""
    max_block_ms: int = between(60_000, 0)
    """How long `send()` waits for room in the buffer."""
    retry_backoff_ms: int = between(100, 1)
    """The pause between two attempts."""
    transaction_timeout_ms: int = between(60_000, 1, MAX_INT32)
    """A transaction that is open for this long is aborted."""
    transactional_id: str | None = field(default=None, metadata={"type": str, "optional": True})
    """Send in transactions, under this id. A producer that starts with the same id later fences this one."""
    value_serializer: Callable[[Any], bytes | None] | None = function()
    """Called with every value that is sent, also with None; returns bytes or None."""

    def __post_init__(self) -> None:
        Config.__post_init__(self)
        if self.transactional_id is not None:
            if not self.enable_idempotence:
                raise ConfigError("enable_idempotence", False, "must be True with a transactional_id")
            if self.acks == 0:
                raise ConfigError("acks", 0, "must be 1 or 'all' with a transactional_id")


@dataclass(frozen=True, slots=True)
class ConsumerConfig(Config):
    """The settings of a consumer, under Kafka's names.

    auto_offset_reset defaults to "earliest" (Kafka: "latest"), and a rebalance moves no more partitions than
    it must.
    """

    auto_commit_interval_ms: int = between(5000, 0)
    """How often positions are committed with `enable_auto_commit`."""
    auto_offset_reset: OffsetReset = one_of(OffsetReset, "earliest")
    """Where to start if no offset is committed, or if the log no longer has it; `none` raises."""
    client_id: str = field(default="", metadata={"type": str})
    """The name that quotas apply to."""
    consumer_timeout_ms: int = between(-1, 0, unlimited=True)
    """Iteration ends after this long without a record."""
    enable_auto_commit: bool = field(default=True, metadata={"type": bool})
    """Commit positions in the background, at a rebalance and at `close()`."""
    fetch_max_bytes: int = between(50 * MIB, 1)
    """The most that one `poll_batches()` or `poll_arrow()` returns, exceeded by at most one batch. Sizes are
    before compression, and at least 16 bytes per record."""
    group_id: str | None = field(default=None, metadata={"type": str, "optional": True})
    """The group to share partitions with; without one, the consumer reads all of them and commits nothing."""
    group_instance_id: str | None = field(default=None, metadata={"type": str, "optional": True})
    """The name of a static member, which keeps its partitions across a restart."""
    heartbeat_interval_ms: int = between(3000, 1)
    """How often a member sends a heartbeat and looks for new topics and partitions."""
    isolation_level: IsolationLevel = one_of(IsolationLevel, "read_committed")
    """Whether records of open and aborted transactions are left out (`read_committed`) or read as well."""
    key_deserializer: Callable[[bytes | None], Any] | None = function()
    """Called with every key, also with None."""
    max_poll_interval_ms: int = between(300_000, 1)
    """A member that does not call `poll()` for this long leaves its group."""
    max_poll_records: int = between(500, 1)
    """The most records that one `poll()` returns."""
    partition_assignment_strategy: str | Sequence[str] = ("cooperative-sticky",)
    """How a group shares partitions: one or more of `cooperative-sticky`, `sticky`, `range`, `roundrobin` or
    your own (`register_assignor`), in order of preference."""
    session_timeout_ms: int = between(45_000, 1)
    """A member without a heartbeat for this long loses its partitions."""
    value_deserializer: Callable[[bytes | None], Any] | None = function()
    """Called with every value, also with None."""

    def __post_init__(self) -> None:
        Config.__post_init__(self)
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            reason = f"must be below session_timeout_ms = {self.session_timeout_ms}"
            raise ConfigError("heartbeat_interval_ms", self.heartbeat_interval_ms, reason)
        given = self.partition_assignment_strategy
        known = isinstance(given, Sequence) and all(isinstance(name, str) for name in given)
        if not known or not self.strategies:
            raise ConfigError("partition_assignment_strategy", given, "must be a name or a list of names")

    @property
    def strategies(self) -> tuple[str, ...]:
        """The names of the assignors that this consumer supports, in order of preference."""
        given = self.partition_assignment_strategy
        return (given,) if isinstance(given, str) else tuple(given)


__all__ = [
    "Config", "ConsumerConfig", "LogConfig", "ProducerConfig", "TopicConfig", "between", "fraction",
    "function", "one_of",
]  # fmt: skip


class ProducerSettings(TypedDict, total=False):
    """The settings of ProducerConfig, as keyword arguments."""

    acks: Acks
    batch_size: int
    buffer_memory: int
    client_id: str
    compression_type: ProducerCompression
    delivery_timeout_ms: int
    enable_idempotence: bool
    key_serializer: Callable[[Any], bytes | None] | None
    linger_ms: int
    max_block_ms: int
    retry_backoff_ms: int
    transaction_timeout_ms: int
    transactional_id: str | None
    value_serializer: Callable[[Any], bytes | None] | None


class ConsumerSettings(TypedDict, total=False):
    """The settings of ConsumerConfig, as keyword arguments."""

    auto_commit_interval_ms: int
    auto_offset_reset: OffsetReset
    client_id: str
    consumer_timeout_ms: int
    enable_auto_commit: bool
    fetch_max_bytes: int
    group_id: str | None
    group_instance_id: str | None
    heartbeat_interval_ms: int
    isolation_level: IsolationLevel
    key_deserializer: Callable[[bytes | None], Any] | None
    max_poll_interval_ms: int
    max_poll_records: int
    partition_assignment_strategy: str | Sequence[str]
    session_timeout_ms: int
    value_deserializer: Callable[[bytes | None], Any] | None
