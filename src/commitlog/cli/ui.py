"""`commitlog ui`: show a log in the browser."""

from __future__ import annotations

import os
import webbrowser

import click

import commitlog
from commitlog.cli import options
from commitlog.cli.open_log import writing
from commitlog.cli.output import flush_output, print_json, say
from commitlog.errors import LogLockedError


@click.command(
    "ui",
    epilog=options.example(
        "commitlog ui data", "commitlog ui data --port 8400 --no-browser", "commitlog ui data --writable"
    ),
)
@options.directory
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="The port; any free one by default."
)
@click.option(
    "--writable",
    is_flag=True,
    help="Allow the page to append, trim, roll, compact, reset groups and abort transactions.",
)
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@options.as_json
def ui(directory: str, port: int, writable: bool, no_browser: bool, as_json: bool) -> None:
    """Show a log in the browser: segments, rates, groups, records, a live tail.

    The page is served to this machine only, and its address contains a secret token. Another process may be
    writing the log; with --writable, only if it opened the log in shared mode. Ctrl-C stops the server.
    """
    from commitlog.ui.server import Server

    try:
        with writing(directory, shared=True) if writable else commitlog.open(directory, mode="r") as log:
            server = Server(log, port=port, writable=writable)
            if as_json:
                print_json({"path": log.path, "url": server.url, "writable": writable})
            else:
                say(f"{log.path} is shown at\n\n  {server.url}\n\nuntil you press Ctrl-C")
            flush_output()
            if not no_browser and _has_screen():
                webbrowser.open(server.url)
            server.run()
    except LogLockedError as locked:
        hint = "without --writable you can still view it"
        raise click.ClickException(f"{locked}; {hint}") from locked


def _has_screen() -> bool:
    """Return whether there is a display; without one, a text browser might take over the terminal."""
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
