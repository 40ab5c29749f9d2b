"""Spark reads a log as the format "commitlog": batch and streaming, as Arrow, with no broker.

from pyspark.sql import SparkSession

spark = SparkSession.builder.config(map=commitlog.spark.CONF).getOrCreate()
frame = spark.read.format("commitlog").option("subscribe", "orders").load("/data/log")

Needs the extra `spark`. The format is found without register() where the package is installed.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from commitlog.errors import MissingDependencyError

try:
    import pyarrow  # noqa: F401
    import pyspark.sql.datasource  # noqa: F401
    from pyspark.errors import AnalysisException
except ImportError as missing:
    raise MissingDependencyError("commitlog.spark", "commitlog[spark]") from missing

from commitlog.spark.java import find_java, use_java
from commitlog.spark.mapping import map_arrow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Recommended for a session: Python workers talk to the JVM through Unix domain sockets (from Spark 4.1 on).
# Measured: up to 40 % more rows a second, and half the time a task costs.
CONF = {"spark.python.unix.domain.socket.enabled": "true"}

# The same, and Arrow in the JVM does not check bounds and nulls at each access. Measured once: a third less
# of the JVM's processor time for a read. But code that uses Arrow wrongly gets no exception any more.
_UNCHECKED = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
FAST_CONF = CONF | {
    "spark.driver.extraJavaOptions": _UNCHECKED,
    "spark.executor.extraJavaOptions": _UNCHECKED,
}


def register(spark: SparkSession) -> None:
    """Make the format "commitlog" known to a session that does not find it by itself.

    Workers run the interpreter that runs this, unless PYSPARK_PYTHON says otherwise.
    """
    from pyspark_commitlog import DefaultSource

    if "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        context = getattr(spark, "sparkContext", None)
        if context is not None:  # it has looked already
            context.pythonExec = sys.executable
    try:
        spark.dataSource.register(DefaultSource)
    except AnalysisException as problem:
        if problem.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # Spark 4.0 found it by itself
            raise


__all__ = ["CONF", "FAST_CONF", "find_java", "map_arrow", "register", "use_java"]
