"""Replicas of a partition with transactions: the same bytes, and the same view of what is decided."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from helpers import encoded, names

import commitlog
from commitlog import CommitLog, NotLeaderError, Partition
from commitlog.aborted_index import Aborted
from commitlog.batches.encode import numbered
from commitlog.batches.format import TRANSACTIONAL
from commitlog.errors import TransactionStateError
from commitlog.record import TopicPartition
from commitlog.replication import Node, ReplicationConfig
from commitlog.testing import Faults, LocalNetwork, SimulatedController
from commitlog.transactions import coordinator

CONFIG = {"flush_ms": -1, "file_delete_delay_ms": 0}
ORDERS = TopicPartition("orders", 0)


class Transactions:
    """Transactions in one partition that leads; each has its own producer."""

    def __init__(self, leader: Partition) -> None:
        self.leader = leader
        self._sequences: dict[int, int] = {}

    def append(self, producer: int, *values: bytes) -> range:
        sequence = self._sequences.get(producer, 0)
        batch = numbered(encoded(values), (producer, 0, sequence), TRANSACTIONAL)
        self._sequences[producer] = sequence + len(values)
        return self.leader.append_transactional((batch,))

    def end(self, producer: int, *, commits: bool) -> int:
        marker = self.leader.end_transaction(producer, 0, commits=commits)
        assert marker is not None
        return marker


@pytest.fixture
def leader(log: CommitLog) -> Partition:
    partition = log.create_topic("t", config=CONFIG).partition(0)
    partition.lead(1)
    return partition


@pytest.fixture
def transactions(leader: Partition) -> Transactions:
    return Transactions(leader)


@pytest.fixture
def other_path(tmp_path: Path) -> Path:
    return tmp_path / "other"


@pytest.fixture
def other_log(other_path: Path) -> Iterator[CommitLog]:
    with commitlog.open(other_path) as opened:
        yield opened


@pytest.fixture
def follower(other_log: CommitLog) -> Partition:
    partition = other_log.create_topic("t", config=CONFIG).partition(0)
    partition.follow()
    return partition


def replicate(leader: Partition, follower: Partition, end: int | None = None, max_bytes: int = 1) -> None:
    """Let a follower catch up, batch by batch."""
    while follower.next_offset < (leader.next_offset if end is None else end):
        found = leader.read_replica(follower.next_offset, max_bytes)
        assert follower.append_replicated(found.data.read(), found.segment_base) == found.next_offset


def acknowledge(offset: int, *replicas: Partition) -> None:
    for one in replicas:
        one.set_high_watermark(offset)


def values(partition: Partition, **options: str) -> list[bytes]:
    return [bytes(record.value or b"") for record in partition.records(**options)]  # type: ignore[arg-type]


def log_files(partition: Partition) -> dict[str, bytes]:
    return {
        os.path.basename(one.path): Path(one.path).read_bytes()[: one.size_bytes]
        for one in partition.segments
    }


def opened(partition: Partition) -> list[tuple[int, int, int]]:
    return [one[:3] for one in partition.open_transactions()]


def aborted(partition: Partition) -> list[Aborted]:
    return sorted(partition.aborted_transactions().between(0, partition.next_offset))


def view(partition: Partition) -> tuple[object, ...]:
    """What a replica knows of its transactions."""
    return (
        partition.last_stable_offset,
        opened(partition),
        aborted(partition),
        values(partition),
        values(partition, isolation_level="read_uncommitted"),
    )


def view_from_outside(path: str | Path) -> tuple[object, ...]:
    """What another process sees."""
    with commitlog.open(path, mode="r") as reader:
        return view(reader.topic("t").partition(0))


# --- a follower is a copy


@pytest.mark.parametrize("max_bytes", [1, 300, 1 << 20])
@pytest.mark.parametrize("seed", range(4))
def test_a_follower_has_the_same_bytes_and_the_same_view_of_every_transaction(
    leader: Partition,
    follower: Partition,
    transactions: Transactions,
    other_path: Path,
    seed: int,
    max_bytes: int,
) -> None:
    random = Random(seed)
    open_ones: list[int] = []
    for number in range(150):
        chance = random.random()
        if chance < 0.3:
            transactions.append(number, b"%d" % number)
            open_ones.append(number)
        elif chance < 0.5 and open_ones:
            transactions.append(random.choice(open_ones), b"more %d" % number, b"and more")
        elif chance < 0.75 and open_ones:
            one = open_ones.pop(random.randrange(len(open_ones)))
            transactions.end(one, commits=random.random() < 0.5)
        elif chance < 0.8:
            leader.roll()
        else:
            leader.append(b"plain %d" % number)
        if random.random() < 0.3:
            replicate(leader, follower, max_bytes=max_bytes)
            acknowledge(random.randint(leader.high_watermark, leader.next_offset), leader, follower)
            assert view(follower) == view(leader)
    replicate(leader, follower, max_bytes=max_bytes)
    acknowledge(leader.next_offset, leader, follower)
    assert log_files(follower) == log_files(leader)
    assert view(follower) == view(leader) == view_from_outside(other_path)
    assert [header for one in follower.segments for header, _ in one.markers()], "there are some"
    records = [one.metrics().written for one in (leader, follower)]
    assert records[0] is not None
    assert records[1] is not None
    assert records[0].records == records[1].records, "markers are no records"


def test_a_marker_above_the_high_watermark_does_not_decide_yet(
    leader: Partition, follower: Partition, transactions: Transactions
) -> None:
    leader.append(b"before")
    transactions.append(7, b"x", b"y")
    acknowledge(3, leader)
    marker = transactions.end(7, commits=True)
    replicate(leader, follower)
    acknowledge(marker, leader, follower)
    for replica in (leader, follower):
        assert (replica.high_watermark, replica.last_stable_offset) == (marker, 1)
        assert values(replica) == [b"before"]
        assert opened(replica) == []
        assert replica.wait_for(1, 0) is False
        assert replica.wait_for(1, 0, isolation_level="read_uncommitted")
    acknowledge(marker + 1, leader, follower)
    for replica in (leader, follower):
        assert replica.last_stable_offset == marker + 1
        assert values(replica) == [b"before", b"x", b"y"]


def test_a_transaction_that_begins_above_the_high_watermark_does_not_move_the_stable_offset_beyond_it(
    leader: Partition, follower: Partition, transactions: Transactions
) -> None:
    leader.append_many([b"a", b"b"])
    transactions.append(7, b"x")
    replicate(leader, follower)
    acknowledge(1, leader, follower)
    assert (leader.last_stable_offset, follower.last_stable_offset) == (1, 1)


def test_a_marker_above_the_high_watermark_does_not_decide_after_a_restart_either(
    leader: Partition, other_path: Path, transactions: Transactions
) -> None:
    transactions.append(7, b"aborted")
    transactions.end(7, commits=False)
    transactions.append(8, b"undecided")
    marker = transactions.end(8, commits=True)
    with commitlog.open(other_path) as log:
        follower = log.create_topic("t", config=CONFIG).partition(0)
        follower.follow()
        replicate(leader, follower)
        acknowledge(marker, follower)
    undecided: tuple[object, ...] = (2, [], [Aborted(7, 0, 1)], [], [b"aborted", b"undecided"])
    assert view_from_outside(other_path) == undecided
    with commitlog.open(other_path) as log:
        follower = log.topic("t").partition(0)
        assert view(follower) == view_from_outside(other_path) == undecided
        acknowledge(marker + 1, follower)
        assert values(follower) == [b"undecided"]


def test_a_truncation_that_removes_a_marker_leaves_the_transaction_undecided(
    leader: Partition, follower: Partition, transactions: Transactions, other_path: Path
) -> None:
    leader.append(b"before")
    transactions.append(7, b"x")
    replicate(leader, follower)
    acknowledge(2, leader, follower)
    marker = transactions.end(7, commits=True)
    replicate(leader, follower)
    assert opened(follower) == []
    follower.truncate_from(marker)
    assert opened(follower) == [(7, 0, 1)]
    assert follower.last_stable_offset == 1
    assert view_from_outside(other_path) == view(follower)
    # the next leader decides otherwise
    leader.truncate_from(marker)
    leader.lead(2)
    transactions.end(7, commits=False)
    leader.append(b"after")
    replicate(leader, follower)
    acknowledge(leader.next_offset, leader, follower)
    assert values(follower) == values(leader) == [b"before", b"after"]
    assert view_from_outside(other_path) == view(follower)
    assert log_files(follower) == log_files(leader)


def test_a_truncation_below_the_high_watermark_leaves_the_transaction_undecided(
    leader: Partition, follower: Partition, transactions: Transactions
) -> None:
    transactions.append(7, b"x")
    leader.roll()
    marker = transactions.end(7, commits=False)
    replicate(leader, follower)
    acknowledge(marker + 1, leader, follower)
    assert follower.last_stable_offset == marker + 1
    follower.truncate_from(marker)  # as after an unclean election
    assert (follower.last_stable_offset, opened(follower), aborted(follower)) == (0, [(7, 0, 0)], [])


def test_a_follower_that_begins_again_forgets_what_was_open_and_aborted(
    leader: Partition, follower: Partition, transactions: Transactions
) -> None:
    transactions.append(7, b"x")
    transactions.append(8, b"y")
    transactions.end(8, commits=False)
    replicate(leader, follower)
    acknowledge(leader.next_offset, leader, follower)
    follower.restart_at(100)
    assert (follower.last_stable_offset, opened(follower), aborted(follower)) == (100, [], [])
    leader.restart_at(100)
    transactions.append(9, b"z")
    transactions.end(9, commits=True)
    replicate(leader, follower)
    acknowledge(101, leader, follower)
    assert (follower.last_stable_offset, leader.last_stable_offset) == (100, 100), "the marker is above it"
    acknowledge(102, leader, follower)
    assert values(follower) == values(leader) == [b"z"]


def test_a_commit_that_comes_with_its_records_decides_once_replicas_have_its_marker(
    leader: Partition, follower: Partition
) -> None:
    batch = numbered(encoded([b"x", b"y"]), (7, 0, 0), TRANSACTIONAL)
    leader.append_and_commit((batch,))
    replicate(leader, follower)
    for mark, stable in ((1, 0), (2, 0), (3, 3)):
        acknowledge(mark, leader, follower)
        assert (leader.last_stable_offset, follower.last_stable_offset) == (stable, stable)
        assert values(leader) == values(follower) == ([b"x", b"y"] if stable else [])


def test_a_follower_whose_leader_trimmed_half_a_transaction_leaves_the_rest_of_it_out(
    leader: Partition, follower: Partition, transactions: Transactions
) -> None:
    transactions.append(7, b"gone", b"half of it stays", b"as well")
    transactions.append(7, b"more of it")
    leader.append(b"plain")
    acknowledge(5, leader)
    leader.trim_before(1)
    follower.restart_at(1)
    replicate(leader, follower)
    acknowledge(5, follower)
    assert (follower.last_stable_offset, leader.last_stable_offset) == (1, 1)
    transactions.end(7, commits=False)
    replicate(leader, follower)
    acknowledge(6, leader, follower)
    assert values(follower) == values(leader) == [b"plain"]


def test_a_follower_that_goes_back_to_an_earlier_segment_still_tells_what_is_aborted_in_it(
    leader: Partition, follower: Partition, transactions: Transactions, other_path: Path
) -> None:
    transactions.append(7, b"aborted")
    transactions.end(7, commits=False)
    replicate(leader, follower)
    follower._state.roll()  # as it did when it led; its leader has not
    transactions.append(8, b"aborted, too")
    transactions.end(8, commits=False)
    leader.append(b"plain")
    replicate(leader, follower)
    acknowledge(leader.next_offset, leader, follower)
    assert names(follower.path, ".log") == names(leader.path, ".log")
    assert values(follower) == [b"plain"]
    assert view_from_outside(other_path) == view(follower) == view(leader)


def test_the_next_leader_ends_what_the_last_one_left_open(
    leader: Partition, follower: Partition, transactions: Transactions
) -> None:
    transactions.append(7, b"x")
    replicate(leader, follower)
    acknowledge(1, leader, follower)
    with pytest.raises(NotLeaderError):
        follower.end_transaction(7, 0, commits=False)
    leader.follow()
    follower.lead(2)
    follower.end_transaction(7, 0, commits=False)
    follower.append(b"after")
    replicate(follower, leader)
    acknowledge(3, leader, follower)
    assert log_files(follower) == log_files(leader)
    assert view(follower) == view(leader)
    assert leader.epochs == follower.epochs
    assert [(one.epoch, one.start_offset) for one in leader.epochs.starts] == [(1, 0), (2, 1)]


# --- nodes


class Cluster:
    """Nodes with logs of their own; a thread that looks for transactions would disturb the virtual clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.network = LocalNetwork(faults=Faults((1, 1)))
        self.controller = SimulatedController(self.network, 6000)
        self.nodes = {node_id: self.start(node_id) for node_id in (1, 2, 3)}
        self.nodes[1].create_topic("orders", 2, 3, {"min_insync_replicas": 2, "flush_ms": -1})
        self.network.run_for(100)

    def start(self, node_id: int) -> Node:
        log = commitlog.open(self.path / str(node_id))
        log._housekeeper.stop()
        settings = ReplicationConfig(replica_lag_time_max_ms=3000, request_timeout_ms=2000)
        return Node(log, self.network.transport(str(node_id)), self.controller, node_id, settings).start()

    def kill(self, node_id: int) -> None:
        self.network.crash(str(node_id))
        self.nodes.pop(node_id).log._abandon()

    def until(self, condition: Callable[[], bool]) -> None:
        assert self.network.run_until(condition, 60_000), self.controller.state()

    def leader(self) -> Node:
        def leading() -> list[Node]:
            return [node for node in self.nodes.values() if node.leads(ORDERS)]

        self.until(lambda: bool(leading()))
        return leading()[0]

    def orders(self, node: Node) -> Partition:
        return node.log.topic("orders").partition(0)

    def settle(self) -> None:
        """Until every replica has everything, and knows it."""
        end = self.orders(self.leader()).next_offset
        self.until(lambda: all(self.orders(one).high_watermark == end for one in self.nodes.values()))

    def close(self) -> None:
        self.network.heal()
        for node in self.nodes.values():
            node.stop(hand_over=False)
            node.log.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        yield made
    finally:
        made.close()


