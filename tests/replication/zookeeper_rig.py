"""A cluster without files whose controller is ZooKeeper; each node reaches it by a way of its own."""

from __future__ import annotations

import itertools
import os

from commitlog.replication.controllers.zookeeper.controller import ZooKeeperController
from replication.proxy import Proxy
from replication.rigs import Listener
from replication.zookeeper_server import ZooKeeperServer

_numbers = itertools.count()


class ZooKeeperRig:
    def __init__(self, server: ZooKeeperServer, session_timeout_ms: int = 20_000) -> None:
        self.session_timeout_ms = session_timeout_ms
        self.server = server
        self.root = f"/test-{os.getpid()}-{next(_numbers)}"
        self.controllers: list[ZooKeeperController] = []
        self.proxies: dict[Listener, Proxy] = {}

    def controller(self, hosts: str) -> ZooKeeperController:
        self.controllers.append(
            ZooKeeperController(hosts, root=self.root, session_timeout_ms=self.session_timeout_ms)
        )
        return self.controllers[-1]

    def node(self, node_id: int) -> Listener:
        proxy = Proxy(self.server.port)
        listener = Listener(node_id, self.controller(proxy.hosts))
        self.proxies[listener] = proxy
        return listener

    def kill(self, node: Listener) -> None:
        self.proxies[node].cut()

    def cut_off(self, node: Listener) -> None:
        self.proxies[node].cut()

    def mend(self, node: Listener) -> None:
        self.proxies[node].mend()

    def close(self) -> None:
        for proxy in self.proxies.values():
            proxy.mend()
        for controller in self.controllers:
            controller.close()
        for proxy in self.proxies.values():
            proxy.close()
