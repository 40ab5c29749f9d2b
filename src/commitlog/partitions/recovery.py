"""Recovery: brings a partition's files into order when a writer opens it.

After a clean shutdown nothing is read. Otherwise everything from the recovery point (the durable_offset) on
is checked: what an unfinished append or a power cut left is cut, what a crash cannot explain is refused.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from itertools import pairwise

from commitlog import aborted_index, files
from commitlog.batches.scan import check_batches, only_zeros
from commitlog.config import RecoveryMode, TopicConfig
from commitlog.errors import CorruptionError, TornTailError
from commitlog.index import OffsetIndex, TimeIndex, sealed_end
from commitlog.open_files import OpenFiles
from commitlog.partitions.page import Checkpoint
from commitlog.progress import Steps
from commitlog.repair import Salvage, fill_hole, salvage_segment
from commitlog.segment import (
    ADOPTED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    TEMPORARY_SUFFIX,
    Segment,
    companions,
    derived_files,
    segment_path,
)
from commitlog.segment_files import CLEANED_SUFFIX, finish_swaps, list_segments
from commitlog.segment_writer import open_builder


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening a partition found and did."""

    partition: str
    clean: bool
    segments_checked: int = 0
    bytes_checked: int = 0
    bytes_cut: int = 0
    segments_dropped: int = 0
    indexes_rebuilt: int = 0
    salvaged: tuple[Salvage, ...] = ()
    seconds: float = 0.0


@dataclass(slots=True)
class Recovered:
    """A partition as recovery left it; the last segment is the active one."""

    segments: list[Segment]
    start_offset: int
    next_offset: int
    durable_offset: int
    clean_offset: int
    has_producers: bool
    indexes_trusted: bool
    report: RecoveryReport


