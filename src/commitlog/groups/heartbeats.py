"""Heartbeats of a group's members, in a mapped file: to tell that one lives takes a store, no lock.

The times are of the monotonic clock, which all processes of a machine share until it boots again.
"""

from __future__ import annotations

import mmap
from typing import Self

from commitlog import files

SLOTS = 1023  # the most members of a group
_WORDS = 8  # of a slot, and of what stands before the first
_SIZE_BYTES = (SLOTS + 1) * _WORDS * 8
_CHANGES = 0  # the word that counts the changes of the group
_TOKEN, _BEAT = 0, 1
_MOST = (1 << 63) - 1


class Heartbeats:
    """A slot for each member: a token, by which it knows it as its own, and when it was last heard of."""

    def __init__(self, view: mmap.mmap) -> None:
        self._words = memoryview(view)[:_SIZE_BYTES].cast("q")  # somebody may have made the file longer

    @classmethod
    def open(cls, path: str) -> Self:
        """Open the file, creating it if need be."""
        return cls(files.map_writable(path, _SIZE_BYTES))

    # --- changes of the group

    @property
    def changes(self) -> int:
        """A count that moves whenever the group's file is replaced."""
        return self._words[_CHANGES]

    def count_change(self) -> None:
        """Tell all members to look at the group's file; with the group's lock held."""
        self._words[_CHANGES] = (self._words[_CHANGES] + 1) & _MOST  # whatever stands there

    # --- slots

    def occupy(self, slot: int, token: int, now_ns: int) -> None:
        """Take a slot; with the group's lock held."""
        place = (slot + 1) * _WORDS
        self._words[place + _BEAT] = now_ns
        self._words[place + _TOKEN] = token

    def beat(self, slot: int, token: int, now_ns: int) -> bool:
        """Tell that the member lives; False if the slot is not its own any more."""
        place = (slot + 1) * _WORDS
        if self._words[place + _TOKEN] != token:
            return False
        # between these two lines the slot may change hands: then the new member's beat is this one's
        self._words[place + _BEAT] = now_ns
        return True

    def last_beat(self, slot: int) -> int:
        """Return when a member was last heard of."""
        return self._words[(slot + 1) * _WORDS + _BEAT]

    def vacate(self, slot: int) -> None:
        """Take a slot from the member that has it; with the group's lock held."""
        self._words[(slot + 1) * _WORDS + _TOKEN] = 0
