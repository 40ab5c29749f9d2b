"""Partitioners choose a record's partition. A topic names its partitioner, so that all writers agree."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from commitlog.errors import ConfigError
from commitlog.record import Buffer
from commitlog.speedups import native

Key = Buffer | None
Divide = Callable[..., list[tuple[int, list[Sequence[Any] | None]]] | None]


class Partitioner(Protocol):
    """Chooses partitions. A topic has one instance, which its threads share."""

    def one(self, key: Key, partitions: int) -> int:
        """Return the partition of one record."""

    def many(self, keys: Sequence[Key], partitions: int) -> NDArray[np.int64]:
        """Return the partition of each record of a batch."""


class HashPartitioner:
    """Places records by a hash of their key; those of a batch without a key go together, batches in turn."""

    def __init__(
        self,
        hash_one: Callable[[Buffer], int],
        hash_many: Callable[[Sequence[Buffer]], NDArray[np.uint64]],
        divide: Divide | None = None,
    ) -> None:
        """`divide` divides whole batches by these hashes."""
        self._hash_one = hash_one
        self._hash_many = hash_many
        self._divide = divide
        self._turn = itertools.count()

    def one(self, key: Key, partitions: int) -> int:
        """Return the partition of one record."""
        return next(self._turn) % partitions if key is None else self._hash_one(key) % partitions

    def many(self, keys: Sequence[Key], partitions: int) -> NDArray[np.int64]:
        """Return the partition of each record of a batch."""
        with contextlib.suppress(TypeError):  # a key that is None
            return self.keyed(keys, partitions)  # type: ignore[arg-type]
        chosen = np.full(len(keys), next(self._turn) % partitions, np.int64)
        present = [key for key in keys if key is not None]
        if present:
            chosen[[key is not None for key in keys]] = self.keyed(present, partitions)
        return chosen

    def keyed(self, keys: Sequence[Buffer], partitions: int) -> NDArray[np.int64]:
        """Return the partition of each record of a batch in which every record has a key."""
        return (self._hash_many(keys) % np.uint64(partitions)).astype(np.int64)

    def divide(
        self, keys: Sequence[Key], columns: list[Sequence[Any] | None], partitions: int
    ) -> list[tuple[int, list[Sequence[Any] | None]]] | None:
        """Return the columns of each partition's records, in order; None if many() has to choose."""
        if self._divide is None:
            return None
        return self._divide(keys, columns, partitions, self._hash_one)


def xxhash_many(keys: Sequence[Buffer]) -> NDArray[np.uint64]:
    """Return the hashes of many keys."""
    # measured: a third faster than from integers; a digest is the integer in big-endian bytes
    return np.frombuffer(b"".join(map(xxhash.xxh3_64_digest, keys)), ">u8").astype(np.uint64)


# --- Kafka's murmur2 -----------------------------------------------------------------------------

_M, _R, _SEED = 0x5BD1E995, 24, 0x9747B28C
_MASK = 0xFFFF_FFFF


def murmur2(key: Buffer) -> int:
    """Return the hash that Kafka's default partitioner uses, with the sign bit cleared."""
    return int(murmur2_many([key])[0])


def murmur2_many(keys: Sequence[Buffer]) -> NDArray[np.uint64]:
    """Return the hashes of many keys; keys of equal length are hashed together."""
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    hashes = np.empty(len(keys), np.uint64)
    for length in np.unique(lengths).tolist():
        chosen = (lengths == length).nonzero()[0]
        joined = b"".join([keys[number] for number in chosen.tolist()])
        hashes[chosen] = _murmur2_rows(np.frombuffer(joined, np.uint8).reshape(len(chosen), length))
    return hashes & np.uint64(0x7FFF_FFFF)


def _murmur2_rows(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return the hash of each row of bytes; numpy's uint32 wraps around as the algorithm requires."""
    count, length = rows.shape
    multiplier = np.uint32(_M)
    whole = length // 4 * 4
    words = np.ascontiguousarray(rows[:, :whole]).view("<u4").astype(np.uint32)
    hashes = np.full(count, (_SEED ^ length) & _MASK, np.uint32)
    for column in range(whole // 4):
        word = words[:, column] * multiplier
        word ^= word >> np.uint32(_R)
        hashes = (hashes * multiplier) ^ (word * multiplier)
    rest = length - whole
    for index in reversed(range(rest)):
        hashes ^= rows[:, whole + index].astype(np.uint32) << np.uint32(8 * index)
    if rest:
        hashes *= multiplier
    hashes ^= hashes >> np.uint32(13)
    hashes *= multiplier
    return hashes ^ (hashes >> np.uint32(15))


_KNOWN: dict[str, Callable[[], Partitioner]] = {
    "xxhash": lambda: HashPartitioner(
        xxhash.xxh3_64_intdigest, xxhash_many, native.divide_by_key if native else None
    ),
    "murmur2": lambda: HashPartitioner(murmur2, murmur2_many),
}


def register_partitioner(name: str, make: Callable[[], Partitioner]) -> None:
    """Register a partitioner for topics with `partitioner=name`, in every process that appends to them."""
    _KNOWN[name] = make


def make_partitioner(name: str) -> Partitioner:
    """Return a new partitioner by name; ConfigError if it is not registered."""
    if name not in _KNOWN:
        known = ", ".join(sorted(_KNOWN))
        raise ConfigError("partitioner", name, f"is not registered here; there are {known}")
    return _KNOWN[name]()
