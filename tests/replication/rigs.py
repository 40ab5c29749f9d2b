"""Clusters of nodes that do nothing but listen to their controller: one rig for each kind of controller."""

from __future__ import annotations

import threading
from typing import Protocol

from helpers import wait_until

from commitlog.record import TopicPartition
from commitlog.replication import rules
from commitlog.replication.cluster import ClusterState, PartitionState
from commitlog.replication.commands import ChangeIsr, JoinNode
from commitlog.replication.controllers.remote_controller import RemoteController
from commitlog.replication.controllers.server import ControllerServer
from commitlog.replication.controllers.static import StaticController
from commitlog.replication.ports import Controller, Transport
from commitlog.replication.transports.tcp import TcpTransport
from replication.in_process import Hub, InProcessTransport
from replication.invariants import check_state
from replication.proxy import Proxy

ORDERS = TopicPartition("orders", 0)


class Listener:
    """A node: what it heard, and what it says."""

    def __init__(self, node_id: int, controller: Controller) -> None:
        self.node_id = node_id
        self.controller = controller
        self.heard: list[ClusterState] = []
        self.decisions: list[tuple[bool, ClusterState]] = []  # and what was heard before
        self._one_at_a_time = threading.Lock()

    def join(self, *, clean: bool = True) -> int:
        return self.controller.join(
            JoinNode(self.node_id, f"host:{self.node_id}", clean=clean), self._changed
        )

    def _changed(self, state: ClusterState) -> None:
        assert self._one_at_a_time.acquire(blocking=False), "two calls at the same time"
        try:
            if self.node_id in state.nodes:  # otherwise it is fenced, and not told the whole truth
                check_state(state)
            else:
                assert rules.handed_over(state, self.node_id)
            if self.heard:
                assert state.version >= self.heard[-1].version
            self.heard.append(state)
        finally:
            self._one_at_a_time.release()

    @property
    def state(self) -> ClusterState:
        return self.heard[-1] if self.heard else ClusterState()

    @property
    def incarnation(self) -> int:
        return self.state.nodes[self.node_id].incarnation

    def orders(self) -> PartitionState | None:
        return self.state.partition(ORDERS)

    def proposal(self, *isr: int) -> ChangeIsr:
        one = self.orders()
        assert one is not None
        lives = {node_id: node.incarnation for node_id, node in self.state.nodes.items()}
        topic_id = self.state.topics["orders"].topic_id
        return ChangeIsr(ORDERS, topic_id, self.node_id, one.leader_epoch, one.version, isr, lives)

    def propose(self, change: ChangeIsr) -> None:
        self.controller.propose_isr(change, lambda counts: self.decisions.append((counts, self.state)))

    def decided(self, change: ChangeIsr) -> bool:
        """Propose, and wait for the answer."""
        count = len(self.decisions)
        self.propose(change)
        wait_until(lambda: len(self.decisions) > count)
        return self.decisions[-1][0]


class Rig(Protocol):
    """A cluster without files."""

    def node(self, node_id: int) -> Listener:
        """Return a node with a controller of its own, that has not joined."""

    def kill(self, node: Listener) -> None:
        """End a node without a word."""

    def close(self) -> None:
        """Let everything go."""


class Fencing(Rig, Protocol):
    """A cluster whose nodes can be cut off."""

    def cut_off(self, node: Listener) -> None:
        """Let the controller lose a node that lives on."""

    def mend(self, node: Listener) -> None:
        """Let it be heard again."""


class StaticRig:
    def __init__(self) -> None:
        self.controller = StaticController()

    def node(self, node_id: int) -> Listener:
        return Listener(node_id, self.controller)

    def kill(self, node: Listener) -> None:
        self.controller.gone(node.node_id)

    def close(self) -> None:
        self.controller.close()


class _Way:
    """A node's transport, and how to cut it."""

    def __init__(self, transport: Transport, address: str, link: InProcessTransport | Proxy) -> None:
        self.transport = transport
        self.address = address
        self.link = link


class ServedRig:
    """A controller served to nodes in this process, between threads or over real sockets."""

    def __init__(self, session_timeout_ms: int = 20_000, *, over_tcp: bool = False) -> None:
        self.over_tcp = over_tcp
        self.hub = Hub()
        self.static = StaticController()
        self.serving: Transport = TcpTransport() if over_tcp else InProcessTransport(self.hub)
        self.server = ControllerServer(self.static, self.serving, session_timeout_ms=session_timeout_ms)
        self.address = self.server.serve()
        self.controllers: list[RemoteController] = []
        self.ways: dict[Listener, _Way] = {}

    def node(self, node_id: int, request_timeout_ms: int = 10_000) -> Listener:
        way = self._way()
        self.controllers.append(
            RemoteController(way.transport, way.address, request_timeout_ms=request_timeout_ms, retry_ms=10)
        )
        listener = Listener(node_id, self.controllers[-1])
        self.ways[listener] = way
        return listener

    def _way(self) -> _Way:
        if self.over_tcp:
            proxy = Proxy(int(self.address.rpartition(":")[2]))
            return _Way(TcpTransport(), proxy.hosts, proxy)
        transport = InProcessTransport(self.hub)
        return _Way(transport, self.address, transport)

    def link(self, node: Listener) -> InProcessTransport:
        link = self.ways[node].link
        assert isinstance(link, InProcessTransport)
        return link

    def kill(self, node: Listener) -> None:
        self.cut_off(node)
        node.controller.close()

    def cut_off(self, node: Listener) -> None:
        self.ways[node].link.cut()

    def mend(self, node: Listener) -> None:
        self.ways[node].link.mend()

    def close(self) -> None:
        self.server.close()
        for controller in self.controllers:
            controller.close()
        for way in self.ways.values():
            way.transport.close()
            if isinstance(way.link, Proxy):
                way.link.close()
        self.serving.close()
        self.static.close()
