"""The wheel works in an empty environment, with the core dependencies alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import importlib.metadata, importlib.util, sys
import commitlog

assert ".venv" not in commitlog.__file__ and "site-packages" in commitlog.__file__, commitlog.__file__
names = ("pyarrow", "pandas", "pyspark", "rich", "click", "lz4", "cramjam")
extras = [name for name in names if importlib.util.find_spec(name)]
assert not extras, extras
assert importlib.metadata.version("commitlog") == commitlog.__version__
with commitlog.open("data") as log:
    topic = log.create_topic("orders", partitions=2, config={"compression_type": "zstd"})
    topic.append(b"three apples", key=b"alice")
    topic.append_many([b"a pear", b"a plum"], keys=[b"bob", b"bob"])
with commitlog.open("data", mode="r") as log:
    found = [one.value for part in log.topic("orders").partitions for one in part.records()]
    assert sorted(found) == [b"a pear", b"a plum", b"three apples"], found
    try:
        log.topic("orders").partition(0).to_arrow()
    except commitlog.errors.MissingDependencyError as problem:
        assert "pip install" in str(problem)
    else:
        raise AssertionError("Arrow without pyarrow")
print("works")
"""


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """Build from a copy of what belongs to the project, so that nothing is left in the source."""
    source = tmp_path / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", tmp_path, ".", cwd=source)
    (built,) = tmp_path.glob("*.whl")
    return built


def test_the_wheel_works_in_an_empty_environment(tmp_path: Path, wheel: Path) -> None:
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel, cwd=tmp_path)
    assert run(python, "-I", "-W", "error", "-c", PROGRAM, cwd=tmp_path) == "works\n"
    command = subprocess.run([folder / "bin" / "commitlog"], capture_output=True, text=True, check=False)
    assert (command.returncode, command.stderr.count("\n")) == (1, 1)
    assert "pip install 'commitlog[cli]'" in command.stderr
    with zipfile.ZipFile(wheel) as listed:
        assert {
            "commitlog/py.typed",
            "commitlog/ui/static/index.html",
            "commitlog/ui/static/js/app.js",
        } <= set(listed.namelist())
