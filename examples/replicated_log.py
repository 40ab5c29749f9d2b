"""Three processes replicate one topic. The leader is killed while records arrive: no acknowledged record is
lost.

    python examples/replicated_log.py
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import commitlog
from commitlog.record import TopicPartition
from commitlog.replication import ControllerServer, Node, RemoteController, StaticController, TcpTransport
from commitlog.replication.commands import CreateTopic

ORDERS = TopicPartition("orders", 0)
SETTINGS = {"replica_lag_time_max_ms": 2000, "replica_fetch_backoff_ms": 20}


def run_node(node_id: int, path: str, controller_address: str) -> None:
    """One of the three processes: a log, and a node that replicates its topics."""
    transport = TcpTransport()
    with (
        commitlog.open(path) as log,
        Node(log, transport, RemoteController(transport, controller_address), node_id, SETTINGS) as node,
    ):
        print(node.address, flush=True)
        sys.stdin.read()  # until the parent closes it


def start_node(node_id: int, path: Path, controller_address: str) -> subprocess.Popen[str]:
    """Start a node in a separate process, which prints its address once it has joined."""
    command = [sys.executable, __file__, "node", str(node_id), str(path / str(node_id)), controller_address]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def main(path: Path) -> None:
    transport, controller = TcpTransport(), StaticController.open(str(path / "controller"))
    server = ControllerServer(controller, transport, session_timeout_ms=1500)
    address = server.serve()
    nodes = {node_id: start_node(node_id, path, address) for node_id in (1, 2, 3)}
    addresses = ",".join(address_of(process) for process in nodes.values())
    controller.submit(CreateTopic("orders", 1, 3, {"min_insync_replicas": 2}))

    with commitlog.connect(addresses) as remote:
        orders = remote.topic("orders").partition(0)
        acknowledged: dict[int, bytes] = {}
        for number in range(1000):
            value = b"order %d" % number
            acknowledged[orders.append(value, acks="all")] = value
            if number == 500:
                leader = controller.state().partition(ORDERS).leader
                assert leader is not None
                print(f"{number + 1} records; node {leader} leads, and is killed")
                os.kill(nodes[leader].pid, signal.SIGKILL)
                nodes.pop(leader).communicate()
                killed = time.monotonic()
            elif number == 501:
                now = controller.state().partition(ORDERS)
                assert now is not None
                seconds = time.monotonic() - killed
                print(f"{seconds:.1f} s later node {now.leader} leads, in epoch {now.leader_epoch}")

        found = {record.offset: record.value for record in orders.records()}
        lost = [offset for offset, value in acknowledged.items() if found.get(offset) != value]
        print(f"{len(acknowledged)} records were acknowledged, {len(found)} are there, {len(lost)} are lost")
        assert not lost

    for process in nodes.values():
        process.communicate()  # closes its input: the node hands over and stops
    server.close()
    controller.close()
    transport.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["node"]:
        run_node(int(sys.argv[2]), sys.argv[3], sys.argv[4])
    else:
        with tempfile.TemporaryDirectory(prefix="replicated-log-") as folder:
            main(Path(folder))
