from __future__ import annotations

from pathlib import Path

from helpers import encoded, names, write_segment

from commitlog import Segment
from commitlog.segment_files import Trash


def segment(directory: Path, base_offset: int) -> Segment:
    path = write_segment(directory, [encoded([b"a"])], base_offset)
    for suffix in ("index", "timeindex"):
        (directory / f"{base_offset:020d}.{suffix}").touch()
    return Segment.open(path)


def test_removed_files_are_out_of_sight_at_once_and_gone_when_due(tmp_path: Path) -> None:
    trash = Trash()
    trash.take(segment(tmp_path, 0), due=10.0)
    trash.take(segment(tmp_path, 5), due=20.0)
    assert len(names(tmp_path, ".deleted")) == len(names(tmp_path)) == 6
    trash.empty(now=9.9)
    assert len(names(tmp_path)) == 6
    trash.empty(now=10.0)
    assert len(names(tmp_path)) == 3
    trash.empty(now=30.0)
    assert names(tmp_path) == []
    trash.empty(now=40.0)


def test_a_segment_without_indexes_can_be_removed_too(tmp_path: Path) -> None:
    trash = Trash()
    trash.take(Segment.open(write_segment(tmp_path, [encoded([b"a"])], 0)), due=0.0)
    assert names(tmp_path) == [f"{0:020d}.log.deleted"]


def test_what_somebody_else_unlinked_is_fine(tmp_path: Path) -> None:
    trash = Trash()
    trash.take(segment(tmp_path, 0), due=0.0)
    for path in tmp_path.iterdir():
        path.unlink()
    trash.empty(now=1.0)
