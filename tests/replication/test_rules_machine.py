"""The rules, applied at random: after each step the invariants hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from commitlog.errors import CommitLogError
from commitlog.ids import new_id
from commitlog.record import TopicPartition
from commitlog.replication import rules
from commitlog.replication.cluster import ClusterState, IsrChange
from replication.invariants import check_state, check_step

NODES = st.integers(1, 4)
SOME_NODES = st.lists(NODES, min_size=1, max_size=4)
NAMES = st.sampled_from(["a", "b"])
PARTITIONS = st.builds(TopicPartition, NAMES, st.integers(0, 2))


class Rules(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = ClusterState()
        self.leaders: dict[tuple[str, int, int], int] = {}  # topic_id, partition, leader_epoch
        self.heard: list[IsrChange] = []

    def step(self, change: Callable[[ClusterState], ClusterState], *let_in: int) -> None:
        try:
            after = change(self.state)
        except CommitLogError:
            return
        check_step(self.state, after, frozenset(let_in))
        self.state = after

    @rule(node_id=NODES, clean=st.booleans())
    def node_joins(self, node_id: int, clean: bool) -> None:
        self.step(lambda state: rules.joined(state, node_id, "host", clean=clean))
        led = [one for one in self.partitions() if one[2] == node_id]
        assert all(self.leaders.get((topic_id, number, epoch)) is None for topic_id, number, _, epoch in led)

    @rule(node_ids=SOME_NODES)
    def nodes_are_gone(self, node_ids: list[int]) -> None:
        self.step(lambda state: rules.gone(state, *node_ids))

    @rule(data=st.data(), node_ids=st.lists(NODES, unique=True))
    def nodes_are_seen(self, data: st.DataObject, node_ids: list[int]) -> None:
        """Some are alive, in this life or a new one; the others are gone."""
        alive = {}
        for node_id in node_ids:
            known = self.state.nodes.get(node_id)
            incarnation = self.state.version + 1
            if known is not None and data.draw(st.booleans()):
                incarnation = known.incarnation
            alive[node_id] = rules.Registration("host", incarnation, data.draw(st.booleans()))
        self.step(lambda state: rules.registered(state, alive))

    @rule(node_id=NODES)
    def node_leaves(self, node_id: int) -> None:
        self.step(lambda state: rules.leaving(state, node_id))

    @rule()
    def preferred_lead(self) -> None:
        self.step(rules.preferred_elected)

    @rule(name=NAMES, partitions=st.integers(1, 3), replicas=st.integers(1, 4), unclean=st.booleans())
    def topic_is_created(self, name: str, partitions: int, replicas: int, unclean: bool) -> None:
        config = {"unclean_leader_election_enable": unclean}
        self.step(lambda state: rules.topic_created(state, name, partitions, replicas, config, new_id()))

    @rule(name=NAMES)
    def topic_is_deleted(self, name: str) -> None:
        self.step(lambda state: rules.topic_deleted(state, name))

    @rule(name=NAMES, partitions=st.integers(1, 3))
    def partitions_are_added(self, name: str, partitions: int) -> None:
        self.step(lambda state: rules.partitions_added(state, name, partitions))

    @rule(name=PARTITIONS, replicas=SOME_NODES)
    def partition_moves(self, name: TopicPartition, replicas: list[int]) -> None:
        self.step(lambda state: rules.reassigned(state, name, replicas))

    @rule(name=PARTITIONS, isr=SOME_NODES, at_once=st.booleans())
    def leader_proposes(self, name: TopicPartition, isr: list[int], at_once: bool) -> None:
        one = self.state.partition(name)
        if one is None or one.leader is None:
            return
        members = tuple({one.leader, *isr})
        incarnations = {node.node_id: node.incarnation for node in self.state.nodes.values()}
        topic_id = self.state.topics[name.topic].topic_id
        change = IsrChange(name, topic_id, one.leader, one.leader_epoch, one.version, members, incarnations)
        if at_once:
            self.step(lambda state: rules.isr_changed(state, change), *members)
        else:
            self.heard.append(change)

    @rule(data=st.data())
    def old_proposal_arrives(self, data: st.DataObject) -> None:
        if not self.heard:
            return
        change = data.draw(st.sampled_from(self.heard))
        lives = {node_id: node.incarnation for node_id, node in self.state.nodes.items()}
        before = self.state
        self.step(lambda state: rules.isr_changed(state, change), *change.isr)
        if self.state is not before:  # it counted: then all are who they were
            assert all(lives[member] == change.incarnations[member] for member in change.isr)

    def partitions(self) -> Iterator[tuple[str, int, int, int]]:
        for topic in self.state.topics.values():
            for number, one in enumerate(topic.partitions):
                if one.leader is not None:
                    yield topic.topic_id, number, one.leader, one.leader_epoch

    @invariant()
    def state_is_right(self) -> None:
        check_state(self.state)

    @invariant()
    def nobody_else_leads_in_the_same_epoch(self) -> None:
        for topic_id, number, leader, epoch in self.partitions():
            assert self.leaders.setdefault((topic_id, number, epoch), leader) == leader


Rules.TestCase.settings = settings(max_examples=2 * settings().max_examples, stateful_step_count=40)
TestRules = Rules.TestCase
