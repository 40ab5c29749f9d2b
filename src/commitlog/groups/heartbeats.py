"""Heartbeats of a group's members, in a mapped file: a heartbeat is one store and takes no lock.

Times are those of the monotonic clock, which all processes of a machine share until it reboots.
"""

from __future__ import annotations

import mmap
from typing import Self

from commitlog import files

SLOTS = 1023  # the maximum number of members in a group
_WORDS = 8  # in each slot, and in the header before the first one
_SIZE_BYTES = (SLOTS + 1) * _WORDS * 8
_CHANGES = 0  # the word that counts changes of the group
_TOKEN, _BEAT = 0, 1
_MOST = (1 << 63) - 1


class Heartbeats:
    """A slot for each member, with the member's token and the time of its last heartbeat."""

    def __init__(self, view: mmap.mmap) -> None:
        self._words = memoryview(view)[:_SIZE_BYTES].cast("q")  # the file may be longer than ours

    @classmethod
    def open(cls, path: str) -> Self:
        """Open the file, or create it."""
        return cls(files.map_writable(path, _SIZE_BYTES))

    # --- changes of the group

    @property
    def changes(self) -> int:
        """A count that moves whenever the group's file is replaced."""
        return self._words[_CHANGES]

    def count_change(self) -> None:
        """Make all members look at the group's file; with the group's lock held."""
        self._words[_CHANGES] = (self._words[_CHANGES] + 1) & _MOST  # any value may be there

    # --- slots

    def occupy(self, slot: int, token: int, now_ns: int) -> None:
        """Take a slot; with the group's lock held."""
        place = (slot + 1) * _WORDS
        self._words[place + _BEAT] = now_ns
        self._words[place + _TOKEN] = token

    def beat(self, slot: int, token: int, now_ns: int) -> bool:
        """Record a heartbeat; False if the slot no longer belongs to the member."""
        place = (slot + 1) * _WORDS
        if self._words[place + _TOKEN] != token:
            return False
        # the slot may change hands here: then this counts as a heartbeat of its new member
        self._words[place + _BEAT] = now_ns
        return True

    def last_beat(self, slot: int) -> int:
        """Return the time of a member's last heartbeat, in nanoseconds."""
        return self._words[(slot + 1) * _WORDS + _BEAT]

    def vacate(self, slot: int) -> None:
        """Free a slot; with the group's lock held."""
        self._words[(slot + 1) * _WORDS + _TOKEN] = 0
