"""Receiver: takes the bytes of staged files that other machines send.

Bytes come in order, but a sender that got no answer sends them again, and may do so late. So they are
collected under a name of their own, and only a file that is whole and synced gets the name of a staged file:
bytes that come twice never touch a file that may have become a segment. Several processes may serve one log,
and a sender may turn from one to another; so a file is locked while its bytes or its name change.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

from commitlog import files
from commitlog.batches.staged import RECEIVING_SUFFIX, SUFFIX, StagedFile
from commitlog.errors import CorruptionError
from commitlog.record import Buffer
from commitlog.topics.catalog import typed


class Receiver:
    """Receives staged files of one log. Threads and processes may receive the same one, if a sender turns."""

    def __init__(self, log_path: str) -> None:
        self._log_path = log_path

    def receive(self, staged: StagedFile, position: int, data: Buffer) -> None:
        """Store bytes of a staged file; CorruptionError if those before them are missing."""
        path = self._path(staged, RECEIVING_SUFFIX)
        size, new = len(data), os.O_CREAT if position == 0 else 0
        try:
            files.make_directories(os.path.dirname(path))
            with _locked(path, os.O_WRONLY | new) as fd:
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
                self._complete(path, whole, staged.size_bytes, check)
                # crash: a received file that nobody was told of -> the next publish() of its epoch removes it
            files.sync_directory(os.path.dirname(whole))
        except OSError as error:
            raise typed(error, path) from error

    def _complete(self, path: str, whole: str, size_bytes: int, check: Callable[[str], None]) -> None:
        """Sync, check and rename a file, unless another request does so meanwhile."""
        try:
            with _locked(path, os.O_RDWR) as fd:
                found = os.fstat(fd).st_size
                if found != size_bytes:
                    raise CorruptionError(path, found, f"{size_bytes} bytes were sent")
                files.sync_data(fd)
                check(path)
                if not self._is_there(whole, size_bytes):
                    files.replace(path, whole)
        except FileNotFoundError:
            if not self._is_there(whole, size_bytes):
                raise CorruptionError(path, 0, f"{size_bytes} bytes were sent, none is here") from None

    def _is_there(self, path: str, size_bytes: int) -> bool:
        """Say whether an earlier request finished the file, and its answer was lost."""
        try:
            found = os.stat(path).st_size
        except FileNotFoundError:
            return False
        if found != size_bytes:
            raise CorruptionError(path, found, f"{size_bytes} bytes were sent")
        return True

    def _path(self, staged: StagedFile, suffix: str) -> str:
        return os.path.join(self._log_path, staged.path.removesuffix(SUFFIX) + suffix)


@contextlib.contextmanager
def _locked(path: str, flags: int) -> Iterator[int]:
    """Open a file that is being received, and lock it; FileNotFoundError if it lost this name meanwhile."""
    with files.Descriptor(os.open(path, flags, 0o644)) as fd:
        files.wait_for_lock(fd)
        try:
            if not os.path.samestat(os.stat(path), os.fstat(fd)):
                raise FileNotFoundError(path)
            yield fd
        finally:
            files.unlock(fd)
