"""The probe of doctor(): what one process of Spark sees of its Python, of the libraries and of the log.

Spark ships this module as code, so that it also runs where commitlog is not installed: it imports only the
standard library until it has found out what else is there, and reads the log's id from its file by itself.
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_STAGING = "staging"
_MOST_FILES = 100
_CONNECT_SECONDS = 5.0


@dataclass(frozen=True)
class Question:
    """What a probe looks at.

    `addresses` are those of nodes, for a log that is read over the network; `marker` is the name of a file
    that the driver has left in the log's directory, or None. A task waits a moment, so that every slot gets
    one.
    """

    path: str
    addresses: tuple[tuple[str, int], ...] = ()
    marker: str | None = None
    wait_seconds: float = 0.0


def temporary_file(path: str) -> Any:
    """Return a new file where a task would write, in the log's directory; closing it removes it."""
    staging = os.path.join(path, _STAGING)
    folder = staging if os.path.isdir(staging) else path
    return tempfile.NamedTemporaryFile(dir=folder, prefix="doctor-", suffix=".tmp", buffering=0)


def examine(question: Question) -> dict[str, Any]:
    """Describe the process that this runs in; what it does not find out is not in the result."""
    found: dict[str, Any] = {"now": time.time(), "host": socket.gethostname()}
    found |= {"interpreter": sys.executable, "python": sys.version.split()[0]}
    time.sleep(question.wait_seconds)
    _attempt(found, "not_told", _add_task)
    for name in ("pyspark", "pyarrow", "commitlog"):
        with contextlib.suppress(ImportError):
            found[name] = str(importlib.import_module(name).__version__)
    if "commitlog" in found:
        _attempt(found, "not_imported", _import_ours)
    if question.addresses:
        _connect(found, question.addresses)
        if "there" in found and "not_imported" not in found:
            _attempt(found, "not_read", lambda into: _open_remote(into, question.path))
        return found
    found["there"] = os.path.isdir(question.path)
    if found["there"]:
        _attempt(found, "not_read", lambda into: _read(into, question.path))
        _attempt(found, "not_written", lambda into: _write(into, question.path))
        _attempt(found, "not_told", lambda into: _add_file_system(into, question.path))
        if question.marker is not None:
            found["marker"] = os.path.exists(os.path.join(question.path, question.marker))
    return found


def _attempt(found: dict[str, Any], name: str, work: Callable[[dict[str, Any]], None]) -> None:
    """Note the error of a step under a name."""
    try:
        work(found)
    except Exception as problem:
        found[name] = f"{type(problem).__name__}: {problem}"


def _add_task(found: dict[str, Any]) -> None:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None:
        found["task"] = [context.stageId(), context.partitionId()]


def _import_ours(_: dict[str, Any]) -> None:
    importlib.import_module("commitlog.spark.worker")


def _connect(found: dict[str, Any], addresses: tuple[tuple[str, int], ...]) -> None:
    for host, port in addresses:
        try:
            socket.create_connection((host, port), _CONNECT_SECONDS).close()
            found["there"] = True
        except OSError as problem:
            found["not_reached"] = f"{host}:{port}: {problem}"


def _open_remote(found: dict[str, Any], path: str) -> None:
    from commitlog.spark.readable import open_readable

    with contextlib.closing(open_readable(path)) as log:
        found["log_id"] = log.log_id
    found["readable"] = True


def _read(found: dict[str, Any], path: str) -> None:
    found["readable"] = False
    with open(os.path.join(path, "commitlog.json")) as file:
        found["log_id"] = json.load(file).get("log_id")
    for segment in sorted(glob.glob(os.path.join(glob.escape(path), "*", "*.log")))[:_MOST_FILES]:
        with contextlib.suppress(FileNotFoundError), open(segment, "rb") as data:  # just removed
            data.read(1)
    found["readable"] = True


def _write(found: dict[str, Any], path: str) -> None:
    found["writable"] = False
    with temporary_file(path) as file:
        file.write(b"x")
    found["writable"] = True


def _add_file_system(found: dict[str, Any], path: str) -> None:
    """Add the type of the file system and where it is mounted."""
    real = os.path.realpath(path) + os.sep
    with open("/proc/self/mounts") as mounts:
        mounted = [line.split()[1:3] for line in mounts]
    place, kind = max((one for one in mounted if real.startswith(one[0].rstrip("/") + "/")), key=_depth)
    found["file_system"] = f"{kind} at {place}"


def _depth(mounted: list[str]) -> int:
    return len(mounted[0])
