from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from commitlog import CommitLog
from commitlog.spark.diagnosis import _failure, _judged
from commitlog.spark.probe import Question, examine


def judged(path: Path, **different: Any) -> list[str]:
    """The problems of an executor that answers as the driver does, but for this."""
    here = examine(Question(str(path)))
    answers = {"0": here, "1": {**here, **different}}
    driver, *executors = _judged("driver", here, answers)
    assert driver.problems == ()
    assert executors[0].where == ("executor 0" if different else "executor 0, 1")
    return [one.what for one in executors[-1].problems]


@pytest.mark.parametrize(
    ("different", "said"),
    [
        ({}, []),
        ({"log_id": "x"}, ["another log is at the path: x, not {log_id}"]),
        ({"marker": False}, ["it has a copy of the log's directory: a file of the driver is not in it"]),
        ({"python": "3.99.1"}, ["python 3.99.1, but the driver has {python}"]),
        ({"commitlog": "0.0.1"}, ["commitlog 0.0.1, but the driver has {commitlog}"]),
        ({"pyarrow": None}, ["{interpreter} has no pyarrow"]),
        (
            {"not_imported": "ModuleNotFoundError: xxhash"},
            ["commitlog.spark cannot be imported (Mod…xxhash)"],
        ),
        ({"clock": 7.25}, ["the clock differs from the driver's by 7.2 s or more"]),
        ({"there": False, "log_id": None}, ["the path is not there"]),
    ],
)
def test_what_differs_from_the_driver_is_told(
    log: CommitLog, log_path: Path, different: dict[str, Any], said: list[str]
) -> None:
    here = examine(Question(str(log_path)))
    expected = [one.format(**here).replace("Mod…", "ModuleNotFoundError: ") for one in said]
    assert judged(log_path, **different) == expected


def test_a_clock_that_may_be_right_is_right(log: CommitLog, log_path: Path) -> None:
    here = examine(Question(str(log_path)))
    rows = list(_judged("driver", here, {"0": {**here, "clock": 4.9}, "1": here}))
    assert [row.where for row in rows] == ["driver", "executor 0, 1"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written_is_told(log: CommitLog, log_path: Path) -> None:
    log_path.chmod(0o555)
    try:
        found = examine(Question(str(log_path)))
    finally:
        log_path.chmod(0o755)
    assert (found["readable"], found["writable"]) == (True, False)
    assert found["not_written"].startswith("PermissionError")


def test_a_probe_leaves_nothing_behind(log: CommitLog, log_path: Path) -> None:
    before = sorted(log_path.rglob("*"))
    assert examine(Question(str(log_path)))["writable"]
    assert sorted(log_path.rglob("*")) == before
    (log_path / "staging").mkdir()
    assert examine(Question(str(log_path)))["writable"]
    assert list((log_path / "staging").iterdir()) == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('java.io.IOException: Cannot run program "./python": error=2', "there is no program ./python"),
        ("[PYTHON_VERSION_MISMATCH] ...", "its Python has another minor version than the driver's"),
        ("x\nTraceback\nImportError: no module\n\tat org", "ImportError: no module"),
        ("java.io.EOFException\n\tat org", "java.io.EOFException"),
    ],
)
def test_a_task_that_could_not_run_is_told_by_its_cause(text: str, what: str) -> None:
    assert _failure("executor 1 on node1", text).what == what
