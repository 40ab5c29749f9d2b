"""Controllers that come back empty or older, or are another cluster's, and disks that are gone."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import wait_until

import commitlog
from commitlog import files
from commitlog.errors import (
    CommitLogError,
    DiskFullError,
    NotJoinedError,
    StaleControllerError,
    TooManyOpenFilesError,
    TopicReplacedError,
    UnknownTopicError,
    WrongClusterError,
)
from commitlog.record import TopicPartition
from commitlog.replication import ControllerServer, Node, RemoteController, StaticController, TcpTransport
from commitlog.replication.commands import CreateTopic, DeleteTopic, JoinNode
from replication.zookeeper_server import free_port

ORDERS = TopicPartition("orders", 0)
SETTINGS = {"replica_fetch_wait_max_ms": 100, "replica_lag_time_max_ms": 1000, "replica_fetch_backoff_ms": 20}


class Served:
    """Nodes with logs of their own, and a controller of a directory at an address that stays."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.port = free_port()
        self.nodes: dict[int, Node] = {}
        self._ends: dict[int, Callable[[], None]] = {}
        self._end_controller: Callable[[], None] = lambda: None
        self.controller: StaticController | None = None

    def serve(self, name: str = "controller", *, accept_older: bool = False) -> StaticController:
        controller = StaticController.open(str(self.path / name), keep_nodes=True, accept_older=accept_older)
        transport = TcpTransport(port=self.port)
        server = ControllerServer(controller, transport, session_timeout_ms=3000)
        server.serve()
        self.controller = controller

        def end() -> None:
            server.close()
            transport.close()
            controller.close()

        self._end_controller = end
        return controller

    def end_controller(self) -> None:
        self._end_controller()
        self._end_controller = lambda: None

    def start(self, node_id: int, *, request_timeout_ms: int = 10_000) -> Node:
        log = commitlog.open(self.path / str(node_id))
        transport = TcpTransport()
        controller = RemoteController(
            transport, f"127.0.0.1:{self.port}", request_timeout_ms=request_timeout_ms, retry_ms=20
        )

        def end() -> None:
            controller.close()
            transport.close()
            log.close()

        node = Node(log, transport, controller, node_id, SETTINGS)
        try:
            node.start()
        except BaseException:
            end()
            raise
        self.nodes[node_id] = node
        self._ends[node_id] = end
        return node

    def stop(self, node_id: int, *, hand_over: bool = True) -> None:
        self.nodes.pop(node_id).stop(hand_over=hand_over)
        self._ends.pop(node_id)()

    def close(self) -> None:
        for node_id in list(self.nodes):
            self.stop(node_id, hand_over=False)
        self.end_controller()

    def leader(self) -> Node:
        def leading() -> list[Node]:
            return [node for node in self.nodes.values() if node.leads(ORDERS)]

        wait_until(lambda: bool(leading()), 30)
        return leading()[0]

    def values(self, node_id: int) -> list[bytes | None]:
        return [record.value for record in self.nodes[node_id].log.topic("orders").partition(0).records()]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path)
    try:
        yield made
    finally:
        made.close()


def with_records(served: Served, count: int = 100) -> list[bytes | None]:
    """Three nodes that all have the same records."""
    served.serve()
    for node_id in (1, 2, 3):
        served.start(node_id)
    served.nodes[1].create_topic("orders", 1, 3, {"min_insync_replicas": 2})
    values: list[bytes | None] = [b"%d" % number for number in range(count)]
    served.leader().topic("orders").partition(0).append_many(values)
    wait_until(lambda: all(served.values(node_id) == values for node_id in (1, 2, 3)), 30)
    return values


