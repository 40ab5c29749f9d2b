"""Effects: what leaders and followers ask for, as values that replica.py and node_core.py carry out."""

from __future__ import annotations

from dataclasses import dataclass

from commitlog.replication.commands import ChangeIsr
from commitlog.replication.messages import Data


@dataclass(frozen=True, slots=True)
class Advance:
    """Raise the high watermark to `offset`, or to next_offset if that is lower; it never goes down."""

    offset: int


@dataclass(frozen=True, slots=True)
class Propose:
    """Propose an ISR to the controller."""

    change: ChangeIsr


@dataclass(frozen=True, slots=True)
class Truncate:
    """Remove the records at and above `offset`."""

    offset: int


@dataclass(frozen=True, slots=True)
class RestartAt:
    """Remove all records; the next append gets `offset`."""

    offset: int


@dataclass(frozen=True, slots=True)
class AppendBatches:
    """Append a leader's batches unchanged, in the segment with this base_offset."""

    segment_base: int
    data: Data


@dataclass(frozen=True, slots=True)
class TrimBefore:
    """Remove the records below `offset`."""

    offset: int


LeaderEffect = Advance | Propose
FollowerEffect = Advance | Truncate | RestartAt | AppendBatches | TrimBefore
