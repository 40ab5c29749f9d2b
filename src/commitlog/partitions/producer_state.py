"""What a partition remembers about its producers, so that a batch that is sent again is not appended again.

A producer numbers its records in each partition from 0: the sequence. As in Kafka, the last batches of each
producer are remembered. Of all publications only the last batch is, because they come one after another. All
of this is derived: the numbers are in the headers of the batches, and a `.snapshot` beside a segment only
saves reading the headers before it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from commitlog import files
from commitlog.batches.format import PUBLISHED
from commitlog.checksum import crc32c
from commitlog.errors import OutOfOrderSequenceError, ProducerFencedError
from commitlog.partitions.layout import headers_between
from commitlog.segment import Segment

SUFFIX = ".snapshot"
KEPT_BATCHES = 5
SILENT_MS = 24 * 60 * 60 * 1000  # a producer silent for this long is forgotten; Kafka's default
SEQUENCES = 1 << 31  # after that many, sequences start again at 0
_MAGIC = b"CLPROD1\0"
_PRODUCER, _BATCH, _CHECKSUM = Struct("<qhBxxxxx"), Struct("<iiqq"), Struct("<I")


class SentBatch(NamedTuple):
    """A batch of a producer: its first and last sequence, its offset, and when it was seen here."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    timestamp: int


class Published(NamedTuple):
    """How far a staged file was published: the next sequence, and the offset of its last batch."""

    file_id: int
    next_sequence: int
    base_offset: int


class _Producer:
    __slots__ = ("batches", "epoch")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: list[SentBatch] = []  # the last ones, in order

    @property
    def next_sequence(self) -> int:
        return (self.batches[-1].last_sequence + 1) % SEQUENCES

    @property
    def timestamp(self) -> int:
        return max(batch.timestamp for batch in self.batches)


class Producers:
    """The producers of a partition, from its batches below `next_offset`."""

    def __init__(self) -> None:
        self._known: dict[int, _Producer] = {}
        self.published: Published | None = None  # the last one
        self.next_offset = 0

    def __len__(self) -> int:
        return len(self._known) + (self.published is not None)

    def find(self, producer: tuple[int, int, int], count: int, name: str) -> int | None:
        """Return the base_offset of a batch that is already here; None if it must be appended.

        `producer` is its producer_id, producer_epoch and base_sequence. OutOfOrderSequenceError if earlier
        batches are missing, ProducerFencedError if its producer has a later epoch here.
        """
        producer_id, epoch, sequence = producer
        known = self._known.get(producer_id)
        if known is None:  # new or forgotten: it may start with any sequence
            return None
        if epoch < known.epoch:
            raise ProducerFencedError(name, producer_id, epoch, known.epoch)
        expected = known.next_sequence if epoch == known.epoch else 0
        last = (sequence + count - 1) % SEQUENCES
        if epoch == known.epoch:
            for batch in known.batches:
                if (batch.base_sequence, batch.last_sequence) == (sequence, last):
                    return batch.base_offset
        if sequence != expected:
            raise OutOfOrderSequenceError(name, producer_id, sequence, expected)
        return None

    def note(self, producer: tuple[int, int, int], span: int, base_offset: int, timestamp: int) -> None:
        """Note a batch that was appended."""
        producer_id, epoch, sequence = producer
        if epoch == PUBLISHED:
            self.published = Published(producer_id, sequence + span, base_offset)
            return
        known = self._known.get(producer_id)
        if known is None or known.epoch != epoch:
            known = _Producer(epoch)
        batch = SentBatch(sequence, (sequence + span - 1) % SEQUENCES, base_offset, timestamp)
        known.batches = [*known.batches[1 - KEPT_BATCHES :], batch]
        self._known[producer_id] = known  # last: Ctrl-C must not leave one without batches

    def read(self, segments: Sequence[Segment], end: int, now_ms: int) -> None:
        """Note the batches in [next_offset, end), except for damaged ones."""
        for header in headers_between(segments, self.next_offset, end, sound=True):
            if header.producer_id != -1:
                span = header.next_offset - header.base_offset
                self.note(header.producer, span, header.base_offset, now_ms)
        self.next_offset = end

    def forget_before(self, timestamp: int) -> None:
        """Forget the producers that have sent nothing since `timestamp`."""
        self._known = {key: one for key, one in self._known.items() if one.timestamp >= timestamp}

    # --- snapshots

    def save(self, directory: str) -> None:
        """Write a snapshot, unsynced: a torn one is ignored.

        A whole one that is already there stays: it has the same contents and may have been synced.
        """
        path = snapshot_path(directory, self.next_offset)
        if Producers.load(path) is None:
            files.write_unsynced(path, _seal(self.next_offset, b"".join(self._packed())))

    def _packed(self) -> Iterator[bytes]:
        for producer_id, one in self._known.items():
            yield _PRODUCER.pack(producer_id, one.epoch, len(one.batches))
            for batch in one.batches:
                yield _BATCH.pack(*batch)
        if self.published is not None:
            file_id, next_sequence, base_offset = self.published
            yield _PRODUCER.pack(file_id, PUBLISHED, 1)
            yield _BATCH.pack(next_sequence - 1, next_sequence - 1, base_offset, 0)

    @classmethod
    def load(cls, path: str) -> Producers | None:
        """Read a snapshot; None if it is missing or not whole."""
        try:
            with open(path, "rb") as file:
                raw = file.read()
        except FileNotFoundError:
            return None
        body, offset = raw[len(_MAGIC) : -_CHECKSUM.size], offset_of(path)
        if raw != _seal(offset, body):
            return None
        producers = cls()
        producers.next_offset = offset
        try:
            producers._unpack(body)
        except (struct_error, ValueError, IndexError):  # such as a producer without batches
            return None
        return producers

    def _unpack(self, body: bytes) -> None:
        place = 0
        while place < len(body):
            producer_id, epoch, count = _PRODUCER.unpack_from(body, place)
            place += _PRODUCER.size
            again = epoch != PUBLISHED and producer_id in self._known  # a staged file may have any number
            if again or not 1 <= count <= KEPT_BATCHES:
                raise ValueError(f"{count} batches of producer {producer_id}")
            starts = range(place, place + count * _BATCH.size, _BATCH.size)
            batches = [SentBatch(*_BATCH.unpack_from(body, start)) for start in starts]
            place, last = starts.stop, batches[-1]
            if epoch == PUBLISHED:
                self.published = Published(producer_id, last.last_sequence + 1, last.base_offset)
            else:
                self._known[producer_id] = _Producer(epoch)
                self._known[producer_id].batches = batches


