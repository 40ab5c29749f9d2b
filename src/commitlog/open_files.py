"""OpenFiles: how many files a log keeps open at once, and what it lets go to make room for others."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Protocol

from commitlog import files
from commitlog.errors import CommitLogError

if TYPE_CHECKING:
    from commitlog.segment import Segment

_SHARE = 4  # a log takes this part of the process's descriptors for its partitions, and as many for reading
_OF_PARTITION, _OF_SEGMENT = 4, 3  # descriptors: page, .log, two indexes; .log, two indexes
_LEAST_AWAKE = 8


class Restable(Protocol):
    """A partition that can let its files go while it is idle, and opens them again when they are needed."""

    @property
    def uses(self) -> int:
        """A count that moves when it is used."""

    def rest(self) -> bool:
        """Let the files go; False if it is in use just now. Never waits. A closed one has none to let go."""

    def lost(self, problem: CommitLogError) -> CommitLogError:
        """Take note that a file is not there any more that was let go; returns what to raise."""

    def mapped_again(self) -> None:
        """Take note that the state page is mapped again, after a rest; raise if it is another's."""


class OpenFiles:
    """Keeps open what was used last, and lets the rest go: segments mapped for reading, and idle partitions.

    Both are bounded by the descriptors that the process may have, whatever the number of partitions.
    """

    def __init__(self, most_segments: int) -> None:
        descriptors = files.most_descriptors() // _SHARE
        self._most_segments = max(min(most_segments, descriptors // _OF_SEGMENT), 1)
        self._most_awake = max(descriptors // _OF_PARTITION, _LEAST_AWAKE)
        self._mapped: OrderedDict[Segment, None] = OrderedDict()
        # each with its uses when it was last looked at
        self._awake: deque[tuple[weakref.ref[Restable], int]] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._mapped)

    # --- segments mapped for reading

    def use(self, segment: Segment) -> None:
        """Note that a segment is in use, and let the least recently used one go if there are too many."""
        with self._lock:
            self._mapped[segment] = None
            self._mapped.move_to_end(segment)
            if len(self._mapped) > self._most_segments:
                self._mapped.popitem(last=False)[0].release()

    def forget(self, segment: Segment) -> None:
        """Let a segment go that will not be used again."""
        with self._lock:
            self._mapped.pop(segment, None)
        segment.release()

    def forget_removed(self) -> None:
        """Let segments go whose files were removed or replaced: a map keeps their blocks on the disk."""
        with self._lock:
            used = list(self._mapped)
        for segment in used:
            try:
                there = segment.inode in (None, os.stat(segment.path).st_ino)
            except FileNotFoundError:
                there = False
            if not there:
                self.forget(segment)

    # --- partitions that are awake

    def woke(self, partition: Restable) -> None:
        """Note that a partition has its files open, and let idle ones rest if there are too many.

        One that was used since it was looked at gets another chance; so an append need not note anything.
        """
        with self._lock:
            self._awake.append((weakref.ref(partition), partition.uses))
            excess = len(self._awake) - self._most_awake
        for _ in range(2 * len(self._awake)):
            if excess <= 0:
                return
            with self._lock:
                if not self._awake:
                    return
                found, uses = self._awake.popleft()
            one, rests = found(), False
            try:
                rests = one is None or (one is not partition and one.uses == uses and one.rest())
            finally:  # Ctrl-C, too
                if rests or one is None:
                    excess -= 1
                else:
                    with self._lock:
                        self._awake.append((found, one.uses))

    @property
    def room(self) -> int:
        """How many more partitions may have their files open at once."""
        return max(self._most_awake - len(self._awake), 0)

    def renew_lock(self) -> None:
        """In a forked child: another thread may have held the lock when the parent forked."""
        self._lock = threading.Lock()
