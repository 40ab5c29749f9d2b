"""`commitlog topics`: list, create, describe, alter, delete, add-partitions."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from commitlog.cli.open_log import reading, writing
from commitlog.cli.options import (
    directory_argument,
    example,
    json_option,
    pair,
    shared_option,
    topic_argument,
    yes_option,
)
from commitlog.cli.output import ask, counted, print_json, print_table, say
from commitlog.config import TopicConfig
from commitlog.inspect.describe import describe_partition, record_count
from commitlog.topic import Topic


@click.group()
def topics() -> None:
    """List, create, describe, alter and delete topics."""


config_option = click.option(
    "--config", "-c", "settings", type=pair, multiple=True, metavar="NAME=VALUE",
    help="A setting, such as retention_ms=3600000, or retention.ms as in Kafka. May be repeated.",
)  # fmt: skip


@topics.command("list", epilog=example("commitlog topics list data", "commitlog topics list data --json"))
@directory_argument
@json_option
def list_topics(directory: str, as_json: bool) -> None:
    """List the topics of a log."""
    with reading(directory) as log:
        found = [_summary(log.topic(name)) for name in log.topics()]
    if as_json:
        print_json(found)
    elif found:
        columns = ("topic", "partitions", "records", "bytes", "cleanup_policy")
        print_table(columns, [[row[column] for column in columns] for row in found])
    else:
        say("no topics")


def _summary(topic: Topic) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "partitions": len(topic.partitions),
        "records": sum(record_count(one) for one in topic.partitions),
        "bytes": sum(one.size_bytes for one in topic.partitions),
        "cleanup_policy": topic.config.cleanup_policy,
    }


@topics.command(
    epilog=example(
        "commitlog topics create data orders --partitions 4",
        "commitlog topics create data users --config cleanup_policy=compact",
    )
)
@directory_argument
@topic_argument
@click.option("--partitions", "-p", type=click.IntRange(1), default=1, show_default=True, metavar="N")
@click.option("--if-not-exists", is_flag=True, help="Leave a topic that exists as it is, without an error.")
@config_option
@shared_option
@json_option
def create(
    directory: str,
    topic: str,
    partitions: int,
    if_not_exists: bool,
    settings: list[tuple[str, str]],
    shared: bool,
    as_json: bool,
) -> None:
    """Create a topic, and also the log if DIR is new."""
    with writing(directory, shared=shared, create=True) as log:
        existed = topic in log.topics()
        made = log.create_topic(topic, partitions, dict(settings), exists_ok=if_not_exists)
    if as_json:
        print_json({"topic": topic, "partitions": len(made), "config": made.config.overrides()})
    else:
        done = "found" if existed else "created"
        say(f"{done} topic {topic!r} with {counted(len(made), 'partition')}")


@topics.command(epilog=example("commitlog topics describe data orders"))
@directory_argument
@topic_argument
@json_option
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
    print_table(list(rows[0]), [list(row.values()) for row in rows])


@topics.command(
    epilog=example(
        "commitlog topics alter data orders --config retention.ms=3600000",
        "commitlog topics alter data orders --delete-config retention.ms",
    )
)
@directory_argument
@topic_argument
@config_option
@click.option("--delete-config", "-d", "defaults", multiple=True, metavar="NAME", help="Restore a default.")
@shared_option
@json_option
def alter(
    directory: str,
    topic: str,
    settings: list[tuple[str, str]],
    defaults: list[str],
    shared: bool,
    as_json: bool,
) -> None:
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
    if as_json:
        print_json({"topic": topic, "config": config})
    else:
        say(f"topic {topic!r} now has " + (_listed(config) or "all defaults"))


def _listed(config: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in config.items())


@topics.command(epilog=example("commitlog topics delete data orders --yes"))
@directory_argument
@topic_argument
@yes_option
@shared_option
@json_option
def delete(directory: str, topic: str, yes: bool, shared: bool, as_json: bool) -> None:
    """Delete a topic, all its records, and the offsets that groups have committed for it."""
    with writing(directory, shared=shared) as log:
        log.topic(topic)
        if not yes:
            ask(f"delete topic {topic!r} and all its records?")
        log.delete_topic(topic)
    if as_json:
        print_json({"topic": topic, "deleted": True})
    else:
        say(f"deleted topic {topic!r}")


@topics.command(epilog=example("commitlog topics add-partitions data orders 8"))
@directory_argument
@topic_argument
@click.argument("count", type=click.IntRange(1))
@shared_option
@json_option
def add_partitions(directory: str, topic: str, count: int, shared: bool, as_json: bool) -> None:
    """Grow a topic to COUNT partitions in total. From then on, keys may map to other partitions."""
    with writing(directory, shared=shared) as log:
        log.topic(topic).add_partitions(count)
    if as_json:
        print_json({"topic": topic, "partitions": count})
    else:
        say(f"topic {topic!r} now has {counted(count, 'partition')}")
