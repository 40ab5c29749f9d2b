"""`commitlog spark`: doctor."""

from __future__ import annotations

from dataclasses import asdict

import click

from commitlog.cli import options
from commitlog.cli.output import print_json, print_table, say


@click.group()
def spark() -> None:
    """Check Spark's side of a log."""


@spark.command(
    epilog=options.example(
        "commitlog spark doctor /data/log",
        "commitlog spark doctor /data/log --master spark://node1:7077",
        "commitlog spark doctor commitlog://node1:9092 --json",
    )
)
@click.argument("path", metavar="PATH")
@click.option("--master", default="local[2]", metavar="URL", help="Spark's master; by default local[2].")
@options.as_json
def doctor(path: str, master: str, as_json: bool) -> None:
    """Check that Spark's driver and every executor can use a log.

    PATH is the log's directory, or commitlog://host:port. The exit code is 1 if there are problems, each of
    which is listed with what to do.
    """
    from pyspark.sql import SparkSession

    import commitlog.spark

    commitlog.spark.use_java()
    settings = {**commitlog.spark.CONF, "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    session = (
        SparkSession.builder.master(master).appName("commitlog doctor").config(map=settings).getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")  # what tasks report is in the table
    try:
        found = commitlog.spark.doctor(session, path)
    finally:
        session.stop()
    if as_json:
        print_json({"ok": found.ok, **asdict(found)})
    else:
        print_table(*found.table())
        for problem in found.problems:
            say(str(problem))
    if not found.ok:
        raise click.exceptions.Exit(1)
