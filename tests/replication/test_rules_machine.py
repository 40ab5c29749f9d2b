"""The rules, applied at random: after each step the invariants hold."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from commitlog.errors import CommitLogError
from commitlog.record import TopicPartition
from commitlog.replication import rules
from commitlog.replication.cluster import ClusterState
from commitlog.replication.commands import (
    AddPartitions,
    AlterTopic,
    ChangeIsr,
    Command,
    CreateTopic,
    DeleteTopic,
    ElectPreferred,
    JoinNode,
    LeaveNode,
    Reassign,
    RegisterNodes,
    Registration,
)
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
        self.heard: list[ChangeIsr] = []

    def step(self, command: Command, *let_in: int) -> None:
        try:
            after = rules.apply(self.state, command)
        except CommitLogError:
            return
        check_step(self.state, after, frozenset(let_in))
        self.state = after

    @rule(node_id=NODES, clean=st.booleans(), disk_id=st.sampled_from(["one", "one", "other"]))
    def node_joins(self, node_id: int, clean: bool, disk_id: str) -> None:
        self.step(JoinNode(node_id, "host", clean, disk_id))
        led = [one for one in self.partitions() if one[2] == node_id]
        assert all(self.leaders.get((topic_id, number, epoch)) is None for topic_id, number, _, epoch in led)

    @rule(node_ids=SOME_NODES)
    def nodes_are_gone(self, node_ids: list[int]) -> None:
        alive = rules.alive(self.state)
        self.step(RegisterNodes({key: one for key, one in alive.items() if key not in node_ids}))

    @rule(data=st.data(), node_ids=st.lists(NODES, unique=True))
    def nodes_are_seen(self, data: st.DataObject, node_ids: list[int]) -> None:
        """Some are alive, in this life or a new one; the others are gone."""
        alive = {}
        for node_id in node_ids:
            known = self.state.nodes.get(node_id)
            incarnation = self.state.version + 1
            if known is not None and data.draw(st.booleans()):
                incarnation = known.incarnation
            alive[node_id] = Registration("host", incarnation, data.draw(st.booleans()))
        self.step(RegisterNodes(alive))

    @rule(node_id=NODES)
    def node_leaves(self, node_id: int) -> None:
        node = self.state.nodes.get(node_id)
        self.step(LeaveNode(node_id, 0 if node is None else node.incarnation))

    @rule()
    def preferred_lead(self) -> None:
        self.step(ElectPreferred())

    @rule(name=NAMES, partitions=st.integers(1, 3), replicas=st.integers(1, 4), unclean=st.booleans())
    def topic_is_created(self, name: str, partitions: int, replicas: int, unclean: bool) -> None:
        config = {"unclean_leader_election_enable": unclean}
        self.step(CreateTopic(name, partitions, replicas, config))

    @rule(name=NAMES, unclean=st.booleans())
    def topic_is_altered(self, name: str, unclean: bool) -> None:
        self.step(AlterTopic(name, {"unclean_leader_election_enable": unclean}))

    @rule(name=NAMES)
    def topic_is_deleted(self, name: str) -> None:
        self.step(DeleteTopic(name))

    @rule(name=NAMES, partitions=st.integers(1, 3))
    def partitions_are_added(self, name: str, partitions: int) -> None:
        self.step(AddPartitions(name, partitions))

    @rule(name=PARTITIONS, replicas=SOME_NODES)
    def partition_moves(self, name: TopicPartition, replicas: list[int]) -> None:
        self.step(Reassign(name, tuple(replicas)))

    @rule(name=PARTITIONS, isr=SOME_NODES, at_once=st.booleans())
    def leader_proposes(self, name: TopicPartition, isr: list[int], at_once: bool) -> None:
        one = self.state.partition(name)
        if one is None or one.leader is None:
            return
        members = tuple({one.leader, *isr})
        incarnations = {node.node_id: node.incarnation for node in self.state.nodes.values()}
        topic_id = self.state.topics[name.topic].topic_id
        change = ChangeIsr(name, topic_id, one.leader, one.leader_epoch, one.version, members, incarnations)
        if at_once:
            self.step(change, *members)
        else:
            self.heard.append(change)

    @rule(data=st.data())
    def old_proposal_arrives(self, data: st.DataObject) -> None:
        if not self.heard:
            return
        change = data.draw(st.sampled_from(self.heard))
        lives = {node_id: node.incarnation for node_id, node in self.state.nodes.items()}
        before = self.state
        self.step(change, *change.isr)
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
    def every_partition_is_settled(self) -> None:
        """So a rule need not look at partitions that its command does not concern."""
        version = self.state.version + 1
        assert rules.begun(self.state, "", 0, version).topics == self.state.topics

    @invariant()
    def totals_are_those_of_the_topics(self) -> None:
        carried, summed = rules._Topics.of(self.state.topics), rules._Topics.of(dict(self.state.topics))
        assert (carried.partitions, carried.size) == (summed.partitions, summed.size)
        assert (carried, carried.ids) == (summed, summed.ids)

    @invariant()
    def nobody_else_leads_in_the_same_epoch(self) -> None:
        for topic_id, number, leader, epoch in self.partitions():
            assert self.leaders.setdefault((topic_id, number, epoch), leader) == leader


Rules.TestCase.settings = settings(max_examples=2 * settings().max_examples, stateful_step_count=40)
TestRules = Rules.TestCase
