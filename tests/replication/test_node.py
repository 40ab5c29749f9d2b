"""Nodes with real logs, on a network in one process and over real sockets."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest

import commitlog
from commitlog import NotLeaderError, PartitionFailedError, files
from commitlog.record import TopicPartition
from commitlog.replication.commands import ElectPreferred, Reassign
from commitlog.replication.controllers.static import StaticController
from commitlog.replication.node import Node
from commitlog.replication.transports.tcp import TcpTransport

ORDERS = TopicPartition("orders", 0)
SETTINGS = {"replica_fetch_wait_max_ms": 100, "replica_lag_time_max_ms": 1000, "replica_fetch_backoff_ms": 20}


class Cluster:
    """Three nodes, each with a log of its own, over sockets."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.controller = StaticController()
        self.nodes: dict[int, Node] = {}
        self._ends: dict[int, Callable[[], None]] = {}

    def start(self, node_id: int) -> Node:
        log = commitlog.open(self.path / str(node_id))
        transport = TcpTransport()
        node = Node(log, transport, self.controller, node_id, SETTINGS)
        node.start()
        self.nodes[node_id] = node

        def end() -> None:
            transport.close()
            log.close()

        self._ends[node_id] = end
        return node

    def stop(self, node_id: int, *, hand_over: bool = True) -> None:
        self.nodes.pop(node_id).stop(hand_over=hand_over)
        self._ends.pop(node_id)()

    def close(self) -> None:
        for node_id in list(self.nodes):
            self.stop(node_id, hand_over=False)
        self.controller.close()

    def leader(self, name: TopicPartition = ORDERS) -> Node:
        some = next(iter(self.nodes.values()))
        found = self.nodes[some.wait_for_leader(name)]
        assert wait(lambda: found.leads(name))
        return found


def wait(condition: Callable[[], bool]) -> bool:
    deadline = monotonic() + 30
    while not condition():
        if monotonic() > deadline:
            return False
        sleep(0.005)
    return True


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        yield made
    finally:
        made.close()


def three(cluster: Cluster, **config: object) -> Node:
    first, *_ = [cluster.start(node_id) for node_id in (1, 2, 3)]
    first.create_topic("orders", 1, 3, {"min_insync_replicas": 2, **config})
    return cluster.leader()


def files_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.glob("*.log"))}


def test_a_record_that_all_acknowledged_is_on_every_replica_byte_for_byte(cluster: Cluster) -> None:
    leader = three(cluster, segment_bytes=2000)
    orders = leader.topic("orders").partition(0)
    for number in range(100):
        assert orders.append(b"order %d" % number, key=b"k") == number
    offsets = orders.append_many([b"x" * 90] * 5)
    assert offsets == range(100, 105)
    for node in cluster.nodes.values():
        partition = node.log.topic("orders").partition(0)
        assert wait(lambda partition=partition: partition.high_watermark == 105)  # type: ignore[misc]
        assert [record.offset for record in partition.records()] == list(range(105))
    for node_id in list(cluster.nodes):
        cluster.stop(node_id, hand_over=False)
    first, *others = [files_of(cluster.path / str(node_id) / "orders-0") for node_id in (1, 2, 3)]
    assert len(first) > 3
    assert others == [first, first]


def test_a_leader_that_stops_hands_over_and_nothing_is_lost(cluster: Cluster) -> None:
    leader = three(cluster)
    leader.topic("orders").append(b"before")
    cluster.stop(leader.node_id)
    other = cluster.leader()
    assert other.node_id != leader.node_id
    other.topic("orders").append(b"after")
    cluster.start(leader.node_id)
    back = cluster.nodes[leader.node_id].log.topic("orders").partition(0)
    assert wait(lambda: back.high_watermark == 2)
    assert [record.value for record in back.records()] == [b"before", b"after"]


def test_a_follower_refuses_appends_and_names_the_leader(cluster: Cluster) -> None:
    leader = three(cluster)
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    assert wait(lambda: follower.log.topics() == ["orders"])
    with pytest.raises(commitlog.NotLeaderError) as problem:
        follower.topic("orders").append(b"x")
    assert problem.value.args[1] == leader.node_id
    with pytest.raises(commitlog.NotLeaderError):
        follower.log.topic("orders").append(b"x")


