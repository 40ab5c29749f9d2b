"""Python environments as machines of a cluster may have them: with all of commitlog, or its dependencies."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import commitlog
import pyspark_commitlog

PACKAGES = Path(sysconfig.get_path("purelib"))


def dependencies(folder: Path) -> Path:
    """Fill a folder with everything that is installed here, but commitlog and pyspark."""
    folder.mkdir()
    for entry in PACKAGES.iterdir():
        if entry.suffix != ".pth" and "commitlog" not in entry.name and not entry.name.startswith("pyspark"):
            (folder / entry.name).symlink_to(entry)
    return folder


def copy_library(folder: Path) -> Path:
    """Copy the modules of commitlog, as pip install --no-deps --target would."""
    shutil.copytree(
        Path(commitlog.__file__).parent,
        folder / "commitlog",
        ignore=shutil.ignore_patterns("__pycache__", "ui"),
    )
    shutil.copy(pyspark_commitlog.__file__, folder)
    return folder


def environment(folder: Path, packages: Path) -> Path:
    """Make an environment that has the packages of a folder; returns it."""
    command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(command, check=True)
    (packages_of(folder) / "packages.pth").write_text(f"{packages}\n")
    return folder


def packages_of(folder: Path) -> Path:
    """Where an environment keeps its packages."""
    return folder / PACKAGES.relative_to(sys.prefix)


def packed(folder: Path, target: Path) -> Path:
    """Pack an environment as venv-pack does: the interpreter itself stays where it is."""
    with tarfile.open(target, "w:gz") as archive:
        archive.add(folder, ".")
    return target
