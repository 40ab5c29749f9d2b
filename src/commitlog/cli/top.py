"""`commitlog top`: watch a log live."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, dataclass
from typing import TYPE_CHECKING

import click

from commitlog.cli import options
from commitlog.cli.open_log import reading
from commitlog.cli.output import counted, make_table, print_json, print_table, say, table_cell
from commitlog.errors import CommitLogError
from commitlog.inspect.describe import records_between
from commitlog.inspect.rates import appended_bytes, appended_records, per_second
from commitlog.log import CommitLog
from commitlog.metrics import LogMetrics
from commitlog.partitions.counters import PartitionMetrics
from commitlog.transactions.coordinator import TransactionMetrics

if TYPE_CHECKING:
    from rich.console import RenderableType

_PARTITIONS = ("topic", "partition", "start", "end", "stable", "records/s", "bytes/s", "segments", "bytes")
_GROUPS = ("group", "state", "members", "topic", "partition", "committed", "lag", "records/s")


@click.command(epilog=options.example("commitlog top data", "commitlog top data --interval 5 --json"))
@options.directory
@click.option(
    "--interval", type=click.FloatRange(min=0.05), default=1.0, show_default=True, metavar="SECONDS",
    help="How long to wait between two updates.",
)  # fmt: skip
@options.as_json
def top(directory: str, interval: float, as_json: bool) -> None:
    """Show how topics grow and how far behind groups are, until q or Ctrl-C.

    Another process may be writing the log. If the output is not a terminal, the view is printed once, with
    the rates of one interval.
    """
    with reading(directory) as log:
        watcher = Watcher(log)
        if as_json or not sys.stdout.isatty():
            watcher.look()
            time.sleep(interval)
            _print(watcher.look(), as_json)
        else:
            _show(watcher.look, interval)


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition, and how fast it grows."""

    topic: str
    partition: int
    start_offset: int
    high_watermark: int
    last_stable_offset: int
    records_per_second: float
    bytes_per_second: float
    segments: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GroupRow:
    """How far a group is in a partition, and how fast it advances."""

    group: str
    state: str
    members: int
    topic: str
    partition: int
    committed: int | None
    lag: int | None
    records_per_second: float


@dataclass(frozen=True, slots=True)
class View:
    """A log at one moment."""

    path: str
    partitions: tuple[PartitionRow, ...]
    groups: tuple[GroupRow, ...]
    transactions: TransactionMetrics


class Watcher:
    """Watches a log. Each look has the rates since the previous one; the first has none."""

    def __init__(self, log: CommitLog, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._at: float | None = None
        self._ends: dict[tuple[str, int], int] = {}  # of partitions
        self._committed: dict[tuple[str, str, int], int | None] = {}

    def look(self) -> View:
        """Return the log as it is now."""
        self._log.release_removed()
        now, names, metrics = self._clock(), set(self._log.topics()), self._log.metrics()
        seconds = None if self._at is None else now - self._at
        partitions = [self._partition(one, seconds) for one in metrics.partitions if one.topic in names]
        groups = tuple(self._groups(metrics, seconds))
        view = View(self._log.path, tuple(partitions), groups, metrics.transactions)
        self._at = now
        self._ends = {(one.topic, one.partition): one.next_offset for one in metrics.partitions}
        self._committed = {(one.group, one.topic, one.partition): one.committed for one in view.groups}
        return view

    def _partition(self, one: PartitionMetrics, seconds: float | None) -> PartitionRow:
        before = self._ends.get((one.topic, one.partition), one.next_offset)
        grown = one.next_offset - before
        records, size_bytes = self._appended(one, before) if grown > 0 else (grown, grown)
        return PartitionRow(
            one.topic, one.partition, one.start_offset, one.high_watermark, one.last_stable_offset,
            per_second(records, seconds) or 0.0, per_second(size_bytes, seconds) or 0.0,
            one.segments, one.size_bytes,
        )  # fmt: skip

    def _appended(self, one: PartitionMetrics, start: int) -> tuple[int | None, int | None]:
        """Return the records and bytes from `start` on."""
        with suppress(CommitLogError):  # the topic was just deleted
            partition, end = self._log.topic(one.topic).partition(one.partition), one.next_offset
            return appended_records(partition, start, end), appended_bytes(partition, start, end)
        return None, None

    def _read(self, topic: str, partition: int, start: int, end: int) -> int | None:
        """Return the records that a group has read; None if it went back."""
        with suppress(CommitLogError):  # the topic was just deleted
            found = self._log.topic(topic).partition(partition)
            return records_between(found, start, end) if start <= end else None
        return None

    def _groups(self, metrics: LogMetrics, seconds: float | None) -> Iterator[GroupRow]:
        for group in metrics.groups:
            for one in group.partitions:
                before = self._committed.get((group.group_id, one.topic, one.partition))
                moved = None
                if before is not None and one.committed is not None:
                    moved = self._read(one.topic, one.partition, before, one.committed)
                yield GroupRow(
                    group.group_id, group.state, len(group.members), one.topic, one.partition,
                    one.committed, one.lag, per_second(moved, seconds) or 0.0,
                )  # fmt: skip


def _print(view: View, as_json: bool) -> None:
    if as_json:
        print_json(asdict(view))
        return
    print_table(_PARTITIONS, _cells(view.partitions))
    if view.groups:
        say()
        print_table(_GROUPS, _cells(view.groups))
    if view.transactions.open:
        say(f"\n{_open(view.transactions)}")


def _open(found: TransactionMetrics) -> str:
    return f"{counted(found.open, 'open transaction')}, the oldest for {found.oldest_ms / 1000:,.0f} s"


def _cells(rows: Sequence[PartitionRow | GroupRow]) -> list[tuple[object, ...]]:
    return [tuple(round(one) if isinstance(one, float) else one for one in astuple(row)) for row in rows]


def _show(look: Callable[[], View], interval: float) -> None:
    """Update the screen until q or Ctrl-C."""
    from rich.live import Live

    try:
        with _key_by_key() as wait, Live(screen=True, auto_refresh=False) as live:
            while True:
                live.update(_screen(look()), refresh=True)
                if wait(interval):
                    return
    except KeyboardInterrupt:  # like q
        return


def _screen(view: View) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    records = sum(one.records_per_second for one in view.partitions)
    size_bytes = sum(one.bytes_per_second for one in view.partitions)
    lag = sum(one.lag or 0 for one in view.groups)
    path = table_cell(view.path)
    line = f"{path}   {records:,.0f} records/s   {size_bytes:,.0f} bytes/s   lag {lag:,}   "
    if view.transactions.open:
        line += f"{_open(view.transactions)}   "
    line += "q quits"
    parts = [Text(line, style="bold"), Text(), _table(_PARTITIONS, _cells(view.partitions))]
    if view.groups:
        parts += [Text(), _table(_GROUPS, _cells(view.groups))]
    return Group(*parts)


def _table(columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> RenderableType:
    shown = lambda cell: f"{cell:,}" if isinstance(cell, int) else table_cell(cell)  # noqa: E731
    return make_table(columns, rows, shown, no_wrap=True)


@contextmanager
def _key_by_key() -> Iterator[Callable[[float], bool]]:
    """Yield a function that waits, and returns whether q was pressed meanwhile."""
    if not sys.stdin.isatty():
        yield _no_keys
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield _pressed_q
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _no_keys(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _pressed_q(seconds: float) -> bool:
    fd, deadline = sys.stdin.fileno(), time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if select.select([fd], [], [], left)[0]:
            keys = os.read(fd, 64)
            if not keys or b"q" in keys.lower():  # or the terminal is gone
                return True
    return False
