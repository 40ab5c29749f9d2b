"""Partition: a facade over the parts in partitions/ that do the work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NoReturn, Self

from commitlog import files
from commitlog.aborted_index import AbortedRanges
from commitlog.batches.encode import EncodedBatch
from commitlog.batches.format import NO_PRODUCER
from commitlog.batches.staged import StagedBatch
from commitlog.bells import Bell
from commitlog.compaction import Cleanable, CompactionReport
from commitlog.config import LogConfig, TopicConfig
from commitlog.errors import ClosedError, DiskFullError, ForkedError, ReadOnlyError
from commitlog.open_files import OpenFiles
from commitlog.partitions import epochs
from commitlog.partitions.access import Access
from commitlog.partitions.adopter import Adopter
from commitlog.partitions.appender import Appender
from commitlog.partitions.compactor import Compactor
from commitlog.partitions.counters import PartitionMetrics
from commitlog.partitions.epochs import EpochHistory
from commitlog.partitions.page import StatePage
from commitlog.partitions.producer_state import OpenTransaction, Published
from commitlog.partitions.reader import LogReader
from commitlog.partitions.recovery import Recovery, RecoveryReport
from commitlog.partitions.replica import ReplicaRole, not_shared
from commitlog.partitions.sharing import SharedAccess, append_lock, found, open_members
from commitlog.partitions.shortener import Shortener
from commitlog.partitions.slices import ReplicaSlice
from commitlog.partitions.sources import PageSource
from commitlog.partitions.state import LogState
from commitlog.partitions.state import now_ms as clock_ms
from commitlog.partitions.syncer import Syncer
from commitlog.progress import Progress, Steps
from commitlog.record import ArrowData, Buffer, Headers
from commitlog.repair import RepairReport, repaired


class Partition(LogReader):
    """A log of records with offsets: append, read, trim, truncate, compact and repair; with replicas, lead or
    follow. Threads may share it.

    A partition opened for reading has no parts that write; methods that change it raise ReadOnlyError.
    """

    recovery: RecoveryReport  # what opening for writing found and did
    _state: LogState
    _syncer: Syncer
    _appender: Appender
    _adopter: Adopter
    _shortener: Shortener
    _compactor: Compactor
    _role: ReplicaRole

    def __init__(
        self,
        source: LogState | PageSource,
        state: LogState | None,
        log_config: LogConfig | None = None,
        reason: str = ReadOnlyError.reason,
    ) -> None:
        """`reason` says why it is read-only, if there is no `state` to change."""
        super().__init__(source.name, source)
        self.path = source.path
        self.config = source.config
        self.writable = state is not None
        self._log_source = source
        if state is None or log_config is None:
            absent: Any = _Absent(source.name, reason)
            self._state = self._syncer = self._appender = self._adopter = absent
            self._shortener = self._compactor = self._role = absent
            return
        self._state = state
        self._syncer = Syncer(state)
        self._appender = Appender(state, self._syncer)
        self._adopter = Adopter(state, self._syncer, self._appender)
        self._shortener = Shortener(state, self._syncer)
        self._compactor = Compactor(state, self._syncer, log_config)
        self._role = ReplicaRole(state, self._syncer, self._appender)
        # measured: one call less saves 3 % of a single append
        self.append = self._appender.fastest_append()  # type: ignore[method-assign]

    # --- opening

    @classmethod
    def open(
        cls,
        path: str,
        name: str,
        config: TopicConfig,
        log_config: LogConfig,
        cache: OpenFiles,
        *,
        clean: bool,
        steps: Steps | None = None,
    ) -> Self:
        """Recover the partition and open it for writing by this process alone; the directory must exist."""
        return cls._recovered(path, name, config, log_config, cache, lambda page: Access(), clean, steps)

    @classmethod
    def _recovered(
        cls,
        path: str,
        name: str,
        config: TopicConfig,
        log_config: LogConfig,
        cache: OpenFiles,
        access: Callable[[StatePage], Access],
        clean: bool,
        steps: Steps | None,
    ) -> Self:
        old = StatePage.open(path)
        known = old.checkpoint if old else None
        recovery = Recovery(path, name, known, config, cache, steps)
        found = recovery.run(clean=clean, mode=log_config.recovery_mode)
        page = StatePage.create(path)
        state = LogState(path, name, config, cache, page, found, access(page))
        partition = cls._over(state, log_config)
        cache.woke(state)
        partition.recovery = found.report
        partition._role.open(old.kept_high_watermark if old else None)
        state.publish_layout(found.segments)
        page.publish_start(found.start_offset)
        page.publish_clean(found.clean_offset)
        page.publish_durable(found.durable_offset)
        if found.report.salvaged:
            partition.sync()  # a gap above durable_offset would look like a lost tail
        if known is None or found.report.salvaged:
            # if a power cut took the page, recovery would have no recovery point
            page.sync()
            files.sync_directory(path)
        return partition

    @classmethod
    def _over(cls, state: LogState, log_config: LogConfig) -> Self:
        access = state.access
        if not isinstance(access, SharedAccess):
            return cls(state, state, log_config)
        access.of(state)
        return cls(PageSource(state.path, state.name, state.config, state.cache), state, log_config)

    @classmethod
    def join(
        cls,
        path: str,
        name: str,
        config: TopicConfig,
        log_config: LogConfig,
        cache: OpenFiles,
        steps: Steps | None = None,
    ) -> Self:
        """Open the partition for writing together with other processes; the first one recovers it."""
        if epochs.is_there(path):
            raise not_shared()
        members = open_members(path)
        unlock = files.unlocking(members.fd)

        def access(page: StatePage) -> SharedAccess:
            return SharedAccess(path, page, members)

        try:
            while True:
                if files.try_lock(members.fd):
                    page = StatePage.create(path)
                    page.begin_change()  # invalidates the page in case this process dies meanwhile
                    page.let_go()
                    partition = cls._recovered(path, name, config, log_config, cache, access, False, steps)
                    break
                files.wait_for_lock(members.fd, shared=True)  # another process may still be recovering it
                if StatePage.open(path) is not None:
                    with append_lock(path):
                        page = StatePage.create(path)
                        left = found(path, name, config, cache, page)
                        state = LogState(path, name, config, cache, page, left, access(page))
                        partition = cls._over(state, log_config)
                        partition.recovery = left.report
                        page.let_go()
                    break
                files.unlock(members.fd)  # the first process could not open it
            files.wait_for_lock(members.fd, shared=True)
        except BaseException:
            unlock()  # the exception keeps this frame alive, and so the open file
            raise
        return partition

    @classmethod
    def read_only(
        cls,
        path: str,
        name: str,
        config: TopicConfig,
        cache: OpenFiles,
        *,
        writer: Callable[[], bool],
        clean: Callable[[], bool],
        same: Callable[[], bool],
        steps: Steps | None = None,
        reason: str = ReadOnlyError.reason,
    ) -> Self:
        """Open the partition for reading, for this reason; see PageSource for the callbacks."""
        source = PageSource(path, name, config, cache, writer, clean, same)
        source.open(steps)
        return cls(source, None, reason=reason)

    @property
    def shared(self) -> bool:
        """Whether other processes may write the partition, too."""
        return self.writable and not self._state.access.alone

    def check_writable(self) -> None:
        """Raise the reason why it cannot be changed, if there is one."""
        self._state.check_writable()

    # --- settings

    def configure(self, config: TopicConfig) -> None:
        """Change the settings; those of segments apply from the next roll on."""
        self._state.configure(config)
        self.config = self._log_source.config = config

    def wake_flusher_with(self, wake: Callable[[], None]) -> None:
        """Call `wake` when flush_messages records are unsynced."""
        self._state.wake_flusher = wake

    def ring_with(self, bell: Callable[[], Bell | None]) -> None:
        """Wake readers in other processes with the bell that `bell()` returns, which they listen to."""
        if self.writable:
            self._state.ring_with(bell())
        if isinstance(self._log_source, PageSource):
            self._log_source.find_bell = bell

    # --- appending

    def append(
        self,
        value: Buffer | None,
        *,
        key: Buffer | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
        sync: bool = False,
    ) -> int:
        """Append a record and return its offset once readers see it, or with `sync` once it is durable."""
        return self._appender.append(value, key=key, headers=headers, timestamp=timestamp, sync=sync)

    def append_many(
        self,
        values: Iterable[Buffer | None],
        *,
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[Headers] | None = None,
        timestamps: Iterable[int] | None = None,
        producer: tuple[int, int, int] = NO_PRODUCER,
        sync: bool = False,
    ) -> range:
        """Append up to 1,048,576 records as one batch, all or nothing, and return their offsets.

        `producer` is (producer_id, producer_epoch, sequence of the first record). A batch that its producer
        sends again is not appended again; the offsets it already has are returned.
        """
        batches = self._appender.encode(values, keys, headers, timestamps, producer)
        return self._appender.append_encoded(batches, sync=sync)

    def append_arrow(self, data: ArrowData, *, sync: bool = False) -> range:
        """Append the columns value, key, timestamp and headers of Arrow data (all but value are optional).

        Accepts a pyarrow table or batch, or anything with Arrow's C stream interface, such as a data frame or
        a query result. All or nothing for readers; a crash may keep only the first chunks of a table, each of
        them whole. A chunk of more than 1,048,576 records is divided.
        """
        return self._appender.append_encoded(self._appender.encode_arrow(data), sync=sync)

    def encode(
        self,
        values: Iterable[Buffer | None],
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[Headers] | None = None,
        timestamps: Iterable[int] | None = None,
        producer: tuple[int, int, int] = NO_PRODUCER,
        more_flags: int = 0,
    ) -> tuple[EncodedBatch, ...]:
        """Check records and encode them as one batch, or none if there are no records. Takes no lock."""
        return self._appender.encode(values, keys, headers, timestamps, producer, more_flags)

    def encode_arrow(self, data: ArrowData) -> tuple[EncodedBatch, ...]:
        """Check Arrow data and encode it, each chunk as one batch or more. Takes no lock."""
        return self._appender.encode_arrow(data)

    def append_encoded(self, batches: tuple[EncodedBatch, ...], *, sync: bool = False) -> range:
        """Append what encode() returned, all or nothing, and return the offsets."""
        return self._appender.append_encoded(batches, sync=sync)

    # --- transactions: see transactions/coordinator.py

    def append_transactional(self, batches: tuple[EncodedBatch, ...]) -> range:
        """Append batches that belong to a transaction, and return the offsets. They carry the flag, a
        producer id, the epoch of the transaction and sequences.
        """
        return self._appender.append_transactional(batches)

    def append_and_commit(self, batches: tuple[EncodedBatch, ...]) -> range:
        """Append the last batches of a transaction in this partition alone, and its marker: it commits."""
        return self._appender.append_and_commit(batches)

    def end_transaction(self, producer_id: int, epoch: int, *, commits: bool) -> int | None:
        """Append the marker that ends a transaction if it is open here; returns the marker's offset."""
        return self._appender.end_transaction(producer_id, epoch, commits=commits)

    def decided(self, producer_id: int, epoch: int) -> bool | None:
        """Return whether a marker here has committed a producer's last transaction; None if there is none."""
        return self._state.producers.decided(producer_id, epoch)

    def open_transactions(self) -> list[OpenTransaction]:
        """Return the transactions that no marker has ended here, oldest first."""
        if not self.has_transactions:
            return []
        if not self.writable:
            return self._log_source.open_transactions()
        self._state.access.learn()
        return self._state.producers.open_transactions()

    @property
    def is_undecided(self) -> bool:
        """Whether a transaction is open here, as far as is known without asking other processes."""
        state = self._state
        return (state.undecided if state.access.alone else state.page.undecided_offset) is not None

    def aborted_transactions(self) -> AbortedRanges:
        """Return what readers of committed records leave out; true as long as `changes` does not change."""
        return self._log_source.aborted_in(self._log_source.layout())

    @property
    def changes(self) -> int:
        """A count that grows whenever segments change, also by a truncation."""
        return self._log_source.changes

    def appends_at_once(self, size_bytes: int, *, numbered: bool = False) -> bool:
        """Say whether an append of this size waits for nobody now, and opens and creates no file; `numbered`
        says whether it carries a producer's sequence.
        """
        state = self._state
        writer = state.writer
        return (
            not state.lock.locked()
            and not writer.resting
            and (state.tells_of_producers or not numbered)
            and writer.has_room(size_bytes, state.next_offset, clock_ms())
        )

    def roll(self) -> None:
        """Seal the active segment, unless it is empty, and start another."""
        self._appender.roll()

    def sync(self) -> None:
        """Make everything appended so far durable."""
        self._syncer.sync()

    def sync_to(self, offset: int) -> None:
        """Make everything below `offset` durable; a sync of another thread may have done it."""
        self._syncer.sync_to(offset)

    @property
    def failure(self) -> str | None:
        """The disk error that stopped the partition; None if there was none."""
        return self._state.failure

    def check_linked(self) -> None:
        """Stop the partition if the active segment's file was removed, because appends would be lost."""
        self._syncer.check_linked()

    # --- publishing: see publisher.py

    @property
    def published(self) -> Published | None:
        """The last publication and how far it came; None if there never was one."""
        return self._adopter.published

    def append_published(self, batches: tuple[EncodedBatch, ...]) -> range:
        """Append batches of a staged file, all or nothing, and return the offsets."""
        return self._adopter.append_published(batches)

    def adopt(self, path: str, size_bytes: int, batches: Sequence[StagedBatch]) -> range | None:
        """Make a staged file the active segment and return its offsets; None if it must be copied instead."""
        return self._adopter.adopt(path, size_bytes, batches)

    # --- reading

    def metrics(self) -> PartitionMetrics:
        """Return the partition's offsets and sizes, and what this process has written to it."""
        if not self.writable:
            return super().metrics()
        state = self._state
        with state.lock:
            found = super().metrics()
            end = state.writer.segment.size_bytes
            written = state.counters.written(state.next_offset, end, len(state.producers))
        return replace(found, written=written, compaction=self._compactor.metrics())

    # --- taking away

    def trim_before(self, offset: int) -> None:
        """Remove the records below `offset`; a file is removed once all its records are."""
        self._shortener.trim_before(offset)

    def truncate_from(self, offset: int) -> None:
        """Remove the records and leader epochs from `offset` on; the next append gets `offset`."""
        self._shortener.truncate_from(offset)

    def restart_at(self, offset: int) -> None:
        """Remove all records and all state derived from them; the next append gets `offset`."""
        self._shortener.restart_at(offset)

    def apply_retention(self, now_ms: int) -> int:
        """Remove the segments that have expired; returns how many.

        Before a segment is removed for its age, every batch in it is checked. A damaged segment stays, and so
        do all after it; `retention_error` says why.
        """
        return self._shortener.apply_retention(now_ms)

    @property
    def retention_error(self) -> str | None:
        """The damage that keeps retention from removing expired segments; None if there is none."""
        return self._shortener.retention_error

    def empty_trash(self, now: float) -> None:
        """Unlink the removed files whose file_delete_delay_ms has passed; `now` is time.monotonic()."""
        self._state.trash.empty(now)

    # --- compaction

    @property
    def clean_offset(self) -> int:
        """Below this offset, compaction has left one record per key."""
        return self._log_source.clean_offset

    def cleanable(self, now: int) -> Cleanable:
        """Return what a pass could clean at `now`, in milliseconds since the epoch."""
        return self._compactor.cleanable(now)

    def compact(self, now: int | None = None, progress: Progress | None = None) -> CompactionReport:
        """Keep only the latest record of each key, below the active segment and until the pass's map is full.

        `now`, in milliseconds since the epoch, decides which records are too young and which tombstones have
        expired. `progress` is called with the bytes done and the total.
        """
        return self._compactor.compact(now, progress)

    @property
    def compaction_error(self) -> str | None:
        """Why the last pass failed; None if it succeeded."""
        return self._compactor.error

    def set_aside(self, error: BaseException) -> None:
        """Make the cleaner skip this partition, because of `error`."""
        self._compactor.set_aside(error)

    @property
    def is_set_aside(self) -> bool:
        """Whether the cleaner skips the partition: its last pass failed, and not because of a full disk."""
        return self._compactor.is_set_aside

    def cancel_compaction(self) -> None:
        """End a running pass within a batch; segments that it has replaced stay replaced."""
        self._compactor.cancel()

    def end_compaction(self) -> None:
        """Cancel a running pass and allow no other: the log is closing."""
        self._compactor.end()

    # --- replicas

    @property
    def replicated(self) -> bool:
        """Whether the partition has ever led or followed."""
        return self._state.mark is not None

    @property
    def accepts_appends(self) -> bool:
        """Whether users may append: not while the partition follows, and not once it has failed or ended."""
        return self._state.append_refusal is None

    @property
    def epochs(self) -> EpochHistory:
        """Where each leader epoch starts; empty without replicas."""
        return self._state.epochs

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of new batches; 0 without replicas."""
        return self._state.leader_epoch

    def lead(self, epoch: int) -> None:
        """Accept appends from now on, stamped with this leader epoch, which is durable when this returns."""
        self._role.lead(epoch)

    def follow(self) -> None:
        """Accept only append_replicated() from now on; a failed partition still accepts nothing."""
        self._role.follow()

    def attend(self, appended: Callable[[], None] | None, wait: Callable[[int, int], None] | None) -> None:
        """Call `appended` after each append while this partition leads, with no lock held. Call
        `wait(next_offset, leader_epoch)` to wait until every in-sync replica has the records below it. None
        removes a callback.
        """
        self._role.attend(appended, wait)

    def acknowledge(self, leader_epoch: int, end: int | None = None) -> None:
        """Wait until everything below `end`, by default everything appended so far, is durable, and on every
        in-sync replica if there are any.

        `leader_epoch` is the epoch before the append: NotLeaderError if another leader has taken over since.
        """
        self._role.acknowledge(leader_epoch, end)

    def set_high_watermark(self, offset: int) -> None:
        """Raise the high watermark to `offset`, at most to next_offset; it is never lowered here."""
        self._role.set_high_watermark(offset)

    def keep_high_watermark(self) -> None:
        """Make the high watermark durable; the next open starts with it."""
        self._role.keep_high_watermark()

    def read_replica(self, offset: int, max_bytes: int, before: int | None = None) -> ReplicaSlice:
        """Return whole batches of one segment, starting with the one that holds `offset`.

        At least one if there is one, whatever max_bytes is; also above the high watermark. With `before`,
        where a batch begins, they end there at the latest.
        """
        return self._role.read_replica(offset, max_bytes, before)

    def append_replicated(self, data: Buffer, segment_base: int) -> int:
        """Append a leader's batches byte for byte, all or nothing, and return next_offset.

        `segment_base` is the base_offset of their segment. If the first batch starts below next_offset, only
        its rest is appended, encoded again.
        """
        return self._role.append_replicated(data, segment_base)

    # --- repair

    def repair(self, progress: Progress | None = None) -> RepairReport:
        """Keep the sound batches of damaged segments and rebuild wrong indexes; old files stay as `.damaged`.

        `progress` is called with the bytes done and the total.
        """
        state = self._state
        with state.sync_lock, state.lock:
            state.check_writable()
            try:
                return self._repair_locked(progress)
            except DiskFullError:  # nothing has moved
                raise
            except BaseException as error:
                state.fail(str(error) or type(error).__name__)
                state.look_again()
                raise

    def _repair_locked(self, progress: Progress | None) -> RepairReport:
        state = self._state
        if state.writer.segment.size_bytes:
            # then every segment with records is sealed, even one whose file is lost, and offsets go on
            state.roll(even_if_removed=True)
        state.page.begin_change()
        segments, report = repaired(state.segments.segments[:-1], state.next_offset, state.config, progress)
        state.publish_layout((*segments, state.writer.segment))
        state.list_aborted_again()
        self._syncer.sync_locked()  # a gap above durable_offset would look like a lost tail
        self._syncer.sync_page()
        return report

    # --- the end

    def mark_gone(self) -> None:
        """Tell every process that has the partition open that its topic is being deleted."""
        state = self._state
        with state.sync_lock, state.lock:
            state.page.publish_gone()

    def forked(self) -> None:
        """In a forked child: refuse everything, because only the parent's state at the fork is known."""
        if isinstance(self._log_source, PageSource):
            self._log_source.forked()
        if self.writable:
            self._state.forked(lambda: ForkedError(self.name))
            self._source = self._state

    def abandon(self) -> None:
        """Release everything without syncing, for a log that could not be opened or closed."""
        if self.writable:
            with self._state.lock:
                self._state.end(self._state.ended_by or (lambda: ClosedError(self.name)))
                self._state.writer.close()

    def close(self) -> None:
        """Sync and release everything; what a failed disk could not sync is left to recovery."""
        try:
            if self.writable and not self._state.closed:
                self._state.closed = True
                self.end_compaction()
                with self._state.access.compaction_lock:
                    self._close()
        finally:
            self.ring_with(lambda: None)
            if isinstance(self._log_source, PageSource):
                self._log_source.close()

    def _close(self) -> None:
        state = self._state
        try:
            with state.sync_lock, state.lock:
                opened = not state.writer.is_unopened  # or its files are as the last shutdown left them
                touched = opened or state.mark is not None or state.names_synced != state.name_changes
                if state.ended_by is None and touched:
                    if state.access.alone and opened:
                        state.wake().give_back()
                    self._syncer.sync_locked()  # also names, when no record is unsynced
                    state.save_producers()
                    # the next open would not look for what another thread appended from here on
                    state.end(lambda: ClosedError(self.name))
                    if state.access.alone and opened:
                        state.writer.seal_indexes(state.next_offset)
                        if state.has_transactions:
                            state.seal_aborted(state.writer.segment, state.aborts, state.next_offset)
                    state.page.sync()
        finally:
            with state.lock:
                state.end(lambda: ClosedError(self.name))
                state.writer.close()
            for segment in state.segments.segments:
                state.cache.forget(segment)
            state.waiters.notify()
            with state.sync_lock:
                state.page.close()
            state.access.leave()


class _Absent:
    """Takes the place of the parts that write, in a partition opened for reading."""

    def __init__(self, name: str, reason: str) -> None:
        self._refusal = name, reason

    def __getattr__(self, verb: str) -> NoReturn:
        raise ReadOnlyError(*self._refusal)