def open_transaction(cluster: Cluster, *sent: bytes) -> tuple[int, int, int]:
    """Leave a transaction open at the leader, replicated."""
    Transactions(cluster.orders(cluster.leader())).append(7, *sent)
    cluster.settle()
    (found,) = opened(cluster.orders(cluster.leader()))
    return found


def sweep(node: Node, *, later_ms: int = 0) -> None:
    """Let the coordinator of a node look for what was left open, some time later."""
    found = node.log._coordinator
    found._seen = {key: began - later_ms / 1000 for key, began in found._seen.items()}
    found.sweep()


def test_a_transaction_in_one_replicated_partition_is_committed_on_all_replicas(cluster: Cluster) -> None:
    leader = cluster.leader()
    with leader.log.transaction(sync=True) as transaction:
        transaction.append("orders", b"x", partition=0)
        transaction.append("orders", b"y", partition=0)
    others = [cluster.orders(node) for node in cluster.nodes.values()]
    assert sum(one.next_offset == 3 for one in others) >= 2, "the commit waits for in-sync replicas"
    cluster.settle()
    assert [values(one) for one in others] == [[b"x", b"y"]] * 3


def test_a_commit_that_replicas_do_not_acknowledge_says_so(cluster: Cluster) -> None:
    leader = cluster.leader()
    for node_id in cluster.nodes:
        if node_id != leader.node_id:
            cluster.network.partition(str(leader.node_id), str(node_id))
    with pytest.raises(commitlog.CommitLogError, match="orders-0"):  # noqa: SIM117
        with leader.log.transaction(sync=True) as transaction:
            transaction.append("orders", b"x", partition=0)
    assert values(cluster.orders(leader)) == []


