"""The list of aborted transactions beside a segment: `.txnindex`, one entry for each marker that aborts.

It is derived from the markers, and only its absence could do harm: records of an aborted transaction would be
read. So a list is believed only if it is known to be complete: if its seal matches the segment, or if the
writer has published how many entries it has. Otherwise readers look for the markers themselves.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple

from commitlog import files
from commitlog.checksum import crc32c
from commitlog.errors import CorruptionError

SUFFIX = ".txnindex"
_SEAL = Struct("<QQII")  # size_bytes and next_offset of the sealed segment, number of entries, checksum
_ENTRY = Struct("<qqqII")  # producer_id, first_offset, marker_offset, checksum of these three, zero
_CHECKED_BYTES = 24


class Aborted(NamedTuple):
    """A transaction in a partition: its producer's batches in [first_offset, marker_offset) do not count."""

    producer_id: int
    first_offset: int
    marker_offset: int


class AbortedRanges:
    """The aborted transactions of a partition, to ask whether a batch belongs to one."""

    def __init__(self, entries: Iterable[Aborted] = ()) -> None:
        self._of_producer: dict[int, tuple[list[int], list[int]]] = {}  # firsts and markers, both growing
        self.damage: CorruptionError | None = None  # why some may be missing
        for entry in sorted(entries, key=lambda one: one.marker_offset):
            self.add(entry)

    def add(self, entry: Aborted) -> None:
        """Add a transaction; a producer's transactions follow one another."""
        firsts, markers = self._of_producer.setdefault(entry.producer_id, ([], []))
        if markers and entry.marker_offset <= markers[-1]:
            place = bisect_left(markers, entry.marker_offset)
            if markers[place] != entry.marker_offset:  # otherwise it is already here
                markers.insert(place, entry.marker_offset)
                firsts.insert(place, entry.first_offset)
            elif len(firsts) < len(markers):  # Ctrl-C came before the first_offset was stored
                firsts.insert(place, entry.first_offset)
            return
        markers.append(entry.marker_offset)  # first: a reader in another thread asks the firsts
        firsts.append(entry.first_offset)

    def since(self, offset: int) -> AbortedRanges:
        """Return those whose markers are at `offset` or above."""
        kept = AbortedRanges()
        kept.damage = self.damage
        for producer_id, (firsts, markers) in self._of_producer.items():
            number = bisect_left(markers, offset)
            if number < len(markers):
                kept._of_producer[producer_id] = firsts[number:], markers[number:]
        return kept

    def covers(self, producer_id: int, offset: int) -> bool:
        """Say whether a producer's batch at `offset` belongs to an aborted transaction.

        CorruptionError if that is not known, because the marker may be in a damaged part of the log.
        """
        firsts, markers = self._of_producer.get(producer_id, ((), ()))
        number = bisect_right(firsts, offset) - 1
        if number >= 0 and offset < markers[number]:
            return True
        if self.damage is not None:
            raise CorruptionError(*self.damage.args)
        return False

    def covers_each(self, producer_ids: Sequence[int], offsets: Sequence[int]) -> list[bool]:
        """Say of each batch, given by its producer and its offset, whether covers() says so."""
        known, unsure = self._of_producer, self.damage is not None
        return [
            (unsure or producer_id in known) and self.covers(producer_id, offset)
            for producer_id, offset in zip(producer_ids, offsets, strict=True)
        ]

    def covering(self, producer_id: int, offset: int) -> Aborted | None:
        """Return the aborted transaction that a producer's batch at `offset` belongs to; see covers()."""
        if not self.covers(producer_id, offset):
            return None
        firsts, markers = self._of_producer[producer_id]
        number = bisect_right(firsts, offset) - 1
        return Aborted(producer_id, firsts[number], markers[number])

    def between(self, start: int, end: int) -> list[Aborted]:
        """Return the transactions that may have batches with offsets in [start, end)."""
        found = []
        for producer_id, (firsts, markers) in list(self._of_producer.items()):
            for number in range(bisect_right(markers, start), len(firsts)):
                if firsts[number] >= end:
                    break
                found.append(Aborted(producer_id, firsts[number], markers[number]))
        return found

    def ended_by(self, producer_id: int, marker_offset: int) -> Aborted | None:
        """Return the transaction that a marker ended; None if it aborted none."""
        firsts, markers = self._of_producer.get(producer_id, ((), ()))
        number = bisect_left(markers, marker_offset)
        if number == len(markers) or markers[number] != marker_offset:
            return None
        return Aborted(producer_id, firsts[number], marker_offset)


def path_beside(log_path: str) -> str:
    """Return the path of the list beside a segment; a suffix after .log follows .txnindex as well."""
    stem, _, state = log_path.rpartition(".log")
    return stem + SUFFIX + state


