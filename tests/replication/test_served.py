"""What is particular to a controller that another process serves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import wait_until

from commitlog.errors import CommitLogError, NoControllerError, StaleNodeError
from commitlog.replication.controllers.control import (
    ClusterNow,
    Gone,
    Heartbeat,
    IsrDecided,
    Join,
    Joined,
    Leave,
)
from commitlog.replication.controllers.remote_controller import RemoteController
from commitlog.replication.controllers.served import ControllerServer
from commitlog.replication.controllers.static import StaticController
from commitlog.replication.messages import Describe, Done, Message, Refused
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
        (answer,) = self.ask(Join(node_id, f"host:{node_id}", True, token))
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
    assert served.ask(Join(1, "host:1", True, "a")) == [Refused("StaleNodeError", (1,))]
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
    assert served.ask(Leave(1, earlier)) == [Refused("StaleNodeError", (1,))]
    assert served.ask(Gone(1, earlier)) == [Done()]
    assert served.alive() == {1}
    assert not served.static.state().nodes[1].leaving


def test_a_heartbeat_is_answered_when_there_is_news_or_it_has_waited_long_enough(served: Served) -> None:
    incarnation = served.join(1)
    version = served.static.state().version
    answers = served.ask(Heartbeat(1, incarnation, version, 300))
    served.static.create_topic("orders", 1, 1, {})
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
    static.register(1, "host:1", clean=True)
    static.join(2, "host:2", clean=True, changed=lambda state: None)
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
    first.controller.create_topic("orders", 1, 2, {})
    wait_until(lambda: first.orders() is not None)
    transport = rig.link(first)
    transport.lose_next = IsrDecided
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
        controller.create_topic("orders", 1, 1, {})
    with pytest.raises(NoControllerError):
        controller.join(1, "host:1", clean=True, changed=lambda state: None)
    controller.close()
    transport.close()


def test_a_node_that_gave_up_joining_does_not_join_later() -> None:
    port = free_port()
    transports = TcpTransport(), TcpTransport(port=port)
    waiting = RemoteController(transports[0], f"127.0.0.1:{port}", request_timeout_ms=100, retry_ms=10)
    with pytest.raises(NoControllerError):
        waiting.join(1, "host:1", clean=True, changed=lambda state: None)
    asked: list[Message] = []
    transports[1].serve(lambda message, reply: asked.append(message))
    called: list[int] = []
    transports[0].call_every(10, lambda: called.append(1))
    wait_until(lambda: len(called) > 20)
    assert len(asked) <= 1  # the one that was under way
    waiting.close()
    for transport in transports:
        transport.close()


def test_who_is_no_node_may_look_and_change_topics(rig: ServedRig) -> None:
    rig.node(1).join()
    client = rig.node(0).controller
    client.create_topic("orders", 1, 1, {})
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
        first.controller._ask(Leave(1, 1))  # type: ignore[attr-defined]


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
    first.controller.create_topic("orders", 1, 1, {})
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
