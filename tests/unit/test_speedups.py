from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import commitlog

ROOT = Path(__file__).parents[2]
SHOW = "from commitlog import speedups; print(speedups.native is None, speedups.status)"


def status_with(folder: Path, program: str, **environment: str) -> str:
    """What a process says about the speedups if `program` is the package that it finds."""
    (folder / "commitlog_speedups.py").write_text(program)
    path = os.pathsep.join([str(folder), *sys.path])
    given = {name: value for name, value in os.environ.items() if name != "COMMITLOG_PURE"}
    done = subprocess.run(
        [sys.executable, "-c", SHOW],
        env={**given, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_a_package_of_another_version_is_ignored(tmp_path: Path) -> None:
    found = status_with(tmp_path, "__version__ = '0.0.9'")
    assert found == (
        f"True not used, because commitlog-speedups 0.0.9 is not for commitlog {commitlog.__version__}"
    )


def test_a_package_that_cannot_be_loaded_is_ignored(tmp_path: Path) -> None:
    found = status_with(tmp_path, "raise ImportError('undefined symbol: PyNothing')")
    assert found == (
        "True not used, because commitlog-speedups cannot be loaded: undefined symbol: PyNothing"
    )


@pytest.mark.parametrize("program", ["1 / 0", "raise OSError('gone')", "import nothing_of_this_name_"])
def test_a_package_that_fails_in_any_way_is_ignored(tmp_path: Path, program: str) -> None:
    assert status_with(tmp_path, program).startswith("True not used, because commitlog-speedups ")


@pytest.mark.parametrize("interface", ["", "INTERFACE = 0"])
def test_a_package_built_from_other_sources_is_ignored(tmp_path: Path, interface: str) -> None:
    found = status_with(tmp_path, f"__version__ = '{commitlog.__version__}'\n{interface}")
    assert found == "True not used, because commitlog-speedups was built from other sources; build it again"


def test_a_package_without_a_version_is_ignored(tmp_path: Path) -> None:
    assert "commitlog-speedups without a version is not for commitlog" in status_with(tmp_path, "")


@pytest.mark.parametrize("value", ["1", "true"])
def test_nothing_is_imported_if_pure_code_is_asked_for(tmp_path: Path, value: str) -> None:
    found = status_with(tmp_path, "raise SystemExit('imported')", COMMITLOG_PURE=value)
    assert found == f"True not used, because COMMITLOG_PURE={value} is set"


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    found = status_with(tmp_path, "raise ModuleNotFoundError('No module named commitlog_speedups')")
    assert found == "True not used, because commitlog-speedups is not installed"


@pytest.mark.skipif(not (ROOT / "native").exists(), reason="the package's source is not here")
def test_all_places_name_the_same_version() -> None:
    library = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    compiled = tomllib.loads((ROOT / "native" / "pyproject.toml").read_text())["project"]
    assert library["version"] == compiled["version"] == commitlog.__version__
    assert library["optional-dependencies"]["speedups"] == [f"commitlog-speedups=={commitlog.__version__}"]
