"""The long forms of tests: whether they run, how long a test may take, and what all of them did together.

A test says what it does: `count("processes killed")`. Its sums travel with its report, so those of all
workers of pytest-xdist come together in the process that prints the table.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

SOAK = os.environ.get("COMMITLOG_SOAK") == "1"
# what chance does in the tests that are random; the workers of pytest-xdist inherit it
SEED = int(os.environ.setdefault("COMMITLOG_SEED", str(time.time_ns() % 1_000_000 if SOAK else 1)))
LIMIT_S = 1_200 if SOAK else 600  # for one test, its fixtures included
_AGAIN_S = 30  # a test that does not end at its limit is interrupted again

COUNTED = (
    "processes killed",
    "power-cut images opened",
    "schedules simulated",
    "operations interrupted",
    "damaged logs opened",
)  # in the order in which they are shown; others follow
FAILED = pytest.StashKey[bool]()  # of a test that has failed
PROPERTY = "what this test did"  # the name under which a report carries the sums

_counts: Counter[str] = Counter()  # of the test that runs


def count(what: str, number: int = 1) -> None:
    """Note that a test did something."""
    _counts[what] += number


def take() -> dict[str, int]:
    """Return what was counted since the last call."""
    taken = dict(_counts)
    _counts.clear()
    return taken


@contextmanager
def time_limit(seconds: float, errors: int) -> Iterator[None]:
    """Fail what takes longer, with the stacks of all threads; end the process if even that does not help.

    `errors` is the descriptor that the stacks are written to in that last case.
    """

    def too_long(*_: object) -> None:
        assert sys.__stderr__ is not None
        faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
        pytest.fail(f"it takes longer than {seconds:g} s; the captured errors have the stacks of all threads")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
    # xdist starts another process for the tests that are left
    faulthandler.dump_traceback_later(seconds + 5 * _AGAIN_S, exit=True, file=errors)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Table:
    """What all tests of a run did."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._counts: Counter[str] = Counter()
        self._tests: Counter[str] = Counter()

    def add(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            counts: Any = dict(report.user_properties).get(PROPERTY, {})
            self._counts.update(counts)
        if report.when == "call" or report.outcome != "passed":
            self._tests[report.outcome] += 1

    def markdown(self) -> str:
        """The table of docs/guarantees.md."""
        minutes = (time.monotonic() - self._began) / 60
        others = sorted(self._counts.keys() - set(COUNTED))
        rows = [(what, f"{self._counts[what]:,}") for what in (*COUNTED, *others) if self._counts[what]]
        rows.append(("tests passed", f"{self._tests['passed']:,}"))
        rows.append(("tests failed", f"{self._tests['failed']:,}"))
        rows.append(("minutes", f"{minutes:.0f}, on {os.cpu_count()} cores"))
        return "\n".join(["| | |", "|---|---:|", *(f"| {what} | {number} |" for what, number in rows)])
