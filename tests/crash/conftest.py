"""Fixtures of the crash tests."""

from __future__ import annotations

import os

import pytest

from commitlog import background, files


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing happens behind the test's back."""
    monkeypatch.setattr(background.Task, "start", lambda self: None)


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch, no_threads: None) -> None:
    """No threads, and syncs that take no time: for tests that only look at what is in the files."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)
    monkeypatch.setattr(files, "sync_map", lambda view: None)
