"""`commitlog bench`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import names

from cli.rig import call, ok, ok_json, on_terminal, piped
from commitlog.cli.bench_load import Figures


@pytest.mark.parametrize("how", ["bulk", "single", "producer"])
@pytest.mark.parametrize("durability", ["written", "synced"])
def test_every_record_is_produced_and_consumed(tmp_path: Path, how: str, durability: str) -> None:
    load = ("--records", 257, "--record-size", 33, "--batch", 100, "--partitions", 3)
    found = ok_json("bench", tmp_path, *load, "--how", how, "--durability", durability)
    assert (found["how"], found["durability"]) == (how, durability)
    for side in (found["produce"], found["consume"]):
        assert side["records"] == 257
        assert side["mb_per_second"] == pytest.approx(side["records_per_second"] * 33 / 1e6)
        assert 0 <= side["p50_ms"] <= side["p95_ms"] <= side["p99_ms"] <= side["p99_9_ms"] <= side["max_ms"]
    assert names(tmp_path) == []  # nothing is left


def test_a_producer_may_just_buffer_and_an_append_may_not(tmp_path: Path) -> None:
    buffered = ("--records", 100, "--durability", "buffered")
    assert ok_json("bench", tmp_path, *buffered, "--how", "producer")["consume"]["records"] == 100
    refused = call("bench", tmp_path, *buffered)
    assert refused.exit_code == 2
    assert "append() always writes" in refused.stderr


def test_records_may_be_compressed(tmp_path: Path) -> None:
    found = ok_json("bench", tmp_path, "--records", 100, "--compression", "zstd")
    assert found["compression"] == "zstd"


def test_people_get_a_table(tmp_path: Path) -> None:
    lines = ok("bench", tmp_path, "--records", 100).splitlines()
    assert lines[0].split()[:4] == ["records", "seconds", "records/s", "MB/s"]
    assert [line.split()[:2] for line in lines[1:]] == [["produce", "100"], ["consume", "100"]]


def test_a_terminal_sees_progress_and_a_pipe_json(tmp_path: Path) -> None:
    code, seen = on_terminal("bench", tmp_path, "--records", 20_000, "--how", "single")
    assert code == 0
    assert "appending" in seen
    assert "consuming" in seen
    done = piped("bench", tmp_path, "--records", 100, "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["records"] == 100


def test_quantiles_are_of_all_latencies() -> None:
    found = Figures.of(1_000, 10**6, 2.0, [number / 1e3 for number in range(1, 1_001)])
    assert (found.records_per_second, found.mb_per_second) == (500, 0.5)
    assert (found.avg_ms, found.max_ms) == pytest.approx((500.5, 1_000))
    assert found.p50_ms == pytest.approx(500.5)
    assert found.p99_9_ms == pytest.approx(999.001)