def write_entry(log_path: str, number: int, entry: Aborted) -> None:
    """Store entry `number` of an active segment's list, unsynced, before its marker is appended."""
    raw = _packed(entry)
    with files.Descriptor(_opened(log_path)) as fd:
        files.write_at(fd, [raw], len(raw), _SEAL.size + number * _ENTRY.size)


def begin(log_path: str) -> None:
    """Create the list of a segment in which transactions begin, unless there is one."""
    os.close(_opened(log_path))


def _opened(log_path: str) -> int:
    return os.open(path_beside(log_path), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)


def store(log_path: str, entries: Sequence[Aborted], sealed: tuple[int, int] | None = None) -> None:
    """Write a whole list, unsynced; `sealed` has size and next_offset of a segment that no longer grows."""
    body = b"".join(map(_packed, entries))
    seal = bytes(_SEAL.size) if sealed is None else _sealed(*sealed, body)
    path = path_beside(log_path)
    files.remove(path)  # a reader may be reading it
    files.write_unsynced(path, seal + body)


def store_again(log_path: str, entries: Sequence[Aborted]) -> None:
    """Replace the list of an active segment, unless it is as it should be.

    The one from before must not come back after a power cut: it may be of batches that an earlier one took,
    and what is appended in their place can make the segment as long as its seal says.
    """
    path, raw = path_beside(log_path), bytes(_SEAL.size) + b"".join(map(_packed, entries))
    try:
        with open(path, "rb") as file:
            before = file.read()
    except FileNotFoundError:
        before = b""
    if before == raw:
        return
    files.remove(path)  # a reader may be reading it
    if len(before) >= _SEAL.size:
        files.sync_directory(os.path.dirname(path))
    files.write_unsynced(path, raw)


def load(log_path: str, size_bytes: int, count: int | None = None) -> list[Aborted] | None:
    """Return the aborted transactions of a segment; None if the list is missing, damaged or of other batches.

    `count` is the number of entries, if it is known from elsewhere; otherwise the seal must match.
    """
    try:
        with open(path_beside(log_path), "rb") as file:
            raw = file.read()
    except FileNotFoundError:
        return None
    if len(raw) < _SEAL.size:
        return [] if count == 0 else None
    if count is None:
        sealed_bytes, next_offset, count, _ = _SEAL.unpack_from(raw)
        if sealed_bytes != size_bytes:
            return None
        body = raw[_SEAL.size : _SEAL.size + count * _ENTRY.size]
        if raw[: _SEAL.size] != _sealed(sealed_bytes, next_offset, body):
            return None
    return _entries(raw[_SEAL.size :], count)


def load_new(log_path: str, known: int, count: int) -> list[Aborted] | None:
    """Return the entries of an active segment's list that follow the first `known` ones, of `count` in all;
    None if the list is missing or damaged.
    """
    try:
        with open(path_beside(log_path), "rb") as file:
            file.seek(_SEAL.size + known * _ENTRY.size)
            return _entries(file.read(), count - known)
    except FileNotFoundError:
        return None


def _entries(raw: bytes, count: int) -> list[Aborted] | None:
    """Return the first entries; None if there are fewer, or if one is damaged."""
    places = range(0, count * _ENTRY.size, _ENTRY.size)
    if places.stop > len(raw):
        return None
    entries = [Aborted(*_ENTRY.unpack_from(raw, place)[:3]) for place in places]
    true = all(
        raw[place : place + _ENTRY.size] == _packed(one) for place, one in zip(places, entries, strict=True)
    )
    return entries if true else None


def facts(log_path: str) -> list[Aborted]:
    """Return the whole entries of a list, even if it may be incomplete: each of them is true."""
    try:
        with open(path_beside(log_path), "rb") as file:
            raw = file.read()
    except FileNotFoundError:
        return []
    places = range(_SEAL.size, len(raw) - _ENTRY.size + 1, _ENTRY.size)
    entries = [(place, Aborted(*_ENTRY.unpack_from(raw, place)[:3])) for place in places]
    return [one for place, one in entries if raw[place : place + _ENTRY.size] == _packed(one)]


def _packed(entry: Aborted) -> bytes:
    raw = _ENTRY.pack(*entry, 0, 0)
    return _ENTRY.pack(*entry, crc32c(raw[:_CHECKED_BYTES]), 0)


def _sealed(size_bytes: int, next_offset: int, body: bytes) -> bytes:
    count = len(body) // _ENTRY.size
    words = _SEAL.pack(size_bytes, next_offset, count, 0)
    return _SEAL.pack(size_bytes, next_offset, count, crc32c(words, crc32c(body)))
