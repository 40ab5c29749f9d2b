from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from commitlog.config import TopicConfig
from commitlog.errors import (
    ClusterTooLargeError,
    CommitLogError,
    ConfigError,
    FencedEpochError,
    InvalidReplicasError,
    InvalidTopicError,
    IsrRefusedError,
    NotLeaderError,
    StaleNodeError,
    TopicExistsError,
    TopicReplacedError,
    UnknownEpochError,
    UnknownPartitionError,
    UnknownTopicError,
)
from commitlog.ids import new_id
from commitlog.record import TopicPartition
from commitlog.replication import rules
from commitlog.replication.cluster import ClusterState, PartitionState, TopicState
from commitlog.replication.commands import (
    AddPartitions,
    AlterTopic,
    ChangeIsr,
    CreateTopic,
    DeleteTopic,
    ElectPreferred,
    JoinNode,
    LeaveNode,
    Reassign,
    RegisterNodes,
    Registration,
    RemoveNode,
)
from commitlog.replication.messages import ClusterNow
from commitlog.replication.rules import alive, apply, begun, handed_over
from commitlog.replication.transports import wire
from replication.invariants import check_state

ORDERS = TopicPartition("orders", 0)
UNCLEAN = {"unclean_leader_election_enable": True}


def joined(state: ClusterState, node_id: int, address: str, *, clean: bool, **about: Any) -> ClusterState:
    return apply(state, JoinNode(node_id, address, clean, **about))


def gone(state: ClusterState, *node_ids: int) -> ClusterState:
    left = {node_id: one for node_id, one in alive(state).items() if node_id not in node_ids}
    return apply(state, RegisterNodes(left))


def leaving(state: ClusterState, node_id: int) -> ClusterState:
    return apply(state, LeaveNode(node_id, state.nodes[node_id].incarnation))


def created(
    state: ClusterState, name: str, partitions: int, replicas: int, config: dict[str, Any]
) -> ClusterState:
    return apply(state, CreateTopic(name, partitions, replicas, config))


def deleted(state: ClusterState, name: str) -> ClusterState:
    return apply(state, DeleteTopic(name))


def grown(state: ClusterState, name: str, partitions: int) -> ClusterState:
    return apply(state, AddPartitions(name, partitions))


def moved(state: ClusterState, name: TopicPartition, replicas: list[int]) -> ClusterState:
    return apply(state, Reassign(name, tuple(replicas)))


def cluster(nodes: int) -> ClusterState:
    state = ClusterState()
    for node_id in range(1, nodes + 1):
        state = joined(state, node_id, f"host:{node_id}", clean=True)
    return state


def with_orders(nodes: int = 3, replicas: int = 3, **config: object) -> ClusterState:
    return created(cluster(nodes), "orders", 1, replicas, config)


def orders(state: ClusterState) -> PartitionState:
    found = state.partition(ORDERS)
    assert found is not None
    check_state(state)
    return found


def proposal(state: ClusterState, *isr: int) -> ChangeIsr:
    one = orders(state)
    assert one.leader is not None
    incarnations = {node_id: node.incarnation for node_id, node in state.nodes.items()}
    topic_id = state.topics["orders"].topic_id
    return ChangeIsr(ORDERS, topic_id, one.leader, one.leader_epoch, one.version, isr, incarnations)


def with_isr(state: ClusterState, *isr: int) -> ClusterState:
    return apply(state, proposal(state, *isr))


# --- nodes


def test_a_new_topic_is_led_by_its_first_replica_and_all_are_in_sync() -> None:
    assert orders(with_orders()) == PartitionState((1, 2, 3), (1, 2, 3), 1, 0, 4)


def test_every_life_of_a_node_has_an_incarnation_of_its_own() -> None:
    first = joined(ClusterState(), 1, "host:1", clean=True)
    second = joined(first, 1, "host:1", clean=True)
    third = joined(gone(second, 1), 1, "host:2", clean=False)
    seen = [state.nodes[1].incarnation for state in (first, second, third)]
    assert sorted(set(seen)) == seen
    assert third.nodes[1].address == "host:2"


