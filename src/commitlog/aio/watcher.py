"""Watcher: one thread that waits for records on behalf of all coroutines of the process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from commitlog.bells import FIRST_PAUSE, LONGEST_PAUSE, Bell, Listener
from commitlog.errors import CommitLogError
from commitlog.futex import MOST_WORDS
from commitlog.partitions.reader import LogReader

Place = tuple[LogReader, int]  # a partition, and the offset that is waited for

_IDLE_SECONDS = 1.0  # how long a partition is watched after the last wait for it
_BELL_SECONDS = 0.1  # how long the thread sleeps at most: a writer may die before it rings its bell
_POLL_SECONDS = 0.005  # the same where there are no bells
_logger = logging.getLogger("commitlog.aio")


class _Ends(NamedTuple):
    """The offsets below which there is a record, or an error, to get: for readers of committed records, for
    those of all records, and for replicas.
    """

    stable: float
    readable: float
    stored: float


class _Wait:
    """A coroutine that waits until one of several partitions has a record for readers of a level."""

    __slots__ = ("committed", "future", "loop", "places", "until_truncated")

    def __init__(self, places: Iterable[Place], *, committed: bool, until_truncated: bool) -> None:
        self.places = dict(places)
        self.committed = committed
        self.until_truncated = until_truncated
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()

    def is_over(self, partition: LogReader, ends: _Ends) -> bool:
        """Say whether what it waits for in a partition, which ends there, has come."""
        offset = self.places[partition]
        if offset < (ends.stable if self.committed else ends.readable):
            return True
        # an offset above what can be read may lie in an open transaction
        return self.until_truncated and offset > ends.stored


class _Watched:
    """A partition, and the coroutines that wait for it."""

    __slots__ = ("bell", "is_told", "partition", "pruned", "waits")

    def __init__(self, partition: LogReader, event: Listener) -> None:
        self.partition = partition
        self.waits: set[_Wait] = set()
        self.pruned = time.monotonic()  # when those who wait no more were last removed
        self.bell: Bell | None = partition.bell()
        self.is_told = self.bell is None and partition.watch(event)

    def ready(self) -> list[_Wait]:
        """Return the waits that are over."""
        ends = _ends_of(self.partition)
        return [wait for wait in self.waits if wait.is_over(self.partition, ends)]


def _ends_of(partition: LogReader) -> _Ends:
    try:
        if not partition.has_ended:
            return _Ends(partition.last_stable_offset, partition.high_watermark, partition.next_offset)
    except Exception:  # whoever reads gets it
        pass
    return _Ends(math.inf, math.inf, math.inf)


class Watcher:
    """Lets any number of coroutines, of any number of event loops, wait for records.

    The thread starts with the first wait, sleeps until a writer wakes it, and ends some time after the last
    wait. A writer in this process sets its signal; one in another process rings a bell.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new: list[_Wait] = []
        self._event = Listener(_BELL_SECONDS)
        self._running = False
        self._watched: dict[LogReader, _Watched] = {}  # the thread's own, as the next
        self._taken: list[_Wait] = []

    async def wait(
        self, places: Iterable[Place], *, committed: bool = True, until_truncated: bool = True
    ) -> None:
        """Wait until one of the partitions has a record at its offset, or cannot be read any more, or ends
        before that offset because it was truncated. If `committed`, what is not decided is no record.
        """
        wait = _Wait(places, committed=committed, until_truncated=until_truncated)
        if any(one.is_at_hand and wait.is_over(one, _ends_of(one)) for one in wait.places):
            return
        with self._lock:
            if not self._running:
                threading.Thread(target=self._run, name="commitlog-watcher", daemon=True).start()
                self._running = True
            self._new.append(wait)
        self._event.set()
        await wait.future

    @property
    def waiting(self) -> int:
        """The number of coroutines that wait."""
        waits = {wait for one in list(self._watched.values()) for wait in list(one.waits)}
        return sum(not wait.future.done() for wait in waits.union(self._new, self._taken))

    @property
    def remembered(self) -> int:
        """The number of coroutines that it knows of; those that wait no more are forgotten in time."""
        return sum(len(one.waits) for one in list(self._watched.values())) + len(self._new)

    def forked(self) -> None:
        """In a forked child: forget the coroutines and the thread of the parent."""
        self.__init__()  # type: ignore[misc]

    def look_again(self) -> None:
        """Let the thread look at all partitions, because one may have been closed."""
        self._event.set()

    # --- in the thread

    def _run(self) -> None:
        try:
            self._watch()
        except BaseException as error:
            _logger.exception("the thread that waits for records failed")
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Tell every coroutine that waits; the next one starts another thread."""
        with self._lock:
            waits = {wait for one in self._watched.values() for wait in one.waits}
            waits.update(self._new, self._taken)
            for one in self._watched.values():
                if one.is_told:
                    one.partition.unwatch(self._event)
            self._watched, self._new, self._taken, self._running = {}, [], [], False
            self._event = Listener(_BELL_SECONDS)
        _wake(waits, CommitLogError(f"the thread that waits for records failed: {error!r}"))

    def _watch(self) -> None:
        pause, rung = FIRST_PAUSE, False
        while True:
            self._event.clear()
            if not self._take_new():
                return
            longest = self._listen()
            ready = {wait for one in self._watched.values() if one.waits for wait in one.ready()}
            if ready:
                for one in self._watched.values():
                    one.waits -= ready
                _wake(ready)
                pause = FIRST_PAUSE
            elif rung:  # for a partition that nobody waits for
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            rung = self._event.wait(longest) and not self._event.is_set()

    def _take_new(self) -> bool:
        """Note who waits now, and forget what nobody has waited for lately; False if the thread can end."""
        with self._lock:
            self._taken, self._new = self._new, []
            self._prune(time.monotonic())
            if not self._taken and not self._watched:
                self._event.ignore_bells()
                self._running = False
                return False
        for wait in self._taken:
            for partition in wait.places:
                if partition not in self._watched:
                    self._watched[partition] = _Watched(partition, self._event)
                self._watched[partition].waits.add(wait)
        self._taken = []
        return True

    def _prune(self, now: float) -> None:
        """Once a second, forget those who wait no more, and partitions that nobody waits for."""
        for partition, one in list(self._watched.items()):
            if now - one.pruned < _IDLE_SECONDS:
                continue
            one.pruned = now
            one.waits = {wait for wait in one.waits if not wait.future.done() and not wait.loop.is_closed()}
            if not one.waits:
                del self._watched[partition]
                if one.is_told:
                    partition.unwatch(self._event)

    def _listen(self) -> float:
        """Ask the writers to wake this thread; returns how long it may sleep."""
        waited_for = [one for one in self._watched.values() if one.waits]
        bells = {one.bell for one in waited_for if one.bell is not None}
        self._event.ignore_bells()
        for bell in list(bells)[: MOST_WORDS - 1]:
            self._event.hear(bell)
        if len(bells) >= MOST_WORDS or any(one.bell is None and not one.is_told for one in waited_for):
            return _POLL_SECONDS
        return _IDLE_SECONDS


def _wake(waits: Iterable[_Wait], error: CommitLogError | None = None) -> None:
    """Let coroutines go on, with one call for each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = defaultdict(list)
    for wait in waits:
        by_loop[wait.loop].append(wait.future)
    for loop, futures in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_finish, futures, error)


def _finish(futures: Iterable[asyncio.Future[None]], error: CommitLogError | None) -> None:
    for future in futures:
        if future.done():  # cancelled
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


watcher = Watcher()
os.register_at_fork(after_in_child=watcher.forked)
