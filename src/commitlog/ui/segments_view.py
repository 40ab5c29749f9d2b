"""The segments of a partition as bars to draw; many neighbours in the same state are merged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from commitlog.errors import CorruptionError
from commitlog.partition import Partition
from commitlog.segment import FAR, Segment

State = Literal["sealed", "compacted", "dirty", "active"]
_MOST_BATCHES = 50_000  # whose headers are read to count records


@dataclass(frozen=True, slots=True)
class Bar:
    """One segment, or several neighbours in the same state: offsets [base_offset, end_offset)."""

    base_offset: int
    end_offset: int
    bytes: int
    segments: int
    state: State


def bars(partition: Partition, most: int) -> list[Bar]:
    """Return about `most` bars or fewer; only segments in the same state are merged."""
    segments, end = partition.segments, partition.next_offset
    clean, compacts = partition.clean_offset, partition.config.compacts
    ends = [*(one.base_offset for one in segments[1:]), max(end, segments[-1].base_offset)]
    found = [
        Bar(one.base_offset, after, one.size_bytes, 1, _state(one, after, clean, compacts))
        for one, after in zip(segments, ends, strict=True)
    ]
    return found if len(found) <= most else _merged(found, most)


def _state(segment: Segment, end: int, clean_offset: int, compacts: bool) -> State:
    if segment.active:
        return "active"
    if end <= clean_offset:
        return "compacted"
    return "dirty" if compacts else "sealed"


def _merged(found: Sequence[Bar], most: int) -> list[Bar]:
    """Merge neighbours until each bar has its share of the bytes and of the segments."""
    share_bytes, share = sum(one.bytes for one in found) / most, len(found) / most
    merged: list[Bar] = [found[0]]
    for one in found[1:]:
        last = merged[-1]
        full = last.bytes + one.bytes > share_bytes and last.segments >= share
        if full or one.state != last.state:
            merged.append(one)
        else:
            size_bytes = last.bytes + one.bytes
            merged[-1] = replace(
                last, end_offset=one.end_offset, bytes=size_bytes, segments=last.segments + 1
            )
    return merged


def details(partition: Partition, base_offset: int, end_offset: int) -> dict[str, Any]:
    """Return the batches, records and timestamps in the segments of a bar, or what is wrong with them."""
    chosen = [
        one for one in partition.segments if base_offset <= one.base_offset < max(end_offset, base_offset + 1)
    ]
    start = partition.start_offset
    about: dict[str, Any] = {
        "files": [one.path.rpartition("/")[2] for one in (chosen[:1] + chosen[1:][-1:])],
        "trimmed": max(0, min(start, end_offset) - base_offset),
    }
    try:
        return {**about, **_counts(chosen), **_times(chosen)}
    except FileNotFoundError:
        return {**about, "problem": "the file was just removed or replaced"}
    except CorruptionError as problem:
        return {**about, "problem": str(problem)}


def _counts(segments: Iterable[Segment]) -> dict[str, Any]:
    """Count batches, records and markers by their headers; give up if there are too many."""
    batches = records = markers = 0
    for segment in segments:
        for _, header in segment.headers():
            markers += header.is_marker
            batches += not header.is_marker
            records += header.record_count
            if batches + markers >= _MOST_BATCHES:
                return {"batches": None, "records": None, "markers": None}
    return {"batches": batches, "records": records, "markers": markers}


def _times(segments: Sequence[Segment]) -> dict[str, Any]:
    """Return the first timestamp of the first batch, and the latest of the last segment."""
    written = [one for one in segments if one.size_bytes]
    if not written:
        return {"first_timestamp": None, "last_timestamp": None}
    _, first = next(written[0].headers())
    return {"first_timestamp": first.base_timestamp, "last_timestamp": _latest(written[-1])}


def _latest(segment: Segment) -> int:
    if not segment.active:
        return segment.max_timestamp
    # the index of the active segment is incomplete: batches follow its last entry
    return max(header.max_timestamp for _, header in segment.headers(segment.start_for(FAR)))
