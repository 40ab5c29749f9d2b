"""Compaction keeps only the latest record of every key: Kafka's log cleaner, on columns.

A pass notes the latest offset of every key in the dirty part of the log, until its map is full, and then
rewrites the segments below that point without the records that a later one replaces. Offsets and order never
change. docs/compaction.md has a picture.

Everything that a pass reads is decided. Records of aborted transactions are removed, and those of committed
ones become plain records. A marker then has nothing left to decide, and goes once its delete horizon has
passed: a replica that is behind may have the records and not the marker.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from commitlog.aborted_index import Aborted, AbortedRanges
from commitlog.batches import compression
from commitlog.batches.batch import RecordBatch
from commitlog.batches.columns import NO_NULLS, Int64s
from commitlog.batches.encode import EncodedBatch
from commitlog.batches.format import NO_PRODUCER, PUBLISHED, BatchHeader
from commitlog.batches.markers import encode_marker, first_offset_of
from commitlog.batches.merge import BatchMerger
from commitlog.config import TopicConfig
from commitlog.errors import CommitLogError, CorruptionError
from commitlog.keymap import KeyMap
from commitlog.progress import Progress, Steps
from commitlog.segment import Segment, counted
from commitlog.segment_files import CleanedFile
from commitlog.tasks import Signal

_CHUNK_ROWS = 16_384
_COPY_ROWS = 1024  # a batch that loses nothing and has at least this many records is copied unchanged
_MAX_GROUP_SPAN = 1 << 32  # an index entry has 32 bits for the relative offset


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """What a pass did; records and bytes count the segments that could be cleaned.

    `stopped_by` is None for a complete pass, or "map full", "cancelled", "changed" (segments were trimmed or
    truncated during the pass) or "nothing to clean".
    """

    partition: str
    first_dirty_offset: int
    clean_offset: int
    segments_before: int = 0
    segments_after: int = 0
    records_before: int = 0
    records_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    tombstones_removed: int = 0
    keys: int = 0
    map_use: float = 0.0
    seconds: float = 0.0
    stopped_by: str | None = None


# --- what can be cleaned, and when ---------------------------------------------------------------


class Cleanable(NamedTuple):
    """The segments that a pass may rewrite, and their dirty part, [first_dirty, end)."""

    segments: tuple[Segment, ...]
    first_dirty: int
    end: int

    @property
    def dirty_bytes(self) -> int:
        """The size of the segments that no pass has read."""
        return sum(one.size_bytes for one in self._dirty())

    @property
    def dirty_ratio(self) -> float:
        """The fraction of the bytes that no pass has read."""
        return self.dirty_bytes / (sum(one.size_bytes for one in self.segments) or 1)

    def _dirty(self) -> list[Segment]:
        ends = [*(one.base_offset for one in self.segments[1:]), self.end]  # one too many without segments
        return [one for one, end in zip(self.segments, ends, strict=False) if end > self.first_dirty]

    def is_due(self, config: TopicConfig, now_ms: int) -> bool:
        """Say whether a pass should run: enough bytes are dirty, or a record has waited too long."""
        dirty = self._dirty()
        if not dirty:
            return False
        if self.dirty_ratio >= config.min_cleanable_dirty_ratio:
            return True
        if config.max_compaction_lag_ms == -1:
            return False
        oldest = min(next(one.headers())[1].base_timestamp for one in dirty)
        return now_ms - oldest > config.max_compaction_lag_ms


def cleanable(
    segments: Sequence[Segment], clean_offset: int, limit_offset: int, config: TopicConfig, now_ms: int
) -> Cleanable:
    """Return what a pass may clean: sealed segments below `limit_offset`, past min_compaction_lag_ms."""
    chosen: list[Segment] = []
    end = segments[0].base_offset
    for segment, after in pairwise(segments):
        # without a lag no record is too young: a timestamp in the future would block all later segments
        young = 0 < config.min_compaction_lag_ms > now_ms - segment.max_timestamp
        if after.base_offset > limit_offset or (young and after.base_offset > clean_offset):
            break
        chosen.append(segment)
        end = after.base_offset
    return Cleanable(tuple(chosen), min(max(clean_offset, segments[0].base_offset), end), end)


def dirty_ratio(
    segments: Sequence[Segment], clean_offset: int, limit_offset: int, config: TopicConfig, now_ms: int
) -> float | None:
    """Return the ratio that the cleaner compares with min_cleanable_dirty_ratio; same arguments as cleanable.

    None if the topic is not compacted, or while segments are missing or damaged.
    """
    if not config.compacts:
        return None
    try:
        return cleanable(segments, clean_offset, limit_offset, config, now_ms).dirty_ratio
    except (OSError, CommitLogError):
        return None


# --- a pass --------------------------------------------------------------------------------------


class Pass:
    """One pass over what is cleanable; the caller swaps in the files that cleaned() yields."""

    def __init__(
        self,
        work: Cleanable,
        start_offset: int,
        config: TopicConfig,
        buffer_bytes: int,
        now_ms: int,
        pace: Pace,
        progress: Progress | None = None,
        aborted: AbortedRanges | None = None,
    ) -> None:
        self._work = work
        self._start_offset = start_offset
        self._aborted = aborted  # None if there are no transactions
        self._config = config
        self._now_ms = now_ms
        self._pace = pace
        self._keys = KeyMap(buffer_bytes)
        self._live: Int64s | None = None  # the sorted offsets of the map, once hashes are no longer needed
        self._last_of_producer: dict[int, int] = {}
        self.end = work.end  # everything below is clean after the pass
        self.stopped_by: str | None = None  # why it ended early
        self.segments_after = len(work.segments)
        self.records_before = self.records_after = self.tombstones_removed = 0
        self.bytes_after = self.bytes_before = sum(one.size_bytes for one in work.segments)
        self.keys, self.map_use = 0, 0.0
        self._steps = Steps(progress, work.dirty_bytes + self.bytes_before)

    def cleaned(self) -> Generator[tuple[CleanedFile, Sequence[Segment]], None, None]:
        """Yield each cleaned file with the segments it replaces; swap it in before asking for the next.

        Close the iterator after an error, so that a file that was not swapped in is discarded.
        """
        try:
            with self._steps.part(self._work.dirty_bytes):
                self._build_map()
            self.keys, self.map_use = self._keys.used, self._keys.used / self._keys.capacity
            yield from self._clean()
        except CancelledError:
            self.stop("cancelled")
            return
        self._steps.finish()
        if self.end < self._work.end:
            self.stopped_by = "map full"

    def stop(self, reason: str) -> None:
        """End early: files that were swapped in stay, but the clean offset does not move."""
        self.end, self.stopped_by = self._work.first_dirty, reason

    # --- the latest offset of every key

    def _build_map(self) -> None:
        for keys, offsets in self._dirty_chunks():
            taken = self._keys.add(keys, offsets)
            if taken < len(keys):
                self.end = int(offsets[taken])
                return

    def _dirty_chunks(self) -> Iterator[tuple[list[bytes], Int64s]]:
        """Iterate over the keys of the dirty part and their offsets, in chunks."""
        keys: list[bytes] = []
        offsets: list[Int64s] = []
        for batch, _ in self._batches(self._work.segments, self._work.first_dirty):
            self._last_of_producer[_sender(batch.header)] = batch.header.base_offset
            if counted(batch, self._aborted) is not batch:
                continue  # it must not replace a record that counts
            part = batch.slice(self._work.first_dirty, self._work.end)
            rows = _keyed_rows(part)
            found = part.keys()
            keys += found if rows is None else [found[row] for row in rows.tolist()]  # type: ignore[arg-type]
            offsets.append(part.offsets if rows is None else part.offsets[rows])
            if len(keys) >= _CHUNK_ROWS:
                yield keys, np.concatenate(offsets)
                keys, offsets = [], []
        if keys:
            yield keys, np.concatenate(offsets)

    def _batches(self, segments: Sequence[Segment], start: int) -> Iterator[tuple[RecordBatch, int]]:
        for segment in segments:
            for batch, stored in segment.rewritable_batches(max(start, segment.base_offset), self.end):
                self._pace.spend(batch.size_bytes)
                self._steps.add(batch.size_bytes)
                yield batch, stored

    # --- cleaning

    def _clean(self) -> Iterator[tuple[CleanedFile, Sequence[Segment]]]:
        """Rewrite the segments below the end, merging neighbours that fit into one."""
        segments = [one for one in self._work.segments if one.base_offset < self.end]
        ends = [*(one.base_offset for one in self._work.segments[1:]), self._work.end]
        group: _Group | None = None
        try:
            for segment, after, end in zip(segments, [*segments[1:], None], ends, strict=False):
                if self._live is None and segment.base_offset >= self._work.first_dirty:
                    self._live = self._keys.into_offsets()  # every key from here on is in the map
                if group is not None and not group.has_room(segment):
                    yield from self._put_in_place(group)
                    group = None
                with self._steps.part(segment.size_bytes):
                    if group is None and self._can_be_left(segment, after):
                        continue
                    if group is None:
                        group = _Group(segment, self._config, self._pace)
                        group.cleaned.aborted = None if self._aborted is None else []
                    self._write(segment, group)
                    if group.next_offset != end:  # otherwise offsets would be missing or appear twice
                        reason = f"it ends at offset {group.next_offset}, not at {end}"
                        raise CorruptionError(segment.path, segment.size_bytes, reason)
            if group is not None:
                yield from self._put_in_place(group)
                group = None
        finally:
            if group is not None:
                group.cleaned.discard()

    def _put_in_place(self, group: _Group) -> Iterator[tuple[CleanedFile, Sequence[Segment]]]:
        cleaned = group.finish()
        try:
            yield cleaned, group.segments
        except BaseException:
            cleaned.discard()
            raise
        self.bytes_after += cleaned.size_bytes - sum(one.size_bytes for one in group.segments)
        self.segments_after -= len(group.segments) - 1

    def _can_be_left(self, segment: Segment, after: Segment | None) -> bool:
        """Say whether a segment would not change and cannot be merged with its successor."""
        if after is not None and segment.size_bytes + after.size_bytes <= self._config.segment_bytes:
            return False
        count = 0
        for batch, stored in self._batches([segment], 0):
            header = batch.header
            if header.is_marker:
                if self._horizon_of_marker(batch) != batch.delete_horizon or self._is_over(batch):
                    return False
            elif stored > 1 or header.is_transactional or not self._judge(batch).stays_as_it_is(batch):
                return False
            count += len(batch)
        self.records_before += count
        self.records_after += count
        return True

    def _write(self, segment: Segment, group: _Group) -> None:
        """Write the records of a segment that stay."""
        group.segments.append(segment)
        for stored_batch, stored in self._batches([segment], 0):
            if stored_batch.header.is_marker:
                self._write_marker(stored_batch, group)
                continue
            self.records_before += len(stored_batch)
            batch = counted(stored_batch, self._aborted)
            verdict = self._judge(batch)
            self.records_after += len(verdict.rows)
            self.tombstones_removed += verdict.expired
            last = self._is_last_of_its_producer(batch)
            # the producer of a published batch matters only until the next publication, and that of a
            # transaction that is decided until the next batch or marker
            passing = batch.header.is_published or batch.header.is_transactional
            producer = batch.header.producer if last or not passing else NO_PRODUCER
            if len(verdict.rows) == 0 and not last:
                group.merger.skip(batch)
            elif (
                stored == 1
                and not batch.header.is_transactional  # now it is decided, and needs no marker
                and verdict.stays_as_it_is(batch)
                and (len(batch) >= _COPY_ROWS or producer != NO_PRODUCER)
            ):
                group.copy(batch)  # there is no need to merge it
            else:
                group.merger.keep(batch, verdict.rows, verdict.delete_horizon, producer)
            group.next_offset = batch.next_offset

    def _write_marker(self, marker: RecordBatch, group: _Group) -> None:
        """Write a marker; skip it once its delete horizon has passed, as it has nothing left to decide."""
        horizon = self._horizon_of_marker(marker)
        if self._is_over(marker):
            group.merger.skip(marker)
        else:
            group.write_marker(marker, horizon)
        group.next_offset = marker.next_offset

    def _horizon_of_marker(self, marker: RecordBatch) -> int | None:
        """Return from when on a marker may go: some time after the first pass that saw it."""
        known = marker.delete_horizon
        if known is not None or marker.next_offset > self.end:
            return known
        return self._now_ms + self._config.delete_retention_ms

    def _is_over(self, marker: RecordBatch) -> bool:
        horizon = marker.delete_horizon
        return horizon is not None and self._now_ms >= horizon and marker.next_offset <= self.end

    def _is_last_of_its_producer(self, batch: RecordBatch) -> bool:
        """Say whether this batch is the only one left that knows its producer's sequence."""
        header = batch.header
        last = self._last_of_producer.get(_sender(header), header.base_offset)
        return header.producer != NO_PRODUCER and header.base_offset >= last

    def _judge(self, batch: RecordBatch) -> _Verdict:
        """Decide which records of a batch stay."""
        if len(batch) == 0:
            return _Verdict(np.empty(0, np.int64), None, 0)
        stays = self._live_by_hash(batch) if self._live is None else self._live_by_offset(batch, self._live)
        offsets = batch.offsets
        stays |= offsets >= self.end
        stays &= offsets >= self._start_offset
        values = batch.body.values
        if values.nulls == NO_NULLS:
            return _Verdict(stays.nonzero()[0], None, 0)
        tombstones = ~values.present()
        keyed = _keyed_rows(batch)
        if keyed is not None:
            tombstones &= np.isin(np.arange(len(batch)), keyed)  # a record without a key deletes nothing
        horizon, expired = batch.delete_horizon, 0
        if horizon is not None and self._now_ms >= horizon:
            expired = int((tombstones & stays).sum())
            stays &= ~tombstones
        elif horizon is None and batch.next_offset <= self.end:
            horizon = self._now_ms + self._config.delete_retention_ms
        kept = bool((tombstones & stays).any())
        return _Verdict(stays.nonzero()[0], horizon if kept else None, expired)

    def _live_by_hash(self, batch: RecordBatch) -> NDArray[np.bool_]:
        """Mark each record for which the map has no later one with the same key."""
        if self._keys.used == 0:
            return np.ones(len(batch), np.bool_)
        rows, keys = _keyed_rows(batch), batch.keys()
        if rows is None:
            return self._keys.latest(keys) <= batch.offsets  # type: ignore[arg-type]
        stays = np.ones(len(batch), np.bool_)
        latest = self._keys.latest([keys[row] for row in rows.tolist()])
        stays[rows] = latest <= batch.offsets[rows]
        return stays

    def _live_by_offset(self, batch: RecordBatch, live: Int64s) -> NDArray[np.bool_]:
        """Mark each record of the dirty part whose offset is the latest of its key."""
        low, high = np.searchsorted(live, [batch.base_offset, batch.next_offset])
        stays = np.zeros(len(batch), np.bool_)
        stays[np.searchsorted(batch.offsets, live[low:high])] = True
        rows = _keyed_rows(batch)
        if rows is not None:
            unkeyed = np.ones(len(batch), np.bool_)
            unkeyed[rows] = False
            stays |= unkeyed
        return stays


