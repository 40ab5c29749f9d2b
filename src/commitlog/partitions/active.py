"""ActivePartition: a partition open for writing: its segments, what is durable of them, and their rolling.

writer.py appends to it, shortening.py takes away from it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NoReturn

from commitlog import files
from commitlog.batches.encode import Rules
from commitlog.config import TopicConfig
from commitlog.errors import CommitLogError, DiskFullError, PartitionFailedError
from commitlog.locks import ProcessLock
from commitlog.open_files import HandleCache
from commitlog.partitions import producer_state
from commitlog.partitions.counters import Counters
from commitlog.partitions.layout import Layout
from commitlog.partitions.page import StatePage
from commitlog.partitions.recovery import Recovered, Recovery, RecoveryReport
from commitlog.partitions.waiting import WaitablePartition
from commitlog.segment import ADOPTED_SUFFIX, Segment, companions, segment_path
from commitlog.segment_files import Trash
from commitlog.segment_writer import SegmentWriter, sync_sealed

_logger = logging.getLogger("commitlog.partition")


class ActivePartition(WaitablePartition):
    """The files of one partition and how far they are written and durable; threads may share it.

    start_offset <= durable_offset <= next_offset. Bytes are in the file before next_offset moves, and a
    sync has returned before durable_offset does. start_offset <= high_watermark <= next_offset.

    Locks: `_lock` guards appends and the set of segments, `_sync_lock` allows one sync at a time and is
    taken first. No sync is made while `_lock` is held, but by what stops appends anyway: truncate_from(),
    repair() and a change of the leader epoch.
    """

    def __init__(
        self, path: str, name: str, config: TopicConfig, cache: HandleCache, page: StatePage, found: Recovered
    ) -> None:
        self.path = path
        self.name = name
        self.recovery: RecoveryReport = found.report
        self._cache = cache
        self._page = page
        self._words = page.words
        self._make_locks()
        self._refusal: Callable[[], CommitLogError] | None = None
        self._leader_epoch = 0  # what appends are stamped with
        self._mark: int | None = None  # the high watermark, None without replicas
        self._failure: str | None = None
        self._wake_flusher: Callable[[], None] = lambda: None
        self._start_offset = found.start_offset
        self._next_offset = found.next_offset
        self._durable_offset = found.durable_offset
        self._segments = Layout.of(found.segments, page.generation)
        self._unsynced = unsynced(found)
        self._replacing = False  # whether files are being replaced without `_lock`
        self._name_changes, self._names_synced = 1, 0  # the directory needs a sync while they differ
        self._outgoing: list[Segment] = []  # not in the layout any more, and still to be retired
        self._trash = Trash()
        self._producers = producer_state.Producers()
        self._tells_of_producers = False  # whether the page surely does
        if found.has_producers:
            self._restore_producers()
        self._writer = SegmentWriter.open(found.segments[-1], config, trust_indexes=found.indexes_trusted)
        self._tally = Counters(self._next_offset, self._writer.segment.size_bytes)
        self.configure(config)

    def _make_locks(self) -> None:
        super()._make_locks()
        self._lock: threading.Lock | ProcessLock = threading.Lock()
        self._sync_lock: threading.Lock | ProcessLock = threading.Lock()

    def configure(self, config: TopicConfig) -> None:
        """Take other settings; those of segments count from the next roll on."""
        self.config = config
        self._rules = Rules(config)
        self._counts_records = config.flush_messages != -1

    def wake_flusher_with(self, wake: Callable[[], None]) -> None:
        """Call `wake` when flush_messages records wait for a sync."""
        self._wake_flusher = wake

    # --- where it stands

    def _layout(self) -> Layout:
        return self._segments

    @property
    def _changes(self) -> int:
        return self._page.generation

    @property
    def _truncations(self) -> int:
        return self._page.truncations

    @property
    def start_offset(self) -> int:
        """The first offset that may be read."""
        return self._start_offset

    @property
    def next_offset(self) -> int:
        """The offset that the next append gets."""
        return self._next_offset

    @property
    def durable_offset(self) -> int:
        """Everything below it survives power loss."""
        return self._durable_offset

    @property
    def high_watermark(self) -> int:
        """Readers stop here; next_offset where there are no replicas."""
        mark = self._mark
        return self._next_offset if mark is None else mark

    @property
    def failure(self) -> str | None:
        """The disk error that stopped appends, None while all is well."""
        return self._failure

    @property
    def _refusal(self) -> Callable[[], CommitLogError] | None:
        """Why nothing is written any more, None as long as it is."""
        return self._ended_by

    @_refusal.setter
    def _refusal(self, refusal: Callable[[], CommitLogError] | None) -> None:
        self._ended_by = self._append_refusal = refusal

    @property
    def _has_ended(self) -> bool:
        return self._ended_by is not None

    def _check_writable(self) -> None:
        if self._refusal is not None:
            raise self._refusal()

    def _check_appendable(self) -> None:
        """Do the same for what users append, which a follower refuses."""
        if self._append_refusal is not None:
            raise self._append_refusal()

    # --- syncing

    def sync(self) -> None:
        """Make everything appended so far durable."""
        self._check_writable()
        self._sync_to(self.next_offset)

    def _sync_to(self, offset: int) -> None:
        """Group commit: whoever waited for another's sync finds its records covered and returns."""
        with self._sync_lock:
            if self._durable_offset >= offset:
                return
            self._check_writable()
            with self._lock:
                unsynced = self._take_unsynced()
            self._sync_files(*unsynced)

    def _sync_locked(self) -> None:
        self._sync_files(*self._take_unsynced())

    def _take_unsynced(self) -> tuple[int, files.Descriptor, list[Segment], int]:
        """Return what a sync has to cover now, with `_lock` held: end, descriptor, segments, names."""
        self._check_linked()
        return self._next_offset, self._writer.handle_for_sync(), list(self._unsynced), self._name_changes

    def check_linked(self) -> None:
        """Take no more appends if somebody removed the active segment's file: they would be lost with it."""
        with self._lock:
            self._check_writable()
            self._check_linked()

    def _check_linked(self) -> None:
        if self._writer.is_unlinked:
            cause = f"{self._writer.segment.path} was removed"
            self._fail(cause)
            raise PartitionFailedError(self.name, cause)

    def _fail_without_directory(self, error: FileNotFoundError) -> NoReturn:
        """Take no more appends once a file cannot be made: the directory was removed, or has another name."""
        self._fail(str(error))
        raise PartitionFailedError(self.name, str(error)) from error

    def _sync_files(self, end: int, active: files.Descriptor, sealed: list[Segment], names: int) -> None:
        began = time.perf_counter()
        with self._ended_by_failure():
            try:
                for segment in sealed:
                    sync_sealed(segment)
                files.sync_data(active.fd)
                if names != self._names_synced:
                    files.sync_directory(self.path)
            finally:
                active.close()
        self._tally.synced(time.perf_counter() - began)
        # only now: what an interrupted sync did not reach waits for the next
        del self._unsynced[: len(sealed)]
        self._names_synced = names
        self._durable_offset = end
        self._page.publish_durable(end)
        if sealed:  # or damage to them would look, after a power cut, like a torn tail
            self._sync_page()

    def _sync_page(self) -> None:
        with self._ended_by_failure():
            self._page.sync()

    def _sync_names(self) -> None:
        names = self._name_changes
        with self._ended_by_failure():
            files.sync_directory(self.path)
        self._names_synced = names

    @contextlib.contextmanager
    def _ended_by_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._fail(str(error))
            raise PartitionFailedError(self.name, str(error)) from error

    def _fail(self, cause: str) -> None:
        """Take no more appends: after a failed sync nobody knows what the disk holds."""
        self._failure = cause
        _logger.error("%s takes no more appends until it is opened again: %s", self.name, cause)
        self._refusal = lambda: PartitionFailedError(self.name, cause)
        self._notify()

    def _retire(self, segment: Segment) -> None:
        self._cache.forget(segment)
        self._trash.take(segment, time.monotonic() + self.config.file_delete_delay_ms / 1000)

    def _look_again(self) -> None:
        """After a failure half-way: let readers see what the files hold now."""
        with contextlib.suppress(OSError, CommitLogError):
            recovery = Recovery(self.path, self.name, self._page.checkpoint, self.config, self._cache)
            found = recovery.run(clean=False, mode="cut", read_only=True)
            self._tally.moved(found.next_offset - self._next_offset, 0)
            self._next_offset = found.next_offset
            self._publish_layout(found.segments)
        self._end_change()

    # --- producers

    def _restore_producers(self) -> None:
        self._producers = producer_state.restored(
            self.path, self._segments.segments, self._next_offset, now_ms()
        )
        if len(self._producers):
            self._page.publish_producers()

    def _tell_of_producers(self) -> None:
        """Make it durable that batches name their producer, before the first one does: or a power cut could
        leave the batch, and nobody who looks for it.
        """
        with self._sync_lock:
            self._check_writable()
            self._page.publish_producers()
            self._sync_page()
            self._tells_of_producers = True

    def _keep_published(self, offset: int) -> None:
        """Make durable what is known of the last publication, if its batch goes with all that is below
        `offset`: it may not be finished, and who finishes it must not begin anew. With `_sync_lock` held.
        """
        with self._lock:
            published = self._producers.published
            if published is None or published.base_offset >= offset:
                return
            self._save_producers()
            unsynced = self._take_unsynced()  # a snapshot of more than the log holds is not believed
        self._sync_files(*unsynced)
        with contextlib.suppress(OSError, IndexError):  # a full disk must not keep anybody from trimming
            producer_state.sync_snapshots(self.path)
            producer_state.remove_snapshots(producer_state.snapshots(self.path)[:-1])

    def _save_producers(self) -> None:
        """Write a snapshot, so that the batches before it need not be read again; one older is kept."""
        if len(self._producers) == 0:
            return
        self._producers.next_offset = self._next_offset
        self._producers.forget_before(now_ms() - producer_state.SILENT_MS)
        with contextlib.suppress(OSError):  # it only saves time
            self._producers.save(self.path)
            published = self._producers.published
            if published is None or published.base_offset >= self._start_offset:
                # otherwise one of them is synced, and alone tells
                producer_state.remove_snapshots(producer_state.snapshots(self.path)[:-2])

    # --- rolling

    def roll(self) -> None:
        """Seal the active segment and start another; an empty one stays."""
        with self._lock:
            self._check_writable()
            if self._writer.segment.size_bytes:
                self._roll_locked()

    def _roll_locked(self, *, even_if_removed: bool = False) -> SegmentWriter:
        if not even_if_removed:
            self._check_linked()
        old, before, counts = self._writer, self._segments.segments, self._tally.counts
        position = old.segment.size_bytes
        try:
            self._page.begin_change()
            try:
                old.prepare_to_seal()
                new = SegmentWriter.create(self.path, self._next_offset, self.config, self._cache)
            except FileNotFoundError as error:
                self._end_change()
                self._fail_without_directory(error)
            except OSError as error:
                self._end_change()
                if files.is_full(error):
                    raise DiskFullError(self.path, error.strerror) from error
                raise
            # crash: an empty segment after the active one -> open() goes on in it
            old.seal(self._next_offset)
            self._unsynced.append(old.segment)
            self._name_changes += 1
            self._writer = new
            self._tally.rolled(position)
            self._publish_layout((*before, new.segment))
        except Exception:
            raise
        except BaseException:
            self._put_right(lambda: self._settle(old, position, before, before, counts))
            raise
        self._save_producers()
        _logger.debug("%s has rolled: segment %d is active", self.name, new.segment.base_offset)
        return new

    # --- after Ctrl-C in the middle of a change of segments

    def _put_right(self, work: Callable[[], object]) -> None:
        """Undo or finish what was interrupted; a second interruption, or an error, ends the partition."""
        try:
            work()
        except BaseException as error:
            self._fail(f"interrupted twice: {str(error) or type(error).__name__}")
            self._start_offset = self._page.start_offset
            self._end_change()
            raise

    def _settle(
        self,
        old: SegmentWriter,
        position: int,
        before: Sequence[Segment],
        stay: Sequence[Segment],
        counts: tuple[int, ...],
    ) -> None:
        """After an interruption, finish a change of the active segment if the page has it, else undo it.

        The `old` one ended at `position` and was the last of `before`; the new one follows those that `stay`.
        """
        page, new = self._page, self._writer
        told = page.base_offset, page.end_position
        if told != (old.segment.base_offset, position):
            self._publish_layout((*stay, new.segment))
            return
        if new is not old:
            new.close()
            self._cache.forget(new.segment)
        self._next_offset = page.next_offset
        self._unsynced = [one for one in self._unsynced if one is not old.segment]
        self._tally.counts = counts
        self._go_on_in(before, position)
        if page.has_producers:
            self._restore_producers()

    def _go_on_in(self, segments: Sequence[Segment], position: int) -> None:
        """Open the last of these segments again, up to `position`, and remove what was made to follow it."""
        last, name = segments[-1], segment_path(self.path, self._next_offset)
        names = [name + ADOPTED_SUFFIX, *([name] if name != last.path else [])]
        for made in [one for name in names for one in (name, *companions(name))]:
            files.remove(made)
        files.sync_directory(self.path)  # or it could come back behind what is appended now
        self._cache.forget(last)
        segment = Segment(last.path, last.base_offset, position, self._cache)
        self._writer = SegmentWriter.open(segment, self.config, trust_indexes=False)
        self._name_changes += 1
        self._publish_layout((*segments[:-1], segment))

    def _publish_layout(self, segments: Sequence[Segment]) -> None:
        page, active = self._page, segments[-1]
        page.begin_change()
        if self._mark is None:
            page.publish_layout(active.base_offset, active.size_bytes, self._next_offset)
        else:
            self._mark = min(self._mark, self._next_offset)
            page.publish_layout(active.base_offset, active.size_bytes, self._next_offset, self._mark)
        self._segments = Layout.of(segments, page.generation)
        self._end_change()  # last: as long as the generation is odd, Ctrl-C makes files and memory agree

    def _end_change(self) -> None:
        """Tell readers, those of this process too, that the segments stay as they are for now."""
        if not self._replacing:
            self._page.end_change()
            self._segments = self._segments._replace(generation=self._page.generation)


def unsynced(found: Recovered) -> list[Segment]:
    """Return the sealed segments that may not be durable."""
    return [one for one, after in pairwise(found.segments) if after.base_offset >= found.durable_offset]


def now_ms() -> int:
    """Return the time, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
