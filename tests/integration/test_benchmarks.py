"""The benchmarks run, are counted in seconds with next to no data, and their pictures are drawn."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import commitlog

pytest.importorskip("matplotlib")
pytest.importorskip("lmdb")
pytest.importorskip("rocksdict")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ENGINES = {"commitlog", "SQLite WAL", "LMDB", "LMDB writemap", "RocksDB"}
CURVES = [
    "by_batch_size", "by_record_size", "by_partitions", "by_compression", "latency_distribution",
    "recovery_curve", "compaction_curve", "memory_curve",
]  # fmt: skip


GROWTH = [
    "growth_partitions", "growth_groups", "growth_members", "growth_segments", "growth_record_size",
    "growth_batch_size",
]  # fmt: skip


def run(folder: Path, program: str, *arguments: str, **environment: str) -> str:
    """Run a program of the benchmarks with its files in `folder`, and return what it printed."""
    source = str(Path(commitlog.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / program), *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": source,
            "TMPDIR": str(folder),
            "MPLCONFIGDIR": str(folder),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    run(folder, "run.py", "--tiny", "--rows", "append_one,overhead,curves", "--json", "results.json")
    return folder / "results.json"


def test_every_curve_has_a_point_of_every_engine_at_every_size(results: Path) -> None:
    curves = json.loads(results.read_text())["curves"]
    assert sorted({curve["row"] for curve in curves}) == sorted(CURVES)
    for curve in curves:
        assert all(len(amounts) == len(curve["xs"]) for amounts in curve["series"].values()), curve["title"]
        assert all(
            amount is None or amount >= 0 for amounts in curve["series"].values() for amount in amounts
        )
    whole = {curve["row"] for curve in curves if curve["series"].keys() >= ENGINES}
    assert whole == set(CURVES) - {"by_compression"}  # LMDB's map makes no difference there


def test_every_curve_becomes_a_small_picture(results: Path) -> None:
    folder = results.parent / "pictures"
    run(results.parent, "plots.py", str(results), str(folder))
    assert sorted(path.stem for path in folder.iterdir()) == sorted([*CURVES, "comparison"])
    for path in folder.iterdir():
        text = "".join(ElementTree.parse(path).getroot().itertext())
        assert "commitlog" in text and "is better" in text, path.name
        assert path.stat().st_size < 60_000, path.name


def test_the_results_are_printed_as_markdown_that_names_who_is_better(tmp_path: Path) -> None:
    series = {"commitlog": [100, 2e6], "LMDB": [200, 1e6], "SQLite WAL": [50, None]}
    labels = {"row": "r", "title": "append", "x_label": "records a batch", "y_label": "records a second"}
    curve = {**labels, "xs": [1, 1000], "series": series, "note": "All written."}
    (tmp_path / "results.json").write_text(json.dumps({"groups": [], "curves": [curve]}))
    assert run(tmp_path, "plots.py", "--markdown", "results.json").splitlines() == [
        "**append: records a second**",
        "",
        "| records a batch | 1 | 1,000 |",
        "| --- | ---: | ---: |",
        "| commitlog | 100 | 2 M |",
        "| LMDB | 200 | 1 M |",
        "| SQLite WAL | 50 |  |",
        "",
        "All written. Better than commitlog: LMDB (1).",
        "",
    ]


def test_curves_of_growth_have_a_point_of_every_operation_and_are_drawn(tmp_path: Path) -> None:
    run(tmp_path, "run.py", "--tiny", "--rows", "growth_curves", "--json", "growth.json")
    curves = json.loads((tmp_path / "growth.json").read_text())["curves"]
    assert [curve["row"] for curve in curves] == [row for row in GROWTH for _ in range(2)]
    for curve in curves:
        assert curve["series"] and len(curve["xs"]) > 0
        assert all(amount >= 0 for amounts in curve["series"].values() for amount in amounts)
    run(tmp_path, "plots.py", "growth.json", "pictures")
    assert sorted(path.stem for path in (tmp_path / "pictures").iterdir()) == sorted(GROWTH)


def test_transactions_are_measured_beside_sqlite_and_lmdb(tmp_path: Path) -> None:
    run(tmp_path, "run.py", "--tiny", "--rows", "transactions", "--json", "found.json")
    groups = json.loads((tmp_path / "found.json").read_text())["groups"]
    beside = [group for group in groups if "SQLite WAL" in {line["engine"] for line in group["lines"]}]
    assert len(beside) == 3 and len(groups) == 9
    for group in beside:
        assert {line["engine"] for line in group["lines"]} >= ENGINES - {"RocksDB"}, group["title"]
        assert all(line["amount"] > 0 for line in group["lines"]), group["title"]


def test_what_is_missing_to_run_kafka_is_named_and_ours_is_measured(tmp_path: Path) -> None:
    output = run(
        tmp_path, "beside_kafka.py", "--quick", "--rows", "1000", "--only", "produce_1,zstd",
        "--json", "found.json", "--cache", "cache", PATH="", JAVA_HOME="",
    )  # fmt: skip
    rows = {row["name"]: row for row in json.loads((tmp_path / "found.json").read_text())["rows"]}
    assert list(rows) == ["produce_1", "zstd_slices", "zstd_json"]
    for row in rows.values():
        assert list(row["costs"]) == ["commitlog"]
        assert re.fullmatch(r"(Java|Maven \(mvn\)|confluent-kafka|aiokafka) is not installed", row["why"])
        assert f"| not measured: {row['why']} | not measured: {row['why']} |" in output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found.json"]  # nothing else is left


def test_a_row_beside_kafka_shows_medians_ranges_and_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from kafka_turns import COLUMNS, Row, not_measured  # type: ignore[import-not-found]

    costs = {"commitlog": [0.5, 1, 2], "Kafka, tuned": [2, 3, 4], "Kafka, default": [8, 4, 6]}
    row = Row("r", "send", "rec/s", costs, {"commitlog": [1], "Kafka, tuned": [1.5]}, amount=3000)
    assert row.cells() == [
        "send", "3 k rec/s (1.5 k to 6 k)", "1 k rec/s (750 to 1.5 k)", "500 rec/s (375 to 750)",
        "3.00; 6.00", "1.50",
    ]  # fmt: skip
    latency = Row("r", "wait", "µs", {"commitlog": [100, 300, 200]}, why="no Java")
    assert latency.cells()[1:4] == ["200 µs (100 to 300)", "not measured: no Java", "not measured: no Java"]
    missing = not_measured("spark_read", "Spark", "pyspark is not installed").cells()
    assert len(missing) == len(COLUMNS)
    assert missing[1:4] == ["not measured: pyspark is not installed"] * 3


def test_an_unknown_row_beside_kafka_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from beside_kafka import ROWS, arguments  # type: ignore[import-not-found]

    assert arguments([]).names == ROWS
    assert arguments(["--only", "latency,consume"]).names == ["latency", "consume"]
    for refused in (["--only", "latencies"], ["--rows", "0"]):
        with pytest.raises(SystemExit):
            arguments(refused)
    assert "no row 'latencies'; there are spark_read, " in capsys.readouterr().err


def test_the_time_of_kafkas_cleaner_is_read_from_what_it_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from kafka_clients import cleaner_seconds  # type: ignore[import-not-found]

    output = (
        "[main] INFO Cleaner - Log cleaner thread 0 cleaned log bench-7-0 (dirty section = [0, 9])\n"
        "\t1,200.0 MB of log processed in 5.9 seconds (200.0 MB/sec).\n\tIndexed 1,200.0 MB in 2.0 seconds\n"
        "[main] INFO Cleaner - Log cleaner thread 0 cleaned log bench-70-0 (dirty section = [0, 9])\n"
        "\t8.0 MB of log processed in 0.1 seconds (80.0 MB/sec).\n"
    )
    assert cleaner_seconds(output, "bench-7") == [6.0]
    assert cleaner_seconds(output, "bench-8") == []


def test_the_reason_that_maven_gives_names_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from kafka_node import reason  # type: ignore[import-not-found]

    said = "[ERROR] Could not find artifact a:b:jar:1 in central (https://example.org/maven2) -> [Help 1]"
    assert reason(said) == "Could not find artifact a:b:jar:1"


def test_processor_time_of_a_round_in_which_a_process_ended_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from spark_cpu import taken_between, taken_by_process  # type: ignore[import-not-found]

    parent = os.getpid()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        before = taken_by_process(parent)
        assert child.pid in {number for number, _ in before}
        taken = taken_between(parent, before, taken_by_process(parent))
        assert taken is not None and min(taken) >= 0
    assert taken_between(parent, before, taken_by_process(parent)) is None


def test_the_page_shows_every_picture() -> None:
    docs = BENCHMARKS.parent / "docs"
    page = (docs / "performance.md").read_text()
    for name in [*CURVES, *GROWTH, "comparison"]:
        assert f"](images/performance/{name}.svg)" in page
        assert (docs / "images" / "performance" / f"{name}.svg").is_file()