class _Group:
    """Neighbouring segments that become one."""

    def __init__(self, first: Segment, config: TopicConfig, pace: Pace) -> None:
        self.segments: list[Segment] = []
        self.cleaned = CleanedFile.create(first.path, config)
        self.merger = BatchMerger(self._write, compression.IDS[config.compression_type])
        self.next_offset = first.base_offset
        self._segment_bytes = config.segment_bytes
        self._pace = pace

    def has_room(self, segment: Segment) -> bool:
        size = self.cleaned.size_bytes + self.merger.pending_bytes + segment.size_bytes
        span = segment.next_offset - self.segments[0].base_offset
        return size <= self._segment_bytes and span <= _MAX_GROUP_SPAN

    def _write(self, encoded: EncodedBatch, base_offset: int, leader_epoch: int) -> None:
        self._pace.spend(encoded.size)
        pieces = encoded.stamped(base_offset, leader_epoch)
        self.cleaned.write(pieces, encoded.size, base_offset, encoded.max_timestamp)

    def copy(self, batch: RecordBatch) -> None:
        """Write a stored batch unchanged."""
        assert len(batch.raw) == batch.size_bytes, "a joined batch has no bytes"
        self.merger.write_out()
        self._pace.spend(batch.size_bytes)
        self.cleaned.write([batch.raw], batch.size_bytes, batch.base_offset, batch.header.max_timestamp)

    def write_marker(self, marker: RecordBatch, delete_horizon: int | None) -> None:
        """Write a marker, with its delete horizon."""
        header = marker.header
        first_offset = first_offset_of(header, marker.raw, 0)
        if delete_horizon == marker.delete_horizon:
            self.copy(marker)
        else:
            self.merger.write_out()
            encoded = encode_marker(
                header.producer_id, header.producer_epoch, commits=header.commits,
                first_offset=first_offset, timestamp=header.max_timestamp, delete_horizon=delete_horizon,
            )  # fmt: skip
            self._write(encoded, header.base_offset, header.leader_epoch)
        if not header.commits and self.cleaned.aborted is not None:
            aborted = Aborted(header.producer_id, first_offset, header.base_offset)
            self.cleaned.aborted.append(aborted)

    def finish(self) -> CleanedFile:
        """Make the new segment complete and durable, but not visible yet."""
        self.merger.write_out()
        self.cleaned.finish(self.next_offset)
        return self.cleaned


