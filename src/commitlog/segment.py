"""Segment: one .log file and its indexes, for reading. segment_writer.py appends to one."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, NoReturn, Self

from commitlog import aborted_index, files
from commitlog.aborted_index import Aborted, AbortedRanges
from commitlog.batches.batch import RecordBatch
from commitlog.batches.format import (
    CODEC_MASK,
    CONTROL,
    HEADER_BYTES,
    TRANSACTIONAL,
    BatchHeader,
    batches_start_at,
    check,
    header_at,
    marker_at,
    peek,
)
from commitlog.batches.markers import first_offset_of
from commitlog.batches.runs import Joining, extent_of_run, joinable_run, joined
from commitlog.batches.scan import Checked, check_batches, without_reserved
from commitlog.batches.single import read_ones
from commitlog.config import MAX_INT64
from commitlog.errors import CorruptionError
from commitlog.index import (
    Index,
    IndexBuilder,
    IndexEntry,
    OffsetIndex,
    TimeIndex,
    base_offset_of,
    sealed_end,
)
from commitlog.open_files import OpenFiles
from commitlog.record import Buffer, Record, TopicPartition, with_name

LOG_SUFFIX = ".log"
DELETED_SUFFIX = ".deleted"  # removed; unlinked after file_delete_delay_ms
TEMPORARY_SUFFIX = ".tmp"  # unfinished, worth nothing after a crash
ADOPTED_SUFFIX = ".adopted"  # a second name of a staged file that is about to become a segment
_SMALL_READ_BYTES = 64 * 1024
_DEFAULT_INTERVAL_BYTES = 4096
_MOST_ENDS = 16
_RESIDENT_BYTES = 32 * 1024 * 1024
# Fewer or larger batches are not joined. Measured: a run costs 100 us to set up and 1 us for each kilobyte; a
# batch alone costs 5 us to read, and 25 us to convert to Arrow.
_FEWEST_FOR_RECORDS, _SMALL_FOR_RECORDS = 32, 8 * 1024
_FEWEST_FOR_COLUMNS, _SMALL_FOR_COLUMNS = 8, 32 * 1024
_ALONE = 64  # how many batches are read alone after one could not be joined
_FIRST_RUN_BYTES = 64 * 1024  # so that the first record comes soon
MOST_RUN_BYTES = 4 * 1024 * 1024
FAR = 1 << 63


def segment_path(directory: str, base_offset: int) -> str:
    """Return the path of the segment with this base_offset."""
    return os.path.join(directory, f"{base_offset:020d}{LOG_SUFFIX}")


def derived_files(path: str) -> tuple[str, ...]:
    """Return the paths of everything that is derived from a segment: its indexes, and what was aborted."""
    return *companions(path), aborted_index.path_beside(path)


def companions(path: str) -> tuple[str, str]:
    """Return the paths of a segment's offset index and time index."""
    stem, _, state = path.rpartition(LOG_SUFFIX)  # a suffix after .log follows .index as well
    return stem + OffsetIndex.suffix + state, stem + TimeIndex.suffix + state


class _Indexes(NamedTuple):
    offsets: OffsetIndex
    times: TimeIndex
    damage: CorruptionError | None = None  # where rebuilt indexes end, if the segment is damaged

    def seals_hold(self, size_bytes: int) -> bool:
        return self.offsets.seal_holds(size_bytes) and self.times.seal_holds(size_bytes)


class Window(NamedTuple):
    """A buffer with the bytes [shift, limit) of the file."""

    buffer: Buffer
    shift: int
    limit: int


