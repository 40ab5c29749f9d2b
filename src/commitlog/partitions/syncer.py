"""Syncer: makes appended records durable, with one sync for several callers where possible."""

from __future__ import annotations

import time

from commitlog import files
from commitlog.partitions.state import LogState
from commitlog.partitions.sync_queue import Turn
from commitlog.segment import Segment
from commitlog.segment_writer import sync_sealed


class Syncer:
    """Syncs data, names and the page, in the order that recovery relies on."""

    def __init__(self, state: LogState) -> None:
        self._state = state

    def sync(self) -> None:
        """Make everything appended so far durable."""
        state = self._state
        state.check_writable()
        self.sync_to(state.page.next_offset)  # other processes may have appended, too

    def sync_to(self, offset: int) -> None:
        """Make everything below `offset` durable. Group commit: another caller's sync may have covered it."""
        state = self._state
        if state.durable_offset >= offset and state.access.alone:  # another process may have truncated
            return
        queue, turn = state.access.sync_queue, Turn(offset)
        try:
            queue.enter(turn)
            if turn.leads:
                self._lead(offset)
        finally:
            try:
                queue.leave(turn, state.durable_offset)
            except BaseException:  # Ctrl-C: the next thread must not wait for nobody
                queue.leave(turn, state.durable_offset)
                raise

    def _lead(self, offset: int) -> None:
        """Sync for all threads that have appended before, unless everything below `offset` is durable."""
        state = self._state
        with state.sync_lock:
            if state.durable_offset >= offset:
                return
            state.check_writable()
            with state.lock:
                unsynced = self.take_unsynced()
                state.writer.reserve_ahead()
            self.sync_files(*unsynced)

    def sync_locked(self) -> None:
        """Make everything durable, with both locks held."""
        self.sync_files(*self.take_unsynced())

    def take_unsynced(self) -> tuple[int, files.Descriptor, list[Segment], int]:
        """Return what a sync must cover now: end, descriptor, segments, names. With `lock` held."""
        state = self._state
        state.check_linked()
        state.writer.make_way_for_sync()
        return state.next_offset, state.another_handle(), list(state.unsynced), state.name_changes

    def check_linked(self) -> None:
        """Stop the partition if the active segment's file was removed: appends would be lost."""
        with self._state.lock:
            self._state.check_writable()
            self._state.check_linked()

    def sync_files(self, end: int, active: files.Descriptor, sealed: list[Segment], names: int) -> None:
        """Sync what take_unsynced() returned."""
        state, began = self._state, time.perf_counter()
        with state.ended_by_failure():
            try:
                for segment in sealed:
                    sync_sealed(segment)
                files.sync_data(active.fd)
                if names != state.names_synced:
                    files.sync_directory(state.path)
            finally:
                active.close()
        state.counters.synced(time.perf_counter() - began)
        # only now, so that the next sync repeats an interrupted one
        del state.unsynced[: len(sealed)]
        state.names_synced = names
        state.durable_offset = end
        state.page.publish_durable(end)
        if sealed:  # otherwise damage to them would look like a torn tail after a power cut
            self.sync_page()

    def sync_page(self) -> None:
        """Make the state page durable."""
        with self._state.ended_by_failure():
            self._state.page.sync()

    def sync_names(self) -> None:
        """Make the names of the segments durable."""
        state, names = self._state, self._state.name_changes
        with state.ended_by_failure():
            files.sync_directory(state.path)
        state.names_synced = names

    def declare_producers(self) -> None:
        """Make it durable that batches name producers, before one does: recovery looks for them only then."""
        state = self._state
        with state.sync_lock:
            state.check_writable()
            state.page.publish_producers()
            self.sync_page()
            state.tells_of_producers = True

    def declare_transactions(self) -> None:
        """Make it durable that there are transactions, before one begins: readers look for them only then."""
        state = self._state
        with state.sync_lock:
            state.check_writable()
            state.page.publish_producers()
            with state.lock:
                state.begin_transactions()
            self.sync_page()
            state.tells_of_producers = state.tells_of_transactions = True
