"""Locks between processes: the lock of a log, which names its writer, and plain locks."""

from __future__ import annotations

import io
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from commitlog import files
from commitlog.errors import LogLockedError

NAME, MUTEX_NAME = ".lock", ".catalog-lock"
_PATIENCE_SECONDS = 0.2  # readers hold the lock for a moment to see whether there is a writer


class LogLock:
    """A lock on a log's directory; it is released when the process ends, however it ends."""

    _fd: int | None = None

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def take(cls, directory: str, *, shared: bool = False) -> Self:
        """Take the lock; LogLockedError names the owner if another process, or this one, holds it.

        A `shared` lock conflicts only with an exclusive one.
        """
        path = os.path.join(directory, NAME)
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        lock, unlock = cls(fd), files.unlocking(fd)
        try:
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while not files.try_lock(fd, shared=shared):
                if time.monotonic() > deadline:
                    raise _refusal(directory, fd, shared)
                time.sleep(0.002)
            if not shared:
                lock._announce(ready=False)
        except BaseException:
            unlock()  # `lock` lives as long as the exception
            lock.forget()
            raise
        return lock

    def __del__(self) -> None:
        self.forget()

    def ready(self, *, shared: bool = False) -> None:
        """Tell readers that recovery is complete and state pages are valid."""
        if shared:
            assert self._fd is not None
            files.show_shared(self._fd)
        else:
            self._announce(ready=True)

    def _announce(self, *, ready: bool) -> None:
        assert self._fd is not None
        about = {"pid": os.getpid(), "host": os.uname().nodename, "boot": boot_id(), "ready": ready}
        text = json.dumps(about).encode()
        files.cut(self._fd, 0)
        files.write_at(self._fd, [text], len(text), 0)

    def release(self) -> None:
        """Release the lock; if this is interrupted, call it again."""
        if self._fd is not None:
            files.unlock(self._fd)
            self.forget()

    def forget(self) -> None:
        """Close the file; in a forked child this leaves the parent's lock alone."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


class HeldElsewhereError(Exception):
    """Another process holds a lock that was asked for without waiting."""


class ProcessLock(io.IOBase):
    """A lock between processes and between the threads of each, used as `with lock:`. It is not reentrant.

    `taken` is called once the lock is held; if it returns True, the C functions `leaving` are called before
    the lock is released. With wait=False, HeldElsewhereError if another process holds it.

    No interruption leaves it held. Python runs signal handlers only when a Python function starts, when a
    loop jumps back and when a call returns; never inside a C function or between other instructions. So:

    - To take the mutex, a `for` asks a C iterator for the next item, and the `try` follows at once: whatever
      is raised from there on reaches the handler, which first calls `close`; on success `with` takes over
      without another call.
    - To release everything, `with` calls `__exit__`. IOBase's is a C function that only calls `close`, which
      here is a C function that calls others in turn. A Python __exit__ could be interrupted before its first
      line.
    """

    closed = True  # otherwise the finalizer of IOBase would call close()
    close: Callable[[], None]

    def __init__(
        self,
        path: str,
        taken: Callable[[], bool] = lambda: False,
        leaving: Sequence[Callable[[], object]] = (),
        *,
        wait: bool = True,
    ) -> None:
        self._file = files.Descriptor(os.open(path, os.O_RDWR | os.O_CREAT, 0o644))
        self._taken, self._wait = taken, wait
        mutex = threading.Lock()
        self.locked = mutex.locked
        self._acquiring = iter(mutex.acquire, None)  # each item is a call, which never returns None
        unlock = files.unlocking(self._file.fd)
        self.close = self._leave = _in_turn(unlock, mutex.release)
        self._leave_all = _in_turn(*leaving, unlock, mutex.release)

    def __enter__(self) -> None:  # type: ignore[override]
        for _ in self._acquiring:
            try:
                self.close = self._leave
                if self._wait:
                    files.wait_for_lock(self._file.fd)
                elif not files.try_lock(self._file.fd):
                    raise HeldElsewhereError
                if self._taken():
                    self.close = self._leave_all
                return
            except BaseException:
                self.close()
                raise

    def skip_leaving(self) -> None:
        """Do not call `leaving` at the next release."""
        self.close = self._leave


def _in_turn(*functions: Callable[[], object]) -> Callable[[], Any]:
    """Return a C function that calls these C functions in turn and returns a false value.

    It asks a `map` for its next item; the map asks each of its iterators, whose items are the calls.
    """
    return map("".format, *(iter(function, _in_turn) for function in functions)).__next__


def _refusal(directory: str, fd: int, shared: bool) -> LogLockedError:
    """Return the error for a lock that is held elsewhere; it names the owner and a remedy."""
    if not shared and files.try_lock(fd, shared=True):
        files.unlock(fd)
        found = [str(pid) for pid in files.lockers(fd)]
        owner = f"process{'es' if len(found) > 1 else ''} {', '.join(found)}" if found else "other processes"
        remedy = 'open it with mode="shared" here, too, or with mode="r" to read it'
        return LogLockedError(directory, f"{owner} with mode='shared'", remedy)
    owner = _describe(os.pread(fd, 1000, 0).decode(errors="replace"))
    where = "there" if shared else "in every process"
    remedy = f'close it there, or open it with mode="shared" {where}; mode="r" reads it meanwhile'
    return LogLockedError(directory, owner, remedy)


def _describe(owner: str) -> str:
    try:
        about = json.loads(owner)
        return f"process {about['pid']} on {about['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"


def boot_id() -> str:
    """Return the id of the machine's current boot."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return "unknown"


def writer_is_ready(directory: str) -> bool:
    """Say whether a process writes the log and has completed recovery.

    The contents of the lock file count only for the same boot: after a power cut a state page may be older or
    newer than the files.
    """
    try:
        file = files.Descriptor(os.open(os.path.join(directory, NAME), os.O_RDONLY))
    except FileNotFoundError:
        return False
    with file as fd:
        if files.is_shared(fd):
            return True
        if files.try_lock(fd, shared=True):
            files.unlock(fd)
            return False
        try:
            about = json.loads(os.pread(fd, 1000, 0))
            return bool(about["ready"] and about["boot"] == boot_id())
        except (ValueError, KeyError, TypeError):  # being written right now
            return False
