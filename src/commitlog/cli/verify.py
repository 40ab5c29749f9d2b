"""`commitlog verify` and `commitlog repair`: find damage, and salvage what is sound."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from operator import attrgetter
from typing import Any

import click

from commitlog.cli import options
from commitlog.cli.open_log import NO_CLEANER, reading, writing
from commitlog.cli.output import ask, counted, print_json, print_table, say
from commitlog.cli.progress_bar import progress_bar
from commitlog.errors import CorruptionError, UnknownTopicError
from commitlog.log import CommitLog
from commitlog.repair import Damage, VerifyReport
from commitlog.topics.catalog import INTERNAL


@click.command(epilog=options.example("commitlog verify data", "commitlog verify data orders --json"))
@options.directory
@options.optional_topic
@options.as_json
def verify(directory: str, topic: str | None, as_json: bool) -> None:
    """Read and check everything, and list the damage.

    The log may be in use. The exit code is 1 if there is damage.
    """
    found = verified(directory, topic)
    damage = [one for report in found.values() for one in report.damage]
    if as_json:
        rows = [{"partition": name, **asdict(report)} for name, report in found.items()]
        print_json({"ok": not damage, "partitions": rows})
    else:
        columns = ("segments", "batches", "records", "bytes_checked")
        cells = attrgetter(*columns)
        print_table(
            ("partition", *columns, "damage"),
            [(name, *cells(report), len(report.damage)) for name, report in found.items()],
        )
        _print_damage(damage)
    if damage:
        raise click.exceptions.Exit(1)


def verified(directory: str, topic: str | None) -> dict[str, VerifyReport]:
    """Verify partitions; a topic that cannot be opened counts as damaged."""
    found: dict[str, VerifyReport] = {}
    with reading(directory) as log:
        for name in _names(log, topic):
            try:
                partitions = log.topic(name).partitions
            except CorruptionError as error:
                damage = Damage(error.path, error.position, error.position, error.reason)
                found[name] = VerifyReport(0, 0, 0, 0, (damage,))
                continue
            for partition in partitions:
                with progress_bar(f"verifying {partition.name}") as progress:
                    found[partition.name] = partition.verify(progress)
    return found


def _names(log: CommitLog, topic: str | None) -> list[str]:
    """Return the given topic, or all topics, including internal ones."""
    return [topic] if topic else [*log.topics(), *(name for name in INTERNAL if _is_there(log, name))]


def _is_there(log: CommitLog, name: str) -> bool:
    try:
        log.topic(name)
    except UnknownTopicError:
        return False
    except CorruptionError:  # it exists, but is damaged
        pass
    return True


def _print_damage(damage: Iterable[Damage], *, err: bool = False) -> None:
    for one in damage:
        path = click.format_filename(one.path)
        say(f"{path}, bytes [{one.position}, {one.end_position}): {one.reason}", err=err)


@click.command(epilog=options.example("commitlog repair data", "commitlog repair data orders --yes --json"))
@options.directory
@options.optional_topic
@options.yes
@options.as_json
def repair(directory: str, topic: str | None, yes: bool, as_json: bool) -> None:
    """Keep the sound batches of damaged segments, and rebuild wrong indexes.

    This verifies first, and asks. The offsets of lost records stay empty; a damaged file is kept next to the
    repaired one, as .damaged. Damage that prevents opening the log is repaired in every topic.
    """
    bad = {name: report.damage for name, report in verified(directory, topic).items() if report.damage}
    if bad and not yes:
        _print_damage((one for some in bad.values() for one in some), err=True)
        ask("keep what is sound, and keep the damaged files as .damaged?")
    rows = _repaired(directory, set(bad)) if bad else []
    if as_json:
        print_json({"repaired": rows})
    elif rows:
        _print_repaired(rows)
    else:
        say("there is nothing to repair")


def _print_repaired(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        segments, indexes = len(row["salvaged"]), row["indexes_rebuilt"]
        say(f"{row['partition']}: {counted(segments, 'segment')} salvaged, indexes rebuilt: {indexes}")
        for one in row["salvaged"]:
            ranges = " ".join(f"[{start}, {end})" for start, end in one["lost"]) or "none"
            path = click.format_filename(one["path"])
            say(f"  {path}: {one['bytes_lost']} bytes lost, offsets {ranges}")


def _repaired(directory: str, damaged: set[str]) -> list[dict[str, Any]]:
    """Repair partitions by name, or by the name of a topic that could not be opened."""
    with writing(directory, config=replace(NO_CLEANER, recovery_mode="salvage")) as log:
        # opening the log has repaired what prevented opening it
        rows = {one.partition: [*one.salvaged] for one in log.recovery if one.salvaged}
        rebuilt = {one.partition: one.indexes_rebuilt for one in log.recovery if one.salvaged}
        for name in _names(log, None):
            for partition in log.topic(name).partitions:
                if damaged & {name, partition.name}:
                    with progress_bar(f"repairing {partition.name}") as progress:
                        report = partition.repair(progress=progress)
                    rows.setdefault(partition.name, []).extend(report.salvaged)
                    rebuilt[partition.name] = rebuilt.get(partition.name, 0) + report.indexes_rebuilt
    return [
        {"partition": name, "salvaged": [asdict(one) for one in some], "indexes_rebuilt": rebuilt[name]}
        for name, some in rows.items()
    ]
