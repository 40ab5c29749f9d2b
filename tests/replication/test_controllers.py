"""What every controller promises: the same tests for each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from helpers import wait_until

from commitlog.errors import (
    ConfigError,
    InvalidReplicasError,
    InvalidTopicError,
    TopicExistsError,
    UnknownPartitionError,
    UnknownTopicError,
)
from commitlog.record import TopicPartition
from commitlog.replication.cluster import ClusterState, PartitionState
from commitlog.replication.commands import (
    AddPartitions,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    ElectPreferred,
    Reassign,
)
from replication.rigs import ORDERS, Fencing, Listener, Rig, ServedRig, StaticRig

FENCING = ["served", "served over tcp", "zookeeper"]


LONG_MS, SHORT_MS = 30_000, 2000  # sessions: short ones only where nodes are to be lost


def made(request: pytest.FixtureRequest, session_timeout_ms: int) -> Any:
    if request.param == "static":
        return StaticRig()
    if request.param == "zookeeper":
        server = request.getfixturevalue("zookeeper")
        from replication.zookeeper_rig import ZooKeeperRig

        return ZooKeeperRig(server, session_timeout_ms)
    return ServedRig(session_timeout_ms, over_tcp=request.param == "served over tcp")


@pytest.fixture(params=["static", *FENCING])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    one = made(request, LONG_MS)
    yield one
    one.close()


@pytest.fixture(params=["static", *FENCING])
def mortal(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """A rig whose nodes are to be killed."""
    one = made(request, SHORT_MS)
    yield one
    one.close()


@pytest.fixture(params=FENCING)
def fencing(request: pytest.FixtureRequest) -> Iterator[Fencing]:
    """A rig whose nodes are to be cut off."""
    one = made(request, SHORT_MS)
    yield one
    one.close()


def started(rig: Rig, nodes: int = 3) -> list[Listener]:
    listeners = [rig.node(node_id) for node_id in range(1, nodes + 1)]
    for listener in listeners:
        listener.join()
    everybody = set(range(1, nodes + 1))
    wait_until(lambda: all(set(listener.state.nodes) == everybody for listener in listeners))
    return listeners


def with_orders(rig: Rig, nodes: int = 3, replicas: int = 3, **config: object) -> list[Listener]:
    listeners = started(rig, nodes)
    listeners[-1].controller.submit(CreateTopic("orders", 1, replicas, config))
    wait_until(lambda: all("orders" in listener.state.topics for listener in listeners))
    return listeners


def until(listener: Listener, condition: Callable[[PartitionState], bool]) -> PartitionState:
    """Wait until a node has heard of such a state of the partition; returns it."""

    def heard() -> bool:
        one = listener.orders()
        return one is not None and condition(one)

    wait_until(heard)
    found = listener.orders()
    assert found is not None
    return found


def until_led_by(listener: Listener, leader: int | None) -> PartitionState:
    return until(listener, lambda one: one.leader == leader)


def until_isr(listener: Listener, *isr: int) -> PartitionState:
    return until(listener, lambda one: one.isr == isr)


# --- nodes


def test_a_node_that_joins_hears_of_itself_and_the_others_of_it(rig: Rig) -> None:
    first, second = rig.node(1), rig.node(2)
    incarnation = first.join()
    wait_until(lambda: 1 in first.state.nodes)
    assert first.incarnation == incarnation
    second.join()
    wait_until(lambda: 2 in first.state.nodes and 1 in second.state.nodes)
    assert first.state.nodes[2].address == "host:2"
    assert first.controller.state().nodes == second.controller.state().nodes


def test_a_node_hears_of_no_state_before_it_joined(rig: Rig) -> None:
    for listener in with_orders(rig):
        assert all(listener.node_id in state.nodes for state in listener.heard)


def test_when_a_node_dies_the_next_in_sync_leads(mortal: Rig) -> None:
    first, second, third = with_orders(mortal)
    assert until_led_by(second, 1).leader_epoch == 0
    mortal.kill(first)
    after = until_led_by(third, 2)
    assert (after.leader_epoch, after.isr) == (1, (2, 3))


def test_a_node_that_stops_is_gone_at_once(rig: Rig) -> None:
    first, second, _ = with_orders(rig)
    first.controller.gone(1)
    assert until_led_by(second, 2).isr == (2, 3)
    assert 1 not in second.state.nodes


def test_only_the_one_that_was_in_sync_leads_again(mortal: Rig) -> None:
    first, second, third = with_orders(mortal)
    until_led_by(first, 1)
    assert first.decided(first.proposal(1))
    mortal.kill(first)
    until_led_by(second, None)
    again = mortal.node(1)
    incarnation = again.join(clean=False)
    after = until_led_by(third, 1)
    assert (after.leader_epoch, after.isr) == (1, (1,))
    assert third.state.nodes[1].incarnation == incarnation


def test_a_topic_may_prefer_a_leader_to_its_records(mortal: Rig) -> None:
    first, second, _ = with_orders(mortal, unclean_leader_election_enable=True)
    until_led_by(first, 1)
    assert first.decided(first.proposal(1))
    mortal.kill(first)
    assert until_led_by(second, 2).isr == (2,)


@pytest.mark.parametrize("clean", [True, False])
def test_a_node_that_is_back_before_it_was_missed_has_another_incarnation_and_lost_its_place(
    rig: Rig, clean: bool
) -> None:
    first, second, _ = with_orders(rig)
    earlier = first.incarnation
    again = rig.node(1)
    assert again.join(clean=clean) > earlier
    after = until_led_by(second, 2)
    assert (after.leader_epoch, after.isr) == (1, (2, 3))
    wait_until(lambda: again.heard)
    assert again.heard[0].nodes[1].incarnation > earlier


def test_a_node_that_leaves_hands_over_first(rig: Rig) -> None:
    first, second, _ = with_orders(rig)
    assert first.controller.leave(1, 10_000)
    after = until_led_by(second, 2)
    assert (after.leader_epoch, after.isr) == (1, (2, 3))
    assert 1 in second.state.nodes
    first.controller.gone(1)
    wait_until(lambda: 1 not in second.state.nodes)
    assert until_led_by(second, 2).leader_epoch == 1


def test_a_node_that_leaves_waits_for_a_replica_to_come_in_sync(rig: Rig) -> None:
    first, second, _ = with_orders(rig)
    until_led_by(first, 1)
    assert first.decided(first.proposal(1))
    assert not first.controller.leave(1, 1)
    wait_until(lambda: first.state.nodes[1].leaving)
    assert first.decided(first.proposal(1, 2))
    assert first.controller.leave(1, 10_000)
    assert until_led_by(second, 2).isr == (2,)


def test_the_first_replicas_lead_again_when_that_is_asked_for(rig: Rig) -> None:
    first, second, third = with_orders(rig)
    first.controller.gone(1)
    until_led_by(second, 2)
    again = rig.node(1)
    again.join(clean=True)
    wait_until(lambda: 1 in second.state.nodes)
    assert second.decided(second.proposal(1, 2, 3))
    third.controller.submit(ElectPreferred())
    after = until_led_by(third, 1)
    assert (after.leader_epoch, after.isr) == (2, (1, 2, 3))


# --- ISR


def test_a_leader_is_told_the_new_state_and_then_that_its_proposal_counts(rig: Rig) -> None:
    first, second, _ = with_orders(rig)
    until_led_by(first, 1)
    assert first.decided(first.proposal(1, 3))
    counts, heard = first.decisions[-1]
    one = heard.partition(ORDERS)
    assert counts and one is not None and one.isr == (1, 3)
    assert until_isr(second, 1, 3).leader_epoch == 0
    assert first.decided(first.proposal(1, 2, 3))


def test_of_two_proposals_for_the_same_version_one_counts(rig: Rig) -> None:
    first, _, _ = with_orders(rig)
    until_led_by(first, 1)
    shrinks = [first.proposal(1, 2), first.proposal(1, 3)]
    for change in shrinks:
        first.propose(change)
    wait_until(lambda: len(first.decisions) == 2)
    assert sorted(counts for counts, _ in first.decisions) == [False, True]
    refused = next(heard for counts, heard in first.decisions if not counts)
    one = refused.partition(ORDERS)
    assert one is not None and len(one.isr) == 2, "what it was refused for was heard before"


def test_who_does_not_lead_cannot_change_the_isr(rig: Rig) -> None:
    _, second, third = with_orders(rig)
    until_led_by(second, 1)
    assert not second.decided(second.proposal(2, 3))
    assert until_led_by(third, 1).isr == (1, 2, 3)


def test_who_was_elected_before_cannot_change_the_isr(rig: Rig) -> None:
    first, second, _ = with_orders(rig)
    until_led_by(first, 1)
    earlier = first.proposal(1)
    first.controller.leave(1, 10_000)
    now = until_led_by(first, 2)
    assert not first.decided(earlier)
    assert not first.decided(replace(earlier, version=now.version))
    assert until_led_by(second, 2).isr == (2, 3)


def test_a_member_that_has_joined_again_since_is_not_let_in(rig: Rig) -> None:
    first, _, third = with_orders(rig)
    until_led_by(first, 1)
    assert first.decided(first.proposal(1, 3))
    earlier = first.state.nodes[2].incarnation
    rig.node(2).join(clean=False)
    wait_until(lambda: 2 in first.state.nodes and first.state.nodes[2].incarnation != earlier)
    change = first.proposal(1, 2, 3)
    assert not first.decided(replace(change, incarnations={**change.incarnations, 2: earlier}))
    assert first.decided(first.proposal(1, 2, 3))
    until_isr(third, 1, 2, 3)


# --- topics


def test_a_topic_is_created_once_and_by_any_node(rig: Rig) -> None:
    first, second, third = started(rig)
    second.controller.submit(CreateTopic("orders", 6, 2, {"retention.ms": "1000"}))
    wait_until(lambda: all("orders" in listener.state.topics for listener in (first, second, third)))
    topic = first.state.topics["orders"]
    assert topic.config == {"retention_ms": 1000}
    assert sorted(one.leader for one in topic.partitions if one.leader) == [1, 1, 2, 2, 3, 3]
    with pytest.raises(TopicExistsError):
        third.controller.submit(CreateTopic("orders", 1, 1, {}))


def test_what_cannot_be_is_refused_with_its_own_error(rig: Rig) -> None:
    first, _, _ = with_orders(rig)
    with pytest.raises(InvalidReplicasError, match="4 replicas on 3 nodes"):
        first.controller.submit(CreateTopic("other", 1, 4, {}))
    with pytest.raises(InvalidTopicError):
        first.controller.submit(CreateTopic("no/slash", 1, 1, {}))
    with pytest.raises(UnknownTopicError):
        first.controller.submit(DeleteTopic("other"))
    with pytest.raises(UnknownPartitionError):
        first.controller.submit(Reassign(TopicPartition("orders", 7), (1,)))
    with pytest.raises(InvalidReplicasError):
        first.controller.submit(Reassign(ORDERS, (9,)))


def test_settings_of_a_topic_change_for_all(rig: Rig) -> None:
    first, second, third = with_orders(rig)
    before = first.state.topics["orders"].partitions
    second.controller.submit(AlterTopic("orders", {"retention.ms": 5000, "min_insync_replicas": 2}))
    wait_until(lambda: third.state.topics["orders"].config.get("retention_ms") == 5000)
    third.controller.submit(AlterTopic("orders", {"min_insync_replicas": 1}))  # the default again
    wait_until(lambda: first.state.topics["orders"].config == {"retention_ms": 5000})
    assert first.state.topics["orders"].partitions == before
    with pytest.raises(UnknownTopicError):
        first.controller.submit(AlterTopic("other", {}))
    with pytest.raises(ConfigError):
        first.controller.submit(AlterTopic("orders", {"retention": 1}))


def test_a_topic_is_deleted_grown_and_created_again_as_another(rig: Rig) -> None:
    first, second, third = with_orders(rig)
    topic_id = first.state.topics["orders"].topic_id
    second.controller.submit(AddPartitions("orders", 3))
    wait_until(lambda: len(third.state.topics["orders"].partitions) == 3)
    third.controller.submit(DeleteTopic("orders"))
    wait_until(lambda: not first.state.topics and not second.state.topics)
    first.controller.submit(CreateTopic("orders", 1, 1, {}))
    wait_until(lambda: "orders" in second.state.topics)
    assert second.state.topics["orders"].topic_id != topic_id


def test_a_partition_moves_once_the_new_replicas_are_in_sync(rig: Rig) -> None:
    first, second, third = with_orders(rig, replicas=2)
    until_led_by(first, 1)
    third.controller.submit(Reassign(ORDERS, (3, 2)))
    moving = until(first, lambda one: one.target is not None)
    assert moving.replicas == (1, 2, 3)
    assert first.decided(first.proposal(1, 2, 3))
    after = until_led_by(second, 3)
    assert (after.replicas, after.isr, after.target) == ((3, 2), (3, 2), None)


# --- fencing


def stripped(state: ClusterState, node_id: int) -> bool:
    return node_id not in state.nodes


def test_a_node_that_was_lost_hears_that_it_is_fenced_and_joins_again(fencing: Fencing) -> None:
    first, second, third = with_orders(fencing)
    earlier, led = first.incarnation, until_led_by(first, 1)
    zombie = first.proposal(1)
    fencing.cut_off(first)
    until_led_by(second, 2)
    heard = len(first.heard)
    fencing.mend(first)
    wait_until(lambda: any(stripped(state, 1) for state in first.heard[heard:]))
    wait_until(lambda: 1 in first.state.nodes)
    assert first.incarnation > earlier
    wait_until(lambda: 1 in third.state.nodes)
    assert until_led_by(third, 2).isr == (2, 3)
    assert not first.decided(zombie)
    assert led.leader_epoch < until_led_by(first, 2).leader_epoch
    assert not any(one.leader == 1 for topic in first.state.topics.values() for one in topic.partitions)


def test_the_only_one_in_sync_that_was_lost_leads_again_in_a_new_epoch(fencing: Fencing) -> None:
    first, second, _ = with_orders(fencing)
    until_led_by(first, 1)
    assert first.decided(first.proposal(1))
    fencing.cut_off(first)
    until_led_by(second, None)
    fencing.mend(first)
    after = until_led_by(second, 1)
    assert (after.leader_epoch, after.isr) == (1, (1,))


def test_a_proposal_from_before_a_node_was_lost_is_never_decided(fencing: Fencing) -> None:
    first, second, _ = with_orders(fencing)
    until_led_by(first, 1)
    fencing.cut_off(first)
    first.propose(first.proposal(1))
    until_led_by(second, 2)
    earlier = first.incarnation
    fencing.mend(first)
    wait_until(lambda: 1 in first.state.nodes and first.incarnation > earlier)
    assert not first.decided(first.proposal(1, 2, 3))
    assert len(first.decisions) == 1
    assert until_led_by(second, 2).isr == (2, 3)


def test_a_process_under_the_id_of_another_takes_its_place_until_it_ends(fencing: Fencing) -> None:
    first, second, _ = with_orders(fencing)
    usurper = fencing.node(1)
    incarnation = usurper.join(clean=False)
    wait_until(lambda: stripped(first.state, 1))
    wait_until(lambda: second.state.nodes[1].incarnation == incarnation)
    second.controller.submit(CreateTopic("later", 1, 1, {}))
    wait_until(lambda: "later" in first.state.topics)
    assert stripped(first.state, 1)
    wait_until(lambda: "later" in usurper.state.topics)  # it is told a moment after join()
    assert usurper.incarnation == incarnation
    usurper.controller.gone(1)
    wait_until(lambda: 1 in first.state.nodes)
    assert first.incarnation > incarnation
