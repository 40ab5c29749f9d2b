"""ReplicatedPartition: a partition that leads or follows. docs/durability.md tells what that promises."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence

from commitlog import files
from commitlog.config import MAX_INT32, MAX_INT64, LogConfig, TopicConfig
from commitlog.errors import (
    ConfigError,
    CorruptionError,
    DiskFullError,
    FencedEpochError,
    NotLeaderError,
    OffsetOutOfRangeError,
    PartitionFailedError,
)
from commitlog.open_files import HandleCache
from commitlog.partitions import epochs
from commitlog.partitions.active import now_ms
from commitlog.partitions.epochs import EpochHistory, EpochStart
from commitlog.partitions.page import StatePage
from commitlog.partitions.recovery import Recovered
from commitlog.partitions.shortening import ShorteningPartition
from commitlog.partitions.slices import NOTHING, FileSlice, Received, ReplicaSlice, received, whole_batches
from commitlog.record import Buffer
from commitlog.segment import Segment
from commitlog.segment_writer import SegmentWriter

_KEPT_PLACES = 64


class ReplicatedPartition(ShorteningPartition):
    """Knows its leader epochs and, once it has led or followed, a high watermark of its own.

    A partition that was replicated is a follower when it is opened. Its batches have leader epochs that never
    go down, and `epochs` tells where each begins: on disk before the first batch of an epoch is there.
    """

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
        super().__init__(path, name, config, log_config, cache, page, found)
        self._epochs = EpochHistory()
        self._on_append: Callable[[], None] | None = None
        self._wait_replicated: Callable[[int, int], None] | None = None
        self._places: dict[int, tuple[Segment, int]] = {}  # where read_replica() ended, by offset

    def _open_replica(self, kept_mark: int | None) -> None:
        """Take up what a replicated partition was; `kept_mark` is the high watermark that was kept."""
        if kept_mark is None and not epochs.is_there(self.path):
            return
        start, end = self._start_offset, self._next_offset
        self._epochs = epochs.recovered(self.path, self._segments.segments, start, end)
        if epochs.load(self.path) != self._epochs:
            with contextlib.suppress(DiskFullError):  # it is derived, and a full disk must not keep it closed
                self._store_epochs(self._epochs)
        self._publish_mark(max(start, min(start if kept_mark is None else kept_mark, end)))
        if kept_mark is not None and self._mark != kept_mark:
            self._sync_page()  # or a power cut would bring it back when there are other records below it
        self._refuse_users()

    # --- leading and following

    @property
    def epochs(self) -> EpochHistory:
        """Where each leader epoch begins; nothing without replicas."""
        return self._epochs

    def lead(self, epoch: int) -> None:
        """Take appends from now on, stamped with this leader epoch; durable before it returns."""
        if not 0 <= epoch <= MAX_INT32:
            raise ConfigError("epoch", epoch, f"must be in [0, {MAX_INT32}]")
        with self._sync_lock, self._lock:
            self._check_writable()
            self._be_replicated()
            if epoch < self._epochs.latest:
                raise FencedEpochError(self.name, epoch, self._epochs.latest)
            history = self._epochs.begun(epoch, self._next_offset)
            if history != self._epochs:
                self._store_epochs(history)
            self._epochs, self._leader_epoch = history, epoch
            self._append_refusal, self._rolls_by_itself = None, True

    def follow(self) -> None:
        """Refuse appends but those of append_replicated() from now on; a failed partition refuses all."""
        with self._sync_lock, self._lock:
            if self._failure is not None:
                return
            self._check_writable()
            self._be_replicated()
            self._refuse_users()

    def _refuse_users(self) -> None:
        self._append_refusal = lambda: NotLeaderError(self.name, None)
        self._rolls_by_itself = False

    def _be_replicated(self) -> None:
        """Begin to keep epochs and a high watermark, which starts low: nobody else may have the records."""
        if self._mark is None:
            segments, start = self._segments.segments, self._start_offset
            history = epochs.recovered(self.path, segments, start, self._next_offset)
            self._store_epochs(history)
            self._epochs = history
            self._publish_mark(start)

    def _store_epochs(self, history: EpochHistory) -> None:
        try:
            epochs.store(self.path, history)
        except OSError as error:
            if files.is_full(error):
                raise DiskFullError(self.path, error.strerror) from error
            self._fail(str(error))
            raise PartitionFailedError(self.name, str(error)) from error

    @property
    def replicated(self) -> bool:
        """Whether it has ever led or followed."""
        return self._mark is not None

    def attend(self, appended: Callable[[], None] | None, wait: Callable[[int, int], None] | None) -> None:
        """Call `appended` after each append while it leads, with no lock held; and `wait`, with a next_offset
        and a leader epoch, to wait until every in-sync replica has what is below. None to call nobody.
        """
        with self._readable.mutex:
            self._waiters += (appended is not None) - (self._on_append is not None)
            self._on_append, self._wait_replicated = appended, wait

    def _after_append(self, end: int, sync: bool) -> None:
        appended = self._on_append
        if appended is not None and self._append_refusal is None:
            appended()  # first: replicas copy it while it is synced here
        super()._after_append(end, sync)

    @property
    def leader_epoch(self) -> int:
        """What appends are stamped with; 0 without replicas."""
        return self._leader_epoch

    def acknowledge(self, leader_epoch: int) -> None:
        """Wait until everything appended so far is durable, and on every in-sync replica if there are any.

        `leader_epoch` is the one before the append: NotLeaderError if there was another leader since.
        """
        end, wait = self.next_offset, self._wait_replicated
        self.sync()
        if wait is not None:
            wait(end, leader_epoch)

    # --- the high watermark

    def set_high_watermark(self, offset: int) -> None:
        """Let readers read up to here, as far as there are records; it goes down only with them."""
        with self._lock:
            self._check_writable()
            mark = min(offset, self._next_offset)
            if self._mark is None or mark <= self._mark:
                return
            self._publish_mark(mark)
        if self._waiters:
            self._notify()

    def keep_high_watermark(self) -> None:
        """Make the high watermark durable: the next open starts from there."""
        with self._sync_lock:
            self._check_writable()
            self._sync_page()

    # --- sending

    def read_replica(self, offset: int, max_bytes: int) -> ReplicaSlice:
        """Return whole batches from the one that holds `offset` on, at least one if there is one.

        They are of one segment, and not only those below the high watermark.
        """
        deadline: float | None = None
        while True:
            with self._lock:  # or an append that is being undone could be among them
                self._check_writable()
                layout, end_offset = self._segments, self._next_offset
                if not self._start_offset <= offset <= end_offset:
                    raise OffsetOutOfRangeError(self.name, offset, self._start_offset, end_offset)
                number = layout.find(offset)
                segment = layout.segments[number]
                end = segment.size_bytes
                if offset == end_offset:
                    return ReplicaSlice(segment.base_offset, offset, NOTHING)
                active = (
                    files.Descriptor(os.dup(self._writer.fd)) if segment is self._writer.segment else None
                )
            if number + 1 < len(layout.bases):
                end_offset = layout.bases[number + 1]
            try:
                return self._slice(segment, active, offset, end, end_offset, max_bytes)
            except (FileNotFoundError, CorruptionError) as problem:  # the segment may have been replaced
                deadline = self._wait_for_change(layout, problem, deadline)

    def _slice(
        self,
        segment: Segment,
        active: files.Descriptor | None,
        offset: int,
        end: int,
        end_offset: int,
        max_bytes: int,
    ) -> ReplicaSlice:
        """Slice a segment that ends at the position `end` and the offset `end_offset`."""
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
        """Append a leader's batches byte for byte, in a segment of that base_offset; returns next_offset.

        All or nothing. Only the rest of a batch that begins below next_offset is encoded anew.
        """
        if len(data) == 0:
            return self._next_offset
        found = received(data, self._next_offset, f"{self.name}, as its leader sent it")
        if found.numbered and not self._tells_of_producers:
            self._tell_of_producers()
        with self._lock:
            self._check_writable()
            if self._append_refusal is None:
                epoch = found.epochs[-1].epoch if found.epochs else self._leader_epoch
                raise FencedEpochError(self.name, epoch, self._leader_epoch)
            self._append_received(found, segment_base)
            end = self._next_offset
        self._after_append(end, sync=False)
        return end

    def _append_received(self, found: Received, segment_base: int) -> None:
        offset, source = self._next_offset, f"{self.name}, as its leader sent it"
        if found.base_offset != offset or segment_base > offset:
            reason = f"offset {found.base_offset} of segment {segment_base} stands where {offset} should"
            raise CorruptionError(source, 0, reason)
        if found.next_offset > MAX_INT64:
            raise CorruptionError(source, 0, f"offsets end at {MAX_INT64}, not at {found.next_offset}")
        history = self._history_with(found.epochs, source)
        if history != self._epochs:
            self._store_epochs(history)
        # crash: leader epochs whose batches are not there -> open() drops them
        writer = self._writer_for(found, segment_base)
        position = writer.segment.size_bytes
        try:
            writer.append_stamped(found.data, found.places)
            self._next_offset = found.next_offset
            self._page.publish_append(found.next_offset, writer.segment.size_bytes)
        except BaseException as error:
            self._undo(writer, offset, position, error)
        finally:
            if self._next_offset != offset:  # Ctrl-C may come after the batches are there
                self._epochs = history
                self._tally.batched(len(found.places), self._next_offset - offset)
                for header in found.numbered:
                    span = header.next_offset - header.base_offset
                    self._producers.note(header.producer, span, header.base_offset, now_ms())

    def _history_with(self, starts: Sequence[EpochStart], source: str) -> EpochHistory:
        """Return the history with the epochs of batches that follow; one here that has no records may go."""
        history = self._epochs
        if starts and starts[0].epoch != history.latest:
            history = history.truncated_from(self._next_offset)
            if starts[0].epoch < history.latest:
                reason = f"leader epoch {starts[0].epoch} follows {history.latest}"
                raise CorruptionError(source, 0, reason)
        for one in starts:
            history = history.begun(*one)
        return history

    def _writer_for(self, found: Received, segment_base: int) -> SegmentWriter:
        """Roll where the leader did, and where no segment could hold more; and nowhere else."""
        writer, bases = self._writer, self._segments.bases
        if writer.segment.size_bytes == 0:
            return self._go_back() if bases[-2:-1] == (segment_base,) else writer
        rolled = segment_base == found.base_offset
        if rolled or not writer.can_take(len(found.data), found.places[-1][0]):
            return self._roll_locked()
        return writer

    def _go_back(self) -> SegmentWriter:
        """Go on in the last segment but one: the last is empty, and the leader did not roll there."""
        empty, segments = self._writer, self._segments.segments[:-1]
        size, counts = segments[-1].size_bytes, self._tally.counts
        try:
            self._page.begin_change()
            try:
                new = SegmentWriter.open(segments[-1], self.config)
            except OSError as error:
                self._end_change()
                if files.is_full(error):
                    raise DiskFullError(self.path, error.strerror) from error
                raise
            empty.close()
            self._writer = new
            self._tally.moved(0, size)
            with self._ended_by_failure():
                self._retire(empty.segment)
                # crash: the last segment, which was empty, is gone -> open() goes on in the one before
                files.sync_directory(self.path)  # or it could come back behind what is appended now
            self._unsynced = [one for one in self._unsynced if one is not segments[-1]]
            self._publish_layout(segments)
        except Exception:
            raise
        except BaseException:
            self._put_right(lambda: self._finish_going_back(segments, size, counts))
            raise
        return new

    def _finish_going_back(self, segments: Sequence[Segment], size: int, counts: tuple[int, ...]) -> None:
        """Go back after all, when Ctrl-C came in between."""
        self._writer.close()
        self._tally.counts = counts
        self._tally.moved(0, size)
        self._unsynced = [one for one in self._unsynced if one is not segments[-1]]
        self._go_on_in(segments, size)

    # --- taking away

    def _trim_to(self, offset: int) -> None:
        super()._trim_to(offset)
        with self._lock:
            self._epochs = self._epochs.trimmed_before(offset)

    def truncate_from(self, offset: int) -> None:
        """Remove the records at and above `offset`, and the leader epochs that begin there."""
        super().truncate_from(offset)
        with self._sync_lock, self._lock:
            history = self._epochs.truncated_from(offset)
            if offset == self._next_offset and history != self._epochs:  # of one that has no records
                self._store_epochs(history)
                self._epochs = history

    def _truncate_locked(self, offset: int) -> None:
        history = self._epochs.truncated_from(offset)
        if history != self._epochs:
            self._store_epochs(history)
        # crash: records whose leader epochs the file does not tell -> open() reads them from the batches
        super()._truncate_locked(offset)
        self._epochs = history

    def _take_up_files(self) -> None:
        super()._take_up_files()
        if self._mark is not None:
            segments, start, end = self._segments.segments, self._start_offset, self._next_offset
            self._epochs = epochs.recovered(self.path, segments, start, end)
