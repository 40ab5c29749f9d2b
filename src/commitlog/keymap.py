"""KeyMap: the latest offset of every key, in numpy arrays of bounded size.

It identifies a key by its 128-bit xxh3 hash, not by its bytes. Among a billion keys, any two share a hash
with a probability of about 1e-21. Each map has a new random seed, so nobody can prepare such keys.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import repeat

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128_digest

from commitlog.batches.columns import Int64s

SLOT_BYTES = 24  # two halves of a hash and an offset
_LOAD = 0.9  # measured at this load: 10 probes per new key, all of them vectorised
_FIRST_SLOTS, _GROWTH = 4093, 8
_REHASH_SLOTS = 1 << 16

Hashes = NDArray[np.uint64]


def hash_keys(keys: Sequence[bytes], seed: int) -> Hashes:
    """Return the two halves of each key's hash, one row per key."""
    # measured: 120 ns per key; with the seed bound by partial() 330
    digests = b"".join(map(xxh3_128_digest, keys, repeat(seed)))
    return np.frombuffer(digests, np.uint64).reshape(len(keys), 2)


class KeyMap:
    """An open-addressing table that grows up to `buffer_bytes` and then takes no more keys.

    It grows by a factor of 8, so that the old table, which exists while the new one is filled, is small in
    comparison; both count. (Starting with the final size would be slower: few keys in many pages.)

    A slot is free while its offset is 0: offsets are stored plus one. Records are added in the order of their
    offsets, so the last one is the latest.
    """

    def __init__(self, buffer_bytes: int) -> None:
        slots = buffer_bytes // SLOT_BYTES
        if slots > _FIRST_SLOTS:
            slots -= slots // _GROWTH
        self._sizes = [_prime_below(max(slots, 2))]  # of the tables to come, in reverse order
        while self._sizes[-1] > _FIRST_SLOTS:
            self._sizes.append(_prime_below(self._sizes[-1] // _GROWTH))
        self.capacity = _room(self._sizes[0])
        self.used = 0
        self._seed = int.from_bytes(os.urandom(8), "little")
        self._make_table(self._sizes.pop())

    def _make_table(self, slots: int) -> None:
        self._slots = slots
        self._first = np.zeros(slots, np.uint64)
        self._second = np.zeros(slots, np.uint64)
        self._offsets = np.zeros(slots, np.int64)

    # --- adding

    def add(self, keys: Sequence[bytes], offsets: Int64s) -> int:
        """Note records by key and offset; returns how many, fewer than given if the map is full."""
        hashes = hash_keys(keys, self._seed)
        while self._sizes and self.used + len(keys) > _room(self._slots):
            self._grow()
        count = len(keys)
        if self.used + count > self.capacity:
            count = self._count_that_fits(hashes)
        self._place(hashes[:count], offsets[:count] + 1)
        return count

    def _grow(self) -> None:
        first, second, offsets = self._first, self._second, self._offsets
        self._make_table(self._sizes.pop())
        self.used = 0
        for start in range(0, len(offsets), _REHASH_SLOTS):
            part = slice(start, start + _REHASH_SLOTS)
            taken = offsets[part].nonzero()[0]
            hashes = np.stack([first[part][taken], second[part][taken]], axis=1)
            self._place(hashes, offsets[part][taken])

    def _count_that_fits(self, hashes: Hashes) -> int:
        """Return how many records can be added before a new key finds the map full."""
        new = (self._find(hashes) == 0).nonzero()[0]
        room = self.capacity - self.used
        if len(new) <= room:
            return len(hashes)
        _, firsts = np.unique(hashes[new], axis=0, return_index=True)
        return len(hashes) if len(firsts) <= room else int(new[np.sort(firsts)[room]])

    def _place(self, hashes: Hashes, marks: Int64s) -> None:
        """Store each record's mark in the slot of its key; of several marks for one key the last stays.

        All records probe at once. If several keys claim the same free slot, the last one gets it, because
        numpy stores repeated indexes in order, and the others probe further.
        """
        first, second, slots, steps = self._probes(hashes)
        while len(slots):
            mine = self._holds(slots, first, second)
            self._offsets[slots[mine]] = marks[mine]
            others = ~mine
            first, second, marks, steps = first[others], second[others], marks[others], steps[others]
            slots = slots[others]
            free = self._offsets.take(slots) == 0
            claimed = slots[free]
            self._first[claimed], self._second[claimed] = first[free], second[free]
            self._offsets[claimed] = marks[free]
            self.used += int((self._offsets[claimed] == marks[free]).sum())  # one winner per slot
            slots = self._after(slots, np.where(free, 0, steps))  # a claim is checked in the next round

    def _probes(self, hashes: Hashes) -> tuple[Hashes, Hashes, Int64s, Int64s]:
        """Return the halves of the hashes, the first slot of each and the step to its next slots."""
        first = np.ascontiguousarray(hashes[:, 0])
        second = hashes[:, 1] | np.uint64(1)  # never the hash in a free slot
        slots = (first % np.uint64(self._slots)).astype(np.int64)
        # the table's size is prime, so any step visits every slot
        steps = (second % np.uint64(max(self._slots - 1, 1))).astype(np.int64) + 1
        return first, second, slots, steps

    def _after(self, slots: Int64s, steps: Int64s) -> Int64s:
        following: Int64s = slots + steps
        following[following >= self._slots] -= self._slots
        return following

    def _holds(self, slots: Int64s, first: Hashes, second: Hashes) -> NDArray[np.bool_]:
        """Return, for each slot, whether it holds the key with this hash."""
        same: NDArray[np.bool_] = self._first.take(slots) == first
        same &= self._second.take(slots) == second
        return same

    # --- looking up

    def latest(self, keys: Sequence[bytes]) -> Int64s:
        """Return the latest offset of each key, -1 for unknown keys."""
        return self._find(hash_keys(keys, self._seed)) - 1

    def _find(self, hashes: Hashes) -> Int64s:
        found = np.zeros(len(hashes), np.int64)
        rows = np.arange(len(hashes))
        first, second, slots, steps = self._probes(hashes)
        while len(rows):
            marks = self._offsets.take(slots)
            mine = self._holds(slots, first, second)
            found[rows[mine]] = marks[mine]
            others = ~mine & (marks != 0)
            first, second, steps, rows = first[others], second[others], steps[others], rows[others]
            slots = self._after(slots[others], steps)
        return found

    def into_offsets(self) -> Int64s:
        """Return the latest offsets of all keys, sorted; this reuses the map's memory and ends the map."""
        self._first = self._second = np.zeros(0, np.uint64)
        self._offsets.sort()
        offsets = self._offsets[self._slots - self.used :]
        offsets -= 1
        return offsets


def _room(slots: int) -> int:
    return max(int(slots * _LOAD), 1)


def _prime_below(number: int) -> int:
    """Return the greatest prime up to `number`, which is at least 2."""
    while any(number % divisor == 0 for divisor in range(2, int(number**0.5) + 1)):
        number -= 1
    return number
