"""Scripts of what happens between a leader, its followers and the controller, one at a time."""

from __future__ import annotations

import logging

import pytest

from commitlog.errors import (
    DiskFullError,
    LeadershipLostError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetOutOfRangeError,
    ReplicationTimeoutError,
)
from commitlog.partitions.epochs import NO_EPOCH
from commitlog.partitions.slices import ReplicaSlice
from commitlog.replication.cluster import ClusterState, NodeState, PartitionState, TopicState
from commitlog.replication.commands import ChangeIsr, ElectPreferred, Reassign
from commitlog.replication.controllers.simulated import CONTROLLER
from commitlog.replication.core.leader import Leader
from commitlog.replication.core.replica import Replica
from commitlog.replication.messages import EpochEnd, Fetch, Fetched, FetchPart, Message
from commitlog.replication.settings import ReplicationConfig

from .little_cluster import ORDERS, LittleCluster
from .memory_log import Disk, MemoryLog

NODES = {number: NodeState(number, str(number), number) for number in (1, 2, 3)}
TOPIC = TopicState("id", {}, ())


def log_of(*batches: tuple[int, int], start_offset: int = 0) -> MemoryLog:
    """A log with these batches, each an epoch and a count of records, and told by its place."""
    log = MemoryLog(Disk(start_offset, restarted_at=start_offset))
    for epoch, count in batches:
        log.lead(epoch)
        log.append(epoch * 1000 + log.next_offset, count)
    log.follow()
    return log


def leading(log: MemoryLog, epoch: int, isr: tuple[int, ...] = (1, 2)) -> Replica:
    """Node 1, which leads; node 2 is the other replica."""
    replica = Replica(ORDERS, 1, TOPIC, log, ReplicationConfig())
    replica.state_changed(PartitionState((1, 2), isr, 1, epoch, epoch), NODES, 1, 0)
    return replica


def following(log: MemoryLog, epoch: int) -> Replica:
    """Node 2, which follows node 1."""
    replica = Replica(ORDERS, 2, TOPIC, log, ReplicationConfig())
    replica.state_changed(PartitionState((1, 2), (1, 2), 1, epoch, epoch), NODES, 1, 0)
    return replica


def ask(follower: Replica) -> FetchPart:
    question = follower.question(1, 0)
    assert isinstance(question, FetchPart)
    return question


def exchange(leader: Replica, follower: Replica, rounds: int = 10) -> list[EpochEnd]:
    """Let the follower ask until there is nothing new; returns where it was told that the logs part."""
    partings: list[EpochEnd] = []
    for _ in range(rounds):
        question = ask(follower)
        leader.heard(2, 2, question, 0)
        answer = leader.answer(2, 2, question, 1 << 20)
        if answer is None:
            return partings
        if answer.diverging is not None:
            partings.append(answer.diverging)
        follower.answered(question, answer, 0)
    raise AssertionError("it does not come to an end")


# --- logs that differ --------------------------------------------------------------------------------


def test_logs_of_epochs_0_2_4_and_1_3_5_converge_to_the_leaders() -> None:
    leader, follower = log_of((1, 2), (3, 2), (5, 2)), log_of((0, 2), (2, 2), (4, 2))
    partings = exchange(leading(leader, 6), following(follower, 6))
    assert partings == [EpochEnd(3, 4), EpochEnd(1, 2), EpochEnd(NO_EPOCH, 0)]
    assert follower.disk.batches == leader.disk.batches
    assert follower.epochs.starts == leader.epochs.starts[:3]


def test_a_follower_keeps_what_it_has_in_common_with_its_leader() -> None:
    leader, follower = log_of((0, 3), (0, 2), (2, 1)), log_of((0, 3), (0, 2), (0, 4), (1, 1))
    kept = follower.disk.batches[:2]
    partings = exchange(leading(leader, 3), following(follower, 3))
    assert partings == [EpochEnd(0, 5)]
    assert follower.disk.batches[:2] == kept
    assert follower.disk.batches == leader.disk.batches


def test_a_follower_that_has_more_of_the_leaders_own_epoch_is_cut_back_to_it() -> None:
    leader, follower = log_of((0, 2)), log_of((0, 2), (0, 2))
    assert exchange(leading(leader, 1), following(follower, 1)) == [EpochEnd(0, 2)]
    assert follower.next_offset == 2


