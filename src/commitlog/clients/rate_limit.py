"""Meters: how fast a client id may go on, over all threads and processes of the machine.

This is the generic cell rate algorithm. A client id has an account, which holds the time at which all that it
has taken is paid for, at its rate. A client that takes bytes moves that time on, and waits for it to
come. Time that went unused is kept for a burst.

An account is a small file that all processes change under its lock; read and written, not mapped, so that a
full disk is an error and kills nobody. It is not durable: one that is lost, damaged or left from another boot
says that nothing is owed. A process that cannot write it (a read-only mount, a full disk) counts only what it
takes itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from xxhash import xxh64_intdigest

from commitlog import files
from commitlog.errors import CommitLogError
from commitlog.locks import boot_id
from commitlog.tasks import Signal

ACCOUNT_SUFFIX = ".account"
SECOND_NS = 1_000_000_000
BURST_NS = SECOND_NS  # how much unused time is kept: a window of Kafka's quotas
LONGEST_NS = 3600 * SECOND_NS  # no debt lasts longer, so that no wrong setting and no damage blocks for ever
LOOK_SECONDS = 0.5  # how often a rate is looked up, so that a change is noticed within a second

_logger = logging.getLogger("commitlog.quotas")
_RECORD = Struct("<4q")  # a mark of this boot, and the fields of a debt


class Debt(NamedTuple):
    """All that was taken is paid for at free_at + remainder / rate: nanoseconds of the machine's clock."""

    free_at: int
    rate: int
    remainder: int


def charged(debt: Debt | None, size_bytes: int, rate: int, now: int) -> Debt:
    """Return what is owed after taking `size_bytes` more; exact, so that no rounding adds up."""
    free_at, remainder = now - BURST_NS, 0
    if debt is not None and debt.free_at >= free_at:
        free_at, remainder = debt.free_at, debt.remainder
        if debt.rate != rate:
            remainder = 0
            if free_at > now:  # bytes are owed: at another rate they take another time
                free_at = now + (free_at - now) * debt.rate // rate
    added, remainder = divmod(size_bytes * SECOND_NS + remainder, rate)
    return Debt(min(free_at + added, now + LONGEST_NS), rate, remainder)


class Account:
    """What a client id owes: a debt in each slot. Threads and processes may share it, forked children not."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._mark = xxh64_intdigest(f"commitlog account 1 {boot_id()}".encode()) >> 1
        self._mutex = threading.Lock()
        self._file: files.Descriptor | None = None
        self._own: dict[int, Debt] = {}  # as we last saw them: what counts where there is no file

    def charge(self, slot: int, size_bytes: int, rate: int, clock: Callable[[], int]) -> int:
        """Add bytes to a debt; returns in how many nanoseconds all is paid for."""
        with self._mutex:
            try:
                debt, now = self._charge_file(self._opened(), slot, size_bytes, rate, clock)
            except OSError:
                self._close()
                now = clock()
                debt = charged(self._own.get(slot), size_bytes, rate, now)
            self._own[slot] = debt
        return max(debt.free_at - now, 0)

    def _charge_file(
        self, fd: int, slot: int, size_bytes: int, rate: int, clock: Callable[[], int]
    ) -> tuple[Debt, int]:
        unlock = files.unlocking(fd)
        try:
            files.wait_for_lock(fd)
            now = clock()  # with the lock: no debt was stored at a later time
            debt = charged(self._stored(fd, slot, now), size_bytes, rate, now)
            files.pwrite(fd, _RECORD.pack(self._mark, *debt), slot * _RECORD.size)
        finally:
            unlock()  # a C function: Ctrl-C cannot come before it
        return debt, now

    def _stored(self, fd: int, slot: int, now: int) -> Debt | None:
        """Return what the file says, None if that cannot be true."""
        raw = os.pread(fd, _RECORD.size, slot * _RECORD.size)
        if len(raw) < _RECORD.size:
            return None
        mark, free_at, rate, remainder = _RECORD.unpack(raw)
        if mark != self._mark or free_at > now + LONGEST_NS or not 0 <= remainder < rate:
            return None
        return Debt(free_at, rate, remainder)

    def _opened(self) -> int:
        """Return the file's descriptor; one that was removed is made again."""
        if self._file is None or os.fstat(self._file.fd).st_nlink == 0:
            self._close()
            self._file = files.Descriptor(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644))
            status = os.fstat(self._file.fd)
            if status.st_size == 0:
                _remove_idle(os.path.dirname(self._path), status.st_mtime_ns)
        return self._file.fd

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _remove_idle(folder: str, now: int) -> None:
    """Remove accounts that are older than any debt: client ids come and go."""
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for one in found:
            if one.name.endswith(ACCOUNT_SUFFIX) and one.stat().st_mtime_ns < now - LONGEST_NS:
                files.remove(one.path)


