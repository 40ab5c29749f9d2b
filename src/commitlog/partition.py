"""Partition: its opening and its end, and what takes away from it. writer.py and active.py are its base."""

from __future__ import annotations

import threading
from typing import Self

from commitlog import files, retention
from commitlog.compacting import CompactingPartition
from commitlog.config import LogConfig, TopicConfig
from commitlog.errors import (
    ClosedError,
    DiskFullError,
    ForkedError,
    OffsetOutOfRangeError,
)
from commitlog.handles import HandleCache
from commitlog.producers import offset_of as snapshot_offset
from commitlog.producers import remove_snapshots, snapshots
from commitlog.recovery import Recovery
from commitlog.repair import RepairReport
from commitlog.rewrite import put_in_place, repaired, shorter_copy
from commitlog.segment_writer import SegmentWriter
from commitlog.state import StatePage


class Partition(CompactingPartition):
    """A partition opened for writing: append, read, trim, truncate, compact, repair. Threads may share it."""

    _inherited = False  # whether this is a forked child's copy
    _alone = True  # whether no other process writes the partition

    @classmethod
    def open(
        cls,
        path: str,
        name: str,
        config: TopicConfig,
        log_config: LogConfig,
        cache: HandleCache,
        *,
        clean: bool,
    ) -> Self:
        """Open for writing, after recovery; the directory must be there."""
        old = StatePage.open(path)
        known = old.checkpoint if old else None
        found = Recovery(path, name, known, config, cache).run(clean=clean, mode=log_config.recovery_mode)
        page = StatePage.create(path)
        partition = cls(path, name, config, log_config, cache, page, found)
        partition._publish_layout(found.segments)
        page.publish_start(found.start_offset)
        page.publish_clean(found.clean_offset)
        page.publish_durable(found.durable_offset)
        if found.report.salvaged:
            partition.sync()  # a gap above durable_offset would look like a lost tail
        if known is None or found.report.salvaged:
            # a page lost in a power cut would leave recovery without its recovery point
            page.sync()
            files.sync_directory(path)
        return partition

    # --- trimming and truncating

    def trim_before(self, offset: int) -> None:
        """Remove the records below `offset`; their files go once no record in them is left."""
        self._check_writable()
        if offset <= self._start_offset:
            return
        if offset > self.high_watermark:
            raise OffsetOutOfRangeError(self.name, offset, self._start_offset, self.high_watermark)
        self._sync_to(offset)  # start_offset <= durable_offset, or recovery would look for what is gone
        with self._sync_lock:
            self._check_writable()
            if offset > self._durable_offset:  # truncated meanwhile
                raise OffsetOutOfRangeError(self.name, offset, self._start_offset, self.high_watermark)
            if offset > self._start_offset:
                with self._ended_by_interruption():
                    self._trim_to(offset)

    def _trim_to(self, offset: int) -> None:
        self._keep_published(offset)
        self._page.publish_start(offset)
        self._sync_page()
        # crash: segments below start_offset are still there -> open() removes them
        with self._lock:
            self._start_offset = offset
            if offset == self._next_offset and self._writer.segment.size_bytes:
                self._roll_locked()
            layout = self._segments
            keep = layout.find(offset)
            if keep:
                self._publish_layout(layout.segments[keep:])
            self._unsynced = [one for one in self._unsynced if one.base_offset >= layout.bases[keep]]
        if self._name_changes != self._names_synced:
            self._sync_names()  # the segment that stays must be there when the others are gone
        for segment in layout.segments[:keep]:
            self._retire(segment)

    def truncate_from(self, offset: int) -> None:
        """Remove the records at and above `offset`; the next append gets `offset`."""
        with self._stopped():
            if not self._start_offset <= offset <= self._next_offset:
                raise OffsetOutOfRangeError(self.name, offset, self._start_offset, self._next_offset)
            if offset < self._next_offset:
                keep = self._segments.find(offset)
                try:
                    size = shorter_copy(self._segments.segments[keep], offset)
                except OSError as error:
                    if files.is_full(error):
                        raise DiskFullError(self.path, error.strerror) from error
                    raise
                self._truncate_locked(offset, keep, size)

    def _truncate_locked(self, offset: int, keep: int, size: int) -> None:
        page, segments = self._page, self._segments.segments
        self._durable_offset = min(self._durable_offset, offset)
        self._clean_offset = min(self._clean_offset, offset)
        page.begin_change()
        page.count_truncation()
        page.publish_clean(self._clean_offset)
        page.publish_durable(self._durable_offset)
        self._sync_page()
        # crash: the recovery point is lower than it need be -> open() checks more and finds every record
        self._writer.close()
        for segment in reversed(segments[keep + 1 :]):
            self._retire(segment)
        remove_snapshots(path for path in snapshots(self.path) if snapshot_offset(path) > offset)
        files.sync_directory(self.path)
        # crash: the log ends with the segment that holds `offset` -> open() finds its records again
        kept = put_in_place(segments[keep], size)
        self._next_offset = offset
        self._unsynced = [one for one in self._unsynced if one.base_offset < kept.base_offset]
        self._writer = SegmentWriter.open(kept, self.config, trust_indexes=False)
        self._publish_layout((*segments[:keep], kept))
        page.count_truncation()
        if page.has_producers:
            self._restore_producers()
        self._sync_locked()

    # --- housekeeping

    def apply_retention(self, now_ms: int) -> int:
        """Remove the segments that retention no longer keeps; returns how many."""
        with self._lock:
            self._check_writable()
            segments = self._segments.segments
            count = retention.expired(segments, self._writer.max_timestamp, self.config, now_ms)
            end = self._next_offset if count == len(segments) else self._segments.bases[count]
        if count:
            self.trim_before(end)
        return count

    def empty_trash(self, now: float) -> None:
        """Unlink the removed files whose file_delete_delay_ms is over; `now` is time.monotonic()."""
        self._trash.empty(now)

    def repair(self) -> RepairReport:
        """Keep what is sound of damaged segments, rebuild false indexes; the old files stay as `.damaged`."""
        self.roll()
        with self._stopped():
            if self._writer.segment.size_bytes:
                self._roll_locked()  # every segment with records is sealed now, and offsets go on
            self._page.begin_change()
            segments, report = repaired(self._segments.segments[:-1], self._next_offset, self.config)
            self._publish_layout((*segments, self._writer.segment))
            self._sync_locked()  # a gap above durable_offset would look like a lost tail
            self._sync_page()
            return report

    # --- the end

    def forked(self) -> None:
        """In a forked child: refuse everything; what is known here is what the parent knew at the fork."""
        self._make_locks()
        self._compaction_lock = threading.Lock()
        self._refusal = lambda: ForkedError(self.name)
        self._inherited = True

    def _check_open(self) -> None:
        if self._inherited:
            raise ForkedError(self.name)
        super()._check_open()

    def abandon(self) -> None:
        """Let go of everything without syncing: for a log that could not be opened, or closed."""
        with self._lock:
            self._refusal = self._refusal or (lambda: ClosedError(self.name))
            self._writer.close()

    def close(self) -> None:
        """Sync and let everything go; what a failed disk kept from syncing is left to recovery."""
        if self._closed:
            return
        self._closed = True
        self.end_compaction()
        with self._compaction_lock:
            self._close()

    def _close(self) -> None:
        try:
            with self._sync_lock, self._lock:
                if self._refusal is None:
                    if self._alone:
                        self._writer.give_back()
                    self._sync_locked()  # names too, which no record may be waiting for
                    self._save_producers()
                    # what another thread appended from here on, the next open would not look for
                    self._refusal = lambda: ClosedError(self.name)
                    if self._alone:
                        self._writer.seal_indexes(self._next_offset)
                    self._page.sync()
        finally:
            with self._lock:
                self._refusal = lambda: ClosedError(self.name)
                self._writer.close()
            for segment in self._segments.segments:
                self._cache.forget(segment)
            self._notify()
            with self._sync_lock:
                self._page.close()
