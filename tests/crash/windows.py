"""Crash windows: the places in the engine marked `# crash:`, and what the files look like there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import commitlog

_SOURCE = Path(commitlog.__file__).parent


@contextmanager
def crashed_at(window: str, live: Path, to: Path, hit: int = 1) -> Iterator[None]:
    """Copy `live` when execution comes to a crash window for the `hit`-th time: what a kill there leaves.

    `window` is the comment's text. The engine goes on undisturbed, so no cleanup of its own spoils the copy.
    """
    from helpers import copy_linked  # children, who have no need of it, do not find it

    with calling_at(window, lambda: copy_linked(live, to), hit):
        yield


@contextmanager
def calling_at(window: str, act: Callable[[], object], hit: int = 1) -> Iterator[None]:
    """Call `act` when execution comes to a crash window for the `hit`-th time."""
    path, line = _find(window)
    hits = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal hits
        if frame.f_code.co_filename != str(path):
            return None
        if event == "line" and frame.f_lineno == line:
            hits += 1
            if hits == hit:
                act()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
    assert hits >= hit, f"{path.name} came to line {line} {hits} times"


def _find(window: str) -> tuple[Path, int]:
    """Return the file of a crash comment, and the line of the first statement after it."""
    found = [
        (path, number)
        for path in _SOURCE.rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if line.strip() == f"# crash: {window}"
    ]
    assert len(found) == 1, f"{len(found)} comments say {window!r}"
    path, number = found[0]
    code = compile(path.read_text(), str(path), "exec")
    return path, min(line for line in _lines(code) if line > number)


def _lines(code: CodeType) -> Iterator[int]:
    yield from (line for _, _, line in code.co_lines() if line is not None)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _lines(constant)
