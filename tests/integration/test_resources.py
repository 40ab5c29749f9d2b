"""Handles stay bounded over thousands of rolls, memory while scanning; maps outlive the files they show."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak import SOAK

from . import children

PROGRAMS = str(Path(__file__).with_name("resources.py"))
MIB = 1 << 20
SCAN_MEGABYTES = 3000 if SOAK else 300


def test_handles_and_maps_stay_flat_over_thousands_of_rolls(log_path: Path) -> None:
    seen = children.run("many_rolls", log_path, 10_000 if SOAK else 2_000, script=PROGRAMS)
    handles, maps = ([one[place] for one in seen] for place in (0, 1))
    early = seen[len(seen) // 4]
    assert max(handles) <= early[0] + 10
    assert max(maps) <= early[1] + 10
    assert max(handles) < 250, "16 segments here and 16 there, with two indexes each, and a few more"


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
