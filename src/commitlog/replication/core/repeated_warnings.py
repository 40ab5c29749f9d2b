"""RepeatedWarnings: logs a lasting problem when it begins or changes, and then once a minute."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

_AGAIN_MS = 60_000


@dataclass(slots=True)
class _Complaint:
    reason: str
    logged_ms: int


class RepeatedWarnings:
    """The current problems, by what they concern. Threads may share it."""

    def __init__(self) -> None:
        self._about: dict[Hashable, _Complaint] = {}

    def is_news(self, about: Hashable, error: BaseException, now_ms: int) -> bool:
        """Note a problem; return whether to log it."""
        reason = f"{type(error).__name__}: {error}"
        known = self._about.get(about)
        if known is not None and known.reason == reason and now_ms - known.logged_ms < _AGAIN_MS:
            return False
        self._about[about] = _Complaint(reason, now_ms)
        return True

    def settled(self, about: Hashable) -> bool:
        """Note that a problem is over; return whether there was one."""
        return self._about.pop(about, None) is not None

    def reasons(self) -> dict[Hashable, str]:
        """Return the current problems."""
        return {about: one.reason for about, one in list(self._about.items())}
