"""`commitlog export`: write records of a topic to a file for other tools."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import click

from commitlog import files
from commitlog.cli import options
from commitlog.cli.consume import start_from
from commitlog.cli.file_formats import format_of, format_option
from commitlog.cli.open_log import reading
from commitlog.cli.output import answer, counted
from commitlog.cli.printing import Start
from commitlog.cli.progress_bar import Report, progress_bar
from commitlog.config import IsolationLevel
from commitlog.partitions.reader import LogReader

if TYPE_CHECKING:
    from commitlog.cli.sinks import Sink


class Range(NamedTuple):
    """Offsets [start, end) of a partition."""

    number: int
    partition: LogReader
    start: int
    end: int


@click.command(
    "export",
    epilog=options.example(
        "commitlog export data orders orders.parquet",
        "commitlog export data orders monday.csv --from 2026-03-02T00:00 --to 2026-03-03T00:00",
        "commitlog export data orders tail.jsonl -p 0 --from 1000000",
    ),
)
@options.directory
@options.topic
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False))
@format_option
@click.option(
    "--partition", "-p", "numbers", type=click.IntRange(0), multiple=True, metavar="N",
    help="Only this partition. May be repeated.",
)  # fmt: skip
@click.option(
    "--from", "start", type=start_from, default="beginning", metavar="WHERE",
    help="beginning (the default), an offset, a time such as 2026-01-31T12:00 (UTC), or @ and milliseconds.",
)  # fmt: skip
@click.option(
    "--to", "end", type=start_from, default="end", metavar="WHERE",
    help="Stop before this: end (the default), an offset, or the first record at or after a time.",
)  # fmt: skip
@options.isolation_level
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@options.as_json
def export_command(
    directory: str, topic: str, file: str, file_format: str | None, numbers: tuple[int, ...], start: Start,
    end: Start, isolation_level: IsolationLevel, overwrite: bool, as_json: bool,
) -> None:  # fmt: skip
    """Write records of a topic to FILE, as Parquet, Arrow, CSV or JSON lines.

    The columns are partition, offset, timestamp, key, value and headers; `commitlog import` reads them back.
    FILE does not appear before it is complete.
    """
    from commitlog.cli.sinks import SINKS  # pyarrow is a separate extra

    make = SINKS[format_of(file, file_format)]
    if os.path.exists(file) and not overwrite:
        raise click.ClickException(f"{file} exists already; pass --overwrite to replace it")
    with reading(directory) as log:
        found = log.topic(topic)
        ranges = [
            _range(number, found.partition(number), start, end, isolation_level)
            for number in sorted(set(numbers)) or range(len(found.partitions))
        ]
        with progress_bar("exporting", unit="records") as progress, _complete(file) as temporary:
            sink = make(temporary)
            records = _write(ranges, sink, progress, isolation_level)
    parts = [{"partition": one.number, "start_offset": one.start, "end_offset": one.end} for one in ranges]
    document = {"topic": topic, "file": file, "records": records, "partitions": parts}
    answer(as_json, document, f"exported {counted(records, 'record')} of topic {topic!r} to {file}")


def _range(number: int, partition: LogReader, start: Start, end: Start, level: IsolationLevel) -> Range:
    """Return the requested offsets of a partition, clipped to those that can be read."""
    first, last = _offset(partition, start, level), _offset(partition, end, level)
    return Range(number, partition, first, max(first, last))


def _offset(partition: LogReader, where: Start, level: IsolationLevel) -> int:
    if where.offset is None:
        return where.in_partition(partition, level)
    return min(max(where.offset, partition.start_offset), partition.end_offset(level))


def _write(ranges: list[Range], sink: Sink, progress: Report | None, level: IsolationLevel) -> int:
    """Write all ranges and close the file; returns the number of records."""
    from commitlog.batches import arrow
    from commitlog.batches.arrow import with_partition

    total, done, records = sum(one.end - one.start for one in ranges), 0, 0
    try:
        for one in ranges:
            found = one.partition.combined_batches(one.start, one.end, isolation_level=level)
            for batch in arrow.stream(found):
                sink.write(with_partition(batch, one.number))
                records += batch.num_rows
                if progress is not None:
                    progress(done + batch["offset"][-1].as_py() + 1 - one.start, total)
            done += one.end - one.start
    finally:
        sink.close()
    return records


@contextmanager
def _complete(path: str) -> Iterator[str]:
    """Yield a temporary path to write to; the file gets its name once it is complete and durable."""
    folder, name = os.path.split(os.path.abspath(path))
    temporary = os.path.join(folder, f".{name}.{os.getpid()}.partial")
    try:
        yield temporary
        fd = os.open(temporary, os.O_RDONLY)
        try:
            files.sync_data(fd)
        finally:
            os.close(fd)
        files.replace(temporary, path)
    except BaseException:
        files.remove(temporary)
        raise
