from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from commitlog.spark import python, use_python

HOME = Path(pyspark.__file__).parent
SHOW = "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1:], sep='\\n')"


def shown(starter: str, places: list[str], *given: str) -> list[str]:
    """What a program sees of PYTHONPATH, and how it is called."""
    done = subprocess.run(
        [starter, "-c", SHOW, *given],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_processes_import_pyspark_from_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    starter = use_python()
    assert starter == os.environ["PYSPARK_PYTHON"] != sys.executable
    zips = [str(path) for path in (HOME / "python" / "lib").glob("*.zip")]
    assert len(zips) == 2
    kept = ["/some where/*", "/x/python/lib/pyspark.zip", str(HOME / "jars" / "core.jar")]
    assert shown(starter, [*zips, *kept], "a b", "*", "") == [":".join(kept), "['a b', '*', '']"]
    assert shown(starter, zips) == ["", "[]"]


def test_a_python_that_is_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "python3.99")
    assert use_python() == "python3.99" == os.environ["PYSPARK_PYTHON"]


def test_a_spark_that_is_installed_apart_keeps_its_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert python.local_python() == sys.executable


def test_names_are_quoted(tmp_path: Path) -> None:
    program = tmp_path / "it's a $python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    starter = python._starter("/it's * here/", str(program))
    places = ["/it's * here/pyspark.zip", "/it's not here/pyspark.zip"]
    assert shown(starter, places) == ["/it's not here/pyspark.zip", "[]"]


TOLD = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT", "PYTHON_WORKER_FACTORY_SECRET")


def test_importing_chooses_this_interpreter_which_a_better_choice_replaces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in TOLD:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    python.set_default_python()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert use_python() == os.environ["PYSPARK_PYTHON"] != sys.executable


@pytest.mark.parametrize("name", TOLD)
def test_importing_chooses_nothing_where_somebody_has_or_in_a_worker(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for one in TOLD:
        monkeypatch.delenv(one, raising=False)
    monkeypatch.setenv(name, "python3.99")
    python.set_default_python()
    assert os.environ.get("PYSPARK_PYTHON") == ("python3.99" if name == "PYSPARK_PYTHON" else None)