def seen(state: ClusterState, **changes: bool | None) -> dict[int, Registration]:
    """Those who are alive; n2=False: node 2 has joined anew, not clean; n2=None: it is gone."""
    found = {node_id: Registration("host", node.incarnation, True) for node_id, node in state.nodes.items()}
    for name, clean in changes.items():
        node_id = int(name[1:])
        if clean is None:
            del found[node_id]
        else:
            found[node_id] = Registration("host", 1000 + node_id, clean)
    return found


def test_incarnations_may_come_from_outside() -> None:
    state = apply(ClusterState(), RegisterNodes({1: Registration("host", 77, True)}))
    assert state.nodes[1].incarnation == 77
    assert apply(state, RegisterNodes(alive(state))) is state


def test_when_all_but_one_are_gone_and_that_one_has_begun_anew_nobody_leads() -> None:
    state = with_orders()
    after = apply(state, RegisterNodes(seen(state, n1=None, n2=False, n3=None)))
    assert (orders(after).leader, orders(after).isr) == (None, (1, 3))


def test_when_a_leader_is_gone_while_another_begins_anew_the_one_that_stayed_leads() -> None:
    state = with_orders()
    after = orders(apply(state, RegisterNodes(seen(state, n1=None, n2=True))))
    assert (after.leader, after.leader_epoch, after.isr) == (3, 1, (3,))


def test_when_a_leader_is_gone_the_next_in_sync_leads_in_a_new_epoch() -> None:
    after = orders(gone(with_orders(), 1))
    assert (after.leader, after.leader_epoch, after.isr) == (2, 1, (2, 3))


def test_a_replica_that_is_not_in_sync_is_not_elected() -> None:
    after = orders(gone(with_isr(with_orders(), 1, 3), 1))
    assert (after.leader, after.isr) == (3, (3,))


def test_when_a_follower_is_gone_it_leaves_the_isr_in_the_same_epoch() -> None:
    after = orders(gone(with_orders(), 2))
    assert (after.leader, after.leader_epoch, after.isr) == (1, 0, (1, 3))


def test_the_last_in_sync_stays_in_the_isr_and_leads_again_when_it_is_back() -> None:
    state = gone(gone(gone(with_orders(), 2), 3), 1)
    assert (orders(state).leader, orders(state).isr) == (None, (1,))
    state = joined(state, 2, "host:2", clean=True)
    assert orders(state).leader is None
    after = orders(joined(state, 1, "host:1", clean=False))
    assert (after.leader, after.leader_epoch, after.isr) == (1, 1, (1,))


def test_who_has_stopped_clean_together_with_all_others_leads_at_once() -> None:
    state = gone(with_orders(), 1, 2, 3)
    assert (orders(state).leader, orders(state).isr) == (None, (1, 2, 3))
    after = orders(joined(state, 2, "host:2", clean=True))
    assert (after.leader, after.leader_epoch, after.isr) == (2, 1, (2,))


def test_when_all_have_crashed_together_those_who_are_back_leave_the_isr_but_the_last() -> None:
    state = gone(with_orders(), 1, 2, 3)
    state = joined(joined(state, 1, "h", clean=False), 3, "h", clean=False)
    assert (orders(state).leader, orders(state).isr) == (None, (2,))
    assert orders(joined(state, 2, "h", clean=False)).leader == 2


@pytest.mark.parametrize("clean", [True, False])
def test_a_leader_that_is_back_before_it_was_missed_has_lost_its_place(clean: bool) -> None:
    after = orders(joined(with_orders(), 1, "host:1", clean=clean))
    assert (after.leader, after.leader_epoch, after.isr) == (2, 1, (2, 3))


def test_the_only_member_that_is_back_before_it_was_missed_leads_in_a_new_epoch() -> None:
    after = orders(joined(with_isr(with_orders(**UNCLEAN), 1), 1, "host:1", clean=False))
    assert (after.leader, after.leader_epoch, after.isr) == (1, 1, (1,))


