"""Follower: the state machine of one partition's follower, under one leader.

It reads its log and changes nothing: it returns effects. It truncates only where the leader's epochs demand
it, never by high watermark.
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
    """Asks its leader for the records it lacks, and turns the answers into effects."""

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
        self.failures = 0  # consecutive answers that could not be stored
        self._log = log
        self._backoff_ms = backoff_ms
        self._asked: FetchPart | None = None

    def question(self) -> FetchPart:
        """Return the next question. Answers to earlier questions are ignored from now on."""
        log = self._log
        offset = log.next_offset
        last_epoch = log.epochs.epoch_of(offset - 1)
        self._asked = FetchPart(self.name, self._topic_id, self.epoch, offset, last_epoch, log.high_watermark)
        return self._asked

    def step(self, asked: FetchPart, part: FetchedPart, now_ms: int) -> tuple[FollowerEffect, ...]:
        """Return the effects of the answer to the last question; answers to earlier ones are ignored.

        Comparing offset and epoch would not suffice: a log that was truncated and has grown back to the same
        offset would accept a late answer, and be truncated again.
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
        """Pause before the next question: after a refusal, or increasingly while the disk fails."""
        wait_ms = min(self._backoff_ms << min(max(self.failures - 1, 0), 16), _LONGEST_BACKOFF_MS)
        self.asks_after_ms = now_ms + max(wait_ms, self._backoff_ms)

    def _cut_back(self, leader_has: EpochEnd, leader_start: int) -> FollowerEffect:
        """Keep what both logs may have in common: at most their common part of that epoch, and earlier ones.

        If this log lacks that epoch, only later epochs are removed; the next answer says more. The cut is
        always between two batches, because within an epoch both logs have the same batches. It always removes
        something: the leader has less of the last epoch here, or does not know that epoch.

        Epochs that the leader does not know may belong to records that it has trimmed. Then nothing below
        its start can be compared, and nothing there is kept.
        """
        epoch, offset = self._log.epochs.end_of(leader_has.epoch, self._log.next_offset)
        if epoch == leader_has.epoch:
            offset = min(offset, leader_has.end_offset)
        if offset <= leader_start:
            return RestartAt(leader_start)
        return Truncate(offset) if offset > self._log.start_offset else RestartAt(offset)
