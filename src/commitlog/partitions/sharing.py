"""SharedAccess: lets several processes append to a partition.

A process holds a file lock while it changes something. It first learns from the state page what others did,
and leaves a mark there until it is done. If it dies in between, the mark stays, and the next process cuts off
what was not finished, or recovers the partition if segments were being changed.
"""

from __future__ import annotations

import contextlib
import os

from commitlog import files
from commitlog.config import TopicConfig
from commitlog.errors import CorruptionError, UnknownTopicError
from commitlog.locks import HeldElsewhereError, ProcessLock
from commitlog.open_files import OpenFiles
from commitlog.partitions.access import Access
from commitlog.partitions.layout import Layout
from commitlog.partitions.page import StatePage
from commitlog.partitions.recovery import Recovered, Recovery, RecoveryReport
from commitlog.partitions.state import LogState, now_ms, unsynced
from commitlog.partitions.sync_queue import SyncQueue
from commitlog.segment import Segment, derived_files, segment_path
from commitlog.segment_files import list_segments
from commitlog.segment_writer import SegmentWriter

_MEMBERS, _APPEND, _SYNC, _COMPACTION = "members.lock", "append.lock", "sync.lock", "compaction.lock"


class SharedAccess(Access):
    """Locks between processes. Taking one brings this process's state up to date.

    Every process that has the partition open holds a shared lock on the file `members`.
    """

    alone = False

    def __init__(self, path: str, page: StatePage, members: files.Descriptor) -> None:
        self._path = path
        self._page = page
        self._members: files.Descriptor | None = members
        self._truncations_seen = page.truncations
        self._learning = False  # whether _come_in() was interrupted before it had learned everything
        self.renew()

    def of(self, state: LogState) -> None:
        """Keep `state` up to date; call this before any lock is taken."""
        self._state = state

    def renew(self) -> None:
        """In a forked child: replace the locks, which a thread of the parent may have held."""
        path = os.path.join(self._path, "")
        self.lock = self._append_lock = ProcessLock(path + _APPEND, self._come_in, (self._page.letting_go,))
        self.sync_lock = ProcessLock(path + _SYNC, self._look_at_the_page)
        self.compaction_lock = ProcessLock(path + _COMPACTION)
        self.sync_queue = SyncQueue()

    def learn(self) -> None:
        """Learn what other processes did since this one last held a lock."""
        with self.lock:
            pass

    def failed(self) -> None:
        """Leave the mark on the page, so that the next process checks the files."""
        self._append_lock.skip_leaving()

    def half_changed(self) -> None:
        """Leave the generation odd, so that the next process recovers the partition."""
        self._page.begin_change()

    def leave(self) -> None:
        """Release the shared lock on `members`."""
        self._members = None

    # --- coming in and going out

    def _come_in(self) -> bool:
        """Learn what others did, and repair what one of them left when it died.

        True if a mark is on the page, which must be removed before the lock is released.
        """
        state = self._state
        page = state.page
        if state.ended_by is not None:  # this process changes nothing any more
            return False
        if page.gone and not state.closed:
            raise UnknownTopicError(state.name)
        half_learned, self._learning = self._learning, True  # Ctrl-C, or an error, may come at any line
        if not half_learned:
            state.producers.next_offset = state.next_offset
        position = state.writer.segment.size_bytes
        died = page.left_by_the_dead is not None or page.generation % 2 == 1
        if died or page.generation != state.segments.generation:
            try:
                self._reload(found(state.path, state.name, state.config, state.cache, page))
            except CorruptionError as problem:
                state.fail(str(problem))
                raise
        elif page.end_position != state.writer.segment.size_bytes:
            state.writer.catch_up(page.end_position)
        if page.next_offset != state.next_offset or state.writer.segment.size_bytes != position:
            others = page.next_offset - state.next_offset
            state.counters.moved(others, state.writer.segment.size_bytes - position)
        if page.has_transactions:
            state.has_transactions, state.undecided = True, page.undecided_offset  # before next_offset
        state.next_offset = page.next_offset
        self._look_at_the_page()
        self._learn_of_producers(again=half_learned or (died and page.has_transactions))
        if page.has_transactions:
            state.forget_aborted()
        self._learning = False
        state.writer.share()
        page.hold()
        return True

    def _learn_of_producers(self, *, again: bool) -> None:
        """Note the batches of others; read all of them `again` where some may have been missed."""
        state = self._state
        page, known = state.page, state.producers
        if again or page.truncations != self._truncations_seen:
            # crash: the page says that a transaction begins, or has not ended, which is not so -> corrected
            state.restore_producers()
            self._truncations_seen = page.truncations
        elif page.has_producers and known.next_offset < state.next_offset:
            known.read(state.segments.segments, state.next_offset, now_ms(), page.last_stable_offset)
            known.forget_decided(page.last_stable_offset)  # compaction may have removed the markers since

    def _look_at_the_page(self) -> bool:
        state = self._state
        page = state.page
        if state.ended_by is None:
            state.start_offset, state.durable_offset = page.start_offset, page.durable_offset
            state.clean_offset = page.clean_offset
        return False

    def _reload(self, left: Recovered) -> None:
        """Open the segments as others left them; after an error the next process tries again."""
        state = self._state
        writer = SegmentWriter.open(left.segments[-1], state.config, trust_indexes=False)
        state.writer.close()
        state.writer = writer
        state.segments = Layout.of(left.segments, state.page.generation)
        state.unsynced = unsynced(left)
        state.name_changes += 1


def open_members(path: str) -> files.Descriptor:
    """Open the file that every process that has the partition open holds a shared lock on."""
    return files.Descriptor(os.open(os.path.join(path, _MEMBERS), os.O_RDWR | os.O_CREAT, 0o644))


def append_lock(path: str) -> ProcessLock:
    """Return the append lock, for a process that has not opened the partition yet."""
    return ProcessLock(os.path.join(path, _APPEND))


def found(path: str, name: str, config: TopicConfig, cache: OpenFiles, page: StatePage) -> Recovered:
    """Return a partition as its page describes it, after repairing what a dead writer left; its caller never
    got an answer. The append lock must be held. The dead writer's mark stays until its bytes are cut, too.
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
        # Ctrl-C ended a roll or an adoption that nobody was told of; its records will be appended elsewhere
        unused = segments.pop().path
        for leftover in (unused, *derived_files(unused)):
            files.remove(leftover)
        files.sync_directory(path)  # or it could come back after what is appended now
    while len(segments) > 1 and segments[1].base_offset <= page.start_offset:
        del segments[0]
    if page.end_position == 0 and (not segments or segments[-1].base_offset < page.base_offset):
        segments.append(Segment(segment_path(path, page.base_offset), page.base_offset, 0, cache))
    if segments[-1].base_offset != page.base_offset or segments[-1].size_bytes < page.end_position:
        reason = f"some or all of its {page.end_position} bytes are missing"  # so no other file may be cut
        raise CorruptionError(segment_path(path, page.base_offset), 0, reason)
    segments[-1].size_bytes = page.end_position
    return Recovered(
        segments, page.start_offset, page.next_offset, page.durable_offset, page.clean_offset,
        page.has_producers, indexes_trusted=False, report=RecoveryReport(name, clean=True),
    )  # fmt: skip


def _listed(path: str, cache: OpenFiles) -> list[Segment]:
    """List the segments while others may be removing those that they trimmed."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            return list_segments(path, cache)


def _recover(path: str, name: str, config: TopicConfig, cache: OpenFiles, page: StatePage) -> None:
    """Bring a partition's files and its page into order; a compaction pass in another process goes on."""
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
