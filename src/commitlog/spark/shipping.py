"""Shipped: objects that Spark sends to executors, which say what to do where commitlog is not installed.

Spark ships this module as code (source.py registers it for that): it imports only the standard library.
"""

from __future__ import annotations

import importlib
import socket
import sys
from typing import Any

HOW_TO_SHIP = (
    "install commitlog[spark] there, at the same path on every host, or ship an environment that has it "
    "(spark-submit --archives)"
)


class Shipped:
    """Pickles as a call of load(), so that a missing library is an error with a remedy."""

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)


def reduced(one: object) -> tuple[Any, ...]:
    """Return what __reduce__() of a class that is shipped returns."""
    return load, (type(one).__module__, type(one).__qualname__), vars(one)


def load(module: str, name: str) -> Any:
    """Return a new object of a class, whose attributes pickle sets; ImportError names the host."""
    try:
        found = getattr(importlib.import_module(module), name)
    except ImportError as problem:
        where = f"host {socket.gethostname()}: {sys.executable} cannot import commitlog"
        checks = "commitlog.spark.doctor(spark, path) checks all hosts"
        raise ImportError(f"{where} ({problem}); {HOW_TO_SHIP}; {checks}") from None
    return found.__new__(found)
