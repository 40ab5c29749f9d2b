"""Arguments and options that commands share, and their shell completion."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import get_args

import click

import commitlog
from commitlog.config import IsolationLevel


def example(*lines: str) -> str:
    """Return examples for the end of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


_IS_PLAIN = re.compile(r"[\w.@:+=,%-]+", re.ASCII)  # completed unquoted; a shell would run $(this)


def _completed(
    ctx: click.Context, incomplete: str, names: Callable[[commitlog.CommitLog], list[str]]
) -> list[str]:
    """Return the names that start with `incomplete`, in the log named on the command line."""
    with suppress(Exception):  # completion has nowhere to report it
        # after an option without a value yet, arguments are not parsed
        directory = ctx.params["directory"] or ctx.args[0]
        with commitlog.open(directory, mode="r") as log:
            found = [name for name in names(log) if name.startswith(incomplete)]
            return [name for name in found if _IS_PLAIN.fullmatch(name)]
    return []


def complete_topic(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a topic."""
    return _completed(ctx, incomplete, lambda log: log.topics())


def complete_group(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a consumer group."""
    return _completed(ctx, incomplete, lambda log: log.groups())


def complete_transactional_id(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete a transactional id."""
    return _completed(ctx, incomplete, lambda log: [one.transactional_id for one in log.transactions()])


def parse_time(text: str) -> int:
    """Parse a time: ISO 8601 (UTC unless it names a zone) or milliseconds; ValueError if it is neither."""
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither a time such as 2026-01-31T12:00 nor milliseconds") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def timestamp(text: str) -> int:
    """Parse the time in an option: ISO 8601 or milliseconds."""
    try:
        return parse_time(text)
    except ValueError as problem:
        raise click.BadParameter(str(problem)) from None


def pair(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE."""
    name, sign, value = text.partition("=")
    if not sign:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    return name.strip(), value


directory = click.argument("directory", metavar="DIR", type=click.Path(file_okay=False), is_eager=True)
topic = click.argument("topic", metavar="TOPIC", shell_complete=complete_topic)
optional_topic = click.argument("topic", metavar="[TOPIC]", required=False, shell_complete=complete_topic)
group = click.argument("group", metavar="GROUP", shell_complete=complete_group)
transactional_id = click.argument("transactional_id", metavar="ID", shell_complete=complete_transactional_id)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
shared = click.option(
    "--shared", is_flag=True, help="Open the log in shared mode; all other writers must, too."
)
yes = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
partition = click.option(
    "--partition", "-p", type=click.IntRange(0), metavar="N", help="Only this partition."
)
isolation_level = click.option(
    "--isolation-level", type=click.Choice(get_args(IsolationLevel)), default="read_committed",
    show_default=True,
    help="read_uncommitted also reads records of transactions that are open or aborted.",
)  # fmt: skip
