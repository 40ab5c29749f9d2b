"""SyncQueue: one thread syncs for all that have appended before, while the others append and wait."""

from __future__ import annotations

import threading

_PATIENCE_SECONDS = 1.0  # Ctrl-C may lose a wake-up: a thread that has waited this long syncs by itself


class Turn:
    """A thread that needs a sync of everything below `offset`."""

    __slots__ = ("behind", "leads", "offset", "wake")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.leads = False  # whether it is to sync
        self.behind: list[Turn] | None = None  # durable, too: it wakes one of them when it goes on
        self.wake: threading.Lock | None = None  # released to wake it


class SyncQueue:
    """The threads that wait for a sync of a partition.

    A thread that comes while nobody leads takes the lead, and syncs. Those that come meanwhile wait. When the
    sync is done, the leader first wakes a thread that appended too late for it, which leads the next one,
    and then one of those whose records are durable now; that one wakes another, and so on. Measured: if
    eight are woken at once, they compete for the interpreter, and a commit costs a fifth more.

    The queue only saves syncs and switches between threads: `sync_lock` is what allows one sync at a time.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._led = False  # whether a thread leads, or was woken to lead
        self._waiting: list[Turn] = []

    def enter(self, turn: Turn) -> None:
        """Wait until another thread has synced, or take the lead: see turn.leads. leave() must follow."""
        with self._mutex:
            if not self._led:
                self._led = turn.leads = True
                return
            wake = turn.wake = threading.Lock()
            wake.acquire()
            self._waiting.append(turn)
        if not wake.acquire(timeout=_PATIENCE_SECONDS):
            turn.leads = True

    def leave(self, turn: Turn, durable_offset: int) -> None:
        """Wake the next leader and the first of those whose records are durable; also after an exception.

        If Ctrl-C interrupts it, call it again.
        """
        woken = []
        with self._mutex:
            if self._waiting:
                if turn in self._waiting:  # it lost patience, or was interrupted
                    self._waiting.remove(turn)
                if turn.leads:
                    woken = self._next(durable_offset)
            elif turn.leads:
                self._led = False
            behind = turn.behind
            if behind:
                if turn in behind:  # interrupted before it was woken
                    behind.remove(turn)
                woken += behind[-1:]
                del behind[-1:]
        for one in woken:
            assert one.wake is not None
            one.wake.release()

    def _next(self, durable_offset: int) -> list[Turn]:
        """Return whom a leader wakes."""
        durable = [one for one in self._waiting if one.offset <= durable_offset]
        others = [one for one in self._waiting if one.offset > durable_offset]
        durable.reverse()  # the last is woken first
        for one in durable:
            one.behind = durable
        self._led, self._waiting = bool(others), others[1:]
        woken = others[:1]
        for one in woken:
            one.leads = True
        if durable:
            woken.append(durable.pop())
        return woken
