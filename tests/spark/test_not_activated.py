"""A program of a virtual environment that is not activated: the python3 in the PATH is another one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import commitlog

from .run_programs import run_program

# as in the README: no register(), no PYSPARK_PYTHON
PROGRAM = """
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
print("rows", spark.read.format("commitlog").option("subscribe", "t").load(path).count())
print("python", os.environ["PYSPARK_PYTHON"], spark.sparkContext.pythonExec)
spark.stop()
"""

# what the program above would be without the import before the session
LATE = """
os.environ.pop("PYSPARK_PYTHON")
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
try:
    spark.read.format("commitlog").load(path)
except Exception as problem:
    print("DATA_SOURCE_NOT_FOUND" in str(problem))
found = commitlog.spark.doctor(spark, path)
print(*found.problems, sep="\\n")
commitlog.spark.register(spark)
print("rows", spark.read.format("commitlog").load(path).count())
spark.stop()
"""


def other_python(folder: Path) -> str:
    """A PATH that starts with a python3 which has no package at all."""
    folder.mkdir()
    program = folder / "python3"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_importing_is_enough_before_the_session(log_path: Path, tmp_path: Path) -> None:
    with commitlog.open(log_path) as log:
        log.create_topic("t").append_many([b"v"] * 10)
    done = run_program(PROGRAM, log_path, PATH=other_python(tmp_path / "bin"))
    assert done.stdout.splitlines()[-2:] == ["rows 10", f"python {sys.executable} {sys.executable}"]


def test_a_format_that_is_not_found_is_explained_and_can_be_registered(
    log_path: Path, tmp_path: Path
) -> None:
    with commitlog.open(log_path) as log:
        log.create_topic("t").append_many([b"v"] * 10)
    done = run_program(LATE, log_path, PATH=other_python(tmp_path / "bin"))
    lines = done.stdout.splitlines()
    assert lines[0] == "True"
    told = "driver: Spark does not find the format: the python3 in the PATH has no commitlog; "
    assert lines[1].startswith(told + "call commitlog.spark.register(spark)")
    assert lines[-1] == "rows 10"
