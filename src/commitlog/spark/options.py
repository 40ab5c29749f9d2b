"""ReadOptions: the options of a query that reads, checked on the driver before anything is read.

Spark passes options as text, with case-insensitive names. Options of Kafka's connector keep their names.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from commitlog.config import IsolationLevel
from commitlog.errors import ConfigError
from commitlog.record import TopicPartition
from commitlog.spark import parsing
from commitlog.spark.parsing import LATEST
from commitlog.spark.readable import is_remote

_log = logging.getLogger("commitlog.spark")

_READERS: dict[str, Callable[[str, str], Any]] = {
    "path": lambda name, text: log_path(text),
    "subscribe": parsing.words,
    "subscribePattern": parsing.pattern,
    "assign": parsing.assigned,
    "startingOffsets": parsing.offsets,
    "startingOffsetsByTimestamp": parsing.timestamps,
    "startingTimestamp": parsing.milliseconds,
    "startingOffsetsByTimestampStrategy": parsing.one_of("error", "latest"),
    "endingOffsets": parsing.offsets,
    "endingOffsetsByTimestamp": parsing.timestamps,
    "endingTimestamp": parsing.milliseconds,
    "failOnDataLoss": parsing.boolean,
    "includeHeaders": parsing.boolean,
    "minPartitions": parsing.positive,
    "maxRecordsPerPartition": parsing.positive,
    "maxOffsetsPerTrigger": parsing.positive,
    "maxBytesPerTrigger": parsing.positive,
    "minOffsetsPerTrigger": parsing.positive,
    "maxTriggerDelay": parsing.seconds,
    "groupId": lambda name, text: text,
    "isolationLevel": parsing.one_of("read_committed", "read_uncommitted"),
}
_KAFKAS_LEVEL = "kafka.isolation.level"  # the one setting of Kafka's clients that has a meaning here
_ENDINGS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")  # the first one given applies
_STARTINGS = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_FOR_STREAMS = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "groupId")

# Prefixes of options of Kafka's connector that have no meaning here, such as the settings of its clients.
_NOT_NEEDED = (
    "kafka.", "kafkaconsumer.", "fetchoffset.", "groupidprefix", "consumer.cache.", "producer.cache.",
    "partition.metadata.", "kerberos",
)  # fmt: skip
# Prefixes of options that Spark adds to those of a table; it repeats each given one with "option." before it.
_SPARKS_OWN = (
    "collation", "comment", "external", "is_managed_location", "location", "option.", "owner", "provider",
    "serialization.format",
)  # fmt: skip


def check_names(given: Mapping[str, str], known: Iterable[str]) -> None:
    """Raise ConfigError for an unknown option, with a suggestion."""
    names = {name.lower(): name for name in known}
    for name, value in given.items():
        if name.lower() in names or name.lower().startswith(_SPARKS_OWN):
            continue
        if name.lower().startswith(_NOT_NEEDED):
            _log.warning("option %s is Kafka's and has no effect here", name)
            continue
        close = difflib.get_close_matches(name.lower(), names, 1, 0.6)
        known = ", ".join(sorted(names.values()))
        hint = f"did you mean {names[close[0]]}?" if close else f"the options are {known}"
        raise ConfigError(name, value, f"no such option; {hint}")


def log_path(given: str | None) -> str:
    """Return the log's directory; ConfigError if the path is missing."""
    if not given:
        tables = "Spark loses the options of CREATE TABLE, but keeps those of CREATE TEMPORARY VIEW"
        raise ConfigError("path", given, f'must be the log\'s directory, as in .load("/data/log"); {tables}')
    return given.removeprefix("file://").removeprefix("file:")


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a query starts or ends: an offset or a timestamp, for all partitions or for each.

    `option` is the name of the option that set it, for errors.
    """

    option: str
    where: int | dict[TopicPartition, int]
    by_time: bool = False

    @property
    def mentions_latest(self) -> bool:
        """Whether the bound depends on when it is looked up."""
        if self.by_time:
            return False
        return self.where == LATEST if isinstance(self.where, int) else LATEST in self.where.values()


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read, from where to where, and in what portions. A bound of None is the query's default."""

    path: str
    subscribe: tuple[str, ...] | None = None
    subscribe_pattern: str | None = None
    assign: tuple[TopicPartition, ...] | None = None
    starting: Bound | None = None
    ending: Bound | None = None
    starting_offsets_by_timestamp_strategy: str = "error"
    fail_on_data_loss: bool = True
    include_headers: bool = False
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay: float = 15 * 60.0
    group_id: str | None = None
    isolation_level: IsolationLevel = "read_committed"

    @classmethod
    def of(cls, options: Mapping[str, str], more: Iterable[str] = ()) -> Self:
        """Parse and check options; those named in `more` are allowed and ignored."""
        check_names(options, [*_READERS, _KAFKAS_LEVEL, *more])
        given = {name.lower(): text for name, text in options.items()}
        found = {
            name: read(name, str(given[name.lower()]))
            for name, read in _READERS.items()
            if name.lower() in given
        }
        log_path(found.get("path"))
        if _KAFKAS_LEVEL in given:
            level = _READERS["isolationLevel"](_KAFKAS_LEVEL, str(given[_KAFKAS_LEVEL]))
            if found.setdefault("isolationLevel", level) != level:
                raise ConfigError(_KAFKAS_LEVEL, level, "must not differ from isolationLevel")
        chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name in found]
        if len(chosen) > 1:
            raise ConfigError(chosen[1], given[chosen[1].lower()], f"cannot be combined with {chosen[0]}")
        low, high = found.get("minOffsetsPerTrigger", 0), found.get("maxOffsetsPerTrigger")
        if high is not None and low > high:
            raise ConfigError("minOffsetsPerTrigger", low, f"must be at most maxOffsetsPerTrigger = {high}")
        starting, ending = _bound(_STARTINGS, found), _bound(_ENDINGS, found)
        return cls(starting=starting, ending=ending, **{_field(name): value for name, value in found.items()})

    def for_batch(self) -> Self:
        """Check the options of a batch query; those for streams are ignored with a warning."""
        if self.ending is not None and not self.ending.by_time:
            where = self.ending.where
            if parsing.EARLIEST in ([where] if isinstance(where, int) else where.values()):
                reason = "must not be earliest (-2): the query would end where it starts"
                raise ConfigError(self.ending.option, "earliest", reason)
        for option in _FOR_STREAMS:
            if getattr(self, _field(option)) is not None:
                _log.warning("option %s has no effect on a batch query", option)
        return self

    def for_stream(self) -> Self:
        """Check the options of a streaming query."""
        if self.ending is not None:
            raise ConfigError(self.ending.option, "...", "is not allowed: a streaming query has no end")
        for option in ("maxBytesPerTrigger", "groupId"):
            if is_remote(self.path) and getattr(self, _field(option)) is not None:
                reason = "is not allowed for a log that is read over the network: it needs the files"
                raise ConfigError(option, getattr(self, _field(option)), reason)
        return self


def _bound(names: tuple[str, ...], found: dict[str, Any]) -> Bound | None:
    """Remove these options from `found`; returns the bound that the first one given sets."""
    bounds = [Bound(name, found.pop(name), by_time="Timestamp" in name) for name in names if name in found]
    return bounds[0] if bounds else None


def _field(option: str) -> str:
    """Return the name of the field for an option: max_trigger_delay for maxTriggerDelay."""
    return re.sub("[A-Z]", lambda letter: "_" + letter[0].lower(), option)
