"""Programs with a Spark of their own, for what a session cannot show after it has started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark

import commitlog

from .conftest import SHORT_LIFE

SOURCE = str(Path(commitlog.__file__).parents[1])
HOME = str(Path(pyspark.__file__).parent)
_UNSET = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME")

# A session of two slots, at `path`, with the format registered.
PRELUDE = """
import os, sys
import commitlog, commitlog.spark
from pyspark.sql import SparkSession

path, given = sys.argv[1], sys.argv[2:]
commitlog.spark.use_java()
settings = {"spark.driver.host": "localhost", "spark.ui.enabled": "false"}
settings |= {"spark.ui.showConsoleProgress": "false"}
"""


def run_program(program: str, path: Path, *given: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program after PRELUDE in a process of its own; it must succeed."""
    environment = {name: value for name, value in os.environ.items() if name not in _UNSET}
    places = os.pathsep.join([SOURCE, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment |= {"PYTHONPATH": places, "JDK_JAVA_OPTIONS": SHORT_LIFE, **variables}
    command = [sys.executable, "-c", PRELUDE + program, str(path), *given]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done
