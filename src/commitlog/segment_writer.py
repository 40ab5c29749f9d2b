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
from commitlog.segment import Segment, companions, derived_files, segment_path

_NEVER = 1 << 63
_MAX_RELATIVE_OFFSET = 0xFFFF_0000  # an index entry has 32 bits; the lean path does not check
_LAST_OFFSETS = MAX_INT64 - (1 << 34)  # a segment that starts here may reach the last possible offset
_MOST_BYTES = 0xFFFF_0000  # of a leader's segment, which may be larger than ours
_SINGLES = 1024  # after this many small appends in a row without a sync the tail is mapped
_SMALL_BYTES = 1024  # of a single batch; measured: above, page faults cost more than pwrite()
_SMALL_BATCH_BYTES = 2048  # of batches of several pieces, for which pwritev() costs twice as much
_RESTING = -2  # for a descriptor: wake() opens the file again
_LEAST_TAIL_BYTES, _MOST_TAIL_BYTES = 64 * 1024, 1024 * 1024
# After _SYNCS syncs in a row, each of at most _OFTEN_BYTES, blocks are reserved ahead. Measured: a sync that
# need not store the size of the file takes 70 us instead of 98.
_SYNCS, _OFTEN_BYTES, _AHEAD_BYTES = 16, 8 * 1024, 64 * 1024


