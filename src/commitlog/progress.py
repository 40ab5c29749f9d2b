"""Steps: the progress of long work, reported every few megabytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int], None]  # bytes done, bytes in all as far as that is known

STEP_BYTES = 4 * 1024 * 1024


class Steps:
    """Counts the bytes done. Invariant: the reported number never falls, and never exceeds the total."""

    def __init__(self, progress: Progress | None, total_bytes: int = 0) -> None:
        self._progress = progress
        self._total = self._end = total_bytes
        self._done = self._told = 0
        if total_bytes:
            self._tell()

    @property
    def wanted(self) -> bool:
        """Whether anybody listens."""
        return self._progress is not None

    def expect(self, size_bytes: int) -> None:
        """Learn of more to be done."""
        self._total += size_bytes
        self._end = self._total
        self._tell()

    def add(self, size_bytes: int) -> None:
        """Count bytes as done."""
        self._done = min(self._done + size_bytes, self._end)
        if self._done - self._told >= STEP_BYTES:
            self._tell()

    @contextmanager
    def part(self, size_bytes: int) -> Iterator[None]:
        """Count this many bytes in all for the work inside, whatever is counted within."""
        self._end = end = min(self._done + size_bytes, self._total)
        yield
        self._end, self._done = self._total, end
        self._tell()

    def finish(self) -> None:
        """Tell that all is done."""
        if self._done < self._total:
            self._done = self._total
            self._tell()

    def _tell(self) -> None:
        self._told = self._done
        if self._progress is not None:
            self._progress(self._done, self._total)