class Segment:
    """A .log file, whose batches take the offsets from base_offset up to the next segment's, without holes.

    Bytes [0, size_bytes) are whole batches; nothing after them is read. Files are mapped on demand and may be
    unmapped at any time; a reader that still uses a map keeps it alive.
    """

    def __init__(self, path: str, base_offset: int, size_bytes: int, cache: OpenFiles | None = None) -> None:
        self.path = path
        self.base_offset = base_offset
        self.size_bytes = size_bytes
        self.cache = cache
        self.inode: int | None = None  # if known: a truncation gives the name to another file
        self.active = False  # whether it is being appended to; its indexes then have no seal yet
        self._map: mmap.mmap | None = None
        self._indexes: _Indexes | None = None
        self._max_timestamp: int | None = None
        self._checked: tuple[int, Checked] | None = None  # a size and what latest_checked() found up to it
        self._ends: dict[int, int] = {}  # offsets at which the latest reads ended, and their positions
        self._has_compressed = False  # whether a compressed batch was read

    @classmethod
    def open(cls, path: str | os.PathLike[str], cache: OpenFiles | None = None) -> Self:
        """Open a single .log file for reading; batches are checked as they are read.

        Zeros after the last batch do not belong to it: a writer, at work or killed, has reserved them.
        """
        name = os.fspath(path)
        segment = cls(name, base_offset_of(name), (about := os.stat(name)).st_size, cache)
        segment.inode = about.st_ino
        segment.size_bytes = without_reserved(name, about.st_size)
        return segment

    def __repr__(self) -> str:
        return f"<Segment {self.base_offset} {self.size_bytes} bytes, {self.path}>"

    def unread_bytes(self, offset: int) -> int | None:
        """Return the bytes from `offset` on, if one of the latest reads ended there and none of them met a
        compressed batch, of which a few bytes may become many.
        """
        position = self._ends.get(offset)
        return None if position is None or self._has_compressed else self.size_bytes - position

    # --- handles

    def release(self) -> None:
        """Unmap the files and forget what was learned by reading them."""
        self._map = self._indexes = None
        self._ends = {}

    def _window(self, position: int) -> Window:
        """Return a buffer that holds [position, size_bytes)."""
        size, view = self.size_bytes, self._map
        if view is not None and len(view) >= size:
            return Window(view, 0, size)
        if size - position <= _SMALL_READ_BYTES:
            return self._small_window(position, size)
        view = self._map = files.map_file(self.path, self.inode)
        if self.cache is not None:
            self.cache.use(self)
        found = 0 if view is None else len(view)
        if view is None or found < size:
            raise CorruptionError(self.path, found, f"the file ends before byte {size}")
        return Window(view, 0, size)

    def _small_window(self, position: int, size: int) -> Window:
        # measured: mapping the grown tail costs 12 us, reading it 4 us
        fd = files.open_same(self.path, self.inode)
        try:
            data = os.pread(fd, size - position, position)
        finally:
            os.close(fd)
        if len(data) < size - position:
            raise CorruptionError(self.path, position + len(data), f"the file ends before byte {size}")
        return Window(data, position, size)

    def buffer(self) -> memoryview:
        """Return the readable bytes of the segment."""
        return memoryview(self._window(0).buffer)[: self.size_bytes]

    def _open_indexes(self) -> _Indexes:
        found = self._indexes
        if found is None:
            offset_path, time_path = companions(self.path)
            try:
                found = _Indexes(OffsetIndex.open(offset_path), TimeIndex.open(time_path))
            except FileNotFoundError:
                found = self._rebuilt_indexes()
            if not self.active and not found.seals_hold(self.size_bytes):
                found = self._rebuilt_indexes()
            self._indexes = found
            if self.cache is not None:
                self.cache.use(self)
        return found

    def _rebuilt_indexes(self) -> _Indexes:
        """Build the indexes in memory from checked batches, because those on disk are missing or wrong.

        They end where damage starts, so that a search beyond it meets the damage.
        """
        offset_path, time_path = companions(self.path)
        offsets, times = OffsetIndex.in_memory(offset_path), TimeIndex.in_memory(time_path)
        builder = IndexBuilder(offsets, times, _DEFAULT_INTERVAL_BYTES)
        end, damage = self.base_offset, None
        try:
            for position, header in self.checked_headers():
                if header.base_offset - self.base_offset >> 32:
                    raise CorruptionError(self.path, position, f"offset {header.base_offset} is too far away")
                builder.add(header.base_offset, position, header.max_timestamp)
                end = header.next_offset
        except CorruptionError as problem:
            damage = problem
        builder.finish(self.size_bytes, end)
        return _Indexes(offsets, times, damage)

    # --- finding a batch

    def position_of(self, offset: int) -> int:
        """Return the position of the first batch that ends after `offset`; size_bytes if there is none."""
        located = self._locate(offset)
        return self.size_bytes if located is None else located[0]

    @property
    def next_offset(self) -> int:
        """The offset after the last batch of a sealed segment, from its index if possible."""
        sealed = sealed_end(companions(self.path)[0], self.size_bytes)
        return self.find_next_offset() if sealed is None else sealed

    def find_next_offset(self) -> int:
        """Return the offset after the last batch, from the batches themselves."""
        end = self.base_offset
        for _, header in self.headers(self.start_for(FAR)):
            end = header.next_offset
        return end

    def _locate(self, offset: int) -> tuple[int, Window] | None:
        """Return the position of the first batch that ends after `offset`, and the window that holds it.

        A caller that reads on must use that window: the segment may grow or be replaced meanwhile.
        """
        position = self.start_for(offset)
        window = self._window(position)
        buffer, shift, limit = window
        before, highest = None, max(offset, self.base_offset)
        while position < limit:
            base_offset, next_offset, size = peek(buffer, position - shift, self.path, shift)
            if base_offset > highest:  # after a damaged header or a hole
                self._raise_for_gap(window, before, position, offset)
            if next_offset > offset:
                return position, window
            before = position
            position += size
            if position > limit:
                raise CorruptionError(self.path, before, f"a batch of {size} bytes cut off")
        return None

    def _raise_for_gap(self, window: Window, before: int | None, position: int, expected: int) -> NoReturn:
        """Raise CorruptionError for a batch that does not start at `expected`, or for damage before it."""
        buffer, shift, limit = window
        for one in (position,) if before is None else (before, position):
            found = check(buffer, one - shift, limit - shift, self.path, shift)
        raise _misplaced(self.path, position, found.base_offset, expected)

    def start_for(self, offset: int) -> int:
        """Return the position of a batch at or before `offset`; index entries are checked."""
        if offset <= self.base_offset:
            return 0
        position = self._ends.get(offset)
        if position is not None and position <= self.size_bytes:
            return position  # measured: saves a reader that follows the log 20 us of headers
        for indexes in (self._open_indexes, self._replaced_indexes):
            entry = indexes().offsets.lookup(offset)
            if self._confirms(entry):
                return entry.position
        return 0

    def start_before(self, position: int) -> int:
        """Return the position of a batch at or before `position`."""
        entry = self._open_indexes().offsets.lookup_position(position)
        return entry.position if self._confirms(entry) else 0

    def _confirms(self, entry: IndexEntry) -> bool:
        """Say whether an index entry matches its batch; after a power cut, an index may hold nonsense."""
        if entry.position == 0:
            return True
        if entry.position + HEADER_BYTES > self.size_bytes:
            return False
        header = self._header_at(entry.position)
        return (
            header is not None
            and header.base_offset == entry.offset
            and entry.timestamp in (None, header.max_timestamp)
        )

    def confirms_all(self, index: Index) -> bool:
        """Say whether all entries of an index are in order and point at the start of their batches."""
        offsets, positions = index.places()
        if len(positions) == 0:
            return True
        if not index.in_order() or int(positions[-1]) + HEADER_BYTES > self.size_bytes:
            return False
        return batches_start_at(self._window(0).buffer, positions, offsets)

    def _replaced_indexes(self) -> _Indexes:
        self._indexes = self._rebuilt_indexes()
        return self._indexes

    def _header_at(self, position: int) -> BatchHeader | None:
        buffer, shift, _ = self._window(position)
        return header_at(buffer, position - shift)

    def position_of_time(self, timestamp: int) -> int:
        """Return a position before which no record is as late as `timestamp`."""
        for indexes in (self._open_indexes, self._replaced_indexes):
            entry = indexes().times.lookup(timestamp)
            if self._confirms(entry):
                return entry.position
        return 0

    @property
    def max_timestamp(self) -> int:
        """The latest timestamp in a sealed segment, -1 if it is empty.

        CorruptionError if the batch that has it is damaged, or if damage stops a rebuild of the indexes.
        """
        if self._max_timestamp is None:
            self._max_timestamp = self._find_max_timestamp()
        return self._max_timestamp

    def _find_max_timestamp(self) -> int:
        if self.size_bytes == 0:
            return -1
        # a sealed time index ends with the latest timestamp, unless the first batch has it
        indexes = self._open_indexes()
        if indexes.damage is not None:
            raise CorruptionError(*indexes.damage.args)
        last = indexes.times.last()
        header = self.check_at(0 if last is None else last.position)
        if last is not None and (header.base_offset, header.max_timestamp) != (last.offset, last.timestamp):
            raise CorruptionError(self.path, last.position, "the time index does not match the batch")
        return header.max_timestamp

    def check_at(self, position: int) -> BatchHeader:
        """Return the header of the batch at `position`; CorruptionError if it is cut off or damaged."""
        buffer, shift, limit = self._window(position)
        return check(buffer, position - shift, limit - shift, self.path, shift)

    def latest_at(self, position: int) -> int:
        """Return the latest timestamp of the batch at `position`; MAX_INT64 if damaged, so never skipped."""
        try:
            return self.check_at(position).max_timestamp
        except CorruptionError:
            return MAX_INT64

    def latest_checked(self, size_bytes: int) -> int:
        """Check all batches in the first `size_bytes`, so that data may be deleted by their latest timestamp,
        which is returned; CorruptionError if a batch is damaged.
        """
        if self._checked is None or self._checked[0] != size_bytes:
            self._checked = size_bytes, check_batches(self.path, 0, size_bytes, self.base_offset)
        found = self._checked[1]
        if found.damage is not None:
            raise CorruptionError(*found.damage.args)
        return found.max_timestamp

    # --- reading

    def headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Iterate over (position, header) from `position` on, unchecked, but batches must be consecutive."""
        if position >= self.size_bytes:
            return
        window = self._window(position)
        buffer, shift, limit = window
        expected, before = self.base_offset, None
        while position < limit:
            header = header_at(buffer, position - shift) if limit - position >= HEADER_BYTES else None
            if header is None:
                raise CorruptionError(self.path, position, "no batch starts here")
            if header.base_offset != expected and (before is not None or position == 0):
                self._raise_for_gap(window, before, position, expected)
            if header.size > limit - position:
                raise CorruptionError(self.path, position, f"a batch of {header.size} bytes cut off")
            yield position, header
            before, expected = position, header.next_offset
            position += header.size

    def checked_headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Iterate over (position, header) from `position` on, and check every batch."""
        kept = position
        for place, header in self.headers(position):
            self.check_at(place)
            yield place, header
            if place - kept > _RESIDENT_BYTES:
                kept = _let_go(self._window(place).buffer, kept, place)

    def sound_headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Iterate over (position, header) from `position` on, except for batches with a wrong checksum."""
        for place, header in self.headers(position):
            try:
                self.check_at(place)
            except CorruptionError:
                continue
            yield place, header

    def aborted(self, count: int | None = None) -> list[Aborted]:
        """Return the transactions that markers in this segment aborted; `count` is their number, if known.

        From the list beside the segment, or from the markers, if that is missing or may be incomplete.
        """
        found = aborted_index.load(self.path, self.size_bytes, count)
        return self.find_aborted() if found is None else found

    def newly_aborted(self, known: int, count: int) -> list[Aborted]:
        """Return at least those transactions that were aborted after the first `known`, of `count` in all."""
        found = aborted_index.load_new(self.path, known, count)
        return self.find_aborted() if found is None else found

    def find_aborted(self) -> list[Aborted]:
        """Return the transactions that markers in this segment aborted, from the markers themselves."""
        return [
            Aborted(header.producer_id, first_offset, header.base_offset)
            for header, first_offset in self.markers()
            if not header.commits
        ]

    def markers(self, position: int = 0) -> Iterator[tuple[BatchHeader, int]]:
        """Iterate over the markers from `position` on, checked, each with its transaction's first_offset."""
        for place, header in self.headers(position):
            if header.is_marker:
                self.check_at(place)
                buffer, shift, _ = self._window(place)
                yield header, first_offset_of(header, buffer, place - shift)

    def batches(self, start: int | None = None, end: int = FAR) -> Iterator[RecordBatch]:
        """Iterate over the batches that hold offsets in [start, end), whole and checked."""
        scan = self._scan(self.base_offset if start is None else start, end)
        while scan is not None and scan.goes_on():
            yield scan.batch()

    def batches_from(self, position: int, end: int = FAR) -> Iterator[RecordBatch]:
        """Iterate over the batches from `position` on, until one reaches the offset `end`."""
        if position < self.size_bytes:
            scan = _Scan(self, position, self._window(position), end)
            while scan.goes_on():
                yield scan.batch()

    def combined_batches(
        self,
        start: int,
        end: int = FAR,
        *,
        most_bytes: int = MOST_RUN_BYTES,
        aborted: AbortedRanges | None = None,
    ) -> Iterator[tuple[RecordBatch, int]]:
        """Iterate over batches that hold [start, end), each with the offset after what was read.

        Small ones are joined in memory, up to `most_bytes`, which makes it cheap to look at whole columns.
        Markers and what is `aborted` give no records: such a batch may be empty.
        """
        most_bytes = min(most_bytes, MOST_RUN_BYTES)
        wanted = Joining(end, _SMALL_FOR_COLUMNS, most_bytes, aborted=aborted)
        scan = self._scan(start, end, most_bytes)
        while scan is not None and scan.goes_on():
            found = scan.joined(wanted, _FEWEST_FOR_COLUMNS)
            batch = scan.alone(aborted) if found is None else found[0]
            yield batch, scan.offset

    def rewritable_batches(self, start: int, apart: int) -> Iterator[tuple[RecordBatch, int]]:
        """Iterate over the batches from `start` on, markers included, each with the number of stored ones it
        stands for.

        Small ones are joined in memory if they can be stored again as one, but none before the offset `apart`
        with one after it.
        """
        wanted = Joining(FAR, _SMALL_FOR_COLUMNS, MOST_RUN_BYTES, rewritable=True, apart=apart)
        scan = self._scan(start, FAR, MOST_RUN_BYTES)
        while scan is not None and scan.goes_on():
            yield scan.joined(wanted, _FEWEST_FOR_COLUMNS) or (scan.batch(), 1)

    def record_runs(
        self,
        start: int,
        end: int,
        aborted: AbortedRanges | None = None,
        name: TopicPartition | None = None,
    ) -> Iterator[tuple[Iterable[Any], int]]:
        """Iterate over runs of the records with offsets in [start, end), each run with the offset after it.

        Records of transactions that are `aborted` are left out. With `name`, the name of their partition,
        they are ConsumerRecords.
        """
        wanted = Joining(end, _SMALL_FOR_RECORDS, MOST_RUN_BYTES, aborted=aborted)
        scan = self._scan(start, end, _FIRST_RUN_BYTES)
        while scan is not None and scan.goes_on():
            records: Iterable[Any] = scan.singles()
            if records:
                records = records if name is None else with_name(name, records)
            else:
                found = scan.joined(wanted, _FEWEST_FOR_RECORDS)
                batch = scan.alone(aborted) if found is None else found[0]
                if len(batch):
                    part = batch.slice(start, end)
                    records = part.records() if name is None else part.consumer_records(name)
            yield records, scan.offset
            self._remember(scan.offset, scan.position)

    def _remember(self, offset: int, position: int) -> None:
        """Note where a read ended, because the next one begins there. The active segment may have several
        readers, which are not all equally far.
        """
        ends = self._ends
        if len(ends) >= (_MOST_ENDS if self.active else 1):
            ends.clear()
        ends[offset] = position

    def _scan(self, start: int, end: int, first_bytes: int = 0) -> _Scan | None:
        located = self._locate(start) if start < end and self.size_bytes else None
        return None if located is None else _Scan(self, *located, end, first_bytes)


