"""Handles stay bounded over thousands of rolls, memory while scanning; maps outlive the files they show."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak import SOAK

from . import children

PROGRAMS = str(Path(__file__).with_name("resources.py"))
MIB = 1 << 20
PARTITIONS, DESCRIPTORS = (10_000, 1_024) if SOAK else (1_000, 128)
SCAN_MEGABYTES = 3000 if SOAK else 300


def test_handles_and_maps_stay_flat_over_thousands_of_rolls(log_path: Path) -> None:
    seen = children.run("many_rolls", log_path, 10_000 if SOAK else 2_000, script=PROGRAMS)
    handles, maps = ([one[place] for one in seen] for place in (0, 1))
    early = seen[len(seen) // 4]
    assert max(handles) <= early[0] + 10
    assert max(maps) <= early[1] + 10
    assert max(handles) < 30, "maps have none"


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with many more partitions than a process that reads it may open files."""
    path = tmp_path_factory.mktemp("many") / "log"
    for first in range(0, PARTITIONS, 1_000):
        children.run("write_many", path, first, script=PROGRAMS)
    return path


@pytest.mark.parametrize("how", ["log", "worker"])
def test_many_partitions_are_read_with_few_descriptors_in_constant_memory(many: Path, how: str) -> None:
    seen = children.run("read_many", many, how, DESCRIPTORS, script=PROGRAMS)
    right, handles, memory = zip(*seen, strict=True)
    assert right == (2 * PARTITIONS,) * 3
    assert max(handles) < 20
    assert memory[2] < memory[0] + 4 * MIB


def test_batches_in_more_files_than_there_are_descriptors_can_be_held(many: Path) -> None:
    right, handles = children.run("hold_many", many, PARTITIONS // 20, script=PROGRAMS)
    assert right == 3 * PARTITIONS
    assert handles < 20


@pytest.mark.parametrize("segment_bytes", [32 * MIB, 1024 * MIB])
def test_memory_stays_flat_while_a_large_log_is_scanned(log_path: Path, segment_bytes: int) -> None:
    count = children.run("write_much", log_path, SCAN_MEGABYTES, segment_bytes, script=PROGRAMS)
    for how in ("values", "records", "arrow"):
        found, most = children.run("scan", log_path, how, script=PROGRAMS)
        assert found == count
        assert most < 120 * MIB, how


def test_tables_outlive_the_files_they_were_read_from(log_path: Path) -> None:
    """In a process of its own, so that a signal from a page that is gone would be seen."""
    assert children.run("keep_tables", log_path, script=PROGRAMS) == "done"
