"""FetchedSegment: batches that came from another machine, read as a segment is: by the same code."""

from __future__ import annotations

from commitlog.batches.format import peek
from commitlog.errors import CorruptionError
from commitlog.record import Buffer
from commitlog.segment import Segment, Window


class FetchedSegment(Segment):
    """Whole batches in memory, from the one that holds the offset asked for. It has no file and no indexes:
    reading starts with the first of them.
    """

    def __init__(self, name: str, buffer: Buffer, offset: int) -> None:
        base_offset, _, _ = peek(buffer, 0, name)
        if base_offset > offset:
            raise CorruptionError(name, 0, f"offset {base_offset} where {offset} was expected")
        super().__init__(name, base_offset, len(buffer))
        self._whole = Window(buffer, 0, len(buffer))

    def _window(self, position: int) -> Window:
        return self._whole

    def start_for(self, offset: int) -> int:
        """Return the position of a batch at or before `offset`."""
        return 0