class _Verdict(NamedTuple):
    """The rows of a batch that stay, its delete horizon, and how many tombstones have expired."""

    rows: Int64s
    delete_horizon: int | None
    expired: int

    def stays_as_it_is(self, batch: RecordBatch) -> bool:
        return len(self.rows) == len(batch) and self.delete_horizon == batch.delete_horizon


def _sender(header: BatchHeader) -> int:
    """Return the producer of a batch; all publications count as one, because only the last one matters."""
    return PUBLISHED if header.is_published else header.producer_id


def _keyed_rows(batch: RecordBatch) -> Int64s | None:
    """Return the rows that have a key, None if all do: records without a key are never replaced."""
    if batch.body.keys.nulls == NO_NULLS:
        return None
    present = batch.body.keys.present()[batch.first_row : batch.first_row + len(batch)]
    return present.nonzero()[0]


class Pace:
    """Limits a pass to cleaner_io_max_bytes_per_second, and ends it when it is cancelled."""

    def __init__(self, bytes_per_second: int, cancelled: Signal) -> None:
        self._rate = bytes_per_second
        self._cancelled = cancelled
        self._began = time.monotonic()
        self._spent = 0

    def spend(self, size_bytes: int) -> None:
        """Count bytes read or written; wait if they exceed the rate, raise CancelledError if cancelled."""
        self._spent += size_bytes
        if self._rate > 0:
            ahead = self._spent / self._rate - (time.monotonic() - self._began)
            self._cancelled.wait(max(ahead, 0.0))
        if self._cancelled.is_set():
            raise CancelledError


class CancelledError(Exception):
    """The pass was cancelled; segments that it has replaced stay replaced."""