def test_a_follower_that_is_back_before_it_was_missed_leaves_the_isr() -> None:
    after = orders(joined(with_orders(), 3, "host:3", clean=False))
    assert (after.leader, after.leader_epoch, after.isr) == (1, 0, (1, 2))


def test_unclean_election_is_only_made_where_the_topic_allows_it() -> None:
    alone = gone(with_isr(with_orders(), 1), 1)
    assert orders(alone).leader is None
    after = orders(gone(with_isr(with_orders(**UNCLEAN), 1), 1))
    assert (after.leader, after.leader_epoch, after.isr) == (2, 1, (2,))


def test_an_unclean_election_waits_for_a_replica_that_is_alive() -> None:
    state = gone(with_orders(**UNCLEAN), 1, 2, 3)
    assert (orders(state).leader, orders(state).isr) == (None, (1, 2, 3))
    after = orders(joined(state, 3, "host:3", clean=False))
    assert (after.leader, after.isr) == (3, (3,))


def test_a_node_that_leaves_hands_over_and_leaves_the_isr() -> None:
    state = leaving(with_orders(), 1)
    after = orders(state)
    assert (after.leader, after.leader_epoch, after.isr) == (2, 1, (2, 3))
    assert handed_over(state, 1)
    assert leaving(state, 1) is state


def test_a_node_that_leaves_keeps_what_nobody_can_take_over_until_somebody_can() -> None:
    state = leaving(with_isr(with_orders(), 1), 1)
    assert (orders(state).leader, orders(state).isr) == (1, (1,))
    assert not handed_over(state, 1)
    state = with_isr(state, 1, 2)
    assert (orders(state).leader, orders(state).isr, orders(state).leader_epoch) == (2, (2,), 1)
    assert handed_over(state, 1)


def test_a_node_that_leaves_does_not_wait_for_a_partition_that_is_nowhere_else() -> None:
    assert handed_over(leaving(with_orders(3, 1), 1), 1)


def test_a_node_that_leaves_is_not_let_in_again() -> None:
    state = leaving(with_orders(), 3)
    with pytest.raises(IsrRefusedError, match="node 3 is about to stop"):
        with_isr(state, 1, 2, 3)


def test_the_first_replica_leads_again_when_it_is_asked_for_and_in_sync() -> None:
    state = joined(gone(with_orders(), 1), 1, "host:1", clean=True)
    assert apply(state, ElectPreferred()) is state
    state = with_isr(state, 1, 2, 3)
    after = orders(apply(state, ElectPreferred()))
    assert (after.leader, after.leader_epoch, after.isr) == (1, 2, (1, 2, 3))


# --- ISR


def test_an_isr_that_shrinks_and_grows_keeps_leader_and_epoch() -> None:
    state = with_isr(with_orders(), 1)
    assert orders(state).isr == (1,)
    after = orders(with_isr(state, 3, 1))
    assert (after.isr, after.leader, after.leader_epoch) == ((1, 3), 1, 0)


def test_what_is_so_already_changes_nothing() -> None:
    state = with_orders()
    assert with_isr(state, 1, 2, 3) is state


Wrong = Callable[[ChangeIsr], ChangeIsr]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda change: replace(change, version=change.version - 1), IsrRefusedError),
        (lambda change: replace(change, leader_epoch=0), FencedEpochError),
        (lambda change: replace(change, leader_epoch=2), UnknownEpochError),
        (lambda change: replace(change, leader=3), NotLeaderError),
        (lambda change: replace(change, isr=()), IsrRefusedError),
        (lambda change: replace(change, isr=(2, 3, 4)), IsrRefusedError),
        (lambda change: replace(change, isr=(1, 2, 3)), IsrRefusedError),
        (lambda change: replace(change, incarnations={**change.incarnations, 3: 1}), IsrRefusedError),
        (lambda change: replace(change, incarnations={**change.incarnations, 2: 1}), IsrRefusedError),
        (lambda change: replace(change, incarnations={2: change.incarnations[2]}), IsrRefusedError),
        (lambda change: replace(change, name=TopicPartition("orders", 1)), UnknownPartitionError),
        (lambda change: replace(change, name=TopicPartition("other", 0)), UnknownTopicError),
    ],
)
def test_a_proposal_that_does_not_count_is_refused(wrong: Wrong, error: type[CommitLogError]) -> None:
    state = gone(with_orders(4), 1)
    assert with_isr(state, 2, 3) is state
    with pytest.raises(error):
        apply(state, wrong(proposal(state, 2, 3)))


