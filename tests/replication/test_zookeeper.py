"""What is particular to a controller that the nodes elect by ZooKeeper. A real one runs beside the tests."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers import wait_until

from replication import zookeeper_server
from replication.proxy import Proxy
from replication.rigs import ORDERS, Listener
from replication.zookeeper_server import ZooKeeperServer, free_port

if (reason := zookeeper_server.missing()) is not None and not zookeeper_server.REQUIRED:
    pytest.skip(f"needs ZooKeeper: {reason}", allow_module_level=True)

from kazoo import client as kazoo_client
from kazoo.exceptions import ConnectionLoss, NoNodeError
from kazoo.protocol.serialization import Close, Connect

from commitlog.errors import (
    InvalidReplicasError,
    NoControllerError,
    ProtocolError,
    StaleControllerError,
    TopicExistsError,
    WrongClusterError,
)
from commitlog.replication import rules
from commitlog.replication.cluster import ClusterState
from commitlog.replication.commands import CreateTopic, ElectPreferred, JoinNode, Submitted
from commitlog.replication.controllers.zookeeper import elected, requests
from commitlog.replication.controllers.zookeeper.controller import ZooKeeperController
from commitlog.replication.controllers.zookeeper.elected import DeposedError, Elected
from commitlog.replication.controllers.zookeeper.requests import answered, read_answer
from commitlog.replication.controllers.zookeeper.znodes import Cluster, Layout, packed_node, read_state
from commitlog.replication.transports.wire import command_to_json
from replication.zookeeper_rig import ZooKeeperRig


@pytest.fixture
def rig(zookeeper: ZooKeeperServer) -> Iterator[ZooKeeperRig]:
    one = ZooKeeperRig(zookeeper)
    yield one
    one.close()


@pytest.fixture
def client(rig: ZooKeeperRig) -> Iterator[Any]:
    """Somebody who looks on, or meddles."""
    one = kazoo_client.KazooClient(rig.server.hosts)
    one.start()
    yield one
    one.stop()
    one.close()


def controller_of(node: Listener) -> ZooKeeperController:
    assert isinstance(node.controller, ZooKeeperController)
    return node.controller


def end_session(node: Listener) -> None:
    """End a node's session from outside: anyone who knows its id and password may close it.

    The request to close it is sent together with the one that takes the session over. The node's client
    loses its connection then, and may still take the session back before it is closed: then once more.
    """
    client = controller_of(node)._client
    session_id, password = client.client_id
    connect = Connect(0, client.last_zxid, 10_000, session_id, password, False).serialize()
    close = struct.pack(">ii", 1, Close.type)
    is_closed = False
    while not is_closed:
        with socket.create_connection(client.hosts[0], timeout=30) as connection:
            connection.sendall(b"".join(struct.pack(">i", len(part)) + part for part in (connect, close)))
            answers = b"".join(iter(lambda: connection.recv(4096), b""))
        is_closed = _session_is_closed(answers)


def _session_is_closed(answers: bytes) -> bool:
    """Say whether the session had expired when it was taken over, or was closed without an error."""
    if len(answers) < 12:
        return False
    size, _, timeout_ms = struct.unpack_from(">iii", answers)
    if timeout_ms <= 0:
        return True
    closed = answers[4 + size :]
    return len(closed) >= 20 and struct.unpack_from(">iqi", closed, 4)[2] == 0


def started(rig: ZooKeeperRig, nodes: int = 3, replicas: int | None = None) -> list[Listener]:
    listeners = [rig.node(node_id) for node_id in range(1, nodes + 1)]
    for listener in listeners:
        listener.join()
    listeners[0].controller.submit(CreateTopic("orders", 1, replicas or nodes, {}))
    wait_until(lambda: all(listener.orders() for listener in listeners))
    wait_until(lambda: all(len(listener.state.nodes) == nodes for listener in listeners))
    return listeners


# --- what is where


def test_the_znodes_are_those_that_the_docs_tell_of(rig: ZooKeeperRig, client: Any) -> None:
    first, _ = started(rig, 2)
    assert sorted(client.get_children(rig.root)) == [
        "cluster", "controller", "controller_epoch", "nodes", "requests", "topics",
    ]  # fmt: skip
    raw, stat = client.get(f"{rig.root}/nodes/1")
    assert json.loads(raw) == {"address": "host:1", "clean": True, "disk_id": "", "heard": None}
    assert stat.ephemeralOwner and stat.czxid == first.incarnation
    topic = json.loads(client.get(f"{rig.root}/topics/orders")[0])
    assert topic["partitions"][0][:3] == [[1, 2], [1, 2], 1]
    assert client.get(f"{rig.root}/controller_epoch")[0] == b"1"
    wait_until(lambda: client.get_children(f"{rig.root}/requests") == [])


def test_a_node_that_is_closed_is_gone_at_once(rig: ZooKeeperRig, client: Any) -> None:
    first, second = started(rig, 2)
    first.controller.close()
    assert client.exists(f"{rig.root}/nodes/1") is None
    wait_until(lambda: (one := second.orders()) is not None and one.leader == 2)


def test_who_is_no_node_may_look_and_change_topics(rig: ZooKeeperRig) -> None:
    visitor = rig.controller(rig.server.hosts)
    assert visitor.state().topics == {}
    started(rig, 2)
    visitor.submit(CreateTopic("other", 1, 1, {}))
    assert set(visitor.state().topics) == {"orders", "other"}
    assert not visitor.is_elected


def test_without_zookeeper_a_caller_is_told_so() -> None:
    controller = ZooKeeperController(f"127.0.0.1:{free_port()}", request_timeout_ms=100)
    with pytest.raises(NoControllerError, match="cannot reach ZooKeeper at"):
        controller.submit(CreateTopic("orders", 1, 1, {}))
    controller.close()


def test_without_a_node_nobody_answers(rig: ZooKeeperRig) -> None:
    controller = ZooKeeperController(rig.server.hosts, root=rig.root, request_timeout_ms=200)
    with pytest.raises(NoControllerError, match="nobody answered"):
        controller.submit(CreateTopic("orders", 1, 1, {}))
    controller.close()


def test_without_kazoo_the_error_tells_what_to_install() -> None:
    module = "commitlog.replication.controllers.zookeeper.controller"
    program = f"import sys; sys.modules['kazoo'] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install commitlog[zookeeper]" in done.stderr


# --- who is elected


def test_one_controller_is_elected_and_another_when_its_session_ends(rig: ZooKeeperRig) -> None:
    first, second, third = started(rig)
    elected = [node for node in (first, second, third) if controller_of(node).is_elected]
    assert elected == [first]
    epoch = second.state.epoch
    end_session(first)
    wait_until(lambda: second.state.epoch > epoch)
    wait_until(lambda: (one := third.orders()) is not None and one.leader == 2)
    others = [second, third]
    wait_until(lambda: sum(controller_of(node).is_elected for node in others) == 1)


def test_the_elected_controller_that_stops_resigns(rig: ZooKeeperRig) -> None:
    first, second, third = started(rig)
    assert controller_of(first).is_elected
    assert first.controller.leave(1, 10_000)
    first.controller.gone(1)
    wait_until(lambda: controller_of(second).is_elected or controller_of(third).is_elected)
    wait_until(lambda: 1 not in second.state.nodes and 1 not in third.state.nodes)
    assert not controller_of(first).is_elected


def governors(rig: ZooKeeperRig, client: Any, count: int) -> list[Elected]:
    """Controllers that were elected one after another, none of which has heard of the next."""
    layout = Layout(rig.root)
    layout.make(client)
    found = []
    for number in range(count):
        one = Elected.stand(client, layout, f"node {number}", lambda event: None)
        assert one is not None
        one.govern()
        found.append(one)
        client.delete(layout.controller)
    return found


def asked(client: Any, rig: ZooKeeperRig, command: Submitted) -> str:
    """Make a request; returns its path."""
    body = json.dumps(command_to_json(command)).encode()
    return str(client.create(f"{rig.root}/requests/r-", body, ephemeral=True, sequence=True))


def test_the_elected_controller_that_stops_resigns_though_its_connection_breaks(
    rig: ZooKeeperRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = started(rig, 2)
    stopping = controller_of(first)
    wait_until(lambda: stopping.is_elected)
    delete, lost = stopping._client.delete, list[str]()

    def losing(path: str, **how: Any) -> None:
        if path == stopping._layout.controller and not lost:
            lost.append(path)
            raise ConnectionLoss
        delete(path, **how)

    monkeypatch.setattr(stopping._client, "delete", losing)
    stopping.gone(1)
    wait_until(lambda: controller_of(second).is_elected)
    assert lost


def test_nobody_is_elected_while_another_is(rig: ZooKeeperRig, client: Any) -> None:
    layout = Layout(rig.root)
    layout.make(client)
    assert Elected.stand(client, layout, "node 1", lambda event: None) is not None
    assert Elected.stand(client, layout, "node 2", lambda event: None) is None


def test_an_old_controller_can_write_nothing(rig: ZooKeeperRig, client: Any) -> None:
    layout = Layout(rig.root)
    old, new = governors(rig, client, 2)
    before = read_state(client, layout, None, None)
    client.create(layout.node(1), packed_node(JoinNode(1, "host:1", clean=True)), ephemeral=True)
    with pytest.raises(DeposedError):
        old.govern()
    assert read_state(client, layout, None, None) == before
    new.govern()
    assert set(read_state(client, layout, None, None).nodes) == {1}
    request = asked(client, rig, CreateTopic("orders", 1, 1, {}))
    with pytest.raises(DeposedError):
        old.govern()
    assert client.get(request)[1].version == 0, "not answered"
    new.govern()
    assert read_answer(client.get(request)[0]).error is None


def test_a_request_is_carried_out_by_whoever_is_elected_and_once(rig: ZooKeeperRig, client: Any) -> None:
    layout = Layout(rig.root)
    layout.make(client)
    client.create(layout.node(1), packed_node(JoinNode(1, "host:1", clean=True)), ephemeral=True)
    request = asked(client, rig, CreateTopic("orders", 1, 1, {}))
    old, new = governors(rig, client, 2)
    old._answered.clear()
    new.govern()
    assert read_answer(client.get(request)[0]).error is None
    assert client.get(request)[1].version == 1
    assert set(read_state(client, layout, None, None).topics) == {"orders"}


def test_what_was_asked_by_one_whose_session_is_over_is_not_done(rig: ZooKeeperRig, client: Any) -> None:
    (one,) = governors(rig, client, 1)
    layout = Layout(rig.root)
    client.create(layout.node(1), packed_node(JoinNode(1, "host:1", clean=True)), ephemeral=True)
    one.govern()
    request = asked(client, rig, CreateTopic("orders", 1, 1, {}))

    class Gone:
        """A client that finds the request, which is gone when it is to be answered."""

        def __getattr__(self, name: str) -> Any:
            return getattr(client, name)

        def transaction(self) -> Any:
            if client.exists(request):
                client.delete(request)
            return client.transaction()

    one._client = Gone()
    one.govern()
    assert read_state(client, layout, None, None).topics == {}
    one._client = client
    asked(client, rig, CreateTopic("later", 1, 1, {}))
    one.govern()
    assert set(read_state(client, layout, None, None).topics) == {"later"}


class Failing:
    """A client whose connection is lost at the given transaction, before or after ZooKeeper has it."""

    def __init__(self, client: Any, at: int, *, done: bool) -> None:
        self._client = client
        self._left = at
        self._done = done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def transaction(self) -> Any:
        transaction = self._client.transaction()
        self._left -= 1
        if self._left == 0:
            commit, done = transaction.commit, self._done

            def lost() -> None:
                if done:
                    commit()
                raise ConnectionLoss

            transaction.commit = lost
        return transaction


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_change_of_many_topics_is_finished_by_the_next_controller(
    rig: ZooKeeperRig, client: Any, monkeypatch: pytest.MonkeyPatch, at: int, done: bool
) -> None:
    """Each topic is written in a transaction of its own here; the connection is lost at one of them."""
    layout = Layout(rig.root)
    (old,) = governors(rig, client, 1)
    for node_id in (1, 2):
        client.create(
            layout.node(node_id), packed_node(JoinNode(node_id, "host", clean=True)), ephemeral=True
        )
    names = ["a", "b", "c"]
    for name in names:
        asked(client, rig, CreateTopic(name, 2, 2, {}))
    old.govern()
    watcher = read_state(client, layout, None, None)
    assert set(watcher.topics) == set(names)
    monkeypatch.setattr(elected, "_MOST_BYTES", 1)
    client.delete(layout.node(1))
    old._client = Failing(client, at, done=done)
    if at <= 3:
        with pytest.raises(ConnectionLoss):
            old.govern()
        watcher = read_state(client, layout, watcher, None)
    new = Elected.stand(client, layout, "node 2", lambda event: None)
    assert new is not None
    new.govern()
    after = read_state(client, layout, watcher, None)
    assert after == read_state(client, layout, None, None), "who reads only what has changed misses nothing"
    for topic in after.topics.values():
        for one in topic.partitions:
            assert (one.leader, one.isr) == (2, (2,))
            assert one.leader_epoch <= 1, "no election was made twice"
    old._client = client
    with pytest.raises(DeposedError):
        old._state = None
        old.govern()


def test_who_has_missed_many_changes_reads_all_topics_again() -> None:
    cluster = Cluster()
    for version in range(1, 101):
        cluster = cluster.followed_by(ClusterState(version=version), [f"t{version}"])
    assert cluster.changed_since(100) == set()
    assert cluster.changed_since(98) == {"t99", "t100"}
    assert cluster.changed_since(36) == {f"t{version}" for version in range(37, 101)}
    assert cluster.changed_since(35) is None
    assert Cluster.unpacked(cluster.packed()) == cluster


# --- requests


def test_what_is_no_request_is_answered_so() -> None:
    for raw in (b"", b"[]", b'["Fly",{}]', b'["LeaveNode",{}]', b'[["LeaveNode"],{}]', b"[" * 100_000):
        state, answer = answered(ClusterState(), raw)
        assert state == ClusterState()
        assert isinstance(read_answer(answer).error, ProtocolError)


def test_a_topic_that_zookeeper_would_not_take_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MOST_TOPIC_BYTES", 100)
    state = rules.apply(ClusterState(), JoinNode(1, "host", clean=True))
    after, answer = answered(state, json.dumps(command_to_json(CreateTopic("orders", 10))).encode())
    assert after is state
    assert isinstance(read_answer(answer).error, InvalidReplicasError)


def test_a_leader_is_told_of_a_decision_once_the_state_by_which_it_was_made_is_read() -> None:
    calls: list[Any] = []
    told: list[bool] = []
    controller = ZooKeeperController("127.0.0.1:1", call_soon=calls.append)
    controller._decisions = [(5, told.append, False)]
    controller._state = ClusterState(version=4)
    controller._tell_decisions()
    assert calls == []
    controller._state = ClusterState(version=5)
    controller._tell_decisions()
    (call,) = calls
    call()
    assert told == [False]
    controller.close()


# --- sessions


def test_a_node_whose_session_ended_is_fenced_until_it_has_joined_again(rig: ZooKeeperRig) -> None:
    first, second, third = started(rig)
    incarnation = second.incarnation
    end_session(second)
    wait_until(lambda: any(2 not in state.nodes for state in second.heard))
    wait_until(lambda: 2 in second.state.nodes and second.incarnation > incarnation)
    wait_until(lambda: (one := third.orders()) is not None and one.isr == (1, 3))
    wait_until(lambda: 2 in first.state.nodes and first.state.nodes[2].incarnation == second.incarnation)
    assert first.decided(first.proposal(1, 2, 3))


def test_the_only_node_whose_session_ended_leads_again_in_a_new_epoch(rig: ZooKeeperRig) -> None:
    (first,) = started(rig, 1)
    end_session(first)
    wait_until(lambda: (one := first.orders()) is not None and one.leader_epoch == 1 and one.leader == 1)
    fenced = [state for state in first.heard if 1 not in state.nodes]
    assert fenced


def test_a_node_whose_znode_was_deleted_makes_it_again(rig: ZooKeeperRig, client: Any) -> None:
    _, second, _ = started(rig)
    incarnation = second.incarnation
    client.delete(f"{rig.root}/nodes/2")
    wait_until(lambda: 2 in second.state.nodes and second.incarnation > incarnation)


@contextmanager
def listening(
    server: ZooKeeperServer, *, session_timeout_ms: int, request_timeout_ms: int
) -> Iterator[list[Listener]]:
    """Two nodes that listen to the server's state."""
    with ExitStack() as stack:
        controllers = [
            ZooKeeperController(
                server.hosts, session_timeout_ms=session_timeout_ms, request_timeout_ms=request_timeout_ms
            )
            for _ in range(2)
        ]
        for one in controllers:
            stack.callback(one.close)
        nodes = [Listener(number, controller) for number, controller in enumerate(controllers, 1)]
        for node in nodes:
            node.join()
        yield nodes


