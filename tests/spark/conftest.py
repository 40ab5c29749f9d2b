"""One real, local Spark for all tests of a process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from pyspark.sql import SparkSession

from commitlog.spark import CONF, use_java, use_python

if TYPE_CHECKING:
    from .cluster import Cluster, Worker
    from .copying import Job

VERSION = tuple(map(int, pyspark.__version__.split(".")[:2]))
needs_admission = pytest.mark.skipif(
    VERSION < (4, 2), reason="needs Spark 4.2, which tells sources of triggers and asks them for lag"
)
STREAMING = "org.apache.spark.sql.execution.streaming" + (".checkpointing" if VERSION >= (4, 1) else "")
# For a JVM that lives a minute: most of its time would go into compiling for a long life.
SHORT_LIFE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    **CONF,
    "spark.driver.extraJavaOptions": SHORT_LIFE,
    "spark.driver.host": "localhost",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.checkpointFileManagerClass": f"{STREAMING}.FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.noDataProgressEventInterval": "100",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """PySpark leaves a socket to the collector with each result that it fetches."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(
                pytest.mark.filterwarnings("ignore:.*<socket.socket:pytest.PytestUnraisableExceptionWarning")
            )


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two task slots that tries each task twice; the format is found by itself."""
    use_java()
    use_python()
    place = str(tmp_path_factory.mktemp("warehouse"))
    builder = SparkSession.builder.master("local[2,2]").config("spark.sql.warehouse.dir", place)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real cluster, for programs that are submitted to it."""
    from .cluster import Cluster  # it takes the settings from here

    with Cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def job(cluster: Cluster, tmp_path: Path) -> Iterator[Job]:
    """A job that is ready to be started; workers that it leaves dead are started again."""
    from .copying import Job

    yield Job(cluster, tmp_path)
    cluster.revive()


@pytest.fixture
def elsewhere(cluster: Cluster) -> Worker:
    """The worker on another machine; skips the test, or fails it where it must run, if there is none."""
    from .cluster import missing

    reason = missing()
    if reason is not None and os.environ.get("COMMITLOG_REQUIRE_NAMESPACES") == "1":
        pytest.fail(f"COMMITLOG_REQUIRE_NAMESPACES is set, but {reason}")
    if reason is not None:
        pytest.skip(f"needs mount namespaces: {reason}")
    return cluster.workers[-1]
