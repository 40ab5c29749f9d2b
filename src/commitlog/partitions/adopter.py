"""Adopter: appends the batches of staged files, or adopts a large staged file as a segment.

An adoption is a roll whose new active segment is not empty. The batches of the staged file get their stamps,
and the file gets a second name, that of the next segment; nothing is copied. The first name stays until the
publication is finished, so that nothing that happens to the segment before can lose what was staged.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from commitlog import files
from commitlog.batches.encode import EncodedBatch
from commitlog.batches.staged import StagedBatch, stamp_batches
from commitlog.config import MAX_INT64, TopicConfig
from commitlog.partitions.appender import Appender
from commitlog.partitions.producer_state import Published
from commitlog.partitions.state import LogState, now_ms
from commitlog.partitions.syncer import Syncer
from commitlog.segment import ADOPTED_SUFFIX, Segment, derived_files, segment_path
from commitlog.segment_writer import SegmentWriter, longest_ms

# A file smaller than a 64th of a full segment is copied: each segment costs a reader three files and some
# 100 us, so there should not be many more than the records need.
_LEAST_PART = 64
_TIME_ENTRY_BYTES = 16
_TRIES = 3  # others may append while stamps are synced; then the file is copied


class Adopter:
    """Appends staged files to one partition; see publisher.py."""

    def __init__(self, state: LogState, syncer: Syncer, appender: Appender) -> None:
        self._state = state
        self._syncer = syncer
        self._appender = appender

    @property
    def published(self) -> Published | None:
        """The last publication and how far it came; None if there never was one."""
        state = self._state
        with state.lock:  # to learn what other processes did
            state.check_writable()
            return state.producers.published

    def append_published(self, batches: tuple[EncodedBatch, ...]) -> range:
        """Append batches of a staged file, all or nothing, and return the offsets."""
        state = self._state
        if not state.tells_of_producers:
            self._syncer.declare_producers()
        with state.lock:
            first = self._appender.append_and_note(batches)
            end = state.next_offset
        self._appender.after_append(end, sync=False)
        return range(first, end)

    def adopt(self, path: str, size_bytes: int, batches: Sequence[StagedBatch]) -> range | None:
        """Make a staged file the active segment and return its offsets; None if it must be copied instead."""
        state = self._state
        if not _is_worth_it(size_bytes, batches, state.config):
            return None
        if not state.tells_of_producers:
            self._syncer.declare_producers()
        staged = _open_alone(path, size_bytes)
        if staged is None or state.page.next_offset > MAX_INT64 - sum(one.span for one in batches):
            return None
        for _ in range(_TRIES):
            base_offset, epoch = state.page.next_offset, state.leader_epoch
            self._stamp(staged, batches, base_offset, epoch)
            # crash: stamped, not adopted -> the staged file is read as before
            with state.lock:
                state.check_appendable()
                if (state.next_offset, state.leader_epoch) != (base_offset, epoch):
                    continue
                if not self._adopt_locked(path, size_bytes, batches):
                    return None
                end = state.next_offset
            self._appender.after_append(end, sync=False)
            return range(base_offset, end)
        return None

    def _stamp(
        self, staged: files.Descriptor, batches: Sequence[StagedBatch], base_offset: int, epoch: int
    ) -> None:
        """Stamp a staged file durably: once it is a segment, it may be the only copy of its batches."""
        state = self._state
        try:
            stamp_batches(staged.fd, batches, base_offset, epoch)
        except OSError as error:
            raise state.full(error) from error  # possible where blocks are not overwritten in place
        with state.ended_by_failure():
            files.sync_data(staged.fd)

    def _adopt_locked(self, path: str, size_bytes: int, batches: Sequence[StagedBatch]) -> bool:
        """Make a stamped file the active segment; False if that is impossible. Disk first, then memory."""
        state = self._state
        old, before, counts = state.wake(), state.segments.segments, state.counters.counts
        position, last = old.segment.size_bytes, batches[-1]
        stay = before if position else before[:-1]  # an empty segment gives its name to the adopted one
        name = segment_path(state.path, state.next_offset)
        try:
            state.page.begin_change()
            try:
                new = self._linked(path, name + ADOPTED_SUFFIX, size_bytes)
                if new is not None:
                    self._put_in_place(new, name)
            except Exception as error:
                state.end_change()
                if isinstance(error, OSError):
                    raise state.full(error) from error
                raise
            if new is None:
                state.end_change()
                return False
            # crash: an adopted segment of which no page tells -> open() and the next writer count it in
            if position:
                old.seal(state.next_offset)
                state.unsynced.append(old.segment)
                state.counters.rolled(position)
            else:
                state.cache.forget(old.segment)
                old.close()
            state.name_changes += 1
            state.writer = new
            aborts, state.aborts = state.aborts, 0  # a staged file has no markers
            span = sum(one.span for one in batches)
            state.next_offset += span
            state.counters.batched(len(batches), span)
            state.producers.note(last.producer, last.span, state.next_offset - last.span, now_ms())
            state.publish_layout((*stay, new.segment))
        except Exception:
            raise
        except BaseException:
            state.put_right(lambda: state.settle(old, position, before, stay, counts))
            raise
        if state.has_transactions:
            if position:
                state.seal_aborted(old.segment, aborts, new.segment.base_offset)
            state.list_aborted_in_active()
        state.save_producers()
        return True

    def _linked(self, path: str, name: str, size_bytes: int) -> SegmentWriter | None:
        """Give a staged file a second name, with indexes; None if the file system cannot link it."""
        state = self._state
        _remove(name)
        try:
            files.link(path, name)
        except OSError as error:
            if files.is_full(error):
                raise
            return None
        # crash: a staged file with a second name that is no segment's -> open() removes that
        segment = Segment(name, state.next_offset, size_bytes, state.cache)
        try:
            return SegmentWriter.open(segment, state.config, trust_indexes=False)
        except Exception:
            state.cache.forget(segment)
            _remove(name)
            raise

    def _put_in_place(self, new: SegmentWriter, name: str) -> None:
        state = self._state
        try:
            if state.writer.segment.size_bytes:
                state.writer.prepare_to_seal()
            new.rename(name)
        except OSError:
            new.close()
            state.cache.forget(new.segment)
            _remove(new.segment.path)
            raise


def _is_worth_it(size_bytes: int, batches: Sequence[StagedBatch], config: TopicConfig) -> bool:
    """Say whether a staged file is large enough for a segment and obeys the settings of segments."""
    if not config.segment_bytes // _LEAST_PART <= size_bytes <= config.segment_bytes:
        return False
    entries = len(batches) + 1  # of the time index, at most
    latest = max(one.max_timestamp for one in batches)
    return (
        entries * _TIME_ENTRY_BYTES <= config.segment_index_bytes
        and latest <= batches[0].max_timestamp + longest_ms(config)
        and not config.preallocate  # a staged file does not have all its blocks
    )


def _open_alone(path: str, size_bytes: int) -> files.Descriptor | None:
    """Open a staged file; None if it is, or was, a segment: then its stamps must not change."""
    try:
        file = files.Descriptor(os.open(path, os.O_RDWR))
    except PermissionError:  # another user's file: it can still be copied
        return None
    about = os.fstat(file.fd)
    return file if (about.st_nlink, about.st_size) == (1, size_bytes) else None


def _remove(name: str) -> None:
    for one in (name, *derived_files(name)):
        files.remove(one)
