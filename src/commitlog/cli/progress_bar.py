"""A progress bar on stderr with rate and remaining time; none if stderr is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, int], None]  # done, total


@contextmanager
def progress_bar(label: str, *, unit: str = "bytes") -> Iterator[Report | None]:
    """Yield a function to report progress to, (done, total), or None if stderr is not a terminal.

    The bar appears with the first report and disappears at the end. `unit` is what it counts.
    """
    from rich.console import Console

    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    counted = (
        (DownloadColumn(), TransferSpeedColumn())
        if unit == "bytes"
        else (MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    )
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), *counted, TimeRemainingColumn(),
        console=console, transient=True,
    )  # fmt: skip
    task = bar.add_task(label, total=None, rate="")

    def report(done: int, total: int) -> None:
        bar.start()
        bar.update(task, completed=done, total=total, rate=f"{bar.tasks[0].speed or 0:,.0f} {unit}/s")
        if done >= total:
            bar.stop()  # another bar may follow

    try:
        yield report
    finally:
        bar.stop()
