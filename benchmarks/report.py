"""Lines, groups, and how they are printed: with rich where it is installed, as plain text where not."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

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


@dataclass(slots=True)
class Report:
    """Everything a run found out."""

    setting: dict[str, str]
    groups: list[Group] = field(default_factory=list)

    def add(self, group: Group) -> None:
        """Print a group as soon as it is known: a full run takes minutes."""
        self.groups.append(group)
        print_group(group)

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
    if Console is None:
        print_plain(group, [[COLUMNS[i] for i in used], *([row[i] for i in used] for row in rows)])
        return
    table = Table()
    for i in used:
        table.add_column(COLUMNS[i], justify="right" if COLUMNS[i] in ("measured", "ratio") else "left")
    for row in rows:
        table.add_row(*(row[i] for i in used), style={"pass": "green", "MISS": "bold red"}.get(row[4], ""))
    console = Console(width=None if Console().is_terminal else 140, highlight=False)
    console.print(f"[bold]{group.title}[/bold] ({group.row})")  # as text: a table's title wraps at its width
    console.print(table)
    if group.note:
        console.print(f"[dim]{group.note}[/dim]")
    console.print()


def print_plain(group: Group, table: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    print(f"{group.title} ({group.row})")
    for row in table:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(f"  {group.note}\n" if group.note else "", flush=True)


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
