"""The examples and the programs in the README and the docs run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import commitlog
from commitlog.spark import find_java

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_PROGRAM = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
PROGRAMS = {page.name: _PROGRAM.findall(page.read_text()) for page in PAGES}


JAVA = {"JAVA_HOME": find_java() or ""}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in an empty folder, with warnings as errors."""
    source = str(Path(commitlog.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=folder,
        env={**os.environ, **JAVA, "PYTHONPATH": source, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    done = run(tmp_path, str(example))
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("page", [name for name, programs in PROGRAMS.items() if programs])
def test_the_programs_of_a_page_run_one_after_another(page: str, tmp_path: Path) -> None:
    """Each in a process of its own; what one left, the next one finds."""
    for block in PROGRAMS[page]:
        done = run(tmp_path, "-c", block)
        assert done.returncode == 0, f"{block}\n{done.stderr}"


def test_there_are_examples_and_programs() -> None:
    assert EXAMPLES
    assert PROGRAMS["README.md"]