class SegmentWriter:
    """The one writer of a segment. `segment.size_bytes` moves only after the bytes are in the file.

    The partition writes single records itself while they end by `lean_end` and are not later than
    `roll_after`. A record after `quiet_position` gets an index entry, which needs make_room(); it, and a
    record later than `max_timestamp`, is passed to note(). Up to `tail_end` the partition stores records into
    `tail`, a map of the file from `tail_start` on; after that write_single() writes them.

    An idle writer may rest(): it has no file open then, and needs wake() before the next append or seal.

    Behind size_bytes the file has nothing, or zeros: blocks reserved for the tail, for small appends that are
    synced, or by `preallocate`.

    Not thread-safe: the partition's append lock guards it.
    """

    __slots__ = (
        "_builder", "_config", "_interval", "_limit_offset", "_may_map", "_may_reserve", "_reserved",
        "_reserved_end", "_segment_bytes", "_segment_ms", "_singles", "_synced_at", "_syncs", "fd",
        "lean_end", "make_room", "max_timestamp", "quiet_position", "roll_after", "segment", "tail",
        "tail_end", "tail_start",
    )  # fmt: skip

    def __init__(self, segment: Segment, config: TopicConfig) -> None:
        self.segment = segment
        self.fd = _RESTING
        self._config = config
        self._builder: IndexBuilder | None = None  # None until wake() has opened the files
        self.make_room: Callable[[], None] = _not_awake
        self._interval = config.index_interval_bytes
        self._reserved = config.preallocate  # whether the file may be longer than its batches
        self._reserved_end = config.segment_bytes if config.preallocate else 0
        self._syncs = 0  # in a row, of few bytes each
        self._synced_at = segment.size_bytes  # the size at the last one
        self._singles = 0  # small ones in a row; a large one is subtracted
        self._may_map = self._may_reserve = True  # the tail of this segment
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
        """Return a writer that continues after segment.size_bytes once wake() has opened the files."""
        return cls(segment, config)

    @classmethod
    def create(cls, directory: str, base_offset: int, config: TopicConfig, cache: OpenFiles) -> Self:
        """Start a new, empty segment; replace what a failed roll left under its name."""
        path = segment_path(directory, base_offset)
        for derived in derived_files(path):
            files.remove(derived)
        try:
            return cls.open(Segment(path, base_offset, 0, cache), config)
        except OSError:
            for made in (path, *derived_files(path)):
                files.remove(made)
            files.sync_directory(directory)  # otherwise a power cut could bring it back among later records
            raise

    @classmethod
    def open(cls, segment: Segment, config: TopicConfig, *, trust_indexes: bool = True) -> Self:
        """Return a writer that continues after segment.size_bytes; cut off anything behind it."""
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
                # otherwise a power cut could bring back what was cut off, after new records
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
        self.fd = fd  # last: until then the writer rests
        self._foresee()

    def rename(self, path: str) -> None:
        """Rename the segment's files to the names that belong to `path`, replacing files of these names.

        The .log is renamed last: until then nothing has happened, because indexes are derived.
        """
        segment, indexes = self.segment, companions(path)
        for old, new in zip(companions(segment.path), indexes, strict=True):
            files.replace(old, new)
        # crash: indexes of an adopted segment without it -> open() removes or rebuilds them
        files.replace(segment.path, path)
        segment.path = path
        self.builder.rename(*indexes)

    def has_room(self, size: int, base_offset: int, timestamp: int) -> bool:
        """Say whether batches of `size` bytes fit into this segment; if not, the partition rolls."""
        position = self.segment.size_bytes
        return (
            position + size <= self._segment_bytes
            and timestamp <= self.roll_after
            and base_offset <= self._limit_offset
            and (position <= self.quiet_position or self.builder.has_room())
        )

    def append(
        self, batches: tuple[EncodedBatch, ...], size: int, latest: int, base_offset: int, leader_epoch: int
    ) -> None:
        """Write batches, `size` bytes in total; `latest` is their latest timestamp.

        If this raises, memory is unchanged, but the file may not be: call roll_back().
        """
        segment = self.segment
        position = segment.size_bytes
        end = position + size
        due = end - batches[-1].size > self.quiet_position  # whether the last one gets an index entry
        if due:
            self.builder.make_room(len(batches))
        pieces = _stamped(batches, base_offset, leader_epoch)
        if end <= self.tail_end and size <= _SMALL_BATCH_BYTES:
            self.tail[position - self.tail_start : end - self.tail_start] = b"".join(pieces)  # type: ignore[index]
        else:
            files.write_at(self.fd, pieces, size, position)
            self._singles = self._singles + 1 if size <= _SMALL_BATCH_BYTES else 0
            if self._singles >= _SINGLES and self._may_map:
                self._map_tail(end)
        segment.size_bytes = end
        if position == 0:
            self.roll_after = batches[0].max_timestamp + self._segment_ms
        # measured: without this look a small batch takes 4.7 us instead of 3.9
        if due or position == 0 or latest > self.max_timestamp:
            builder = self.builder
            for batch in batches:
                builder.add(base_offset, position, batch.max_timestamp)
                base_offset += batch.span
                position += batch.size
            self._foresee()

    def can_take(self, size: int, last_offset: int) -> bool:
        """Say whether a leader's batches fit into this segment, whatever the settings are: index entries have
        32 bits for positions and offsets.
        """
        return self.segment.size_bytes + size <= _MOST_BYTES and last_offset <= self._limit_offset

    def append_stamped(self, data: Buffer, places: Sequence[tuple[int, int, int]]) -> None:
        """Write stamped batches; `places` has the base_offset, the place in `data` and the timestamp of each.

        If this raises, call roll_back(), as after append().
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
        """Write a single batch that does not fit into the mapped tail; after many, map another tail."""
        if files.pwrite(self.fd, data, position) != size:
            files.write_at(self.fd, (data,), size, position)
        self._singles = self._singles + 1 if size <= _SMALL_BYTES else max(self._singles - 1, 0)
        if self._singles >= _SINGLES and self._may_map:
            self._map_tail(position + size)

    def share(self) -> None:
        """Map nothing from now on: another process may cut the file, and a store behind its end kills."""
        self._may_map = self._may_reserve = False

    def _map_tail(self, position: int) -> None:
        """Reserve and map a tail behind `position`, a short one in a small segment; go on if that fails."""
        self._unmap_tail()
        start = position - position % files.PAGE_BYTES
        end = min(start + min(max(position, _LEAST_TAIL_BYTES), _MOST_TAIL_BYTES), self._segment_bytes)
        if end <= position:
            return
        self._reserved = True
        try:
            self.tail = files.map_tail(self.fd, start, end)
        except OSError:  # pwrite() reports a full disk
            self._may_map = False
        else:
            self.tail_start, self.tail_end = start, end

    def _unmap_tail(self) -> None:
        self.tail_end = 0  # first, so that nothing is stored into a closed map after Ctrl-C
        tail, self.tail = self.tail, None
        if tail is not None:
            tail.close()

    def give_back(self) -> None:
        """Cut off the reserved blocks behind the last batch, which were never published to readers."""
        self._unmap_tail()
        if self._reserved:
            files.cut(self.fd, self.segment.size_bytes)
            self._reserved, self._reserved_end = False, 0

    def note(self, base_offset: int, position: int, timestamp: int) -> None:
        """Index a written batch if an entry is due."""
        self.builder.add(base_offset, position, timestamp)
        self._foresee()

    def catch_up(self, end_position: int) -> None:
        """Take into account what another process appended."""
        start, self.segment.size_bytes = self.segment.size_bytes, end_position
        if start == 0:
            self.roll_after = next(self.segment.headers())[1].max_timestamp + self._segment_ms
        self.builder.catch_up(self.segment, start)
        self._foresee()

    def _foresee(self) -> None:
        """Compute the limits up to which the partition may write single records itself."""
        builder, filled = self.builder, self.segment.size_bytes > 0
        self.max_timestamp = builder.max_timestamp
        self.quiet_position = builder.indexed_position + self._interval
        lean = filled and builder.has_room() and self.segment.base_offset < _LAST_OFFSETS
        self.lean_end = self._segment_bytes if lean else 0

    def roll_back(self, position: int) -> None:
        """Cut off what a failed append left after `position`, which was never published to readers."""
        self.segment.size_bytes = position
        self.builder.roll_back(self.segment)
        self._foresee()
        self._unmap_tail()  # a store into a part that is cut off would kill the process
        self._reserved_end = 0
        files.cut(self.fd, position)
        # otherwise a power cut could bring back the last of several batches behind later ones
        files.sync_data(self.fd)

    def rest(self) -> None:
        """Close the files until wake(); unsynced data is in the page cache, and is synced by file name."""
        if self.fd != _RESTING:
            self.give_back()
            self.lean_end = 0  # so that the next append does not take the lean path
            fd, self.fd = self.fd, _RESTING
            os.close(fd)
            self.builder.rest()

    @property
    def resting(self) -> bool:
        """Whether its files are closed for now."""
        return self.fd == _RESTING

    @property
    def is_lost(self) -> bool:
        """Whether it rests and its file is gone or another file has its name."""
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
        """Open the files again; FileNotFoundError if one is gone or another file has its name."""
        segment = self.segment
        if self._builder is None:
            if segment.size_bytes:
                os.close(files.open_same(segment.path, segment.inode))
            self._open(trust_indexes=True)
            return
        fd = files.open_same(segment.path, segment.inode, os.O_RDWR)
        try:
            if self._config.preallocate:
                self._reserved, self._reserved_end = True, self._config.segment_bytes
                files.reserve(fd, self._config.segment_bytes)
            self._builder.wake()
        except (FileNotFoundError, ValueError):  # an index is gone or empty: rebuild it
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
        """The builder of the indexes, once they are open."""
        assert self._builder is not None
        return self._builder

    def latest(self) -> int:
        """Return the latest timestamp in the segment: -1 if it is empty, the largest possible one if it is
        damaged.
        """
        segment = self.segment
        if self._builder is None and self.max_timestamp == -1 and segment.size_bytes:
            sealed = Segment(segment.path, segment.base_offset, segment.size_bytes)
            sealed.inode = segment.inode
            try:
                self.max_timestamp = sealed.max_timestamp
            except (CorruptionError, FileNotFoundError):
                return MAX_INT64  # so that it is never a reason to delete anything
        return self.max_timestamp

    @property
    def is_unlinked(self) -> bool:
        """Whether the file was removed: anything written to it is lost when it is closed."""
        return self.fd != _RESTING and files.link_count(self.fd) == 0

    def make_way_for_sync(self) -> None:
        """Map no tail for a while: a store into a page under writeback may block, and with it every Python
        thread, whereas pwrite() lets other threads run.
        """
        self._unmap_tail()
        self._singles = 0

    def reserve_ahead(self) -> None:
        """If small syncs follow one another, reserve blocks for the next ones; go on if that fails."""
        size = self.segment.size_bytes
        self._syncs = self._syncs + 1 if size - self._synced_at <= _OFTEN_BYTES else 0
        self._synced_at = size
        end = min(size + _AHEAD_BYTES, self._segment_bytes)
        due = self._syncs >= _SYNCS and size < end and self._reserved_end < min(size + _OFTEN_BYTES, end)
        if due and self._may_reserve and self.fd != _RESTING:
            self._reserved, self._reserved_end = True, end
            try:
                files.reserve_ahead(self.fd, size, end)
            except OSError:  # pwrite() reports a full disk
                self._may_reserve = False

    def another_handle(self) -> files.Descriptor:
        """Return another descriptor of the file, which stays valid when a roll closes ours."""
        if self.fd == _RESTING:
            return files.Descriptor(files.open_same(self.segment.path, self.segment.inode, os.O_RDWR))
        return files.Descriptor(os.dup(self.fd))

    def prepare_to_seal(self) -> None:
        """Do the part of sealing that can fail: reserve index entries and cut the file to its size."""
        self.builder.make_room()
        self.give_back()

    def seal(self, next_offset: int) -> None:
        """Finish the segment after prepare_to_seal(): add the last index entries."""
        self.builder.finish(self.segment.size_bytes, next_offset)
        self.segment.active = False
        self.segment.release()  # readers opened its indexes without a seal
        self.close()

    def seal_indexes(self, next_offset: int) -> None:
        """Seal the indexes durably, so that a clean open trusts them; on a full disk it will not."""
        try:
            self.builder.finish(self.segment.size_bytes, next_offset)
        except OSError as error:
            if not files.is_full(error):
                raise
        self.builder.sync()

    def close(self) -> None:
        """Close the files; closing twice is fine."""
        fd, self.fd = self.fd, -1  # first, so that the descriptor is not closed twice after an interrupt
        if fd >= 0:
            os.close(fd)
            self._unmap_tail()
            self.builder.close()

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:  # nothing else closes it after Ctrl-C in a roll
            self.close()


def _not_awake() -> None:
    raise AssertionError("call wake() first")


def longest_ms(config: TopicConfig) -> int:
    """Return how long a segment may be active; one to be compacted must be sealed in time."""
    limits = [config.segment_ms, config.max_compaction_lag_ms if config.compacts else -1]
    return min((limit for limit in limits if limit != -1), default=_NEVER)


def _let_go_of_staged(path: str) -> None:
    """Remove the name of a staged file from an empty segment: Ctrl-C may have interrupted an adoption.

    The file has another name, under which it will still be published: it must not be cut.
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
    """Open a segment's indexes for writing and add what they lack; rebuild them if they are wrong.

    `trust_indexes` is set after a clean shutdown, which sealed them. CorruptionError if the batches are not
    consecutive.
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
    """Make a sealed segment and its indexes durable; files that retention has removed are skipped."""
    for path in (segment.path, *companions(segment.path)):
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            files.sync_data(fd)
        finally:
            os.close(fd)
