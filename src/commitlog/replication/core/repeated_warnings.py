"""RepeatedWarnings: what goes wrong again and again is logged when it begins or changes, and then seldom."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

_AGAIN_MS = 60_000


@dataclass(slots=True)
class _Complaint:
    reason: str
    logged_ms: int


class RepeatedWarnings:
    """What is wrong at the moment, by what it is wrong with. Threads may share it."""

    def __init__(self) -> None:
        self._about: dict[Hashable, _Complaint] = {}

    def is_news(self, about: Hashable, error: BaseException, now_ms: int) -> bool:
        """Note what is wrong; returns whether it is to be logged."""
        reason = f"{type(error).__name__}: {error}"
        known = self._about.get(about)
        if known is not None and known.reason == reason and now_ms - known.logged_ms < _AGAIN_MS:
            return False
        self._about[about] = _Complaint(reason, now_ms)
        return True

    def settled(self, about: Hashable) -> bool:
        """Note that nothing is wrong any more; returns whether something was."""
        return self._about.pop(about, None) is not None

    def reasons(self) -> dict[Hashable, str]:
        """Return what is wrong."""
        return {about: one.reason for about, one in list(self._about.items())}
