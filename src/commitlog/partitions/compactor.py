"""Compactor: runs compaction passes over an open partition. compaction.py decides which records stay."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import replace

from commitlog import files
from commitlog.compaction import Cleanable, CompactionReport, Pace, Pass, cleanable, dirty_ratio
from commitlog.config import LogConfig
from commitlog.errors import ClosedError, ConfigError, CorruptionError
from commitlog.partitions.counters import CompactionMetrics
from commitlog.partitions.producer_state import remove_snapshots, snapshots
from commitlog.partitions.state import LogState, now_ms
from commitlog.partitions.syncer import Syncer
from commitlog.progress import Progress
from commitlog.segment import Segment
from commitlog.segment_files import CleanedFile, swap_in
from commitlog.tasks import Signal

_logger = logging.getLogger("commitlog.compaction")


class Compactor:
    """Runs one pass at a time, under the compaction lock; `error` says why the last one failed."""

    def __init__(self, state: LogState, syncer: Syncer, log_config: LogConfig) -> None:
        self._state = state
        self._syncer = syncer
        self._log_config = log_config
        self._cancelled = Signal()
        self._ended = False
        self.error: str | None = None
        self._is_set_aside = False

    def cleanable(self, now: int) -> Cleanable:
        """Return what a pass could clean at `now`, in milliseconds since the epoch."""
        state = self._state
        state.access.learn()
        limit = state.last_stable_offset
        return cleanable(state.segments.segments, state.clean_offset, limit, state.config, now)

    def compact(self, now: int | None = None, progress: Progress | None = None) -> CompactionReport:
        """Run a pass and return its report; see Partition.compact()."""
        state = self._state
        if not state.config.compacts:
            raise ConfigError("cleanup_policy", state.config.cleanup_policy, "must contain compact")
        state.access.learn()
        with state.access.compaction_lock:
            self._cancelled.clear()
            state.check_open()
            if self._ended:
                raise ClosedError(state.name)
            with state.sync_lock, state.lock:
                # before the sync: a marker that comes after it may be lost in a power cut
                truncations, stable = state.page.truncations, state.last_stable_offset
            self._syncer.sync()  # a pass writes durable files, so what they are made of must be durable
            try:
                report = self._compact(truncations, stable, now_ms() if now is None else now, progress)
            except BaseException as error:
                full = isinstance(error, OSError) and files.is_full(error)
                self.set_aside(error, until_there_is_room=full)
                if isinstance(error, OSError):
                    raise state.full(error) from error
                raise
            self.error = None
            if report.stopped_by != "nothing to clean":
                state.counters.compacted(report)
                _logger.info(
                    "%s: a pass up to offset %d left %d of %d records, %d of %d bytes, in %.3f s%s",
                    state.name, report.clean_offset, report.records_after, report.records_before,
                    report.bytes_after, report.bytes_before, report.seconds,
                    f" ({report.stopped_by})" if report.stopped_by else "",
                )  # fmt: skip
            return report

    def _compact(
        self, truncations: int, stable: int, now: int, progress: Progress | None
    ) -> CompactionReport:
        """Run a pass below `stable`, unless something was truncated since that count of `truncations`."""
        state = self._state
        try:
            return self._run_pass(truncations, stable, now, progress)
        except FileNotFoundError as problem:
            self._check_not_lost(problem.filename)
        return CompactionReport(state.name, state.clean_offset, state.clean_offset, stopped_by="changed")

    def _run_pass(
        self, truncations: int, stable: int, now: int, progress: Progress | None
    ) -> CompactionReport:
        state = self._state
        began = time.perf_counter()
        with state.sync_lock:  # not during a truncation
            limit, changed = min(stable, state.durable_offset), state.page.truncations != truncations
            work = cleanable(state.segments.segments, state.clean_offset, limit, state.config, now)
        if changed or not work.segments:
            stopped = "changed" if changed else "nothing to clean"
            return CompactionReport(state.name, state.clean_offset, state.clean_offset, stopped_by=stopped)
        if state.has_transactions:  # a marker that goes may be above an older snapshot, for which it is open
            remove_snapshots(snapshots(state.path)[:-1])
        settings = self._log_config
        pace = Pace(settings.cleaner_io_max_bytes_per_second, self._cancelled)
        buffer_bytes = settings.cleaner_dedupe_buffer_bytes
        aborted = state.aborted_in(state.segments) if state.has_transactions else None
        run = Pass(work, state.start_offset, state.config, buffer_bytes, now, pace, progress, aborted)
        with contextlib.closing(run.cleaned()) as cleaned_files:
            for cleaned, group in cleaned_files:
                if not self._swap(truncations, cleaned, group):
                    run.stop("changed")
                    break
        with state.sync_lock:
            if state.page.truncations != truncations:
                run.stopped_by = "changed"
            elif run.end > state.clean_offset and state.ended_by is None:
                state.clean_offset = run.end
                state.page.publish_clean(run.end)
                state.page.keep()
            with state.lock:
                state.list_aborted_again()
        return CompactionReport(
            state.name,
            work.first_dirty,
            state.clean_offset,
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
            stopped_by=run.stopped_by,
        )

    def _check_not_lost(self, path: str) -> None:
        state = self._state
        state.access.learn()  # another process may have replaced the file
        with state.sync_lock:
            if path in [one.path for one in state.segments.segments] and not os.path.exists(path):
                raise CorruptionError(path, 0, "the file is missing") from None

    def _swap(self, truncations: int, cleaned: CleanedFile, group: Sequence[Segment]) -> bool:
        """Replace segments by the cleaned file made of them, if they are all still there; returns whether.

        Nothing may have been truncated since, because records may have been dropped in favour of truncated
        ones. Trims, truncations and syncs wait; appends go on, and a roll leaves the generation odd.
        """
        state = self._state
        with state.sync_lock:
            state.check_writable()
            if state.page.truncations != truncations or not self._are_all_there(group):
                return False
            try:
                self._replace(cleaned, group)
            except Exception as error:
                state.fail(str(error) or type(error).__name__)
                with state.lock:
                    state.replacing = False
                    state.look_again()
                raise
            except BaseException:
                with state.lock:
                    state.replacing = False
                    state.put_right(state.take_up_files)  # even if the page is right, memory may not be
                raise
        return True

    def _replace(self, cleaned: CleanedFile, group: Sequence[Segment]) -> None:
        """Swap a cleaned file in. The generation stays odd meanwhile, whatever appends do.

        If other processes write, too, the lock is held throughout: without it, an odd generation means that
        one of them has died.
        """
        state = self._state
        if not state.access.alone:
            with state.lock:
                state.page.begin_change()
                self._publish_swapped(swap_in(cleaned, group, state.retire), group)
            return
        with state.lock:
            state.replacing = True
            state.page.begin_change()
        segment = swap_in(cleaned, group, state.retire)
        with state.lock:
            state.replacing = False
            self._publish_swapped(segment, group)

    def _publish_swapped(self, segment: Segment, group: Sequence[Segment]) -> None:
        state = self._state
        segments, first = state.segments.segments, state.segments.find(segment.base_offset)
        state.publish_layout((*segments[:first], segment, *segments[first + len(group) :]))

    def _are_all_there(self, group: Sequence[Segment]) -> bool:
        state = self._state
        there = {(one.base_offset, one.inode) for one in state.segments.segments}
        return all((one.base_offset, one.inode) in there for one in group)

    def metrics(self) -> CompactionMetrics | None:
        """Return the counters of compaction; None if the topic is not compacted."""
        state = self._state
        if not state.config.compacts:
            return None
        segments, limit = state.segments.segments, state.last_stable_offset
        ratio = dirty_ratio(segments, state.clean_offset, limit, state.config, now_ms())
        return replace(state.counters.passes, dirty_ratio=ratio)

    def cancel(self) -> None:
        """End a running pass within a batch; segments that it has replaced stay replaced."""
        self._cancelled.set()

    def end(self) -> None:
        """Cancel a running pass and allow no other: the log is closing."""
        self._ended = True
        self.cancel()

    def set_aside(self, error: BaseException, *, until_there_is_room: bool = False) -> None:
        """Note the error of a pass; the cleaner skips the partition, unless it only lacks room."""
        self.error = f"{type(error).__name__}: {error}"
        self._is_set_aside = not until_there_is_room

    @property
    def is_set_aside(self) -> bool:
        """Whether the cleaner skips the partition: its last pass failed, and not because of a full disk."""
        return self.error is not None and self._is_set_aside
