"""Steps: how far work that takes long has come, told every few megabytes to whoever wants to know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int], None]  # bytes done, bytes in all as far as that is known

STEP_BYTES = 4 * 1024 * 1024


class Steps:
    """Counts the bytes that are done. Invariant: what is told never falls, and is never more than all."""

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
        """Let so many bytes be done after this, however many are counted within."""
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
