"""The row that shows what a controller's decisions cost, in processor time, by the size of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median
from time import process_time_ns

from bench import Bench
from report import Group, Line

from commitlog.ids import new_id
from commitlog.record import TopicPartition
from commitlog.replication import rules
from commitlog.replication.cluster import ClusterState, PartitionState, TopicState
from commitlog.replication.commands import ChangeIsr, CreateTopic, ElectPreferred, JoinNode, RemoveNode
from commitlog.replication.controllers.stored import StoredState, write_state_file
from commitlog.replication.messages import ClusterNow
from commitlog.replication.transports import wire

NODES, REPLICAS = 6, 3
CHANGES = 200
SENT = (400, 100)  # topics and partitions that still fit into a message


def cluster_rules(bench: Bench) -> Iterator[Group]:
    """Changes of one partition, of one topic and of all partitions; and what follows from any change."""
    shapes = [(10, 100), (100, 100), (1000, 100), (10, 9999)]
    states = {shape: built(*shape) for shape in shapes}
    lines = []
    for (topics, partitions), state in states.items():
        taken = min(isr_change(state) for _ in range(bench.repeats))
        judged = topics * partitions >= 99_990
        target, passed = ("<= 1,000 us", taken <= 1000) if judged else ("", None)
        lines.append(Line(f"{topics:,} topics of {partitions:,}", taken, "us", None, target, passed))
    yield Group("cluster_rules", "a leader changes an ISR", lines, f"Median of {CHANGES} changes.")

    counts, lines = [100, 1000, 10_000], []
    costs = {count: min(creation(count) for _ in range(bench.repeats)) for count in counts}
    for count, cost in costs.items():
        ratio, judged = cost / costs[counts[0]], count == counts[-1]
        target, passed = ("<= 2, linear", ratio <= 2) if judged else ("", None)
        lines.append(Line(f"{count:,} topics", cost, "us", ratio, target, passed))
    yield Group("cluster_rules", "create a topic of one partition, the mean over all of them", lines)

    large, sent = states[1000, 100], built(*SENT)
    lost = RemoveNode(1, large.nodes[1].incarnation)
    with bench.scratch("cluster_rules") as path:
        path.mkdir(exist_ok=True)
        stored = str(path / "cluster.json")
        lines = [
            Line("a node is gone, 100,000 partitions", timed(lambda: rules.apply(large, lost)), "ms"),
            Line("preferred leaders, 100,000", timed(lambda: rules.apply(large, ElectPreferred())), "ms"),
            Line("keep a state of 40,000", timed(lambda: write_state_file(stored, StoredState(sent))), "ms"),
            Line(
                "encode it for one node", timed(lambda: wire.to_bytes(ClusterNow(sent), wire.ANSWER, 1)), "ms"
            ),
        ]
    yield Group("cluster_rules", "what visits every partition", lines)


def built(topics: int, partitions: int) -> ClusterState:
    """Return a settled state, whatever its size: more than about 60,000 partitions cannot be sent."""
    spread = [tuple((number + step) % NODES + 1 for step in range(REPLICAS)) for number in range(NODES)]
    parts = tuple(
        PartitionState(replicas, replicas, replicas[0], 0, 1)
        for replicas in (spread[number % NODES] for number in range(partitions))
    )
    found = {f"topic-{number}": TopicState(new_id(), {}, parts) for number in range(topics)}
    return rules.begun(replace(alive(), topics=found), new_id(), 1, 100)


def alive() -> ClusterState:
    state = ClusterState()
    for node_id in range(1, NODES + 1):
        state = rules.apply(state, JoinNode(node_id, f"host:{node_id}", clean=True))
    return state


def isr_change(state: ClusterState) -> float:
    """Return the microseconds of a change, over changes all over the cluster."""
    lives = {node_id: node.incarnation for node_id, node in state.nodes.items()}
    names, taken = list(state.topics), []
    for number in range(CHANGES):
        topic = state.topics[names[number % len(names)]]
        name = TopicPartition(names[number % len(names)], number * 37 % len(topic.partitions))
        one = topic.partitions[name.partition]
        isr = one.replicas if len(one.isr) < REPLICAS else one.isr[:2]
        assert one.leader is not None
        change = ChangeIsr(name, topic.topic_id, one.leader, one.leader_epoch, one.version, isr, lives)
        start = process_time_ns()
        state = rules.apply(state, change)
        taken.append(process_time_ns() - start)
    return median(taken) / 1000


def creation(topics: int) -> float:
    """Return the microseconds that one of these topics takes to create."""
    state, commands = alive(), [CreateTopic(f"topic-{number}", 1, REPLICAS) for number in range(topics)]
    start = process_time_ns()
    for command in commands:
        state = rules.apply(state, command)
    return (process_time_ns() - start) / topics / 1000


def timed(call: Callable[[], object]) -> float:
    """Return the milliseconds of the best of three calls."""
    taken = []
    for _ in range(3):
        start = process_time_ns()
        call()
        taken.append(process_time_ns() - start)
    return min(taken) / 1_000_000
