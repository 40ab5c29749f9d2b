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
    from rich import progress as rich

    columns = [rich.TextColumn("{task.description}"), rich.BarColumn()]
    if unit == "bytes":
        columns += [rich.DownloadColumn(), rich.TransferSpeedColumn()]
    else:
        columns += [rich.MofNCompleteColumn(), rich.TextColumn("{task.fields[rate]}")]
    bar = rich.Progress(*columns, rich.TimeRemainingColumn(), console=console, transient=True)
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