def test_a_follower_never_cuts_by_its_high_watermark() -> None:
    leader, follower = log_of((0, 2), (0, 2)), log_of((0, 2), (0, 2))
    assert follower.high_watermark == 0
    assert exchange(leading(leader, 1), following(follower, 1)) == []
    assert (follower.high_watermark, follower.next_offset) == (4, 4)


def test_a_follower_behind_the_leaders_start_restarts_there() -> None:
    leader, follower = log_of((0, 3), (0, 3)), log_of((0, 2))
    replica = leading(leader, 1, isr=(1,))
    replica.appended(0)
    leader.trim_before(4)  # in the middle of a batch
    exchange(replica, following(follower, 1))
    assert (follower.start_offset, follower.high_watermark, follower.next_offset) == (4, 6, 6)
    assert follower.disk.batches == leader.disk.batches[1:]


def test_a_follower_whose_epochs_the_leader_has_trimmed_restarts_at_the_leaders_start() -> None:
    leader, follower = log_of((0, 4), (2, 2)), log_of((0, 4))
    replica = leading(leader, 3, isr=(1,))
    replica.appended(0)
    leader.trim_before(4)
    assert exchange(replica, following(follower, 3)) == [EpochEnd(NO_EPOCH, 4)]
    assert (follower.start_offset, follower.next_offset) == (4, 6)


def test_records_of_an_older_epoch_come_to_stand_where_a_leader_had_led_without_a_record() -> None:
    follower = log_of((0, 2))
    follower.lead(1)  # elected, and replaced before it got a record
    leader = log_of((0, 2), (0, 2), (2, 1))
    assert exchange(leading(leader, 3), following(follower, 3)) == []
    assert [tuple(one) for one in follower.epochs.starts] == [(0, 0), (2, 4)]


def test_an_answer_to_an_earlier_question_does_not_cut_a_log_that_has_grown_again() -> None:
    leader, log = leading(log_of((0, 2), (2, 4)), 3), log_of((0, 2), (1, 4))
    follower = following(log, 3)
    early = ask(follower)
    late = leader.answer(2, 2, early, 1 << 20)
    assert late is not None and late.diverging == EpochEnd(0, 2)
    exchange(leader, follower)
    assert log.next_offset == early.offset
    follower.answered(early, late, 0)
    assert log.next_offset == early.offset


# --- epochs -----------------------------------------------------------------------------------------


def test_a_fetch_of_an_older_epoch_is_fenced_and_of_a_newer_one_unknown() -> None:
    leader = leading(log_of((0, 2)), 5)
    for epoch, error in ((4, "FencedEpochError"), (6, "UnknownEpochError")):
        leader.heard(2, 2, FetchPart(ORDERS, "id", epoch, 2, 0, 0), 0)
        answer = leader.answer(2, 2, FetchPart(ORDERS, "id", epoch, 2, 0, 0), 100)
        assert answer is not None and answer.refusal is not None
        assert (answer.refusal.error, answer.refusal.fields) == (error, ("orders-0", epoch, 5))
    assert leader.log.high_watermark == 0, "neither counts"


def test_who_does_not_lead_says_so_and_who_leads() -> None:
    follower = following(log_of((0, 2)), 5)
    answer = follower.answer(3, 3, FetchPart(ORDERS, "id", 5, 2, 0, 0), 100)
    assert answer is not None and answer.refusal is not None
    assert (answer.refusal.error, answer.refusal.fields) == ("NotLeaderError", ("orders-0", 1))


def test_a_node_does_not_lead_by_a_state_of_before_its_life() -> None:
    cluster = LittleCluster(1)
    old = cluster.controller.state()
    cluster.network.crash("1")
    cluster.start(1)
    cluster.cores[1].changed(old)
    with pytest.raises(NotLeaderError):
        cluster.cores[1].check_can_append(ORDERS, 1)
    cluster.run()
    assert cluster.cores[1].check_can_append(ORDERS, 1) == 1


