"""The end of a read that Spark breaks off: a LIMIT has enough rows, or a query is stopped.

Spark then closes the connection to the Python process. Its write fails, and the daemon of PySpark, which
flushes the output once more, prints a traceback of BrokenPipeError for a query that succeeded.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
import traceback
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_hang_up() -> Iterator[None]:
    """Let the last flush after the work in the block ignore that Spark has closed the connection.

    Errors within the block are raised, and so is one that Spark still reads.
    """
    output = _output()
    try:
        yield
    finally:
        if output is not None:
            vars(output)["flush"] = functools.partial(_flush, output)


def _output() -> io.BufferedWriter | None:
    """Return the stream from a task to Spark, which only a local variable of PySpark's daemon holds."""
    frame = sys._getframe()
    while frame is not None:
        output = frame.f_locals.get("outfile") if frame.f_code.co_name == "worker" else None
        if isinstance(output, io.BufferedWriter):
            return output
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _flush(output: io.BufferedWriter) -> None:
    try:
        io.BufferedWriter.flush(output)
    except (BrokenPipeError, ConnectionResetError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, output.fileno())  # what is still in the buffer has no reader
        os.close(nowhere)
        io.BufferedWriter.flush(output)


def end_if_hung_up() -> None:
    """End this process if Spark has closed the connection to it; for the stop() of a stream's reader.

    Spark's program calls that while it handles the error, and would then report the error over the same
    connection and print a traceback of the attempt. An error that our own code raised is left to Spark.
    """
    problem, caller = sys.exc_info()[1], sys._getframe(2)
    if isinstance(problem, EOFError | BrokenPipeError | ConnectionResetError) and (
        caller.f_code.co_name == "main" and caller.f_globals.get("__name__") == "__main__"
    ):
        modules = [
            frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(problem.__traceback__)
        ]
        if not any(name.startswith("commitlog.") for name in modules):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
