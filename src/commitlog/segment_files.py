"""Lists segment files, replaces them by copies and removes them. A crash leaves the old files or the new one.

.cleaned    being written, worth nothing
.swap       complete and durable: replaces every segment in its range of offsets
.deleted    replaced or removed
.tmp        a shorter copy of a segment, being written: a file that a reader may have mapped never shrinks
.cut        such a copy, complete and durable: replaces its segment and all that follow
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Sequence
from typing import Self

from commitlog import aborted_index, files
from commitlog.aborted_index import Aborted
from commitlog.batches.encode import EncodedBatch, reencode
from commitlog.config import TopicConfig
from commitlog.errors import CorruptionError
from commitlog.index import IndexBuilder, OffsetIndex, TimeIndex, base_offset_of
from commitlog.open_files import OpenFiles
from commitlog.record import Buffer
from commitlog.segment import DELETED_SUFFIX, TEMPORARY_SUFFIX, Segment, companions, derived_files

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
DAMAGED_SUFFIX = ".damaged"  # kept beside its replacement
CUT_SUFFIX = ".cut"
_SEGMENT_NAME = re.compile(r"\d{20}\.log(\.swap|\.cut)?")


class CleanedFile:
    """A segment, with its indexes, that is written beside those it will replace."""

    def __init__(self, path: str, file: files.Descriptor, builder: IndexBuilder) -> None:
        self.path = path
        self._file = file
        self._builder = builder
        self.size_bytes = 0
        self.next_offset = 0
        self.aborted: list[Aborted] | None = None  # what its markers aborted; None without transactions

    @classmethod
    def create(cls, path: str, config: TopicConfig) -> Self:
        """Start the copy that will become the segment at `path`."""
        paths = [name + CLEANED_SUFFIX for name in (path, *companions(path))]
        for leftover in paths:
            files.remove(leftover)
        limit = config.segment_index_bytes
        file = files.Descriptor(os.open(paths[0], os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644))
        try:
            builder = IndexBuilder(
                OffsetIndex.open_writable(paths[1], limit),
                TimeIndex.open_writable(paths[2], limit),
                config.index_interval_bytes,
            )
        except BaseException:
            file.close()
            for unfinished in paths:
                files.remove(unfinished)
            raise
        return cls(path, file, builder)

    def write(self, pieces: Sequence[Buffer], size: int, base_offset: int, max_timestamp: int) -> None:
        """Add a batch."""
        files.write_at(self._file.fd, pieces, size, self.size_bytes)
        self._builder.add(base_offset, self.size_bytes, max_timestamp)
        self.size_bytes += size

    def finish(self, next_offset: int) -> None:
        """Make the file complete and durable, but not visible yet."""
        self.next_offset = next_offset
        self._builder.finish(self.size_bytes, next_offset)
        self._builder.sync()
        files.sync_data(self._file.fd)
        self.close()

    def discard(self) -> None:
        """Remove the file."""
        self.close()
        for name in (self.path, *companions(self.path)):
            files.remove(name + CLEANED_SUFFIX)

    def close(self) -> None:
        """Close the files; closing twice is fine."""
        if self._file.fd != -1:
            self._file.close()
            self._builder.close()


def swap_in(cleaned: CleanedFile, old: Sequence[Segment], retire: Callable[[Segment], None]) -> Segment:
    """Replace the segments that a cleaned file was made of by it; `retire` removes each of them."""
    path, directory = cleaned.path, os.path.dirname(cleaned.path)
    # crash: the copy is still .cleaned -> open() removes it, the old segments are whole
    files.replace(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
    files.sync_directory(directory)
    # crash: .swap beside the old segments -> open() finishes the swap
    for segment in old:
        retire(segment)
        # crash: some of the old segments are gone -> open() finishes the swap
    files.sync_directory(directory)
    # crash: .swap alone -> open() finishes the swap
    for index in companions(path):
        files.replace(index + CLEANED_SUFFIX, index)
    # crash: .swap beside its own indexes -> open() finishes the swap
    files.replace(path + SWAP_SUFFIX, path)
    files.sync_directory(directory)
    if cleaned.aborted is not None:
        # crash: no list of what was aborted -> readers look for the markers
        with contextlib.suppress(OSError):
            aborted_index.store(path, cleaned.aborted, (cleaned.size_bytes, cleaned.next_offset))
    return Segment.open(path, old[0].cache)


def list_segments(directory: str, cache: OpenFiles | None) -> list[Segment]:
    """Return the segments of a directory in order; a .swap or .cut file stands for those it replaces."""
    logs, copies = _found(directory, cache)
    for copy in copies:
        replaced = _replaced(copy, logs)
        logs = [one for one in logs if one not in replaced]
    return sorted([*logs, *copies], key=lambda segment: segment.base_offset)


def finish_swaps(directory: str, *, salvage: bool = False) -> None:
    """Finish swaps and truncations that a crash interrupted; with `salvage`, even if the copy is damaged."""
    logs, copies = _found(directory, None)
    for copy in copies:
        final = os.path.splitext(copy.path)[0]
        try:
            replaced = {one.path for one in _replaced(copy, logs)}
        except CorruptionError:
            if not salvage:
                raise
            _salvage_copy(copy.path, final)
            continue
        for path in sorted({*replaced, final}, reverse=True):
            for old in (path, *derived_files(path)):
                files.remove(old)
        files.sync_directory(directory)
        # crash: .swap alone, once more -> the next open() finishes it
        files.replace(copy.path, final)
        files.sync_directory(directory)


def _salvage_copy(copy: str, final: str) -> None:
    """Set a damaged .swap or .cut file aside if the first segment that it replaces is there: of a .swap, all
    are there then; of a .cut, those that are gone were to go.

    Otherwise make it a segment, to be salvaged: its sound batches stay, up to the next segment.
    """
    if os.path.exists(final):
        files.replace(copy, free_name(copy + DAMAGED_SUFFIX))
    else:
        files.replace(copy, final)
    files.sync_directory(os.path.dirname(final))


def free_name(path: str) -> str:
    """Return the path, with a number if it is taken, so that no earlier damaged file is overwritten."""
    taken, number = path, 1
    while os.path.exists(taken):
        number += 1
        taken = f"{path}-{number}"
    return taken


def _found(directory: str, cache: OpenFiles | None) -> tuple[list[Segment], list[Segment]]:
    """Return the .log files of a directory, and the .swap and .cut files."""
    logs: list[Segment] = []
    copies: list[Segment] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            name = _SEGMENT_NAME.fullmatch(entry.name)
            if name:
                about = entry.stat()
                segment = Segment(entry.path, base_offset_of(entry.path), about.st_size, cache)
                segment.inode = about.st_ino
                (copies if name[1] else logs).append(segment)
    return logs, copies


def _replaced(copy: Segment, logs: Sequence[Segment]) -> list[Segment]:
    """Return the segments that a .swap or .cut file replaces; they are deleted because of it, so all of it is
    checked.
    """
    end = copy.base_offset
    for batch in copy.batches():
        if batch.base_offset != end:
            raise CorruptionError(copy.path, batch.position, f"offset {end} is missing before it")
        end = batch.next_offset
    if end == copy.base_offset:
        raise CorruptionError(copy.path, 0, "there is nothing in it")
    ends_the_log = copy.path.endswith(CUT_SUFFIX)
    return [
        one for one in logs if copy.base_offset <= one.base_offset and (ends_the_log or one.base_offset < end)
    ]


class Trash:
    """The removed files of a partition, to be unlinked later; the next open unlinks any that are left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[float, str]] = []  # when to unlink which file

    def take(self, segment: Segment, due: float) -> None:
        """Rename a segment's files, the .log first: indexes without it are recognised as leftovers."""
        for path in (segment.path, *derived_files(segment.path)):
            try:
                files.replace(path, path + DELETED_SUFFIX)
            except FileNotFoundError:
                continue
            # crash: indexes without their segment -> open() removes them
            with self._lock:
                self._waiting.append((due, path + DELETED_SUFFIX))

    def empty(self, now: float) -> None:
        """Unlink the files that are due."""
        with self._lock:
            due = [path for when, path in self._waiting if when <= now]
            self._waiting = [(when, path) for when, path in self._waiting if when > now]
        for path in due:
            files.remove(path)


