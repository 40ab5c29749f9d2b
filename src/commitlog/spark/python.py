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


def use_python() -> str:
    """Set PYSPARK_PYTHON for Spark, before a session is created, and return it; one that is set stays.

    Python processes of Spark then run this interpreter, and start in less than half the time, because they
    import pyspark from where it is installed, not from Spark's zipped copy. It is for a master `local[...]`:
    another machine does not have the program that it names.
    """
    return os.environ.setdefault("PYSPARK_PYTHON", local_python())


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
