"""Pages that are served, and a browser to look at them."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import commitlog
from commitlog import CommitLog

from .client import Client, served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

REQUIRED = os.environ.get("COMMITLOG_REQUIRE_CHROMIUM") == "1"
CHROMIUM = (
    os.environ.get("COMMITLOG_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
)


def missing() -> str | None:
    """Why tests in a browser cannot run here; None if they can."""
    if CHROMIUM is None:
        return "there is no chromium; on Debian: apt-get install --no-install-recommends chromium"
    if importlib.util.find_spec("playwright") is None:
        return "the package playwright is not installed"
    return None


@pytest.fixture
def client(log: CommitLog, log_path: Path) -> Iterator[Client]:
    """A page that only looks, while `log` may be written."""
    with commitlog.open(log_path, mode="r") as reader, served(reader) as client:
        yield client


@pytest.fixture
def writable(log_path: Path) -> Iterator[Client]:
    """A page that may change the log."""
    with commitlog.open(log_path, mode="shared") as log, served(log, writable=True) as client:
        yield client


@pytest.fixture(scope="module")  # while it is there, an event loop runs in this thread: no other can
def browser() -> Iterator[Browser]:
    """The machine's chromium; without it the test is skipped, or fails where it must not be missing."""
    reason = missing()
    if reason is not None and REQUIRED:
        pytest.fail(f"COMMITLOG_REQUIRE_CHROMIUM is set, but {reason}")
    if reason is not None:
        pytest.skip(f"needs chromium: {reason}")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture
def problems() -> list[str]:
    """What the browser complains of."""
    return []


@pytest.fixture
def page(browser: Browser, problems: list[str]) -> Iterator[Page]:
    """A page of the browser; the test fails if the browser complains of anything it did not expect."""
    context = browser.new_context(timezone_id="UTC", viewport={"width": 1200, "height": 900})
    page = context.new_page()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    yield page
    context.close()
    assert problems == []
