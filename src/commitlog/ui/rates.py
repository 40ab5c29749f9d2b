"""Rates: records and bytes a second, by the difference between two looks."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import pairwise
from threading import Lock
from typing import Any, NamedTuple

_LEAST_SECONDS = 1.0  # between two looks that are kept
_STALE_SECONDS = 30.0  # after so long without a look, what was seen before says nothing about now
_LOOKS = 61
_NAMES = 4096


class Look(NamedTuple):
    """What was there at one moment, by a monotonic clock."""

    at: float
    next_offset: int
    size_bytes: int


class Rates:
    """The last looks at each topic and partition that somebody asked for; the rest costs nothing."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._looks: OrderedDict[str, deque[Look]] = OrderedDict()

    def look(self, name: str, next_offset: int, size_bytes: int) -> dict[str, Any]:
        """Take another look; returns the rates between the last ones, None where something was removed."""
        now = self._clock()
        with self._lock:
            looks = self._looks.setdefault(name, deque(maxlen=_LOOKS))
            self._looks.move_to_end(name)
            if len(self._looks) > _NAMES:
                self._looks.popitem(last=False)
            if looks and now - looks[-1].at > _STALE_SECONDS:
                looks.clear()
            if not looks or now - looks[-1].at >= _LEAST_SECONDS:
                looks.append(Look(now, next_offset, size_bytes))
            kept = list(looks)
        return {
            "records": [
                _rate(one, other, other.next_offset - one.next_offset) for one, other in pairwise(kept)
            ],
            "bytes": [_rate(one, other, other.size_bytes - one.size_bytes) for one, other in pairwise(kept)],
        }


def _rate(before: Look, after: Look, growth: int) -> float | None:
    """Return what came a second; None if the log shrank: what was appended meanwhile is not known."""
    return None if growth < 0 else round(growth / (after.at - before.at), 1)
