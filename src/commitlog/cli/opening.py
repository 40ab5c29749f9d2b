"""Opening the log that a command is about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import commitlog
from commitlog.log import CommitLog


@contextmanager
def reading(directory: str) -> Iterator[CommitLog]:
    """Open a log to look at it; another process may be writing it."""
    with commitlog.open(directory, mode="r") as log:
        yield log


@contextmanager
def writing(directory: str, *, shared: bool = False, create: bool = False) -> Iterator[CommitLog]:
    """Open a log to change it; NotALogError if there is none, unless it may be created."""
    if not create:
        commitlog.open(directory, mode="r").close()
    with commitlog.open(directory, shared=shared) as log:
        yield log
