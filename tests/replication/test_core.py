"""NodeCore over real sockets, with threads that append at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from commitlog.errors import CommitLogError, NotLeaderError
from commitlog.record import TopicPartition
from commitlog.replication.cluster import ClusterState, TopicState
from commitlog.replication.commands import CreateTopic
from commitlog.replication.controllers.static import StaticController
from commitlog.replication.core.node_core import NodeCore
from commitlog.replication.messages import Describe, Message, Refused
from commitlog.replication.settings import ReplicationConfig
from commitlog.replication.transports.tcp import TcpTransport

from .memory_log import MemoryLog

CONFIG = ReplicationConfig(
    replica_fetch_wait_max_ms=100, request_timeout_ms=2000, replica_lag_time_max_ms=2000
)
NAMES = [TopicPartition("orders", number) for number in range(3)]


class SocketNode:
    """A node whose logs are in memory."""

    def __init__(self, node_id: int, controller: StaticController) -> None:
        self.transport = TcpTransport()
        self.logs: dict[TopicPartition, MemoryLog] = {}
        self.core = NodeCore(node_id, self.transport, controller, CONFIG, self)
        self.address = self.core.start(clean=True)

    disk_id = ""

    def kept(self) -> ClusterState | None:
        return None

    def keep(self, state: ClusterState) -> None:
        pass

    def open(self, name: TopicPartition, topic: TopicState) -> MemoryLog:
        self.logs[name] = MemoryLog()
        return self.logs[name]

    def tidy(self, state: ClusterState) -> None:
        pass

    def append(self, name: TopicPartition, number: int) -> int:
        """Append with acks="all"; only one thread appends to a partition."""
        epoch = self.core.check_can_append(name, "all")
        _, end = self.logs[name].append(number)
        self.core.appended(name)
        self.core.wait_acknowledged(name, end, 30_000, leader_epoch=epoch)
        return end

    def close(self) -> None:
        self.core.close()
        self.transport.close()


@pytest.fixture
def controller() -> Iterator[StaticController]:
    made = StaticController()
    yield made
    made.close()


@pytest.fixture
def nodes(controller: StaticController) -> Iterator[dict[int, SocketNode]]:
    with ExitStack() as stack:
        made = {}
        for node_id in (1, 2, 3):
            made[node_id] = SocketNode(node_id, controller)
            stack.callback(made[node_id].close)
        controller.submit(CreateTopic("orders", len(NAMES), 3, {"min_insync_replicas": 2}))
        yield made


def wait_until(condition: Callable[[], bool], timeout: float = 30.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.005)


def leads(node: SocketNode, name: TopicPartition) -> bool:
    try:
        node.core.check_can_append(name, "all")
    except CommitLogError:
        return False
    return True


def leader_of(nodes: dict[int, SocketNode], name: TopicPartition) -> SocketNode:
    wait_until(lambda: any(leads(node, name) for node in nodes.values()))
    return next(node for node in nodes.values() if leads(node, name))


def test_threads_append_to_several_leaders_and_all_replicas_become_the_same(
    nodes: dict[int, SocketNode],
) -> None:
    def append_some(name: TopicPartition) -> None:
        leader = leader_of(nodes, name)
        for number in range(200):
            leader.append(name, number)

    with ThreadPoolExecutor(len(NAMES)) as pool:
        list(pool.map(append_some, NAMES))
    for name in NAMES:
        wait_until(lambda name=name: all(node.logs[name].high_watermark == 200 for node in nodes.values()))  # type: ignore[misc]
        assert len({b"".join(node.logs[name].disk.batches) for node in nodes.values()}) == 1


def test_another_node_leads_when_the_leader_is_gone_and_has_all_that_was_acknowledged(
    nodes: dict[int, SocketNode], controller: StaticController
) -> None:
    name = NAMES[0]
    first = leader_of(nodes, name)
    ends = [first.append(name, number) for number in range(50)]
    first.close()
    controller.gone(first.core.node_id)
    del nodes[first.core.node_id]
    second = leader_of(nodes, name)
    assert second.logs[name].next_offset >= ends[-1]
    assert second.append(name, 50) == 51
    with pytest.raises(NotLeaderError):
        first.append(name, 51)


def test_a_request_that_is_no_fetch_goes_to_the_one_who_embeds_the_node(nodes: dict[int, SocketNode]) -> None:
    answers: list[Message | None] = []
    address = nodes[1].address

    def answered(answer: Message | None) -> None:
        answers.append(answer)
        nodes[2].transport.wake()

    nodes[2].transport.request(address, Describe(), answered, 2000)
    assert nodes[2].transport.wait_for(lambda: bool(answers), 2000)
    assert isinstance(answers[0], Refused)
    assert answers[0].error == "ProtocolError"
