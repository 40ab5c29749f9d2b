"""IndexBuilder: which batches get an index entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commitlog.segments.index import OffsetIndex, TimeIndex

if TYPE_CHECKING:
    from commitlog.segments.segment import Segment


class IndexBuilder:
    """Decides which batches get an index entry; the writer and every rebuild use the same rule."""

    __slots__ = (
        "_interval", "_latest_offset", "_latest_position", "_offsets", "_timed_position", "_times",
        "indexed_position", "max_timestamp",
    )  # fmt: skip

    def __init__(self, offsets: OffsetIndex, times: TimeIndex, interval_bytes: int) -> None:
        self._offsets = offsets
        self._times = times
        self._interval = interval_bytes
        self.indexed_position = 0  # where the last indexed batch starts
        self.max_timestamp = -1
        self._latest_offset = self._latest_position = 0  # the first batch that reaches max_timestamp
        self._timed_position = 0  # the position in the last time entry

    def has_room(self) -> bool:
        """Say whether both indexes can take an entry, and the time index its last one."""
        return self._offsets.has_room(1) and self._times.has_room(2)

    def make_room(self, batches: int = 1) -> None:
        """Reserve what add() may need: a full disk shows here, before anything is written."""
        self._offsets.make_room(batches)
        self._times.make_room(batches)

    def resume(self, segment: Segment, *, complete: bool) -> int:
        """Take up what the indexes hold; returns the position from which batches must be added.

        Complete ones lack none. To those that are true but perhaps not complete (after a crash), batches are
        added from the time index's last entry on: later ones may have reached a later timestamp that the lost
        entries knew.
        """
        last, latest = self._offsets.last(), self._times.last()
        self.indexed_position = start = 0 if last is None else last.position
        if latest is not None and latest.timestamp is not None:
            self.max_timestamp = latest.timestamp
            self._latest_offset, self._latest_position = latest.offset, latest.position
            self._timed_position = latest.position
        elif segment.size_bytes and complete:
            self.max_timestamp = segment.latest_at(0)
        if complete:
            return segment.size_bytes
        return 0 if latest is None else min(start, latest.position)

    def add(self, offset: int, position: int, max_timestamp: int) -> None:
        """Note a batch, with an entry if one is due and there is room: without, the index is only coarser."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self._latest_offset, self._latest_position = offset, position
        if position - self.indexed_position > self._interval and self.has_room():
            self.indexed_position = position
            self._offsets.append(offset, position)
            self._index_time()

    def catch_up(self, segment: Segment, position: int) -> None:
        """Take note of the batches that another process wrote from `position` on, and of their entries."""
        self._offsets.catch_up()
        self._times.catch_up()
        last, latest = self._offsets.last(), self._times.last()
        self.indexed_position = 0 if last is None else last.position
        self._timed_position = 0 if latest is None else latest.position
        self._find_latest(segment, position)

    def _find_latest(self, segment: Segment, position: int) -> None:
        for place, header in segment.headers(position):
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp = header.max_timestamp
                self._latest_offset, self._latest_position = header.base_offset, place

    def roll_back(self, segment: Segment) -> None:
        """Forget the batches behind the end of the segment, which was just made shorter."""
        position = segment.size_bytes
        self._offsets.truncate(position)
        self._times.truncate(position)
        if self._latest_position >= position:
            last = self._times.last()
            self.max_timestamp = -1 if last is None or last.timestamp is None else last.timestamp
            self._latest_offset, self._latest_position = (
                (0, 0) if last is None else (last.offset, last.position)
            )
            self._find_latest(segment, self._latest_position)
        latest = self._times.last()
        self._timed_position = 0 if latest is None else latest.position
        self.indexed_position = min(self.indexed_position, position)

    def rename(self, offset_path: str, time_path: str) -> None:
        """Take note that the indexes lie elsewhere now."""
        self._offsets.path, self._times.path = offset_path, time_path

    def sync(self) -> None:
        """Make both indexes durable."""
        self._offsets.sync()
        self._times.sync()

    def close(self) -> None:
        """Let the maps go now, not when the garbage collector comes."""
        self._offsets.close()
        self._times.close()

    def finish(self, size_bytes: int, next_offset: int) -> None:
        """Give the latest timestamp an entry, so that a sealed segment tells it, and seal the indexes."""
        self._index_time()
        self._offsets.seal(size_bytes, next_offset)
        self._times.seal(size_bytes, next_offset)

    def _index_time(self) -> None:
        if self._latest_position > self._timed_position:
            self._times.append(self.max_timestamp, self._latest_offset, self._latest_position)
            self._timed_position = self._latest_position
