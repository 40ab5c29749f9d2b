"""What a partition remembers about its producers, so that a batch that is sent again is not appended again.

A producer numbers its records in each partition from 0: the sequence. As in Kafka, the last batches of each
producer are remembered. Of all publications only the last batch is, because they come one after another. A
producer's transaction is open from its first transactional batch to the marker that ends it. All of this is
derived: the numbers are in the headers of the batches, and a `.snapshot` beside a segment only saves reading
the headers before it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from commitlog import files
from commitlog.batches.format import ABORT, COMMIT, PUBLISHED, BatchHeader
from commitlog.checksum import crc32c
from commitlog.errors import OutOfOrderSequenceError, ProducerFencedError
from commitlog.partitions.layout import headers_between
from commitlog.segment import Segment

SUFFIX = ".snapshot"
KEPT_BATCHES = 5
SILENT_MS = 24 * 60 * 60 * 1000  # a producer silent for this long is forgotten; Kafka's default
SEQUENCES = 1 << 31  # after that many, sequences start again at 0
_MAGIC = b"CLPROD1\0"
_PRODUCER, _BATCH, _CHECKSUM = Struct("<qhBBxxxx"), Struct("<iiqq"), Struct("<I")
_TRANSACTION = Struct("<qq")  # first_offset, -1 if it is not open; when it last changed
# the last transaction of a producer; _UNSURE: the marker that ended it may be in a damaged part of the log
_NONE, _OPEN, _ABORTED, _COMMITTED, _UNSURE = range(5)
_UNDECIDED = (_OPEN, _UNSURE)
_ENDED = {ABORT: _ABORTED, COMMIT: _COMMITTED}


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


class OpenTransaction(NamedTuple):
    """A transaction that no marker has ended in this partition; `changed_ms` is when its last batch came.

    `unsure` says that its marker may have been in a part of the log that is damaged or was repaired.
    """

    producer_id: int
    epoch: int
    first_offset: int
    changed_ms: int
    unsure: bool


class _Producer:
    __slots__ = ("batches", "changed_ms", "epoch", "first_offset", "transaction")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: list[SentBatch] = []  # the last ones, in order
        self.transaction = _NONE  # the one of this epoch
        self.first_offset = -1  # of its first batch, while it is open
        self.changed_ms = 0

    @property
    def next_sequence(self) -> int:
        return (self.batches[-1].last_sequence + 1) % SEQUENCES if self.batches else 0

    @property
    def timestamp(self) -> int:
        return max(self.changed_ms, max((batch.timestamp for batch in self.batches), default=0))


class Producers:
    """The producers of a partition, from its batches below `next_offset`."""

    def __init__(self) -> None:
        self._known: dict[int, _Producer] = {}
        self._open: dict[int, int] = {}  # the first_offset of each open transaction, by producer; in order
        # (first_offset, offset of the marker) of those that ended, until every replica has the marker
        self._ended: list[tuple[int, int]] = []
        self.has_replicas = False  # otherwise a marker decides at once
        self.published: Published | None = None  # the last one
        self.has_transactions = False  # whether there ever was one, as far as is known
        self.next_offset = 0

    def __len__(self) -> int:
        return len(self._known) + (self.published is not None)

    def find(
        self, producer: tuple[int, int, int], count: int, name: str, *, transactional: bool = False
    ) -> int | None:
        """Return the base_offset of a batch that is already here; None if it must be appended.

        `producer` is its producer_id, producer_epoch and base_sequence. OutOfOrderSequenceError if earlier
        batches are missing, ProducerFencedError if its producer has a later epoch here, or if the transaction
        of its epoch has ended.
        """
        producer_id, epoch, sequence = producer
        known = self._known.get(producer_id)
        if known is None:  # new or forgotten: it may start with any sequence
            return None
        expected = 0
        if epoch == known.epoch:
            sent = sequence, (sequence + count - 1) % SEQUENCES
            for batch in known.batches:
                if batch[:2] == sent:
                    return batch.base_offset
            if transactional and known.transaction in (_ABORTED, _COMMITTED):
                raise ProducerFencedError(name, producer_id, epoch, epoch + 1)
            expected = known.next_sequence
        elif epoch < known.epoch or known.transaction in _UNDECIDED:  # a marker must end that one first
            raise ProducerFencedError(name, producer_id, epoch, known.epoch)
        if sequence != expected:
            raise OutOfOrderSequenceError(name, producer_id, sequence, expected)
        return None

    def note(
        self,
        producer: tuple[int, int, int],
        span: int,
        base_offset: int,
        timestamp: int,
        *,
        transactional: bool = False,
    ) -> None:
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
        if transactional:
            # an open one of an earlier epoch, which only damage can leave, stays undecided with this one
            first = self._open.setdefault(producer_id, base_offset)
            known.transaction, known.first_offset, known.changed_ms = _OPEN, first, timestamp
            self.has_transactions = True
        self._known[producer_id] = known  # last: Ctrl-C must not leave one without batches

    def note_marker(
        self,
        producer_id: int,
        epoch: int,
        decision: int,
        offset: int,
        timestamp: int,
        first_offset: int | None = None,
    ) -> None:
        """Note a marker that was appended at `offset`; `first_offset` is where its transaction begins, if its
        batches were not noted.
        """
        known = self._known.get(producer_id)
        if known is None or known.epoch != epoch:
            known = _Producer(epoch)
        known.transaction, known.first_offset, known.changed_ms = _ENDED[decision], -1, timestamp
        self._known[producer_id] = known
        self.has_transactions = True
        first = self._open.get(producer_id, first_offset)
        if first is not None and self.has_replicas:
            self._ended.append((first, offset))
        self._open.pop(producer_id, None)  # last: if Ctrl-C comes before, the marker is noted again

    def note_header(self, header: BatchHeader, now_ms: int) -> None:
        """Note a batch of the log by its header."""
        if header.is_marker:
            producer_id, epoch, decision = header.producer
            self.note_marker(producer_id, epoch, decision, header.base_offset, now_ms)
        elif header.producer_id != -1:
            span, transactional = header.next_offset - header.base_offset, header.is_transactional
            self.note(header.producer, span, header.base_offset, now_ms, transactional=transactional)

    def read(self, segments: Sequence[Segment], end: int, now_ms: int, stable: int = 0) -> None:
        """Note the sound batches in [next_offset, end); readers had come up to `stable`."""
        for header in headers_between(segments, self.next_offset, end, sound=True):
            if self._open:
                self._note_missing(header, stable)
            if header.producer_id != -1:
                self.note_header(header, now_ms)
            self.next_offset = header.next_offset
        if self.next_offset < end:
            self._note_lost(stable)
        self.next_offset = end

    def _note_missing(self, header: BatchHeader, stable: int) -> None:
        """Note what is missing before or in this batch while transactions are open so far."""
        compacted = not header.is_marker and header.record_count < header.next_offset - header.base_offset
        if header.base_offset > self.next_offset or (compacted and header.record_count == 0):
            self._note_lost(stable)
        elif compacted:
            self.forget_decided(header.next_offset)  # compaction rewrites only what is decided

    def _note_lost(self, stable: int) -> None:
        """Note that markers may be among what is lost here: those of the transactions that are open so far.

        What begins below `stable` was decided, because readers had passed it; the list of what is aborted
        says how. The others stay undecided, unless a later batch shows that they were still open.
        """
        self.forget_decided(stable)
        for producer_id in self._open:
            self._known[producer_id].transaction = _UNSURE

    def forget_decided(self, stable: int) -> None:
        """Forget that transactions are open that begin below `stable`, where everything is decided."""
        for producer_id, first_offset in list(self._open.items()):
            if first_offset < stable:
                known = self._known[producer_id]
                known.transaction, known.first_offset = _NONE, -1
                del self._open[producer_id]

    def forget_before(self, timestamp: int) -> None:
        """Forget the producers that have sent nothing since `timestamp`, and have no open transaction."""
        self._known = {
            key: one
            for key, one in self._known.items()
            if one.transaction in _UNDECIDED or one.timestamp >= timestamp
        }

    # --- transactions

    def open_transactions(self) -> list[OpenTransaction]:
        """Return the transactions that no marker has ended, the one that began first before the others."""
        return [
            OpenTransaction(producer_id, known.epoch, first, known.changed_ms, known.transaction == _UNSURE)
            for producer_id, first in list(self._open.items())
            for known in [self._known.get(producer_id)]
            if known is not None
        ]

    def open_at(self, producer_id: int, epoch: int) -> int | None:
        """Return the first offset of a producer's transaction if it is open here, otherwise None."""
        known = self._known.get(producer_id)
        is_open = known is not None and known.epoch == epoch and known.transaction in _UNDECIDED
        return known.first_offset if known is not None and is_open else None

    def decided(self, producer_id: int, epoch: int) -> bool | None:
        """Return whether a marker here has committed a transaction; None if there is none."""
        known = self._known.get(producer_id)
        if known is None or known.epoch != epoch or known.transaction not in (_ABORTED, _COMMITTED):
            return None
        return known.transaction == _COMMITTED

    def undecided_from(self, high_watermark: int) -> int | None:
        """Return the first offset of a transaction that may be decided otherwise; None if all are final.

        With replicas, a marker decides only once it is below the high watermark.
        """
        undecided = next(iter(self._open.values()), None)
        if self._ended:
            self._ended = [one for one in self._ended if one[1] >= high_watermark]
            firsts = [first for first, _ in self._ended]
            return min(firsts if undecided is None else [undecided, *firsts], default=None)
        return undecided

    def note_ended(self, ended: Iterable[tuple[int, int]]) -> None:
        """Note transactions that ended, each as its first_offset and the offset of its marker; there are
        replicas, which may not have the markers.
        """
        self._ended, self.has_replicas = list(ended), True

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
            yield _PRODUCER.pack(producer_id, one.epoch, len(one.batches), one.transaction)
            if one.transaction != _NONE:
                yield _TRANSACTION.pack(one.first_offset, one.changed_ms)
            for batch in one.batches:
                yield _BATCH.pack(*batch)
        if self.published is not None:
            file_id, next_sequence, base_offset = self.published
            yield _PRODUCER.pack(file_id, PUBLISHED, 1, _NONE)
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
            producer_id, epoch, count, transaction = _PRODUCER.unpack_from(body, place)
            place += _PRODUCER.size
            again = epoch != PUBLISHED and producer_id in self._known  # a staged file may have any number
            known = _Producer(epoch)
            if transaction != _NONE:
                known.transaction = transaction
                known.first_offset, known.changed_ms = _TRANSACTION.unpack_from(body, place)
                place += _TRANSACTION.size
            is_open = transaction in _UNDECIDED
            least = 1 if transaction == _NONE or is_open else 0
            possible = transaction <= _UNSURE and (known.first_offset >= 0) == is_open
            if again or not possible or not least <= count <= KEPT_BATCHES:
                raise ValueError(f"{count} batches of producer {producer_id}, transaction {transaction}")
            starts = range(place, place + count * _BATCH.size, _BATCH.size)
            known.batches = [SentBatch(*_BATCH.unpack_from(body, start)) for start in starts]
            place = starts.stop
            if epoch == PUBLISHED:
                last = known.batches[-1]
                self.published = Published(producer_id, last.last_sequence + 1, last.base_offset)
            else:
                self._known[producer_id] = known
                self.has_transactions |= transaction != _NONE
        opened = [
            (one.first_offset, key) for key, one in self._known.items() if one.transaction in _UNDECIDED
        ]
        self._open = {key: first for first, key in sorted(opened)}


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


def restored(
    directory: str,
    segments: Sequence[Segment],
    next_offset: int,
    now_ms: int,
    stable: int = 0,
    *,
    read_only: bool = False,
) -> Producers:
    """Return the producers of a partition, from its newest whole snapshot and the batches after it.

    Readers had come up to `stable`. Snapshots above next_offset belong to records that are gone, and are
    removed unless `read_only`.
    """
    found: Producers | None = None
    for path in reversed(snapshots(directory)):
        if offset_of(path) > next_offset:
            if not read_only:
                files.remove(path)
        elif found is None:
            found = Producers.load(path)
    if found is None:
        found = Producers()
        found.next_offset = segments[0].base_offset
    found.next_offset = max(found.next_offset, segments[0].base_offset)
    found.read(segments, next_offset, now_ms, stable)
    return found
