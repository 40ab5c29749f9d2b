"""Latest: the current value of every key, whether or not compaction has run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from commitlog import notebook
from commitlog.batches.batch import RecordBatch
from commitlog.batches.columns import NO_NULLS

if TYPE_CHECKING:
    import pyarrow as pa


class Latest(Mapping[bytes, bytes]):
    """A mapping of each key to its value at `next_offsets`, one per partition; read on from there to follow.

    A key whose latest value is None was deleted and is not in it. Records without a key are ignored.
    """

    def __init__(self, values: Mapping[bytes, bytes], next_offsets: tuple[int, ...]) -> None:
        self._values = values
        self.next_offsets = next_offsets

    def __getitem__(self, key: bytes) -> bytes:
        return self._values[key]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<Latest {len(self._values)} keys at {', '.join(map(str, self.next_offsets))}>"

    def _repr_html_(self) -> str:
        rows = list(islice(self._values.items(), notebook.ROWS))
        return notebook.table(repr(self), ("key", "value"), rows, len(self) > notebook.ROWS)

    @property
    def next_offset(self) -> int:
        """Where to read on, for a single partition."""
        (offset,) = self.next_offsets
        return offset

    def to_arrow(self) -> pa.Table:
        """Return keys and values as an Arrow table."""
        from commitlog.batches import arrow

        return arrow.pairs(self._values)


class LatestBuilder:
    """Takes batches in order and keeps the last value of each key."""

    def __init__(self) -> None:
        self._values: dict[bytes | None, bytes | None] = {}
        self._deleted = False

    def add(self, batches: Iterable[RecordBatch]) -> None:
        """Add batches."""
        for batch in batches:
            # measured: 125 ns for a record with a known key, 200 with a new one
            self._values.update(zip(batch.keys(), batch.values(), strict=True))
            self._deleted |= batch.body.values.nulls != NO_NULLS

    def finish(self) -> dict[bytes, bytes]:
        """Return the values of all keys that were not deleted."""
        values = self._values
        values.pop(None, None)
        if self._deleted:
            values = {key: value for key, value in values.items() if value is not None}
        return values  # type: ignore[return-value]
