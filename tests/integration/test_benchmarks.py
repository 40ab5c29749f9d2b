"""The benchmarks run, are counted in seconds with next to no data, and their pictures are drawn."""

from __future__ import annotations

import json
import os
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


def run(folder: Path, program: str, *arguments: str) -> str:
    """Run a program of the benchmarks with its files in `folder`, and return what it printed."""
    source = str(Path(commitlog.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / program), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": source, "TMPDIR": str(folder), "MPLCONFIGDIR": str(folder)},
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
    for name in [*CURVES, "comparison"]:
        assert f"](images/performance/{name}.svg)" in page
        assert (docs / "images" / "performance" / f"{name}.svg").is_file()
