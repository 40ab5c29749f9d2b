"""Draw the results of a run as pictures, or print them as Markdown.

* `python benchmarks/plots.py results.json docs/images/performance`: an SVG for each row that has curves, and
  one that compares the engines; what the run did not measure keeps the picture it has;
* `python benchmarks/plots.py --markdown results.json`: the same as tables.
"""

from __future__ import annotations

import argparse
import json
from itertools import groupby
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from report import COLUMNS, OURS, Curve, Group, Line, human

# An engine has one colour and one mark everywhere; they differ in lightness, too.
STYLES = {
    "commitlog": ("#c8102e", "o"),
    "SQLite WAL": ("#1f5fa8", "s"),
    "LMDB writemap": ("#7cb342", "v"),
    "LMDB": ("#00796b", "^"),
    "RocksDB": ("#8e5bbf", "D"),
}
OTHER = ("#777777", "x")
# Curves of our own operations have no engines: a colour and a mark by position.
OPERATIONS = list(zip(matplotlib.colormaps["tab10"].colors, "os^vD<>Pph", strict=True))
INK, FAINT = "#222222", "#dddddd"
COMPARED = [
    ("append_many", 1), ("append_one", 0), ("producer", 0), ("records", 0), ("values", 0), ("overhead", 0)
]  # fmt: skip
LESS_IS_BETTER = ("overhead",)
SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "commitlog",  # so that the same results give the same file
    "font.size": 9,
    "font.family": ["DejaVu Sans"],
    "axes.titlesize": 10,
    "axes.edgecolor": "#888888",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def style_of(engine: str) -> tuple[str, str]:
    return next((style for name, style in STYLES.items() if engine.startswith(name)), OTHER)


def short(amount: float) -> str:
    """Write a number for an axis: 20, 500k, 2M."""
    return human(amount).replace(" ", "")


def size(x: float) -> str:
    return f"{x:,g}" if x < 10_000 else short(x)


# --- curves --------------------------------------------------------------------------------------


def draw_curves(curves: list[Curve], path: Path) -> None:
    """Draw the curves of one row side by side, with one legend."""
    width = {1: 6.4, 2: 9.6}.get(len(curves), 12.0)
    figure = Figure(figsize=(width, 3.9), layout="constrained")
    for axes, curve in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves, strict=True):
        (draw_bars if curve.shape == "bars" else draw_lines)(axes, curve)
        axes.set_title(curve.title, loc="left", fontweight="bold")
        axes.set_xlabel(curve.x_label)
        axes.set_ylabel(f"{curve.y_label} ({'more' if curve.best == 'most' else 'less'} is better)")
    handles = {}
    for axes in figure.axes:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    columns = len(handles) if len(handles) <= 5 else 3
    figure.legend(
        handles.values(), handles.keys(), loc="outside upper left", ncols=columns, frameon=False,
        handlelength=2.4, columnspacing=1.4,
    )  # fmt: skip
    save(figure, path)


def draw_lines(axes: Axes, curve: Curve) -> None:
    places = list(range(len(curve.xs))) if curve.x_scale == "even" else [float(x) for x in curve.xs]
    compares = OURS in curve.series
    for number, (name, amounts) in enumerate(curve.series.items()):
        colour, mark = style_of(name) if compares else OPERATIONS[number % len(OPERATIONS)]
        ours, variant = name == OURS, compares and name not in STYLES
        axes.plot(
            places, [float("nan") if amount is None else amount for amount in amounts],
            color=colour, marker=mark, markersize=5.5 if ours else 4.5, linewidth=2.4 if ours else 1.5,
            linestyle="--" if variant else "-", markerfacecolor="white" if variant else colour, label=name,
            zorder=4 if ours else 3,
        )  # fmt: skip
    if curve.x_scale == "log":
        axes.set_xscale("log")
    axes.set_xticks(places, [x if isinstance(x, str) else size(x) for x in curve.xs])
    axes.xaxis.set_minor_locator(NullLocator())
    scale_amounts(axes, curve)
    axes.grid(True, color=FAINT, linewidth=0.6)


def scale_amounts(axes: Axes, curve: Curve) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda amount, _: short(amount)))
    if curve.y_scale == "linear":
        axes.set_ylim(bottom=0)
        return
    axes.set_yscale("log")
    found = [amount for amounts in curve.series.values() for amount in amounts if amount]
    span = max(found) / min(found)
    steps = (1, 1.5, 2, 3, 5, 7) if span < 10 else (1, 2, 5) if span < 1000 else (1,)
    axes.yaxis.set_major_locator(LogLocator(subs=steps))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda amount, _: short(amount)))


