"""The docs show every command, and what docs/cli.md shows is what they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli.rig import SOURCE
from cli.test_app import LEAVES

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "cli.md").read_text()
BLOCKS = re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
SHOWN = [shown.partition("\n")[::2] for block in BLOCKS for shown in re.split(r"^\$ ", block, flags=re.M)[1:]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder, beside a `commitlog` that is the one under test."""
    program = tmp_path / "bin" / "commitlog"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m commitlog "$@"\n')
    program.chmod(0o755)
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


def test_every_command_prints_what_the_page_shows(folder: Path) -> None:
    path = f"{folder.parent / 'bin'}{os.pathsep}{os.environ['PATH']}"
    places = {**os.environ, "PATH": path, "PYTHONPATH": SOURCE}
    for command, expected in SHOWN:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command], cwd=folder, env=places, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), command
        pattern = ".*?".join(re.escape(part) for part in expected.strip().split("…"))
        assert re.fullmatch(pattern, done.stdout.strip(), re.DOTALL), f"{command}\n{done.stdout}"


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_has_its_place_in_the_docs(name: str) -> None:
    assert any(f"commitlog {name} " in page.read_text() for page in DOCS.rglob("*.md"))
