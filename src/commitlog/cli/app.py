"""The command `commitlog`: its parts, and what becomes of errors, Ctrl-C and a pipe that is closed."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import Any, NoReturn

import click

import commitlog
from commitlog.cli.bench import bench
from commitlog.cli.completion import completion
from commitlog.cli.consume import consume
from commitlog.cli.dump import dump
from commitlog.cli.export_command import export_command
from commitlog.cli.groups import groups
from commitlog.cli.import_command import import_command
from commitlog.cli.output import flush_output, visible
from commitlog.cli.produce import produce
from commitlog.cli.stats import stats
from commitlog.cli.top import top
from commitlog.cli.topics import topics
from commitlog.cli.ui import ui
from commitlog.cli.upkeep import compact, roll, trim
from commitlog.cli.verify import repair, verify
from commitlog.errors import CommitLogError, ConfigError, InvalidTopicError

INTERRUPTED, TERMINATED, PIPE_CLOSED = (
    128 + int(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)
)

# To add a command: write it in a module of this folder, as in topics.py, and name it here.
COMMANDS = (
    topics, produce, consume, groups, stats, top, ui, dump, verify, repair, compact, trim, roll,
    export_command, import_command, bench, completion,
)  # fmt: skip


class App(click.Group):
    """A group of commands whose errors are one sentence on stderr, and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            try:
                return super().invoke(ctx)
            finally:
                flush_output()  # here, where an error has a place to go
        except (KeyboardInterrupt, click.Abort) as error:
            _end_interrupted(error)
        except BrokenPipeError:
            _leave_stdout()
            raise click.exceptions.Exit(PIPE_CLOSED) from None
        except click.ClickException as error:
            error.message = visible(error.message)  # type: ignore[misc] # ours to show
            raise
        except (ConfigError, InvalidTopicError) as error:  # no log would take it
            raise click.UsageError(visible(str(error)), ctx) from error
        except (CommitLogError, OSError) as error:
            if not isinstance(error, CommitLogError):
                _leave_stdout()  # it may be what failed
            raise click.ClickException(visible(_sentence(error))) from error


def _end_interrupted(error: BaseException) -> NoReturn:
    """End after Ctrl-C; a question that nobody is there to answer is a failure instead."""
    if isinstance(error, click.Abort) and not isinstance(error.__context__, KeyboardInterrupt):
        click.echo(err=True)  # behind the question
        raise click.ClickException("nobody answered; say --yes to go on without being asked") from None
    raise click.exceptions.Exit(INTERRUPTED) from None


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, CommitLogError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _leave_stdout() -> None:
    """Let what is still to be written go nowhere: Python would complain of it when it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=App, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(commitlog.__version__, prog_name="commitlog")
def app() -> None:
    """Look at a commit log, feed it, and look after it.

    DIR is the directory of a log. Where nothing is changed, the log may be in use by another process.

    Exit codes: 0 done; 1 failed, or damage was found; 2 wrong usage; 130 Ctrl-C.
    """


for _command in COMMANDS:
    app.add_command(_command)


def _terminate(*_: object) -> NoReturn:
    raise SystemExit(TERMINATED)


def run() -> int:
    """Run what the arguments of this process ask for; returns the exit code."""
    if sys.stdout is None:  # what Python makes of a closed one
        click.echo("Error: stdout is closed", err=True)
        return 1
    signal.signal(signal.SIGTERM, _terminate)  # so that logs are closed, and groups left
    try:
        app.main(prog_name="commitlog")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0
