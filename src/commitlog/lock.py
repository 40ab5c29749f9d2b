"""Locks between processes: that of a log, whose writer the others are told, and plain ones."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

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
        lock = cls(fd)  # closes the file whatever happens from here on
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not files.try_lock(fd, shared=shared):
            if time.monotonic() > deadline:
                owner = os.pread(fd, 1000, 0).decode(errors="replace")
                raise LogLockedError(directory, _describe(owner))
            time.sleep(0.002)
        if not shared:
            lock._tell(ready=False)
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


class ProcessLock:
    """A lock between processes, and between the threads of each; whoever has it may take it again.

    `taken` is called when it was taken, `given` before it is given back.
    """

    def __init__(
        self, path: str, taken: Callable[[], None] = lambda: None, given: Callable[[], None] = lambda: None
    ) -> None:
        self._file = files.Descriptor(os.open(path, os.O_RDWR | os.O_CREAT, 0o644))
        self._mutex = threading.RLock()
        self._depth = 0
        self._taken, self._given = taken, given

    def __enter__(self) -> None:
        self._mutex.acquire()
        try:
            if self._depth == 0:
                files.wait_for_lock(self._file.fd)
                self._taken()
            self._depth += 1
        except BaseException:
            if self._depth == 0:
                files.unlock(self._file.fd)
            self._mutex.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        try:
            if self._depth == 0:
                self._given()
        finally:
            if self._depth == 0:
                files.unlock(self._file.fd)
            self._mutex.release()


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
