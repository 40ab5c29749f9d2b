"""Open the log that a command works on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import commitlog
from commitlog.cli.progress_bar import progress_bar
from commitlog.config import LogConfig
from commitlog.log import CommitLog

NO_CLEANER = LogConfig(cleaner_enable=False)  # most commands must not compact
_CHECKING = "checking for torn records"


@contextmanager
def reading(directory: str) -> Iterator[CommitLog]:
    """Open a log for reading; another process may be writing it."""
    with progress_bar(_CHECKING) as progress, commitlog.open(directory, mode="r", progress=progress) as log:
        yield log


@contextmanager
def writing(
    directory: str, *, shared: bool = False, create: bool = False, config: LogConfig = NO_CLEANER
) -> Iterator[CommitLog]:
    """Open a log for writing; NotALogError if there is none, unless `create` is set."""
    if not create:
        commitlog.open(directory, mode="r").close()
    with progress_bar(_CHECKING) as progress:
        log = commitlog.open(directory, config=config, mode="shared" if shared else "w", progress=progress)
    with log:
        yield log