@pytest.mark.parametrize("wrong", ["empty", "older", "twin"])
def test_a_controller_that_forgot_costs_no_replica_and_all_goes_on_when_the_right_one_is_back(
    served: Served, tmp_path: Path, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    served.serve().close()
    served.end_controller()
    shutil.copytree(tmp_path / "controller", tmp_path / "older")
    values = with_records(served)
    if wrong == "twin":  # another cluster, with a topic of the same name
        twin = StaticController.open(str(tmp_path / "twin"))
        for node_id in (1, 2, 3):
            twin.register(JoinNode(node_id, f"host:{node_id}", clean=True))
        twin.submit(CreateTopic("orders", 1, 3, {}))
        twin.submit(DeleteTopic("orders"))
        twin.submit(CreateTopic("orders", 1, 3, {}))
        twin.close()
    served.end_controller()
    forgetful = served.serve(wrong)
    for _ in range(60):  # until its versions are far above those that the nodes know
        try:
            forgetful.register(JoinNode(9, "host:9", clean=True))
        except StaleControllerError:
            break
    expected = "restored from an older copy" if wrong == "older" else "belongs to cluster"
    nodes = served.nodes.values()
    wait_until(lambda: all(expected in (node.health().problem or "") for node in nodes), 30)
    assert expected in caplog.text
    # as without a controller: what led goes on leading
    served.leader().topic("orders").append(b"meanwhile")
    with pytest.raises((WrongClusterError, StaleControllerError)):
        served.nodes[1].delete_topic("orders")
    served.end_controller()
    served.serve()
    wait_until(lambda: all(node.health().problem is None for node in served.nodes.values()), 30)
    wait_until(lambda: all(node.health().joined for node in served.nodes.values()), 30)
    for _ in range(2):
        served.leader().topic("orders").append(b"after")
    values += [b"meanwhile", b"after", b"after"]
    wait_until(lambda: all(served.values(node_id) == values for node_id in (1, 2, 3)), 30)
    assert not any((tmp_path / str(node_id) / "set-aside").exists() for node_id in (1, 2, 3))


def test_a_node_that_starts_with_the_controller_of_another_cluster_is_refused_with_both_ids(
    served: Served, tmp_path: Path
) -> None:
    first = served.serve().state().cluster_id
    served.start(1)
    served.stop(1)
    served.end_controller()
    second = served.serve("another").state().cluster_id
    with pytest.raises(WrongClusterError) as refused:
        served.start(1)
    assert set(refused.value.args) == {first, second}


def test_an_operator_may_restore_the_controller_from_what_a_node_kept(served: Served, tmp_path: Path) -> None:
    values = with_records(served)
    served.end_controller()
    (tmp_path / "restored").mkdir()
    newest = max(served.nodes.values(), key=lambda node: node.health().version)
    shutil.copy(Path(newest.log.path) / "cluster-state.json", tmp_path / "restored" / "cluster.json")
    served.serve("restored")
    wait_until(lambda: all(node.health().problem is None for node in served.nodes.values()), 30)
    served.leader().topic("orders").append(b"after")
    wait_until(lambda: all(served.values(node_id) == [*values, b"after"] for node_id in (1, 2, 3)), 30)


def test_an_operator_may_take_a_node_to_another_cluster_and_its_records_stay(
    served: Served, tmp_path: Path
) -> None:
    with_records(served)
    for node_id in (1, 2, 3):
        served.stop(node_id, hand_over=False)
    served.end_controller()
    served.serve("another")
    (tmp_path / "1" / "cluster-state.json").unlink()
    node = served.start(1)
    assert node.health().joined
    assert list(node.health().unknown_topics) == ["orders"]
    assert node.log.topic("orders").partition(0).next_offset == 100


def test_a_topic_that_is_deleted_while_a_node_is_away_is_set_aside_there_when_it_is_back(
    served: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with_records(served)
    served.stop(3)
    served.nodes[1].delete_topic("orders")
    wait_until(lambda: served.nodes[1].log.topics() == served.nodes[2].log.topics() == [], 30)
    served.nodes[1].create_topic("orders", 1, 2)
    third = served.start(3)
    wait_until(lambda: (tmp_path / "3" / "set-aside").exists() and third.log.topics() != ["orders"], 30)
    assert "node 3: topic orders" in caplog.text
    assert third.health().unknown_topics == {}


def test_a_deletion_is_forgotten_once_every_member_has_come_back_since(served: Served) -> None:
    with_records(served)
    served.nodes[1].delete_topic("orders")
    assert served.controller is not None
    for node_id in (1, 2, 3):
        wait_until(lambda node_id=node_id: served.nodes[node_id].log.topics() == [], 30)  # type: ignore[misc]
        assert served.controller.state().deleted
        served.stop(node_id)
        served.start(node_id)
    assert served.controller.state().deleted == {}


def test_when_the_leader_comes_back_with_an_empty_disk_another_one_leads_and_nothing_is_lost(
    served: Served, tmp_path: Path
) -> None:
    values = with_records(served)
    leader = served.leader().node_id
    served.stop(leader, hand_over=False)
    shutil.rmtree(tmp_path / str(leader))
    served.start(leader)
    wait_until(lambda: served.leader().node_id != leader, 30)
    wait_until(lambda: "orders" in served.nodes[leader].log.topics(), 30)
    wait_until(lambda: all(served.values(node_id) == values for node_id in (1, 2, 3)), 30)


def test_nobody_leads_when_the_only_one_in_sync_has_lost_its_disk_until_it_is_decided(
    served: Served, tmp_path: Path
) -> None:
    values = with_records(served)
    leader = served.leader().node_id
    others = [node_id for node_id in (1, 2, 3) if node_id != leader]
    for node_id in others:
        served.stop(node_id, hand_over=False)
    wait_until(lambda: served.controller.state().partition(ORDERS).isr == (leader,), 30)
    served.stop(leader, hand_over=False)
    shutil.move(tmp_path / str(leader), tmp_path / "old disk")
    for node_id in (leader, *others):
        served.start(node_id)
    one = served.nodes[leader].state().partition(ORDERS)
    assert one is not None
    assert (one.leader, one.isr, one.awaits is not None) == (None, (leader,), True)
    assert all(served.values(node_id) == values for node_id in others)
    served.stop(leader, hand_over=False)
    shutil.rmtree(tmp_path / str(leader))
    shutil.move(tmp_path / "old disk", tmp_path / str(leader))
    served.start(leader)
    assert served.leader().node_id == leader
    wait_until(lambda: all(served.values(node_id) == values for node_id in (1, 2, 3)), 30)


# --- nodes that are not in the cluster


def test_a_node_starts_without_a_controller_serves_what_it_has_and_joins_later(served: Served) -> None:
    values = with_records(served)
    served.stop(1)
    served.end_controller()
    first = served.start(1, request_timeout_ms=200)
    health = first.health()
    assert (health.joined, "does not answer" in (health.problem or "")) == (False, True)
    assert served.values(1) == values
    assert first.address is not None
    with pytest.raises(NotJoinedError):
        commitlog.connect(first.address, timeout_ms=500)
    served.serve()
    wait_until(lambda: first.health().joined, 30)
    with commitlog.connect(first.address) as remote:
        assert remote.topics() == ["orders"]


def test_a_client_asks_others_when_a_node_has_not_joined_yet(served: Served) -> None:
    with_records(served)
    served.stop(1)
    addresses = [node.address for node in served.nodes.values()]
    served.end_controller()
    unjoined = served.start(1, request_timeout_ms=200)
    with commitlog.connect(",".join([str(unjoined.address), *map(str, addresses)])) as remote:
        orders = remote.topic("orders").partition(0)
        assert orders.append(b"x", acks="all") == 100
        with pytest.raises(UnknownTopicError):
            remote.topic("no such topic")


def test_a_client_notices_that_its_topic_was_created_again(served: Served) -> None:
    with_records(served)
    assert served.nodes[1].address is not None
    with commitlog.connect(served.nodes[1].address) as remote:
        orders = remote.topic("orders").partition(0)
        remote.delete_topic("orders")
        wait_until(lambda: served.nodes[1].log.topics() == [], 30)
        remote.create_topic("orders", replication_factor=3)
        for use in (lambda: orders.append(b"x"), lambda: orders.get(0)):
            with pytest.raises((TopicReplacedError, UnknownTopicError)):
                use()
        assert remote.topic("orders").partition(0).append(b"first") == 0


def test_a_lagging_replica_does_not_deny_offsets_that_exist(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = with_records(served)
    leader = served.leader()
    lagging = next(node for node in served.nodes.values() if node is not leader)
    replica = lagging._core.replica(ORDERS)
    monkeypatch.setattr(replica, "answered", lambda asked, part, now_ms: None)  # it stores nothing more
    monkeypatch.setattr(replica, "question", lambda leader, now_ms: None)  # it fetches nothing more
    lagging.wait_for_leader(ORDERS)
    more = [b"%d" % number for number in range(100, 150)]
    leader.topic("orders").partition(0).append_many([b"on its way"], acks=1)
    leader.topic("orders").partition(0).append_many(more, acks=1)
    leader.topic("orders").partition(0).append_many([b"last"])
    wait_until(lambda: leader.log.topic("orders").partition(0).high_watermark == 152, 30)
    assert lagging.log.topic("orders").partition(0).next_offset == 100
    assert lagging.address is not None
    with commitlog.connect(lagging.address, read_from="any") as remote:
        orders = remote.topic("orders").partition(0)
        assert [record.value for record in orders.records(141)] == [*more[40:], b"last"]
        record = orders.get(151)
        assert record is not None
        assert record.value == b"last"
        everything = [*values, b"on its way", *more, b"last"]
        assert [record.value for record in orders.records(0, 152)] == everything


# --- what a node cannot hold


def test_a_topic_for_which_there_are_too_few_files_is_refused_before_the_controller_hears_of_it(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_records(served)
    monkeypatch.setattr(files, "descriptors_left", lambda: 100)
    with pytest.raises(TooManyOpenFilesError):
        served.nodes[1].create_topic("many", 500, 3)
    with pytest.raises(TooManyOpenFilesError):
        served.nodes[1].add_partitions("orders", 500)
    assert served.nodes[1].address is not None
    with commitlog.connect(served.nodes[1].address) as remote, pytest.raises(CommitLogError, match="ulimit"):
        remote.create_topic("many", 500, replication_factor=3)
    assert list(served.nodes[1].state().topics) == ["orders"]


def test_a_topic_that_cannot_be_opened_holds_up_no_other_and_is_logged_once(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_records(served)
    assert served.controller is not None
    with monkeypatch.context() as patch:
        patch.setattr(files, "descriptors_left", lambda: 0)
        served.controller.submit(CreateTopic("many", 20, 3, {}))
        wait_until(lambda: all(node.health().not_replicated for node in served.nodes.values()), 30)
        served.leader().topic("orders").append(b"not held up")
        for name in ("one more", "another"):
            served.controller.register(JoinNode(9, name, clean=True))
    assert "many" in served.nodes[1].health().not_replicated
    assert caplog.text.count("node 1: topic many is not replicated properly") == 1
    wait_until(lambda: not any(node.health().not_replicated for node in served.nodes.values()), 60)
    assert len(served.nodes[1].log.topic("many").partitions) == 20


def test_a_follower_on_a_full_disk_says_so_once_and_follows_again_when_there_is_room(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_records(served)
    leader = served.leader()
    follower = next(node for node in served.nodes.values() if node is not leader)
    replica = follower._core.replica(ORDERS)
    assert replica is not None
    tries: list[int] = []

    def full(*_: object) -> int:
        tries.append(1)
        raise DiskFullError("orders-0", "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(replica.log, "append_replicated", full)
        leader.topic("orders").append(b"x")
        wait_until(lambda: len(tries) >= 4, 30)
        assert "No space left" in follower.health().not_following[ORDERS]
        assert caplog.text.count("No space left on device") == 1
        assert "Traceback" not in caplog.text
    wait_until(lambda: not follower.health().not_following, 30)
    wait_until(lambda: follower.log.topic("orders").partition(0).next_offset == 101, 30)