def test_a_transaction_in_several_replicated_partitions_is_refused(cluster: Cluster) -> None:
    leader = cluster.leader()
    leader.log.create_topic("own")
    for other in (("orders", 1), ("own", 0)):
        with pytest.raises(TransactionStateError, match="orders-0 is replicated"):  # noqa: SIM117
            with leader.log.transaction() as transaction:
                transaction.append("orders", b"x", partition=0)
                transaction.append(other[0], b"y", partition=other[1])
    assert leader.log.transactions() == []
    cluster.settle()
    assert [values(cluster.orders(node)) for node in cluster.nodes.values()] == [[], [], []]


def test_a_transaction_at_a_follower_is_refused(cluster: Cluster) -> None:
    leader = cluster.leader()
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    with pytest.raises(NotLeaderError):  # noqa: SIM117
        with follower.log.transaction() as transaction:
            transaction.append("orders", b"x", partition=0)
    assert follower.log.transactions() == []


def test_after_a_change_of_the_leader_an_open_transaction_is_aborted_when_its_time_is_up(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    left = open_transaction(cluster, b"x", b"y")
    cluster.kill(cluster.leader().node_id)
    leader = cluster.leader()
    orders = cluster.orders(leader)
    sweep(leader)
    sweep(leader, later_ms=coordinator.DEFAULT_TIMEOUT_MS - 1000)
    assert opened(orders) == [left]
    assert orders.last_stable_offset == 0
    sweep(leader, later_ms=1000)
    assert orders.open_transactions() == []
    cluster.settle()
    for node in cluster.nodes.values():
        one = cluster.orders(node)
        assert (one.last_stable_offset, values(one), aborted(one)) == (3, [], [Aborted(7, 0, 2)])
    assert leader.log._coordinator.metrics().timed_out == 1
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_nodes_that_follow_leave_an_open_transaction_to_its_leader_without_a_word(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    left = open_transaction(cluster, b"x")
    leader = cluster.leader()
    followers = [node for node in cluster.nodes.values() if node is not leader]
    with caplog.at_level(logging.INFO, "commitlog.transactions"):
        for node in followers:
            for _ in range(3):
                sweep(node, later_ms=coordinator.DEFAULT_TIMEOUT_MS)
            assert opened(cluster.orders(node)) == [left]
            assert node.log._coordinator.metrics().timed_out == 0
    assert not [record for record in caplog.records if record.name == "commitlog.transactions"]


def test_only_the_leader_can_abort_an_open_transaction_by_its_id(cluster: Cluster) -> None:
    open_transaction(cluster, b"x")
    leader = cluster.leader()
    for node in sorted(cluster.nodes.values(), key=lambda one: one is leader):
        (described,) = node.log.transactions()
        assert (described.state, described.partitions) == ("Ongoing", (ORDERS,))
        if node is leader:
            node.log.abort_transaction(described.transactional_id)
        else:
            with pytest.raises(TransactionStateError, match="another node leads"):
                node.log.abort_transaction(described.transactional_id)
    cluster.settle()
    assert [values(cluster.orders(node)) for node in cluster.nodes.values()] == [[], [], []]
    assert cluster.orders(leader).last_stable_offset == 2


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_opens_with_transactions_that_another_node_may_end(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, clean: bool
) -> None:
    left = open_transaction(cluster, b"x")
    node_id = next(one for one in cluster.nodes if one != cluster.leader().node_id)
    if clean:
        node = cluster.nodes.pop(node_id)
        node.stop()
        node.log.close()
    else:
        cluster.kill(node_id)
    with caplog.at_level(logging.INFO, "commitlog.transactions"):
        cluster.nodes[node_id] = cluster.start(node_id)
    assert not [record for record in caplog.records if record.name == "commitlog.transactions"]
    orders = cluster.orders(cluster.nodes[node_id])
    assert opened(orders) == [left]
    assert orders.last_stable_offset == 0
    cluster.orders(cluster.leader()).end_transaction(7, 0, commits=True)
    cluster.settle()
    assert [values(cluster.orders(one)) for one in cluster.nodes.values()] == [[b"x"]] * 3


def test_a_commit_that_only_the_old_leader_has_is_cut_off_and_its_transaction_aborted(
    cluster: Cluster,
) -> None:
    open_transaction(cluster, b"x")
    zombie = cluster.leader()
    cluster.network.pause(str(zombie.node_id))
    cluster.until(lambda: any(one.leads(ORDERS) for one in cluster.nodes.values() if one is not zombie))
    leader = next(one for one in cluster.nodes.values() if one is not zombie and one.leads(ORDERS))
    assert zombie.leads(ORDERS), "nobody can have told it"
    cluster.orders(zombie).end_transaction(7, 0, commits=True)
    assert values(cluster.orders(zombie)) == [], "a reader must not see what will disappear"
    sweep(leader)
    sweep(leader, later_ms=coordinator.DEFAULT_TIMEOUT_MS)
    leader.topic("orders").partition(0).append(b"after")
    cluster.network.resume(str(zombie.node_id))
    cluster.until(lambda: not zombie.leads(ORDERS))
    cluster.settle()
    assert [values(cluster.orders(one)) for one in cluster.nodes.values()] == [[b"after"]] * 3
    assert len({str(log_files(cluster.orders(one))) for one in cluster.nodes.values()}) == 1