def test_a_zombie_leader_is_fenced_and_joins_its_successor() -> None:
    cluster = LittleCluster(3)
    cluster.append(1)
    cluster.run()
    cluster.network.pause("1")
    assert cluster.network.run_until(lambda: cluster.state.leader == 2, 5000)
    cluster.run()
    told = cluster.append_to_all(2)
    cluster.run()
    assert told == [None]
    zombie = cluster.append_to_all(1)  # it does not know yet
    cluster.network.resume("1")
    cluster.run(3000)
    assert [type(error) for error in zombie] == [LeadershipLostError]
    assert cluster.bytes_of(1) == cluster.bytes_of(2) == cluster.bytes_of(3)
    assert cluster.state.isr == (1, 2, 3)


def test_a_leader_cut_off_from_the_controller_cannot_take_a_member_out_of_the_isr_nor_acknowledge() -> None:
    cluster = LittleCluster(3, replica_lag_time_max_ms=2000)
    for other in ("2", "3", CONTROLLER):
        cluster.network.partition("1", other)
    told = cluster.append_to_all(1, timeout_ms=20_000)
    cluster.run(10_000)
    assert told == []
    assert cluster.logs[1].high_watermark == 0
    assert (cluster.state.leader, cluster.state.isr) == (2, (2, 3))


# --- the ISR and the high watermark -----------------------------------------------------------------


def test_the_high_watermark_is_the_lowest_position_in_the_isr() -> None:
    cluster = LittleCluster(3)
    cluster.network.partition("3", "1")
    cluster.append(1, records=5)
    cluster.run()
    assert cluster.positions() == {1: (0, 5), 2: (0, 5), 3: (0, 0)}
    cluster.network.heal()
    cluster.run(2000)
    assert cluster.positions() == {1: (5, 5), 2: (5, 5), 3: (5, 5)}


def test_an_isr_that_shrinks_lets_the_high_watermark_advance() -> None:
    cluster = LittleCluster(3, replica_lag_time_max_ms=2000)
    cluster.network.partition("3", "1")
    told = cluster.append_to_all(1)
    cluster.run(1000)
    assert (told, cluster.state.isr) == ([], (1, 2, 3))
    cluster.run(3000)
    assert (told, cluster.state.isr) == ([None], (1, 2))
    cluster.network.heal()
    cluster.run(2000)
    assert cluster.state.isr == (1, 2, 3)


def test_the_high_watermark_stands_still_while_the_isr_is_below_min_insync_replicas() -> None:
    cluster = LittleCluster(2, topic={"min_insync_replicas": 2}, replica_lag_time_max_ms=2000)
    cluster.network.crash("2")
    told = cluster.append_to_all(1)
    cluster.run(6000)
    assert cluster.state.isr == (1,)
    assert [type(error) for error in told] == [NotEnoughReplicasAfterAppendError]
    cluster.append(1)
    cluster.run(1000)
    assert cluster.positions()[1] == (0, 2)
    with pytest.raises(NotEnoughReplicasError):
        cluster.cores[1].check_can_append(ORDERS, "all")
    cluster.start(2)
    cluster.run(1000)
    assert cluster.positions() == {1: (2, 2), 2: (2, 2)}
    assert cluster.state.isr == (1, 2)


def test_a_follower_is_not_in_the_isr_before_it_has_reached_the_start_of_the_epoch() -> None:
    leader = leading(log_of((0, 2), (0, 2)), 1, isr=(1,))  # knows no high watermark yet: it is 0
    assert leader.log.high_watermark == 0
    early = leader.heard(2, 2, FetchPart(ORDERS, "id", 1, 2, 0, 0), 0)
    assert early.proposal is None
    there = leader.heard(2, 2, FetchPart(ORDERS, "id", 1, 4, 0, 0), 0)
    assert there.proposal is not None
    assert (there.proposal.isr, there.proposal.incarnations) == ((1, 2), {1: 1, 2: 2})


def test_a_proposed_member_counts_at_once_and_a_refused_one_no_more() -> None:
    log = log_of((0, 2))
    leader = leading(log, 1, isr=(1,))
    proposal = leader.heard(2, 2, FetchPart(ORDERS, "id", 1, 2, 0, 0), 0).proposal
    assert proposal is not None
    log.append(1, 3)
    leader.appended(0)
    assert log.high_watermark == 2
    leader.decided(proposal, False, 0)
    assert leader.heard(2, 1, FetchPart(ORDERS, "id", 1, 2, 0, 0), 0).proposal is None, (
        "an earlier life says nothing"
    )
    leader.tick(40_000)
    assert log.high_watermark == 5, "it was waited for, but not for ever"


