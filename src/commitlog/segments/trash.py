"""Removed segments: renamed out of sight at once, unlinked when file_delete_delay_ms is over."""

from __future__ import annotations

import threading

from commitlog import files
from commitlog.segments.segment import DELETED_SUFFIX, Segment, companions


class Trash:
    """The removed files of a partition. What is still here when the process ends, the next open removes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[float, str]] = []  # when to unlink which file

    def take(self, segment: Segment, due: float) -> None:
        """Rename a segment's files; the .log goes first, for indexes without it are known as leftovers."""
        for path in (segment.path, *companions(segment.path)):
            try:
                files.replace(path, path + DELETED_SUFFIX)
            except FileNotFoundError:
                continue
            # crash: indexes without their segment -> open() removes them
            with self._lock:
                self._waiting.append((due, path + DELETED_SUFFIX))

    def empty(self, now: float) -> None:
        """Unlink what is due."""
        with self._lock:
            due = [path for when, path in self._waiting if when <= now]
            self._waiting = [(when, path) for when, path in self._waiting if when > now]
        for path in due:
            files.remove(path)
