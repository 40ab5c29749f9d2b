"""Finish publications that a driver committed and did not finish, because it was killed."""

from __future__ import annotations

import logging

from commitlog.errors import CommitLogError
from commitlog.log import CommitLog
from commitlog.spark.worker import open_log

_log = logging.getLogger("commitlog.spark")


def finish_publications(path: str) -> None:
    """Append what is committed, so that a query does not read one half of it.

    A process that is publishing just now finishes by itself. Where this one may not write, the query reads
    what is there, with a warning.
    """
    log = open_log(path)
    if not isinstance(log, CommitLog) or not log.unfinished_publications():
        return
    try:
        CommitLog.open(path, "shared", None).close()
    except (CommitLogError, OSError) as problem:
        _log.warning("%s has an unfinished publication that cannot be finished here: %s", path, problem)
