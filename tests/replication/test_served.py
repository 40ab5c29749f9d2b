"""What is particular to a controller that another process serves."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import wait_until

from commitlog.errors import (
    CommitLogError,
    NoControllerError,
    StaleControllerError,
    StaleNodeError,
    WrongClusterError,
)
from commitlog.replication.commands import CreateTopic, DeleteTopic, JoinNode, LeaveNode, RemoveNode
from commitlog.replication.controllers.remote_controller import RemoteController
from commitlog.replication.controllers.server import ControllerServer
from commitlog.replication.controllers.static import StaticController
from commitlog.replication.messages import (
    ClusterNow,
    Decided,
    Describe,
    Heartbeat,
    Join,
    Joined,
    Message,
    Refused,
    Submit,
)
from commitlog.replication.transports.tcp import TcpTransport
from replication.in_process import Hub, InProcessTransport
from replication.rigs import ORDERS, Listener, ServedRig
from replication.zookeeper_server import free_port


@pytest.fixture
def rig() -> Iterator[ServedRig]:
    made = ServedRig()
    yield made
    made.close()


class StoppedClock:
    """A transport that does nothing by itself."""

    def __init__(self) -> None:
        self.now = 1000
        self.looks: list[object] = []

    def now_ms(self) -> int:
        return self.now

    def call_every(self, interval_ms: int, call: object) -> None:
        self.looks.append(call)

    def advance(self, ms: int) -> None:
        self.now += ms
        for look in self.looks:
            look()  # type: ignore[operator]


class Served:
    """A server whose clock stands still."""

    def __init__(self) -> None:
        self.clock = StoppedClock()
        self.static = StaticController()
        self.server = ControllerServer(self.static, self.clock, session_timeout_ms=1000)  # type: ignore[arg-type]
        self.server.start()

    def ask(self, message: Message) -> list[Message]:
        """Return the list to which the answer is added."""
        answers: list[Message] = []
        self.server.handle(message, answers.append)
        return answers

    def join(self, node_id: int, token: str = "t") -> int:
        (answer,) = self.ask(Join(JoinNode(node_id, f"host:{node_id}", clean=True), token))
        assert isinstance(answer, Joined)
        return answer.incarnation

    def alive(self) -> set[int]:
        return set(self.static.state().nodes)


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.static.close()


def test_a_node_is_gone_when_it_was_not_heard_of_for_the_whole_session(served: Served) -> None:
    first, _ = served.join(1), served.join(2)
    for _ in range(3):
        served.clock.advance(400)
        served.ask(Heartbeat(1, first, 99, 0))
    assert served.alive() == {1}


def test_heartbeats_of_an_earlier_life_keep_nobody_alive(served: Served) -> None:
    earlier = served.join(1, "a")
    served.join(1, "b")
    for _ in range(3):
        served.clock.advance(400)
        served.ask(Heartbeat(1, earlier, 99, 0))
    assert served.alive() == set()


def test_a_join_that_is_asked_again_is_answered_the_same(served: Served) -> None:
    assert served.join(1, "a") == served.join(1, "a")


def test_a_join_that_comes_late_and_twice_does_not_count_again(served: Served) -> None:
    served.join(1, "a")
    newer = served.join(1, "b")
    assert served.ask(Join(JoinNode(1, "host:1", clean=True), "a")) == [Refused("StaleNodeError", (1,))]
    assert served.static.state().nodes[1].incarnation == newer


def test_when_the_controller_itself_was_stopped_nobody_is_gone_for_it(served: Served) -> None:
    incarnation = served.join(1)
    served.clock.advance(60_000)
    assert served.alive() == {1}
    served.clock.advance(400)
    served.ask(Heartbeat(1, incarnation, 99, 0))
    for _ in range(4):
        served.clock.advance(400)
    assert served.alive() == set()


def test_an_earlier_life_of_a_node_can_end_nothing(served: Served) -> None:
    earlier = served.join(1, "a")
    served.join(1, "b")
    refusal = Refused("StaleNodeError", (1,))
    assert served.ask(Submit(LeaveNode(1, earlier))) == [Decided(2, refusal)]
    assert served.ask(Submit(RemoveNode(1, earlier))) == [Decided(2)]
    assert served.alive() == {1}
    assert not served.static.state().nodes[1].leaving


def test_a_heartbeat_is_answered_when_there_is_news_or_it_has_waited_long_enough(served: Served) -> None:
    incarnation = served.join(1)
    version = served.static.state().version
    answers = served.ask(Heartbeat(1, incarnation, version, 300))
    served.static.submit(CreateTopic("orders", 1, 1, {}))
    wait_until(lambda: answers)
    answers = served.ask(Heartbeat(1, incarnation, version + 1, 300))
    served.clock.advance(299)
    assert answers == []
    served.clock.advance(1)
    assert len(answers) == 1


def test_those_who_wait_are_answered_when_the_server_is_closed(served: Served) -> None:
    answers = served.ask(Heartbeat(1, served.join(1), 99, 300))
    served.server.close()
    assert len(answers) == 1


def test_what_is_no_request_to_a_controller_is_refused(served: Served) -> None:
    (answer,) = served.ask(Describe())
    assert isinstance(answer, Refused) and answer.error == "ProtocolError"


def test_nodes_that_were_alive_before_a_restart_have_a_whole_session_ahead() -> None:
    static = StaticController()
    static.register(JoinNode(1, "host:1", clean=True))
    static.join(JoinNode(2, "host:2", clean=True), lambda state: None)
    clock = StoppedClock()
    ControllerServer(static, clock, session_timeout_ms=1000).start()  # type: ignore[arg-type]
    clock.advance(400)
    clock.advance(400)
    assert set(static.state().nodes) == {1, 2}
    clock.advance(400)
    assert set(static.state().nodes) == {2}, "who lives in this process needs no heartbeats"
    static.close()


# --- the other side


def test_a_proposal_whose_answer_was_lost_is_made_again_and_its_outcome_heard_of(rig: ServedRig) -> None:
    """It counted when it was made first, so that the second is refused: the leader has heard the state."""
    first, second = rig.node(1, request_timeout_ms=400), rig.node(2)
    first.join()
    second.join()
    first.controller.submit(CreateTopic("orders", 1, 2, {}))
    wait_until(lambda: first.orders() is not None)
    transport = rig.link(first)
    transport.lose_next = Decided
    assert not first.decided(first.proposal(1))
    assert transport.lose_next is None
    one = first.decisions[-1][1].partition(ORDERS)
    assert one is not None and one.isr == (1,)


@pytest.mark.parametrize("lost", [Joined, ClusterNow])
def test_a_node_joins_in_one_life_though_answers_are_lost(lost: type) -> None:
    rig = ServedRig()
    first = rig.node(1, request_timeout_ms=4000)
    rig.link(first).lose_next = lost
    assert first.join() == 1
    assert rig.static.state().version == 1
    rig.close()


def test_a_caller_hears_when_no_controller_answers() -> None:
    transport = InProcessTransport(Hub())
    controller = RemoteController(transport, "hub:1", request_timeout_ms=20)
    with pytest.raises(NoControllerError):
        controller.submit(CreateTopic("orders", 1, 1, {}))
    with pytest.raises(NoControllerError):
        controller.join(JoinNode(1, "host:1", clean=True), lambda state: None)
    controller.close()
    transport.close()


def test_a_node_joins_when_its_controller_comes(tmp_path: Path) -> None:
    port = free_port()
    transports = TcpTransport(), TcpTransport(port=port)
    waiting = RemoteController(transports[0], f"127.0.0.1:{port}", request_timeout_ms=100, retry_ms=10)
    node = Listener(1, waiting)
    with pytest.raises(NoControllerError):
        node.join()
    assert isinstance(waiting.problem(), NoControllerError)
    static = StaticController()
    server = ControllerServer(static, transports[1])
    server.serve()
    wait_until(lambda: 1 in node.state.nodes)
    wait_until(lambda: waiting.problem() is None)
    waiting.close()
    server.close()
    for transport in transports:
        transport.close()
    static.close()


# --- a controller that is not the one a node knows


class OnDisk:
    """A controller of a directory, at an address that stays."""

    def __init__(self, directory: Path, port: int, **settings: Any) -> None:
        self.static = StaticController.open(str(directory), keep_nodes=True, **settings)
        self.transport = TcpTransport(port=port)
        self.server = ControllerServer(self.static, self.transport, session_timeout_ms=60_000)
        self.server.serve()

    def close(self) -> None:
        self.server.close()
        self.transport.close()
        self.static.close()


@pytest.fixture
def joined(tmp_path: Path) -> Iterator[tuple[Listener, RemoteController, int, OnDisk]]:
    """A node that knows a state of the controller in "one"."""
    port = free_port()
    served = OnDisk(tmp_path / "one", port)
    transport = TcpTransport()
    remote = RemoteController(transport, f"127.0.0.1:{port}", retry_ms=10)
    node = Listener(1, remote)
    node.join()
    shutil.copytree(tmp_path / "one", tmp_path / "older")
    served.static.submit(CreateTopic("orders", 1, 1, {}))
    wait_until(lambda: node.orders() is not None)
    yield node, remote, port, served
    remote.close()
    transport.close()


@pytest.mark.parametrize(
    ("directory", "error"), [("empty", WrongClusterError), ("older", StaleControllerError)]
)
def test_a_node_does_not_listen_to_a_controller_that_forgot_and_does_once_the_right_one_is_back(
    joined: tuple[Listener, RemoteController, int, OnDisk], tmp_path: Path, directory: str, error: type
) -> None:
    node, remote, port, served = joined
    served.close()
    known = node.state.known
    wrong = OnDisk(tmp_path / directory, port)
    wait_until(lambda: isinstance(remote.problem(), error))
    for _ in range(8):  # its versions pass those that the node knows
        with contextlib.suppress(StaleControllerError):
            wrong.static.register(JoinNode(9, "host:9", clean=True))
    with pytest.raises(error):
        remote.submit(DeleteTopic("a"))
    assert node.state.known == known
    wrong.close()
    right = OnDisk(tmp_path / "one", port)
    wait_until(lambda: remote.problem() is None)
    right.static.submit(CreateTopic("later", 1, 1, {}))
    wait_until(lambda: {"later", "orders"} <= set(node.state.topics))
    right.close()


def test_a_controller_that_meets_a_node_which_knows_more_decides_nothing_until_it_is_told_to(
    joined: tuple[Listener, RemoteController, int, OnDisk], tmp_path: Path
) -> None:
    _, remote, port, served = joined
    served.close()
    older = OnDisk(tmp_path / "older", port)
    wait_until(lambda: isinstance(remote.problem(), StaleControllerError))
    with pytest.raises(StaleControllerError):
        older.static.register(JoinNode(3, "host:3", clean=True))
    older.close()
    again = StaticController.open(str(tmp_path / "older"))
    with pytest.raises(StaleControllerError):
        again.submit(CreateTopic("orders", 1, 1, {}))
    assert isinstance(again.problem(), StaleControllerError)
    again.close()
    accepted = StaticController.open(str(tmp_path / "older"), accept_older=True)
    accepted.register(JoinNode(3, "host:3", clean=True))
    accepted.close()


def test_a_copy_of_an_old_controller_is_known_even_if_its_versions_have_come_as_far(tmp_path: Path) -> None:
    first = StaticController.open(str(tmp_path / "one"))
    shutil.copytree(tmp_path / "one", tmp_path / "older")
    first.register(JoinNode(1, "host:1", clean=True))
    known = first.state().known
    first.close()
    for _ in range(5):
        StaticController.open(str(tmp_path / "older")).close()
    older = StaticController.open(str(tmp_path / "older"))
    assert older.state().version > known.version
    with pytest.raises(StaleControllerError):
        older.register(JoinNode(1, "host:1", clean=True, known=known))
    older.close()


def test_who_is_no_node_may_look_and_change_topics(rig: ServedRig) -> None:
    rig.node(1).join()
    client = rig.node(0).controller
    client.submit(CreateTopic("orders", 1, 1, {}))
    assert set(client.state().topics) == {"orders"}
    assert set(client.state().nodes) == {1}


def test_a_remote_controller_is_for_one_node(rig: ServedRig) -> None:
    first = rig.node(1)
    first.join()
    with pytest.raises(CommitLogError, match="node 1 has joined here already"):
        first.join()


def test_refusals_of_the_server_are_raised_as_what_they_are(rig: ServedRig) -> None:
    first = rig.node(1)
    first.join()
    usurper = rig.node(1)
    usurper.join()
    wait_until(lambda: 1 not in first.state.nodes)
    with pytest.raises(StaleNodeError):
        first.controller.submit(LeaveNode(1, 1))


def test_nodes_go_on_when_their_controller_comes_back(tmp_path: Path) -> None:
    def served(port: int) -> tuple[StaticController, TcpTransport, ControllerServer]:
        static = StaticController.open(str(tmp_path), keep_nodes=True)
        transport = TcpTransport(port=port)
        return static, transport, ControllerServer(static, transport, session_timeout_ms=20_000)

    port = free_port()
    static, transport, server = served(port)
    address = server.serve()
    own = TcpTransport()
    first = Listener(1, RemoteController(own, address, retry_ms=10))
    incarnation = first.join()
    first.controller.submit(CreateTopic("orders", 1, 1, {}))
    wait_until(lambda: first.orders() is not None)
    server.close()
    transport.close()
    static.close()
    epoch = first.state.epoch
    static, transport, server = served(port)
    assert server.serve() == address
    wait_until(lambda: first.state.epoch > epoch)
    assert first.incarnation == incarnation
    assert first.decided(first.proposal(1))
    assert all(1 in state.nodes for state in first.heard), "it was not fenced"
    first.controller.close()
    server.close()
    for one in (own, transport):
        one.close()
    static.close()
