"""Fixtures of the crash tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from soak import FAILED, SOAK

from commitlog import files, tasks

MEMORY = Path("/dev/shm")


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder for a test; in the long forms one in memory, if there is such, which waits for no disk.

    A killed process loses nothing of what it wrote to either, and power cuts are simulated.
    """
    if not SOAK or not MEMORY.is_dir():
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="commitlog-soak-", dir=MEMORY))
    yield folder
    if FAILED in request.node.stash:
        shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(folder)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing happens behind the test's back."""
    monkeypatch.setattr(tasks.Task, "start", lambda self: None)


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch, no_threads: None) -> None:
    """No threads, and syncs that take no time: for tests that only look at what is in the files."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)
    monkeypatch.setattr(files, "sync_map", lambda view: None)
