"""Read and write a log from Spark, as the format "commitlog": batch and streaming, as Arrow, with no broker.

from pyspark.sql import SparkSession

spark = SparkSession.builder.config(map=commitlog.spark.CONF).getOrCreate()
frame = spark.read.format("commitlog").option("subscribe", "orders").load("/data/log")
frame.write.format("commitlog").mode("append").option("topic", "copy").save("/data/log")  # exactly once

Needs the extra `spark`. Where the package is installed, Spark finds the format without register().
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING

from commitlog.errors import MissingDependencyError

try:
    import pyarrow  # noqa: F401
    import pyspark.sql.datasource  # noqa: F401
    from pyspark.errors import AnalysisException
except ImportError as missing:
    raise MissingDependencyError("commitlog.spark", "commitlog[spark]") from missing

from commitlog.spark.diagnosis import DoctorReport, Place, doctor
from commitlog.spark.java import find_java, use_java
from commitlog.spark.jobs import compact, export, verify
from commitlog.spark.mapping import map_arrow
from commitlog.spark.python import is_told, local_python, set_default_python, set_python, use_python
from commitlog.spark.session import Problem, is_connect, session_problems
from commitlog.spark.stream_writing import write_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Recommended for a session: Python workers talk to the JVM through Unix domain sockets (Spark 4.1 and newer).
# Measured: up to 40 % more rows per second, and half the cost of a task.
CONF = {"spark.python.unix.domain.socket.enabled": "true"}

# Also turns off Arrow's checks of bounds and nulls in the JVM. Measured once: a third less of the JVM's CPU
# time for a read. But other code that misuses Arrow no longer gets an exception.
_UNCHECKED = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
FAST_CONF = CONF | {
    "spark.driver.extraJavaOptions": _UNCHECKED,
    "spark.executor.extraJavaOptions": _UNCHECKED,
}


def register(spark: SparkSession) -> None:
    """Register the format "commitlog" with a session that does not find it by itself.

    Workers will run this interpreter, unless PYSPARK_PYTHON is set: see use_python(). Warns about settings
    of the session that cannot work; doctor() finds more.
    """
    from pyspark_commitlog import DefaultSource

    context = None if is_connect(spark) else spark.sparkContext
    if not is_told():
        is_local = context is not None and str(context.master).startswith("local")
        chosen = set_python(local_python() if is_local else sys.executable)
        if context is not None:  # it has already read the variable
            context.pythonExec = chosen
    for problem in [] if context is None else session_problems(context):
        warnings.warn(str(problem), stacklevel=2)
    try:
        spark.dataSource.register(DefaultSource)
    except AnalysisException as problem:
        if problem.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # Spark 4.0 found it by itself
            raise


set_default_python()

__all__ = [
    "CONF", "FAST_CONF", "DoctorReport", "Place", "Problem", "compact", "doctor", "export", "find_java",
    "map_arrow", "register", "use_java", "use_python", "verify", "write_stream",
]  # fmt: skip
