"""AdoptingPartition: takes in what was staged elsewhere, and if it is much, the staged file itself.

An adoption is a roll whose new active segment is not empty. The batches of the staged file get their stamps,
and the file a second name, that of the next segment: nothing is copied. The first name goes when the
publication is finished, so that until then nothing that happens to the segment can lose what was staged.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from commitlog import files
from commitlog.batches.encode import EncodedBatch
from commitlog.batches.staged import StagedBatch, stamp_batches
from commitlog.config import MAX_INT64, TopicConfig
from commitlog.errors import DiskFullError
from commitlog.partitions.active import now_ms
from commitlog.partitions.producer_state import Published
from commitlog.partitions.writer import PartitionWriter
from commitlog.segment import ADOPTED_SUFFIX, Segment, companions, segment_path
from commitlog.segment_writer import SegmentWriter, longest_ms

# A file that is less than this part of a full segment is copied. Segments cost a reader three files and some
# 100 us each, so that there may not be many more of them than records need.
_LEAST_PART = 64
_TIME_ENTRY_BYTES = 16
_TRIES = 3  # others may append while stamps are synced; a copy does not mind


class AdoptingPartition(PartitionWriter):
    """Appends batches of staged files; see publisher.py."""

    @property
    def published(self) -> Published | None:
        """What was published last, and how far; None if nothing ever was."""
        with self._lock:  # to learn what others did
            self._check_writable()
            return self._producers.published

    def append_published(self, batches: tuple[EncodedBatch, ...]) -> range:
        """Append batches of a staged file, all or nothing, and return their offsets."""
        if not self._tells_of_producers:
            self._tell_of_producers()
        with self._lock:
            first = self._append_and_note(batches)
            end = self._next_offset
        self._after_append(end, sync=False)
        return range(first, end)

    def adopt(self, path: str, size_bytes: int, batches: Sequence[StagedBatch]) -> range | None:
        """Make a staged file of `size_bytes` the active segment, and return the offsets of its records.

        None if nothing was done, for it is better copied.
        """
        if not _is_worth_it(size_bytes, batches, self.config):
            return None
        if not self._tells_of_producers:
            self._tell_of_producers()
        staged = _open_alone(path, size_bytes)
        if staged is None or self.next_offset > MAX_INT64 - sum(one.span for one in batches):
            return None
        for _ in range(_TRIES):
            base_offset, epoch = self.next_offset, self._leader_epoch
            self._stamp(staged, batches, base_offset, epoch)
            # crash: stamped, not adopted -> the staged file is read as before
            with self._lock:
                self._check_appendable()
                if (self._next_offset, self._leader_epoch) != (base_offset, epoch):
                    continue
                if not self._adopt_locked(path, size_bytes, batches):
                    return None
                end = self._next_offset
            self._after_append(end, sync=False)
            return range(base_offset, end)
        return None

    def _stamp(
        self, staged: files.Descriptor, batches: Sequence[StagedBatch], base_offset: int, epoch: int
    ) -> None:
        """Stamp a staged file, durably: once it is a segment, no other copy of its batches may be left."""
        try:
            stamp_batches(staged.fd, batches, base_offset, epoch)
        except OSError as error:
            if files.is_full(error):  # where nothing is written in place
                raise DiskFullError(self.path, error.strerror) from error
            raise
        with self._ended_by_failure():
            files.sync_data(staged.fd)

    def _adopt_locked(self, path: str, size_bytes: int, batches: Sequence[StagedBatch]) -> bool:
        """Go on in a stamped file, or say that it cannot be. Disk first, then memory, as in a roll."""
        old, before, counts = self._writer, self._segments.segments, self._tally.counts
        position, last = old.segment.size_bytes, batches[-1]
        stay = before if position else before[:-1]  # an empty one loses its name to the adopted one
        name = segment_path(self.path, self._next_offset)
        try:
            self._page.begin_change()
            try:
                new = self._linked(path, name + ADOPTED_SUFFIX, size_bytes)
                if new is not None:
                    self._put_in_place(new, name)
            except Exception as error:
                self._end_change()
                if isinstance(error, OSError) and files.is_full(error):
                    raise DiskFullError(self.path, error.strerror) from error
                raise
            if new is None:
                self._end_change()
                return False
            # crash: an adopted segment of which no page tells -> open() and the next writer count it in
            if position:
                old.seal(self._next_offset)
                self._unsynced.append(old.segment)
                self._tally.rolled(position)
            else:
                self._cache.forget(old.segment)
                old.close()
            self._name_changes += 1
            self._writer = new
            span = sum(one.span for one in batches)
            self._next_offset += span
            self._tally.batched(len(batches), span)
            self._producers.note(last.producer, last.span, self._next_offset - last.span, now_ms())
            self._publish_layout((*stay, new.segment))
        except Exception:
            raise
        except BaseException:
            self._put_right(lambda: self._settle(old, position, before, stay, counts))
            raise
        self._save_producers()
        return True

    def _linked(self, path: str, name: str, size_bytes: int) -> SegmentWriter | None:
        """Give a staged file a second name, with indexes; None where the file system will not."""
        _remove(name)
        try:
            files.link(path, name)
        except OSError as error:
            if files.is_full(error):
                raise
            return None
        # crash: a staged file with a second name that is no segment's -> open() removes that
        segment = Segment(name, self._next_offset, size_bytes, self._cache)
        try:
            return SegmentWriter.open(segment, self.config, trust_indexes=False)
        except Exception:
            self._cache.forget(segment)
            _remove(name)
            raise

    def _put_in_place(self, new: SegmentWriter, name: str) -> None:
        try:
            if self._writer.segment.size_bytes:
                self._writer.prepare_to_seal()
            new.rename(name)
        except OSError:
            new.close()
            self._cache.forget(new.segment)
            _remove(new.segment.path)
            raise


def _is_worth_it(size_bytes: int, batches: Sequence[StagedBatch], config: TopicConfig) -> bool:
    """Say whether a staged file is large enough for a segment, and otherwise what a segment may be."""
    if not config.segment_bytes // _LEAST_PART <= size_bytes <= config.segment_bytes:
        return False
    entries = len(batches) + 1  # of the time index, at most
    latest = max(one.max_timestamp for one in batches)
    return (
        entries * _TIME_ENTRY_BYTES <= config.segment_index_bytes
        and latest <= batches[0].max_timestamp + longest_ms(config)
        and not config.preallocate  # a file that has all its blocks is none that was staged
    )


def _open_alone(path: str, size_bytes: int) -> files.Descriptor | None:
    """Open a staged file; None if it is a segment as well, or was: its stamps are not ours then."""
    try:
        file = files.Descriptor(os.open(path, os.O_RDWR))
    except PermissionError:  # somebody else's: it can still be read
        return None
    about = os.fstat(file.fd)
    return file if (about.st_nlink, about.st_size) == (1, size_bytes) else None


def _remove(name: str) -> None:
    for one in (name, *companions(name)):
        files.remove(one)