class Recovery:
    """Recovers one partition from its files."""

    def __init__(
        self,
        directory: str,
        name: str,
        known: Checkpoint | None,
        config: TopicConfig,
        cache: OpenFiles | None,
        steps: Steps | None = None,
    ) -> None:
        self._directory = directory
        self._name = name
        self._known = known
        self._config = config
        self._cache = cache
        self._steps = steps or Steps(None)
        self._began = time.perf_counter()
        self._checked = self._checked_bytes = self._cut_bytes = self._dropped = self._rebuilt = 0
        self._salvaged: list[Salvage] = []

    def run(
        self, *, clean: bool, mode: RecoveryMode, read_only: bool = False, spare_cleaned: bool = False
    ) -> Recovered:
        """Bring the files into order (only in memory if `read_only`) and return what is there.

        With `spare_cleaned`, the files that a compaction pass is writing stay: it may still be running.
        """
        self._mode, self._read_only = mode, read_only
        self._salvages = mode == "salvage" and not read_only
        if not read_only:
            finish_swaps(self._directory, salvage=mode == "salvage")
            self._clear_leftovers(spare_cleaned)
        known = self._known
        segments = list_segments(self._directory, self._cache)
        if known is not None:
            segments = self._from_the_start(segments, known)
        segments = segments or [self._empty(0)]
        last = segments[-1]
        trusted = (
            clean and mode != "salvage" and known is not None and known.base_offset == last.base_offset
            and known.end_position <= last.size_bytes
        )  # fmt: skip
        if trusted and known is not None:
            last.size_bytes = known.end_position
            next_offset, durable = known.next_offset, known.durable_offset
            segments = self._without_holes(segments)
        else:
            durable = known.durable_offset if known else last.base_offset
            segments, next_offset = self._check_from(segments, durable)
            durable = min(durable, next_offset)
        if not read_only:
            self._complete_indexes(segments, durable, trusted)
        start = max(known.start_offset if known else 0, segments[0].base_offset)
        start = min(start, next_offset)
        segments[-1].active = True
        return Recovered(
            segments, start, next_offset,
            durable_offset=max(durable, start),
            clean_offset=min(known.clean_offset if known else 0, next_offset),
            has_producers=bool(known is None or known.has_producers),
            indexes_trusted=trusted,
            report=self._report(trusted),
        )  # fmt: skip

    def _empty(self, base_offset: int) -> Segment:
        return Segment(segment_path(self._directory, base_offset), base_offset, 0, self._cache)

    def _clear_leftovers(self, spare_cleaned: bool) -> None:
        """Remove the leftovers of interrupted changes, and indexes without a segment."""
        names = set(os.listdir(self._directory))
        unfinished = {DELETED_SUFFIX, TEMPORARY_SUFFIX, ADOPTED_SUFFIX}
        if not spare_cleaned:
            unfinished.add(CLEANED_SUFFIX)
        for name in names:
            stem, suffix = os.path.splitext(name)
            derived = suffix in (OffsetIndex.suffix, TimeIndex.suffix, aborted_index.SUFFIX)
            orphan = derived and stem + LOG_SUFFIX not in names
            if orphan or suffix in unfinished:
                files.remove(os.path.join(self._directory, name))

    def _from_the_start(self, segments: list[Segment], known: Checkpoint) -> list[Segment]:
        """Return the segments from start_offset on; a trim was about to remove those below."""
        start = known.start_offset
        while len(segments) > 1 and segments[1].base_offset <= start:
            if not self._read_only:
                for path in (segments[0].path, *derived_files(segments[0].path)):
                    files.remove(path)
            segments = segments[1:]
        if not segments and known.durable_offset <= start:
            return [self._empty(known.next_offset)]
        if segments and segments[0].base_offset <= start:
            return segments
        if known.durable_offset <= start and self._mode != "salvage":
            # crash: the first segment was never synced and is lost -> what follows it goes too
            return [*self._drop(segments, 0), self._empty(start)]
        end = segments[0].base_offset if segments else known.durable_offset
        if self._mode != "salvage":
            reason = f"offsets [{start}, {end}) are missing, and some of them were synced"
            raise CorruptionError(self._directory, 0, reason)
        self._salvaged.append(Salvage(self._directory, "", 0, ((start, end),), end))
        return segments or [self._empty(end)]

    def _without_holes(self, segments: list[Segment]) -> list[Segment]:
        """Check, from their indexes, that sealed segments follow one another without holes."""
        whole = segments[:1]
        for segment, after in pairwise(segments):
            try:
                end = segment.next_offset
                if end != after.base_offset:  # the seal may be old or damaged: the batches decide
                    end = segment.find_next_offset()
                if end > after.base_offset:
                    raise _overlap(after, end)
            except CorruptionError:
                if not self._salvages:
                    raise
                end = self._salvage(segment, after.base_offset)
            self._join(whole, after, end)
        return whole

    def _join(self, before: list[Segment], segment: Segment, expected: int) -> None:
        """Add a segment to those that end at `expected`; a hole is damage, or filled in mode salvage."""
        end = segment.base_offset
        if expected > end:
            raise _overlap(segment, expected)
        if expected < end:
            if not self._salvages:
                raise CorruptionError(segment.path, 0, f"offsets [{expected}, {end}) are missing before it")
            if before and before[-1].size_bytes == 0:
                del before[-1]  # the segment that fills the hole takes its name
            self._salvaged.append(fill_hole(self._directory, expected, end, self._config))
            before.append(Segment.open(self._salvaged[-1].path, self._cache))
        before.append(segment)

    def _salvage(self, segment: Segment, end_offset: int | None, least_end: int = 0) -> int:
        self._salvaged.append(salvage_segment(segment, end_offset, self._config, least_end))
        return self._salvaged[-1].next_offset

    # --- checking what may be torn

    def _check_from(self, segments: list[Segment], durable: int) -> tuple[list[Segment], int]:
        """Check every batch from `durable` on; returns the segments that stay and the next_offset."""
        first = max((number for number, one in enumerate(segments) if one.base_offset < durable), default=0)
        if self._known is None:  # it is not known what was synced: only the last segment may be torn
            first, durable = 0, segments[-1].base_offset
        kept = self._without_holes(segments[: first + 1])[:-1]
        expected = segments[first].base_offset
        self._steps.expect(sum(segment.size_bytes for segment in segments[first:]))
        for number in range(first, len(segments)):
            segment = segments[number]
            if durable <= expected < segment.base_offset and self._mode != "salvage":
                # crash: the end of an unsynced segment was lost, its successor was not
                self._drop(segments, number)
                return kept, expected
            self._join(kept, segment, expected)
            with self._steps.part(segment.size_bytes):
                point = durable if self._known is not None and self._mode != "salvage" else 0
                expected, damage = self._check_segment(segment, point, durable)
            after = segments[number + 1].base_offset if number + 1 < len(segments) else None
            overlaps = after is not None and expected > after
            if self._salvages:
                if damage is not None or overlaps:
                    expected = self._salvage(segment, after, durable)
            elif damage is None:
                continue  # an overlap is refused in the next round
            elif expected < durable:
                raise damage
            else:
                self._cut(segment, damage.position)
                self._drop(segments, number + 1)
                return kept, expected
        return self._reach_durable(kept, expected, durable), max(expected, durable)

    def _check_segment(
        self, segment: Segment, point: int, durable: int
    ) -> tuple[int, CorruptionError | None]:
        """Check a segment's batches from offset `point` on; returns where they end, and the damage there."""
        self._checked += 1
        expected = segment.base_offset
        try:
            position, expected = _recovery_point(segment, point)
        except CorruptionError as problem:
            damage: CorruptionError | None = problem
        else:
            self._checked_bytes += segment.size_bytes - position
            size = segment.size_bytes
            expected, damage, _ = check_batches(segment.path, position, size, expected, self._steps)
        if damage is None:
            return expected, None
        synced = self._known is not None and expected < durable
        if synced or not only_zeros(segment.path, damage.position, segment.size_bytes):
            return expected, damage
        segment.size_bytes = damage.position  # reserved blocks, never written
        if not self._read_only:
            _cut_file(segment)
        return expected, None

    def _cut(self, segment: Segment, position: int) -> None:
        torn_bytes = segment.size_bytes - position
        if self._mode == "absolute":
            raise TornTailError(segment.path, position, torn_bytes)
        self._cut_bytes += torn_bytes
        segment.size_bytes = position

    def _reach_durable(self, segments: list[Segment], expected: int, durable: int) -> list[Segment]:
        """Never assign an offset twice: lost records that were synced are damage, or a gap if salvaged."""
        if expected >= durable:
            return segments
        if self._mode != "salvage":
            last = segments[-1]
            reason = f"the log ends at offset {expected}, but everything below {durable} was synced"
            raise CorruptionError(last.path, last.size_bytes, reason)
        self._join(segments, self._empty(durable), expected)
        return segments

    def _drop(self, segments: list[Segment], number: int) -> list[Segment]:
        """Drop the unsynced segments that follow a tear: their offsets would leave a gap."""
        dropped = segments[number:]
        if dropped and self._mode == "absolute":
            raise TornTailError(dropped[0].path, 0, sum(segment.size_bytes for segment in dropped))
        self._dropped += len(dropped)
        self._cut_bytes += sum(segment.size_bytes for segment in dropped)
        if dropped and not self._read_only:
            for segment in reversed(dropped):
                for path in (segment.path, *derived_files(segment.path)):
                    files.remove(path)
            # if one came back after a power cut, it could be taken for later appends
            files.sync_directory(self._directory)
        return segments[:number]

    # --- indexes

    def _complete_indexes(self, segments: list[Segment], durable: int, trusted: bool) -> None:
        """Rebuild the indexes of sealed segments that are missing, torn or perhaps not synced."""
        names = set(os.listdir(self._directory))
        for segment, after in pairwise(segments):
            paths, size = companions(segment.path), segment.size_bytes
            missing = [path for path in paths if os.path.basename(path) not in names]
            torn = not trusted and any(sealed_end(path, size) is None for path in paths)
            if missing or torn or not (trusted or after.base_offset < durable):
                with contextlib.suppress(CorruptionError):  # it gets no seal, and a reader will meet it
                    builder = open_builder(segment, self._config, trust_indexes=False)
                    builder.finish(segment.size_bytes, after.base_offset)
                    self._rebuilt += len(missing)

    def _report(self, clean: bool) -> RecoveryReport:
        return RecoveryReport(
            partition=self._name,
            clean=clean,
            segments_checked=self._checked,
            bytes_checked=self._checked_bytes,
            bytes_cut=self._cut_bytes,
            segments_dropped=self._dropped,
            indexes_rebuilt=self._rebuilt,
            salvaged=tuple(self._salvaged),
            seconds=time.perf_counter() - self._began,
        )


def _recovery_point(segment: Segment, durable: int) -> tuple[int, int]:
    """Return the position from which batches may be torn, and the offset there.

    What follows may be cut, so the batch that ends there is checked, and the headers that lead to it must
    follow one another: a rotten header is damage, never a torn tail.
    """
    position, expected = 0, segment.base_offset
    if durable <= expected:
        return position, expected
    for position, header in segment.headers(segment.start_for(durable)):
        if header.next_offset >= durable:
            segment.check_at(position)
        if header.next_offset > durable:
            return position, header.base_offset
        expected = header.next_offset
        if expected == durable:
            return position + header.size, expected
    return segment.size_bytes, expected


def _overlap(segment: Segment, expected: int) -> CorruptionError:
    return CorruptionError(segment.path, 0, f"offset {segment.base_offset} follows offset {expected - 1}")


def _cut_file(segment: Segment) -> None:
    """Cut a file to its true size, which the next open trusts for a sealed segment."""
    with files.Descriptor(os.open(segment.path, os.O_RDWR)) as fd:
        files.cut(fd, segment.size_bytes)
        files.sync_data(fd)
