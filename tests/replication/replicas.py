"""A cluster of real processes on this machine: a controller here, each node in a process of its own.

Run as a program, this is one of the nodes: replicas.py NODE_ID PATH CONTROLLER_ADDRESS.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import commitlog
from commitlog.record import TopicPartition
from commitlog.replication import (
    ControllerServer,
    Node,
    PartitionState,
    RemoteController,
    StaticController,
    TcpTransport,
)
from commitlog.replication.commands import CreateTopic
from commitlog.replication.remote.remote_log import RemoteLog

ORDERS = TopicPartition("orders", 0)
SETTINGS = {"replica_lag_time_max_ms": 1500, "replica_fetch_backoff_ms": 20, "replica_fetch_wait_max_ms": 200}
SESSION_MS = 1000


def run_node(node_id: int, path: str, controller_address: str) -> None:
    transport = TcpTransport()
    controller = RemoteController(transport, controller_address)
    with commitlog.open(path) as log:
        with Node(log, transport, controller, node_id, SETTINGS) as node:
            print(node.address, flush=True)
            sys.stdin.read()  # until it is closed
        controller.close()
        transport.close()


class Replicas:
    """Three nodes, and who leads `orders`."""

    def __init__(self, path: Path, **config: object) -> None:
        self.path = path
        self._transport = TcpTransport()
        self._controller = StaticController()
        self._server = ControllerServer(self._controller, self._transport, session_timeout_ms=SESSION_MS)
        self._address = self._server.serve()
        self.processes: dict[int, subprocess.Popen[str]] = {}
        self.addresses: dict[int, str] = {}
        for node_id in (1, 2, 3):
            self.start(node_id)
        self._controller.submit(CreateTopic("orders", 1, 3, {"min_insync_replicas": 2, **config}))

    def start(self, node_id: int) -> None:
        command = [sys.executable, __file__, str(node_id), str(self.path / str(node_id)), self._address]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        self.addresses[node_id] = process.stdout.readline().strip()
        self.processes[node_id] = process
        assert self.addresses[node_id], "the node did not start"

    def state(self) -> PartitionState:
        found = self._controller.state().partition(ORDERS)
        assert found is not None
        return found

    def signal(self, node_id: int, number: signal.Signals) -> None:
        os.kill(self.processes[node_id].pid, number)

    def kill(self, node_id: int) -> None:
        process = self.processes.pop(node_id)
        process.kill()
        process.communicate()

    def connect(self, *node_ids: int) -> RemoteLog:
        """Return a client that knows these nodes to begin with, all of them if none is named."""
        known = [self.addresses[node_id] for node_id in node_ids or self.processes]
        return commitlog.connect(",".join(known), timeout_ms=30_000)

    def close(self) -> None:
        for process in self.processes.values():
            process.communicate()  # it closes its input: the node stops in good order
        self._server.close()
        self._controller.close()
        self._transport.close()


class Writer:
    """Appends records with acks="all" in a thread, and keeps those that were acknowledged."""

    def __init__(self, replicas: Replicas, name: bytes) -> None:
        self.acknowledged: dict[int, bytes] = {}
        self.errors: list[commitlog.CommitLogError] = []
        self._name = name
        self._remote = replicas.connect()
        self._orders = self._remote.topic("orders").partition(0)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"writer {name!r}")
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._ends.is_set():
            values = [b"%s %d" % (self._name, number + more) for more in range(20)]
            number += len(values)
            try:
                offsets = self._orders.append_many(values, acks="all")
            except commitlog.CommitLogError as error:  # not acknowledged: it may be there or not
                self.errors.append(error)
            else:
                self.acknowledged.update(zip(offsets, values, strict=True))

    def end(self) -> None:
        self._ends.set()
        self._thread.join()
        self._remote.close()


if __name__ == "__main__":
    run_node(int(sys.argv[1]), sys.argv[2], sys.argv[3])
