"""Access: how the threads of one process, or several processes, take turns at a partition."""

from __future__ import annotations

import threading
from typing import Protocol, TypeAlias

from commitlog.locks import ProcessLock

Lock: TypeAlias = "threading.Lock | ProcessLock"


class Access(Protocol):
    """The locks of a partition. `lock` guards appends and the set of segments, `sync_lock` allows one sync at
    a time and is taken first, `compaction_lock` allows one pass and is taken before both.
    """

    alone: bool  # whether no other process writes the partition
    lock: Lock
    sync_lock: Lock
    compaction_lock: Lock

    def renew(self) -> None:
        """In a forked child: make other locks, for a thread of the parent may have held these."""

    def learn(self) -> None:
        """Take note of what other processes did since this one last held a lock."""

    def failed(self) -> None:
        """Take note that this process changes nothing any more."""

    def half_changed(self) -> None:
        """Take note that segments may be half replaced, and that this process will not put them right."""

    def leave(self) -> None:
        """Have the partition open no more."""


class ExclusiveAccess:
    """One process has the partition alone: its threads take turns."""

    alone = True
    lock: Lock
    sync_lock: Lock
    compaction_lock: Lock

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """In a forked child: make other locks, for a thread of the parent may have held these."""
        self.lock, self.sync_lock, self.compaction_lock = (threading.Lock() for _ in range(3))

    def learn(self) -> None:
        """There is nobody to learn of."""

    def failed(self) -> None:
        """There is nobody to leave a mark for."""

    def half_changed(self) -> None:
        """The next open recovers the partition."""

    def leave(self) -> None:
        """There is nobody to leave."""
