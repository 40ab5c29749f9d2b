"""EpochHistory: where each leader epoch of a partition starts, so that replicas can find where they differ.

The file leader-epoch-checkpoint has the history of a replicated partition. It is durable before the first
batch of a new epoch is written, and yet derived: each batch names its epoch, so missing entries, or the whole
file, are rebuilt from the headers of the batches.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from commitlog import files
from commitlog.batches.format import BatchHeader
from commitlog.checksum import crc32c
from commitlog.partitions.layout import headers_between
from commitlog.segment import FAR, TEMPORARY_SUFFIX, Segment

NO_EPOCH = -1
NAME = "leader-epoch-checkpoint"
_VERSION = "1"


class EpochStart(NamedTuple):
    """The first offset of a leader epoch."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class EpochHistory:
    """Leader epochs in order; epochs and offsets strictly grow. An epoch without records may be missing."""

    starts: tuple[EpochStart, ...] = ()

    @property
    def latest(self) -> int:
        """The latest epoch, NO_EPOCH if there is none."""
        return self.starts[-1].epoch if self.starts else NO_EPOCH

    def epoch_of(self, offset: int) -> int:
        """Return the epoch of the record at `offset`, NO_EPOCH if it precedes all epochs."""
        number = bisect_right(self.starts, offset, key=lambda one: one.start_offset)
        return self.starts[number - 1].epoch if number else NO_EPOCH

    def end_of(self, epoch: int, next_offset: int) -> tuple[int, int]:
        """Return the largest epoch up to `epoch` and the offset after its records.

        The last epoch ends at the log's next_offset. (NO_EPOCH, start of the first epoch) if all are larger.
        """
        number = bisect_right(self.starts, epoch, key=lambda one: one.epoch)
        end = self.starts[number].start_offset if number < len(self.starts) else next_offset
        return (self.starts[number - 1].epoch if number else NO_EPOCH), end

    def begun(self, epoch: int, start_offset: int) -> EpochHistory:
        """Return the history after `epoch` starts at `start_offset`; it replaces epochs without records."""
        if epoch <= self.latest:
            return self
        kept = tuple(one for one in self.starts if one.start_offset < start_offset)
        return EpochHistory((*kept, EpochStart(epoch, start_offset)))

    def truncated_from(self, offset: int) -> EpochHistory:
        """Return the history after the records from `offset` on are removed."""
        return EpochHistory(tuple(one for one in self.starts if one.start_offset < offset))

    def trimmed_before(self, offset: int) -> EpochHistory:
        """Return the history after the records below `offset` are removed: its epoch then starts there."""
        later = tuple(one for one in self.starts if one.start_offset > offset)
        epoch = self.epoch_of(offset)
        return EpochHistory(later if epoch == NO_EPOCH else (EpochStart(epoch, offset), *later))


def is_there(directory: str) -> bool:
    """Say whether the partition in this directory is replicated."""
    return os.path.exists(os.path.join(directory, NAME))


def store(directory: str, history: EpochHistory) -> None:
    """Replace the stored history durably."""
    path = os.path.join(directory, NAME)
    files.write_whole(path, to_text(history).encode(), path + TEMPORARY_SUFFIX)


def load(directory: str) -> EpochHistory | None:
    """Return the stored history; None if there is none or if it is damaged."""
    try:
        with open(os.path.join(directory, NAME), encoding="ascii") as file:
            return from_text(file.read())
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def to_text(history: EpochHistory) -> str:
    """Return the text of the file: version, number of epochs, a line for each, and the crc32c of these."""
    lines = [_VERSION, str(len(history.starts)), *(f"{epoch} {start}" for epoch, start in history.starts)]
    body = "".join(line + "\n" for line in lines)
    return f"{body}{crc32c(body.encode()):08x}\n"


def from_text(text: str) -> EpochHistory | None:
    """Return the history that to_text() encoded; None if this is not its output."""
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
    """Return the history of a log [start, end) that was just opened or becomes replicated now.

    Entries for removed records are dropped. The file is trusted if it is right about the last sound batch,
    because epochs only grow.
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
    """Return the history from the sound batches in [start, end), continuing what is known."""
    history = EpochHistory() if known is None else known
    for header in headers_between(segments, start, end, sound=True):
        if header.leader_epoch > history.latest:
            history = history.begun(header.leader_epoch, header.base_offset)
    return history


def _last_sound(segments: Sequence[Segment]) -> BatchHeader | None:
    """Return the header of the last batch with a correct checksum."""
    for segment in reversed(segments):
        for position in (segment.start_for(FAR), 0) if segment.size_bytes else ():
            last = deque(segment.sound_headers(position), maxlen=1)
            if last:
                return last[0][1]
    return None
