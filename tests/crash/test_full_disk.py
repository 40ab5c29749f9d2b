"""A full disk: a typed error, nothing half done, reads and deletes go on, appends too once there is room."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import commitlog

from . import children
from .children import FULL, big_value

TMPFS_BYTES = 600 * 1024


@pytest.mark.parametrize("count", [1, 9])
@pytest.mark.parametrize("seed", range(3))
def test_a_file_that_may_not_grow_is_a_full_disk(tmp_path: Path, count: int, seed: int) -> None:
    path = tmp_path / "log"
    end = int(children.run("fill_to_the_limit", path, count, seed))
    with commitlog.open(path) as log:
        partition = log.topic("t").partition(0)
        assert (partition.start_offset, partition.next_offset) == (3, end)
        assert [record.value for record in partition.records()] == [big_value(one) for one in range(3, end)]


def why_no_tmpfs() -> str | None:
    """Say why a small file system cannot be made here; None if it can."""
    if os.geteuid() != 0:
        return "mounting a small tmpfs takes root; run the tests as root to run this one"
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return "mounting a small tmpfs takes the commands unshare and mount (util-linux)"
    tried = subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True, check=False
    )
    return None if tried.returncode == 0 else f"no private mount is allowed here: {tried.stderr.strip()}"


@pytest.mark.parametrize("scenario", FULL)
def test_on_a_small_file_system(tmp_path: Path, scenario: str) -> None:
    problem = why_no_tmpfs()
    if problem is not None:
        pytest.skip(problem)
    mount = f'mount -t tmpfs -o size={TMPFS_BYTES} none {tmp_path} && exec "$@"'
    wrapper = ("unshare", "-m", "--propagation", "private", "sh", "-c", mount, "sh")
    children.run("full_tmpfs", tmp_path / "log", scenario, wrapper=wrapper)
