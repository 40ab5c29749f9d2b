"""The rows of replication: a leader here, its followers in processes of their own, over loopback.

Run as `python replicating.py node ID PATH CONTROLLER`, this is one of the other nodes; as `python
replicating.py receive PATH`, what receives a file that is sent plainly.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import commitlog
from commitlog.record import TopicPartition
from commitlog.replication import ControllerServer, Node, RemoteController, StaticController, TcpTransport
from commitlog.replication.commands import CreateTopic, DeleteTopic, ElectPreferred, Reassign

IN_FLIGHT = (4, 16)  # appends at a time; a Kafka producer has five requests under way, with many batches each
SESSION_MS = 1000
WRITTEN = {"flush_ms": -1, "file_delete_delay_ms": 0}
SETTINGS = {"replica_fetch_backoff_ms": 10, "replica_lag_time_max_ms": 5000}


class Cluster:
    """Node 1 in this process, the others in their own; the controller is here, too."""

    def __init__(self, path: Path, others: tuple[int, ...], *, first: bool = True) -> None:
        self.path = path
        self._ends = ExitStack()
        self.transport = TcpTransport()
        self.controller = StaticController()
        server = ControllerServer(self.controller, self.transport, session_timeout_ms=SESSION_MS)
        self._address = server.serve()
        self._ends.callback(self.transport.close)
        self._ends.callback(self.controller.close)
        self._ends.callback(server.close)
        if first:
            transport = TcpTransport()
            self._ends.callback(transport.close)
            log = self._ends.enter_context(commitlog.open(path / "1"))
            self.node = self._ends.enter_context(Node(log, transport, self.controller, 1, SETTINGS))
        self.processes: dict[int, subprocess.Popen[str]] = {}
        self.addresses: dict[int, str] = {}
        for node_id in others:
            self.start(node_id)

    def start(self, node_id: int) -> None:
        command = [
            sys.executable,
            __file__,
            "node",
            str(node_id),
            str(self.path / str(node_id)),
            self._address,
        ]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        self.processes[node_id] = process
        self.addresses[node_id] = process.stdout.readline().strip()

    def create(self, topic: str, replicas: list[int]) -> TopicPartition:
        """Create a topic of one partition on these nodes; the first of them leads."""
        name = TopicPartition(topic, 0)
        self.controller.submit(CreateTopic(topic, 1, len(replicas), WRITTEN))
        self.controller.submit(Reassign(name, tuple(replicas)))
        self.wait(lambda: self.state(name).target is None)
        self.controller.submit(ElectPreferred())
        self.wait(lambda: self.state(name).leader == replicas[0])
        self.wait(lambda: len(self.state(name).isr) == len(replicas))
        return name

    def state(self, name: TopicPartition):
        return self.controller.state().partition(name)

    def wait(self, condition, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError("the cluster does not come to rest")
            time.sleep(0.001)

    def close(self) -> None:
        for process in self.processes.values():
            process.communicate()
        self._ends.close()


@contextmanager
def cluster(path: Path, others: tuple[int, ...], *, first: bool = True) -> Iterator[Cluster]:
    made = Cluster(path, others, first=first)
    try:
        yield made
    finally:
        made.close()


# --- rows --------------------------------------------------------------------------------------------


def replication(bench) -> Iterator:
    for in_flight in IN_FLIGHT:
        yield throughput(bench, in_flight)
    yield failover(bench)
    yield catching_up(bench)


def throughput(bench, in_flight):
    """Append batches with acks="all", several at a time, to one replica and to three."""
    from bench import best_of
    from report import Group, Line

    batches = bench.fixed().batches
    records = bench.fixed().records
    with bench.scratch("replicas") as path, cluster(path, (2, 3)) as nodes:
        topics = {"one replica": [1], "three replicas": [1, 2, 3]}
        count = iter(range(1000))

        def run(replicas: list[int]) -> float:
            name = nodes.create(f"t{next(count)}", replicas)
            nodes.wait(lambda: nodes.node.leads(name))
            partition = nodes.node.topic(name.topic).partition(0)
            with ThreadPoolExecutor(in_flight) as pool:
                began = time.perf_counter()
                for _ in pool.map(
                    lambda batch: partition.append_many(batch.values, keys=batch.keys), batches
                ):
                    pass
                taken = time.perf_counter() - began
            assert partition.log.high_watermark == records
            nodes.controller.submit(DeleteTopic(name.topic))
            return taken

        contenders = {name: lambda replicas=replicas: run(replicas) for name, replicas in topics.items()}
        best_of(1, contenders)
        seconds = best_of(bench.repeats, contenders)
    one, three = records / seconds["one replica"], records / seconds["three replicas"]
    lines = [
        Line("one replica", one, "rec/s", 1.0),
        Line("three replicas", three, "rec/s", three / one, ">= 0.5 x one replica", three >= 0.5 * one),
    ]
    note = (
        f'{records:,} records of 100 bytes in batches of 10,000, acks="all"; '
        "followers in processes of their own, three processes on the same cores."
    )
    return Group("replication", f"Replication: appending, {in_flight} appends at a time", lines, note)


def failover(bench):
    """Kill the leader, and see when the next record is acknowledged."""
    from report import Group, Line

    taken = []
    with bench.scratch("failover") as path, cluster(path, (1, 2, 3), first=False) as nodes:
        name = nodes.create("t", [1, 2, 3])
        for _ in range(bench.pick(5, 3)):
            with commitlog.connect(",".join(nodes.addresses.values())) as remote:
                partition = remote.topic("t").partition(0)
                partition.append(b"before", acks="all")
                leader = nodes.state(name).leader
                nodes.processes[leader].kill()
                began = time.perf_counter()
                partition.append(b"after", acks="all")
                taken.append(time.perf_counter() - began)
            nodes.processes.pop(leader).communicate()
            nodes.start(leader)
            nodes.wait(lambda: len(nodes.state(name).isr) == 3)
    line = Line("commitlog", sorted(taken)[len(taken) // 2], "s", note=f"slowest {max(taken):.2f} s")
    note = f"Median; from kill -9 to the next acknowledged record. Sessions last {SESSION_MS} ms."
    return Group("replication", "Replication: failover", [line], note)


def catching_up(bench):
    """Let an empty follower catch up, beside sendfile to a process that writes what it receives."""
    from bench import best_of
    from report import Group, Line

    batches = bench.fixed().batches
    with bench.scratch("catch-up") as path, cluster(path, (2,)) as nodes:
        name = nodes.create("t", [1])
        nodes.wait(lambda: nodes.node.leads(name))
        partition = nodes.node.topic("t").partition(0)
        for _ in range(bench.pick(10, 2)):
            for batch in batches:
                partition.append_many(batch.values, keys=batch.keys)
        size = partition.log.size_bytes

        def follow() -> float:
            began = time.perf_counter()
            nodes.controller.submit(Reassign(name, (1, 2)))
            nodes.wait(lambda: 2 in nodes.state(name).isr)
            taken = time.perf_counter() - began
            nodes.controller.submit(Reassign(name, (1,)))
            nodes.wait(lambda: nodes.state(name).replicas == (1,))
            return taken

        log_file = partition.log.segments[0].path
        seconds = best_of(
            bench.pick(5, 3), {"commitlog": follow, "sendfile": lambda: sent(log_file, size, path)}
        )
    ours, plain = size / seconds["commitlog"] / 1e6, size / seconds["sendfile"] / 1e6
    lines = [Line("sendfile", plain, "MB/s", 1.0), Line("commitlog", ours, "MB/s", ours / plain)]
    note = (
        f"{size / 1e6:.0f} MB over loopback. sendfile: a segment, as often as it takes, to a process "
        "that writes them to a file. commitlog: until the follower is in the ISR; it checks every batch."
    )
    return Group("replication", "Replication: an empty follower catches up", lines, note)


def sent(source: str, size: int, path: Path) -> float:
    with socket.create_server(("127.0.0.1", 0)) as server, open(source, "rb") as file:
        port = server.getsockname()[1]
        command = [sys.executable, __file__, "receive", str(path / "received"), str(port), str(size)]
        process = subprocess.Popen(command)
        connection, _ = server.accept()
        length = os.fstat(file.fileno()).st_size
        began = time.perf_counter()
        with connection:
            done = 0
            while done < size:
                at = done % length
                done += os.sendfile(connection.fileno(), file.fileno(), at, min(length - at, size - done))
            connection.recv(1)
        taken = time.perf_counter() - began
        process.wait()
    return taken


# --- other processes ---------------------------------------------------------------------------------


def run_node(node_id: str, path: str, controller_address: str) -> None:
    transport = TcpTransport()
    controller = RemoteController(transport, controller_address)
    with commitlog.open(path) as log:
        with Node(log, transport, controller, int(node_id), SETTINGS) as node:
            print(node.address, flush=True)
            sys.stdin.read()
        controller.close()
        transport.close()


def receive(path: str, port: str, size: str) -> None:
    buffer, left = bytearray(1 << 20), int(size)
    with socket.create_connection(("127.0.0.1", int(port))) as connection, open(path, "wb", 0) as file:
        while left:
            count = connection.recv_into(buffer)
            file.write(memoryview(buffer)[:count])
            left -= count
        connection.send(b"!")
    os.unlink(path)


if __name__ == "__main__":
    {"node": run_node, "receive": receive}[sys.argv[1]](*sys.argv[2:])
