"""Parsers for the values of options, which are all text; ConfigError says what is allowed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from commitlog.errors import ConfigError
from commitlog.record import TopicPartition

EARLIEST, LATEST = -2, -1  # Kafka's numbers, in place of an offset
LOG_ID, TOPIC_ID = "@log_id", "topic_id"  # keys beside offsets that no topic and no partition can have
_WORDS = {"earliest": EARLIEST, "latest": LATEST}
_DURATION = re.compile(r"(\d+)\s*([a-z]*)")
_SECONDS = {
    "ms": 0.001, "msec": 0.001, "millisecond": 0.001, "": 0.001,
    "s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60,
    "h": 3600, "hour": 3600, "d": 86400, "day": 86400,
}  # fmt: skip


def boolean(name: str, text: str) -> bool:
    """Parse true or false."""
    found = {"true": True, "false": False}.get(text.strip().lower())
    if found is None:
        raise ConfigError(name, text, "must be true or false")
    return found


def positive(name: str, text: str) -> int:
    """Parse a positive integer."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ConfigError(name, text, "must be a positive integer")
    return number


def count(name: str, text: str) -> int:
    """Parse a non-negative integer."""
    if not text.strip().isdecimal():
        raise ConfigError(name, text, "must be a non-negative integer")
    return int(text)


def words(name: str, text: str) -> tuple[str, ...]:
    """Parse names separated by commas."""
    found = [word.strip() for word in text.split(",")]
    if not all(found):
        raise ConfigError(name, text, "must be names separated by commas")
    return tuple(sorted(set(found)))


def pattern(name: str, text: str) -> str:
    """Check a regular expression."""
    try:
        re.compile(text)
    except re.error as problem:
        raise ConfigError(name, text, f"is not a regular expression: {problem}") from None
    return text


def one_of(*allowed: str) -> Callable[[str, str], str]:
    """Return a parser that accepts one of these words."""

    def read(name: str, text: str) -> str:
        if text.strip().lower() not in allowed:
            raise ConfigError(name, text, f"must be {' or '.join(allowed)}")
        return text.strip().lower()

    return read


def seconds(name: str, text: str) -> float:
    """Parse a duration in Spark's notation, such as 500ms, 30s or 15m."""
    found = _DURATION.fullmatch(text.strip().lower())
    unit = _SECONDS.get(found[2]) or _SECONDS.get(found[2].removesuffix("s")) if found else None
    if found is None or unit is None:
        raise ConfigError(name, text, "must be a duration such as 500ms, 30s, 15m or 1h")
    return int(found[1]) * unit


def milliseconds(name: str, given: str | int) -> int:
    """Parse a time: milliseconds since the epoch, or ISO 8601, in UTC unless it names a zone."""
    try:
        return int(given)
    except ValueError:
        pass
    try:
        time = datetime.fromisoformat(str(given).strip())
    except ValueError:
        allowed = "must be milliseconds since the epoch or a time such as 2024-05-01T12:00:00Z"
        raise ConfigError(name, given, allowed) from None
    zoned = time if time.tzinfo else time.replace(tzinfo=UTC)
    return int(zoned.timestamp() * 1000)


# --- Kafka's JSON of partitions ------------------------------------------------------------------


def assigned(name: str, text: str) -> tuple[TopicPartition, ...]:
    """Parse {"topic": [0, 1]}."""
    example = 'must be JSON such as {"orders": [0, 1]}'
    found: set[TopicPartition] = set()
    for topic, numbers in _object(name, text, example).items():
        if not isinstance(numbers, list) or not all(_is_count(number) for number in numbers):
            raise ConfigError(name, text, example)
        found.update(TopicPartition(topic, number) for number in numbers)
    if not found:
        raise ConfigError(name, text, example)
    return tuple(sorted(found))


def offsets(name: str, text: str) -> int | dict[TopicPartition, int]:
    """Parse earliest, latest, or {"topic": {"0": 23, "1": -2}}."""
    word = _WORDS.get(text.strip().lower())
    if word is not None:
        return word
    example = 'must be earliest, latest, or JSON such as {"orders": {"0": 23, "1": -2}}'
    found = _by_partition(name, text, example, lambda value: value if isinstance(value, int) else None)
    if min(found.values(), default=0) < EARLIEST:
        raise ConfigError(name, text, "an offset must be at least 0, -1 for latest or -2 for earliest")
    return found


def timestamps(name: str, text: str) -> dict[TopicPartition, int]:
    """Parse {"topic": {"0": 1700000000000}}; times may also be ISO 8601."""
    example = 'must be JSON such as {"orders": {"0": 1700000000000}}'
    return _by_partition(name, text, example, lambda value: milliseconds(name, value))


def _by_partition(
    name: str, text: str, example: str, read: Callable[[Any], int | None]
) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for topic, values in _object(name, text, example).items():
        if topic == LOG_ID:  # so that offsets can be copied from a stream's progress
            continue
        if not isinstance(values, Mapping):
            raise ConfigError(name, text, example)
        for number, value in values.items():
            if number == TOPIC_ID:
                continue
            plain = isinstance(value, int | str) and not isinstance(value, bool)
            chosen = read(value) if plain else None
            if chosen is None or not number.isdecimal():
                raise ConfigError(name, text, example)
            found[TopicPartition(topic, int(number))] = chosen
    if not found:
        raise ConfigError(name, text, example)
    return found


def _object(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(name, text, example)
    return found


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
