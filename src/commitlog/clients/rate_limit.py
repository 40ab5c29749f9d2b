"""Rate limits per client id, across all threads and processes of the machine.

This is the generic cell rate algorithm. The account of a client id holds the time at which everything it has
taken is paid for, at its rate. A client that takes bytes moves that time forward and waits for it. Unused
time is kept for a burst.

An account is a small file that all processes change under its lock. It is read and written, not mapped, so
that a full disk is an error and not a SIGBUS. It is not durable: if it is lost, damaged or left from an
earlier boot, nothing is owed. A process that cannot write it (a read-only mount, a full disk) counts only
what it takes itself.
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
BURST_NS = SECOND_NS  # how much unused time is kept: one window of Kafka's quotas
LONGEST_NS = 3600 * SECOND_NS  # the longest debt, so that no wrong setting or damage blocks forever
LOOK_SECONDS = 0.5  # how often a rate is looked up: a change is noticed within a second

_logger = logging.getLogger("commitlog.quotas")
_RECORD = Struct("<4q")  # a mark that identifies this boot, and the fields of a debt


class Debt(NamedTuple):
    """Everything taken is paid for at free_at + remainder / rate, in nanoseconds of the machine's clock."""

    free_at: int
    rate: int
    remainder: int


def charged(debt: Debt | None, size_bytes: int, rate: int, now: int) -> Debt:
    """Return the debt after taking `size_bytes` more; exact, so that rounding errors do not add up."""
    free_at, remainder = now - BURST_NS, 0
    if debt is not None and debt.free_at >= free_at:
        free_at, remainder = debt.free_at, debt.remainder
        if debt.rate != rate:
            remainder = 0
            if free_at > now:  # the bytes owed take another time at another rate
                free_at = now + (free_at - now) * debt.rate // rate
    added, remainder = divmod(size_bytes * SECOND_NS + remainder, rate)
    return Debt(min(free_at + added, now + LONGEST_NS), rate, remainder)


class Account:
    """The debts of a client id, one in each slot. Threads and processes may share it, forked children not."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._mark = xxh64_intdigest(f"commitlog account 1 {boot_id()}".encode()) >> 1
        self._mutex = threading.Lock()
        self._file: files.Descriptor | None = None
        self._own: dict[int, Debt] = {}  # as last seen: used if the file cannot be

    def charge(self, slot: int, size_bytes: int, rate: int, clock: Callable[[], int]) -> int:
        """Add bytes to a debt; returns the nanoseconds until everything is paid for."""
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
            now = clock()  # under the lock, so that no debt was stored later than this
            debt = charged(self._stored(fd, slot, now), size_bytes, rate, now)
            files.pwrite(fd, _RECORD.pack(self._mark, *debt), slot * _RECORD.size)
        finally:
            unlock()  # a C function, so that Ctrl-C cannot interrupt before it
        return debt, now

    def _stored(self, fd: int, slot: int, now: int) -> Debt | None:
        """Return the debt in the file, or None if it cannot be right."""
        raw = os.pread(fd, _RECORD.size, slot * _RECORD.size)
        if len(raw) < _RECORD.size:
            return None
        mark, free_at, rate, remainder = _RECORD.unpack(raw)
        if mark != self._mark or free_at > now + LONGEST_NS or not 0 <= remainder < rate:
            return None
        return Debt(free_at, rate, remainder)

    def _opened(self) -> int:
        """Return the file's descriptor; a file that was removed is created again."""
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
    """Remove accounts older than any debt, because client ids come and go."""
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for one in found:
            if one.name.endswith(ACCOUNT_SUFFIX) and one.stat().st_mtime_ns < now - LONGEST_NS:
                files.remove(one.path)


class RateLimit:
    """Counts what a client id takes in one direction, together with all its other clients on the machine."""

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
        """Take bytes; returns the seconds to wait before continuing, 0.0 without a quota.

        This never waits and never refuses: the caller has to wait. take(0) returns the current wait for
        everything taken under the client id.
        """
        rate = self._rate if self.is_limited else None
        if rate is None:
            return 0.0
        self._account = account = self._find_account()
        return account.charge(self._slot, size_bytes, rate, self.clock) / SECOND_NS

    @property
    def is_limited(self) -> bool:
        """Whether there is a quota; without one the caller need not count."""
        now = self.clock()
        if now >= self._look_at:
            self._look(now)
        return self._rate is not None

    def _look(self, now: int) -> None:
        """Look the rate up. If it cannot be read, the last one applies: a quota never stops a client."""
        self._look_at = now + int(LOOK_SECONDS * SECOND_NS)
        problem = ""
        try:
            self._rate = self._find_rate()
        except (OSError, CommitLogError) as error:
            problem = str(error)
        if self._rate is None:
            self._account = None
        if problem and problem != self._problem:
            _logger.warning("a quota cannot be read, so the last one still applies: %s", problem)
        self._problem = problem


class Throttle:
    """Makes a client wait as its rate limit demands, until it is stopped. Threads may share it."""

    def __init__(self, meter: RateLimit) -> None:
        self._meter = meter
        self._free_at = 0.0
        self._lock = threading.Lock()
        self._stopped = Signal()

    def take(self, size_bytes: int) -> None:
        """Take bytes; wait() waits for them later."""
        seconds = self._meter.take(size_bytes)
        if seconds > 0:
            with self._lock:
                self._free_at = max(self._free_at, self._now() + seconds)

    @property
    def is_limited(self) -> bool:
        """Whether there is a quota; without one the caller need not count."""
        return self._meter.is_limited

    def wait(self) -> None:
        """Wait for everything taken so far."""
        free_at = self._free_at  # what other threads take from now on, they wait for
        while (seconds := self._left(free_at)) > 0:
            self._pause(seconds)

    def seconds_left(self) -> float:
        """Return how long to wait before asking again; 0.0 if everything taken is paid for."""
        return self._left(self._free_at)

    def stop(self) -> None:
        """End all waits, now and in the future."""
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