def draw_bars(axes: Axes, curve: Curve) -> None:
    """Draw the engines of each category beside each other, without room for those that are not there."""
    width = 0.23
    labelled = set()
    for i in range(len(curve.xs)):
        there = {name: amounts[i] for name, amounts in curve.series.items() if amounts[i] is not None}
        for j, (name, amount) in enumerate(there.items()):
            place = i + (j - (len(there) - 1) / 2) * width
            label = None if name in labelled else name
            labelled.add(name)
            axes.bar(place, amount, width * 0.92, color=style_of(name)[0], label=label)
            axes.annotate(
                f"{amount:.0f}",
                (place, amount),
                (0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=6.5,
            )
    axes.set_xticks(range(len(curve.xs)), [str(x) for x in curve.xs])
    scale_amounts(axes, curve)
    axes.grid(True, axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)


# --- comparisons ---------------------------------------------------------------------------------


def draw_comparison(groups: list[Group], path: Path) -> None:
    """Draw each group as bars, the best first."""
    rows = (len(groups) + 1) // 2
    figure = Figure(figsize=(10.5, 2.4 * rows), layout="constrained")
    panels = figure.subplots(rows, 2, squeeze=False).flatten()
    for axes, group in zip(panels, groups, strict=False):
        draw_group(axes, group)
    for axes in panels[len(groups) :]:
        axes.set_axis_off()
    save(figure, path)


def draw_group(axes: Axes, group: Group) -> None:
    less = group.row in LESS_IS_BETTER
    lines = sorted(group.lines, key=lambda line: line.amount, reverse=not less)
    places = range(len(lines))
    axes.barh(
        places, [line.amount for line in lines], 0.72, color=[style_of(line.engine)[0] for line in lines]
    )
    for place, line in zip(places, lines, strict=True):
        axes.annotate(
            f"{human(line.amount)} {line.unit}", (line.amount, place), (4, 0), textcoords="offset points",
            va="center", fontsize=8,
        )  # fmt: skip
    axes.set_yticks(places, [line.engine for line in lines])
    axes.invert_yaxis()
    axes.margins(x=0.28)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    better = "less is better" if less else "more is better"
    axes.set_title(fill(f"{group.title} ({better})", 46), loc="left", fontweight="bold", fontsize=9)


def save(figure: Figure, path: Path) -> None:
    """Write an SVG on a white card, which can be read on a dark page, too."""
    figure.patch.set(facecolor="white", edgecolor=FAINT, linewidth=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(SETTINGS):
        figure.savefig(path, format="svg", metadata={"Date": None})
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


# --- results -------------------------------------------------------------------------------------


def read(path: Path) -> tuple[list[Curve], list[Group]]:
    """Read the JSON that run.py wrote."""
    found: dict[str, Any] = json.loads(path.read_text())
    groups = [
        Group(group["row"], group["title"], [Line(**line) for line in group["lines"]], group["note"])
        for group in found["groups"]
    ]
    return [Curve(**curve) for curve in found["curves"]], groups


def compared(groups: list[Group]) -> list[Group]:
    """Choose the groups of the picture that compares engines."""
    chosen = []
    for row, number in COMPARED:
        there = [group for group in groups if group.row == row]
        chosen += there[number : number + 1]
    return chosen


def draw(results: Path, folder: Path) -> None:
    curves, groups = read(results)
    with matplotlib.rc_context(SETTINGS):
        for row, there in groupby(curves, lambda curve: curve.row):
            draw_curves(list(there), folder / f"{row}.svg")
        if chosen := compared(groups):
            draw_comparison(chosen, folder / "comparison.svg")


def print_markdown(results: Path) -> None:
    curves, groups = read(results)
    for group in groups:
        print_markdown_table(
            group.title, [list(COLUMNS), *map(list, map(Line.cells, group.lines))], group.note
        )
    for curve in curves:
        print_markdown_table(curve.heading(), curve.table(), curve.remarks())


def print_markdown_table(title: str, table: list[list[str]], note: str) -> None:
    used = [i for i, column in enumerate(zip(*table[1:], strict=True)) if any(column)]
    first, *rows = [[row[i] for i in used] for row in table]
    print(f"**{title}**\n")
    for row in (first, ["---"] + ["---:"] * (len(first) - 1), *rows):
        print(f"| {' | '.join(row)} |")
    print(f"\n{note}\n" if note else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--markdown", action="store_true", help="print tables and draw nothing")
    parser.add_argument("results", type=Path, help="what run.py --json wrote")
    parser.add_argument("folder", type=Path, nargs="?", help="where the pictures go")
    options = parser.parse_args()
    if options.markdown:
        print_markdown(options.results)
    elif options.folder:
        draw(options.results, options.folder)
    else:
        parser.error("say where the pictures go, or --markdown")


if __name__ == "__main__":
    main()
