"""CompactingPartition: passes of compaction over an open partition. compaction.py decides what stays."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from commitlog import files
from commitlog.compaction import ChangedError, Cleanable, CompactionReport, Pace, Pass, cleanable
from commitlog.config import LogConfig, TopicConfig
from commitlog.errors import ClosedError, CommitLogError, ConfigError, CorruptionError, DiskFullError
from commitlog.locks import ProcessLock
from commitlog.open_files import HandleCache
from commitlog.partitions.active import now_ms, unsynced
from commitlog.partitions.adopting import AdoptingPartition
from commitlog.partitions.counters import CompactionMetrics
from commitlog.partitions.page import StatePage
from commitlog.partitions.recovery import Recovered, Recovery
from commitlog.progress import Progress
from commitlog.segment import Segment
from commitlog.segment_files import CleanedFile, swap_in
from commitlog.segment_writer import SegmentWriter
from commitlog.tasks import Signal

_logger = logging.getLogger("commitlog.compaction")


class CompactingPartition(AdoptingPartition):
    """One pass runs at a time, under `_compaction_lock`, which is taken before the others."""

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
        self._compaction_lock: threading.Lock | ProcessLock = threading.Lock()
        self._compaction_cancelled = Signal()
        self._compaction_ended = False
        self._compaction_error: str | None = None
        self._is_set_aside = False

    @property
    def clean_offset(self) -> int:
        """Below it compaction has left one record of each key."""
        return self._clean_offset

    @property
    def compaction_error(self) -> str | None:
        """Why the last pass failed, None if it did not."""
        return self._compaction_error

    def cleanable(self, now: int) -> Cleanable:
        """Tell what a pass could clean at `now`, in milliseconds since the epoch; it syncs it first."""
        return cleanable(self._segments.segments, self._clean_offset, self.high_watermark, self.config, now)

    def compact(self, now: int | None = None, progress: Progress | None = None) -> CompactionReport:
        """Keep only the latest record of each key, below the active segment and as far as the map has room.

        `now`, in milliseconds since the epoch, decides what is too young and which tombstones may go.
        `progress` is told bytes done and bytes in all.
        """
        if not self.config.compacts:
            raise ConfigError("cleanup_policy", self.config.cleanup_policy, "must contain compact")
        with self._compaction_lock:
            self._compaction_cancelled.clear()
            self._check_open()
            if self._compaction_ended:
                raise ClosedError(self.name)
            self.sync()  # a pass puts durable files in place, so what they are made of must be durable
            try:
                report = self._compact(now_ms() if now is None else now, progress)
            except BaseException as error:
                full = isinstance(error, OSError) and files.is_full(error)
                self.set_aside(error, until_there_is_room=full)
                if isinstance(error, OSError) and full:
                    raise DiskFullError(self.path, error.strerror) from error
                raise
            self._compaction_error = None
            if report.stopped_by != "nothing to clean":
                self._tally.compacted(report)
                _logger.info(
                    "%s: a pass up to offset %d left %d of %d records, %d of %d bytes, in %.3f s%s",
                    self.name, report.clean_offset, report.records_after, report.records_before,
                    report.bytes_after, report.bytes_before, report.seconds,
                    f" ({report.stopped_by})" if report.stopped_by else "",
                )  # fmt: skip
            return report

    def _compact(self, now: int, progress: Progress | None) -> CompactionReport:
        try:
            return self._run_pass(now, progress)
        except FileNotFoundError as problem:
            self._check_not_lost(problem.filename)
        return CompactionReport(self.name, self._clean_offset, self._clean_offset, stopped_by="changed")

    def _run_pass(self, now: int, progress: Progress | None) -> CompactionReport:
        began = time.perf_counter()
        with self._sync_lock:  # not in the middle of a truncation
            truncations, limit = self._page.truncations, min(self.high_watermark, self._durable_offset)
            work = cleanable(self._segments.segments, self._clean_offset, limit, self.config, now)
        if not work.segments:
            stopped = "nothing to clean"
            return CompactionReport(self.name, self._clean_offset, self._clean_offset, stopped_by=stopped)
        settings = self._log_config
        pace = Pace(settings.cleaner_io_max_bytes_per_second, self._compaction_cancelled)
        swap, buffer_bytes = partial(self._swap, truncations), settings.cleaner_dedupe_buffer_bytes
        run = Pass(work, self._start_offset, self.config, buffer_bytes, now, pace, swap, progress)
        stopped_by = run.run()
        with self._sync_lock:
            if self._page.truncations != truncations:
                stopped_by = "changed"
            elif run.end > self._clean_offset and self._refusal is None:
                self._clean_offset = run.end
                self._page.publish_clean(run.end)
                self._page.keep()
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

    def _check_not_lost(self, path: str) -> None:
        with self._sync_lock:
            if path in [one.path for one in self._segments.segments] and not os.path.exists(path):
                raise CorruptionError(path, 0, "the file is missing") from None

    def _swap(self, truncations: int, cleaned: CleanedFile, group: Sequence[Segment]) -> None:
        """Put a cleaned file in the place of the segments it was made of, if they are all still there.

        Nor may later records, for which some were left out, have been truncated since. Trims, truncations and
        syncs wait; appends go on, and a roll leaves the generation odd.
        """
        with self._sync_lock:
            self._check_writable()
            if self._page.truncations != truncations or not self._are_all_there(group):
                raise ChangedError
            try:
                self._replace(cleaned, group)
            except Exception as error:
                self._fail(str(error) or type(error).__name__)
                with self._lock:
                    self._replacing = False
                    self._look_again()
                raise
            except BaseException:
                with self._lock:
                    self._replacing = False
                    self._put_right(self._take_up_files)  # even if the page is done: memory may not be
                raise

    def _replace(self, cleaned: CleanedFile, group: Sequence[Segment]) -> None:
        """Swap a cleaned file in. The generation stays odd meanwhile, whatever appends do."""
        with self._lock:
            self._replacing = True
            self._page.begin_change()
        segment = swap_in(cleaned, group, self._retire)
        with self._lock:
            self._replacing = False
            self._publish_swapped(segment, group)

    def _publish_swapped(self, segment: Segment, group: Sequence[Segment]) -> None:
        segments, first = self._segments.segments, self._segments.find(segment.base_offset)
        self._publish_layout((*segments[:first], segment, *segments[first + len(group) :]))

    def _take_up_files(self) -> None:
        """Bring files, page and memory into order, as open() does; with both locks held."""
        page, position = self._page, self._writer.segment.size_bytes
        self._writer.close()
        for segment in self._segments.segments:
            self._cache.forget(segment)
        recovery = Recovery(self.path, self.name, page.checkpoint, self.config, self._cache)
        found = recovery.run(clean=False, mode="cut", spare_cleaned=True)
        active = found.segments[-1]
        self._tally.moved(found.next_offset - self._next_offset, active.size_bytes - position)
        self._writer = SegmentWriter.open(active, self.config, trust_indexes=False)
        self._start_offset, self._next_offset = found.start_offset, found.next_offset
        self._durable_offset, self._clean_offset = found.durable_offset, found.clean_offset
        self._unsynced = unsynced(found)
        self._name_changes += 1
        self._publish_layout(found.segments)
        page.publish_start(found.start_offset)
        page.publish_clean(found.clean_offset)
        page.publish_durable(found.durable_offset)
        page.count_truncation()
        if page.has_producers:
            self._restore_producers()

    def _are_all_there(self, group: Sequence[Segment]) -> bool:
        there = {(one.base_offset, one.inode) for one in self._segments.segments}
        return all((one.base_offset, one.inode) in there for one in group)

    def _compaction_metrics(self) -> CompactionMetrics | None:
        if not self.config.compacts:
            return None
        try:
            ratio = self.cleanable(now_ms()).dirty_ratio
        except (OSError, CommitLogError):  # trimmed meanwhile, or damaged: a pass will tell
            ratio = None
        return replace(self._tally.passes, dirty_ratio=ratio)

    def cancel_compaction(self) -> None:
        """End a pass that is under way, as soon as it comes by; what it has put in place stays."""
        self._compaction_cancelled.set()

    def end_compaction(self) -> None:
        """Cancel a pass that is under way, and let no other begin: the log is closing."""
        self._compaction_ended = True
        self.cancel_compaction()

    def set_aside(self, error: BaseException, *, until_there_is_room: bool = False) -> None:
        """Remember why this partition cannot be compacted; the cleaner then leaves it alone."""
        self._compaction_error = f"{type(error).__name__}: {error}"
        self._is_set_aside = not until_there_is_room

    @property
    def is_set_aside(self) -> bool:
        """Whether the cleaner leaves it alone: the last pass failed, and not for want of room."""
        return self._compaction_error is not None and self._is_set_aside
