"""The command line under test: within this process, through pipes, and on a real terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from click.testing import CliRunner, Result

import commitlog
from commitlog import CommitLog, Producer
from commitlog.cli.app import app

SOURCE = str(Path(commitlog.__file__).parents[1])
BEGAN = time.time_ns() // 1_000_000 - 10_000
PROGRAM = [sys.executable, "-m", "commitlog"]


@contextmanager
def undecided(path: Path, mode: Literal["w", "shared"] = "w") -> Iterator[tuple[CommitLog, Producer]]:
    """A log that is being written. orders-0 has a plain record at offset 0, a committed one with its marker,
    an aborted one with its marker, one of an open transaction, and another plain one at offset 6.

    The open transaction is that of "billing-1", which has also written to pay-0. The first record is of
    BEGAN, each other one of a second later.
    """
    with commitlog.open(path, mode=mode) as log:
        topic = log.create_topic("orders", 2)
        log.create_topic("pay")
        topic.append(b"plain", partition=0, timestamp=BEGAN)
        producer = log.producer(transactional_id="billing-1")
        for commit, value, timestamp in (
            (True, b"committed", BEGAN + 1_000),
            (False, b"aborted", BEGAN + 2_000),
        ):
            producer.begin_transaction()
            producer.send("orders", value, partition=0, timestamp=timestamp)
            producer.flush()
            (producer.commit_transaction if commit else producer.abort_transaction)()
        producer.begin_transaction()
        producer.send("orders", b"open", partition=0, timestamp=BEGAN + 3_000)
        producer.send("pay", b"open")
        producer.flush()
        topic.append(b"after", partition=0, timestamp=BEGAN + 4_000)
        yield log, producer


def environment(**more: str) -> dict[str, str]:
    """The environment of a process that is to find commitlog."""
    return {**os.environ, "PYTHONPATH": SOURCE, **more}


def call(*arguments: object, stdin: bytes | str | None = None) -> Result:
    """Run a command within this process: fast, for breadth."""
    return CliRunner().invoke(app, [str(one) for one in arguments], input=stdin, catch_exceptions=False)


def ok(*arguments: object, stdin: bytes | str | None = None) -> str:
    """Run a command that must succeed; returns what it printed."""
    result = call(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


def ok_json(*arguments: object, stdin: bytes | str | None = None) -> Any:
    """Run a command with --json; returns the document."""
    return json.loads(ok(*arguments, "--json", stdin=stdin))


def piped(*arguments: object, stdin: bytes = b"", **more: str) -> subprocess.CompletedProcess[bytes]:
    """Run `python -m commitlog` in a process of its own, between pipes."""
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        env=environment(PYTHONWARNINGS="error", **more),
        check=False,
        timeout=60,
    )


def started(*arguments: object, **more: Any) -> subprocess.Popen[bytes]:
    """Start `python -m commitlog`, for tests that talk to it while it runs."""
    return subprocess.Popen([*PROGRAM, *map(str, arguments)], env=environment(), **more)


def on_terminal(*arguments: object, typed: bytes = b"", **more: str) -> tuple[int, str]:
    """Run `python -m commitlog` on a terminal of its own, and answer its question.

    Returns the exit code and what the screen got. What is typed is typed again until something happens: a
    signal that comes just before Python reads from a terminal is noticed only after that.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        screen = environment(**{"TERM": "xterm-256color", **more})
        os.execve(PROGRAM[0], [*PROGRAM, *map(str, arguments)], screen)
    seen = b""
    try:
        while True:
            if b"[y/N]: " in seen and not select.select([terminal], [], [], 0.5)[0]:
                os.write(terminal, typed)
            piece = os.read(terminal, 1 << 16)
            if not piece:
                break
            seen += piece
    except OSError:  # EIO: the other side is gone
        pass
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), seen.decode()
