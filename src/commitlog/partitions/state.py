"""LogState: the state of an open partition, in memory, on its page and in its files."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import NoReturn

from commitlog import aborted_index, files
from commitlog.aborted_index import Aborted, AbortedRanges
from commitlog.batches.encode import Rules
from commitlog.bells import Bell
from commitlog.config import TopicConfig
from commitlog.errors import (
    ClosedError,
    CommitLogError,
    CorruptionError,
    DiskFullError,
    ForkedError,
    PartitionFailedError,
    TooManyOpenFilesError,
)
from commitlog.locks import ProcessLock
from commitlog.open_files import OpenFiles
from commitlog.partitions import epochs, producer_state
from commitlog.partitions.access import Access
from commitlog.partitions.counters import Counters
from commitlog.partitions.epochs import EpochHistory
from commitlog.partitions.layout import Layout, headers_between
from commitlog.partitions.page import StatePage
from commitlog.partitions.recovery import Recovered, Recovery
from commitlog.partitions.sources import LocalSource, aborted_ranges, ended_above
from commitlog.partitions.waiters import Waiters
from commitlog.segment import ADOPTED_SUFFIX, Segment, derived_files, segment_path
from commitlog.segment_files import Trash
from commitlog.segment_writer import SegmentWriter
from commitlog.tasks import Signal

_logger = logging.getLogger("commitlog.partition")

Refusal = Callable[[], CommitLogError]
_rules = lru_cache(maxsize=256)(Rules)  # shared by partitions with the same settings
_NO_WORDS = memoryview(b"").cast("q")  # the words of a page that is not mapped
_NOBODY = memoryview(bytes(4)).cast("I")


class LogState(LocalSource):
    """The segments of one partition, how far they are written, durable and clean, and what waits for more.

    start_offset <= durable_offset <= next_offset. Bytes are in the file before next_offset moves, and a sync
    has returned before durable_offset does. start_offset <= high_watermark <= next_offset. Every batch of a
    transaction that may still be committed or aborted is at or above `undecided`, which is stored before such
    a batch is appended and moved after a marker is.

    Locks: `lock` guards appends and the set of segments; `sync_lock` allows one sync at a time and is taken
    first. No sync is made while `lock` is held, except by operations that stop appends anyway: truncation,
    repair and a change of the leader epoch. "Locked" below means that the caller holds `lock`.
    """

    __slots__ = (
        "__weakref__", "_aborted", "_aborted_since", "_bell", "aborts", "access", "append_refusal", "cache",
        "clean_offset", "closed", "config", "counters", "counts_records", "durable_offset", "ended_by",
        "epochs", "failure", "has_transactions", "inherited", "leader_epoch", "lock", "mark", "name",
        "name_changes", "names_synced", "next_offset", "on_append", "page", "path", "producers",
        "replacing", "rolls_by_itself", "rules", "segments", "start_offset", "sync_lock",
        "tells_of_producers", "tells_of_transactions", "trash", "undecided", "unsynced", "waited_for",
        "waiters", "wake_flusher", "words", "writer",
    )  # fmt: skip

    def __init__(
        self,
        path: str,
        name: str,
        config: TopicConfig,
        cache: OpenFiles,
        page: StatePage,
        found: Recovered,
        access: Access,
    ) -> None:
        self.path = path
        self.name = name
        self.cache = cache
        self.page = page
        self.words = page.words
        self.access = access
        self.lock, self.sync_lock = access.lock, access.sync_lock
        self.waiters = Waiters()
        self._bell: Bell | None = None
        self.waited_for = _NOBODY  # its word is not 0 while a reader in another process waits
        self.closed = False
        self.inherited = False  # whether this is the copy of a forked child
        self.ended_by: Refusal | None = None  # why nothing can be written any more
        self.append_refusal: Refusal | None = None  # why users cannot append: ended, or following
        self.failure: str | None = None
        self.wake_flusher: Callable[[], None] = lambda: None
        self.on_append: Callable[[], None] | None = None  # the node that replicates it, while it leads
        self.start_offset = found.start_offset
        self.next_offset = found.next_offset
        self.durable_offset = found.durable_offset
        self.clean_offset = found.clean_offset
        self.mark: int | None = None  # the high watermark; None without replicas
        self.leader_epoch = 0  # of new batches
        self.epochs = EpochHistory()
        self.rolls_by_itself = True  # a follower rolls where its leader does
        self.segments = Layout.of(found.segments, page.generation)
        self.unsynced = unsynced(found)
        self.replacing = False  # whether files are being replaced without holding `lock`
        # while these differ, the directory needs a sync
        self.name_changes, self.names_synced = 1, 1 if found.indexes_trusted else 0
        self.trash = Trash()
        self.producers = producer_state.Producers()
        self.tells_of_producers = False  # whether the page is known to declare producers, durably
        self.has_transactions = page.has_transactions or (
            page.checkpoint is None
            and has_transactions_in(found.segments, found.next_offset)  # the page was lost
        )
        self.tells_of_transactions = False  # whether the page is known to declare them, durably
        self.undecided: int | None = None  # the first offset of a transaction that is not decided
        self.aborts = 0  # how many transactions the markers in the active segment aborted
        self._aborted: AbortedRanges | None = None  # all of them, once a reader has asked
        self._aborted_since = 0  # the count of truncations then
        if found.has_producers:
            self.restore_producers()
        if found.indexes_trusted:
            self.writer = SegmentWriter.unopened(found.segments[-1], config)
        else:
            self.writer = SegmentWriter.open(found.segments[-1], config, trust_indexes=False)
        page.belongs_to(self, cache)
        self.counters = Counters(self.next_offset, self.writer.segment.size_bytes)
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        """Change the settings; those of segments apply from the next roll on."""
        self.config = config
        self.rules = _rules(config)
        self.counts_records = config.flush_messages != -1

    # --- as a source for readers

    @property
    def is_at_hand(self) -> bool:
        """Whether the offsets and the list of segments are up to date: not while segments change."""
        return self.page.generation % 2 == 0

    @property
    def has_ended(self) -> bool:
        """Whether no more records will arrive here."""
        return self.closed or self.ended_by is not None or self.inherited

    def check_goes_on(self) -> None:
        """Raise the reason why no more records will arrive here, if there is one."""
        self.check_open()
        self.check_writable()

    def layout(self) -> Layout:
        """Return the segments as they are now."""
        return self.segments

    @property
    def changes(self) -> int:  # type: ignore[override]
        """A count that grows whenever segments change; odd during the change."""
        return self.page.generation

    @property
    def truncations(self) -> int:  # type: ignore[override]
        """A count that grows whenever a truncation starts or ends."""
        return self.page.truncations

    @property
    def high_watermark(self) -> int:  # type: ignore[override]
        """Readers stop here; next_offset if there are no replicas."""
        mark = self.mark
        return self.next_offset if mark is None else mark

    @property
    def last_stable_offset(self) -> int:  # type: ignore[override]
        """Readers of committed records stop here: no transaction below it is open."""
        mark = self.high_watermark  # first: what is below it was covered by `undecided` before it was
        undecided = self.undecided
        return mark if undecided is None or undecided > mark else max(undecided, self.start_offset)

    def check_open(self) -> None:
        """Raise ForkedError in a forked child, ClosedError once it is closed."""
        if self.inherited:
            raise ForkedError(self.name)
        if self.closed:
            raise ClosedError(self.name)

    def wait_for(self, offset: int, timeout: float | None = None, *, committed: bool = True) -> bool:
        """Wait until `offset` can be read; False after `timeout` seconds, or when closed."""
        if self.end_for(committed=committed) <= offset:
            self.waiters.wait_until(
                lambda: self.end_for(committed=committed) > offset or bool(self.ended_by), timeout
            )
        return self.end_for(committed=committed) > offset

    def watch(self, signal: Signal) -> bool:
        """Set `signal` at each append and when the high watermark moves, until unwatch()."""
        self.waiters.watch(signal)
        return True

    def unwatch(self, signal: Signal) -> None:
        """Stop setting `signal`."""
        self.waiters.unwatch(signal)

    def ring_with(self, bell: Bell | None) -> None:
        """Wake readers in other processes by this bell."""
        self._bell, self.waited_for = bell, _NOBODY if bell is None else bell.waited_for

    def notify(self) -> None:
        """Wake what waits for records: threads of this process, and readers in others."""
        if self.waiters.count:
            self.waiters.notify()
        bell = self._bell
        if bell is not None and bell.waited_for[0]:
            bell.ring()

    def notify_of_append(self) -> None:
        """Wake what waits for an append; with replicas, readers in other processes wait for the mark."""
        if self.mark is None:
            self.notify()
        elif self.waiters.count:
            self.waiters.notify()

    # --- refusing

    def check_writable(self) -> None:
        """Raise the reason why nothing can be written any more, if there is one."""
        if self.ended_by is not None:
            raise self.ended_by()

    def check_appendable(self) -> None:
        """Raise the reason why users cannot append, if there is one: a follower refuses them."""
        if self.append_refusal is not None:
            raise self.append_refusal()

    def end(self, refusal: Refusal) -> None:
        """Refuse all writes from now on."""
        self.ended_by = self.append_refusal = refusal

    def fail(self, cause: str) -> None:
        """Stop the partition: after a failed sync nobody knows what the disk holds."""
        self.failure = cause
        _logger.error("%s takes no more appends until it is opened again: %s", self.name, cause)
        self.end(lambda: PartitionFailedError(self.name, cause))
        self.waiters.notify()
        self.access.failed()

    def fail_without_directory(self, error: FileNotFoundError) -> NoReturn:
        """Stop the partition because a file cannot be created: the directory was removed or renamed."""
        self.fail(str(error))
        raise PartitionFailedError(self.name, str(error)) from error

    @contextlib.contextmanager
    def ended_by_failure(self) -> Iterator[None]:
        """Stop the partition if the disk fails in the `with` block."""
        try:
            yield
        except OSError as error:
            self.fail(str(error))
            raise PartitionFailedError(self.name, str(error)) from error

    def full(self, error: OSError) -> OSError | CommitLogError:
        """Return the typed error for a full disk or too many open files, if nothing was left behind."""
        if files.is_too_many(error):
            return TooManyOpenFilesError(self.path, error.strerror)
        return DiskFullError(self.path, error.strerror) if files.is_full(error) else error

    def check_linked(self) -> None:
        """Stop the partition if the active segment's file was removed: appends would be lost. Locked."""
        if self.writer.is_unlinked:
            cause = f"{self.writer.segment.path} was removed"
            self.fail(cause)
            raise PartitionFailedError(self.name, cause)

    def forked(self, refusal: Refusal) -> None:
        """In a forked child: refuse everything, because only the parent's state at the fork is known."""
        self.access.renew()
        self.lock, self.sync_lock = self.access.lock, self.access.sync_lock
        self.waiters = Waiters()
        self.end(refusal)
        self.inherited = True

    # --- closing files while nobody appends

    @property
    def uses(self) -> int:
        """A count that grows when the partition is used."""
        return self.next_offset + self.name_changes

    def rest(self) -> bool:
        """Close the files until they are needed, without waiting; False if in use or shared."""
        lock = self.lock
        if isinstance(lock, ProcessLock):
            return False
        if self.closed:
            return True
        for taken in iter(partial(lock.acquire, blocking=False), None):  # so Ctrl-C cannot leave it held
            try:
                if not taken or self.ended_by is not None or self.replacing:
                    return False
                self.writer.rest()
                self.words = _NO_WORDS
                self.page.rest()
                return True
            except OSError:  # the next append will meet it, too
                return False
            finally:
                if taken:
                    lock.release()
        raise AssertionError  # the iterator is infinite

    def wake(self) -> SegmentWriter:
        """Return the writer, with its files open. Locked."""
        if self.words is _NO_WORDS:  # first: with an awake writer, appends store into them
            self.words = self.page.words
        if self.writer.resting:
            self.name_changes += self.writer.is_unopened  # it may create files
            try:
                self.writer.wake()
            except FileNotFoundError as error:
                self.fail_without_directory(error)
            except OSError as error:
                raise self.full(error) from error
        return self.writer

    def another_handle(self) -> files.Descriptor:
        """Return a second descriptor of the active segment, even if the partition rests. Locked."""
        try:
            return self.writer.another_handle()
        except FileNotFoundError as error:
            self.fail_without_directory(error)

    def mapped_again(self) -> None:
        """Do nothing: this process has written the page itself."""

    def lost(self, problem: CommitLogError) -> CommitLogError:
        """Stop the partition because the state page is gone; returns the error to raise."""
        self.fail(str(problem))
        return problem

    # --- the set of segments

    def publish_layout(self, segments: Sequence[Segment]) -> None:
        """Set the segments, the last of which is active, and publish them to readers. Locked."""
        page, active = self.page, segments[-1]
        page.begin_change()
        if self.mark is None:
            page.publish_layout(active.base_offset, active.size_bytes, self.next_offset)
        else:
            self.mark = min(self.mark, self.next_offset)
            page.publish_layout(active.base_offset, active.size_bytes, self.next_offset, self.mark)
        self.words = page.words  # the page may have been unmapped
        self.segments = Layout.of(segments, page.generation)
        if self.has_transactions:  # not recomputed: a transaction may be about to begin in a new segment
            page.publish_transactions(self.undecided, self.aborts)
        self.end_change()  # last: while the generation is odd, Ctrl-C leads to a repair

    def end_change(self) -> None:
        """Tell readers, also those of this process, that the change of segments is over."""
        if not self.replacing:
            self.page.end_change()
            self.segments = self.segments._replace(generation=self.page.generation)

    def publish_mark(self, mark: int) -> None:
        """Set the high watermark and publish it to readers. Locked."""
        self.mark = mark
        self.page.publish_high_watermark(mark)
        if self.has_transactions:
            self.publish_transactions()

    def retire(self, segment: Segment) -> None:
        """Rename a segment's files as deleted; they are unlinked after file_delete_delay_ms."""
        self.cache.forget(segment)
        self.trash.take(segment, time.monotonic() + self.config.file_delete_delay_ms / 1000)

    def roll(self, *, even_if_removed: bool = False) -> SegmentWriter:
        """Seal the active segment and start another. Locked."""
        if not even_if_removed:
            self.check_linked()
        lost = even_if_removed and self.writer.is_lost
        old, before, counts = self.writer, self.segments.segments, self.counters.counts
        if not lost:
            self.wake()
        position, aborts = old.segment.size_bytes, self.aborts
        try:
            self.page.begin_change()
            try:
                if not lost:
                    old.prepare_to_seal()
                new = SegmentWriter.create(self.path, self.next_offset, self.config, self.cache)
            except FileNotFoundError as error:
                self.end_change()
                self.fail_without_directory(error)
            except OSError as error:
                self.end_change()
                raise self.full(error) from error
            # crash: an empty segment after the active one -> open() goes on in it
            if lost:
                old.close()
            else:
                old.seal(self.next_offset)
            self.unsynced.append(old.segment)
            self.name_changes += 1
            self.writer = new
            self.counters.rolled(position)
            self.aborts = 0  # in the new one
            self.publish_layout((*before, new.segment))
        except Exception:
            raise
        except BaseException:
            self.put_right(lambda: self.settle(old, position, before, before, counts))
            raise
        if self.has_transactions:
            self.seal_aborted(old.segment, aborts, self.next_offset)
            self.list_aborted_in_active()
        self.save_producers()
        _logger.debug("%s has rolled: segment %d is active", self.name, new.segment.base_offset)
        return new

    # --- after Ctrl-C in the middle of a change of segments

    def put_right(self, work: Callable[[], object]) -> None:
        """Undo or finish what was interrupted; a second interruption, or an error, stops the partition."""
        try:
            work()
        except BaseException as error:
            self.fail(f"interrupted twice: {str(error) or type(error).__name__}")
            self.start_offset = self.page.start_offset
            self.end_change()
            self.access.half_changed()
            raise

    def settle(
        self,
        old: SegmentWriter,
        position: int,
        before: Sequence[Segment],
        stay: Sequence[Segment],
        counts: tuple[int, ...],
    ) -> None:
        """After an interruption, finish a change of the active segment if the page has it, else undo it.

        The `old` writer's segment ended at `position` and was the last of `before`; the new segment comes
        after those that `stay`.
        """
        page, new = self.page, self.writer
        if (page.base_offset, page.end_position) != (old.segment.base_offset, position):
            self.publish_layout((*stay, new.segment))
            return
        if new is not old:
            new.close()
            self.cache.forget(new.segment)
        self.next_offset = page.next_offset
        self.unsynced = [one for one in self.unsynced if one is not old.segment]
        self.counters.counts = counts
        self.go_on_in(before, position)
        if page.has_producers:
            self.restore_producers()

    def go_on_in(self, segments: Sequence[Segment], position: int) -> None:
        """Reopen the last of these segments, up to `position`, and remove files made to follow it."""
        last, name = segments[-1], segment_path(self.path, self.next_offset)
        names = [name + ADOPTED_SUFFIX, *([name] if name != last.path else [])]
        for made in [one for name in names for one in (name, *derived_files(name))]:
            files.remove(made)
        files.sync_directory(self.path)  # or one could come back after what is appended now
        self.cache.forget(last)
        segment = Segment(last.path, last.base_offset, position, self.cache)
        if self.has_transactions:
            self.count_aborted_in(segment)
        self.writer = SegmentWriter.open(segment, self.config, trust_indexes=False)
        self.name_changes += 1
        self.publish_layout((*segments[:-1], segment))

    def look_again(self) -> None:
        """After a failure half-way: publish to readers what the files hold now. Locked."""
        with contextlib.suppress(OSError, CommitLogError):
            recovery = Recovery(self.path, self.name, self.page.checkpoint, self.config, self.cache)
            found = recovery.run(clean=False, mode="cut", read_only=True)
            self.counters.moved(found.next_offset - self.next_offset, 0)
            self.next_offset = found.next_offset
            self.publish_layout(found.segments)
        self.end_change()

    def take_up_files(self) -> None:
        """Bring files, page and memory into order, as an open does; with both locks held."""
        page, position = self.page, self.writer.segment.size_bytes
        self.writer.close()
        for segment in self.segments.segments:
            self.cache.forget(segment)
        recovery = Recovery(self.path, self.name, page.checkpoint, self.config, self.cache)
        found = recovery.run(clean=False, mode="cut", spare_cleaned=True)
        active = found.segments[-1]
        self.counters.moved(found.next_offset - self.next_offset, active.size_bytes - position)
        self.writer = SegmentWriter.open(active, self.config, trust_indexes=False)
        self.start_offset, self.next_offset = found.start_offset, found.next_offset
        self.durable_offset, self.clean_offset = found.durable_offset, found.clean_offset
        self.unsynced = unsynced(found)
        self.name_changes += 1
        self.publish_layout(found.segments)
        page.publish_start(found.start_offset)
        page.publish_clean(found.clean_offset)
        page.publish_durable(found.durable_offset)
        page.count_truncation()
        if page.has_producers:
            self.restore_producers()
        if self.mark is not None:
            self.epochs = self.recovered_epochs()

    # --- what is derived from batches: producers and leader epochs

    def restore_producers(self) -> None:
        """Rebuild the state of producers from snapshots and batches."""
        segments, stable = self.segments.segments, self.page.last_stable_offset
        self.producers = producer_state.restored(self.path, segments, self.next_offset, now_ms(), stable)
        if len(self.producers):
            self.page.publish_producers()
        self.has_transactions |= self.producers.has_transactions
        if self.has_transactions:
            self.recount_aborted()
        self.find_undecided()

    # --- transactions

    def begin_transactions(self) -> None:
        """Note that there are transactions from here on. Locked."""
        if not self.has_transactions:
            segments = self.segments.segments
            for segment, after in pairwise(segments):  # so that nobody looks for markers there
                sealed = segment.size_bytes, after.base_offset
                with contextlib.suppress(OSError):
                    aborted_index.store(segment.path, [], sealed)
            self.has_transactions = True
        self.list_aborted_in_active()
        self.publish_transactions()

    def publish_transactions(self) -> None:
        """Find where undecided transactions begin, and tell readers. Locked."""
        self.undecided = self.producers.undecided_from(self.high_watermark)
        self.page.publish_transactions(self.undecided, self.aborts)

    def undecided_before(self, offset: int) -> None:
        """Tell readers that a transaction begins at `offset`, before its first batch is appended. Locked."""
        if self.undecided is None or offset < self.undecided:
            self.undecided = offset
            self.page.publish_transactions(offset, self.aborts)

    def aborted_in(self, layout: Layout) -> AbortedRanges:
        """Return the aborted transactions; is_present() says whether they are all of these segments."""
        found = self._aborted
        if found is None:
            with self.lock:
                found = self._aborted
                if found is None:
                    found = self._aborted = aborted_ranges(self.segments.segments, self.aborts)
                    self._aborted_since = self.page.truncations
        return found

    def is_present(self, layout: Layout) -> bool:
        """Say whether these are still the segments, and nothing was truncated since the list of aborted
        transactions was made.
        """
        current = layout.segments is self.segments.segments
        return current and self._aborted is not None and self._aborted_since == self.page.truncations

    def list_aborted(self, aborted: Sequence[Aborted]) -> None:
        """Store what markers are about to abort, before they are appended: readers rely on it. Locked."""
        try:
            for number, one in enumerate(aborted, self.aborts):
                aborted_index.write_entry(self.writer.segment.path, number, one)
        except OSError as error:
            raise self.full(error) from error

    def note_aborted(self, aborted: Aborted, aborts: int) -> None:
        """Note what a marker has aborted; with it the active segment has so many `aborts`. Locked."""
        self.aborts = aborts
        if self._aborted is not None:
            self._aborted.add(aborted)

    def seal_aborted(self, segment: Segment, aborts: int, next_offset: int) -> None:
        """Complete the list of what markers in a segment aborted, which ends at `next_offset`."""
        with contextlib.suppress(OSError, CommitLogError):  # without it, readers look for the markers
            aborted_index.store(segment.path, segment.aborted(aborts), (segment.size_bytes, next_offset))

    def list_aborted_in_active(self) -> None:
        """Create the list of what markers in the active segment abort."""
        with contextlib.suppress(OSError):  # the first entry will create it
            aborted_index.begin(self.writer.segment.path)

    def recount_aborted(self) -> None:
        """Find out what markers in the active segment aborted, because it has become another one."""
        self._aborted = None
        self.count_aborted_in(self.segments.segments[-1])

    def count_aborted_in(self, active: Segment) -> None:
        """Count what markers in a segment aborted, which is about to be the active one."""
        entries = aborted_index.load(active.path, active.size_bytes)
        if entries is not None:
            self.aborts = len(entries)
            return
        try:
            entries, unknown = active.find_aborted() if active.size_bytes else [], 0
        except CorruptionError:  # the list can never be complete: readers look for the markers themselves
            entries, unknown = aborted_index.facts(active.path), 1
        self.aborts = len(entries) + unknown
        with contextlib.suppress(OSError):  # then it has fewer entries than the page says
            aborted_index.store_again(active.path, entries)

    def open_transactions(self) -> list[producer_state.OpenTransaction]:
        """Return the transactions that no marker has ended, oldest first."""
        return self.producers.open_transactions()

    def find_undecided(self) -> None:
        """Find out which transactions a change of the leader may decide otherwise, and tell readers."""
        if self.mark is not None:
            segments = self.segments.segments
            self.producers.note_ended(ended_above(segments, self.mark, self.next_offset))
        if self.has_transactions:
            self.publish_transactions()

    def forget_aborted(self) -> None:
        """Forget what is aborted, because other processes may have aborted more. Locked."""
        self._aborted, self.aborts = None, self.page.aborts

    def forget_aborted_before(self, offset: int) -> None:
        """Forget the aborted transactions of segments that end at `offset` and are trimmed. Locked."""
        if self._aborted is not None:
            self._aborted = self._aborted.since(offset)

    def list_aborted_again(self) -> None:
        """Let the next reader list what is aborted, because segments were compacted or repaired. Locked."""
        self._aborted = None

    # --- snapshots and leader epochs

    def save_producers(self) -> None:
        """Write a snapshot of producers, which saves reading the batches before it; keep one older."""
        if len(self.producers) == 0:
            return
        self.producers.next_offset = self.next_offset
        self.producers.forget_before(now_ms() - producer_state.SILENT_MS)
        with contextlib.suppress(OSError):  # it only saves time
            self.producers.save(self.path)
            published = self.producers.published
            if published is None or published.base_offset >= self.start_offset:
                # otherwise the last publication may only be in a synced snapshot
                producer_state.remove_snapshots(producer_state.snapshots(self.path)[:-2])

    def recovered_epochs(self) -> EpochHistory:
        """Return the leader epochs from the file and the batches."""
        return epochs.recovered(self.path, self.segments.segments, self.start_offset, self.next_offset)

    def store_epochs(self, history: EpochHistory) -> None:
        """Make leader epochs durable; on a full disk nothing changes."""
        try:
            epochs.store(self.path, history)
        except OSError as error:
            if not files.is_full(error):
                self.fail(str(error))
                raise PartitionFailedError(self.name, str(error)) from error
            raise DiskFullError(self.path, error.strerror) from error


def has_transactions_in(segments: Sequence[Segment], end: int) -> bool:
    """Say whether there is any transaction; a snapshot may have forgotten its producer."""
    headers = headers_between(segments, segments[0].base_offset, end, sound=True)
    return any(header.is_transactional or header.is_marker for header in headers)


def unsynced(found: Recovered) -> list[Segment]:
    """Return the sealed segments that may not be durable."""
    return [one for one, after in pairwise(found.segments) if after.base_offset >= found.durable_offset]


def now_ms() -> int:
    """Return the current time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
