"""Fixtures that every test may use."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import soak
from helpers import map_tails
from hypothesis import HealthCheck, settings

import commitlog
from commitlog import CommitLog, Partition

_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile(
    "quick", max_examples=100, deadline=None, derandomize=True, suppress_health_check=_SLOW_IS_FINE
)
settings.register_profile(
    "soak", max_examples=2_000, deadline=None, print_blob=True, suppress_health_check=_SLOW_IS_FINE
)
settings.load_profile("soak" if soak.SOAK else "quick")


def pytest_configure(config: pytest.Config) -> None:
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        errors = os.dup(2)
    config.add_cleanup(lambda: os.close(errors))
    shows = soak.SOAK and not hasattr(config, "workerinput")  # not in a worker of xdist
    config.pluginmanager.register(_Soak(errors, shows), "commitlog-soak")


class _Soak:
    """Limits each test in time, gathers what the long forms did, and shows it at the end."""

    def __init__(self, errors: int, shows_failures: bool) -> None:
        self._errors = errors
        self._shows_failures = shows_failures
        self._table = soak.Table()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        with soak.time_limit(soak.LIMIT_S, self._errors):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        if call.when == "teardown":
            item.user_properties.append((soak.PROPERTY, soak.take()))
        report = yield
        if report.failed:
            item.stash[soak.FAILED] = True
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._table.add(report)
        if report.failed and self._shows_failures:  # at once: a long run may be ended before its last test
            os.write(self._errors, f"\n{report.nodeid} ({report.when})\n{report.longreprtext}\n".encode())

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if soak.SOAK:
            terminalreporter.section("what was done, for docs/guarantees.md")
            terminalreporter.write_line(self._table.markdown())
            terminalreporter.write_line(f"to repeat this run: COMMITLOG_SEED={soak.SEED}")


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
