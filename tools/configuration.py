"""Writes docs/configuration.md from the settings themselves: their types, ranges, defaults and docstrings.

python tools/configuration.py
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import textwrap
from pathlib import Path
from typing import Any

from commitlog import ConsumerConfig, LogConfig, ProducerConfig, TopicConfig
from commitlog.config import MAX_INT32, MAX_INT64, Config
from commitlog.replication import ReplicationConfig

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"

CONFIGS: list[tuple[type[Config], str]] = [
    (TopicConfig, 'log.create_topic("t", config={"retention_ms": 3_600_000})'),
    (LogConfig, "commitlog.open(path, config=LogConfig(retention_check_ms=60_000))"),
    (ProducerConfig, 'log.producer(acks="all")'),
    (ConsumerConfig, 'log.consumer("t", group_id="g")'),
    (ReplicationConfig, 'Node(log, transport, controller, 1, {"request_timeout_ms": 5_000})'),
]

# Where Kafka's name is not ours with dots for underscores; None where Kafka has no such setting.
KAFKAS_NAMES: dict[str, str | None] = {
    "cleaner_backoff_ms": "log.cleaner.backoff.ms",
    "cleaner_dedupe_buffer_bytes": "log.cleaner.dedupe.buffer.size",
    "cleaner_enable": "log.cleaner.enable",
    "cleaner_io_max_bytes_per_second": "log.cleaner.io.max.bytes.per.second",
    "consumer_timeout_ms": None,
    "high_watermark_checkpoint_interval_ms": "replica.high.watermark.checkpoint.interval.ms",
    "max_open_segments": None,
    "partitioner": None,
    "recovery_mode": None,
    "replication_throttle_bytes_per_second": "leader.replication.throttled.rate",
    "retention_check_ms": "log.retention.check.interval.ms",
    "topic_defaults": None,
}

HEAD = """\
# Configuration

All settings. `python tools/configuration.py` generates this page from the source, and a test compares them.
Names are Kafka's, with underscores. A name ends in its unit: `_ms` is milliseconds, `_bytes` is bytes. -1
means "no limit" where it is allowed. An unknown name, or a value that is not allowed, is a `ConfigError`
that says what is allowed.

A topic's settings are stored with the topic. You can pass them as a dictionary, also with Kafka's dotted
names: `log.create_topic("t", config={"segment.bytes": 1 << 28})`. `topic.alter_config(flush_ms=100)`
changes them. [Coming from Kafka](kafka.md#settings) lists the differences.
"""


def meanings(config: type[Config]) -> dict[str, str]:
    """Return the docstring below each field."""
    body = ast.parse(textwrap.dedent(inspect.getsource(config))).body[0].body  # type: ignore[attr-defined]
    found = {}
    for field, below in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            found[field.target.id] = inspect.cleandoc(ast.literal_eval(below.value)).replace("\n", " ")  # type: ignore[union-attr]
    return found


def human(name: str, value: int) -> str:
    """Write a number so that people see how much it is: bytes as KiB, milliseconds as days."""
    if value == MAX_INT32:
        return "2³¹ - 1"
    units: list[tuple[str, int]] = []
    if name.endswith(("_bytes", "batch_size", "buffer_memory")):
        units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)]
    elif name.endswith("_ms"):
        units = [("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)]
    for unit, size in units:
        if value >= size and value % size == 0:
            return f"{value} ({value // size} {unit})"
    return str(value)


def default(field: dataclasses.Field[Any]) -> str:
    """Write a field's default."""
    if field.default_factory is not dataclasses.MISSING:
        return f"`{field.default_factory.__name__}()`"  # type: ignore[attr-defined]
    value = field.default
    if type(value) is int:
        return human(field.name, value)
    return f"`{value!r}`" if not isinstance(value, str) else f"`{value}`" if value else "empty"


def kind(field: dataclasses.Field[Any]) -> str:
    """Write a field's type, and what values it may have."""
    rule = field.metadata
    if "allowed" in rule:
        return "one of " + ", ".join(f"`{value}`" for value in rule["allowed"])
    if "low" in rule:
        low, high = human(field.name, rule["low"]), human(field.name, rule["high"])
        unlimited = ", or -1" if rule["unlimited"] else ""
        most = " or more" if rule["high"] == MAX_INT64 else f" to {high}"
        return f"integer, {low}{most}{unlimited}"
    if "fraction" in rule:
        return "number, 0 to 1"
    return "function" if "callable" in rule else f"`{field.type}`".replace("|", "\\|")


def kafkas_name(name: str) -> str:
    """Write Kafka's name of a setting."""
    theirs = KAFKAS_NAMES.get(name, name.replace("_", "."))
    return f"`{theirs}`" if theirs else "none"


def section(config: type[Config], example: str) -> str:
    """Write the table of one class of settings."""
    means = meanings(config)
    lines = [
        f"## {config.__name__}\n",
        f"{inspect.cleandoc(config.__doc__ or '')}\n",
        f"`{example}`\n",
        "| setting | meaning | default | type and range | Kafka's name |",
        "|---|---|---|---|---|",
    ]
    for field in dataclasses.fields(config):
        cells = [means[field.name], default(field), kind(field), kafkas_name(field.name)]
        lines.append(f"| `{field.name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the whole page."""
    return "\n".join([HEAD, *(section(config, example) for config, example in CONFIGS)])


if __name__ == "__main__":
    PAGE.write_text(page())
