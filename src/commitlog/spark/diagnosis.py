"""doctor: find out why a session cannot read or write a log, on the driver and on every executor."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from commitlog import notebook
from commitlog.spark import probe
from commitlog.spark.options import log_path
from commitlog.spark.readable import SCHEME, is_remote
from commitlog.spark.session import Problem, is_connect, is_local, session_problems
from commitlog.spark.shipping import HOW_TO_SHIP

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_CLOCK_SECONDS = 5.0  # timestamps and retention of records compare the clocks of hosts
_WAIT_SECONDS = 0.2  # of a task, so that it does not free its slot before the others have started
_CLIENT = "client"  # of Spark Connect, instead of the driver; it need not see the log
_MOST_TASKS = 1000
_TASKS = 32  # if Spark does not say how many slots there are, as in Spark Connect
_FAILED = re.compile(r"\(TID \d+\) \((\S+) executor (\S+)\): (.*)")
_COLUMNS = (
    "where", "host", "interpreter", "python", "pyspark", "pyarrow", "commitlog", "log", "read", "write",
    "same files", "file system", "clock", "verdict",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """What the driver, or executors with the same answers, see. A field is None if it was not found out.

    `same_files` is whether they see a file that the driver wrote into the log's directory; `clock_seconds` is
    by how much their clock differs from the driver's at least.
    """

    where: str
    host: str
    interpreter: str | None = None
    python: str | None = None
    pyspark: str | None = None
    pyarrow: str | None = None
    commitlog: str | None = None
    path_is_there: bool | None = None
    log_id: str | None = None
    readable: bool | None = None
    writable: bool | None = None
    same_files: bool | None = None
    file_system: str | None = None
    clock_seconds: float = 0.0
    problems: tuple[Problem, ...] = ()

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table."""
        versions = (self.interpreter, self.python, self.pyspark, self.pyarrow, self.commitlog)
        log = "missing" if self.path_is_there is False else self.log_id
        flags = (_yes_or_no(one) for one in (self.readable, self.writable, self.same_files))
        clock = f"{self.clock_seconds:.1f} s off" if self.clock_seconds else "ok"
        verdict = "; ".join(one.what for one in self.problems) or "ok"
        row = (self.where, self.host, *versions, log, *flags, self.file_system, clock, verdict)
        return tuple("-" if cell is None else cell for cell in row)


def _yes_or_no(flag: bool | None) -> str | None:
    return None if flag is None else "yes" if flag else "NO"


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """What doctor() found: the driver first, then executors; str() is a table with what to do below it."""

    path: str
    rows: tuple[Place, ...]
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not self.problems

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return the names of the columns and the rows, as text."""
        return _COLUMNS, [row.cells() for row in self.rows]

    def __str__(self) -> str:
        head, rows = self.table()
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (head, *rows)
        ]
        return "\n".join([*lines, "", *(map(str, self.problems) if self.problems else ["no problems"])])

    def _repr_html_(self) -> str:
        head, rows = self.table()
        advice = [(one.where, one.what, one.remedy) for one in self.problems]
        below = notebook.table("what to do", ("where", "problem", "remedy"), advice) if advice else ""
        return notebook.table(f"doctor {self.path}", head, rows) + below


def doctor(spark: SparkSession, path: str, *, timeout_seconds: float = 120.0) -> DoctorReport:
    """Check that the driver and every executor can read and write a log, and say what to do if not.

    It runs tasks until every executor has answered, also where commitlog is not installed, and leaves nothing
    behind. An executor that has not answered after `timeout_seconds` is a problem. `path` may name nodes:
    commitlog://host:port.
    """
    place = log_path(path)
    addresses = _addresses(place)
    context = None if is_connect(spark) else spark.sparkContext
    with contextlib.nullcontext() if addresses else _marker(place) as marker:
        question = probe.Question(place, addresses, marker, _WAIT_SECONDS)
        here = probe.examine(question)
        examined = _Rounds(spark, context, question)
        examined.run(time.monotonic() + timeout_seconds)
    driver, *executors = _judged(_CLIENT if context is None else "driver", here, examined.answers)
    failed = [
        Place(f"executor {name}", host, problems=(_failure(f"executor {name} on {host}", text),))
        for name, (host, text) in examined.failures.items()
        if name not in examined.answers
    ]
    rows = (driver, *executors, *failed)
    general = [] if context is None else session_problems(context)
    general += _format_problem(spark, context, place)
    general += examined.problems
    return DoctorReport(path, rows, (*general, *(one for row in rows for one in row.problems)))


def _addresses(path: str) -> tuple[tuple[str, int], ...]:
    from commitlog.replication.transports.opener import split_address

    if not is_remote(path):
        return ()
    named = path.removeprefix(SCHEME).partition("?")[0].split(",")
    return tuple(split_address(one.strip()) for one in named)


@contextlib.contextmanager
def _marker(path: str) -> Iterator[str | None]:
    """Leave a file in the log's directory meanwhile; yields its name in there, or None if that fails."""
    try:
        file = probe.temporary_file(path)
    except OSError:  # the probe of the driver says why
        yield None
        return
    with file:
        yield os.path.relpath(file.name, path)


