"""Ways to bring the library onto a cluster; docs/howto/spark-cluster.md describes each of them.

That the same environment is at the same path everywhere is the way of all tests in test_cluster.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from soak import count

from .cluster import HOME, Cluster, Worker
from .copying import PROGRAMS, Job, succeeded
from .environments import copy_library, dependencies, environment, packages_of, packed

RUNNER = ["--class", "org.apache.spark.deploy.PythonRunner"]


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """An environment with the dependencies, but without the library."""
    return environment(tmp_path / "bare", dependencies(tmp_path / "dependencies"))


def test_a_zip_brings_the_library_to_where_its_dependencies_are(job: Job, bare: Path, tmp_path: Path) -> None:
    python = str(bare / "bin" / "python")
    clean = {"PATH": os.environ["PATH"]}
    refused = subprocess.run(
        [python, "-c", "import numpy, xxhash, crc32c, zstandard, pyarrow, commitlog"],
        env=clean,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "No module named 'commitlog'" in refused.stderr
    (tmp_path / "library").mkdir()
    zipped = shutil.make_archive(str(tmp_path / "commitlog"), "zip", copy_library(tmp_path / "library"))
    job.proceed("batch", "stream")
    # the process that plans a stream gets PYTHONPATH, but not what --py-files names
    succeeded(
        job.start(
            options=["--py-files", zipped], environment={"PYSPARK_PYTHON": python, "PYTHONPATH": zipped}
        )
    )
    job.assert_exactly_once()


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """An environment with everything."""
    made = environment(tmp_path / "whole", dependencies(tmp_path / "dependencies"))
    copy_library(packages_of(made))
    return made


def test_an_archive_brings_an_environment_that_the_other_machine_lacks(
    job: Job, elsewhere: Worker, whole: Path, tmp_path: Path
) -> None:
    archive = packed(whole, tmp_path / "environment.tar.gz")
    here = tmp_path / "here"  # the driver runs the same relative path, so the archive is unpacked there, too
    shutil.unpack_archive(archive, here / "environment")
    (tmp_path / "nothing").mkdir()
    job.proceed("batch", "stream")
    with elsewhere.finds(tmp_path / "nothing", whole), elsewhere.finds(tmp_path / "nothing", here):
        succeeded(
            job.start(
                options=["--archives", f"{archive}#environment"],
                environment={"PYSPARK_PYTHON": "./environment/bin/python"},
                folder=here,
            )
        )
    job.assert_exactly_once()


def test_cluster_mode_is_refused_for_a_python_program_as_such(cluster: Cluster, job: Job) -> None:
    done = job.start(deploy_mode="cluster").wait()
    assert done.returncode == 1
    assert "Cluster deploy mode is currently not supported for python applications" in done.stderr


def test_a_supervised_driver_on_the_cluster_is_killed_and_every_row_is_there_once(
    cluster: Cluster, job: Job, whole: Path, tmp_path: Path
) -> None:
    archive = packed(whole, tmp_path / "environment.tar.gz")
    start = tmp_path / "start.sh"
    start.write_text(
        f"#!/bin/sh\nmkdir -p environment && tar -xzf {archive} -C environment\n"
        'exec ./environment/bin/python "$@"\n'
    )
    start.chmod(0o755)
    (jar,) = (HOME / "jars").glob("spark-core_*.jar")
    job.run = cluster.start(
        jar,
        *(PROGRAMS, "", "registered_copies", *job.arguments),
        deploy_mode="cluster",
        options=[*RUNNER, "--supervise", "--archives", f"{archive}#environment"],
        conf={
            "spark.pyspark.driver.python": str(start),
            "spark.pyspark.python": "./environment/bin/python",
            "spark.standalone.submit.waitAppCompletion": "true",
        },
    )
    job.proceed("batch")
    job.wait_for("stream-1-*-0")
    for worker in cluster.workers:
        worker.kill_drivers()
    count("processes killed")
    job.proceed("stream")
    done = job.run.wait()
    assert "is FINISHED" in done.stderr, done.stderr
    job.assert_exactly_once()
