"""The `commitlog` command: its subcommands, and how errors, Ctrl-C and a closed pipe end it."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import Any, NoReturn

import click

import commitlog
from commitlog import speedups
from commitlog.cli.bench import bench
from commitlog.cli.completion import completion
from commitlog.cli.consume import consume
from commitlog.cli.dump import dump
from commitlog.cli.export_command import export_command
from commitlog.cli.groups import groups
from commitlog.cli.import_command import import_command
from commitlog.cli.output import flush_output, visible
from commitlog.cli.produce import produce
from commitlog.cli.serve import serve
from commitlog.cli.spark import spark
from commitlog.cli.stats import stats
from commitlog.cli.top import top
from commitlog.cli.topics import topics
from commitlog.cli.transactions import transactions
from commitlog.cli.ui import ui
from commitlog.cli.upkeep import compact, roll, trim
from commitlog.cli.verify import repair, verify
from commitlog.errors import CommitLogError, ConfigError, InvalidTopicError

INTERRUPTED, TERMINATED, PIPE_CLOSED = (
    128 + int(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)
)

# To add a command: write it in a module of this folder, as in topics.py, and list it here.
COMMANDS = (
    topics, produce, consume, groups, transactions, stats, top, ui, serve, dump, verify, repair, compact,
    trim, roll, export_command, import_command, spark, bench, completion,
)  # fmt: skip


class App(click.Group):
    """The group of all commands: turns errors into one sentence on stderr and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            try:
                return super().invoke(ctx)
            finally:
                flush_output()  # here, where an error can still be reported
        except (KeyboardInterrupt, click.Abort) as error:
            _end_interrupted(error)
        except BrokenPipeError:
            _leave_stdout()
            raise click.exceptions.Exit(PIPE_CLOSED) from None
        except click.ClickException as error:
            error.message = visible(error.message)  # type: ignore[misc]
            raise
        except (ConfigError, InvalidTopicError) as error:  # invalid for every log
            raise click.UsageError(visible(str(error)), ctx) from error
        except (CommitLogError, OSError) as error:
            if not isinstance(error, CommitLogError):
                _leave_stdout()  # stdout may be what failed
            raise click.ClickException(visible(_sentence(error))) from error


def _end_interrupted(error: BaseException) -> NoReturn:
    """Exit after Ctrl-C, or fail if a question got no answer because stdin ended."""
    if isinstance(error, click.Abort) and not isinstance(error.__context__, KeyboardInterrupt):
        click.echo(err=True)  # ends the line of the question
        raise click.ClickException("there was no answer; pass --yes to skip the question") from None
    raise click.exceptions.Exit(INTERRUPTED) from None


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, CommitLogError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _leave_stdout() -> None:
    """Discard what is still to be written: Python would report it as an error at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=App, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    commitlog.__version__,
    prog_name="commitlog",
    message=f"%(prog)s, version %(version)s\nspeedups: {speedups.status}",
)
def app() -> None:
    """Inspect, feed and maintain a commit log.

    DIR is the directory of a log. Commands that change nothing work while other processes use the log.

    Exit codes: 0 success; 1 failure, or damage was found; 2 wrong usage; 130 Ctrl-C.
    """


for _command in COMMANDS:
    app.add_command(_command)


def _terminate(*_: object) -> NoReturn:
    raise SystemExit(TERMINATED)


def run() -> int:
    """Run the command line of this process; returns the exit code."""
    if sys.stdout is None:  # Python found it closed
        click.echo("Error: stdout is closed", err=True)
        return 1
    signal.signal(signal.SIGTERM, _terminate)  # so that logs are closed and groups are left
    try:
        app.main(prog_name="commitlog")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0
