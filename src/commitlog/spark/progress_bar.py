"""A progress bar for a Spark job, if stderr is a terminal and the package rich is installed."""

from __future__ import annotations

import contextlib
import secrets
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_SECONDS = 0.2
_JOB_GROUP = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


@contextlib.contextmanager
def bar(spark: SparkSession, title: str) -> Iterator[None]:
    """Show the completed tasks of the Spark jobs that this thread starts meanwhile."""
    context = getattr(spark, "sparkContext", None)
    if context is None or not sys.stderr.isatty():
        yield
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        yield
        return
    group, done = f"commitlog-{secrets.token_hex(8)}", threading.Event()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task(title, total=None)

        def look() -> None:
            while not done.wait(_LOOK_SECONDS):
                completed, total = _tasks(context.statusTracker(), group)
                shown.update(task, completed=completed, total=total or None)

        before = {name: context.getLocalProperty(name) for name in _JOB_GROUP}
        context.setJobGroup(group, title)
        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()
            for name, value in before.items():
                context.setLocalProperty(name, value)
        _, total = _tasks(context.statusTracker(), group)
        shown.update(task, completed=total, total=total)


def _tasks(tracker: Any, group: str) -> tuple[int, int]:
    """Return the number of completed tasks of a job group, and of all its tasks."""
    jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(group)]
    numbers = [number for job in jobs if job is not None for number in job.stageIds]
    stages = [stage for stage in map(tracker.getStageInfo, numbers) if stage is not None]
    return sum(one.numCompletedTasks for one in stages), sum(one.numTasks for one in stages)
