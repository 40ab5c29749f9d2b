"""Compare two versions of commitlog in processor time: the same work with each, in children that take turns.

`git worktree add /tmp/before 820a8cc`, then `python benchmarks/two_versions.py /tmp/before .`: the ratio is
the time of the second divided by that of the first, of the best turns; above 1 the second is slower. The
median of the ratios of neighbouring turns stands beside it. Differences below 2 % are noise on most machines.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

CHILD = Path(__file__).with_name("speedups.py")


def rates(tree: Path, records: int) -> dict[str, float]:
    """Return the records per second of processor time that a version reaches, by kind of work."""
    with tempfile.TemporaryDirectory(prefix="commitlog-bench-") as folder:
        done = subprocess.run(
            [sys.executable, str(CHILD), str(records), str(Path(folder) / "log")],
            env={**os.environ, "PYTHONPATH": str(tree / "src")},
            check=True,
            stdout=subprocess.PIPE,
        )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("trees", metavar="TREE", type=Path, nargs=2, help="a checkout, with src/ in it")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--records", type=int, default=300_000)
    options = parser.parse_args()
    before, after = (tree.resolve() for tree in options.trees)
    turns: dict[Path, list[dict[str, float]]] = {before: [], after: []}
    for number in range(options.rounds):
        for tree in (before, after) if number % 2 else (after, before):
            turns[tree].append(rates(tree, options.records))
    print(f"{'':40}{'before, best':>14}{'after, best':>14}{'ratio':>8}{'median':>8}")
    for work in turns[before][0]:
        first, second = ([one[work] for one in turns[tree]] for tree in (before, after))
        pairs = [one / other for one, other in zip(first, second, strict=True)]
        print(
            f"{work:40}{max(first):14,.0f}{max(second):14,.0f}"
            f"{max(first) / max(second):8.3f}{statistics.median(pairs):8.3f}"
        )


if __name__ == "__main__":
    main()