def test_a_fetch_that_comes_late_from_an_earlier_life_does_not_count() -> None:
    log = log_of((0, 2))
    leader = leading(log, 1)
    leader.heard(2, 2, FetchPart(ORDERS, "id", 1, 0, NO_EPOCH, 0), 0)
    leader.heard(2, 1, FetchPart(ORDERS, "id", 1, 2, 0, 0), 0)
    assert log.high_watermark == 0


def test_a_replica_comes_in_sync_while_its_leader_is_appended_to_all_the_time() -> None:
    cluster = LittleCluster(2, replica_fetch_max_bytes=1000)
    cluster.network.crash("2")
    assert cluster.network.run_until(lambda: cluster.state.isr == (1,), 5000)
    cluster.start(2)
    for _ in range(300):
        cluster.append(1)
        cluster.run(1)
    assert cluster.state.isr == (1, 2)


def test_a_node_that_crashed_is_out_of_the_isr_until_it_has_caught_up() -> None:
    cluster = LittleCluster(2)
    cluster.append(1, records=5)
    cluster.run()
    cluster.network.crash("2")
    cluster.disks[2].keep(0)  # none of it was synced
    cluster.start(2)
    assert cluster.state.isr == (1,)
    cluster.run()
    assert cluster.state.isr == (1, 2)
    assert cluster.bytes_of(2) == cluster.bytes_of(1)


# --- fetches ----------------------------------------------------------------------------------------


def test_a_held_fetch_is_answered_when_records_are_appended() -> None:
    cluster = LittleCluster(2)
    answers: list[Message | None] = []
    client = cluster.network.transport("other")
    question = FetchPart(ORDERS, cluster.topic_id, 0, 0, NO_EPOCH, 0)
    client.request("1", Fetch(9, 9, 1000, 400, (question,)), answers.append, 1000)
    cluster.run(10)  # the first answer tells where the log starts
    client.request("1", Fetch(9, 9, 1000, 400, (question,)), answers.append, 1000)
    cluster.run(200)
    assert len(answers) == 1
    cluster.append(1)
    cluster.run(5)
    assert isinstance(answers[1], Fetched)
    assert answers[1].parts[0].data.read() == cluster.bytes_of(1)


def test_a_held_fetch_is_answered_empty_when_its_time_is_over() -> None:
    cluster = LittleCluster(2)
    answers: list[Message | None] = []
    client = cluster.network.transport("other")
    question = FetchPart(ORDERS, cluster.topic_id, 0, 0, NO_EPOCH, 0)
    for _ in range(2):
        client.request("1", Fetch(9, 9, 1000, 300, (question,)), answers.append, 1000)
        cluster.run(10)
    cluster.run(500)
    assert answers[1:] == [Fetched(())]


def test_a_held_fetch_is_answered_with_a_refusal_when_the_leader_steps_down() -> None:
    cluster = LittleCluster(3, replicas=2)
    told: list[Message | None] = []
    client = cluster.network.transport("other")
    for _ in range(2):
        part = FetchPart(ORDERS, cluster.topic_id, 0, 0, NO_EPOCH, 0)
        client.request("1", Fetch(9, 9, 1000, 400, (part,)), told.append, 1000)
        cluster.run(5)
    cluster.controller.submit(Reassign(ORDERS, (2,)))
    cluster.run(5)
    assert isinstance(told[1], Fetched)
    refusal = told[1].parts[0].refusal
    assert refusal is not None and refusal.error == "NotLeaderError"


def test_followers_learn_a_new_high_watermark_without_an_append() -> None:
    cluster = LittleCluster(3, replica_fetch_wait_max_ms=900)
    cluster.append(1)
    cluster.run(20)
    assert cluster.positions() == {1: (1, 1), 2: (1, 1), 3: (1, 1)}


def test_followers_roll_where_the_leader_rolled() -> None:
    cluster = LittleCluster(2)
    for _ in range(17):
        cluster.append(1)
    cluster.run()
    assert len(set(cluster.disks[1].segment_bases)) > 2
    assert cluster.disks[2].segment_bases == cluster.disks[1].segment_bases


