"""`commitlog serve`: let programs on other machines use a log."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import BinaryIO

import click

import commitlog
from commitlog.cli import options
from commitlog.cli.open_log import writing
from commitlog.cli.output import flush_output, print_json, say


@click.command(
    "serve",
    epilog=options.example(
        "commitlog serve data",
        "commitlog serve data --host 0.0.0.0 --port 9092 --advertise db1 --secret /etc/commitlog/secret",
    ),
)
@options.directory
@click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="HOST", help="The address to listen at."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="The port; any free one by default."
)
@click.option(
    "--advertise", metavar="HOST", help="The name by which clients reach this machine, if it is another one."
)
@click.option(
    "--secret", type=click.File("rb"), metavar="FILE", help="A file with the secret that clients must know."
)
@options.as_json
def serve(
    directory: str,
    host: str,
    port: int,
    advertise: str | None,
    secret: BinaryIO | None,
    as_json: bool,
) -> None:
    """Let programs on other machines read, append to and publish to a log.

    They use commitlog.connect(), or Spark with the path that is printed. Other processes of this machine may
    write the log at the same time in shared mode. Without a secret, only this machine can connect. Ctrl-C
    stops the server.
    """
    known = None if secret is None else secret.read().strip()
    with (
        writing(directory, shared=True) as log,
        commitlog.serve(log, host, port, secret=known, advertised_host=advertise) as server,
    ):
        if as_json:
            print_json({"path": log.path, "address": server.address})
        else:
            say(f"{log.path} is served at\n\n  {server.path}\n\nuntil you press Ctrl-C")
        flush_output()
        with suppress(KeyboardInterrupt):
            signal.pause()