def test_when_zookeeper_restarts_nodes_and_leaders_stay_who_they_are(own_zookeeper: ZooKeeperServer) -> None:
    server = own_zookeeper
    with listening(server, session_timeout_ms=60_000, request_timeout_ms=120_000) as nodes:
        nodes[0].controller.submit(CreateTopic("orders", 1, 2, {}))
        wait_until(lambda: all(node.orders() for node in nodes))
        lives = dict(nodes[0].state.nodes)
        server.stop()
        server.start()
        nodes[1].controller.submit(CreateTopic("later", 1, 1, {}))
        wait_until(lambda: all("later" in node.state.topics for node in nodes), 120)
        assert dict(nodes[0].state.nodes) == lives
        one = nodes[0].orders()
        assert one is not None and (one.leader, one.leader_epoch) == (1, 0)


def test_a_server_that_accepts_a_connection_and_never_answers_does_not_cost_the_session(
    own_zookeeper: ZooKeeperServer,
) -> None:
    """As one does now and then that is just starting."""
    with closing(Proxy(own_zookeeper.port)) as proxy:
        controller = ZooKeeperController(proxy.hosts, session_timeout_ms=16_000, request_timeout_ms=120_000)
        with closing(controller):
            node = Listener(1, controller)
            node.join()
            wait_until(lambda: 1 in node.state.nodes)
            incarnation = node.state.nodes[1].incarnation
            proxy.end_and_mute_next()
            controller.submit(CreateTopic("later", 1, 1, {}))
            wait_until(lambda: "later" in node.state.topics, 60)
            assert node.state.nodes[1].incarnation == incarnation


