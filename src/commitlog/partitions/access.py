"""Access: how the threads of one process take turns at a partition. sharing.py does it for processes."""

from __future__ import annotations

import threading
from typing import TypeAlias

from commitlog.locks import ProcessLock
from commitlog.partitions.sync_queue import SyncQueue

Lock: TypeAlias = "threading.Lock | ProcessLock"


class Access:
    """The locks of a partition, taken in this order: `compaction_lock` allows one pass, `sync_lock` one sync
    at a time, `lock` guards appends and the set of segments.

    This process has the partition alone; SharedAccess has more to do where others write, too.
    """

    alone = True  # whether no other process writes the partition
    lock: Lock
    sync_lock: Lock
    compaction_lock: Lock
    sync_queue: SyncQueue  # the threads of this process that wait for a sync

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """In a forked child: replace the locks, which a thread of the parent may have held."""
        self.lock, self.sync_lock, self.compaction_lock = (threading.Lock() for _ in range(3))
        self.sync_queue = SyncQueue()

    def learn(self) -> None:
        """Learn what other processes did since this one last held a lock."""

    def failed(self) -> None:
        """Note that this process changes nothing any more."""

    def half_changed(self) -> None:
        """Note that segments may be half replaced and that this process will not repair them."""

    def leave(self) -> None:
        """Note that this process no longer has the partition open."""
