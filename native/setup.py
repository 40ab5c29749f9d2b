"""Builds the one extension module; pyproject.toml has everything else."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from setuptools import Extension, setup

HERE = Path(__file__).parent
VERSION = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]["version"]
# COMMITLOG_STRICT=1: warnings are errors, in our own builds only: another compiler may have other warnings
STRICT = ["-Wall", "-Wextra", "-Werror"] if os.environ.get("COMMITLOG_STRICT") == "1" else []

setup(
    ext_modules=[
        Extension(
            "commitlog_speedups",
            sources=sorted(str(path.relative_to(HERE)) for path in HERE.glob("src/*.c")),
            depends=[
                "pyproject.toml",
                "setup.py",
                *sorted(str(path.relative_to(HERE)) for path in HERE.glob("src/*.h")),
            ],
            define_macros=[
                ("_GNU_SOURCE", "1"),
                ("Py_LIMITED_API", "0x030B0000"),
                ("COMMITLOG_VERSION", f'"{VERSION}"'),
            ],
            extra_compile_args=["-O3", "-std=c11", "-fvisibility=hidden", *STRICT],
            py_limited_api=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
