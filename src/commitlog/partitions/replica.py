"""ReplicaRole: makes a partition lead or follow. docs/durability.md has what that promises."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from commitlog import files
from commitlog.config import MAX_INT32, MAX_INT64
from commitlog.errors import (
    ConfigError,
    CorruptionError,
    DiskFullError,
    FencedEpochError,
    NotLeaderError,
    OffsetOutOfRangeError,
)
from commitlog.partitions import epochs
from commitlog.partitions.appender import Appender
from commitlog.partitions.epochs import EpochHistory, EpochStart
from commitlog.partitions.slices import NOTHING, FileSlice, Received, ReplicaSlice, received, whole_batches
from commitlog.partitions.state import LogState, now_ms
from commitlog.partitions.syncer import Syncer
from commitlog.record import Buffer
from commitlog.segment import Segment
from commitlog.segment_writer import SegmentWriter

_KEPT_PLACES = 64


class ReplicaRole:
    """Keeps leader epochs and, once the partition has led or followed, its own high watermark.

    A replicated partition is a follower when it is opened. The leader epochs of its batches never go down.
    The state's `epochs` says where each starts; it is on disk before the first batch of an epoch.
    """

    def __init__(self, state: LogState, syncer: Syncer, appender: Appender) -> None:
        self._state = state
        self._syncer = syncer
        self._appender = appender
        self._wait_replicated: Callable[[int, int], None] | None = None
        self._places: dict[int, tuple[Segment, int]] = {}  # where read_replica() ended, by offset

    def open(self, kept_mark: int | None) -> None:
        """Restore a replicated partition as a follower; `kept_mark` is the stored high watermark."""
        state = self._state
        if kept_mark is None and not epochs.is_there(state.path):
            return
        start, end = state.start_offset, state.next_offset
        state.epochs = state.recovered_epochs()
        if epochs.load(state.path) != state.epochs:
            with contextlib.suppress(DiskFullError):  # it is derived; a full disk must not prevent the open
                state.store_epochs(state.epochs)
        state.publish_mark(max(start, min(start if kept_mark is None else kept_mark, end)))
        state.find_undecided()
        if kept_mark is not None and state.mark != kept_mark:
            self._syncer.sync_page()  # a power cut must not restore it, with other records below it
        self._refuse_users()

    # --- leading and following

    def lead(self, epoch: int) -> None:
        """Accept appends from now on, stamped with this leader epoch, which is durable when this returns."""
        state = self._state
        if not 0 <= epoch <= MAX_INT32:
            raise ConfigError("epoch", epoch, f"must be in [0, {MAX_INT32}]")
        with state.sync_lock, state.lock:
            state.check_writable()
            self._be_replicated()
            if epoch < state.epochs.latest:
                raise FencedEpochError(state.name, epoch, state.epochs.latest)
            history = state.epochs.begun(epoch, state.next_offset)
            if history != state.epochs:
                state.store_epochs(history)
            state.epochs, state.leader_epoch = history, epoch
            state.append_refusal, state.rolls_by_itself = None, True

    def follow(self) -> None:
        """Accept only append_replicated() from now on; a failed partition still accepts nothing."""
        state = self._state
        with state.sync_lock, state.lock:
            if state.failure is not None:
                return
            state.check_writable()
            self._be_replicated()
            self._refuse_users()

    def _refuse_users(self) -> None:
        state = self._state
        state.append_refusal = lambda: NotLeaderError(state.name, None)
        state.rolls_by_itself = False

    def _be_replicated(self) -> None:
        """Start to keep epochs and a high watermark, at start_offset: other replicas may have no records."""
        state = self._state
        if not state.access.alone:
            raise not_shared()
        if state.mark is None:
            history = state.recovered_epochs()
            state.store_epochs(history)
            state.epochs = history
            state.publish_mark(state.start_offset)
            state.find_undecided()

    def attend(self, appended: Callable[[], None] | None, wait: Callable[[int, int], None] | None) -> None:
        """Set the callbacks of the node that replicates the partition; see Partition.attend()."""
        state = self._state
        state.waiters.attended((appended is not None) - (state.on_append is not None))
        state.on_append, self._wait_replicated = appended, wait

    def acknowledge(self, leader_epoch: int, end: int | None = None) -> None:
        """Wait until everything below `end` is durable and replicated; see Partition.acknowledge()."""
        state, wait = self._state, self._wait_replicated
        if end is None:
            end = state.next_offset
            self._syncer.sync()
        else:
            self._syncer.sync_to(end)
        if wait is not None:
            wait(end, leader_epoch)

    # --- the high watermark

    def set_high_watermark(self, offset: int) -> None:
        """Raise the high watermark to `offset`, at most to next_offset; it is never lowered here."""
        state = self._state
        with state.lock:
            state.check_writable()
            mark = min(offset, state.next_offset)
            if state.mark is None or mark <= state.mark:
                return
            state.publish_mark(mark)
        state.notify()

    def keep_high_watermark(self) -> None:
        """Make the high watermark durable; the next open starts with it."""
        state = self._state
        with state.sync_lock:
            state.check_writable()
            self._syncer.sync_page()

    # --- sending

    def read_replica(self, offset: int, max_bytes: int, before: int | None = None) -> ReplicaSlice:
        """Return whole batches of one segment from `offset` on; see Partition.read_replica()."""
        state = self._state
        deadline: float | None = None
        while True:
            with state.lock:  # so that no append that is being undone is among them
                state.check_writable()
                layout, end_offset = state.segments, state.next_offset
                if not state.start_offset <= offset <= end_offset:
                    raise OffsetOutOfRangeError(state.name, offset, state.start_offset, end_offset)
                number = layout.find(offset)
                segment = layout.segments[number]
                end = segment.size_bytes
                if offset == end_offset:
                    return ReplicaSlice(segment.base_offset, offset, NOTHING)
                active = state.another_handle() if segment is state.writer.segment else None
            if number + 1 < len(layout.bases):
                end_offset = layout.bases[number + 1]
            try:
                if before is not None and offset < before < end_offset:
                    end, end_offset = segment.position_of(before), before
                return self._slice(segment, active, offset, end, end_offset, max_bytes)
            except (FileNotFoundError, CorruptionError) as problem:  # the segment may have been replaced
                deadline = state.wait_for_change(layout, layout.generation, problem, deadline)

    def _slice(
        self,
        segment: Segment,
        active: files.Descriptor | None,
        offset: int,
        end: int,
        end_offset: int,
        max_bytes: int,
    ) -> ReplicaSlice:
        """Return a slice of a segment that ends at the position `end` and the offset `end_offset`."""
        file = active or files.Descriptor(files.open_same(segment.path, segment.inode))
        known, position = self._places.pop(offset, (None, 0))
        if known is not segment:
            position = segment.position_of(offset)
        size = end - position
        if size > max_bytes:
            size, end_offset = whole_batches(segment, file.fd, position, max_bytes)
        if len(self._places) >= _KEPT_PLACES:
            self._places.clear()
        self._places[end_offset] = segment, position + size
        return ReplicaSlice(segment.base_offset, end_offset, FileSlice(file, position, size))

    # --- receiving

    def append_replicated(self, data: Buffer, segment_base: int) -> int:
        """Append a leader's batches and return next_offset; see Partition.append_replicated()."""
        state = self._state
        if len(data) == 0:
            return state.next_offset
        found = received(data, state.next_offset, f"{state.name}, as its leader sent it")
        if found.has_transactions and not state.tells_of_transactions:
            self._syncer.declare_transactions()
        if found.numbered and not state.tells_of_producers:
            self._syncer.declare_producers()
        with state.lock:
            state.check_writable()
            if state.append_refusal is None:
                epoch = found.epochs[-1].epoch if found.epochs else state.leader_epoch
                raise FencedEpochError(state.name, epoch, state.leader_epoch)
            self._append_received(found, segment_base)
            end = state.next_offset
        self._appender.after_append(end, sync=False)
        return end

    def _append_received(self, found: Received, segment_base: int) -> None:
        state = self._state
        offset, source = state.next_offset, f"{state.name}, as its leader sent it"
        if found.base_offset != offset or segment_base > offset:
            reason = f"offset {found.base_offset} of segment {segment_base} where {offset} was expected"
            raise CorruptionError(source, 0, reason)
        if found.next_offset > MAX_INT64:
            raise CorruptionError(source, 0, f"offsets end at {MAX_INT64}, not at {found.next_offset}")
        history = self._history_with(found.epochs, source)
        if history != state.epochs:
            state.store_epochs(history)
        # crash: leader epochs whose batches are not there -> open() drops them
        writer = self._writer_for(found, segment_base)
        position = writer.segment.size_bytes
        if found.has_transactions:
            self._before_transactions(found)
        try:
            writer.append_stamped(found.data, found.places)
            state.next_offset = found.next_offset
            state.page.publish_append(found.next_offset, writer.segment.size_bytes)
        except BaseException as error:
            self._appender.undo(writer, offset, position, error)
        finally:
            if state.next_offset != offset:  # Ctrl-C may come once the batches are appended
                state.epochs = history
                state.counters.batched(len(found.places), state.next_offset - offset)
                state.counters.moved(sum(header.is_marker for header in found.numbered), 0)  # no records
                for header in found.numbered:
                    state.producers.note_header(header, now_ms())
                for aborted in found.aborted:
                    state.note_aborted(aborted, state.aborts + 1)
            if found.has_transactions:
                state.publish_transactions()

    def _before_transactions(self, found: Received) -> None:
        """Tell readers what they must know before they see a leader's transactions and markers."""
        state = self._state
        state.list_aborted(found.aborted)
        first = next((one.base_offset for one in found.numbered if one.is_transactional), None)
        if first is not None:
            state.undecided_before(first)

    def _history_with(self, starts: Sequence[EpochStart], source: str) -> EpochHistory:
        """Return the history with the epochs of the next batches; an epoch here without records may go."""
        state = self._state
        history = state.epochs
        if starts and starts[0].epoch != history.latest:
            history = history.truncated_from(state.next_offset)
            if starts[0].epoch < history.latest:
                reason = f"leader epoch {starts[0].epoch} follows {history.latest}"
                raise CorruptionError(source, 0, reason)
        for one in starts:
            history = history.begun(*one)
        return history

    def _writer_for(self, found: Received, segment_base: int) -> SegmentWriter:
        """Return the writer, after a roll where the leader rolled or where the segment cannot hold more."""
        state = self._state
        writer, bases = state.wake(), state.segments.bases
        if writer.segment.size_bytes == 0:
            return self._go_back() if bases[-2:-1] == (segment_base,) else writer
        rolled = segment_base == found.base_offset
        if rolled or not writer.can_take(len(found.data), found.places[-1][0]):
            return state.roll()
        return writer

    def _go_back(self) -> SegmentWriter:
        """Go back to the last segment but one: the last is empty, and the leader did not roll there."""
        state = self._state
        empty, segments = state.writer, state.segments.segments[:-1]
        size, counts = segments[-1].size_bytes, state.counters.counts
        try:
            state.page.begin_change()
            try:
                new = SegmentWriter.open(segments[-1], state.config)
            except OSError as error:
                state.end_change()
                raise state.full(error) from error
            empty.close()
            state.writer = new
            state.counters.moved(0, size)
            with state.ended_by_failure():
                state.retire(empty.segment)
                # crash: the last segment, which was empty, is gone -> open() goes on in the one before
                files.sync_directory(state.path)  # or it could come back after what is appended now
            state.unsynced = [one for one in state.unsynced if one is not segments[-1]]
            if state.has_transactions:
                state.count_aborted_in(segments[-1])
            state.publish_layout(segments)
        except Exception:
            raise
        except BaseException:
            state.put_right(lambda: self._finish_going_back(segments, size, counts))
            raise
        return new

    def _finish_going_back(self, segments: Sequence[Segment], size: int, counts: tuple[int, ...]) -> None:
        """Finish _go_back() after Ctrl-C interrupted it."""
        state = self._state
        state.writer.close()
        state.counters.counts = counts
        state.counters.moved(0, size)
        state.unsynced = [one for one in state.unsynced if one is not segments[-1]]
        if state.has_transactions:
            state.count_aborted_in(segments[-1])
        state.go_on_in(segments, size)


def not_shared() -> ConfigError:
    """Return the error for a replicated partition that would be shared."""
    return ConfigError("shared", True, "a replicated partition is written by one process alone")
