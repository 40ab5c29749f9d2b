"""`commitlog transactions`: list, describe, abort."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from commitlog.cli import options
from commitlog.cli.open_log import reading, writing
from commitlog.cli.output import answer, ask, counted, print_json, print_rows, say
from commitlog.errors import CommitLogError
from commitlog.log import CommitLog
from commitlog.partition import Partition
from commitlog.record import TopicPartition
from commitlog.transactions.coordinator import TransactionDescription


@click.group()
def transactions() -> None:
    """List, describe and abort transactions."""


@transactions.command(
    "list",
    epilog=options.example("commitlog transactions list data", "commitlog transactions list data --open"),
)
@options.directory
@click.option("--open", "only_open", is_flag=True, help="Only those that are not decided yet.")
@options.as_json
def list_transactions(directory: str, only_open: bool, as_json: bool) -> None:
    """List the last transaction of every transactional id, with its age while it is open.

    Transactions without an id of their own are listed while they are open. The transaction of another process
    counts as open once its first records are in the log.
    """
    with reading(directory) as log:
        found = [_row(one) for one in log.transactions() if one.state == "Ongoing" or not only_open]
    if found and not as_json:
        print_rows(found)
    else:
        answer(as_json, found, "no open transactions" if only_open else "no transactions")


def _row(one: TransactionDescription) -> dict[str, Any]:
    return {
        "transactional_id": one.transactional_id,
        "state": one.state,
        "age_ms": one.age_ms,
        "timeout_ms": one.timeout_ms,
        "partitions": len(one.partitions),
        "process": one.process or None,
    }


@transactions.command(epilog=options.example("commitlog transactions describe data billing-1"))
@options.directory
@options.transactional_id
@options.as_json
def describe(directory: str, transactional_id: str, as_json: bool) -> None:
    """Show the last transaction of a transactional id, and where it is open.

    first_offset is where it begins in a partition; readers stop at last_stable_offset.
    """
    with reading(directory) as log:
        found = _found(log, transactional_id)
        if found is None:
            raise click.ClickException(f"no transactional id {transactional_id!r}")
        rows = [_place(log, found, name) for name in found.partitions]
    if as_json:
        print_json({**asdict(found), "partitions": rows})
        return
    age = "" if found.age_ms is None else f", for {found.age_ms} ms"
    say(f"transactional id {transactional_id}: {found.state}{age}, timeout {found.timeout_ms} ms")
    say(f"producer {found.producer_id}, epoch {found.epoch}, process {found.process or '-'}")
    if rows:
        print_rows(rows)


def _found(log: CommitLog, transactional_id: str) -> TransactionDescription | None:
    return next((one for one in log.transactions() if one.transactional_id == transactional_id), None)


def _place(log: CommitLog, one: TransactionDescription, name: TopicPartition) -> dict[str, Any]:
    """Describe a transaction in one partition, whose topic may be deleted by now."""
    first = stable = None
    try:
        partition: Partition = log.topic(name.topic).partition(name.partition)
        stable = partition.last_stable_offset
        open_here = {
            (some.producer_id, some.epoch): some.first_offset for some in partition.open_transactions()
        }
        first = open_here.get((one.producer_id, one.epoch))
    except CommitLogError:
        pass
    return {
        "topic": name.topic,
        "partition": name.partition,
        "first_offset": first,
        "last_stable_offset": stable,
    }


@transactions.command(
    epilog=options.example(
        "commitlog transactions abort data billing-1", "commitlog transactions abort data billing-1 --shared"
    )
)
@options.directory
@options.transactional_id
@options.yes
@options.shared
@options.as_json
def abort(directory: str, transactional_id: str, yes: bool, shared: bool, as_json: bool) -> None:
    """Abort the open transaction of a transactional id, after asking: its records are discarded.

    If its owner is still at work, pass --shared: the owner's next call fails. Without --shared, no other
    process may have the log open for writing. Then nobody owns what is open, and all of it is aborted.
    """
    with reading(directory) as log:
        found = _found(log, transactional_id)
    if found is None or found.state != "Ongoing":
        raise click.ClickException(f"{transactional_id!r} has no open transaction")
    if not yes:
        where = counted(len(found.partitions), "partition")
        ask(f"abort the transaction of {transactional_id!r}, and discard its records in {where}?")
    with writing(directory, shared=shared) as log:
        if shared:  # otherwise opening the log has aborted it
            log.abort_transaction(transactional_id)
    document = {"transactional_id": transactional_id, "aborted": True}
    answer(as_json, document, f"aborted the transaction of {transactional_id!r}")
