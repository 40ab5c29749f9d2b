"""Partition: its opening, its housekeeping and its end. The rest stands in the classes that it is made of:
active.py, writer.py, compacting.py, shortening.py and replicated.py.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Self

from commitlog import files, retention
from commitlog.config import MAX_INT64, LogConfig, TopicConfig
from commitlog.errors import ClosedError, CommitLogError, CorruptionError, DiskFullError, ForkedError
from commitlog.open_files import HandleCache
from commitlog.partitions.counters import PartitionMetrics
from commitlog.partitions.page import StatePage
from commitlog.partitions.recovery import Recovery
from commitlog.partitions.replicated import ReplicatedPartition
from commitlog.progress import Progress, Steps
from commitlog.repair import RepairReport, repaired

_logger = logging.getLogger("commitlog.retention")


class Partition(ReplicatedPartition):
    """A partition opened for writing: append, read, trim, truncate, compact, repair; and, with replicas, lead
    and follow. Threads may share it.
    """

    _inherited = False  # whether this is a forked child's copy
    _alone = True  # whether no other process writes the partition
    _retention_error: str | None = None

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
        steps: Steps | None = None,
    ) -> Self:
        """Open for writing, after recovery; the directory must be there."""
        old = StatePage.open(path)
        known = old.checkpoint if old else None
        recovery = Recovery(path, name, known, config, cache, steps)
        found = recovery.run(clean=clean, mode=log_config.recovery_mode)
        page = StatePage.create(path)
        partition = cls(path, name, config, log_config, cache, page, found)
        partition._open_replica(old.kept_high_watermark if old else None)
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

    # --- housekeeping

    def apply_retention(self, now_ms: int) -> int:
        """Remove the segments that retention no longer keeps; returns how many.

        Every batch of those past their time is checked first. A damaged segment stays, with all that follow
        it, and `retention_error` says why.
        """
        with self._lock:
            self._check_writable()
            layout, truncations = self._segments, self._page.truncations
            sizes, active_max = [one.size_bytes for one in layout.segments], self._writer.max_timestamp
            # what a follower's active segment no longer keeps, its leader's start_offset tells
            ends = [*layout.bases, self._next_offset if self._rolls_by_itself else MAX_INT64]
            most = max(number for number, end in enumerate(ends) if number == 0 or end <= self.high_watermark)
        try:
            count, damage = retention.expired(layout.segments, sizes, active_max, self.config, now_ms, most)
        except FileNotFoundError as problem:  # removed or replaced meanwhile, or lost
            count, damage = 0, CorruptionError(problem.filename, 0, "the file is missing")
        if damage is not None and self._changes != layout.generation:
            return 0  # what looks like damage may be a segment that was just replaced: the next round tells
        self._note_retention(damage)
        if count and self._trim(ends[count], truncations):
            _logger.info("%s: retention removed %d segments, up to offset %d", self.name, count, ends[count])
            return count
        return 0

    def _note_retention(self, damage: CommitLogError | None) -> None:
        error = None if damage is None else f"{type(damage).__name__}: {damage}"
        if error is not None and error != self._retention_error:
            _logger.warning("%s: retention keeps a damaged segment and those after it: %s", self.name, error)
        self._retention_error = error

    @property
    def retention_error(self) -> str | None:
        """The damage that keeps retention from removing segments that are past their time."""
        return self._retention_error

    def metrics(self) -> PartitionMetrics:
        """Tell where the partition stands, and what was written to it since it was opened here."""
        with self._lock:
            found, end = super().metrics(), self._writer.segment.size_bytes
            written = self._tally.written(self._next_offset, end, len(self._producers))
        return replace(found, written=written, compaction=self._compaction_metrics())

    def empty_trash(self, now: float) -> None:
        """Unlink the removed files whose file_delete_delay_ms is over; `now` is time.monotonic()."""
        self._trash.empty(now)

    def repair(self, progress: Progress | None = None) -> RepairReport:
        """Keep what is sound of damaged segments, rebuild false indexes; the old files stay as `.damaged`.

        `progress` is told bytes done and bytes in all.
        """
        with self._sync_lock, self._lock:
            self._check_writable()
            try:
                return self._repair_locked(progress)
            except DiskFullError:  # nothing has moved
                raise
            except BaseException as error:
                self._fail(str(error) or type(error).__name__)
                self._look_again()
                raise

    def _repair_locked(self, progress: Progress | None) -> RepairReport:
        if self._writer.segment.size_bytes:
            # every segment with records is sealed then, one whose file is lost too, and offsets go on
            self._roll_locked(even_if_removed=True)
        self._page.begin_change()
        sealed = self._segments.segments[:-1]
        segments, report = repaired(sealed, self._next_offset, self.config, progress)
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
