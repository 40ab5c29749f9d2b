"""SharedPartition: a partition to which several processes append, each of them for itself.

Whoever changes something holds a file lock meanwhile, looks at the state page for what others did since, and
leaves a mark there until it is done. A process that dies in the middle leaves its mark, and the next one cuts
off what was not finished, or recovers the partition if segments were being changed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Self

from commitlog import files
from commitlog.compaction import Cleanable, CompactionReport
from commitlog.config import LogConfig, TopicConfig
from commitlog.errors import ConfigError, CorruptionError, UnknownTopicError
from commitlog.locks import HeldElsewhereError, ProcessLock
from commitlog.open_files import HandleCache
from commitlog.partition import Partition
from commitlog.partitions import epochs
from commitlog.partitions.active import now_ms, unsynced
from commitlog.partitions.layout import Layout
from commitlog.partitions.page import StatePage
from commitlog.partitions.read_only import ReadOnlyPartition
from commitlog.partitions.recovery import Recovered, Recovery, RecoveryReport
from commitlog.progress import Progress, Steps
from commitlog.segment import Segment, companions, segment_path
from commitlog.segment_files import CleanedFile, list_segments, swap_in
from commitlog.segment_writer import SegmentWriter
from commitlog.tasks import Signal

_MEMBERS, _APPEND, _SYNC, _COMPACTION = "members.lock", "append.lock", "sync.lock", "compaction.lock"


class SharedPartition(Partition):
    """A partition that other processes write, too. `_lock` and `_sync_lock` are locks between processes here,
    and what this one knows is brought up to date whenever it has taken one.
    """

    _alone = False

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
        self._view = ReadOnlyPartition(path, name, config, cache, lambda: True, lambda: False)
        self._truncations_seen = page.truncations
        super().__init__(path, name, config, log_config, cache, page, found)
        self._compaction_lock = self._lock_on(_COMPACTION)
        self._members: files.Descriptor | None = None

    @classmethod
    def join(
        cls,
        path: str,
        name: str,
        config: TopicConfig,
        log_config: LogConfig,
        cache: HandleCache,
        steps: Steps | None = None,
    ) -> Self:
        """Open a partition that others may have open; the first one recovers it."""
        if epochs.is_there(path):
            raise _not_shared()
        members = files.Descriptor(os.open(os.path.join(path, _MEMBERS), os.O_RDWR | os.O_CREAT, 0o644))
        unlock = files.unlocking(members.fd)
        try:
            while True:
                if files.try_lock(members.fd):
                    page = StatePage.create(path)
                    page.begin_change()  # what it says is not believed if this process dies meanwhile
                    page.let_go()
                    partition = cls.open(path, name, config, log_config, cache, clean=False, steps=steps)
                    break
                files.wait_for_lock(members.fd, shared=True)  # somebody may still be recovering it
                if StatePage.open(path) is not None:
                    with ProcessLock(os.path.join(path, _APPEND)):
                        page = StatePage.create(path)
                        found = _found(path, name, config, cache, page)
                        partition = cls(path, name, config, log_config, cache, page, found)
                        page.let_go()
                    break
                files.unlock(members.fd)  # the first process could not open it
            files.wait_for_lock(members.fd, shared=True)
            partition._members = members
        except BaseException:
            unlock()  # the exception keeps this frame, and so the file, for as long as somebody keeps it
            raise
        return partition

    def _lock_on(
        self,
        name: str,
        taken: Callable[[], bool] = lambda: False,
        leaving: Sequence[Callable[[], object]] = (),
    ) -> ProcessLock:
        return ProcessLock(os.path.join(self.path, name), taken, leaving)

    def _make_locks(self) -> None:
        super()._make_locks()
        self._lock = self._lock_on(_APPEND, self._come_in, (self._page.letting_go,))
        self._sync_lock = self._lock_on(_SYNC, self._look_at_the_page)

    # --- coming in and going out

    def _come_in(self) -> bool:
        """Learn what others did, and put right what one of them left when it died.

        True if a mark is left on the page, which must go before the lock does.
        """
        page = self._page
        if self._refusal is not None:  # it changes nothing any more
            return False
        self._producers.next_offset = self._next_offset
        if page.gone and not self._closed:
            raise UnknownTopicError(self.name)
        position = self._writer.segment.size_bytes
        died = page.left_by_the_dead is not None or page.generation % 2 == 1
        if died or page.generation != self._segments.generation:
            try:
                self._reload(_found(self.path, self.name, self.config, self._cache, page))
            except CorruptionError as problem:
                self._fail(str(problem))
                raise
        elif page.end_position != self._writer.segment.size_bytes:
            self._writer.catch_up(page.end_position)
        if page.next_offset != self._next_offset or self._writer.segment.size_bytes != position:
            others = page.next_offset - self._next_offset
            self._tally.moved(others, self._writer.segment.size_bytes - position)
        self._next_offset = page.next_offset
        self._look_at_the_page()
        self._learn_of_producers()
        self._writer.share()
        page.hold()
        return True

    def _learn_of_producers(self) -> None:
        page, known = self._page, self._producers
        if page.truncations != self._truncations_seen:
            self._truncations_seen = page.truncations
            self._restore_producers()
        elif page.has_producers and known.next_offset < self._next_offset:
            known.read(self._segments.segments, self._next_offset, now_ms())

    def _look_at_the_page(self) -> bool:
        page = self._page
        if self._refusal is None:
            self._start_offset, self._durable_offset = page.start_offset, page.durable_offset
            self._clean_offset = page.clean_offset
        return False

    def _fail(self, cause: str) -> None:
        super()._fail(cause)
        assert isinstance(self._lock, ProcessLock)
        self._lock.skip_leaving()  # the mark stays: the next one looks at what is in the files

    def _put_right(self, work: Callable[[], object]) -> None:
        try:
            super()._put_right(work)
        except BaseException:
            self._page.begin_change()  # files may be half replaced: the next writer recovers them
            raise

    def _reload(self, found: Recovered) -> None:
        """Take up the segments as others left them; after an error the next one tries again."""
        writer = SegmentWriter.open(found.segments[-1], self.config, trust_indexes=False)
        self._writer.close()
        self._writer = writer
        self._segments = Layout.of(found.segments, self._page.generation)
        self._unsynced = unsynced(found)
        self._name_changes += 1

    def _replace(self, cleaned: CleanedFile, group: Sequence[Segment]) -> None:
        """Swap a cleaned file in with the lock held: an odd generation tells others that somebody died."""
        with self._lock:
            self._page.begin_change()
            self._publish_swapped(swap_in(cleaned, group, self._retire), group)

    def _check_not_lost(self, path: str) -> None:
        with self._lock:  # to learn what others did: the file may have been replaced
            pass
        super()._check_not_lost(path)

    def cleanable(self, now: int) -> Cleanable:
        """Tell what a pass could clean at `now`, in milliseconds since the epoch."""
        with self._lock:
            return super().cleanable(now)

    def compact(self, now: int | None = None, progress: Progress | None = None) -> CompactionReport:
        """Keep only the latest record of each key; see Partition.compact()."""
        with self._lock:  # to learn what others did
            pass
        return super().compact(now, progress)

    def _be_replicated(self) -> None:
        raise _not_shared()

    # --- reading: as in any other process

    def _layout(self) -> Layout:
        return self._view._layout()

    @property
    def start_offset(self) -> int:
        """The first offset that may be read."""
        return self._page.start_offset

    @property
    def next_offset(self) -> int:
        """The offset that the next append gets, unless another process appends before."""
        return self._page.next_offset

    @property
    def durable_offset(self) -> int:
        """Everything below it survives power loss."""
        return self._page.durable_offset

    @property
    def high_watermark(self) -> int:
        """Readers stop here; next_offset where there are no replicas."""
        return self._page.high_watermark

    @property
    def clean_offset(self) -> int:
        """Below it compaction has left one record of each key."""
        return self._page.clean_offset

    def wait_for(self, offset: int, timeout: float | None = None) -> bool:
        """Wait until `offset` can be read; False if it cannot after `timeout` seconds."""
        return self._view.wait_for(offset, timeout)

    def watch(self, event: Signal) -> bool:
        """Other processes set no event of this one."""
        return False

    def unwatch(self, event: Signal) -> None:
        """There is nothing to leave."""

    # --- the end

    def mark_gone(self) -> None:
        """Refuse whoever still has the partition open, in any process: its topic is being deleted."""
        with self._sync_lock, self._lock:
            self._page.publish_gone()

    def forked(self) -> None:
        """In a forked child: refuse everything."""
        super().forked()
        self._view.forked()

    def _close(self) -> None:
        super()._close()
        self._view.close()
        self._members = None


def _not_shared() -> ConfigError:
    return ConfigError("shared", True, "a replicated partition is written by one process alone")


def _found(path: str, name: str, config: TopicConfig, cache: HandleCache, page: StatePage) -> Recovered:
    """Return a partition as its page tells it, with the append lock held, after putting right what a writer
    that died left; its caller was told nothing. The dead one's mark stays until its bytes are cut, too.
    """
    left = page.left_by_the_dead
    if page.generation % 2:
        # crash: segments half changed -> recovered by the next writer
        _recover(path, name, config, cache, page)
    elif left is not None and page.next_offset == left[1]:
        # crash: bytes, or an end_position, that no next_offset covers -> cut by the next writer
        page.publish_append(left[1], left[0])
    segments = _listed(path, cache)
    while segments and segments[-1].base_offset > page.base_offset:
        # Ctrl-C ended a roll, or an adoption, of which nobody was told: its records come elsewhere now
        unused = segments.pop().path
        for leftover in (unused, *companions(unused)):
            files.remove(leftover)
        files.sync_directory(path)  # or it could come back behind what is appended now
    while len(segments) > 1 and segments[1].base_offset <= page.start_offset:
        del segments[0]
    if page.end_position == 0 and (not segments or segments[-1].base_offset < page.base_offset):
        segments.append(Segment(segment_path(path, page.base_offset), page.base_offset, 0, cache))
    if segments[-1].base_offset != page.base_offset or segments[-1].size_bytes < page.end_position:
        reason = f"some or all of its {page.end_position} bytes are missing"  # another file must not be cut
        raise CorruptionError(segment_path(path, page.base_offset), 0, reason)
    segments[-1].size_bytes = page.end_position
    return Recovered(
        segments, page.start_offset, page.next_offset, page.durable_offset, page.clean_offset,
        page.has_producers, indexes_trusted=False, report=RecoveryReport(name, clean=True),
    )  # fmt: skip


def _listed(path: str, cache: HandleCache) -> list[Segment]:
    """List the segments while others may be taking away those that they trimmed."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            return list_segments(path, cache)


def _recover(path: str, name: str, config: TopicConfig, cache: HandleCache, page: StatePage) -> None:
    """Bring a partition's files and its page into order; a pass of compaction elsewhere goes on."""
    recovery = Recovery(path, name, page.checkpoint, config, cache)
    try:
        with ProcessLock(os.path.join(path, _COMPACTION), wait=False):
            found = recovery.run(clean=False, mode="cut")
    except HeldElsewhereError:
        found = recovery.run(clean=False, mode="cut", spare_cleaned=True)
    active = found.segments[-1]
    page.begin_change()
    page.publish_layout(active.base_offset, active.size_bytes, found.next_offset)
    page.publish_start(found.start_offset)
    page.publish_clean(found.clean_offset)
    page.publish_durable(found.durable_offset)
    page.end_change()
