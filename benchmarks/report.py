"""Lines, groups, and how they are printed: with rich where it is installed, as plain text where not."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

try:
    from rich.console import Console
    from rich.table import Table
except ImportError:
    Console = None

COLUMNS = ("engine", "measured", "ratio", "target", "verdict", "note")


@dataclass(frozen=True, slots=True)
class Line:
    """One engine in one row. `passed` is None where nothing was promised."""

    engine: str
    amount: float
    unit: str
    ratio: float | None = None
    target: str = ""
    passed: bool | None = None
    note: str = ""

    def cells(self) -> tuple[str, ...]:
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        verdict = {None: "", True: "pass", False: "MISS"}[self.passed]
        return self.engine, f"{human(self.amount)} {self.unit}", ratio, self.target, verdict, self.note


@dataclass(frozen=True, slots=True)
class Group:
    """A row of the benchmark: what was done, and what each engine made of it."""

    row: str
    title: str
    lines: list[Line]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """What each engine made of the same work at several sizes; None where it cannot do it."""

    row: str
    title: str
    x_label: str
    y_label: str
    xs: list[float] | list[str]
    series: dict[str, list[float | None]]
    best: Literal["most", "least"] = "most"
    x_scale: Literal["log", "even"] = "log"
    y_scale: Literal["log", "linear"] = "log"
    shape: Literal["lines", "bars"] = "lines"
    note: str = ""

    def table(self) -> list[list[str]]:
        """Return a row for each engine, below a row with the sizes."""
        rows = [[self.x_label, *(x if isinstance(x, str) else f"{x:,.9g}" for x in self.xs)]]
        rows += [
            [name, *("" if amount is None else human(amount) for amount in amounts)]
            for name, amounts in self.series.items()
        ]
        return rows

    def heading(self) -> str:
        return f"{self.title}: {self.y_label}"

    def remarks(self) -> str:
        return " ".join(filter(None, [self.note, self.ahead()]))

    def ahead(self) -> str:
        """Name every peer that is better than commitlog, and where."""
        parts = []
        if OURS not in self.series:  # a curve of our own operations
            return ""
        for name, amounts in self.series.items():
            where = [x for x, other, our in zip(self.table()[0][1:], amounts, self.series[OURS], strict=True)
                     if self._better(other, our)]  # fmt: skip
            if where and not name.startswith(OURS):
                parts.append(f"{name} ({', '.join(where)})")
        return f"Better than {OURS}: {'; '.join(parts)}." if parts else ""

    def _better(self, other: float | None, our: float | None) -> bool:
        if other is None or our is None:
            return False
        return other > our if self.best == "most" else other < our


@dataclass(slots=True)
class Report:
    """Everything a run found out."""

    setting: dict[str, str]
    groups: list[Group] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)

    def add(self, found: Group | Curve) -> None:
        """Print a group or a curve as soon as it is known: a full run takes minutes."""
        if isinstance(found, Curve):
            self.curves.append(found)
            print_curve(found)
        else:
            self.groups.append(found)
            print_group(found)

    def misses(self) -> list[str]:
        lines = [(group, line) for group in self.groups for line in group.lines]
        return [f"{group.title}: {line.engine}" for group, line in lines if line.passed is False]

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def human(amount: float) -> str:
    """Write a number with three significant digits and a k, M or G where it is large."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(amount) >= size:
            return f"{amount / size:.3g} {letter}"
    return f"{amount:.3g}"


OURS = "commitlog"


def versus_best(seconds: dict[str, float], work: float, unit: str, target: float | None) -> list[Line]:
    """Turn best times into lines: rates, and our ratio against the best peer, whoever that is.

    Names that start with ours are other settings of commitlog: shown, not judged, and no peers.
    """
    rates = {name: work / taken for name, taken in seconds.items()}
    peers = {name: rate for name, rate in rates.items() if not name.startswith(OURS)}
    best = max(peers, key=peers.__getitem__)
    lines = []
    for name, rate in sorted(rates.items(), key=lambda item: -item[1]):
        judged = name == OURS and target is not None
        lines.append(
            Line(
                name, rate, unit, rate / peers[best],
                f">= {target:g} x {best}" if judged else "",
                rate >= target * peers[best] if judged else None,
            )
        )  # fmt: skip
    return lines


def beside_floor(seconds: dict[str, float], work: float, floors: dict[str, str]) -> list[Line]:
    """Compare with the best peer, as versus_best() does; `floors` tells of each setting which floor it has.

    A floor is no peer: it reads or writes nothing. Its ratio is to the best peer, too.
    """
    judged = {name: taken for name, taken in seconds.items() if name not in floors.values()}
    lines = versus_best(judged, work, "rows/s", 1.0)
    best = max(work / taken for name, taken in judged.items() if not name.startswith(OURS))
    lines = [
        replace(line, note=f"{line.amount * seconds[floors[line.engine]] / work:.2f} of its floor")
        if line.engine in floors
        else line
        for line in lines
    ]
    lines += [
        Line(name, work / seconds[name], "rows/s", work / seconds[name] / best, note="a floor")
        for name in dict.fromkeys(floors.values())
    ]
    return sorted(lines, key=lambda line: -line.amount)


def print_group(group: Group) -> None:
    rows = [line.cells() for line in group.lines]
    used = [i for i in range(len(COLUMNS)) if any(row[i] for row in rows)]
    title = f"{group.title} ({group.row})"
    if Console is None:
        plain = [[COLUMNS[i] for i in used], *([row[i] for i in used] for row in rows)]
        print_plain(title, plain, group.note)
        return
    table = Table()
    for i in used:
        table.add_column(COLUMNS[i], justify="right" if COLUMNS[i] in ("measured", "ratio") else "left")
    for row in rows:
        table.add_row(*(row[i] for i in used), style={"pass": "green", "MISS": "bold red"}.get(row[4], ""))
    print_table(title, table, group.note)


def print_curve(curve: Curve) -> None:
    title = f"{curve.heading()} ({curve.row})"
    if Console is None:
        print_plain(title, curve.table(), curve.remarks())
        return
    first, *rows = curve.table()
    table = Table()
    for i, cell in enumerate(first):
        table.add_column(cell, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row)
    print_table(title, table, curve.remarks())


def print_table(title: str, table: Table, note: str) -> None:
    console = Console(width=None if Console().is_terminal else 140, highlight=False)
    console.print(f"[bold]{title}[/bold]")  # as text: a table's title wraps at its width
    console.print(table)
    if note:
        console.print(f"[dim]{note}[/dim]")
    console.print()


def print_plain(title: str, table: list[list[str]], note: str) -> None:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    print(title)
    for row in table:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(f"  {note}\n" if note else "", flush=True)


def machine() -> str:
    """Name the processor and the memory, because no number means much without them."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    kib = int(Path("/proc/meminfo").read_text().split()[1])
    cores = sum(line.startswith("processor") for line in Path("/proc/cpuinfo").read_text().splitlines())
    return f"{model}, {cores} cores, {kib / (1 << 20):.0f} GiB"
