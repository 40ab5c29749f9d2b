"""`commitlog topics`: list, create, describe, alter, delete, add-partitions."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from commitlog.cli import options
from commitlog.cli.open_log import reading, writing
from commitlog.cli.output import answer, ask, counted, print_json, print_rows, say
from commitlog.config import TopicConfig
from commitlog.inspect.describe import describe_partition, record_count
from commitlog.topic import Topic


@click.group()
def topics() -> None:
    """List, create, describe, alter and delete topics."""


config_option = click.option(
    "--config", "-c", "settings", type=options.pair, multiple=True, metavar="NAME=VALUE",
    help="A setting, such as retention_ms=3600000, or retention.ms as in Kafka. May be repeated.",
)  # fmt: skip


@topics.command(
    "list", epilog=options.example("commitlog topics list data", "commitlog topics list data --json")
)
@options.directory
@options.as_json
def list_topics(directory: str, as_json: bool) -> None:
    """List the topics of a log."""
    with reading(directory) as log:
        found = [_summary(log.topic(name)) for name in log.topics()]
    if found and not as_json:
        print_rows(found)
    else:
        answer(as_json, found, "no topics")


def _summary(topic: Topic) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "partitions": len(topic.partitions),
        "records": sum(record_count(one) for one in topic.partitions),
        "bytes": sum(one.size_bytes for one in topic.partitions),
        "cleanup_policy": topic.config.cleanup_policy,
    }


@topics.command(
    epilog=options.example(
        "commitlog topics create data orders --partitions 4",
        "commitlog topics create data users --config cleanup_policy=compact",
    )
)
@options.directory
@options.topic
@click.option("--partitions", "-p", type=click.IntRange(1), default=1, show_default=True, metavar="N")
@click.option("--if-not-exists", is_flag=True, help="Leave a topic that exists as it is, without an error.")
@config_option
@options.shared
@options.as_json
def create(
    directory: str, topic: str, partitions: int, if_not_exists: bool, settings: list[tuple[str, str]],
    shared: bool, as_json: bool,
) -> None:  # fmt: skip
    """Create a topic, and also the log if DIR is new."""
    with writing(directory, shared=shared, create=True) as log:
        done = "found" if topic in log.topics() else "created"
        made = log.create_topic(topic, partitions, dict(settings), exists_ok=if_not_exists)
    document = {"topic": topic, "partitions": len(made), "config": made.config.overrides()}
    answer(as_json, document, f"{done} topic {topic!r} with {counted(len(made), 'partition')}")


@topics.command(epilog=options.example("commitlog topics describe data orders"))
@options.directory
@options.topic
@options.as_json
def describe(directory: str, topic: str, as_json: bool) -> None:
    """Show the settings of a topic, and the offsets and sizes of its partitions."""
    with reading(directory) as log:
        found = log.topic(topic)
        config = found.config.overrides()
        rows = [
            asdict(describe_partition(number, one, count_records=True))
            for number, one in enumerate(found.partitions)
        ]
    if as_json:
        print_json({"topic": topic, "config": config, "partitions": rows})
        return
    say(f"topic {topic}: {counted(len(rows), 'partition')}")
    for name, value in config.items():
        say(f"  {name} = {value}")
    print_rows(rows)


@topics.command(
    epilog=options.example(
        "commitlog topics alter data orders --config retention.ms=3600000",
        "commitlog topics alter data orders --delete-config retention.ms",
    )
)
@options.directory
@options.topic
@config_option
@click.option("--delete-config", "-d", "defaults", multiple=True, metavar="NAME", help="Restore a default.")
@options.shared
@options.as_json
def alter(
    directory: str, topic: str, settings: list[tuple[str, str]], defaults: list[str], shared: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Change settings of a topic."""
    changes: dict[str, Any] = dict(settings)
    if not changes and not defaults:
        raise click.UsageError("pass what to change, with --config NAME=VALUE or --delete-config NAME")
    known = TopicConfig()
    for name in defaults:  # alter_config() refuses unknown names
        changes[name] = getattr(known, name.replace(".", "_"), None)
    with writing(directory, shared=shared) as log:
        found = log.topic(topic)
        found.alter_config(**changes)
        config = found.config.overrides()
    listed = ", ".join(f"{name} = {value}" for name, value in config.items()) or "all defaults"
    answer(as_json, {"topic": topic, "config": config}, f"topic {topic!r} now has {listed}")


@topics.command(epilog=options.example("commitlog topics delete data orders --yes"))
@options.directory
@options.topic
@options.yes
@options.shared
@options.as_json
def delete(directory: str, topic: str, yes: bool, shared: bool, as_json: bool) -> None:
    """Delete a topic, all its records, and the offsets that groups have committed for it."""
    with writing(directory, shared=shared) as log:
        log.topic(topic)
        if not yes:
            ask(f"delete topic {topic!r} and all its records?")
        log.delete_topic(topic)
    answer(as_json, {"topic": topic, "deleted": True}, f"deleted topic {topic!r}")


@topics.command(epilog=options.example("commitlog topics add-partitions data orders 8"))
@options.directory
@options.topic
@click.argument("count", type=click.IntRange(1))
@options.shared
@options.as_json
def add_partitions(directory: str, topic: str, count: int, shared: bool, as_json: bool) -> None:
    """Grow a topic to COUNT partitions in total. From then on, keys may map to other partitions."""
    with writing(directory, shared=shared) as log:
        log.topic(topic).add_partitions(count)
    document = {"topic": topic, "partitions": count}
    answer(as_json, document, f"topic {topic!r} now has {counted(count, 'partition')}")
