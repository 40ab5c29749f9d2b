"""OpenFiles: bounds the files that a log keeps open, and closes idle ones to make room."""

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

# Shares of the process's limits: 4 is a quarter.
_DESCRIPTORS_SHARE, _FILES_OF_PARTITION = 4, 4  # of partitions awake in a writer: page, .log, two indexes
_MAPS_SHARE, _MAPS_OF_PARTITION = 2, 4  # of the same: page, two indexes, the tail of the .log file
_PAGES_SHARE = 4  # maps of partitions awake in a reader, which need no descriptors: the page alone
_SEGMENTS_SHARE, _MAPS_OF_SEGMENT = 4, 3  # maps of segments being read, without descriptors, too
_LEAST_AWAKE = 8


class Restable(Protocol):
    """A partition that can close its files while it is idle, and opens them again when they are needed."""

    @property
    def uses(self) -> int:
        """A count that changes when the partition is used."""

    def rest(self) -> bool:
        """Close the files, without waiting; False if the partition is in use."""

    def lost(self, problem: CommitLogError) -> CommitLogError:
        """Handle the loss of a file that was closed by rest(); returns what to raise."""

    def mapped_again(self) -> None:
        """Check the state page, which has been mapped again after a rest; raise if it is another's."""


class OpenFiles:
    """Keeps the most recently used segments mapped and partitions open, and closes the others.

    The process's limits of descriptors and maps bound both, whatever the number of partitions.
    """

    def __init__(self, most_segments: int, *, writes: bool = True) -> None:
        maps = files.most_maps()
        self._most_segments = max(min(most_segments, maps // _SEGMENTS_SHARE // _MAPS_OF_SEGMENT), 1)
        most_awake = maps // _PAGES_SHARE
        if writes:
            descriptors = files.most_descriptors() // _DESCRIPTORS_SHARE
            most_awake = min(descriptors // _FILES_OF_PARTITION, maps // _MAPS_SHARE // _MAPS_OF_PARTITION)
        self._most_awake = max(most_awake, _LEAST_AWAKE)
        self._mapped: OrderedDict[Segment, None] = OrderedDict()
        # each partition with its uses when it was last checked
        self._awake: deque[tuple[weakref.ref[Restable], int]] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._mapped)

    # --- segments mapped for reading

    def use(self, segment: Segment) -> None:
        """Note that a segment is in use, and release the least recently used one if there are too many."""
        with self._lock:
            self._mapped[segment] = None
            self._mapped.move_to_end(segment)
            if len(self._mapped) > self._most_segments:
                self._mapped.popitem(last=False)[0].release()

    def forget(self, segment: Segment) -> None:
        """Release a segment that will not be used again."""
        with self._lock:
            self._mapped.pop(segment, None)
        segment.release()

    def forget_removed(self) -> None:
        """Release segments whose files were removed or replaced: a map keeps their blocks allocated."""
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
        """Note that a partition has opened its files, and let idle ones rest if there are too many.

        A partition that was used since the last check gets another chance, so an append need not report use.
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
        """In a forked child: replace the lock, which another thread may have held at the fork."""
        self._lock = threading.Lock()
