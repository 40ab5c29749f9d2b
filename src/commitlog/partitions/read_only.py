"""ReadOnlyPartition: a partition that another process may be writing."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, Self

from commitlog.config import TopicConfig
from commitlog.errors import CorruptionError, ReadOnlyError, UnknownTopicError
from commitlog.open_files import HandleCache
from commitlog.partitions import epochs
from commitlog.partitions.layout import Layout
from commitlog.partitions.page import StatePage
from commitlog.partitions.reader import CHANGE_SECONDS, PartitionReader, look_again_after
from commitlog.partitions.recovery import Recovery
from commitlog.progress import Steps
from commitlog.segment import Segment, segment_path
from commitlog.segment_files import list_segments

_TO_BE_LISTED = -1  # no generation of a page


class ReadOnlyPartition(PartitionReader):
    """A partition seen from outside its writer's process; it never writes.

    While a writer is at work, its state page tells how far to read. Without one the files are checked
    here, in memory, as the next writer will check them: hardly at all after a clean shutdown.
    """

    def __init__(
        self,
        path: str,
        name: str,
        config: TopicConfig,
        cache: HandleCache,
        writer: Callable[[], bool],
        clean: Callable[[], bool],
    ) -> None:
        self.path = path
        self.name = name
        self.config = config
        self._cache = cache
        self._has_writer = writer
        self._is_clean = clean
        self._steps: Steps | None = None
        self._lock = threading.RLock()
        self._page: StatePage | None = None
        self._known: Layout | None = None
        # start, next, durable, high watermark, clean: where there is no writer to follow; what the page told
        self._settled: tuple[int, int, int, int, int] | None = None
        self._settled_at: tuple[int, int] | None = None

    @classmethod
    def open(
        cls,
        path: str,
        name: str,
        config: TopicConfig,
        cache: HandleCache,
        *,
        writer: Callable[[], bool],
        clean: Callable[[], bool],
        steps: Steps | None = None,
    ) -> Self:
        """Open; `writer` says whether somebody writes the log, `clean` whether it was closed cleanly."""
        partition = cls(path, name, config, cache, writer, clean)
        partition._steps = steps
        partition._layout()
        partition._steps = None
        return partition

    def _follow(self) -> StatePage | None:
        """Return the page to follow, None while there is no writer to keep it true."""
        self._check_open()
        page = self._page
        if page is not None and self._settled is None:
            return page
        with self._lock:
            if self._page is None:
                self._page = StatePage.open(self.path)
            page = self._page
            # a writer that is still opening the log is none to follow, but moves the page once it appends
            moved = page is not None and _told(page) != self._settled_at
            if moved and self._has_writer():
                if self._known is not None:
                    self._known = self._known._replace(generation=_TO_BE_LISTED)
                self._settled = self._settled_at = None
                return page
            if self._settled is None or moved:  # a writer may have come and gone since
                self._settle(page)
            return page if self._settled is None else None

    def _settle(self, page: StatePage | None) -> None:
        known, told = (page.checkpoint, _told(page)) if page else (None, None)
        recovery = Recovery(self.path, self.name, known, self.config, self._cache, self._steps)
        found = recovery.run(clean=self._is_clean(), mode="cut", read_only=True)
        self._replace_layout(Layout.of(found.segments, 0 if told is None else told[0]))
        start, end, mark = found.start_offset, found.next_offset, page.kept_high_watermark if page else None
        if mark is None:
            mark = start if epochs.is_there(self.path) else end
        self._settled = (start, end, found.durable_offset, max(start, min(mark, end)), found.clean_offset)
        self._settled_at = told

    def _wait_for_change(self, layout: Layout, problem: Exception, deadline: float | None) -> float:
        """Without a writer to follow, a missing file may be what a writer that now recovers has replaced."""
        if self._settled is not None and isinstance(problem, FileNotFoundError):
            with self._lock, contextlib.suppress(CorruptionError):  # the file is lost: that is told below
                self._settle(self._page)
                if self._known is not None and _paths(self._known) != _paths(layout):
                    return time.monotonic() + CHANGE_SECONDS if deadline is None else deadline
        if self._follow() is None:  # a change that a killed writer began nobody ends
            deadline = time.monotonic()
        return super()._wait_for_change(layout, problem, deadline)

    def _layout(self) -> Layout:
        page = self._follow()
        if page is None:
            assert self._known is not None
            return self._known
        with self._lock:
            if self._known is None or self._known.generation != page.generation:
                self._replace_layout(self._listed(page))
            assert self._known is not None
            last = self._known.segments[-1]
            if page.base_offset == last.base_offset:
                last.size_bytes = max(last.size_bytes, page.end_position)
            return self._known

    def _replace_layout(self, layout: Layout) -> None:
        """Go on with other segments; a map of one that was removed would keep its blocks on the disk."""
        before, self._known = self._known, layout
        for segment in before.segments if before else ():
            self._cache.forget(segment)

    def _listed(self, page: StatePage) -> Layout:
        """List the segments when no change is under way."""
        deadline = time.monotonic() + CHANGE_SECONDS
        while True:
            generation, segments = page.generation, None
            try:
                if generation % 2 == 0 or time.monotonic() > deadline:  # a .swap file would be read in full
                    segments = list_segments(self.path, self._cache)
            except FileNotFoundError:  # removed while they were listed, or all of it
                if not os.path.isdir(self.path):
                    raise UnknownTopicError(self.name) from None
            settled = generation % 2 == 0 and page.generation == generation
            if segments is not None and (settled or time.monotonic() > deadline):
                break
            time.sleep(0.0005)
        if not segments:  # a power cut took an empty one
            segments = [Segment(segment_path(self.path, page.base_offset), page.base_offset, 0, self._cache)]
        while len(segments) > 1 and segments[1].base_offset <= page.start_offset:
            del segments[0]  # trimmed; its file may go at any moment
        segments[-1].active = True
        if page.base_offset == segments[-1].base_offset:
            segments[-1].size_bytes = page.end_position
        return Layout.of(segments, generation)

    @property
    def _changes(self) -> int:
        page = self._follow()
        return self._known.generation if page is None and self._known else page.generation if page else 0

    @property
    def _truncations(self) -> int:
        return 0 if self._page is None else self._page.truncations

    @property
    def start_offset(self) -> int:
        """The first offset that may be read."""
        page = self._follow()
        return page.start_offset if page else self._fixed(0)

    @property
    def next_offset(self) -> int:
        """The offset that the next append gets."""
        page = self._follow()
        return page.next_offset if page else self._fixed(1)

    @property
    def durable_offset(self) -> int:
        """Everything below it survives power loss."""
        page = self._follow()
        return page.durable_offset if page else self._fixed(2)

    @property
    def high_watermark(self) -> int:
        """Readers stop here; next_offset where there are no replicas."""
        page = self._follow()
        return page.high_watermark if page else self._fixed(3)

    @property
    def clean_offset(self) -> int:
        """Below it compaction has left one record of each key."""
        page = self._follow()
        return page.clean_offset if page else self._fixed(4)

    def _fixed(self, number: int) -> int:
        settled, page = self._settled, self._page
        if settled is None:  # another thread has just found a writer to follow
            assert page is not None
            settled = (
                page.start_offset, page.next_offset, page.durable_offset,
                page.high_watermark, page.clean_offset,
            )  # fmt: skip
        return settled[number]

    def wait_for(self, offset: int, timeout: float | None = None) -> bool:
        """Wait until `offset` can be read; False if it cannot after `timeout` seconds."""
        began = time.monotonic()
        while self.high_watermark <= offset:
            waited = time.monotonic() - began
            if timeout is not None and waited >= timeout:
                return False
            time.sleep(look_again_after(waited))
        return True

    def forked(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self._lock = threading.RLock()

    def close(self) -> None:
        """Let the maps go."""
        with self._lock:
            self._closed = True
            self._page = None
            if self._known is not None:
                for segment in self._known.segments:
                    self._cache.forget(segment)

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ReadOnlyError(self.name)

    append = append_many = append_arrow = sync = roll = trim_before = truncate_from = compact = repair = (
        _refuse
    )
    lead = follow = append_replicated = restart_at = set_high_watermark = keep_high_watermark = _refuse


def _told(page: StatePage) -> tuple[int, int]:
    """Return what changes in a page when somebody writes."""
    return page.generation, page.next_offset


def _paths(layout: Layout) -> list[str]:
    return [segment.path for segment in layout.segments]
