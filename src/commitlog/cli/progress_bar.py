"""A progress bar on stderr with rate and remaining time; nothing where stderr is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, int], None]  # done, in all


@contextmanager
def progress_bar(label: str, *, unit: str = "bytes") -> Iterator[Report | None]:
    """Give a function to report progress to, (done, in all); None where nobody would see it.

    The bar comes with the first report and goes at the end. With another unit than bytes it counts things.
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
            bar.stop()  # another may follow

    try:
        yield report
    finally:
        bar.stop()