def test_a_leader_that_leaves_itself_out_resigns_to_one_that_is_in_sync() -> None:
    state = with_orders()
    after = orders(with_isr(state, 2, 3))
    assert (after.leader, after.leader_epoch, after.isr) == (2, orders(state).leader_epoch + 1, (2, 3))


def test_a_leader_does_not_resign_to_one_that_is_not_in_sync() -> None:
    state = with_isr(with_orders(), 1, 2)
    with pytest.raises(IsrRefusedError, match="replicas that are not in sync"):
        with_isr(state, 2, 3)


def test_who_has_joined_again_since_it_was_heard_is_not_let_in() -> None:
    before = with_isr(with_orders(), 1)
    heard = proposal(before, 1, 2)
    state = joined(before, 2, "host:2", clean=False)
    with pytest.raises(IsrRefusedError, match="node 2 has joined again since"):
        apply(state, heard)


def test_the_leader_of_a_topic_that_was_created_again_has_no_say() -> None:
    earlier = with_orders()
    heard = proposal(earlier, 1)
    state = created(deleted(earlier, "orders"), "orders", 1, 3, {})
    assert orders(state).leader_epoch == heard.leader_epoch
    with pytest.raises(TopicReplacedError):
        apply(state, replace(heard, leader=orders(state).leader or 0))


# --- topics


