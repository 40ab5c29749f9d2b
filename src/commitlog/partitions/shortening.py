"""ShorteningPartition: what takes records away from an open partition, from its front or from its back."""

from __future__ import annotations

from collections.abc import Callable

from commitlog import files
from commitlog.config import MAX_INT64
from commitlog.errors import DiskFullError, OffsetOutOfRangeError
from commitlog.partitions.compacting import CompactingPartition
from commitlog.partitions.producer_state import Producers, remove_snapshots, snapshots
from commitlog.partitions.producer_state import offset_of as snapshot_offset
from commitlog.segment_files import put_in_place, shorter_copy
from commitlog.segment_writer import SegmentWriter


class ShorteningPartition(CompactingPartition):
    """Trims and truncates, and restarts at another offset."""

    _rolls_by_itself = True  # a follower rolls where its leader does

    def trim_before(self, offset: int) -> None:
        """Remove the records below `offset`; their files go once no record in them is left."""
        self._trim(offset)

    def _trim(self, offset: int, truncations: int | None = None) -> bool:
        """Remove the records below `offset`; with a count of truncations, only if there was none since: other
        records would have these offsets. Returns whether they are gone.
        """
        self._check_writable()
        if offset <= self._start_offset:
            return True
        if offset > self.high_watermark and truncations is None:
            raise OffsetOutOfRangeError(self.name, offset, self._start_offset, self.high_watermark)
        self._sync_to(offset)  # start_offset <= durable_offset, or recovery would look for what is gone
        with self._sync_lock:
            self._check_writable()
            if truncations is not None and self._page.truncations != truncations:
                return False
            if offset > self._durable_offset:  # truncated meanwhile
                raise OffsetOutOfRangeError(self.name, offset, self._start_offset, self.high_watermark)
            if offset > self._start_offset:
                try:
                    self._trim_to(offset)
                except Exception:
                    raise
                except BaseException:  # Ctrl-C: each step may be made again
                    self._put_right(lambda: self._trim_to(offset))
                    raise
        return True

    def _trim_to(self, offset: int) -> None:
        self._keep_published(offset)
        self._page.publish_start(offset)
        self._sync_page()
        # crash: segments below start_offset are still there -> open() removes them
        with self._lock:
            self._start_offset = offset
            if offset == self._next_offset and self._writer.segment.size_bytes and self._rolls_by_itself:
                self._roll_locked()
            layout = self._segments
            keep = layout.find(offset)
            if keep:
                self._outgoing += [one for one in layout.segments[:keep] if one not in self._outgoing]
                self._publish_layout(layout.segments[keep:])
            self._unsynced = [one for one in self._unsynced if one.base_offset >= layout.bases[keep]]
        if self._name_changes != self._names_synced:
            self._sync_names()  # the segment that stays must be there when the others are gone
        while self._outgoing:
            segment = self._outgoing[0]
            self._retire(segment)
            self._tally.trimmed(1, segment.size_bytes)
            del self._outgoing[0]

    def truncate_from(self, offset: int) -> None:
        """Remove the records at and above `offset`; the next append gets `offset`."""
        with self._sync_lock, self._lock:
            self._check_writable()
            if not self._start_offset <= offset <= self._next_offset:
                raise OffsetOutOfRangeError(self.name, offset, self._start_offset, self._next_offset)
            self._make(lambda: self._truncate_to(offset))

    def _truncate_to(self, offset: int) -> None:
        if offset < self._next_offset:
            self._truncate_locked(offset)

    def _make(self, change: Callable[[], None]) -> None:
        """Replace files, with both locks held. An error half-way ends the partition; after Ctrl-C half-way
        the change is made again, from what the files hold then.
        """
        truncations = self._page.truncations
        try:
            change()
        except DiskFullError:  # nothing has moved
            raise
        except Exception as error:
            self._fail(str(error))
            self._look_again()
            raise
        except BaseException:
            if self._page.generation % 2 or self._page.truncations != truncations:
                self._put_right(lambda: self._make_again(change))
            raise

    def _make_again(self, change: Callable[[], None]) -> None:
        self._take_up_files()
        change()

    def _truncate_locked(self, offset: int) -> None:
        """Make the log end at `offset`, which may lie below start_offset, but not below the first segment."""
        keep = self._segments.find(offset)
        try:
            size = shorter_copy(self._segments.segments[keep], offset)
        except OSError as error:
            if files.is_full(error):
                raise DiskFullError(self.path, error.strerror) from error
            raise
        self._end_at(offset, keep, size)

    def _end_at(self, offset: int, keep: int, size: int) -> None:
        """Let the log end at `offset`, in the segment number `keep`, of which a shorter copy is there."""
        page, segments = self._page, self._segments.segments
        self._durable_offset = min(self._durable_offset, offset)
        self._clean_offset = min(self._clean_offset, offset)
        page.begin_change()
        page.count_truncation()
        if self._mark is not None and self._mark > offset:
            self._publish_mark(offset)
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
        self._start_offset = min(self._start_offset, offset)
        page.publish_start(self._start_offset)
        self._tally.moved(offset - self._next_offset, kept.size_bytes - self._writer.segment.size_bytes)
        self._next_offset = offset
        self._unsynced = [one for one in self._unsynced if one.base_offset < kept.base_offset]
        self._writer = SegmentWriter.open(kept, self.config, trust_indexes=False)
        self._publish_layout((*segments[:keep], kept))
        page.count_truncation()
        if page.has_producers:
            self._restore_producers()
        self._sync_locked()

    def _publish_mark(self, mark: int) -> None:
        self._mark = mark
        self._page.publish_high_watermark(mark)

    def restart_at(self, offset: int) -> None:
        """Remove all records and what was known of them; the next append gets `offset`."""
        if not 0 <= offset <= MAX_INT64:
            raise OffsetOutOfRangeError(self.name, offset, 0, MAX_INT64)
        with self._sync_lock, self._lock:
            self._check_writable()
            self._make(lambda: self._restart_locked(offset))

    def _restart_locked(self, offset: int) -> None:
        self._truncate_locked(self._segments.bases[0])
        if offset != self._next_offset:
            self._move_to(offset)
        remove_snapshots(snapshots(self.path))
        self._producers = Producers()
        self._producers.next_offset = offset
        if self._mark is not None:
            self._publish_mark(offset)
        self._sync_page()

    def _move_to(self, offset: int) -> None:
        """Let a log without records go on at another offset, in a segment of its own."""
        page, old, forward = self._page, self._writer, offset > self._next_offset
        page.begin_change()
        page.count_truncation()
        try:
            new = SegmentWriter.create(self.path, offset, self.config, self._cache)
        except OSError as error:
            self._end_change()
            if files.is_full(error):
                raise DiskFullError(self.path, error.strerror) from error
            raise
        files.sync_directory(self.path)
        # crash: two empty segments, the page tells of the old one -> open() goes on in one of them
        old.close()
        self._tally.moved(offset - self._next_offset, -old.segment.size_bytes)
        self._writer, self._unsynced = new, []
        self._clean_offset = min(self._clean_offset, offset)
        if self._mark is not None:
            self._publish_mark(min(self._mark, offset))
        if forward:  # start_offset <= durable_offset <= next_offset, whenever somebody looks
            self._next_offset = offset
            self._publish_layout((new.segment,))
        self._start_offset = self._durable_offset = offset
        page.publish_start(offset)
        page.publish_clean(self._clean_offset)
        page.publish_durable(offset)
        if not forward:
            self._next_offset = offset
            self._publish_layout((new.segment,))
        page.count_truncation()
        self._sync_page()
        # crash: two empty segments, the page tells of the new one -> open() removes the old one
        self._retire(old.segment)
        self._sync_names()
