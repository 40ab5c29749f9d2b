"""Follower: the state machine of one partition's follower, under one leader.

It reads its log, and changes nothing: what is to be done it returns as effects. It truncates only where the
leader's epochs tell it to, never by high watermark.
"""

from __future__ import annotations

from commitlog.record import TopicPartition
from commitlog.replication.core.effects import (
    Advance,
    AppendBatches,
    FollowerEffect,
    RestartAt,
    TrimBefore,
    Truncate,
)
from commitlog.replication.core.replica_log import ReplicaLog
from commitlog.replication.messages import EpochEnd, FetchedPart, FetchPart

_LONGEST_BACKOFF_MS = 10_000


class Follower:
    """Asks its leader for what it does not have, and takes the answers."""

    def __init__(
        self,
        name: TopicPartition,
        topic_id: str,
        log: ReplicaLog,
        leader: int,
        leader_epoch: int,
        backoff_ms: int,
    ) -> None:
        self.name = name
        self._topic_id = topic_id
        self.leader = leader
        self.epoch = leader_epoch
        self.asks_after_ms: int | None = None  # None: at once
        self.failures = 0  # answers in a row that the disk did not take
        self._log = log
        self._backoff_ms = backoff_ms
        self._asked: FetchPart | None = None

    def question(self) -> FetchPart:
        """Return what to ask for next. The answers to earlier questions do not count any more."""
        log = self._log
        offset = log.next_offset
        last_epoch = log.epochs.epoch_of(offset - 1)
        self._asked = FetchPart(self.name, self._topic_id, self.epoch, offset, last_epoch, log.high_watermark)
        return self._asked

    def step(self, asked: FetchPart, part: FetchedPart, now_ms: int) -> tuple[FollowerEffect, ...]:
        """Take the answer to the last question; one to an earlier question says nothing any more.

        Offset and epoch would not tell: a log that was cut back and has grown again to the same offset would
        take a late answer for its own, and be cut again.
        """
        log = self._log
        if asked is not self._asked or part.leader_epoch != self.epoch or part.offset != asked.offset:
            return ()
        self._asked = None
        if part.refusal is not None:
            self.back_off(now_ms)
            return ()
        if part.diverging is not None:
            return (self._cut_back(part.diverging, part.start_offset),)
        if part.start_offset > part.offset:
            return RestartAt(part.start_offset), Advance(part.high_watermark)
        effects: list[FollowerEffect] = []
        if part.data.size:
            effects.append(AppendBatches(part.segment_base, part.data))
        effects.append(Advance(part.high_watermark))
        if part.start_offset > log.start_offset:
            effects.append(TrimBefore(part.start_offset))
        return tuple(effects)

    def back_off(self, now_ms: int) -> None:
        """Ask nothing for a while: after a refusal, or longer and longer while the disk takes nothing."""
        wait_ms = min(self._backoff_ms << min(max(self.failures - 1, 0), 16), _LONGEST_BACKOFF_MS)
        self.asks_after_ms = now_ms + max(wait_ms, self._backoff_ms)

    def _cut_back(self, leader_has: EpochEnd, leader_start: int) -> FollowerEffect:
        """Keep what both logs may have in common: at most what they have of that epoch, and of earlier ones.

        Without that epoch here, only what is of later ones goes; the next answer tells more. So the cut is
        always between two batches, for of the same epoch both have the same. It always removes something: the
        leader has less of the last epoch here, or does not know it.

        Epochs that the leader does not know may be of records that it has removed from the front. Then
        nothing below its start can be compared, nor is to be kept.
        """
        epoch, offset = self._log.epochs.end_of(leader_has.epoch, self._log.next_offset)
        if epoch == leader_has.epoch:
            offset = min(offset, leader_has.end_offset)
        if offset <= leader_start:
            return RestartAt(leader_start)
        return Truncate(offset) if offset > self._log.start_offset else RestartAt(offset)
