"""Shipped: objects that Spark sends to executors, which say what to do where commitlog is not installed.

Spark ships what is in this module as code, so it uses only the standard library.
"""

from __future__ import annotations

import copyreg
import importlib
import socket
import sys
from typing import Any

from pyspark import cloudpickle

_OURS = ("commitlog", "pyspark_commitlog")
HOW_TO_SHIP = (
    "install commitlog[spark] there, at the same path on every host, or ship an environment that has it "
    "(spark-submit --archives)"
)


class Shipped:
    """Pickles as a call of load(), so that a missing library is an error with a remedy."""

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)


def reduced(one: object) -> tuple[Any, ...]:
    """Return what __reduce__() of a shipped object returns; a class that is not ours pickles as usual."""
    kind = type(one)
    if kind.__module__.partition(".")[0] not in _OURS:
        return copyreg.__newobj__, (kind,), vars(one)  # type: ignore[attr-defined]
    return load, (kind.__module__, kind.__qualname__), vars(one)


def load(module: str, name: str) -> Any:
    """Return a new object of a class, whose attributes pickle sets; ImportError names the host."""
    try:
        found = getattr(importlib.import_module(module), name)
    except ImportError as problem:
        where = f"host {socket.gethostname()}: {sys.executable} cannot import commitlog"
        checks = "commitlog.spark.doctor(spark, path) checks all hosts"
        raise ImportError(f"{where} ({problem}); {HOW_TO_SHIP}; {checks}") from None
    return found.__new__(found)


cloudpickle.register_pickle_by_value(sys.modules[__name__])
