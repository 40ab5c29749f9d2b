"""Nodes in processes of their own: killed, stopped for a while, and shut down in order."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest
from helpers import wait_until

from commitlog.replication.controllers.server import ControllerServer
from commitlog.replication.controllers.static import StaticController
from commitlog.replication.transports.tcp import TcpTransport
from replication.node_process import NodeProcess
from replication.zookeeper_server import ZooKeeperServer

Start = Callable[[int], NodeProcess]


@pytest.fixture(params=["served", "zookeeper"])
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts a node of the same cluster in a process of its own."""
    processes: list[NodeProcess] = []
    with_controller = served(processes) if request.param == "served" else with_zookeeper(request, processes)
    yield next(with_controller)
    for process in processes:
        process.close()
    next(with_controller, None)


def served(processes: list[NodeProcess]) -> Iterator[Start]:
    controller, transport = StaticController(), TcpTransport()
    server = ControllerServer(controller, transport, session_timeout_ms=2000)
    address = server.serve()

    def start(node_id: int) -> NodeProcess:
        processes.append(NodeProcess(node_id, "served", address))
        return processes[-1]

    yield start
    server.close()
    transport.close()
    controller.close()


def with_zookeeper(request: pytest.FixtureRequest, processes: list[NodeProcess]) -> Iterator[Start]:
    server: ZooKeeperServer = request.getfixturevalue("zookeeper")

    def start(node_id: int) -> NodeProcess:
        processes.append(NodeProcess(node_id, "zookeeper", server.hosts, f"/processes-{id(processes)}"))
        return processes[-1]

    yield start


def three(start: Start) -> list[NodeProcess]:
    """Three nodes and a topic; with ZooKeeper the first, which leads, is the elected controller too."""
    first = start(1)
    wait_until(lambda: first.heard, 60)
    nodes = [first, start(2), start(3)]
    for node in nodes:
        node.until(nodes=[1, 2, 3])
    first.say("create", "orders", 3)
    for node in nodes:
        node.until(leader=1, isr=[1, 2, 3])
    return nodes


def test_when_the_leader_is_killed_another_leads_and_it_comes_back_as_a_follower(start: Start) -> None:
    first, second, third = three(start)
    first.kill()
    for node in (second, third):
        node.until(nodes=[2, 3], leader=2, leader_epoch=1, isr=[2, 3])
    again = start(1)
    again.until(nodes=[1, 2, 3], leader=2, isr=[2, 3])
    second.until(nodes=[1, 2, 3])
    second.say("isr", 1, 2, 3)
    again.until(leader=2, leader_epoch=1, isr=[1, 2, 3])
    assert again.heard[0]["incarnation"] > first.last["incarnation"]


def test_a_leader_that_was_stopped_for_a_while_is_fenced_and_changes_nothing(start: Start) -> None:
    """It is also the elected controller of a ZooKeeper: another is elected, whose epoch is higher."""
    first, second, third = three(start)
    earlier = first.last
    first.say("isr", 1, 2)
    first.until(isr=[1, 2])
    first.signal(signal.SIGSTOP)
    first.say("isr", 1)  # it proposes as the leader that it was, once it goes on
    for node in (second, third):
        node.until(nodes=[2, 3], leader=2, leader_epoch=1, isr=[2])
    second.say("create", "later", 2)
    third.until(topics=["later", "orders"])
    first.signal(signal.SIGCONT)
    wait_until(lambda: any(state["incarnation"] is None for state in first.heard), 60)
    back = first.until(nodes=[1, 2, 3], leader=2, isr=[2])
    assert back["incarnation"] > earlier["incarnation"]
    third.until(nodes=[1, 2, 3], leader=2, leader_epoch=1, isr=[2])
    assert True not in first.decisions[1:]
    assert back["controller_epoch"] >= earlier["controller_epoch"]


def test_nodes_that_stop_in_order_hand_over_one_after_another(start: Start) -> None:
    first, second, third = three(start)
    first.say("stop")
    second.until(nodes=[2, 3], leader=2, leader_epoch=1, isr=[2, 3])
    second.say("stop")
    third.until(nodes=[3], leader=3, leader_epoch=2, isr=[3])
