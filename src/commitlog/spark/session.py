"""Settings of a session that cannot work, as far as the driver can see them."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

PIPELINED = "spark.python.udf.pipelined.enabled"
SOCKETS = "spark.python.unix.domain.socket.enabled"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that does not work, where it does not, and what to do about it."""

    where: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.remedy}"


def is_connect(spark: SparkSession) -> bool:
    """Say whether a session talks to its driver through Spark Connect, which has no context."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def is_local(context: SparkContext) -> bool:
    """Say whether the driver is the only executor."""
    return re.fullmatch(r"local(\[.*\])?", context.master) is not None


def session_problems(context: SparkContext) -> list[Problem]:
    """Return what is wrong with the settings of a session."""
    settings = dict(context.getConf().getAll())
    found = [
        Problem("--py-files", f"Spark ignores {name}, because it is a wheel", "name the same file .zip")
        for name in settings.get("spark.submit.pyFiles", "").split(",")
        if name.endswith(".whl")
    ]
    if settings.get(PIPELINED) == settings.get(SOCKETS) == "true":
        what = f"Spark 4.3 fails with both {PIPELINED} and {SOCKETS}"
        found.append(Problem("session", what, f"leave {PIPELINED} unset"))
    python = context.pythonExec
    archives = f"{settings.get('spark.archives', '')},{settings.get('spark.yarn.dist.archives', '')}"
    names = {os.path.basename(one.partition("#")[2] or one) for one in archives.split(",")}
    folder = os.path.normpath(python).split(os.sep)[0]
    if shutil.which(python) is None:
        what = f"the Python of Spark's workers, {python}, is not there, and queries are planned here"
        found.append(Problem("driver", what, "set PYSPARK_PYTHON to a Python that every host has"))
    elif os.sep in python and not os.path.isabs(python) and not is_local(context) and folder not in names:
        what = f"PYSPARK_PYTHON = {python} is relative: executors look for it in their own directories"
        remedy = f"use an absolute path, or ship the folder with --archives FILE#{folder}"
        found.append(Problem("executors", what, remedy))
    return found
