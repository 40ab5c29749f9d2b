"""Locks between processes: the lock of a log, which names its writer, and plain ones."""

from __future__ import annotations

import io
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from commitlog import files
from commitlog.errors import LogLockedError

NAME, MUTEX_NAME = ".lock", ".catalog-lock"
_PATIENCE_SECONDS = 0.2  # readers hold the lock for a moment to see whether a writer lives


class LogLock:
    """An exclusive lock on a log's directory, let go when the process ends, however it ends."""

    _fd: int | None = None

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def take(cls, directory: str, *, shared: bool = False) -> Self:
        """Take the lock; LogLockedError, naming the owner, if another process (or this one) has it.

        With `shared` others may share it, but nobody has it alone.
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
                lock._tell(ready=False)
        except BaseException:
            unlock()  # as long as somebody keeps the exception, `lock` lives
            lock.forget()
            raise
        return lock

    def __del__(self) -> None:
        self.forget()

    def ready(self, *, shared: bool = False) -> None:
        """Tell readers that recovery is done and state pages can be believed."""
        if shared:
            assert self._fd is not None
            files.show_shared(self._fd)
        else:
            self._tell(ready=True)

    def _tell(self, *, ready: bool) -> None:
        assert self._fd is not None
        about = {"pid": os.getpid(), "host": socket.gethostname(), "boot": boot_id(), "ready": ready}
        text = json.dumps(about).encode()
        files.cut(self._fd, 0)
        files.write_at(self._fd, [text], len(text), 0)

    def release(self) -> None:
        """Let the lock go; one that was interrupted can be made again."""
        if self._fd is not None:
            files.unlock(self._fd)
            self.forget()

    def forget(self) -> None:
        """Close the file; in a forked child this leaves the lock with the parent."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


class HeldElsewhereError(Exception):
    """Somebody else has a lock that is not to be waited for."""


class ProcessLock(io.IOBase):
    """A lock between processes, and between the threads of each: `with lock:`. It cannot be taken twice.

    `taken` is called when it was taken; if it returns True, the C functions `leaving` are called before it is
    given back. Without `wait`, HeldElsewhereError if another process has it.

    No interruption leaves it held. Python runs signal handlers only as a Python function starts, as a loop
    jumps back, and as a call returns; never inside a C function, nor between two other instructions. So:

    - To take the mutex, a `for` asks a C iterator for the next item, and the `try` follows at once: whatever
      is raised from there on comes to the handler, whose first call is `close`, and `with` takes over without
      another call.
    - To give everything back, `with` calls `__exit__`. That of IOBase is a C function, and all it does is
      call `close`, which here is a C function that calls others in turn. A Python __exit__ could be
      interrupted before its first line.
    """

    closed = True  # or the finalizer of IOBase would call close()
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
        self._acquiring = iter(mutex.acquire, None)  # each item is a call; it never returns None
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
        """Let `leaving` not be called when it is given back this time."""
        self.close = self._leave


def _in_turn(*functions: Callable[[], object]) -> Callable[[], Any]:
    """Return a C function that calls these C functions one after another, and returns something false.

    It asks a `map` for its next item, which asks each of its iterators; each item of these is a call.
    """
    return map("".format, *(iter(function, _in_turn) for function in functions)).__next__


def _refusal(directory: str, fd: int, shared: bool) -> LogLockedError:
    """Return the error for a lock that somebody else has: who that is, and what would help."""
    if not shared and files.try_lock(fd, shared=True):
        files.unlock(fd)
        found = [str(pid) for pid in files.lockers(fd)]
        owner = f"process{'es' if len(found) > 1 else ''} {', '.join(found)}" if found else "other processes"
        return LogLockedError(
            directory,
            f"{owner} with mode='shared'",
            'open it with mode="shared" here, too, or with mode="r" to read it',
        )
    owner = _describe(os.pread(fd, 1000, 0).decode(errors="replace"))
    where = "there" if shared else "in every process"
    return LogLockedError(
        directory,
        owner,
        f'close it there, or open it with mode="shared" {where}; mode="r" reads it meanwhile',
    )


def _describe(owner: str) -> str:
    try:
        about = json.loads(owner)
        return f"process {about['pid']} on {about['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"


def boot_id() -> str:
    """Return what tells one boot of the machine from another."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return "unknown"


def writer_is_ready(directory: str) -> bool:
    """Say whether somebody writes the log, and is done with recovery.

    What an earlier writer left in the file counts only for the same boot: after a power cut a state page
    may be older or newer than the files.
    """
    try:
        fd = os.open(os.path.join(directory, NAME), os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        if files.is_shared(fd):
            return True
        if files.try_lock(fd, shared=True):
            files.unlock(fd)
            return False
        try:
            about = json.loads(os.pread(fd, 1000, 0))
            return bool(about["ready"] and about["boot"] == boot_id())
        except (ValueError, KeyError, TypeError):  # just being written
            return False
    finally:
        os.close(fd)