# --- shorter copies


def shorter_copy(segment: Segment, offset: int, more: Sequence[EncodedBatch] = ()) -> int:
    """Write a durable copy of a segment, up to `offset`, beside it, and `more` after that; returns its size.

    A batch across `offset` is encoded again. The part that goes may be damaged; the last batch that stays is
    checked, because it determines where to cut. If the disk is full, nothing is left behind.
    """
    position, batch = 0, None
    if offset > segment.base_offset:
        position = segment.position_of(offset - 1)
        batch = next(segment.batches_from(position), None)
        if batch is None or not batch.base_offset < offset <= batch.next_offset:
            raise CorruptionError(segment.path, position, f"offset {offset - 1} is missing")
        if batch.next_offset == offset:
            position, batch = position + batch.size_bytes, None
    temporary = segment.path + TEMPORARY_SUFFIX
    size = position
    try:
        with files.open_empty(temporary) as fd:
            files.copy_start(segment.path, fd, position)
            if batch is not None:
                header = batch.header
                part = reencode(batch.slice(header.base_offset, offset), offset - header.base_offset)
                pieces = part.stamped(header.base_offset, header.leader_epoch)
                files.write_at(fd, pieces, part.size, position)
                size += part.size
            for one in more:
                files.write_at(fd, one.stamped(offset, 0), one.size, size)
                offset, size = offset + one.span, size + one.size
            files.sync_data(fd)
    except BaseException:
        files.remove(temporary)
        raise
    return size


def make_final(segment: Segment) -> None:
    """Let the copy that shorter_copy() wrote be the end of the log, even if a crash comes first."""
    files.replace(segment.path + TEMPORARY_SUFFIX, segment.path + CUT_SUFFIX)
    files.sync_directory(os.path.dirname(segment.path))


def put_in_place(segment: Segment, size: int, suffix: str = TEMPORARY_SUFFIX) -> Segment:
    """Replace a segment by the copy that shorter_copy() wrote; it has another suffix after make_final()."""
    # crash: the copy is still .tmp -> open() removes it, the segment is whole
    for derived in derived_files(segment.path):
        files.remove(derived)
    # crash: no indexes -> open() rebuilds them
    files.replace(segment.path + suffix, segment.path)
    files.sync_directory(os.path.dirname(segment.path))
    segment.release()
    return Segment(segment.path, segment.base_offset, size, segment.cache)
