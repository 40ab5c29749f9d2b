"""Shortener: removes records from the front or the back of an open partition."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence

from commitlog import files, retention
from commitlog.batches.encode import EncodedBatch
from commitlog.batches.markers import encode_marker
from commitlog.config import MAX_INT64
from commitlog.errors import CommitLogError, CorruptionError, DiskFullError, OffsetOutOfRangeError
from commitlog.partitions import producer_state
from commitlog.partitions.layout import markers_from
from commitlog.partitions.producer_state import Producers, remove_snapshots, snapshots, sync_snapshots
from commitlog.partitions.producer_state import offset_of as snapshot_offset
from commitlog.partitions.state import LogState, now_ms
from commitlog.partitions.syncer import Syncer
from commitlog.segment import TEMPORARY_SUFFIX, Segment
from commitlog.segment_files import CUT_SUFFIX, make_final, put_in_place, shorter_copy
from commitlog.segment_writer import SegmentWriter

_logger = logging.getLogger("commitlog.retention")


class Shortener:
    """Trims, truncates and restarts; `retention_error` is damage that keeps expired segments from removal."""

    def __init__(self, state: LogState, syncer: Syncer) -> None:
        self._state = state
        self._syncer = syncer
        self._outgoing: list[Segment] = []  # no longer in the layout, but still to be retired
        self.retention_error: str | None = None

    def trim_before(self, offset: int, truncations: int | None = None) -> bool:
        """Remove the records below `offset` and return True; with `truncations`, only if that count is still
        true, because after a truncation other records may have these offsets.
        """
        state = self._state
        state.check_writable()
        if offset <= state.start_offset:
            return True
        if offset > state.high_watermark:
            state.access.learn()  # another process may have appended
        if offset > state.high_watermark and truncations is None:
            raise OffsetOutOfRangeError(state.name, offset, state.start_offset, state.high_watermark)
        self._syncer.sync_to(offset)  # keeps start_offset <= durable_offset, which recovery relies on
        with state.sync_lock:
            state.check_writable()
            if truncations is not None and state.page.truncations != truncations:
                return False
            if offset > state.durable_offset:  # truncated meanwhile
                raise OffsetOutOfRangeError(state.name, offset, state.start_offset, state.high_watermark)
            if offset > state.start_offset:
                try:
                    self._trim_to(offset)
                except Exception:
                    raise
                except BaseException:  # Ctrl-C: each step can be repeated
                    state.put_right(lambda: self._trim_to(offset))
                    raise
        return True

    def _trim_to(self, offset: int) -> None:
        state = self._state
        self._keep_published(offset)
        state.page.publish_start(offset)
        self._syncer.sync_page()
        # crash: segments below start_offset are still there -> open() removes them
        with state.lock:
            state.start_offset = offset
            state.epochs = state.epochs.trimmed_before(offset)
            if offset == state.next_offset and state.writer.segment.size_bytes and state.rolls_by_itself:
                self._roll_in_freed_space()
            layout = state.segments
            keep = layout.find(offset)
            if keep or state.page.generation % 2:  # Ctrl-C may have come just before the change ended
                self._outgoing += [one for one in layout.segments[:keep] if one not in self._outgoing]
                state.publish_layout(layout.segments[keep:])
                state.forget_aborted_before(layout.bases[keep])
            state.unsynced = [one for one in state.unsynced if one.base_offset >= layout.bases[keep]]
        if state.name_changes != state.names_synced:
            self._syncer.sync_names()  # the segment that stays must be durable before the others go
        self._remove_outgoing()

    def _remove_outgoing(self) -> None:
        state = self._state
        while self._outgoing:
            segment = self._outgoing[0]
            state.retire(segment)
            state.counters.trimmed(1, segment.size_bytes)
            del self._outgoing[0]

    def _roll_in_freed_space(self) -> None:
        """Roll, because everything is trimmed. Locked.

        On a full disk, first unlink the segments before the active one, and those that were removed earlier
        and otherwise stay for file_delete_delay_ms.
        """
        state = self._state
        try:
            state.roll()
        except DiskFullError:
            *before, active = state.segments.segments
            self._outgoing += [one for one in before if one not in self._outgoing]
            state.publish_layout((active,))
            self._remove_outgoing()
            state.trash.empty(float("inf"))
            # crash: only the active segment is there, and start_offset is at its end -> open() goes on in it
            state.roll()

    def apply_retention(self, now_ms: int) -> int:
        """Remove the segments that have expired; returns how many. See Partition.apply_retention()."""
        state = self._state
        with state.lock:
            state.check_writable()
            layout, truncations = state.segments, state.page.truncations
            sizes, active_max = [one.size_bytes for one in layout.segments], state.writer.latest()
            # a follower trims its active segment only when its leader's start_offset says so
            ends = [*layout.bases, state.next_offset if state.rolls_by_itself else MAX_INT64]
            mark = state.last_stable_offset  # a transaction is removed once it is decided, not in part before
            most = max(number for number, end in enumerate(ends) if number == 0 or end <= mark)
        try:
            count, damage = retention.expired(layout.segments, sizes, active_max, state.config, now_ms, most)
        except FileNotFoundError as problem:  # removed or replaced meanwhile, or lost
            count, damage = 0, CorruptionError(problem.filename, 0, "the file is missing")
        if damage is not None and state.changes != layout.generation:
            return 0  # apparent damage may be a segment that was just replaced: wait for the next round
        self._note_retention(damage)
        if count and self.trim_before(ends[count], truncations):
            _logger.info("%s: retention removed %d segments, up to offset %d", state.name, count, ends[count])
            return count
        return 0

    def _note_retention(self, damage: CommitLogError | None) -> None:
        state = self._state
        error = None if damage is None else f"{type(damage).__name__}: {damage}"
        if error is not None and error != self.retention_error:
            _logger.warning("%s: retention keeps a damaged segment and those after it: %s", state.name, error)
        self.retention_error = error

    def _keep_published(self, offset: int) -> None:
        """Make the state of the last publication durable if its batch is below `offset`: the publication may
        be unfinished, and the process that finishes it must not start over. With `sync_lock` held.
        """
        state = self._state
        with state.lock:
            published = state.producers.published
            if published is None or published.base_offset >= offset:
                return
            state.save_producers()
            unsynced = self._syncer.take_unsynced()  # a snapshot beyond the end of the log is ignored
        self._syncer.sync_files(*unsynced)
        with contextlib.suppress(OSError, IndexError):  # a full disk must not prevent a trim
            sync_snapshots(state.path)
            remove_snapshots(snapshots(state.path)[:-1])

    def truncate_from(self, offset: int) -> None:
        """Remove the records and leader epochs from `offset` on; the next append gets `offset`."""
        state = self._state
        with state.sync_lock, state.lock:
            state.check_writable()
            if not state.start_offset <= offset <= state.next_offset:
                raise OffsetOutOfRangeError(state.name, offset, state.start_offset, state.next_offset)
            state.wake()
            self._make(lambda: self._truncate_to(offset))
            history = state.epochs.truncated_from(offset)
            if history != state.epochs:  # also drops epochs without records
                state.store_epochs(history)
                state.epochs = history
        state.notify()  # readers that wait beyond the new end

    def _truncate_to(self, offset: int) -> None:
        if offset < self._state.next_offset:
            self._truncate_locked(offset, self._markers_again(offset))

    def _make(self, change: Callable[[], None]) -> None:
        """Make a change that replaces files, with both locks held. An error half-way stops the partition;
        after Ctrl-C half-way the change is made again, from what the files then hold.
        """
        state = self._state
        truncations = state.page.truncations
        try:
            change()
        except DiskFullError:  # nothing has moved
            raise
        except Exception as error:
            state.fail(str(error))
            state.look_again()
            raise
        except BaseException:
            if state.page.generation % 2 or state.page.truncations != truncations:
                state.put_right(lambda: self._make_again(change))
            raise

    def _make_again(self, change: Callable[[], None]) -> None:
        state = self._state
        state.take_up_files()
        change()

    def _truncate_locked(self, offset: int, markers: Sequence[EncodedBatch] = ()) -> None:
        """Make the log end at `offset`, which may be below start_offset, but not below the first segment.

        The `markers` follow there.
        """
        state = self._state
        history = state.epochs.truncated_from(offset)
        if history != state.epochs:
            state.store_epochs(history)
        # crash: records whose leader epochs the file does not tell -> open() reads them from the batches
        keep = state.segments.find(offset)
        try:
            size = shorter_copy(state.segments.segments[keep], offset, markers)
        except OSError as error:
            raise state.full(error) from error
        self._end_at(offset, offset + len(markers), keep, size)
        state.epochs = history

    def _markers_again(self, offset: int) -> list[EncodedBatch]:
        """Return new markers for the transactions that begin below `offset` and whose markers are above it.

        What was decided stays decided. A replica gets its markers from its leader instead.
        """
        state = self._state
        if not state.has_transactions or state.mark is not None:
            return []
        segments = state.segments.segments
        kept = producer_state.restored(state.path, segments, offset, now_ms(), read_only=True)
        decided: dict[tuple[int, int], bool] = {}
        with contextlib.suppress(CorruptionError):  # the part that goes may be damaged
            for header, _ in markers_from(segments, offset, state.next_offset):
                decided.setdefault((header.producer_id, header.producer_epoch), header.commits)
        return [
            encode_marker(
                one.producer_id, one.epoch, commits=decided[one[:2]],
                first_offset=one.first_offset, timestamp=now_ms(),
            )
            for one in kept.open_transactions()
            if one[:2] in decided
        ]  # fmt: skip

    def _end_at(self, offset: int, end: int, keep: int, size: int) -> None:
        """Remove what is at `offset` and above, from the segment number `keep` on, of which a shorter copy is
        ready: with its markers it ends at `end`.
        """
        state = self._state
        page, segments = state.page, state.segments.segments
        state.durable_offset = min(state.durable_offset, offset)
        state.clean_offset = min(state.clean_offset, offset)
        page.begin_change()
        page.count_truncation()
        if state.mark is not None and state.mark > offset:
            state.publish_mark(offset)
        page.publish_clean(state.clean_offset)
        page.publish_durable(state.durable_offset)
        self._syncer.sync_page()
        # crash: the recovery point is lower than it need be -> open() checks more and finds every record
        suffix = TEMPORARY_SUFFIX
        if end > offset:  # the markers must not go before those that repeat them are durable
            make_final(segments[keep])
            # crash: .cut beside the segment and those that follow -> open() finishes the truncation
            suffix = CUT_SUFFIX
        state.writer.close()
        for segment in reversed(segments[keep + 1 :]):
            state.retire(segment)
        remove_snapshots(path for path in snapshots(state.path) if snapshot_offset(path) > offset)
        files.sync_directory(state.path)
        # crash: the log ends with the segment that holds `offset` -> open() finds its records again
        kept = put_in_place(segments[keep], size, suffix)
        state.start_offset = min(state.start_offset, offset)
        page.publish_start(state.start_offset)
        state.counters.moved(end - state.next_offset, kept.size_bytes - state.writer.segment.size_bytes)
        state.next_offset = end
        state.unsynced = [one for one in state.unsynced if one.base_offset < kept.base_offset]
        state.writer = SegmentWriter.open(kept, state.config, trust_indexes=False)
        state.publish_layout((*segments[:keep], kept))
        page.count_truncation()
        if page.has_producers:
            state.restore_producers()
        self._syncer.sync_locked()

    def restart_at(self, offset: int) -> None:
        """Remove all records and all state derived from them; the next append gets `offset`."""
        state = self._state
        if not 0 <= offset <= MAX_INT64:
            raise OffsetOutOfRangeError(state.name, offset, 0, MAX_INT64)
        with state.sync_lock, state.lock:
            state.check_writable()
            state.wake()
            self._make(lambda: self._restart_locked(offset))
        state.notify()

    def _restart_locked(self, offset: int) -> None:
        state = self._state
        self._truncate_locked(state.segments.bases[0])
        if offset != state.next_offset:
            self._move_to(offset)
        remove_snapshots(snapshots(state.path))
        state.producers = Producers()
        state.producers.next_offset = offset
        state.find_undecided()
        if state.mark is not None:
            state.publish_mark(offset)
        self._syncer.sync_page()

    def _move_to(self, offset: int) -> None:
        """Move an empty log to another offset, in a new segment."""
        state = self._state
        page, old, forward = state.page, state.writer, offset > state.next_offset
        page.begin_change()
        page.count_truncation()
        try:
            new = SegmentWriter.create(state.path, offset, state.config, state.cache)
        except OSError as error:
            state.end_change()
            raise state.full(error) from error
        files.sync_directory(state.path)
        # crash: two empty segments, the page names the old one -> open() goes on in one of them
        old.close()
        state.counters.moved(offset - state.next_offset, -old.segment.size_bytes)
        state.writer, state.unsynced = new, []
        state.clean_offset = min(state.clean_offset, offset)
        if state.mark is not None:
            state.publish_mark(min(state.mark, offset))
        if forward:  # readers must always see start_offset <= durable_offset <= next_offset
            state.next_offset = offset
            state.publish_layout((new.segment,))
        state.start_offset = state.durable_offset = offset
        page.publish_start(offset)
        page.publish_clean(state.clean_offset)
        page.publish_durable(offset)
        if not forward:
            state.next_offset = offset
            state.publish_layout((new.segment,))
        page.count_truncation()
        self._syncer.sync_page()
        # crash: two empty segments, the page names the new one -> open() removes the old one
        state.retire(old.segment)
        self._syncer.sync_names()
