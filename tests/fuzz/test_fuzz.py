"""The short form of `make fuzz`, and every input that once showed a fault."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from commitlog import segment as segments
from commitlog.batches.format import BatchHeader, unstamped
from commitlog.index import Index
from commitlog.partitions import page
from commitlog.partitions.producer_state import Producers, offset_of
from commitlog.segment import Segment
from fuzz import harness
from fuzz.harness import Input, judge
from fuzz.targets import TARGETS, open_target, run_target

INPUTS = 3_000  # a million in `make fuzz`
REGRESSIONS = Path(__file__).parent / "regressions"


@pytest.mark.parametrize("name", TARGETS)
def test_damage_gives_right_data_or_an_error_that_names_the_file(name: str) -> None:
    report = run_target(name, INPUTS, seed=0)
    assert report.inputs == INPUTS
    assert [f"{one.kind}\n{one.detail}" for one in report.faults.values()] == []


@pytest.mark.parametrize("name", sorted(path.name for path in REGRESSIONS.iterdir()))
def test_what_once_showed_a_fault_does_so_no_more(name: str) -> None:
    with open_target(name) as target:
        for path in sorted((REGRESSIONS / name).glob("*.input")):
            _, fault = judge(target, Input.from_bytes(path.read_bytes()))
            assert fault is None, f"{path.name}: {fault.kind}\n{fault.detail}"


def test_every_regression_belongs_to_a_target() -> None:
    assert {path.name for path in REGRESSIONS.iterdir()} <= set(TARGETS)


def test_an_input_comes_back_from_its_file() -> None:
    given = Input(b"some bytes", 0xFFFF_FFFF, True)
    assert Input.from_bytes(given.to_bytes()) == given


def test_the_same_seed_makes_the_same_inputs() -> None:
    first, second = (run_target("leader-epochs", 500, seed=7) for _ in range(2))
    assert (first.right, first.typed, first.faults.keys()) == (
        second.right,
        second.typed,
        second.faults.keys(),
    )


# --- the fuzzers notice what they are there for


def kinds(name: str) -> set[str]:
    return set(run_target(name, 3_000, seed=0).faults)


def test_a_batch_that_is_not_checked_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def unchecked(buffer: Any, position: int, end: int, path: str, shift: int = 0) -> BatchHeader:
        return unstamped(buffer, position, end, path, shift)[0]

    monkeypatch.setattr("commitlog.batches.batch.check", unchecked)
    monkeypatch.setattr(segments, "read_ones", lambda view, position, limit, end: ([], position))
    monkeypatch.setattr(segments, "extent_of_run", lambda *given, **choices: (0, 1))
    assert "wrong answer: another record is served at an offset" in kinds("segment")


def test_an_index_that_is_not_checked_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Index, "seal_holds", lambda self, size_bytes: True)
    monkeypatch.setattr(Segment, "_confirms", lambda self, entry: entry.position < self.size_bytes)
    assert any(kind.startswith("wrong answer") for kind in kinds("index"))


def test_a_checkpoint_that_is_not_checked_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_checksum", lambda raw: 1 << 32 | 7)
    assert "wrong answer: this was never kept" in kinds("state-page")


def test_a_snapshot_that_is_not_checked_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: str) -> Producers | None:
        if not os.path.exists(path):
            return None
        producers = Producers()
        producers.next_offset = offset_of(path)
        producers._unpack(Path(path).read_bytes()[8:-4])
        return producers

    monkeypatch.setattr(Producers, "load", load)
    assert len(kinds("snapshot")) > 1


def test_an_input_that_takes_too_long_or_too_much_is_a_fault(tmp_path: Path) -> None:
    class Hungry(harness.Target):
        name = "hungry"

        def run(self, given: Input) -> str:
            if given.data == b"time":
                while True:
                    pass
            return str(len(bytearray(1 << 40)))

    with harness.alarms(), harness.limited_memory():
        found = [judge(Hungry(tmp_path), Input(data))[1] for data in (b"time", b"memory")]
    assert [fault.kind.split()[0] for fault in found if fault] == ["TooSlow", "MemoryError"]
