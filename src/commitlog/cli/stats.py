"""`commitlog stats`: the size of a log, and the lag of its groups."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import click

from commitlog.cli import options
from commitlog.cli.open_log import reading
from commitlog.cli.output import counted, print_json, print_rows, print_table, say
from commitlog.inspect.describe import PartitionSummary, describe_partition, summarize_group
from commitlog.log import CommitLog


@click.command(epilog=options.example("commitlog stats data", "commitlog stats data orders --json"))
@options.directory
@options.optional_topic
@options.as_json
def stats(directory: str, topic: str | None, as_json: bool) -> None:
    """Show the size, records, segments and dirty ratio of partitions, and the lag of groups."""
    with reading(directory) as log:
        found = {name: _of_topic(log, name) for name in ([topic] if topic else log.topics())}
        groups = _lags(log, topic)
    partitions = [one for some in found.values() for one in some]
    totals = {
        "topics": len(found),
        "partitions": len(partitions),
        "records": sum(one.records for one in partitions),
        "segments": sum(one.segments for one in partitions),
        "bytes": sum(one.bytes for one in partitions),
    }
    if as_json:
        print_json({**totals, "topic_partitions": found, "groups": groups})
        return
    say(", ".join(counted(number, name.removesuffix("s")) for name, number in totals.items()))
    columns = ("start_offset", "next_offset", "durable_offset", "records", "segments", "bytes", "dirty_ratio")
    cells = attrgetter(*columns)
    rows = [(f"{name}-{one.partition}", *cells(one)) for name, some in found.items() for one in some]
    if rows:
        print_table(("partition", *columns), rows)
    if groups:
        say()
        print_rows(groups)


def _of_topic(log: CommitLog, name: str) -> list[PartitionSummary]:
    found = enumerate(log.topic(name).partitions)
    return [describe_partition(number, one, count_records=True) for number, one in found]


def _lags(log: CommitLog, topic: str | None) -> list[dict[str, Any]]:
    """Return the lag of each group, without those that have committed nothing of `topic`."""
    found = [summarize_group(log.describe_group(name), topic) for name in log.groups()]
    return [
        {"group": one.group_id, "state": one.state, "lag": one.lag or 0}
        for one in found
        if topic is None or one.lag is not None
    ]
