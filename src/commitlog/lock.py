"""The lock of a log: one process writes, and others are told which one."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Self

from commitlog import files
from commitlog.errors import LogLockedError

NAME = ".lock"
_PATIENCE_SECONDS = 0.2  # readers hold the lock for a moment to see whether a writer lives


class LogLock:
    """An exclusive lock on a log's directory, let go when the process ends, however it ends."""

    _fd: int | None = None

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def take(cls, directory: str) -> Self:
        """Take the lock; LogLockedError, naming the owner, if another process (or this one) has it."""
        path = os.path.join(directory, NAME)
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        lock = cls(fd)  # closes the file whatever happens from here on
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not files.try_lock(fd):
            if time.monotonic() > deadline:
                owner = os.pread(fd, 1000, 0).decode(errors="replace")
                raise LogLockedError(directory, _describe(owner))
            time.sleep(0.002)
        lock._tell(ready=False)
        return lock

    def __del__(self) -> None:
        self.forget()

    def ready(self) -> None:
        """Tell readers that recovery is done and state pages can be believed."""
        self._tell(ready=True)

    def _tell(self, *, ready: bool) -> None:
        assert self._fd is not None
        about = {"pid": os.getpid(), "host": socket.gethostname(), "boot": _boot_id(), "ready": ready}
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


def _describe(owner: str) -> str:
    try:
        about = json.loads(owner)
        return f"process {about['pid']} on {about['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"


def _boot_id() -> str:
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
        if files.try_lock(fd, shared=True):
            files.unlock(fd)
            return False
        try:
            about = json.loads(os.pread(fd, 1000, 0))
            return bool(about["ready"] and about["boot"] == _boot_id())
        except (ValueError, KeyError, TypeError):  # just being written
            return False
    finally:
        os.close(fd)