def created(node: Listener, name: str, replicas: int) -> None:
    """Create a topic, though the session of whoever asks or answers may just have ended."""

    def there() -> bool:
        try:
            node.controller.submit(CreateTopic(name, 1, replicas, {}))
        except TopicExistsError:
            return True
        except (NoControllerError, InvalidReplicasError):
            return False
        return True

    wait_until(there, 60)


def without_znodes(server: ZooKeeperServer) -> None:
    """Delete the znodes of a server that is stopped, where no node hears of it: at another port."""
    port, server.port = server.port, 0
    server.start()
    client = kazoo_client.KazooClient(server.hosts)
    client.start()
    client.delete("/commitlog", recursive=True)
    client.stop()
    client.close()
    server.stop()
    server.port = port


@pytest.mark.parametrize("how", ["the servers", "the znodes", "an older copy"])
def test_nodes_do_not_listen_to_a_zookeeper_that_lost_its_data_and_do_when_they_are_back(
    own_zookeeper: ZooKeeperServer, how: str, tmp_path: Path
) -> None:
    server = own_zookeeper
    with listening(server, session_timeout_ms=3000, request_timeout_ms=60_000) as nodes:
        if how == "an older copy":
            server.stop()
            shutil.copytree(server.data, tmp_path / "older")
            server.start()
        wait_until(lambda: set(nodes[0].state.nodes) == {1, 2}, 60)
        created(nodes[0], "orders", 2)
        wait_until(lambda: all(node.orders() for node in nodes), 60)
        wait_until(lambda: all(node.state == nodes[0].state for node in nodes), 60)
        server.stop()
        shutil.copytree(server.data, tmp_path / "right")
        if how == "the znodes":
            without_znodes(server)
        else:
            shutil.rmtree(server.data)
        if how == "an older copy":
            shutil.copytree(tmp_path / "older", server.data)
        server.start()
        error = StaleControllerError if how == "an older copy" else WrongClusterError
        wait_until(lambda: all(isinstance(node.controller.problem(), error) for node in nodes), 60)
        assert all(node.orders() is not None for node in nodes)
        newcomer = JoinNode(3, "host:3", clean=True, known=nodes[0].state.known)
        late = ZooKeeperController(server.hosts, request_timeout_ms=5000)
        with closing(late), pytest.raises((NoControllerError, error)):
            late.join(newcomer, lambda state: None)
        server.stop()
        shutil.rmtree(server.data)
        shutil.copytree(tmp_path / "right", server.data)
        server.start()
        wait_until(lambda: all(node.controller.problem() is None for node in nodes), 60)
        created(nodes[1], "later", 1)
        wait_until(lambda: all({"later", "orders"} <= set(node.state.topics) for node in nodes), 60)


