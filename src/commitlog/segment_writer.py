"""SegmentWriter: appends to the active segment and keeps its indexes."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Sequence
from typing import Self

from commitlog import files
from commitlog.batches.encode import EncodedBatch
from commitlog.config import MAX_INT64, TopicConfig
from commitlog.errors import CorruptionError
from commitlog.index import IndexBuilder, OffsetIndex, TimeIndex
from commitlog.open_files import OpenFiles
from commitlog.record import Buffer
from commitlog.segment import Segment, companions, segment_path

_NEVER = 1 << 63
_MAX_RELATIVE_OFFSET = 0xFFFF_0000  # an index entry holds 32 bits; the lean path does not look
_LAST_OFFSETS = MAX_INT64 - (1 << 34)  # a segment that begins here may come to the last offset there is
_MOST_BYTES = 0xFFFF_0000  # of a leader's segment, which may be longer than ours
_SINGLES = 1024  # small single batches in a row, without a sync between them, after which the tail is mapped
_SMALL_BYTES = 1024  # of a batch; measured: above, page faults cost more than pwrite()
_RESTING = -2  # for a descriptor: wake() opens the file again
_LEAST_TAIL_BYTES, _MOST_TAIL_BYTES = 64 * 1024, 1024 * 1024


class SegmentWriter:
    """The one writer of a segment. `segment.size_bytes` moves only after the bytes are in the file.

    The partition writes single records itself, as long as they end by `lean_end` and are not later than
    `roll_after`. After `quiet_position` one is due an index entry, which needs make_room(); that one, or one
    later than `max_timestamp`, is passed to note(). Up to `tail_end` it stores them into `tail`, a map of the
    file from `tail_start` on; after that write_single() writes them.

    An idle one may rest(): it has no file open then, and wake() comes before the next append or seal.

    Behind size_bytes the file holds nothing, or zeros: blocks reserved for the tail, or by `preallocate`.

    Not thread-safe: the partition's append lock guards it.
    """

    __slots__ = (
        "_builder", "_config", "_interval", "_limit_offset", "_may_map", "_reserved", "_segment_bytes",
        "_segment_ms", "_singles", "fd", "lean_end", "make_room", "max_timestamp", "quiet_position",
        "roll_after", "segment", "tail", "tail_end", "tail_start",
    )  # fmt: skip

    def __init__(self, segment: Segment, config: TopicConfig) -> None:
        self.segment = segment
        self.fd = _RESTING
        self._config = config
        self._builder: IndexBuilder | None = None  # what wake() makes of one that was never open
        self.make_room: Callable[[], None] = _not_awake
        self._interval = config.index_interval_bytes
        self._reserved = config.preallocate  # whether the file may be longer than its batches
        self._singles = 0  # small ones in a row; a large one counts against them
        self._may_map = True  # the tail of this segment
        self.tail: mmap.mmap | None = None
        self.tail_start = self.tail_end = 0
        self._segment_bytes = config.segment_bytes
        self._segment_ms = longest_ms(config)
        self.roll_after = 2 * _NEVER  # a timestamp: segment_ms after the first batch's
        self._limit_offset = segment.base_offset + _MAX_RELATIVE_OFFSET
        self.max_timestamp = -1
        self.quiet_position = self.lean_end = 0

    @classmethod
    def unopened(cls, segment: Segment, config: TopicConfig) -> Self:
        """Go on writing after segment.size_bytes, once wake() opens the files: those of a clean shutdown."""
        return cls(segment, config)

    @classmethod
    def create(cls, directory: str, base_offset: int, config: TopicConfig, cache: OpenFiles) -> Self:
        """Start a new, empty segment; what a failed roll left under its name is overwritten."""
        path = segment_path(directory, base_offset)
        for derived in companions(path):
            files.remove(derived)
        try:
            return cls.open(Segment(path, base_offset, 0, cache), config)
        except OSError:
            for made in (path, *companions(path)):
                files.remove(made)
            files.sync_directory(directory)  # or a power cut could bring it back, among later records
            raise

    @classmethod
    def open(cls, segment: Segment, config: TopicConfig, *, trust_indexes: bool = True) -> Self:
        """Go on writing after segment.size_bytes; what lies behind it in the file is cut."""
        writer = cls(segment, config)
        writer._open(trust_indexes=trust_indexes)
        return writer

    def _open(self, *, trust_indexes: bool) -> None:
        segment, config = self.segment, self._config
        if segment.size_bytes == 0:
            _let_go_of_staged(segment.path)
        fd = os.open(segment.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            found = os.fstat(fd)
            segment.inode = found.st_ino
            if found.st_size > segment.size_bytes:
                files.cut(fd, segment.size_bytes)
                # or a power cut could bring back what lay behind the tear, after new records
                files.sync_data(fd)
            if config.preallocate:
                files.reserve(fd, config.segment_bytes)
            builder = open_builder(segment, config, trust_indexes=trust_indexes)
            segment.active = True
            if segment.size_bytes:
                self.roll_after = next(segment.headers())[1].max_timestamp + self._segment_ms
            self.make_room = builder.make_room
            self._builder = builder
        except BaseException:
            os.close(fd)
            raise
        self.fd = fd  # last: until then it rests
        self._foresee()

    def rename(self, path: str) -> None:
        """Rename the segment's files to the names that belong to `path`, replacing files of these names.

        The .log comes last: before, nothing has happened, as indexes are derived.
        """
        segment, indexes = self.segment, companions(path)
        for old, new in zip(companions(segment.path), indexes, strict=True):
            files.replace(old, new)
        # crash: indexes of an adopted segment without it -> open() removes or rebuilds them
        files.replace(segment.path, path)
        segment.path = path
        self.builder.rename(*indexes)

    def has_room(self, size: int, base_offset: int, timestamp: int) -> bool:
        """Say whether batches of `size` bytes still belong in this segment; if not, the partition rolls."""
        position = self.segment.size_bytes
        return (
            position + size <= self._segment_bytes
            and timestamp <= self.roll_after
            and base_offset <= self._limit_offset
            and (position - self.builder.indexed_position <= self._interval or self.builder.has_room())
        )

    def append(
        self, batches: tuple[EncodedBatch, ...], size: int, base_offset: int, leader_epoch: int
    ) -> None:
        """Write batches, `size` bytes in all. If it raises, nothing in memory has moved, but bytes may be
        in the file: roll_back().
        """
        segment, builder = self.segment, self.builder
        position = segment.size_bytes
        if position - builder.indexed_position > self._interval or len(batches) > 1:
            builder.make_room(len(batches))
        files.write_at(self.fd, _stamped(batches, base_offset, leader_epoch), size, position)
        self._singles = 0
        segment.size_bytes = position + size
        if position == 0:
            self.roll_after = batches[0].max_timestamp + self._segment_ms
        for batch in batches:
            builder.add(base_offset, position, batch.max_timestamp)
            base_offset += batch.span
            position += batch.size
        self._foresee()

    def can_take(self, size: int, last_offset: int) -> bool:
        """Say whether a leader's batches can be in this segment, whatever the settings say: an index entry
        holds 32 bits of a position and of an offset.
        """
        return self.segment.size_bytes + size <= _MOST_BYTES and last_offset <= self._limit_offset

    def append_stamped(self, data: Buffer, places: Sequence[tuple[int, int, int]]) -> None:
        """Write batches that have their stamps; each has a base_offset, a place in `data` and a timestamp.

        If it raises, the same is true as of append().
        """
        segment, builder, size, interval = self.segment, self.builder, len(data), self._interval
        position = segment.size_bytes
        builder.make_room(min(len(places), size // (interval + 1) + 1))
        files.write_at(self.fd, (data,), size, position)
        self._singles = 0
        segment.size_bytes = position + size
        if position == 0:
            self.roll_after = places[0][2] + self._segment_ms
        latest, due = builder.max_timestamp, builder.indexed_position + interval
        for offset, place, timestamp in places:
            if timestamp > latest or position + place > due:
                builder.add(offset, position + place, timestamp)
                latest, due = builder.max_timestamp, builder.indexed_position + interval
        self._foresee()

    def write_single(self, data: bytes, size: int, position: int) -> None:
        """Write a single batch for which the mapped tail has no room; after many, map another stretch."""
        if files.pwrite(self.fd, data, position) != size:
            files.write_at(self.fd, (data,), size, position)
        self._singles = self._singles + 1 if size <= _SMALL_BYTES else max(self._singles - 1, 0)
        if self._singles >= _SINGLES and self._may_map:
            self._map_tail(position + size)

    def share(self) -> None:
        """Map nothing from now on: another process may cut the file, and storing behind its end kills."""
        self._may_map = False

    def _map_tail(self, position: int) -> None:
        """Reserve and map a stretch behind `position`, modest in a small segment; or else go on without."""
        self._unmap_tail()
        start = position - position % files.PAGE_BYTES
        end = min(start + min(max(position, _LEAST_TAIL_BYTES), _MOST_TAIL_BYTES), self._segment_bytes)
        if end <= position:
            return
        self._reserved = True
        try:
            self.tail = files.map_tail(self.fd, start, end)
        except OSError:  # pwrite() will tell of a full disk
            self._may_map = False
        else:
            self.tail_start, self.tail_end = start, end

    def _unmap_tail(self) -> None:
        self.tail_end = 0  # first, so that nothing is stored into a map that Ctrl-C closed
        tail, self.tail = self.tail, None
        if tail is not None:
            tail.close()

    def give_back(self) -> None:
        """Cut off the reserved blocks behind the last batch; no reader was told about them."""
        self._unmap_tail()
        if self._reserved:
            files.cut(self.fd, self.segment.size_bytes)
            self._reserved = False

    def note(self, base_offset: int, position: int, timestamp: int) -> None:
        """Index a batch that was written, if that is due."""
        self.builder.add(base_offset, position, timestamp)
        self._foresee()

    def catch_up(self, end_position: int) -> None:
        """Take note of what another process appended."""
        start, self.segment.size_bytes = self.segment.size_bytes, end_position
        if start == 0:
            self.roll_after = next(self.segment.headers())[1].max_timestamp + self._segment_ms
        self.builder.catch_up(self.segment, start)
        self._foresee()

    def _foresee(self) -> None:
        """Work out what the next batches may do without asking."""
        builder, filled = self.builder, self.segment.size_bytes > 0
        self.max_timestamp = builder.max_timestamp
        self.quiet_position = builder.indexed_position + self._interval
        lean = filled and builder.has_room() and self.segment.base_offset < _LAST_OFFSETS
        self.lean_end = self._segment_bytes if lean else 0

    def roll_back(self, position: int) -> None:
        """Cut off what a failed append left after `position`; no reader was told about it."""
        self.segment.size_bytes = position
        self.builder.roll_back(self.segment)
        self._foresee()
        self._unmap_tail()  # storing into what is cut off would kill the process
        files.cut(self.fd, position)
        # or a power cut could bring back the last of several batches, behind others appended since
        files.sync_data(self.fd)

    def rest(self) -> None:
        """Let the files go until wake(): what is not synced is in the page cache, and is synced by name."""
        if self.fd != _RESTING:
            self.give_back()
            self.lean_end = 0  # so that the next append does not go the lean way
            fd, self.fd = self.fd, _RESTING
            os.close(fd)
            self.builder.rest()

    @property
    def resting(self) -> bool:
        """Whether it has no file open for now."""
        return self.fd == _RESTING

    @property
    def is_lost(self) -> bool:
        """Whether it rests, and its file is gone or another one has its name."""
        if self.fd == _RESTING:
            try:
                os.close(files.open_same(self.segment.path, self.segment.inode))
            except FileNotFoundError:
                return True
        return False

    @property
    def is_unopened(self) -> bool:
        """Whether the files are as the clean shutdown left them."""
        return self._builder is None

    def wake(self) -> None:
        """Open the files again; FileNotFoundError if one is gone, or another one has its name."""
        segment = self.segment
        if self._builder is None:
            if segment.size_bytes:
                os.close(files.open_same(segment.path, segment.inode))
            self._open(trust_indexes=True)
            return
        fd = files.open_same(segment.path, segment.inode, os.O_RDWR)
        try:
            if self._config.preallocate:
                self._reserved = True
                files.reserve(fd, self._config.segment_bytes)
            self._builder.wake()
        except (FileNotFoundError, ValueError):  # an index is gone, or empty: it is derived
            os.close(fd)
            self._open(trust_indexes=False)
            return
        except BaseException:
            os.close(fd)
            raise
        self.fd = fd
        self._foresee()

    @property
    def builder(self) -> IndexBuilder:
        """What keeps the indexes, once they are open."""
        assert self._builder is not None
        return self._builder

    def latest(self) -> int:
        """Return the latest timestamp in the segment, -1 if it is empty, the last possible one if it is
        damaged.
        """
        segment = self.segment
        if self._builder is None and self.max_timestamp == -1 and segment.size_bytes:
            sealed = Segment(segment.path, segment.base_offset, segment.size_bytes)
            sealed.inode = segment.inode
            try:
                self.max_timestamp = sealed.max_timestamp
            except (CorruptionError, FileNotFoundError):
                return MAX_INT64  # so that nothing is deleted on its word
        return self.max_timestamp

    @property
    def is_unlinked(self) -> bool:
        """Whether the file was removed: what is written to it is lost when it is closed."""
        return self.fd != _RESTING and os.fstat(self.fd).st_nlink == 0

    def make_way_for_sync(self) -> None:
        """Map no tail for a while: a store into a page that is on its way to the disk may have to wait, and
        so would every other thread of Python, which pwrite() lets run.
        """
        self._unmap_tail()
        self._singles = 0

    def another_handle(self) -> files.Descriptor:
        """Return another descriptor of the file, which may outlast this writer: a roll closes ours."""
        if self.fd == _RESTING:
            return files.Descriptor(files.open_same(self.segment.path, self.segment.inode, os.O_RDWR))
        return files.Descriptor(os.dup(self.fd))

    def prepare_to_seal(self) -> None:
        """Do what can fail of sealing: after this, seal() has the room it needs, and the file its size."""
        self.builder.make_room()
        self.give_back()

    def seal(self, next_offset: int) -> None:
        """Finish the segment, after prepare_to_seal(): its indexes get their last entry."""
        self.builder.finish(self.segment.size_bytes, next_offset)
        self.segment.active = False
        self.segment.release()  # its indexes were read without their seal
        self.close()

    def seal_indexes(self, next_offset: int) -> None:
        """Seal the indexes and make them durable, for a clean open to believe; without room it will not."""
        try:
            self.builder.finish(self.segment.size_bytes, next_offset)
        except OSError as error:
            if not files.is_full(error):
                raise
        self.builder.sync()

    def close(self) -> None:
        """Let the file go; closing twice is fine."""
        fd, self.fd = self.fd, -1  # first, so that an interrupted close is not made twice
        if fd >= 0:
            os.close(fd)
            self._unmap_tail()
            self.builder.close()

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:  # a roll that Ctrl-C ended has nobody else to close it
            self.close()


def _not_awake() -> None:
    raise AssertionError("wake() comes first")


def longest_ms(config: TopicConfig) -> int:
    """Return how long a segment may be active: one that is to be compacted must be sealed in time."""
    limits = [config.segment_ms, config.max_compaction_lag_ms if config.compacts else -1]
    return min((limit for limit in limits if limit != -1), default=_NEVER)


def _let_go_of_staged(path: str) -> None:
    """Let a segment without records have a file of its own: Ctrl-C may have come as a staged one was adopted.

    That one has another name, under which it is still to be published: it must not be cut.
    """
    with contextlib.suppress(FileNotFoundError):
        if os.stat(path).st_nlink > 1:
            files.remove(path)


def _stamped(batches: tuple[EncodedBatch, ...], offset: int, leader_epoch: int) -> Sequence[Buffer]:
    if len(batches) == 1:
        return batches[0].stamped(offset, leader_epoch)
    pieces: list[Buffer] = []
    for batch in batches:
        pieces += batch.stamped(offset, leader_epoch)
        offset += batch.span
    return pieces


def open_builder(segment: Segment, config: TopicConfig, *, trust_indexes: bool) -> IndexBuilder:
    """Open a segment's indexes for writing and index what they lack, all of it if they are not true.

    They are `trust_indexes` after a clean shutdown, which sealed them. CorruptionError if the batches do not
    follow one another.
    """
    offset_path, time_path = companions(segment.path)
    limit = config.segment_index_bytes
    offsets, times = OffsetIndex.open_writable(offset_path, limit), TimeIndex.open_writable(time_path, limit)
    complete = (
        trust_indexes and offsets.seal_holds(segment.size_bytes) and times.seal_holds(segment.size_bytes)
    )
    true = complete or (segment.confirms_all(offsets) and segment.confirms_all(times))
    for index in (offsets, times):
        index.unseal()
        if not true:
            index.clear()
    builder = IndexBuilder(offsets, times, config.index_interval_bytes)
    start = builder.resume(segment, complete=complete)
    for position, header in segment.headers(start):
        builder.add(header.base_offset, position, segment.latest_at(position))
    return builder


def sync_sealed(segment: Segment) -> None:
    """Make a sealed segment and its indexes durable; what retention removed meanwhile needs it no more."""
    for path in (segment.path, *companions(segment.path)):
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            files.sync_data(fd)
        finally:
            os.close(fd)
