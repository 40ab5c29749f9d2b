"""Steps: reports the progress of long work every few megabytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int], None]  # bytes done, total bytes known so far

STEP_BYTES = 4 * 1024 * 1024


class Steps:
    """Counts the bytes done. Invariant: the reported number never falls, and never exceeds the total."""

    def __init__(self, progress: Progress | None, total_bytes: int = 0) -> None:
        self._progress = progress
        self._total = self._end = total_bytes
        self._done = self._reported = 0
        if total_bytes:
            self._report()

    def expect(self, size_bytes: int) -> None:
        """Add to the total."""
        self._total += size_bytes
        self._end = self._total
        self._report()

    def add(self, size_bytes: int) -> None:
        """Count bytes as done."""
        self._done = min(self._done + size_bytes, self._end)
        if self._done - self._reported >= STEP_BYTES:
            self._report()

    @contextmanager
    def part(self, size_bytes: int) -> Iterator[None]:
        """Count exactly this many bytes for the work inside, whatever it adds."""
        self._end = end = min(self._done + size_bytes, self._total)
        yield
        self._end, self._done = self._total, end
        self._report()

    def finish(self) -> None:
        """Report that everything is done."""
        if self._done < self._total:
            self._done = self._total
            self._report()

    def _report(self) -> None:
        self._reported = self._done
        if self._progress is not None:
            self._progress(self._done, self._total)
