"""Bugs to plant: each is a mistake that one could make, and that the simulation has to find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from commitlog.partitions.epochs import NO_EPOCH
from commitlog.replication import rules
from commitlog.replication.cluster import ClusterState
from commitlog.replication.commands import ChangeIsr, JoinNode
from commitlog.replication.core import replica
from commitlog.replication.core.follower import Follower
from commitlog.replication.core.progress import Progress, ReplicaProgress
from commitlog.replication.messages import FetchPart

Plant = Callable[[pytest.MonkeyPatch], None]


def truncates_to_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """As Kafka did before it had leader epochs: whoever starts to follow cuts back to its high watermark."""

    class Mistaken(Follower):
        def __init__(self, *fields: Any) -> None:
            super().__init__(*fields)
            log = self._log
            if log.start_offset < log.high_watermark < log.next_offset:
                log.truncate_from(log.high_watermark)

        def question(self) -> FetchPart:
            self._asked = replace(super().question(), last_epoch=NO_EPOCH)
            return self._asked

    patch.setattr(replica, "Follower", Mistaken)


def counts_a_lagging_follower_out(patch: pytest.MonkeyPatch) -> None:
    """The watermark passes a member of the ISR that is behind, before the controller has taken it out."""

    def advanced(self: Progress, high_watermark: int, end_offset: int, now_ms: int) -> int:
        if len(self.isr) < self.min_insync_replicas:
            return high_watermark
        keep_up = [
            one.next_offset
            for node_id, one in self.others.items()
            if node_id in self.counted and one.next_offset is not None and now_ms - one.caught_up_ms < 50
        ]
        return max(high_watermark, min([end_offset, *keep_up]))

    patch.setattr(Progress, "advanced", advanced)


def accepts_a_proposal_of_an_old_epoch(patch: pytest.MonkeyPatch) -> None:
    """A leader that was replaced, and does not know, still decides who is in sync."""
    changed = rules._RULES[ChangeIsr]

    def mistaken(state: ClusterState, change: ChangeIsr) -> ClusterState:
        one = state.partition(change.name)
        if one.leader_epoch == change.leader_epoch:
            return changed(state, change)
        isr = tuple(node_id for node_id in one.replicas if node_id in change.isr)
        return rules._with_partition(state, change.name, replace(one, isr=isr or one.isr))

    patch.setitem(rules._RULES, ChangeIsr, mistaken)


def lets_an_unclean_node_stay_in_sync(patch: pytest.MonkeyPatch) -> None:
    """A node that crashed and came back is taken for one that has everything."""
    joined = rules._RULES[JoinNode]

    def mistaken(state: ClusterState, command: JoinNode) -> ClusterState:
        node = state.nodes.get(command.node_id)
        if node is None:
            return joined(state, replace(command, clean=True))
        nodes = {**state.nodes, command.node_id: replace(node, incarnation=state.version + 1)}
        return replace(state, nodes=nodes, version=state.version + 1)

    patch.setitem(rules._RULES, JoinNode, mistaken)


def lets_in_who_has_not_reached_the_epoch(patch: pytest.MonkeyPatch) -> None:
    """A new leader's high watermark may be behind what its predecessor acknowledged."""
    made = Progress.__init__

    def mistaken(self: Progress, node_id: int, epoch_start: int, *fields: Any, **settings: Any) -> None:
        made(self, node_id, 0, *fields, **settings)

    patch.setattr(Progress, "__init__", mistaken)


def believes_an_earlier_life(patch: pytest.MonkeyPatch) -> None:
    """A fetch that comes late tells what a replica had before it crashed."""
    fetched = ReplicaProgress.fetched

    def mistaken(self: ReplicaProgress, incarnation: int, offset: int, end_offset: int, now_ms: int) -> None:
        newest = max(incarnation, self.incarnation)
        self.incarnation = newest
        fetched(self, newest, offset, end_offset, now_ms)

    patch.setattr(ReplicaProgress, "fetched", mistaken)


def forgets_a_proposal_that_nobody_decided(patch: pytest.MonkeyPatch) -> None:
    """It may count all the same, and then the watermark passes a member."""
    patch.setattr(Progress, "proposed", lambda self, isr: None)


def listens_to_any_controller(patch: pytest.MonkeyPatch) -> None:
    """A state of an empty controller, of another cluster's or of an older copy is taken for the right one."""
    patch.setattr(ClusterState, "refusal", lambda self, known: None)


# Each with a number of schedules that is more than enough; the last is seldom found, and left to long runs.
BUGS: tuple[tuple[Plant, int], ...] = (
    (truncates_to_the_high_watermark, 400),
    (counts_a_lagging_follower_out, 400),
    (accepts_a_proposal_of_an_old_epoch, 1500),
    (lets_an_unclean_node_stay_in_sync, 400),
    (listens_to_any_controller, 400),
    (believes_an_earlier_life, 2500),
    (forgets_a_proposal_that_nobody_decided, 2500),
)
SELDOM_FOUND: tuple[tuple[Plant, int], ...] = ((lets_in_who_has_not_reached_the_epoch, 8000),)