class Lagging:
    """A client of a server that is behind the others, until it is asked to catch up."""

    def __init__(self, client: Any, path: str, older: bytes | None) -> None:
        self._client, self._path, self._older, self._behind = client, path, older, True

    def get(self, path: str, **options: Any) -> Any:
        if path != self._path or not self._behind:
            return self._client.get(path, **options)
        if self._older is None:
            raise NoNodeError
        return self._older, None

    def sync(self, path: str) -> None:
        self._client.sync(path)
        self._behind = False

    def create(self, path: str, value: bytes) -> None:
        self._client.create(path, value)


@pytest.mark.parametrize("has_heard_of_it", [True, False])
def test_a_server_that_is_behind_is_not_taken_for_an_older_copy(
    rig: ZooKeeperRig, client: Any, has_heard_of_it: bool
) -> None:
    (node,) = started(rig, nodes=1)
    layout = Layout(rig.root)
    older, _ = client.get(layout.cluster)
    created(node, "later", 1)
    wait_until(lambda: "later" in node.state.topics, 60)
    lagging = Lagging(client, layout.cluster, older if has_heard_of_it else None)
    assert layout.refusal(lagging, node.state.known, lambda event: None) is None
    assert client.exists(layout.superseded) is None


def test_a_node_that_was_away_for_too_long_does_not_keep_zookeeper_from_being_listened_to(
    rig: ZooKeeperRig, client: Any
) -> None:
    (node,) = started(rig, nodes=1)
    known = node.state.known
    raw, _ = client.get(Layout(rig.root).cluster)
    state = rules.begun(Cluster.unpacked(raw).state, "r0", 1, known.version + 1)
    for number in range(1, rules.MOST_REIGNS):
        state = rules.begun(state, f"r{number}", 1, known.version + 1 + number)
    later = Layout(f"{rig.root}-later")
    client.create(later.cluster, Cluster(state).packed(), makepath=True)
    assert isinstance(later.refusal(client, known, lambda event: None), StaleControllerError)
    assert client.exists(later.superseded) is None


