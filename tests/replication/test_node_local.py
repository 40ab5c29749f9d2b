"""Nodes with real logs on a network in one process: what an application meets when leaders change."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import commitlog
from commitlog.errors import NotEnoughReplicasError
from commitlog.record import TopicPartition
from commitlog.replication import Node, ReplicationConfig, StaticController
from commitlog.replication.cluster import ClusterState, TopicState
from commitlog.testing import CONTROLLER, Faults, LocalNetwork, SimulatedController

ORDERS = TopicPartition("orders", 0)
SESSION_MS = 6000
SETTINGS = ReplicationConfig(replica_lag_time_max_ms=3000, request_timeout_ms=2000)
LOSSY = Faults((1, 40), loss=0.15, duplication=0.1, reordering=True)


class Cluster:
    """Three nodes, each with a log of its own, and a topic of which each has a replica."""

    def __init__(self, path: Path, seed: int = 0, faults: Faults | None = None) -> None:
        self.path = path
        self.network = LocalNetwork(seed, faults)
        self.controller = SimulatedController(self.network, SESSION_MS)
        self.elections: list[tuple[int, int | None, int]] = []  # when, who, in which epoch
        self.controller.watchers.append(lambda before, after: self._note())
        self.nodes: dict[int, Node] = {}
        for node_id in (1, 2, 3):
            self.start(node_id)
        self.nodes[1].create_topic("orders", 1, 3, {"min_insync_replicas": 2, "flush_ms": -1})

    def _note(self) -> None:
        now = self.controller.state().partition(ORDERS)
        if now is not None and (now.leader, now.leader_epoch) not in [one[1:] for one in self.elections]:
            self.elections.append((self.network.now_ms(), now.leader, now.leader_epoch))

    def start(self, node_id: int) -> Node:
        log = commitlog.open(self.path / str(node_id))
        transport = self.network.transport(str(node_id))
        self.nodes[node_id] = Node(log, transport, self.controller, node_id, SETTINGS).start()
        return self.nodes[node_id]

    def kill(self, node_id: int) -> None:
        """As kill -9 does: nobody is told, and the log is not closed."""
        self.network.crash(str(node_id))
        self.nodes.pop(node_id).log._abandon()

    def close_all_at_once(self) -> None:
        """All nodes end at the same moment, and clean; nobody hands anything over."""
        for node_id in (1, 2, 3):
            self.network.crash(str(node_id))
            self.nodes.pop(node_id).log.close()
        self.until(lambda: not self.controller.state().nodes)

    def close(self) -> None:
        self.network.faults = Faults()
        self.network.heal()
        for node in self.nodes.values():
            node.stop(hand_over=False)
            node.log.close()

    def until(self, condition: Callable[[], bool], timeout_ms: int = 60_000) -> None:
        assert self.network.run_until(condition, timeout_ms), self.controller.state()

    def isr(self) -> tuple[int, ...]:
        state = self.controller.state().partition(ORDERS)
        assert state is not None
        return state.isr

    def leader_but(self, *others: int) -> Node:
        """The node that leads, once it is none of these."""

        def leading() -> list[Node]:
            return [node for node in self.nodes.values() if node.node_id not in others and node.leads(ORDERS)]

        self.until(lambda: bool(leading()))
        return leading()[0]

    def append(self, node: Node, value: bytes, **options: object) -> int:
        orders = node.topic("orders").partition(0)
        return orders.append(value, timestamp=self.network.now_ms(), **options)  # type: ignore[arg-type]

    def values(self, node_id: int) -> list[bytes]:
        partition = self.nodes[node_id].log.topic("orders").partition(0)
        return [bytes(record.value or b"") for record in partition.records()]

    def settle(self, end: int) -> None:
        """Until all are in sync again, and know that what is below `end` is acknowledged."""
        self.network.faults = Faults()
        self.network.heal()
        self.until(lambda: self.isr() == (1, 2, 3))
        logs = [node.log.topic("orders").partition(0) for node in self.nodes.values()]
        self.until(lambda: all(log.high_watermark >= end for log in logs))

    def files(self) -> list[dict[str, bytes]]:
        """The segments of each node."""
        folders = [self.path / str(node_id) / "orders-0" for node_id in (1, 2, 3)]
        return [{file.name: file.read_bytes() for file in sorted(one.glob("*.log"))} for one in folders]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_a_leader_that_is_killed_is_replaced_and_nothing_acknowledged_is_lost(cluster: Cluster) -> None:
    assert cluster.append(cluster.nodes[1], b"before") == 0
    cluster.kill(1)
    leader = cluster.leader_but(1)
    assert SESSION_MS <= cluster.network.now_ms() < 2 * SESSION_MS
    assert cluster.append(leader, b"after") == 1
    cluster.start(1)
    cluster.settle(2)
    assert [cluster.values(node_id) for node_id in (1, 2, 3)] == [[b"before", b"after"]] * 3


def test_a_leader_that_stood_still_cannot_acknowledge_and_cuts_off_what_it_took(cluster: Cluster) -> None:
    zombie = cluster.nodes[1]
    cluster.append(zombie, b"before")
    cluster.network.pause("1")
    leader = cluster.leader_but(1)
    cluster.append(leader, b"after")
    assert zombie.leads(ORDERS), "nobody can have told it"
    assert cluster.append(zombie, b"lost", acks=1) == 1
    with pytest.raises(commitlog.errors.ReplicationTimeoutError):
        cluster.append(zombie, b"lost too", acks="all")
    cluster.network.resume("1")
    cluster.until(lambda: not zombie.leads(ORDERS))
    with pytest.raises(commitlog.NotLeaderError) as refused:
        cluster.append(zombie, b"refused")
    assert refused.value.args[1] in (None, leader.node_id)
    cluster.settle(2)
    assert [cluster.values(node_id) for node_id in (1, 2, 3)] == [[b"before", b"after"]] * 3


def test_a_leader_cut_off_from_its_followers_takes_no_more_appends_for_all(cluster: Cluster) -> None:
    leader = cluster.nodes[1]
    cluster.append(leader, b"before")
    cluster.network.partition("1", "2")
    cluster.network.partition("1", "3")
    with pytest.raises(
        (commitlog.errors.ReplicationTimeoutError, commitlog.errors.NotEnoughReplicasAfterAppendError)
    ):
        cluster.append(leader, b"unsure")
    cluster.until(lambda: cluster.isr() == (1,))
    cluster.network.run_for(100)  # it is told
    with pytest.raises(commitlog.errors.NotEnoughReplicasError):
        cluster.append(leader, b"refused")
    assert leader.leads(ORDERS), "the controller hears it still"
    cluster.settle(2)
    assert [cluster.values(node_id) for node_id in (1, 2, 3)] == [[b"before", b"unsure"]] * 3


def test_a_leader_cut_off_from_all_is_replaced_and_follows_when_the_cut_heals(cluster: Cluster) -> None:
    cut = cluster.nodes[1]
    for other in ("2", "3", CONTROLLER):
        cluster.network.partition("1", other)
    leader = cluster.leader_but(1)
    assert cut.leads(ORDERS)
    cluster.append(cut, b"lost", acks=1)
    cluster.append(leader, b"kept")
    assert cluster.values(1) == [], "a reader must not see what will disappear"
    cluster.settle(1)
    assert [cluster.values(node_id) for node_id in (1, 2, 3)] == [[b"kept"]] * 3


def test_a_node_that_stops_hands_over_without_a_session_that_has_to_end(cluster: Cluster) -> None:
    first = cluster.nodes.pop(1)
    cluster.append(first, b"before")
    began_ms = cluster.network.now_ms()
    first.stop()
    first.log.close()
    leader = cluster.leader_but(1)
    assert cluster.network.now_ms() - began_ms < 100
    cluster.append(leader, b"after")
    cluster.start(1)
    cluster.settle(2)
    assert cluster.values(1) == [b"before", b"after"]


def test_a_node_that_comes_back_with_an_empty_disk_does_not_lead(cluster: Cluster) -> None:
    cluster.append(cluster.nodes[1], b"kept")
    cluster.network.run_for(SESSION_MS)  # all are heard of at the same moment
    for node_id in (1, 2, 3):
        cluster.network.crash(str(node_id))
        cluster.nodes.pop(node_id).log.close()
    cluster.until(lambda: not cluster.controller.state().nodes)
    assert cluster.isr() == (1, 2, 3)
    shutil.rmtree(cluster.path / "1")
    cluster.start(1)
    cluster.network.run_for(10_000)
    assert not cluster.nodes[1].leads(ORDERS)
    cluster.start(2)
    cluster.start(3)
    cluster.settle(1)
    assert [cluster.values(node_id) for node_id in (1, 2, 3)] == [[b"kept"]] * 3


def appended_through_failures(cluster: Cluster) -> dict[int, bytes]:
    """Append for two minutes at whoever leads, while leaders die and the network loses messages."""
    acknowledged: dict[int, bytes] = {}
    for number in range(60):
        if number in (15, 35):
            cluster.kill(cluster.leader_but().node_id)
        elif number in (25, 50):
            cluster.start(next(node_id for node_id in (1, 2, 3) if node_id not in cluster.nodes))
        elif number == 45:
            cluster.network.pause(str(cluster.leader_but().node_id))
        elif number == 48:
            cluster.network.heal()
        for node in [*cluster.nodes.values()]:
            value = b"%d at node %d" % (number, node.node_id)
            try:
                acknowledged[cluster.append(node, value)] = value
                break
            except commitlog.CommitLogError:
                cluster.network.run_for(200)  # another one may lead
        cluster.network.run_for(500)
    return acknowledged


def test_over_a_network_that_loses_messages_all_that_is_acknowledged_stays(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, seed=1, faults=LOSSY)
    try:
        acknowledged = appended_through_failures(cluster)
        assert len(acknowledged) > 20
        assert len(cluster.elections) > 3
        cluster.settle(max(acknowledged) + 1)
        for node_id in (1, 2, 3):
            found = dict(enumerate(cluster.values(node_id)))
            assert {offset: found[offset] for offset in acknowledged} == acknowledged
    finally:
        cluster.close()
    first, *others = cluster.files()
    assert others == [first, first]


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_seed_gives_the_same_run_byte_for_byte(tmp_path: Path, seed: int) -> None:
    runs = []
    for name in ("once", "again"):
        cluster = Cluster(tmp_path / name, seed, LOSSY)
        try:
            acknowledged = appended_through_failures(cluster)
        finally:
            cluster.close()
        runs.append((acknowledged, cluster.elections, cluster.network.now_ms(), cluster.files()))
    assert runs[0] == runs[1]


def test_a_static_controller_on_the_networks_clock_does_as_well(tmp_path: Path) -> None:
    network = LocalNetwork()
    controller = StaticController(call_soon=lambda call: network.call_later(1, call))
    nodes = []
    for node_id in (1, 2):
        log = commitlog.open(tmp_path / str(node_id))
        nodes.append(Node(log, network.transport(str(node_id)), controller, node_id, SETTINGS).start())
    first, second = nodes
    first.create_topic("orders", 1, 2)
    first.topic("orders").append(b"before")
    first.stop()
    assert second.wait_for_leader(ORDERS) == 2
    assert second.topic("orders").append(b"after") == (0, 1)
    second.stop()
    controller.close()
    for node in nodes:
        node.log.close()


def test_what_a_node_kept_before_a_replica_came_back_to_it_removes_nothing_when_it_starts(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in (b"a", b"b"):
        cluster.append(cluster.leader_but(), value)
    cluster.nodes[1].move(ORDERS, [1, 2])
    cluster.until(lambda: cluster.nodes[3].log.topics() == [])

    def full(state: ClusterState) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(cluster.nodes[3]._hosting, "keep", full)
        cluster.nodes[1].move(ORDERS, [1, 2, 3])
        cluster.until(lambda: cluster.isr() == (1, 2, 3) and cluster.values(3) == [b"a", b"b"])
        cluster.close_all_at_once()
    cluster.start(3)
    assert cluster.leader_but().node_id == 3
    cluster.start(1)
    cluster.start(2)
    cluster.until(lambda: cluster.isr() == (1, 2, 3))
    assert [cluster.values(node_id) for node_id in (1, 2, 3)] == [[b"a", b"b"]] * 3


def test_a_node_that_was_restored_from_an_older_backup_does_not_lead_before_it_has_caught_up(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.append(cluster.leader_but(), b"a")
    cluster.until(lambda: all(cluster.values(node_id) == [b"a"] for node_id in (1, 2, 3)))
    stopped = cluster.nodes.pop(3)
    stopped.stop()
    stopped.log.close()
    shutil.copytree(tmp_path / "3", tmp_path / "backup")
    cluster.start(3)
    cluster.until(lambda: cluster.isr() == (1, 2, 3))
    cluster.append(cluster.leader_but(), b"b")
    cluster.until(lambda: all(cluster.values(node_id) == [b"a", b"b"] for node_id in (1, 2, 3)))
    cluster.close_all_at_once()
    shutil.rmtree(tmp_path / "3")
    shutil.move(tmp_path / "backup", tmp_path / "3")
    cluster.start(3)
    assert 3 not in cluster.isr()
    cluster.start(1)
    cluster.start(2)
    cluster.until(lambda: cluster.isr() == (1, 2, 3))
    assert [cluster.values(node_id) for node_id in (1, 2, 3)] == [[b"a", b"b"]] * 3


def test_a_leader_whose_disk_takes_no_settings_asks_for_as_many_copies_as_the_topic_wants(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = cluster.leader_but()

    def full(name: TopicPartition, topic: TopicState) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(leader._hosting, "open", full)
        leader.alter_topic("orders", min_insync_replicas=3)
        cluster.until(lambda: bool(leader.health().not_replicated))
        cluster.kill(next(node_id for node_id in cluster.nodes if node_id != leader.node_id))
        cluster.until(lambda: len(cluster.isr()) == 2 and leader.leads(ORDERS))
        cluster.network.run_for(SESSION_MS)
        with pytest.raises(NotEnoughReplicasError):
            leader._core.check_can_append(ORDERS, "all")
    cluster.until(lambda: leader.topic("orders").config.min_insync_replicas == 3)
    cluster.until(lambda: not leader.health().not_replicated)


def test_a_node_that_cannot_open_what_it_is_to_lead_leaves_it_to_the_others(cluster: Cluster) -> None:
    cluster.nodes[1].log.create_topic("taken")  # the application's own
    cluster.nodes[2].create_topic("taken", 6, 3)
    names = [TopicPartition("taken", number) for number in range(6)]
    others = [cluster.nodes[2], cluster.nodes[3]]
    cluster.until(lambda: all(any(node.leads(name) for node in others) for name in names))
    assert cluster.nodes[1].log.topic("taken").partition(0).append(b"its own") == 0


def test_a_stopped_node_leaves_its_log_alone(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    node = cluster.nodes.pop(1)
    node.stop()
    node.stop()
    node.log.close()
    cluster.network.run_for(5 * node.config.high_watermark_checkpoint_interval_ms)
    assert "failed" not in caplog.text


def test_a_node_stops_although_its_controller_has_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    network = LocalNetwork()
    controller = StaticController(call_soon=lambda call: network.call_later(1, call))
    with commitlog.open(tmp_path) as log, Node(log, network.transport("1"), controller, 1, SETTINGS) as node:
        node.create_topic("orders")
        node.topic("orders").append(b"x")
        controller.close()
    assert "stops without telling its controller" in caplog.text
    with commitlog.open(tmp_path) as log:
        partition = log.topic("orders").partition(0)
        assert partition.recovery.clean
        assert [record.value for record in partition.records()] == [b"x"]
