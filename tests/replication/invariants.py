"""What must hold in every state of a cluster, and from each state to the next."""

from __future__ import annotations

from commitlog.replication.cluster import ClusterState, PartitionState


def check_state(state: ClusterState) -> None:
    for topic in state.topics.values():
        for one in topic.partitions:
            check_partition(state, one)
            assert one.version <= state.version


def check_partition(state: ClusterState, one: PartitionState) -> None:
    assert one.replicas and len(set(one.replicas)) == len(one.replicas)
    assert one.isr == tuple(node_id for node_id in one.replicas if node_id in one.isr)
    assert one.isr
    alive = [member for member in one.isr if member in state.nodes]
    if one.awaits is not None:
        assert one.leader is None
    elif alive:
        assert alive == list(one.isr)
        assert one.leader in one.isr
        stay = [member for member in alive if not state.nodes[member].leaving]
        assert not stay or stay == alive
    else:
        assert one.leader is None
    if one.target is not None:
        assert set(one.target) <= set(one.replicas)
        # a partition whose records were on a lost disk settles, and with it its move, when that is back
        assert one.awaits is not None or not set(one.target) <= set(one.isr)


def check_step(before: ClusterState, after: ClusterState, let_in: frozenset[int] = frozenset()) -> None:
    """Check a step; `let_in` are those whom a leader's proposal lets into the ISR with it."""
    assert after.version >= before.version
    assert (after == before) == (after.version == before.version)
    for node_id, node in after.nodes.items():
        known = before.nodes.get(node_id)
        assert known is None or known.incarnation <= node.incarnation
    for name, topic in before.topics.items():
        if name not in after.topics:
            assert topic.topic_id in after.deleted
    for name, topic in after.topics.items():
        earlier = before.topics.get(name)
        if earlier is None or earlier.topic_id != topic.topic_id:
            assert earlier is None or earlier.topic_id in after.deleted
            continue
        unclean = topic.config.get("unclean_leader_election_enable", False)
        for old, new in zip(earlier.partitions, topic.partitions, strict=False):
            check_partition_step(old, new, frozenset() if unclean else frozenset(old.isr) | let_in)


def check_partition_step(old: PartitionState, new: PartitionState, may_lead: frozenset[int]) -> None:
    """`may_lead` are those who had all records before; empty if anybody may."""
    assert new.version >= old.version
    assert (new == old) == (new.version == old.version)
    assert new.leader_epoch >= old.leader_epoch
    if new.leader is not None and new.leader != old.leader:
        assert new.leader_epoch > old.leader_epoch
    if may_lead:
        assert set(new.isr) <= may_lead