@pytest.mark.parametrize(("nodes", "partitions", "replicas"), [(3, 6, 2), (4, 24, 3), (5, 20, 4), (1, 3, 1)])
def test_replicas_and_leaders_are_spread_evenly(nodes: int, partitions: int, replicas: int) -> None:
    state = created(cluster(nodes), "orders", partitions, replicas, {})
    check_state(state)
    found = state.topics["orders"].partitions
    leaders = Counter(one.leader for one in found)
    assert set(leaders.values()) == {partitions // nodes}
    places = Counter(node_id for one in found for node_id in one.replicas)
    assert set(places.values()) == {partitions * replicas // nodes}


def test_those_who_take_over_from_a_node_are_not_all_the_same_one() -> None:
    state = created(cluster(4), "orders", 12, 3, {})
    first_of_one = {one.replicas[1] for one in state.topics["orders"].partitions if one.leader == 1}
    assert first_of_one == {2, 3, 4}


def test_topics_of_one_partition_are_spread_too() -> None:
    state = cluster(3)
    for name in ("a", "b", "c"):
        state = created(state, name, 1, 1, {})
    assert {topic.partitions[0].leader for topic in state.topics.values()} == {1, 2, 3}


def test_a_node_that_leaves_gets_nothing_new() -> None:
    state = created(leaving(cluster(3), 2), "orders", 4, 2, {})
    assert all(one.replicas in ((1, 3), (3, 1)) for one in state.topics["orders"].partitions)


def test_a_topic_that_cannot_be_is_refused() -> None:
    state = with_orders()
    with pytest.raises(TopicExistsError):
        created(state, "orders", 1, 1, {})
    with pytest.raises(InvalidTopicError):
        created(state, "no/slash", 1, 1, {})
    with pytest.raises(InvalidReplicasError, match="4 replicas on 3 nodes"):
        created(state, "other", 1, 4, {})
    with pytest.raises(InvalidReplicasError):
        created(state, "other", 1, 0, {})
    with pytest.raises(InvalidReplicasError):
        created(state, "other", 0, 1, {})
    with pytest.raises(ConfigError):
        created(state, "other", 1, 1, {"retention_ms": "soon"})


def test_settings_are_kept_under_our_names_and_only_where_they_differ() -> None:
    given = {"min.insync.replicas": "2", "unclean.leader.election.enable": "true", "retention_ms": 604800000}
    state = created(cluster(1), "orders", 1, 1, given)
    assert state.topics["orders"].config == {"min_insync_replicas": 2, **UNCLEAN}


def test_a_topic_is_deleted_and_may_be_created_again_as_another() -> None:
    state = with_orders()
    without = deleted(state, "orders")
    assert without.topics == {}
    again = created(without, "orders", 1, 3, {})
    assert without.deleted[state.topics["orders"].topic_id].name == "orders"
    assert again.topics["orders"].topic_id != state.topics["orders"].topic_id
    with pytest.raises(UnknownTopicError):
        deleted(without, "orders")


def test_a_topic_that_is_created_twice_because_an_answer_was_lost_is_there_once() -> None:
    command = CreateTopic("orders", 2)
    state = apply(cluster(1), command)
    assert apply(state, command) is state
    with pytest.raises(TopicExistsError):
        apply(state, CreateTopic("orders", 2))


@pytest.mark.parametrize("of", ["a topic", "a deleted topic", "nobody"])
def test_a_topic_does_not_get_an_id_that_another_one_has_or_had(of: str) -> None:
    state = with_orders()
    ids = {"a topic": state.topics["orders"].topic_id, "a deleted topic": "", "nobody": "../../etc/passwd"}
    if of == "a deleted topic":
        ids[of] = state.topics["orders"].topic_id
        state = deleted(state, "orders")
    with pytest.raises(InvalidReplicasError, match="not the id of a new topic"):
        apply(state, CreateTopic("other", topic_id=ids[of]))


def test_a_command_touches_only_the_partitions_that_it_concerns() -> None:
    state = created(created(cluster(4), "orders", 1, 3, {}), "other", 3, 2, {})
    after = with_isr(state, 1, 2)
    assert after.topics["other"] is state.topics["other"]
    after = apply(state, RemoveNode(4, state.nodes[4].incarnation))
    for before, one in zip(state.topics["other"].partitions, after.topics["other"].partitions, strict=True):
        assert (one is before) == (4 not in before.replicas)


def test_a_controller_that_begins_settles_what_the_last_one_left_half_done() -> None:
    """It may have stopped between two transactions of a change, as one of ZooKeeper's does."""
    state = with_orders()
    half = replace(state, nodes={key: node for key, node in state.nodes.items() if key != 1})
    after = begun(half, "next", 7, 70)
    assert (orders(after).leader, orders(after).isr, orders(after).version) == (2, (2, 3), 70)
    assert (after.epoch, after.version) == (7, 70)


def test_partitions_are_added_with_as_many_replicas() -> None:
    state = grown(with_orders(3, 2), "orders", 3)
    check_state(state)
    found = state.topics["orders"].partitions
    assert found[0] == orders(with_orders(3, 2))
    assert [len(one.replicas) for one in found] == [2, 2, 2]
    assert {one.leader for one in found} == {1, 2, 3}
    assert grown(state, "orders", 3) is state
    with pytest.raises(InvalidReplicasError):
        grown(state, "orders", 2)


# --- moves


def test_a_partition_moves_once_all_new_replicas_are_in_sync() -> None:
    state = moved(with_orders(4, 2), ORDERS, [3, 4])
    assert (orders(state).replicas, orders(state).target) == ((1, 2, 3, 4), (3, 4))
    state = with_isr(state, 1, 2, 3)
    assert orders(state).target == (3, 4)
    after = orders(with_isr(state, 1, 2, 3, 4))
    assert (after.replicas, after.isr, after.leader, after.leader_epoch) == ((3, 4), (3, 4), 3, 1)
    assert after.target is None


def test_a_leader_that_stays_where_the_partition_moves_leads_on_in_a_new_epoch() -> None:
    """So a late fetch of a replica that has removed its records is not taken for one of these days."""
    state = moved(with_orders(3, 2), ORDERS, [3, 1])
    after = orders(with_isr(state, 1, 2, 3))
    assert (after.replicas, after.leader, after.leader_epoch) == ((3, 1), 1, 1)


def test_a_leader_that_gets_more_replicas_leads_on_in_the_same_epoch() -> None:
    state = moved(with_orders(3, 2), ORDERS, [1, 2, 3])
    after = orders(with_isr(state, 1, 2, 3))
    assert (after.replicas, after.leader, after.leader_epoch) == ((1, 2, 3), 1, 0)


def test_a_move_to_where_the_partition_is_in_sync_is_done_at_once() -> None:
    after = orders(moved(with_orders(), ORDERS, [3, 2]))
    assert (after.replicas, after.isr, after.leader, after.target) == ((3, 2), (3, 2), 3, None)


def test_a_move_is_taken_back_by_moving_to_where_it_was() -> None:
    state = moved(with_orders(4, 2), ORDERS, [3, 4])
    after = orders(moved(state, ORDERS, [1, 2]))
    assert (after.replicas, after.target, after.leader, after.leader_epoch) == ((1, 2), None, 1, 1)


def test_a_move_goes_on_when_an_old_replica_is_gone() -> None:
    state = gone(moved(with_orders(4, 2), ORDERS, [3, 4]), 1)
    assert orders(state).leader == 2
    assert orders(with_isr(state, 2, 3, 4)).replicas == (3, 4)


@pytest.mark.parametrize("replicas", [[], [2, 2], [5], [1, 4]])
def test_a_move_that_cannot_be_is_refused(replicas: list[int]) -> None:
    with pytest.raises(InvalidReplicasError):
        moved(leaving(with_orders(4), 4), ORDERS, replicas)


def test_what_concerns_nobody_changes_nothing() -> None:
    state = with_orders()
    assert gone(state, 9) is state
    assert apply(state, RemoveNode(3, 99)) is state
    with pytest.raises(StaleNodeError):
        apply(state, LeaveNode(3, 99))
    assert gone(state, 3).topics["orders"] is not state.topics["orders"]
    other = created(state, "other", 1, 1, {})
    assert gone(other, 3).topics["other"] is other.topics["other"]


# --- ids, disks and deletions


def on_disks(*node_ids: int) -> ClusterState:
    state = ClusterState()
    for node_id in node_ids:
        state = joined(state, node_id, "host", clean=True, disk_id=f"disk {node_id}")
    return state


def test_nobody_leads_while_the_only_one_in_sync_comes_back_with_another_disk() -> None:
    state = with_isr(created(on_disks(1, 2), "orders", 1, 2, {}), 1)
    lost = joined(gone(state, 1), 1, "host", clean=False, disk_id="new")
    assert (orders(lost).leader, orders(lost).isr, orders(lost).awaits) == (None, (1,), "disk 1")
    twice = joined(gone(lost, 1), 1, "host", clean=True, disk_id="newer")
    assert orders(twice).awaits == "disk 1"
    back = joined(gone(twice, 1), 1, "host", clean=False, disk_id="disk 1")
    assert (orders(back).leader, orders(back).awaits) == (1, None)
    decided = apply(twice, AlterTopic("orders", UNCLEAN))
    assert (orders(decided).leader, orders(decided).isr, orders(decided).awaits) == (2, (2,), None)
    assert orders(decided).leader_epoch > orders(state).leader_epoch


def test_a_move_to_a_node_that_lost_its_disk_removes_no_replica_before_the_disk_is_back() -> None:
    state = with_isr(created(on_disks(1, 2), "orders", 1, 2, {}), 1)
    lost = joined(gone(state, 1), 1, "host", clean=False, disk_id="new")
    moving = moved(lost, ORDERS, [1])
    one = orders(moving)
    assert (one.replicas, one.target, one.leader, one.awaits) == ((1, 2), (1,), None, "disk 1")
    one = orders(joined(gone(moving, 1), 1, "host", clean=False, disk_id="disk 1"))
    assert (one.replicas, one.target, one.leader, one.awaits) == ((1,), None, 1, None)
    one = orders(apply(moving, AlterTopic("orders", UNCLEAN)))
    assert (one.replicas, one.target, one.leader, one.isr) == ((1, 2), (1,), 2, (2,))


def test_one_of_several_in_sync_that_comes_back_with_another_disk_leaves_the_isr() -> None:
    state = created(on_disks(1, 2, 3), "orders", 1, 3, {})
    after = orders(joined(state, 1, "host", clean=True, disk_id="new"))
    assert (after.leader, after.isr, after.awaits) == (2, (2, 3), None)


def test_a_node_that_does_not_know_its_last_life_may_have_lost_what_it_had_then() -> None:
    before = with_orders().known
    lived = joined(gone(with_orders(), 3), 3, "host", clean=True, known=before)
    lived = with_isr(lived, 1, 2, 3)
    stopped = gone(lived, 1, 2, 3)
    assert orders(joined(stopped, 3, "host", clean=True, known=before)).isr == (1, 2)
    assert orders(joined(stopped, 3, "host", clean=True, known=lived.known)).leader == 3


def test_a_deletion_is_remembered_until_every_member_has_heard_of_it() -> None:
    state = deleted(gone(with_orders(), 3), "orders")
    for node_id in (1, 2):
        state = joined(state, node_id, "host", clean=True, known=state.known)
        assert len(state.deleted) == 1
    away = with_orders().known
    heard = joined(state, 3, "host", clean=True, known=away)
    assert len(heard.deleted) == 1, "node 3 has not heard of it yet"
    assert joined(heard, 3, "host", clean=True, known=heard.known).deleted == {}


def test_a_member_that_has_lost_what_it_knew_still_hears_of_deletions() -> None:
    state = deleted(gone(with_orders(), 3), "orders")
    for node_id in (1, 2):
        state = joined(state, node_id, "host", clean=True, known=state.known)
    back = joined(state, 3, "host", clean=True, known=None)
    assert len(back.deleted) == 1
    assert joined(back, 3, "host", clean=True, known=back.known).deleted == {}


def test_deletions_that_wait_for_a_member_for_ever_do_not_fill_the_state() -> None:
    state = cluster(1)
    for number in range(4000):
        name = f"{'t' * 200}{number}"
        state = replace(state, topics={name: TopicState(new_id(), {}, ())})
        state = deleted(state, name)
    assert 500 < len(state.deleted) < 2000
    assert list(state.deleted.values())[-1].name.endswith("t3999")


def test_settings_with_which_the_state_could_not_be_sent_any_more_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = created(cluster(3), "t", 1, 3, {})
    monkeypatch.setattr(rules, "MOST_TOPICS_BYTES", 0)
    with pytest.raises(ClusterTooLargeError):
        apply(state, AlterTopic("t", {"retention_ms": 1_000}))
    large = replace(state, topics={"t": replace(state.topics["t"], config={"retention_ms": 1_000})})
    smaller = apply(large, AlterTopic("t", {"retention_ms": TopicConfig().retention_ms}))
    assert smaller.topics["t"].config == {}


def test_a_topic_with_which_the_state_could_not_be_sent_any_more_is_refused() -> None:
    state = cluster(3)
    with pytest.raises(ClusterTooLargeError):
        for number in range(20):
            state = created(state, f"topic-{number}", 9999, 3, {})
    count = sum(len(topic.partitions) for topic in state.topics.values())
    assert count > 47_000
    with pytest.raises(ClusterTooLargeError):
        grown(created(state, "one-more", 1, 3, {}), "one-more", 9999)
    later = {
        name: replace(
            topic,
            partitions=tuple(replace(one, leader_epoch=10**6, version=10**10) for one in topic.partitions),
        )
        for name, topic in state.topics.items()
    }
    assert wire.encode(ClusterNow(replace(state, topics=later)), wire.ANSWER, 1, 100 << 20).size < 4 << 20
