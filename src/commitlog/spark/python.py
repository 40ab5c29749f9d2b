"""Choose the Python that Spark's workers run."""

from __future__ import annotations

import functools
import os
import shlex
import sys

import pyspark

from commitlog.spark.starters import make_starter

# Spark puts a zipped copy of pyspark first in PYTHONPATH. Python does not cache bytecode of modules in a zip,
# so every new process compiles pyspark again. Measured: 0.5 of 0.8 s of processor time.
_STARTER = """#!/bin/sh
set -f
kept=
IFS=:
for place in $PYTHONPATH; do
    case $place in
    {zips}*.zip) ;;
    *) kept=$kept:$place ;;
    esac
done
unset IFS
export PYTHONPATH="${{kept#:}}"
exec {program} "$@"
"""


_VARIABLE = "PYSPARK_PYTHON"
_set_here: list[str] = []  # what we have set it to, so that a better choice may replace it


def set_default_python() -> None:
    """Let Spark run this interpreter, unless it has been told, or is running already; called at import.

    Spark looks for formats with the Python of this variable, as it was when its JVM started, and otherwise
    with the python3 in the PATH, which is another one where a virtual environment is not activated. (The
    setting spark.pyspark.python has no effect on a program that spark-submit did not start.) A cluster may
    lack this interpreter, but its python3 would lack commitlog.
    """
    told = {_VARIABLE, "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT"} & set(os.environ)
    is_worker = any(name.startswith("PYTHON_WORKER_FACTORY_") for name in os.environ)
    if sys.executable and not told and not is_worker:
        set_python(sys.executable)


def is_told() -> bool:
    """Say whether somebody else has chosen the Python of Spark's workers."""
    return os.environ.get(_VARIABLE) not in (None, *_set_here)


def set_python(program: str) -> str:
    """Choose the Python of Spark's workers, unless somebody else has; returns the choice."""
    if not is_told():
        _set_here.append(program)
        os.environ[_VARIABLE] = program
    return os.environ[_VARIABLE]


def use_python() -> str:
    """Set PYSPARK_PYTHON for Spark, before a session is created, and return it; one that you set stays.

    Python processes of Spark then run this interpreter, and start in less than half the time, because they
    import pyspark from where it is installed, not from Spark's zipped copy. It is for a master `local[...]`:
    another machine does not have the program that it names.
    """
    return set_python(local_python())


def local_python() -> str:
    """Return the program that Spark runs for a Python process on this machine."""
    home = os.path.dirname(os.path.abspath(pyspark.__file__))
    zips = os.path.join(home, "python", "lib", "")
    if os.environ.get("SPARK_HOME", home) != home or not os.path.isdir(zips):
        return sys.executable  # Spark is installed elsewhere, or pyspark was imported from a zip
    return _starter(zips, sys.executable)


@functools.cache
def _starter(zips: str, program: str) -> str:
    script = _STARTER.format(zips=shlex.quote(zips), program=shlex.quote(program))
    return os.path.join(make_starter("python", script), "python")
