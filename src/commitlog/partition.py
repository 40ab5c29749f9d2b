"""Partition: its opening and its end, and what takes away from it. writer.py and active.py are its base."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Self

from commitlog import files, retention
from commitlog.active import now_ms
from commitlog.compaction import ChangedError, Cleanable, CompactionReport, Pace, Pass, cleanable
from commitlog.config import LogConfig, TopicConfig
from commitlog.errors import (
    ClosedError,
    CommitLogError,
    ConfigError,
    DiskFullError,
    ForkedError,
    OffsetOutOfRangeError,
)
from commitlog.handles import HandleCache
from commitlog.recovery import Recovered, Recovery
from commitlog.repair import RepairReport
from commitlog.rewrite import put_in_place, repaired, shorter_copy
from commitlog.segment import Segment
from commitlog.segment_writer import SegmentWriter
from commitlog.state import StatePage
from commitlog.swap import CleanedFile, swap_in
from commitlog.writer import PartitionWriter


class Partition(PartitionWriter):
    """A partition opened for writing: append, read, trim, truncate, compact, repair. Threads may share it.

    One pass of compaction runs at a time, under `_compaction_lock`, which is taken before the others.
    """

    _inherited = False  # whether this is a forked child's copy

    def __init__(
        self,
        path: str,
        name: str,
        config: TopicConfig,
        log_config: LogConfig,
        cache: HandleCache,
        page: StatePage,
        found: Recovered,
    ) -> None:
        super().__init__(path, name, config, cache, page, found)
        self._log_config = log_config
        self._clean_offset = found.clean_offset
        self._truncations = 0
        self._compaction_lock = threading.Lock()
        self._compaction_cancelled = threading.Event()
        self._compaction_error: str | None = None

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

    def _retire(self, segment: Segment) -> None:
        self._cache.forget(segment)
        self._trash.take(segment, time.monotonic() + self.config.file_delete_delay_ms / 1000)

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
        self._truncations += 1
        page.begin_change()
        page.publish_clean(self._clean_offset)
        page.publish_durable(self._durable_offset)
        self._sync_page()
        # crash: the recovery point is lower than it need be -> open() checks more and finds every record
        self._writer.close()
        for segment in reversed(segments[keep + 1 :]):
            self._retire(segment)
        files.sync_directory(self.path)
        # crash: the log ends with the segment that holds `offset` -> open() finds its records again
        kept = put_in_place(segments[keep], size)
        self._next_offset = offset
        self._unsynced = [one for one in self._unsynced if one.base_offset < kept.base_offset]
        self._writer = SegmentWriter.open(kept, self.config, trust_indexes=False)
        self._publish_layout((*segments[:keep], kept))
        self._sync_locked()

    @contextlib.contextmanager
    def _stopped(self) -> Iterator[None]:
        """Hold off appends and syncs while files are replaced; an error half-way ends the partition."""
        with self._sync_lock, self._lock:
            self._check_writable()
            try:
                yield
            except (OffsetOutOfRangeError, DiskFullError):  # nothing has moved
                raise
            except BaseException as error:
                self._fail(str(error) or type(error).__name__)
                self._look_again()
                raise

    def _look_again(self) -> None:
        """After a failure half-way: let readers see what the files hold now."""
        with contextlib.suppress(OSError, CommitLogError):
            recovery = Recovery(self.path, self.name, self._page.checkpoint, self.config, self._cache)
            found = recovery.run(clean=False, mode="cut", read_only=True)
            self._next_offset = found.next_offset
            self._publish_layout(found.segments)
        self._end_change()

    # --- compaction

    @property
    def clean_offset(self) -> int:
        """Below it compaction has left one record of each key."""
        return self._clean_offset

    @property
    def compaction_error(self) -> str | None:
        """Why the last pass failed, None if it did not."""
        return self._compaction_error

    def cleanable(self, now: int) -> Cleanable:
        """Tell what a pass could clean at `now`, in milliseconds since the epoch."""
        segments = self._segments.segments
        limit = min(self.high_watermark, self.durable_offset)
        return cleanable(segments, self._clean_offset, limit, self.config, now)

    def compact(self, now: int | None = None) -> CompactionReport:
        """Keep only the latest record of each key, below the active segment and as far as the map has room.

        `now`, in milliseconds since the epoch, decides what is too young and which tombstones may go.
        """
        if not self.config.compacts:
            raise ConfigError("cleanup_policy", self.config.cleanup_policy, "must contain compact")
        with self._compaction_lock:
            self._compaction_cancelled.clear()
            self._check_open()
            self.sync()  # a pass puts durable files in place, so what they are made of must be durable
            try:
                report = self._compact(now_ms() if now is None else now)
            except BaseException as error:
                self._compaction_error = f"{type(error).__name__}: {error}"
                raise
            self._compaction_error = None
            return report

    def _compact(self, now: int) -> CompactionReport:
        began = time.perf_counter()
        work, truncations = self.cleanable(now), self._truncations
        if not work.segments:
            stopped = "nothing to clean"
            return CompactionReport(self.name, self._clean_offset, self._clean_offset, stopped_by=stopped)
        settings = self._log_config
        pace = Pace(settings.cleaner_io_max_bytes_per_second, self._compaction_cancelled)
        run = Pass(
            work, self._start_offset, self.config, settings.cleaner_dedupe_buffer_bytes, now, pace, self._swap
        )
        stopped_by = run.run()
        with self._sync_lock:
            if self._truncations != truncations:
                stopped_by = "changed"
            elif run.end > self._clean_offset and self._refusal is None:
                self._clean_offset = run.end
                self._page.publish_clean(run.end)
        return CompactionReport(
            self.name,
            work.first_dirty,
            self._clean_offset,
            segments_before=len(work.segments),
            segments_after=run.segments_after,
            records_before=run.records_before,
            records_after=run.records_after,
            bytes_before=run.bytes_before,
            bytes_after=run.bytes_after,
            tombstones_removed=run.tombstones_removed,
            keys=run.keys,
            map_use=run.map_use,
            seconds=time.perf_counter() - began,
            stopped_by=stopped_by,
        )

    def _swap(self, cleaned: CleanedFile, group: Sequence[Segment]) -> None:
        """Put a cleaned file in the place of the segments it was made of, if they are all still there.

        Trims, truncations and syncs wait; appends go on, and a roll leaves the generation odd.
        """
        with self._sync_lock:
            self._check_writable()
            if not {*map(id, group)} <= {*map(id, self._segments.segments)}:
                raise ChangedError
            try:
                with self._changing():
                    segment = swap_in(cleaned, group, self._retire)
                    with self._lock:
                        segments = self._segments.segments
                        first = segments.index(group[0])
                        self._publish_layout((*segments[:first], segment, *segments[first + len(group) :]))
            except BaseException as error:
                self._fail(str(error) or type(error).__name__)
                with self._lock:
                    self._look_again()
                raise

    def cancel_compaction(self) -> None:
        """End a pass that is under way, as soon as it comes by; what it has put in place stays."""
        self._compaction_cancelled.set()

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
        self.cancel_compaction()
        with self._compaction_lock:
            self._close()

    def _close(self) -> None:
        try:
            if self._refusal is None:
                with self._sync_lock, self._lock:
                    self._writer.give_back()
                    self._sync_locked()  # names too, which no record may be waiting for
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
