"""The docs show every command, and what docs/cli.md shows is what they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.rig import SOURCE
from cli.test_app import LEAVES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "cli.md"]


def shown(page: Path) -> Iterator[tuple[str, str]]:
    """The commands of a page, and what it says they print."""
    for block in re.findall(r"^```console\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = step.partition("\n")
            yield command, output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder, beside a `commitlog` that is the one under test."""
    program = tmp_path / "bin" / "commitlog"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m commitlog "$@"\n')
    program.chmod(0o755)
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_prints_what_the_page_shows(page: Path, folder: Path) -> None:
    path = f"{folder.parent / 'bin'}{os.pathsep}{os.environ['PATH']}"
    places = {**os.environ, "PATH": path, "PYTHONPATH": SOURCE}
    for command, expected in shown(page):
        shell = ["bash", "-euo", "pipefail", "-c", command]
        done = subprocess.run(shell, cwd=folder, env=places, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), command
        pattern = ".*?".join(re.escape(part) for part in expected.strip().split("…"))
        assert re.fullmatch(pattern, done.stdout.strip(), re.DOTALL), f"{command}\n{done.stdout}"


def test_there_are_commands_on_each_page() -> None:
    assert all(list(shown(page)) for page in PAGES)


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_has_its_place_in_the_docs(name: str) -> None:
    assert any(f"commitlog {name} " in page.read_text() for page in (ROOT / "docs").rglob("*.md"))
