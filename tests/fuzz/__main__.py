"""Feed every target with inputs: `python -m fuzz --inputs 1000000 --jobs 2`."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from fuzz.harness import Input, judge, keep_faults, table
from fuzz.targets import TARGETS, open_target, run_target


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="for each target (1,000,000)")
    parser.add_argument(
        "--target", action="append", choices=sorted(TARGETS), help="only this one; may be repeated"
    )
    parser.add_argument("--seed", type=int, default=0, help="other seeds make other inputs (0)")
    parser.add_argument(
        "--jobs", type=int, default=1, help="targets at a time, each in a process of its own (1)"
    )
    parser.add_argument(
        "--faults", type=Path, default=Path("fuzz-faults"), help="where inputs go that showed a fault"
    )
    parser.add_argument("--input", type=Path, help="feed only this file, to the one target that is named")
    options = parser.parse_args()
    names = options.target or list(TARGETS)
    if options.input is not None:
        return _one(names[0], options.input)
    with ProcessPoolExecutor(options.jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        running = [pool.submit(run_target, name, options.inputs, options.seed) for name in names]
        reports = []
        for one in running:
            reports.append(one.result())
            keep_faults(reports[-1], options.faults)  # now: the run may be ended before the last target
            print(table(reports[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(reports))
    return 1 if any(report.faults for report in reports) else 0


def _one(name: str, path: Path) -> int:
    with open_target(name) as target:
        word, fault = judge(target, Input.from_bytes(path.read_bytes()))
    print(word if fault is None else f"{fault.kind}\n{fault.detail}")
    return 0 if fault is None else 1


if __name__ == "__main__":
    sys.exit(main())