def _seal(offset: int, body: bytes) -> bytes:
    return _MAGIC + body + _CHECKSUM.pack(crc32c(body, offset & 0xFFFF_FFFF))


def snapshot_path(directory: str, offset: int) -> str:
    """Return the path of the snapshot for the batches below `offset`."""
    return os.path.join(directory, f"{offset:020d}{SUFFIX}")


def offset_of(path: str) -> int:
    """Return the offset in the name of a snapshot."""
    return int(os.path.basename(path).removesuffix(SUFFIX))


def snapshots(directory: str) -> list[str]:
    """Return the paths of a partition's snapshots, oldest first."""
    names = [name for name in os.listdir(directory) if name.endswith(SUFFIX)]
    return [os.path.join(directory, name) for name in sorted(names)]


def sync_snapshots(directory: str) -> None:
    """Make the newest snapshot durable."""
    with files.Descriptor(os.open(snapshots(directory)[-1], os.O_RDONLY)) as fd:
        files.sync_data(fd)
    files.sync_directory(directory)


def remove_snapshots(paths: Iterable[str]) -> None:
    """Remove these snapshots."""
    for path in paths:
        files.remove(path)


def restored(directory: str, segments: Sequence[Segment], next_offset: int, now_ms: int) -> Producers:
    """Return the producers of a partition, from its newest whole snapshot and the batches after it.

    Snapshots above next_offset belong to records that are gone, and are removed.
    """
    found: Producers | None = None
    for path in reversed(snapshots(directory)):
        if offset_of(path) > next_offset:
            files.remove(path)
        elif found is None:
            found = Producers.load(path)
    if found is None:
        found = Producers()
        found.next_offset = segments[0].base_offset
    found.next_offset = max(found.next_offset, segments[0].base_offset)
    found.read(segments, next_offset, now_ms)
    return found