def test_records_that_the_leader_trims_go_on_its_followers_too() -> None:
    cluster = LittleCluster(2)
    cluster.append(1, records=3)
    cluster.append(1, records=3)
    cluster.run()
    cluster.logs[1].trim_before(4)
    cluster.run(1000)
    assert cluster.logs[2].start_offset == 4


def test_a_follower_whose_disk_is_full_asks_again_until_there_is_room(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = LittleCluster(2)

    def full(data: bytes, segment_base: int) -> int:
        raise DiskFullError("orders-0", "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(cluster.logs[2], "append_replicated", full)
        told = cluster.append_to_all(1)
        cluster.run(1000)
    assert told == []
    assert "No space left on device" in caplog.text
    cluster.run(1000)
    assert told == [None]


def test_a_node_elected_on_a_full_disk_leads_once_there_is_room(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = LittleCluster(3)
    cluster.run(1000)

    def full(epoch: int) -> None:
        raise DiskFullError("orders-0", "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(cluster.logs[2], "lead", full)
        cluster.network.pause("1")
        cluster.run(5000)
    assert cluster.state.leader == 2
    assert "No space left on device" in caplog.text
    cluster.run(12_000)  # the controller has nothing new to tell
    told = cluster.append_to_all(2)
    cluster.run(1000)
    assert told == [None]


def test_a_leader_whose_disk_has_failed_says_so_when_it_resigns(caplog: pytest.LogCaptureFixture) -> None:
    cluster = LittleCluster(2)
    cluster.logs[1].failure = "the disk is gone"
    cluster.run(3000)
    assert (cluster.state.leader, cluster.state.isr) == (2, (2,))
    assert [record.getMessage() for record in caplog.records] == [
        "node 1 resigns as leader of orders-0: its replica has failed"
    ]


def test_a_lone_leader_whose_disk_has_failed_does_not_fill_the_log_of_its_program(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = LittleCluster(2, replica_lag_time_max_ms=2000)
    cluster.network.pause("2")
    cluster.run(3000)
    cluster.append(1)
    cluster.logs[1].failure = "the disk is gone"
    cluster.network.resume("2")
    cluster.run(10_000)  # the other asks ten times a second
    assert cluster.state.isr == (1,)
    assert caplog.records == []


def test_a_partition_that_cannot_be_read_does_not_hold_up_its_follower(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = LittleCluster(2)

    def broken(offset: int, max_bytes: int) -> ReplicaSlice:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(cluster.logs[1], "read_replica", broken)
        told = cluster.append_to_all(1)
        cluster.run(500)
    assert told == []
    assert "Input/output error" in caplog.text
    cluster.run(200)
    assert told == [None], "it was asked again long before a request would have timed out"


def test_records_that_are_trimmed_just_when_they_are_read_make_the_follower_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, other = log_of((0, 2), (0, 2)), MemoryLog()
    leader, follower = leading(log, 1, isr=(1,)), following(other, 1)
    leader.appended(0)

    def trimmed(offset: int, max_bytes: int) -> ReplicaSlice:
        log.trim_before(3)
        raise OffsetOutOfRangeError("orders-0", offset, 3, 4)

    question = ask(follower)
    with monkeypatch.context() as patch:
        patch.setattr(log, "read_replica", trimmed)
        answer = leader.answer(2, 2, question, 1000)
    assert answer is not None
    follower.answered(question, answer, 0)
    assert (other.start_offset, other.next_offset) == (3, 3)
    exchange(leader, follower)
    assert other.next_offset == 4


# --- appends ----------------------------------------------------------------------------------------


def test_an_append_is_acknowledged_when_all_in_sync_replicas_have_it() -> None:
    cluster = LittleCluster(3)
    epoch = cluster.cores[1].check_can_append(ORDERS, "all")
    _, end = cluster.append(1)
    cluster.cores[1].wait_acknowledged(ORDERS, end, 1000, leader_epoch=epoch)
    assert [next_offset for _, next_offset in cluster.positions().values()] == [1, 1, 1]


def test_a_lone_replica_acknowledges_at_once() -> None:
    cluster = LittleCluster(1)
    assert cluster.append_to_all(1) == [None]


def test_an_append_that_is_not_acknowledged_in_time_says_so() -> None:
    cluster = LittleCluster(2)
    cluster.network.partition("2", "1")
    epoch = cluster.cores[1].check_can_append(ORDERS, "all")
    _, end = cluster.append(1)
    with pytest.raises(ReplicationTimeoutError):
        cluster.cores[1].wait_acknowledged(ORDERS, end, 300, leader_epoch=epoch)


def test_an_append_of_an_epoch_that_is_over_is_not_acknowledged_by_a_later_one_of_the_same_leader() -> None:
    cluster = LittleCluster(2)
    epoch = cluster.cores[1].check_can_append(ORDERS, "all")
    _, end = cluster.append(1)
    cluster.controller.submit(Reassign(ORDERS, (2, 1)))
    cluster.controller.gone(1)
    cluster.run()
    cluster.start(1, clean=True)
    cluster.run(500)
    cluster.controller.submit(Reassign(ORDERS, (1, 2)))
    cluster.controller.submit(ElectPreferred())
    cluster.run()
    assert cluster.cores[1].check_can_append(ORDERS, "all") > epoch
    with pytest.raises(NotLeaderError):
        cluster.cores[1].wait_acknowledged(ORDERS, end, 1000, leader_epoch=epoch)


def test_an_append_to_a_node_that_does_not_lead_names_who_does() -> None:
    cluster = LittleCluster(3, replicas=2)
    for node_id in (2, 3):
        with pytest.raises(NotLeaderError) as raised:
            cluster.cores[node_id].check_can_append(ORDERS, 1)
        assert raised.value.args == (ORDERS, 1)


def test_a_decision_does_not_overtake_the_state_by_which_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = LittleCluster(3, replica_lag_time_max_ms=2000)
    cluster.network.pause("3")
    cluster.run(5000)
    assert cluster.state.isr == (1, 2)
    proposed: list[ChangeIsr] = []
    monkeypatch.setattr(cluster.controller, "propose_isr", lambda change, decided: proposed.append(change))
    cluster.network.resume("3")
    while not proposed:
        cluster.run(10)
    (first,), core = proposed, cluster.cores[1]
    assert first.isr == (1, 2, 3)
    apply = core._apply

    def taking_long(state: ClusterState) -> None:
        # it counted, its answer was lost, and made again it was refused; another thread tells
        core._decided(first, False)
        apply(state)

    monkeypatch.setattr(core, "_apply", taking_long)
    core.changed(cluster.controller.state())
    leader = core.replica(ORDERS)._role
    assert isinstance(leader, Leader)
    assert leader.progress.counted == {1, 2, 3}


def test_who_waits_when_a_node_closes_is_told() -> None:
    cluster = LittleCluster(2)
    cluster.network.partition("2", "1")
    told = cluster.append_to_all(1)
    cluster.cores[1].close()
    assert [type(error) for error in told] == [LeadershipLostError]


# --- moving -----------------------------------------------------------------------------------------


def test_a_partition_moves_while_it_is_written_and_the_old_replica_removes_its_records() -> None:
    cluster = LittleCluster(3, replicas=1, replica_fetch_max_bytes=100)
    for _ in range(50):
        cluster.append(1)
    cluster.controller.submit(Reassign(ORDERS, (3,)))
    while 1 in cluster.logs and cluster.logs[1].leads is not None:
        cluster.append(1)
        cluster.run(1)
    cluster.run(500)
    assert (cluster.state.replicas, cluster.state.leader) == ((3,), 3)
    assert set(cluster.logs) == {3}
    assert cluster.logs[3].next_offset >= 50


def test_the_throttle_slows_down_a_replica_that_is_not_in_sync_and_no_other() -> None:
    cluster = LittleCluster(3, replicas=2, replication_throttle_bytes_per_second=240)
    for _ in range(100):
        cluster.append(1)  # 2400 bytes
    cluster.run()
    assert cluster.logs[2].next_offset == 100
    cluster.controller.submit(Reassign(ORDERS, (1, 2, 3)))
    cluster.run(3000)
    assert 20 <= cluster.logs[3].next_offset <= 50
    assert cluster.state.isr == (1, 2)
    cluster.cores[1].throttle(-1)
    cluster.run(1000)
    assert cluster.logs[3].next_offset == 100
    assert cluster.state.isr == (1, 2, 3)
