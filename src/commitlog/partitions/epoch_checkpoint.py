"""The file leader-epoch-checkpoint: where each leader epoch of a replicated partition begins.

It is durable before the first batch of a new epoch is there, and derived all the same: each batch tells its
epoch, so what the file lacks, or all of it, is read from the batches' headers.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

from crc32c import crc32c

from commitlog import files
from commitlog.batches.format import BatchHeader
from commitlog.partitions.epochs import EpochHistory, EpochStart
from commitlog.segments.extents import headers_between
from commitlog.segments.segment import FAR, TEMPORARY_SUFFIX, Segment

NAME = "leader-epoch-checkpoint"
_VERSION = "1"


def is_there(directory: str) -> bool:
    """Say whether the partition in this directory is replicated."""
    return os.path.exists(os.path.join(directory, NAME))


def store(directory: str, history: EpochHistory) -> None:
    """Write a history durably over the one that is there."""
    path = os.path.join(directory, NAME)
    files.write_whole(path, to_text(history).encode(), path + TEMPORARY_SUFFIX)


def load(directory: str) -> EpochHistory | None:
    """Read the history; None if there is none, or if it is damaged."""
    try:
        with open(os.path.join(directory, NAME), encoding="ascii") as file:
            return from_text(file.read())
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def to_text(history: EpochHistory) -> str:
    """Return a version, the number of epochs, a line for each, and the crc32c of these lines."""
    lines = [_VERSION, str(len(history.starts)), *(f"{epoch} {start}" for epoch, start in history.starts)]
    body = "".join(line + "\n" for line in lines)
    return f"{body}{crc32c(body.encode()):08x}\n"


def from_text(text: str) -> EpochHistory | None:
    """Return what to_text() was given; None if this is something else."""
    try:
        pairs = [line.split() for line in text.splitlines()[2:-1]]
        history = EpochHistory(tuple(EpochStart(int(epoch), int(start)) for epoch, start in pairs))
    except ValueError:
        return None
    grows = all(
        one.epoch < after.epoch and one.start_offset < after.start_offset
        for one, after in pairwise(history.starts)
    )
    return history if grows and to_text(history) == text else None


def recovered(directory: str, segments: Sequence[Segment], start: int, end: int) -> EpochHistory:
    """Return the history of a log [start, end) that was just opened, or becomes replicated now.

    What the file tells of records that are gone is left out. It is believed if it is right about the last
    sound batch: epochs only grow.
    """
    stored = load(directory)
    starts = stored.starts if stored is not None else ()
    history = EpochHistory(tuple(one for one in starts if one.start_offset <= end))
    last = _last_sound(segments) if start < end else None
    if last is not None:
        claimed, true = history.epoch_of(last.base_offset), last.leader_epoch
        if true > claimed:
            known = history.truncated_from(end)
            last_known = known.starts[-1].start_offset if known.starts else start
            history = of_batches(segments, last_known, end, known)
        elif true < claimed:
            history = of_batches(segments, start, end)
    return history.trimmed_before(start)


def of_batches(
    segments: Sequence[Segment], start: int, end: int, known: EpochHistory | None = None
) -> EpochHistory:
    """Return the history that the sound batches in [start, end) tell, after what is known."""
    history = EpochHistory() if known is None else known
    for header in headers_between(segments, start, end, sound=True):
        if header.leader_epoch > history.latest:
            history = history.begun(header.leader_epoch, header.base_offset)
    return history


def _last_sound(segments: Sequence[Segment]) -> BatchHeader | None:
    """Return the header of the last batch whose checksum matches."""
    for segment in reversed(segments):
        for position in (segment.start_for(FAR), 0) if segment.size_bytes else ():
            last = deque(segment.sound_headers(position), maxlen=1)
            if last:
                return last[0][1]
    return None