# --- asking executors ----------------------------------------------------------------------------


@dataclass(slots=True)
class _Rounds:
    """Runs probes on executors until each has answered or failed."""

    spark: SparkSession
    context: Any
    question: probe.Question
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)  # by the executor's name
    failures: dict[str, tuple[str, str]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def run(self, deadline: float) -> None:
        """Run rounds of tasks; after a failure, of one task, so that it cannot fail the others.

        A second round, when everything is warm, says more about clocks.
        """
        slots = _TASKS if self.context is None else max(int(self.context.defaultParallelism), 1)
        rounds = 0
        while not self.problems and time.monotonic() < deadline:
            self._round(1 if self.failures else min(2 * slots, _MOST_TASKS), deadline)
            rounds += 1
            if rounds > 1 and not self._missing():
                return
        for name, host in self._missing().items():
            what = "it has not answered"
            self.problems.append(Problem(f"executor {name} on {host}", what, _NO_ANSWER))

    def _missing(self) -> dict[str, str]:
        """Return the hosts of executors that have neither answered nor failed, by name."""
        known = {} if self.context is None else _executors(self.context)
        return {name: host for name, host in known.items() if name not in {*self.answers, *self.failures}}

    def _round(self, tasks: int, deadline: float) -> None:
        from pyspark import cloudpickle
        from pyspark.sql import functions

        cloudpickle.register_pickle_by_value(probe)  # executors may have no commitlog to import it from
        question = self.question
        ask = functions.udf(lambda _: json.dumps(probe.examine(question)), "string", useArrow=False)
        frame = self.spark.range(0, tasks, 1, tasks).select(ask("id").alias("found"))
        before = time.time()
        rows, problem = _collected(self.spark, frame, deadline)
        after = time.time()
        if rows is None and problem is None:
            self.problems.append(Problem("executors", "no task has ended in time", _NO_ANSWER))
        elif rows is None:
            self._note_failure(str(problem))
        else:
            self._note_answers([json.loads(row.found) for row in rows], before, after)

    def _note_failure(self, text: str) -> None:
        failed = _FAILED.search(text)
        if failed is None:
            self.problems.append(Problem("session", _first_line(text), "see the message of the exception"))
        else:
            self.failures[failed[2]] = failed[1], text[failed.start(3) :]

    def _note_answers(self, found: Sequence[dict[str, Any]], before: float, after: float) -> None:
        stages = set() if self.context is None else {one["task"][0] for one in found}
        names = {place: name for stage in stages for place, name in _ran(self.context, stage).items()}
        for one in found:
            name = names[tuple(one["task"])] if names else one["host"]
            off = max(before - one["now"], one["now"] - after, 0.0)
            known = self.answers.get(name, {}).get("clock", 0.0)
            self.answers[name] = {**one, "clock": max(off, known)}


_NO_ANSWER = "see the executors' logs and whether the cluster has free slots, or allow more time"


def _collected(spark: SparkSession, frame: Any, deadline: float) -> tuple[list[Any] | None, Exception | None]:
    """Collect a frame within a deadline: its rows, or the error, or neither if it took too long."""
    from pyspark import InheritableThread

    rows: list[list[Any]] = []
    problems: list[Exception] = []
    tag = f"commitlog-doctor-{secrets.token_hex(8)}"

    def work() -> None:
        spark.addTag(tag)
        try:
            rows.append(frame.collect())
        except Exception as problem:
            problems.append(problem)

    thread: threading.Thread = InheritableThread(target=work, daemon=True, session=spark)
    thread.start()
    thread.join(max(deadline - time.monotonic(), 0.0))
    if thread.is_alive():
        spark.interruptTag(tag)
        return None, None
    return (rows[0], None) if rows else (None, problems[0])


def _executors(context: Any) -> dict[str, str]:
    """Return the hosts of the executors that Spark knows, by name."""
    listed = context._jsc.sc().statusStore().executorList(True)
    found = [listed.apply(number) for number in range(listed.size())]
    hosts = {str(one.id()): str(one.hostPort()).rpartition(":")[0] for one in found}
    return {name: host for name, host in hosts.items() if (name == "driver") == is_local(context)}


def _ran(context: Any, stage: int) -> dict[tuple[int, int], str]:
    """Return the name of the executor that ran each task of a stage that succeeded."""
    context._jsc.sc().listenerBus().waitUntilEmpty()  # the store hears of tasks through it
    listed = context._jsc.sc().statusStore().taskList(stage, 0, 4 * _MOST_TASKS)
    found = [listed.apply(number) for number in range(listed.size())]
    return {(stage, one.partitionId()): str(one.executorId()) for one in found if one.status() == "SUCCESS"}


# --- verdicts ------------------------------------------------------------------------------------


def _place(where: str, found: dict[str, Any]) -> Place:
    clock = found.get("clock", 0.0)
    return Place(
        where,
        found["host"],
        found["interpreter"],
        found["python"],
        found.get("pyspark"),
        found.get("pyarrow"),
        found.get("commitlog"),
        found.get("there", False),
        found.get("log_id"),
        found.get("readable"),
        found.get("writable"),
        found.get("marker"),
        found.get("file_system"),
        clock if clock > MOST_CLOCK_SECONDS else 0.0,
    )


def _judged(where: str, here: dict[str, Any], answers: dict[str, dict[str, Any]]) -> Iterator[Place]:
    """Yield the rows of the driver and of each group of executors with the same answers, with their problems.

    The log is that of the driver, or of the first place that can read one.
    """
    places = {name: _place("", found) for name, found in sorted(answers.items())}
    driver = _place(where, here)
    log_id = next((row.log_id for row in (driver, *places.values()) if row.readable), None)
    yield _named(driver, where, _problems_of(driver, driver, log_id, here))
    groups: dict[tuple[Place, tuple[Problem, ...]], list[str]] = {}
    for name, row in places.items():
        problems = tuple(_problems_of(row, driver, log_id, answers[name]))
        groups.setdefault((row, problems), []).append(name)
    for (row, problems), names in groups.items():
        yield _named(row, "executor" if names == [row.host] else f"executor {', '.join(names)}", problems)


def _named(row: Place, where: str, problems: Iterable[Problem]) -> Place:
    there = f"{where} on {row.host}"
    return replace(row, where=where, problems=tuple(replace(one, where=there) for one in problems))


def _problems_of(row: Place, driver: Place, log_id: str | None, found: dict[str, Any]) -> Iterator[Problem]:
    """Compare what was found at a place with what is needed, and with the driver."""
    where = row.host
    if row.commitlog is None:
        yield Problem(where, f"{row.interpreter} has no commitlog", HOW_TO_SHIP)
    elif row.pyarrow is None:
        yield Problem(where, f"{row.interpreter} has no pyarrow", HOW_TO_SHIP)
    elif "not_imported" in found:
        yield Problem(where, f"commitlog.spark cannot be imported ({found['not_imported']})", HOW_TO_SHIP)
    for name in ("python", "pyspark", "commitlog"):
        here, there = getattr(row, name), getattr(driver, name)
        if here is not None and there is not None and _version(name, here) != _version(name, there):
            yield Problem(
                where, f"{name} {here}, but the driver has {there}", "use the same version everywhere"
            )
    if row.path_is_there or row.where != _CLIENT:
        yield from _problems_of_path(where, row, log_id, found)
    if row.clock_seconds:
        what = f"the clock differs from the driver's by {row.clock_seconds:.1f} s or more"
        yield Problem(where, what, "synchronize the clocks: retention and timestamps rely on them")


def _problems_of_path(where: str, row: Place, log_id: str | None, found: dict[str, Any]) -> Iterator[Problem]:
    if "not_reached" in found and not row.path_is_there:
        yield Problem(
            where, f"no node can be reached ({found['not_reached']})", "open the way to the nodes' ports"
        )
    elif not row.path_is_there:
        yield Problem(where, "the path is not there", "mount the log's directory at this path on every host")
    elif "not_read" in found:
        remedy = "let the user of this process read the directory, or check that the path is the log's"
        yield Problem(where, f"the log cannot be read ({found['not_read']})", remedy)
    elif row.readable and row.log_id != log_id:
        what = f"another log is at the path: {row.log_id}, not {log_id}"
        yield Problem(where, what, "mount the same directory on every host")
    elif row.same_files is False:
        what = "it has a copy of the log's directory: a file of the driver is not in it"
        yield Problem(where, what, "mount the same directory on every host")
    if "not_written" in found:
        what = f"the log cannot be written ({found['not_written']})"
        yield Problem(where, what, "let the user of this process write, unless queries only read")


def _version(name: str, text: str) -> str:
    """Return the part of a version that must be the same: Python pickles code by its minor version."""
    return ".".join(text.split(".")[:2]) if name == "python" else text


def _failure(where: str, text: str) -> Problem:
    """Return the problem behind the error of a task that did not get as far as our code."""
    program = re.search(r'Cannot run program "([^"]+)"', text)
    if program is not None:
        what = f"there is no program {program[1]}"
        return Problem(
            where, what, "set PYSPARK_PYTHON to a Python that every host has, by its absolute path"
        )
    if "PYTHON_VERSION_MISMATCH" in text:
        what = "its Python has another minor version than the driver's"
        return Problem(where, what, "set PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON to the same version")
    return Problem(where, _last_line(text), HOW_TO_SHIP)


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "it failed"


def _last_line(text: str) -> str:
    """Return the line of a traceback that has the error, or the first line."""
    errors = re.findall(r"^\w*(?:Error|Exception): .*$", text, re.MULTILINE)
    return errors[0] if errors else _first_line(text)


def _format_problem(spark: SparkSession, context: Any, path: str) -> list[Problem]:
    """Ask Spark for the format, as a query does."""
    try:
        spark.read.format("commitlog").load(path)
    except Exception as problem:
        if "DATA_SOURCE_NOT_FOUND" in str(problem):
            return [Problem("driver", f"Spark does not find the format: {_looked_in(context)}", _REGISTER)]
        return [Problem("driver", f"Spark cannot load the format: {_last_line(str(problem))}", _REGISTER)]
    return []


_REGISTER = (
    "call commitlog.spark.register(spark), or import commitlog.spark before the session is created, "
    "or set PYSPARK_PYTHON"
)


def _looked_in(context: Any) -> str:
    """Say which Python Spark looks for formats in: that of the JVM's environment as it was started."""
    if context is None:
        return "the server's Python has no commitlog"
    variables = context._jvm.System.getenv()
    for name in ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"):
        if variables.get(name):
            return f"{name} = {variables[name]} has no commitlog"
    return "the python3 in the PATH has no commitlog"
