"""`commitlog compact`, `trim` and `roll`: do now what a log does in the background."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from operator import attrgetter

import click

from commitlog.cli import options
from commitlog.cli.open_log import writing
from commitlog.cli.output import ask, print_json, print_rows, print_table, say
from commitlog.cli.progress_bar import progress_bar
from commitlog.log import CommitLog
from commitlog.partition import Partition


@click.command(epilog=options.example("commitlog compact data users --roll"))
@options.directory
@options.optional_topic
@click.option(
    "--roll", "first_roll", is_flag=True, help="Seal the active segments first, to compact them too."
)
@options.shared
@options.as_json
def compact(directory: str, topic: str | None, first_roll: bool, shared: bool, as_json: bool) -> None:
    """Keep only the latest record of each key, in one topic or in all compacted ones."""
    reports = []
    with writing(directory, shared=shared) as log:
        for _, partition in _partitions(log, [topic] if topic else _compacted(log), None):
            if first_roll:
                partition.roll()
            with progress_bar(f"compacting {partition.name}") as progress:
                reports.append(partition.compact(progress=progress))
    if as_json:
        print_json([asdict(report) for report in reports])
    elif reports:
        shown = ("partition", "records_before", "records_after", "bytes_before", "bytes_after", "stopped_by")
        print_table(shown, map(attrgetter(*shown), reports))
    else:
        say("no topic has cleanup_policy compact")


def _compacted(log: CommitLog) -> list[str]:
    return [name for name in log.topics() if log.topic(name).config.compacts]


def _partitions(log: CommitLog, topics: list[str], partition: int | None) -> Iterator[tuple[int, Partition]]:
    """Iterate over the partitions of topics, or one of each, with their numbers."""
    for name in topics:
        topic = log.topic(name)
        numbers = range(len(topic.partitions)) if partition is None else [partition]
        for number in numbers:
            yield number, topic.partition(number)


@click.command(
    epilog=options.example(
        "commitlog trim data orders --partition 0 --before 1000",
        "commitlog trim data orders --before-time 2026-01-31 --yes",
        "commitlog trim data orders --all",
    )
)
@options.directory
@options.topic
@click.option(
    "--before", "offset", type=click.IntRange(0), metavar="OFFSET", help="Remove records below this offset."
)
@click.option("--before-time", "time", type=options.timestamp, metavar="TIME",
              help="Remove records before the first one at or after TIME.")  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="Remove all records; offsets continue.")
@options.partition
@options.yes
@options.shared
@options.as_json
def trim(
    directory: str, topic: str, offset: int | None, time: int | None, everything: bool,
    partition: int | None, yes: bool, shared: bool, as_json: bool,
) -> None:  # fmt: skip
    """Remove records from the front of partitions, after asking."""
    if (offset is not None) + (time is not None) + everything != 1:
        raise click.UsageError("pass one of --before, --before-time and --all")
    with writing(directory, shared=shared) as log:
        found = list(_partitions(log, [topic], partition))
        if offset is not None and len(found) > 1:
            raise click.UsageError(
                f"topic {topic!r} has {len(found)} partitions: choose one with --partition"
            )
        starts = [_start(one, offset, time) for _, one in found]
        rows = [
            {"partition": number, "before": one.start_offset, "start_offset": max(one.start_offset, start)}
            for (number, one), start in zip(found, starts, strict=True)
        ]
        removed = sum(row["start_offset"] - row["before"] for row in rows)
        if removed and not yes:
            ask(f"remove {removed} offsets from the front of {topic!r}?")
        for (_, one), start in zip(found, starts, strict=True):
            one.trim_before(start)
    if as_json:
        print_json({"topic": topic, "removed": removed, "partitions": rows})
    else:
        print_rows(rows)


def _start(partition: Partition, offset: int | None, time: int | None) -> int:
    """Return the offset below which everything is removed; an open transaction stays, unless it is named."""
    if offset is not None:
        return offset
    found = None if time is None else partition.offset_for_timestamp(time)
    return partition.last_stable_offset if found is None else found


@click.command(epilog=options.example("commitlog roll data orders"))
@options.directory
@options.topic
@options.partition
@options.shared
@options.as_json
def roll(directory: str, topic: str, partition: int | None, shared: bool, as_json: bool) -> None:
    """Seal the active segment of each partition, so that it can be compacted or removed."""
    rows = []
    with writing(directory, shared=shared) as log:
        for number, one in _partitions(log, [topic], partition):
            one.roll()
            rows.append({"partition": number, "base_offset": one.segments[-1].base_offset})
    if as_json:
        print_json({"topic": topic, "partitions": rows})
    else:
        print_rows(rows)