def test_the_cluster_goes_on_where_it_was_after_all_nodes_stopped(rig: ZooKeeperRig) -> None:
    first, second = started(rig, 2)
    for node in (first, second):
        assert node.controller.leave(node.node_id, 10_000) or node is second
        node.controller.gone(node.node_id)
        node.controller.close()
    again = rig.node(1)
    again.join(clean=True)
    wait_until(lambda: again.state.partition(ORDERS) is not None)
    one = again.orders()
    assert one is not None and (one.leader, one.isr) == (None, (2,)), "only node 2 has all records"
    other = rig.node(2)
    other.join(clean=True)
    wait_until(lambda: (now := again.orders()) is not None and now.leader == 2)


def test_a_request_whose_znode_was_made_unheard_is_not_made_twice(rig: ZooKeeperRig, client: Any) -> None:
    layout = Layout(rig.root)
    layout.make(client)

    class Unheard:
        lost = False

        def __getattr__(self, name: str) -> Any:
            return getattr(client, name)

        def create(self, *arguments: Any, **options: Any) -> Any:
            made = client.create(*arguments, **options)
            if not self.lost:
                self.lost = True
                raise ConnectionLoss
            return made

    asked = requests.Requests(Unheard(), layout, lambda event: None)
    answers: list[Any] = []
    asked.add(ElectPreferred(), answers.append)
    with pytest.raises(ConnectionLoss):
        asked.look()
    asked.look()
    assert len(client.get_children(layout.requests)) == 1
    governors(rig, client, 1)
    asked.look()
    assert len(answers) == 1 and answers[0].error is None
    assert client.get_children(layout.requests) == []


def test_requests_are_forgotten_with_the_session(rig: ZooKeeperRig, client: Any) -> None:
    asked = requests.Requests(client, Layout(rig.root), lambda event: None)
    answers: list[Any] = []
    asked.add(ElectPreferred(), answers.append)
    with pytest.raises(NoNodeError):
        asked.look()  # nothing is laid out here
    asked.forget()
    asked.look()
    assert answers == [None]