def test_appends_to_too_few_replicas_are_refused_before_anything_is_written(cluster: Cluster) -> None:
    leader = three(cluster)
    for node_id in [one for one in cluster.nodes if one != leader.node_id]:
        cluster.stop(node_id)
    assert wait(lambda: len(leader.state().partition(ORDERS).isr) == 1)
    orders = leader.topic("orders").partition(0)
    with pytest.raises(commitlog.errors.NotEnoughReplicasError):
        orders.append(b"x")
    assert orders.log.next_offset == 0
    assert orders.append(b"x", acks=1) == 0
    assert orders.log.high_watermark == 0


def test_a_producer_that_wants_all_waits_for_the_replicas(cluster: Cluster) -> None:
    leader = three(cluster)
    with leader.log.producer(acks="all") as producer:
        sent = [producer.send("orders", b"%d" % number) for number in range(1000)]
        assert [one.result(30).offset for one in sent] == list(range(1000))
        partition = leader.log.topic("orders").partition(0)
        assert partition.high_watermark == 1000


def test_a_topic_that_is_deleted_goes_on_every_node(cluster: Cluster) -> None:
    leader = three(cluster)
    leader.topic("orders").append(b"x")
    leader.delete_topic("orders")
    assert wait(lambda: all(node.log.topics() == [] for node in cluster.nodes.values()))
    leader.create_topic("orders", 1, 3)
    assert cluster.leader().topic("orders").append(b"y") == (0, 0)


def test_a_partition_moves_to_another_node_while_it_is_written(cluster: Cluster) -> None:
    nodes = [cluster.start(node_id) for node_id in (1, 2, 3)]
    nodes[0].create_topic("orders", 1, 1)
    old = cluster.leader()
    old.topic("orders").partition(0).append_many([b"x"] * 1000)
    target = next(node for node in nodes if node is not old)
    target.move(ORDERS, [target.node_id])
    assert wait(lambda: target.leads(ORDERS))
    assert target.topic("orders").append(b"y") == (0, 1000)
    assert wait(lambda: old.log.topics() == [])
    (kept,) = (Path(old.log.path) / "set-aside").iterdir()
    assert kept.name.startswith("orders-0.")


def test_a_client_without_files_appends_and_reads_through_the_nodes(cluster: Cluster) -> None:
    three(cluster)
    address = next(iter(cluster.nodes.values())).address
    assert address is not None
    with commitlog.connect(address) as remote:
        assert remote.topics() == ["orders"]
        orders = remote.topic("orders").partition(0)
        assert orders.append_many([b"%d" % number for number in range(1000)], acks="all") == range(1000)
        assert [record.value for record in orders.records(990)] == [b"%d" % n for n in range(990, 1000)]
        assert orders.to_arrow().num_rows == 1000


def test_a_client_does_not_wait_again_and_again_for_an_address_where_nobody_is(cluster: Cluster) -> None:
    three(cluster)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        dead = f"127.0.0.1:{nobody.getsockname()[1]}"
    with commitlog.connect(f"{dead},{cluster.nodes[2].address}") as remote:
        began = monotonic()
        for _ in range(12):  # the transport waits longer and longer before it tries to connect
            assert remote.topics() == ["orders"]
        assert monotonic() - began < 3


def test_a_client_goes_on_at_the_next_leader(cluster: Cluster) -> None:
    leader = three(cluster)
    other = next(node for node in cluster.nodes.values() if node is not leader)
    assert other.address is not None
    with commitlog.connect(other.address) as remote:
        orders = remote.topic("orders").partition(0)
        assert orders.append(b"before", acks="all") == 0
        cluster.stop(leader.node_id)
        assert orders.append(b"after", acks="all") == 1
        assert [record.value for record in orders.records()] == [b"before", b"after"]


def test_settings_of_a_topic_change_on_every_node_and_count_at_once(cluster: Cluster) -> None:
    leader = three(cluster)
    leader.alter_topic("orders", retention_ms=1000, min_insync_replicas=3)
    assert wait(
        lambda: all(node.topic("orders").config.retention_ms == 1000 for node in cluster.nodes.values())
    )
    other = next(node_id for node_id in cluster.nodes if node_id != leader.node_id)
    cluster.stop(other)
    assert wait(lambda: len(leader.state().partition(ORDERS).isr) == 2)
    partition = leader.topic("orders").partition(0)
    with pytest.raises(commitlog.errors.NotEnoughReplicasError):
        partition.append(b"refused")
    leader.alter_topic("orders", retention_ms=-1, min_insync_replicas=1)
    assert wait(lambda: leader.topic("orders").config.min_insync_replicas == 1)
    assert partition.append(b"taken") == 0
    back, settings = cluster.start(other), leader.topic("orders").config
    assert wait(lambda: back.topic("orders").config == settings)


