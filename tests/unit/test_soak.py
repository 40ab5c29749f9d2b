"""The time limit of tests, and the table of what they did."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import soak


def test_what_takes_too_long_fails_and_the_stacks_of_all_threads_are_shown(
    capfd: pytest.CaptureFixture[str],
) -> None:
    ends = threading.Event()
    other = threading.Thread(target=ends.wait, name="other")
    other.start()
    lock = threading.Lock()
    lock.acquire()
    with pytest.raises(pytest.fail.Exception, match=r"longer than 0\.05 s"), soak.time_limit(0.05, errors=2):
        lock.acquire()
    ends.set()
    other.join()
    assert capfd.readouterr().err.count("most recent call first") >= 2


def test_the_table_sums_up_what_all_tests_did() -> None:
    table = soak.Table()
    for number, outcome in enumerate(["passed", "failed"], 1):
        done = [(soak.PROPERTY, {"processes killed": number, "something else": 1_000})]
        for when in ("setup", "call", "teardown"):
            table.add(
                report(outcome if when == "call" else "passed", when, done if when == "teardown" else [])
            )
    rows = table.markdown().splitlines()
    assert rows[2:-1] == [
        "| processes killed | 3 |",
        "| something else | 2,000 |",
        "| tests passed | 1 |",
        "| tests failed | 1 |",
    ]


def report(outcome: Any, when: Any, properties: list[Any]) -> pytest.TestReport:
    where = ("test_it.py", 1, "test_it")
    return pytest.TestReport(
        "test_it.py::test_it", where, {}, outcome, None, when, user_properties=properties
    )


def test_what_was_counted_is_taken_once() -> None:
    before = soak.take()
    soak.count("processes killed", 2)
    soak.count("processes killed")
    assert soak.take() == {"processes killed": 3}
    assert soak.take() == {}
    for what, number in before.items():
        soak.count(what, number)
