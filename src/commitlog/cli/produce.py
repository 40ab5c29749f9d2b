"""`commitlog produce`: append lines, or records as JSON lines, from stdin or files."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import BinaryIO

import click

from commitlog.cli import options
from commitlog.cli.open_log import writing
from commitlog.cli.output import answer, counted
from commitlog.cli.progress_bar import progress_bar
from commitlog.cli.text_input import Feed, LineFormat, blocks
from commitlog.config import LogConfig
from commitlog.errors import CommitLogError


@click.command(
    epilog=options.example(
        "seq 1000000 | commitlog produce data numbers",
        "commitlog produce data users --key-separator : users.txt",
        """echo '{"key": "k", "value": {"n": 1}}' | commitlog produce data t --format json""",
    )
)
@options.directory
@options.topic
@click.argument("files", nargs=-1, metavar="[FILE]...", type=click.File("rb"))
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True,
    help="Whether each line is a value, or a record as a JSON object.",
)  # fmt: skip
@click.option("--key-separator", "-k", metavar="TEXT", help="Text between the key and the value of a line.")
@click.option("--null-marker", metavar="TEXT", help="A value that means null: a tombstone.")
@click.option(
    "--header", "-H", "headers", type=options.pair, multiple=True, metavar="NAME=VALUE",
    help="A header for every record. May be repeated.",
)  # fmt: skip
@options.partition
@click.option("--sync", is_flag=True, help="Make each batch durable before reading more.")
@options.shared
@options.as_json
def produce(
    directory: str, topic: str, files: Sequence[BinaryIO], form: str, key_separator: str | None,
    null_marker: str | None, headers: Sequence[tuple[str, str]], partition: int | None, sync: bool,
    shared: bool, as_json: bool,
) -> None:  # fmt: skip
    """Append each line of stdin or of files as a record.

    With --format json each line is an object with value and, optionally, key, headers, timestamp and
    partition, such as `consume --json` prints. Everything is durable when the command ends.
    """
    if form == "json" and (key_separator is not None or null_marker is not None):
        raise click.UsageError("--key-separator and --null-marker need --format text")
    if key_separator == "":
        raise click.UsageError("--key-separator must not be empty")
    given = LineFormat(
        form == "json",
        None if key_separator is None else os.fsencode(key_separator),
        None if null_marker is None else os.fsencode(null_marker),
        tuple((name, os.fsencode(value)) for name, value in headers),
    )
    with writing(directory, shared=shared, config=LogConfig()) as log:  # with a cleaner: it may run for days
        feed = Feed(log.topic(topic), given, partition, sync=sync)
        try:
            _append_all(feed, files or [_stdin()], log.topic(topic).config.max_message_bytes, form)
        except CommitLogError as error:
            raise click.ClickException(f"{error} (records appended before that: {feed.records})") from error
    spans = {str(number): [span.start, span.stop] for number, span in sorted(feed.offsets.items())}
    document = {"topic": topic, "records": feed.records, "offsets": spans}
    answer(as_json, document, f"{counted(feed.records, 'record')} appended to {topic}")


def _stdin() -> BinaryIO:
    if sys.stdin is None:  # Python found it closed
        raise click.ClickException("stdin is closed")
    return sys.stdin.buffer


def _append_all(feed: Feed, sources: Sequence[BinaryIO], max_message_bytes: int, form: str) -> None:
    """Append the lines of all sources, with a progress bar if their size is known."""
    total, done = sum(_size(source) for source in sources), 0
    # a line also has a key and a separator; JSON may be much longer than the record
    longest = None if form == "json" else max_message_bytes + 1024
    with progress_bar("appending") as report:
        for source in sources:
            for block in blocks(source, longest):
                feed.append(block)
                done += len(block)
                if report and total:
                    report(min(done, total), total)


def _size(source: BinaryIO) -> int:
    """Return the size of a file, or 0 for a pipe."""
    with suppress(OSError, ValueError):
        return os.fstat(source.fileno()).st_size
    return 0
