"""What doctor() finds out about executors, each a process of its own; some see another world."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import commitlog
from commitlog import CommitLog
from commitlog.spark import CONF, doctor, register
from commitlog.spark.session import PIPELINED

from .conftest import SHORT_LIFE
from .queries import refusal
from .run_programs import HOME, SOURCE, run_program

EXAMINE = """
import json, dataclasses
settings |= commitlog.spark.CONF
spark = SparkSession.builder.master(given[0]).config(map=settings).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
found = commitlog.spark.doctor(spark, path)
print(json.dumps(dataclasses.asdict(found)))
print(found)
spark.stop()
"""
BARE = f"PYTHONPATH={HOME}/python/lib/pyspark.zip:$(echo {HOME}/python/lib/py4j-*.zip)"  # nothing of ours


@pytest.fixture
def spark_home(tmp_path: Path) -> str:
    """A Spark that writes the logs of its executors somewhere else than into the environment."""
    home = tmp_path / "spark"
    home.mkdir()
    for one in Path(HOME).iterdir():
        if one.name != "work":
            (home / one.name).symlink_to(one)
    return str(home)


def starter(path: Path, by_executor: dict[int, str]) -> str:
    """A program for PYSPARK_PYTHON that does something else on some executors, by their directories."""
    cases = "\n".join(f"*/{number}) {line} ;;" for number, line in by_executor.items())
    path.write_text(f'#!/bin/sh\ncase $PWD in\n{cases}\nesac\nexec {shlex.quote(sys.executable)} "$@"\n')
    path.chmod(0o755)
    return str(path)


def elsewhere(host: str, command: str) -> str:
    """A line that runs Python on what seems to be another host, after a command as its root."""
    inner = f'hostname {host} && {command} && exec {shlex.quote(sys.executable)} "$@"'
    return f'exec unshare --map-root-user --mount --uts sh -c {shlex.quote(inner)} sh "$@"'


def needs_other_hosts() -> None:
    if subprocess.run(["unshare", "--map-root-user", "--mount", "--uts", "true"], check=False).returncode:
        pytest.skip("unshare is not allowed here")


def test_each_executor_is_told_what_is_wrong_with_it(log_path: Path, tmp_path: Path, spark_home: str) -> None:
    needs_other_hosts()
    with commitlog.open(log_path) as log:
        log.create_topic("t").append(b"v")
        log_id = log.log_id
    copy, empty = tmp_path / "copy", tmp_path / "empty"
    shutil.copytree(log_path, copy)
    empty.mkdir()
    before = sorted(log_path.rglob("*"))
    program = starter(
        tmp_path / "python",
        {
            1: f'{BARE} exec {shlex.quote(sys.executable)} -S "$@"',  # finds no installed package
            2: elsewhere("second", f"mount --bind {copy} {log_path}"),
            3: elsewhere("third", f"mount --bind {empty} {log_path.parent}"),
        },
    )
    done = run_program(
        EXAMINE, log_path, "local-cluster[4,1,1024]", SPARK_HOME=spark_home, PYSPARK_PYTHON=program,
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[0])
    driver, *executors = found["rows"]
    assert driver["problems"] == []
    seen = {row["where"]: row for row in executors}
    assert sorted(seen) == [f"executor {number}" for number in range(4)]
    said = {name: [one["what"] for one in row["problems"]] for name, row in seen.items()}
    assert said == {
        "executor 0": [],
        "executor 1": [f"{sys.executable} has no commitlog"],
        "executor 2": ["it has a copy of the log's directory: a file of the driver is not in it"],
        "executor 3": ["the path is not there"],
    }
    assert [seen[f"executor {number}"]["log_id"] for number in range(4)] == [log_id, log_id, log_id, None]
    assert (seen["executor 2"]["host"], seen["executor 3"]["host"]) == ("second", "third")
    assert seen["executor 1"]["writable"]
    assert len(found["problems"]) == 3
    assert "executor 3 on third: the path is not there; mount the log's directory at this path" in done.stdout
    assert sorted(log_path.rglob("*")) == before


def test_a_python_that_executors_lack_is_told(log_path: Path, tmp_path: Path, spark_home: str) -> None:
    commitlog.open(log_path).close()
    (tmp_path / "environment").mkdir()
    starter(tmp_path / "environment" / "python", {})
    program = f"import os; os.chdir({str(tmp_path)!r})\n" + EXAMINE
    done = run_program(
        program,
        log_path,
        "local-cluster[2,1,1024]",
        SPARK_HOME=spark_home,
        PYSPARK_PYTHON="environment/python",
    )
    found = json.loads(done.stdout.splitlines()[0])
    assert [row["where"] for row in found["rows"]] == ["driver", "executor 0", "executor 1"] or [
        row["where"] for row in found["rows"]
    ] == ["driver", "executor 1", "executor 0"]
    said = [one["what"] for one in found["problems"]]
    assert said[0].startswith("PYSPARK_PYTHON = environment/python is relative")
    assert said[1:] == ["there is no program environment/python"] * 2


READ_AND_WRITE = """
spark = SparkSession.builder.master("local-cluster[1,1,1024]").config(map=settings).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
commitlog.spark.register(spark)
writer = spark.createDataFrame([(b"v",)], "value BINARY").write.format("commitlog").mode("append")
reader = spark.read.format("commitlog").load(path)
for query in (reader.collect, lambda: writer.option("topic", "t").save(path)):
    try:
        query()
    except Exception as problem:
        print(problem)
