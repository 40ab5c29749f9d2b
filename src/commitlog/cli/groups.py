"""`commitlog groups`: list, describe with lag, reset-offsets, delete."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Literal

import click

from commitlog.cli import options
from commitlog.cli.open_log import reading
from commitlog.cli.output import answer, ask, print_json, print_rows, print_table, say
from commitlog.errors import UnknownGroupError
from commitlog.groups.admin import MemberDescription
from commitlog.inspect.describe import GroupSummary, summarize_group
from commitlog.log import CommitLog


@click.group()
def groups() -> None:
    """List, describe, reset and delete consumer groups."""


@groups.command("list", epilog=options.example("commitlog groups list data"))
@options.directory
@options.as_json
def list_groups(directory: str, as_json: bool) -> None:
    """List the consumer groups of a log and their lag."""
    with reading(directory) as log:
        found = [_row(summarize_group(log.describe_group(name))) for name in log.groups()]
    if found and not as_json:
        print_rows(found)
    else:
        answer(as_json, found, "no groups")


def _row(one: GroupSummary) -> dict[str, Any]:
    return {
        "group": one.group_id,
        "state": one.state,
        "members": one.members,
        "partitions": one.partitions,
        "lag": one.lag or 0,
    }


@groups.command(epilog=options.example("commitlog groups describe data billing"))
@options.directory
@options.group
@options.as_json
def describe(directory: str, group: str, as_json: bool) -> None:
    """Show the committed offsets, the lag and the members of a group."""
    with reading(directory) as log:
        found = log.describe_group(group)
    if as_json:
        print_json(found)
        return
    strategy = f", {found.strategy}" if found.strategy else ""
    say(f"group {group}: {found.state}, generation {found.generation}{strategy}")
    columns = ("topic", "partition", "committed", "end_offset", "lag", "member_id")
    if found.partitions:
        print_table(columns, map(attrgetter(*columns), found.partitions))
    if found.members:
        say()
        print_rows([_member(one) for one in found.members])


def _member(one: MemberDescription) -> dict[str, Any]:
    partitions = " ".join(map(str, one.partitions))
    client = one.client_id or None
    return {"member_id": one.member_id, "client_id": client, "process": one.process, "partitions": partitions}


def topic_partitions(text: str) -> list[str | tuple[str, int]]:
    """Parse TOPIC, or TOPIC:0,2 for some of its partitions."""
    name, sign, numbers = text.partition(":")
    if not sign:
        return [name]
    if not all(number.isdecimal() for number in numbers.split(",")):
        raise click.BadParameter(f"{text!r} is neither TOPIC nor TOPIC:0,1")
    return [(name, int(number)) for number in numbers.split(",")]


@groups.command(
    epilog=options.example(
        "commitlog groups reset-offsets data billing --to-earliest --dry-run",
        "commitlog groups reset-offsets data billing --topic orders:0 --to-datetime 2026-01-31T12:00",
    )
)
@options.directory
@options.group
@click.option(
    "--topic", "topics", type=topic_partitions, multiple=True, metavar="TOPIC[:0,1]",
    shell_complete=options.complete_topic,
    help="Only this topic, or these partitions of it, instead of all committed ones. May be repeated.",
)  # fmt: skip
@click.option("--to-earliest", "to", flag_value="earliest", help="To the beginning of each partition.")
@click.option("--to-latest", "to", flag_value="latest", help="To the end of each partition.")
@click.option("--to-offset", "offset", type=click.IntRange(0), metavar="N", help="To an offset.")
@click.option("--to-datetime", "time", type=options.timestamp, metavar="TIME",
              help="To the first record at or after 2026-01-31T12:00 (UTC), or milliseconds.")  # fmt: skip
@click.option("--shift-by", type=int, metavar="N", help="Forward by N offsets, or back if N is negative.")
@click.option("--dry-run", is_flag=True, help="Only show the new offsets.")
@options.as_json
def reset_offsets(
    directory: str, group: str, topics: Sequence[list[str | tuple[str, int]]],
    to: Literal["earliest", "latest"] | None, offset: int | None, time: int | None, shift_by: int | None,
    dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Set the offsets from which a group without members continues, clipped to those in the log."""
    if sum(way is not None for way in (to, offset, time, shift_by)) != 1:
        raise click.UsageError(
            "pass one of --to-earliest, --to-latest, --to-offset, --to-datetime and --shift-by"
        )
    named = [one for some in topics for one in some] or None
    with reading(directory) as log:
        before = _committed(log, group)
        chosen = log.reset_offsets(
            group, to, offset=offset, timestamp=time, shift_by=shift_by, topics=named, dry_run=dry_run
        )
    rows = [
        {"topic": name.topic, "partition": name.partition, "before": before.get(name), "offset": value}
        for name, value in chosen.items()
    ]
    if rows and not as_json:
        print_rows(rows)
    else:
        document = {"group": group, "dry_run": dry_run, "offsets": rows}
        answer(as_json, document, f"group {group!r} has committed nothing; name topics with --topic")


def _committed(log: CommitLog, group: str) -> dict[tuple[str, int], int | None]:
    try:
        found = log.describe_group(group).partitions
    except UnknownGroupError:  # it is created if topics are named
        return {}
    return {(one.topic, one.partition): one.committed for one in found}


@groups.command(epilog=options.example("commitlog groups delete data billing --yes"))
@options.directory
@options.group
@options.yes
@options.as_json
def delete(directory: str, group: str, yes: bool, as_json: bool) -> None:
    """Delete a group without members, and its committed offsets."""
    with reading(directory) as log:
        log.describe_group(group)
        if not yes:
            ask(f"delete group {group!r} and its committed offsets?")
        log.delete_group(group)
    answer(as_json, {"group": group, "deleted": True}, f"deleted group {group!r}")
