"""FetchedSegment: batches from another machine, read by the same code as a segment on disk."""

from __future__ import annotations

from commitlog.batches.format import peek
from commitlog.errors import CorruptionError
from commitlog.record import Buffer
from commitlog.segment import Segment, Window


class FetchedSegment(Segment):
    """Whole batches in memory, from the one that holds `offset` on. It has neither file nor indexes."""

    def __init__(self, name: str, buffer: Buffer, offset: int) -> None:
        base_offset, _, _ = peek(buffer, 0, name)
        if base_offset > offset:
            raise CorruptionError(name, 0, f"offset {base_offset} where {offset} was expected")
        super().__init__(name, base_offset, len(buffer))
        self._whole = Window(buffer, 0, len(buffer))

    def _window(self, position: int) -> Window:
        return self._whole

    def start_for(self, offset: int) -> int:
        """Return the position of the first batch: reading starts there."""
        return 0