class _Scan:
    """Goes through the batches of a segment that start before the offset `end`."""

    def __init__(
        self,
        segment: Segment,
        position: int,
        window: Window,
        end: int,
        first_bytes: int = 0,
    ) -> None:
        self._segment = segment
        self.position = self._kept = position
        self._window = window
        self._end = end
        self._room = first_bytes  # to join the next time
        self._alone = 0  # how many batches to read alone before the next try to join some
        self.offset = segment.base_offset  # after what was read; not known before the first batch
        self._known = position == 0

    def goes_on(self) -> bool:
        """Say whether there is another batch; what the caller has read by now is let go of."""
        over = self.position >= self._window.limit
        if over or self.position - self._kept > _RESIDENT_BYTES:
            self._kept = _let_go(self._window.buffer, self._kept, self.position)
        return self.position < self._window.limit and not (self._known and self.offset >= self._end)

    def batch(self) -> RecordBatch:
        """Return the next batch; CorruptionError if it is not sound."""
        buffer, shift, limit = self._window
        path = self._segment.path
        batch = RecordBatch.decode(buffer, self.position - shift, limit - shift, path, shift)
        if batch.header.flags & CODEC_MASK:
            self._segment._has_compressed = True
        self._step(batch.base_offset, batch.next_offset, self.position + batch.size_bytes)
        return batch

    def alone(self, aborted: AbortedRanges | None) -> RecordBatch:
        """Return the next batch, without its records if its transaction is `aborted`, and step over the
        markers after it; CorruptionError if the batch is not sound.
        """
        batch = counted(self.batch(), aborted)
        if batch.header.flags & TRANSACTIONAL:
            self._pass_markers()
        return batch

    def _pass_markers(self) -> None:
        """Step over the markers that come next; the caller meets a damaged one when it reads on."""
        buffer, shift, limit = self._window
        while self.offset < self._end:
            header = marker_at(buffer, self.position - shift, limit - shift)
            if header is None or header.base_offset != self.offset:
                return
            self._step(header.base_offset, header.next_offset, self.position + header.size)

    def joined(self, wanted: Joining, fewest: int) -> tuple[RecordBatch, int] | None:
        """Return small batches joined into one, and how many; None where the next one must be read alone."""
        if self._alone > 0:
            self._alone -= 1
            return None
        buffer, shift, limit = self._window
        place = self.position - shift
        least, seen = extent_of_run(buffer, place, limit - shift, wanted, fewest)
        if not 0 < least <= wanted.most_bytes:
            self._alone = seen - 1  # besides this one
            return None
        after = min(place + max(self._room, least), limit - shift)
        run = joinable_run(buffer, place, after, wanted)
        found = joined(run, buffer, self._segment.path, shift, wanted)
        if found is None or len(found[1].starts) < fewest:
            self._alone = _ALONE  # or the same bytes would be looked through again and again
        if found is None:
            self._room = 0
            return None
        batch, run = found
        if (run.headers["flags"] & CODEC_MASK).any():
            self._segment._has_compressed = True
        taken = run.end - place
        had_room = after - run.end >= taken // 8  # something else ended it, and will end the next one
        self._room = min(taken + taken // 4 if had_room else 4 * taken, wanted.most_bytes)
        self._step(batch.base_offset, batch.next_offset, run.end + shift)
        return batch, len(run.starts)

    def singles(self) -> list[Record]:
        """Return the records of the next batches of one record each, none if the next one has more."""
        buffer, shift, limit = self._window
        records, after = read_ones(buffer, self.position - shift, limit - shift, self._end)
        if records:
            self._step(records[0].offset, records[-1].offset + 1, after + shift)
        return records

    def _step(self, base_offset: int, next_offset: int, position: int) -> None:
        if self._known and base_offset != self.offset:
            raise _misplaced(self._segment.path, self.position, base_offset, self.offset)
        self._known, self.offset, self.position = True, next_offset, position


def counted(batch: RecordBatch, aborted: AbortedRanges | None) -> RecordBatch:
    """Return a batch, without its records if its transaction is aborted."""
    header = batch.header
    if aborted is not None and header.flags & (TRANSACTIONAL | CONTROL) == TRANSACTIONAL:
        return batch.without_records() if aborted.covers(header.producer_id, header.base_offset) else batch
    return batch


def _misplaced(path: str, position: int, found: int, expected: int) -> CorruptionError:
    return CorruptionError(path, position, f"offset {found} where {expected} was expected")


def _let_go(buffer: Buffer, start: int, end: int) -> int:
    """Drop scanned pages from this process's memory (not from the page cache), so that scans use little."""
    if isinstance(buffer, mmap.mmap) and end - start > _SMALL_READ_BYTES:
        start = start // mmap.PAGESIZE * mmap.PAGESIZE
        end = end // mmap.PAGESIZE * mmap.PAGESIZE
        buffer.madvise(mmap.MADV_DONTNEED, start, end - start)
    return end
