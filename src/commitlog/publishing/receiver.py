"""Receiver: takes the bytes of staged files that other machines send.

Bytes come in order, but a sender that got no answer sends them again, and may do so late. So they are
collected under a name of their own, and only a file that is whole and synced gets the name of a staged file:
bytes that come twice never touch a file that may have become a segment.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from commitlog import files
from commitlog.batches.staged import RECEIVING_SUFFIX, SUFFIX, StagedFile
from commitlog.errors import CorruptionError
from commitlog.record import Buffer
from commitlog.topics.catalog import typed


class Receiver:
    """Receives staged files of one log. Threads may share it, because a sender may connect again."""

    def __init__(self, log_path: str) -> None:
        self._log_path = log_path
        self._lock = threading.Lock()

    def receive(self, staged: StagedFile, position: int, data: Buffer) -> None:
        """Store bytes of a staged file; CorruptionError if those before them are missing."""
        path = self._path(staged, RECEIVING_SUFFIX)
        size, new = len(data), os.O_CREAT if position == 0 else 0
        try:
            files.make_directories(os.path.dirname(path))
            with self._lock, files.Descriptor(os.open(path, os.O_WRONLY | new, 0o644)) as fd:
                there = os.fstat(fd).st_size
                if position > there:
                    raise CorruptionError(path, there, f"the bytes before {position} were not received")
                files.write_at(fd, (data,), size, position)
                files.start_writing(fd, position, position + size)  # finish() has less to wait for
        except FileNotFoundError:
            raise CorruptionError(path, 0, f"the bytes before {position} were not received") from None
        except OSError as error:
            raise typed(error, path) from error

    def finish(self, staged: StagedFile, check: Callable[[str], None]) -> None:
        """Make a file durable that was received completely, and give it the name of a staged file.

        `check` is called with its path before that, and raises an error if the file must not be published.
        """
        path, whole = self._path(staged, RECEIVING_SUFFIX), self._path(staged, SUFFIX)
        try:
            if not self._is_there(whole, staged.size_bytes):
                self._sync(path, staged.size_bytes)
                check(path)
                with self._lock:
                    if not self._is_there(whole, staged.size_bytes):
                        files.replace(path, whole)
                # crash: a received file that nobody was told of -> the next publish() of its epoch removes it
            files.sync_directory(os.path.dirname(whole))
        except OSError as error:
            raise typed(error, path) from error

    def _is_there(self, path: str, size_bytes: int) -> bool:
        """Say whether an earlier request finished the file, and its answer was lost."""
        try:
            found = os.stat(path).st_size
        except FileNotFoundError:
            return False
        if found != size_bytes:
            raise CorruptionError(path, found, f"{size_bytes} bytes were sent")
        return True

    def _sync(self, path: str, size_bytes: int) -> None:
        try:
            with files.Descriptor(os.open(path, os.O_RDWR)) as fd:
                found = os.fstat(fd).st_size
                if found != size_bytes:
                    raise CorruptionError(path, found, f"{size_bytes} bytes were sent")
                files.sync_data(fd)
        except FileNotFoundError:
            raise CorruptionError(path, 0, f"{size_bytes} bytes were sent, none is here") from None

    def _path(self, staged: StagedFile, suffix: str) -> str:
        return os.path.join(self._log_path, staged.path.removesuffix(SUFFIX) + suffix)
