"""EpochHistory: where each leader epoch of a partition begins. By it two replicas find where they differ."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

NO_EPOCH = -1


class EpochStart(NamedTuple):
    """The first offset of a leader epoch."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class EpochHistory:
    """Leader epochs in order; both numbers grow. An epoch without records may be missing."""

    starts: tuple[EpochStart, ...] = ()

    @property
    def latest(self) -> int:
        """The last epoch, NO_EPOCH if there is none."""
        return self.starts[-1].epoch if self.starts else NO_EPOCH

    def epoch_of(self, offset: int) -> int:
        """Return the epoch of the record at `offset`, NO_EPOCH if it is before all of them."""
        number = bisect_right(self.starts, offset, key=lambda one: one.start_offset)
        return self.starts[number - 1].epoch if number else NO_EPOCH

    def end_of(self, epoch: int, next_offset: int) -> tuple[int, int]:
        """Return the largest epoch here that is not above `epoch`, and where its records end.

        The last epoch ends at the log's next_offset. (NO_EPOCH, start of the first) if none is so small.
        """
        number = bisect_right(self.starts, epoch, key=lambda one: one.epoch)
        end = self.starts[number].start_offset if number < len(self.starts) else next_offset
        return (self.starts[number - 1].epoch if number else NO_EPOCH), end

    def begun(self, epoch: int, start_offset: int) -> EpochHistory:
        """Return the history once an epoch begins; one that had no records is taken over by it."""
        if epoch <= self.latest:
            return self
        kept = tuple(one for one in self.starts if one.start_offset < start_offset)
        return EpochHistory((*kept, EpochStart(epoch, start_offset)))

    def truncated_from(self, offset: int) -> EpochHistory:
        """Return the history once records at and above `offset` are gone."""
        return EpochHistory(tuple(one for one in self.starts if one.start_offset < offset))

    def trimmed_before(self, offset: int) -> EpochHistory:
        """Return the history once records below `offset` are gone: the epoch at `offset` begins there."""
        later = tuple(one for one in self.starts if one.start_offset > offset)
        epoch = self.epoch_of(offset)
        return EpochHistory(later if epoch == NO_EPOCH else (EpochStart(epoch, offset), *later))