spark.stop()
"""


def test_an_executor_without_the_library_says_how_to_ship_it(
    log_path: Path, tmp_path: Path, spark_home: str
) -> None:
    with commitlog.open(log_path) as log:
        log.create_topic("t").append(b"v")
    libraries = tmp_path / "libraries"  # Spark itself needs pyarrow
    libraries.mkdir()
    for place in Path(pa.__file__).parents[1].glob("*"):
        if place.name.startswith(("pyarrow", "numpy", "pandas", "dateutil", "pytz", "six", "tzdata")):
            (libraries / place.name).symlink_to(place)
    line = f'{BARE}:{libraries} exec {shlex.quote(sys.executable)} -S "$@"'
    program = starter(tmp_path / "python", {0: line})
    done = run_program(READ_AND_WRITE, log_path, SPARK_HOME=spark_home, PYSPARK_PYTHON=program)
    told = f"ImportError: host {os.uname().nodename}: {sys.executable} cannot import commitlog"
    assert f"{told} (No module named 'pyspark_commitlog'); install commitlog[spark] there" in done.stdout
    assert f"{told} (No module named 'commitlog'); install commitlog[spark] there" in done.stdout


# --- in one process


def test_all_is_well(spark: SparkSession, log: CommitLog, log_path: Path) -> None:
    found = doctor(spark, str(log_path))
    assert found.ok, str(found)
    assert [(row.where, row.log_id, row.readable, row.writable, row.same_files) for row in found.rows] == [
        (where, log.log_id, True, True, True) for where in ("driver", "executor driver")
    ]
    assert str(found).endswith("no problems")
    assert "<td>executor driver</td>" in found._repr_html_()


def test_a_path_that_is_no_log_is_told_for_each_place(spark: SparkSession, tmp_path: Path) -> None:
    found = doctor(spark, str(tmp_path))
    assert not found.ok
    assert [one.what for one in found.problems] == [
        f"the log cannot be read (FileNotFoundError: [Errno 2] No such file or directory: "
        f"'{tmp_path}/commitlog.json')"
    ] * 2
    assert [one.what for one in doctor(spark, f"file://{tmp_path}/none").problems] == [
        "the path is not there"
    ] * 2


def test_an_executor_that_has_no_time_to_answer_is_a_problem(
    spark: SparkSession, log: CommitLog, log_path: Path
) -> None:
    found = doctor(spark, str(log_path), timeout_seconds=0)
    assert [row.where for row in found.rows] == ["driver"]
    assert [(one.where, one.what) for one in found.problems] == [
        ("executor driver on localhost", "it has not answered")
    ]


CONNECTED = """
spark = SparkSession.builder.remote("local[2]").getOrCreate()
found = commitlog.spark.doctor(spark, path)
print(found.ok, *((row.where, row.log_id) for row in found.rows))
found = commitlog.spark.doctor(spark, path + "-none")
print(*((one.where.split()[0], one.what) for one in found.problems))
spark.stop()
"""


def test_it_works_through_spark_connect(log_path: Path) -> None:
    pytest.importorskip("grpc_status")
    with commitlog.open(log_path) as log:
        log_id = log.log_id
    done = run_program(CONNECTED, log_path)
    assert done.stdout.splitlines() == [
        f"True ('client', '{log_id}') ('executor', '{log_id}')",
        "('executor', 'the path is not there')",
    ]


def test_registering_warns_about_settings_that_cannot_work(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = spark.sparkContext.getConf().set("spark.submit.pyFiles", "/a/b.zip,/a/commitlog.whl")
    for name, value in {**CONF, PIPELINED: "true"}.items():
        conf.set(name, value)
    monkeypatch.setattr(spark.sparkContext, "getConf", lambda: conf)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/none/python")
    monkeypatch.setenv("PYSPARK_PYTHON", "/none/python")
    with pytest.warns(UserWarning) as warned:
        register(spark)
    monkeypatch.undo()
    register(spark)
    assert [str(one.message) for one in warned] == [
        "--py-files: Spark ignores /a/commitlog.whl, because it is a wheel; name the same file .zip",
        f"session: Spark 4.3 fails with both {PIPELINED} and {next(iter(CONF))}; leave {PIPELINED} unset",
        "driver: the Python of Spark's workers, /none/python, is not there, and queries are planned here; "
        "set PYSPARK_PYTHON to a Python that every host has",
    ]
    assert warned[0].filename == __file__


def test_a_wheel_is_no_library_until_it_is_named_zip(spark: SparkSession, tmp_path: Path) -> None:
    def is_there(_: int) -> str:
        try:
            import shipped_by_a_test  # type: ignore[import-not-found]  # noqa: F401
        except ImportError as missing:
            return str(missing)
        return "imported"

    for name, expected in (("a.whl", "No module named 'shipped_by_a_test'"), ("a.zip", "imported")):
        with zipfile.ZipFile(tmp_path / name, "w") as made:
            made.writestr("shipped_by_a_test.py", "")
        spark.sparkContext.addPyFile(str(tmp_path / name))
        assert spark.sparkContext.parallelize([0], 1).map(is_there).collect() == [expected]


def test_a_log_that_is_open_elsewhere_is_told_with_the_process_and_what_to_do(
    spark: SparkSession, log: CommitLog, log_path: Path
) -> None:
    log.create_topic("t")
    writer = spark.range(1).selectExpr("CAST(id AS STRING) AS value").write.format("commitlog")
    said = refusal(lambda: writer.mode("append").option("topic", "t").save(str(log_path)))
    assert f"LogLockedError: {log_path} is open for writing in process {os.getpid()} on " in said
    assert 'close it there, or open it with mode="shared" there' in said


# --- the command


def test_the_command_prints_the_table_and_fails_if_there_are_problems(log_path: Path) -> None:
    commitlog.open(log_path).close()

    def run(*given: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "commitlog", "spark", "doctor", *given]
        environment = {**os.environ, "PYTHONPATH": SOURCE, "JDK_JAVA_OPTIONS": SHORT_LIFE}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    done = run(str(log_path))
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.splitlines()
    assert head.split()[:3] == ["where", "host", "interpreter"]
    assert [row.split()[0] for row in rows] == ["driver", "executor"]
    assert all(row.endswith(" ok") for row in rows)
    done = run(str(log_path / "none"), "--json")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert not found["ok"]
    assert [one["what"] for one in found["problems"]] == ["the path is not there"] * 2
