"""SharedMap: an immutable mapping whose changed copies share the unchanged parts with it.

Copying a dictionary visits every entry; a changed copy of a SharedMap visits about one in 256.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar
from zlib import crc32

V = TypeVar("V")
_BUCKETS = 256


class SharedMap(Mapping[str, V], Generic[V]):
    """A mapping with texts as keys. Its order is arbitrary, but the same in every process."""

    __slots__ = ("_buckets",)

    def __init__(self, buckets: tuple[dict[str, V], ...] = ({},) * _BUCKETS) -> None:
        self._buckets = buckets

    def __getitem__(self, key: str) -> V:
        return self._buckets[_bucket(key)][key]

    def __iter__(self) -> Iterator[str]:
        for bucket in self._buckets:
            yield from bucket

    def __len__(self) -> int:
        return sum(map(len, self._buckets))

    def __repr__(self) -> str:
        return repr(dict(self))

    def changed(self, changes: Mapping[str, V | None]) -> tuple[dict[str, V], ...]:
        """Return the buckets of a changed copy; None removes an entry."""
        buckets = list(self._buckets)
        for place in {_bucket(key) for key in changes}:
            buckets[place] = dict(buckets[place])
        for key, value in changes.items():
            if value is None:
                del buckets[_bucket(key)][key]
            else:
                buckets[_bucket(key)][key] = value
        return tuple(buckets)


def _bucket(key: str) -> int:
    return crc32(key.encode(errors="surrogatepass")) % _BUCKETS