def test_a_leader_that_cannot_store_new_settings_still_hears_that_another_one_leads(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = three(cluster)
    topic = leader.log.topic("orders")
    alter, failed, works = type(topic).alter_config, threading.Event(), threading.Event()

    def failing(self: commitlog.Topic, **changes: object) -> None:
        if self is topic and not works.is_set():
            failed.set()
            raise OSError(errno.EIO, "the disk is gone")
        alter(self, **changes)

    monkeypatch.setattr(type(topic), "alter_config", failing)
    leader.alter_topic("orders", retention_ms=1000)
    assert failed.wait(30)
    other, *rest = [node_id for node_id in cluster.nodes if node_id != leader.node_id]
    cluster.controller.submit(Reassign(ORDERS, (other, leader.node_id, *rest)))
    cluster.controller.submit(ElectPreferred())
    assert wait(lambda: not leader.leads(ORDERS))
    works.set()
    assert wait(lambda: topic.config.retention_ms == 1000)  # it is tried again


def test_a_topic_grows_and_leaders_go_back_to_where_they_were_at_first(cluster: Cluster) -> None:
    leader = three(cluster)
    leader.add_partitions("orders", 2)
    second = TopicPartition("orders", 1)
    assert cluster.leader(second).topic("orders").partition(1).append(b"x") == 0
    first = leader.state().partition(ORDERS)
    assert first is not None
    cluster.stop(leader.node_id)
    other = cluster.leader()
    cluster.start(leader.node_id)
    assert wait(lambda: len(other.state().partition(ORDERS).isr) == 3)
    other.elect_preferred()
    assert wait(lambda: other.state().partition(ORDERS).leader == first.replicas[0])


def test_a_leader_whose_disk_fails_resigns_and_nothing_acknowledged_is_lost(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = three(cluster)
    partition = leader.topic("orders").partition(0)
    partition.append(b"before")
    first, real = cluster.path / str(leader.node_id), files.sync_data

    def failing(fd: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{fd}")).is_relative_to(first):
            raise OSError(errno.EIO, "the disk is gone")
        real(fd)

    monkeypatch.setattr(files, "sync_data", failing)
    with pytest.raises(PartitionFailedError, match="the disk is gone"):
        partition.log.append(b"not synced", sync=True)
    assert wait(lambda: cluster.controller.state().partition(ORDERS).leader != leader.node_id)

    other = cluster.leader()
    assert other.node_id != leader.node_id
    assert leader.node_id not in other.state().partition(ORDERS).isr
    with pytest.raises(NotLeaderError):
        partition.append(b"too late")
    with commitlog.connect(leader.address) as far:  # it knows where to go
        far.topic("orders").append(b"after", acks="all")
    values = [record.value for record in other.topic("orders").partition(0).log.records()]
    assert values[0] == b"before"
    assert values[-1] == b"after"
    with pytest.raises(PartitionFailedError):
        leader.log.topic("orders").partition(0).sync()
    cluster.stop(leader.node_id)


def test_a_lone_leader_whose_disk_fails_stays_and_says_so(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = cluster.start(1)
    node.create_topic("orders", 1, 1, {})
    partition = node.topic("orders").partition(0)
    monkeypatch.setattr(files, "sync_data", failing_sync)
    with pytest.raises(PartitionFailedError):
        partition.log.append(b"not synced", sync=True)
    with pytest.raises(PartitionFailedError, match="the disk is gone"):
        partition.append(b"next")
    assert cluster.controller.state().partition(ORDERS).leader == 1


def failing_sync(fd: int) -> None:
    raise OSError(errno.EIO, "the disk is gone")


def test_a_topic_of_several_partitions_is_deleted_and_others_go_on(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = cluster.start(1), cluster.start(2)
    first.create_topic("orders", 3, 2, {})
    first.delete_topic("orders")
    first.create_topic("bills", 3, 2, {})  # nothing of the state before it was left undone
    assert wait(lambda: all(node.log.topics() == ["bills"] for node in (first, second)))
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
