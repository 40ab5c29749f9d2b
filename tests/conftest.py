"""Fixtures that every test may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import map_tails
from hypothesis import HealthCheck, settings

import commitlog
from commitlog import CommitLog, Partition

_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile(
    "quick", max_examples=100, deadline=None, derandomize=True, suppress_health_check=_SLOW_IS_FINE
)
settings.register_profile("soak", max_examples=5_000, deadline=None, suppress_health_check=_SLOW_IS_FINE)
settings.load_profile("soak" if os.environ.get("COMMITLOG_SOAK") == "1" else "quick")


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    """Where a test keeps its log; nothing is there yet."""
    return tmp_path / "log"


@pytest.fixture
def log(log_path: Path) -> Iterator[CommitLog]:
    """An open log without topics."""
    with commitlog.open(log_path) as opened:
        yield opened


@pytest.fixture
def partition(log: CommitLog) -> Partition:
    """The only partition of the topic "t"."""
    return log.create_topic("t").partition(0)


@pytest.fixture
def mapped_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the third on, single records are stored into a mapped tail."""
    map_tails(monkeypatch)