class RateLimit:
    """Counts what a client id takes in one direction, together with all its other meters on the machine."""

    def __init__(
        self,
        find_rate: Callable[[], int | None],
        find_account: Callable[[], Account],
        slot: int,
        clock: Callable[[], int],
    ) -> None:
        self.clock = clock
        self._find_rate, self._find_account, self._slot = find_rate, find_account, slot
        self._rate: int | None = None
        self._account: Account | None = None
        self._look_at = 0
        self._problem = ""

    def take(self, size_bytes: int) -> float:
        """Take bytes; returns the seconds to wait before going on, 0.0 without a quota.

        It never waits and never refuses: that the caller waits makes the rate hold. take(0) tells how long
        there is to wait now, for all that was taken under the client id.
        """
        rate = self._rate if self.is_limited else None
        if rate is None:
            return 0.0
        self._account = account = self._find_account()
        return account.charge(self._slot, size_bytes, rate, self.clock) / SECOND_NS

    @property
    def is_limited(self) -> bool:
        """Whether there is a quota: without one nobody need count."""
        now = self.clock()
        if now >= self._look_at:
            self._look(now)
        return self._rate is not None

    def _look(self, now: int) -> None:
        """Look the rate up. One that cannot be read stays as it was: a quota never stops anybody."""
        self._look_at = now + int(LOOK_SECONDS * SECOND_NS)
        problem = ""
        try:
            self._rate = self._find_rate()
        except (OSError, CommitLogError) as error:
            problem = str(error)
        if self._rate is None:
            self._account = None
        if problem and problem != self._problem:
            _logger.warning("a quota cannot be read, the last one counts: %s", problem)
        self._problem = problem


class Throttle:
    """Makes a client that takes bytes wait as its meter says, until it is stopped. Threads may share it."""

    def __init__(self, meter: RateLimit) -> None:
        self._meter = meter
        self._free_at = 0.0
        self._lock = threading.Lock()
        self._stopped = Signal()

    def take(self, size_bytes: int) -> None:
        """Take bytes, to be waited for later."""
        seconds = self._meter.take(size_bytes)
        if seconds > 0:
            with self._lock:
                self._free_at = max(self._free_at, self._now() + seconds)

    @property
    def is_limited(self) -> bool:
        """Whether there is a quota: without one nobody need count."""
        return self._meter.is_limited

    def wait(self) -> None:
        """Wait for what was taken so far."""
        free_at = self._free_at  # other threads wait for what they take
        while (seconds := self._left(free_at)) > 0:
            self._pause(seconds)

    def seconds_left(self) -> float:
        """Return how long to wait before asking again; 0.0 if all that was taken is paid for."""
        return self._left(self._free_at)

    def stop(self) -> None:
        """Let everybody go on, now and from now on."""
        self._stopped.set()

    def _left(self, free_at: float) -> float:
        seconds = free_at - self._now()
        if seconds <= 0 or self._stopped.is_set():
            return 0.0
        return min(seconds, self._meter.take(0), LOOK_SECONDS)  # the quota may be raised or removed meanwhile

    def _pause(self, seconds: float) -> None:
        self._stopped.wait(seconds)

    def _now(self) -> float:
        return self._meter.clock() / SECOND_NS
