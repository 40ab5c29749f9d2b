"""HandleCache: how many segments are mapped at once."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commitlog.segment import Segment


class HandleCache:
    """Keeps the maps of the segments used last and lets the others go, so that handles stay bounded."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used: OrderedDict[Segment, None] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._used)

    def use(self, segment: Segment) -> None:
        """Note that a segment is in use, and let the least recently used one go if there are too many."""
        with self._lock:
            self._used[segment] = None
            self._used.move_to_end(segment)
            if len(self._used) > self._limit:
                self._used.popitem(last=False)[0].release()

    def forget(self, segment: Segment) -> None:
        """Let a segment go that will not be used again."""
        with self._lock:
            self._used.pop(segment, None)
        segment.release()

    def forget_removed(self) -> None:
        """Let segments go whose files were removed or replaced: a map keeps their blocks on the disk."""
        with self._lock:
            used = list(self._used)
        for segment in used:
            try:
                there = segment.inode in (None, os.stat(segment.path).st_ino)
            except FileNotFoundError:
                there = False
            if not there:
                self.forget(segment)

    def renew_lock(self) -> None:
        """In a forked child: another thread may have held the lock when the parent forked."""
        self._lock = threading.Lock()
