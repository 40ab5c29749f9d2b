"""The processes of a run: `python processes.py node|controller|client <arguments>`.

Each comes to a good end when its input ends.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import commitlog
from commitlog import CommitLogError
from commitlog.replication import ControllerServer, Node, RemoteController, StaticController, TcpTransport

PORT = 7000
SECRET = b"of all nodes and clients of a run"
SESSION_MS = 1500
SETTINGS = {
    "replica_lag_time_max_ms": 1500,
    "replica_fetch_backoff_ms": 50,
    "replica_fetch_wait_max_ms": 200,
    "request_timeout_ms": 3000,
}
TOPIC = "orders"
CLIENT_TIMEOUT_MS = 4000
PADDING = b" " * 200  # behind a value, so that a disk is full soon


def ready() -> None:
    """Say that we are there, and wait for the end of our input."""
    print("ready", flush=True)
    sys.stdin.read()


def controller(host: str, path: str) -> None:
    transport = TcpTransport(host, PORT, secret=SECRET)
    static = StaticController.open(path, keep_nodes=True)
    server = ControllerServer(static, transport, session_timeout_ms=SESSION_MS)
    server.serve()
    print("ready", flush=True)
    for _ in sys.stdin:  # a line asks for the in-sync replicas of each partition that has a leader
        topic = static.state().topics.get(TOPIC)
        isr = [one.isr if one.leader is not None else () for one in topic.partitions] if topic else []
        print(json.dumps(isr), flush=True)
    server.close()
    static.close()
    transport.close()


def node(number: str, host: str, path: str, controller_host: str) -> None:
    transport = TcpTransport(host, PORT, secret=SECRET)
    remote = RemoteController(transport, f"{controller_host}:{PORT}", request_timeout_ms=2000)
    with commitlog.open(path) as log:
        with Node(log, transport, remote, int(number), SETTINGS):
            ready()
        remote.close()
        transport.close()


# --- clients


class Journal:
    """The history as one client saw it: a line for each step, written before the step is taken."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, *line: Any) -> None:
        os.write(self._file, json.dumps([time.monotonic_ns(), *line]).encode() + b"\n")


def client(name: str, nodes: str, partitions: str, path: str, seed: str) -> None:
    """Append to every partition and read it, each in a thread with a connection of its own."""
    journal, ends = Journal(path), threading.Event()
    threads = [
        threading.Thread(
            target=work, args=(f"{name}{number}", number, nodes, journal, ends, f"{seed} {name}{number}")
        )
        for number in range(int(partitions))
        for work in (write, read)
    ]
    for thread in threads:
        thread.start()
    ready()
    ends.set()
    for thread in threads:
        thread.join()


def write(name: str, number: int, nodes: str, journal: Journal, ends: threading.Event, seed: str) -> None:
    """Append values that nobody else appends. An error says nothing about what became of them."""
    chance, made = random.Random(seed), 0
    with commitlog.connect(nodes, secret=SECRET, timeout_ms=CLIENT_TIMEOUT_MS) as log:
        while not ends.is_set():
            values = [f"{name}.{made + more}" for more in range(chance.choice((1, 1, 1, 2, 7)))]
            made += len(values)
            journal.note("append", number, values)
            try:
                partition = log.topic(TOPIC).partition(number)
                offsets = partition.append_many([value.encode() + PADDING for value in values], acks="all")
            except CommitLogError as error:
                journal.note("unknown", values[0], repr(error))
            else:
                journal.note("ok", values[0], offsets.start)
            time.sleep(chance.random() * 0.01)


def read(name: str, number: int, nodes: str, journal: Journal, ends: threading.Event, seed: str) -> None:
    """Read what is new, and now and then some of it again."""
    chance, offset = random.Random(f"{seed} reads"), 0
    with commitlog.connect(nodes, secret=SECRET, timeout_ms=CLIENT_TIMEOUT_MS) as log:
        while not ends.is_set():
            if chance.random() < 0.01:
                offset = max(0, offset - 2_000)
            found: list[tuple[int, str]] = []
            with suppress(CommitLogError):  # what came before the error was read
                partition = log.topic(TOPIC).partition(number)
                partition.wait_for(offset, 0.2)
                for record in partition.records(offset):
                    found.append((record.offset, record.value.decode().rstrip()))
            if found:
                offset = found[-1][0] + 1
                journal.note("read", number, found)
            ends.wait(chance.random() * 0.05)


def create(nodes: str, partitions: str, config: str) -> None:
    """Create the topic."""
    with commitlog.connect(nodes, secret=SECRET, timeout_ms=60_000) as log:
        log.create_topic(TOPIC, int(partitions), json.loads(config), replication_factor=3)


def finish(nodes: str, partitions: str, path: str) -> None:
    """Append a last record to each partition: who has it has everything before it."""
    journal = Journal(path)
    with commitlog.connect(nodes, secret=SECRET, timeout_ms=30_000) as log:
        for number in range(int(partitions)):
            value = f"end {number} {time.monotonic_ns()}"
            journal.note("append", number, [value])
            offset = log.topic(TOPIC).partition(number).append(value.encode(), acks="all")
            journal.note("ok", value, offset)


if __name__ == "__main__":
    faulthandler.enable()
    programs = (controller, node, client, create, finish)
    {program.__name__: program for program in programs}[sys.argv[1]](*sys.argv[2:])
