"""`commitlog consume`: print records from any position, alone or as a member of a group."""

from __future__ import annotations

import os
from typing import Literal

import click

from commitlog.cli import options
from commitlog.cli.open_log import reading
from commitlog.cli.printing import Printer, Start, print_alone, print_in_group
from commitlog.cli.record_format import Form, RecordFormat
from commitlog.config import IsolationLevel


def start_from(text: str) -> Start:
    """Parse where to begin: beginning, end, an offset, a time, or @ and milliseconds."""
    if text in ("beginning", "end"):
        return Start(end=text == "end")
    if text.isdecimal():
        return Start(offset=int(text))
    return Start(timestamp=options.timestamp(text.removeprefix("@")))


@click.command(
    epilog=options.example(
        "commitlog consume data orders --last 10 --keys",
        "commitlog consume data orders --from 2026-01-31T12:00 --json",
        "commitlog consume data orders --group billing --follow",
    )
)
@options.directory
@options.topic
@click.option(
    "--from", "start", type=start_from, metavar="WHERE",
    help="beginning (the default), end, an offset, a time such as 2026-01-31T12:00 (UTC), or @ and "
    "milliseconds. With --group: beginning or end, for partitions without a committed offset.",
)  # fmt: skip
@click.option("--last", type=click.IntRange(0), metavar="N", help="The last N records of each partition.")
@click.option("--max", "limit", type=click.IntRange(0), metavar="N", help="Stop after N records.")
@click.option("--follow", "-f", is_flag=True, help="Keep printing new records, until Ctrl-C.")
@click.option(
    "--group", "-g", metavar="GROUP", shell_complete=options.complete_group,
    help="Read as a member of a consumer group, and commit what was printed.",
)  # fmt: skip
@options.partition
@options.isolation_level
@click.option(
    "--format", "form", type=click.Choice(["text", "json", "hex", "raw"]), default="text", show_default=True,
    help="Values as lines, records as JSON lines, bytes in hex, or values with nothing in between.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
@click.option("--partitions", is_flag=True, help="Also print partitions.")
@click.option("--offsets", is_flag=True, help="Also print offsets.")
@click.option("--timestamps", is_flag=True, help="Also print timestamps, in UTC.")
@click.option("--headers", is_flag=True, help="Also print headers.")
@click.option("--keys", is_flag=True, help="Also print keys.")
@click.option("--separator", default="\t", metavar="TEXT", help="Text between columns; a tab by default.")
def consume(
    directory: str, topic: str, start: Start | None, last: int | None, limit: int | None, follow: bool,
    group: str | None, partition: int | None, isolation_level: IsolationLevel, form: Form, as_json: bool,
    separator: str, **columns: bool,
) -> None:  # fmt: skip
    """Print the records of a topic.

    Stops at the end of the topic as of start-up, unless --follow is given. Order holds within a partition.
    """
    if last is not None and start is not None:
        raise click.UsageError("--from and --last cannot be combined")
    if group is not None and (partition is not None or last is not None):
        raise click.UsageError("--group cannot be combined with --partition or --last: the group decides")
    if group is not None and start not in (None, Start(), Start(end=True)):
        raise click.UsageError(
            "with --group, --from must be beginning or end; `groups reset-offsets` sets other positions"
        )
    begin = start or Start(last=last)
    printer = Printer(
        RecordFormat("json" if as_json else form, separator=os.fsencode(separator), **columns), limit
    )
    with reading(directory) as log:
        log.topic(topic)
        reset: Literal["latest", "earliest"] = "latest" if begin.end else "earliest"
        with log.consumer(
            group_id=group, enable_auto_commit=False, auto_offset_reset=reset, isolation_level=isolation_level
        ) as consumer:
            if group is None:
                print_alone(log, consumer, topic, partition, begin, printer, follow=follow)
            else:
                print_in_group(log, consumer, topic, printer, follow=follow)
