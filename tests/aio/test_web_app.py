"""examples/web_app.py with a real uvicorn and real clients, killed and started again."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import commitlog

pytest.importorskip("fastapi")
websockets = pytest.importorskip("websockets.sync.client")

PROGRAM = Path(__file__).parents[2] / "examples" / "web_app.py"


class Server:
    """The application in a process of its own."""

    def __init__(self, path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.process = subprocess.Popen([sys.executable, str(PROGRAM), str(path), str(self.port)])
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                assert self.process.poll() is None, "the server does not start"
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def request(self, method: str, path: str, **message: str) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"Content-Type": "application/json"}
        connection.request(method, path, json.dumps(message) if message else None, headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        found = json.loads(answer.read())
        connection.close()
        return found

    @contextmanager
    def events(self, last: int | None = None) -> Iterator[Iterator[tuple[int, Any]]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {} if last is None else {"Last-Event-ID": str(last)}
        connection.request("GET", "/messages/stream", headers=headers)
        answer = connection.getresponse()

        def read() -> Iterator[tuple[int, Any]]:
            while line := answer.readline():
                if line.startswith(b"id: "):
                    data = answer.readline().removeprefix(b"data: ")
                    yield int(line[4:]), json.loads(data)

        try:
            yield read()
        finally:
            connection.close()

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def serving(path: Path) -> Iterator[Server]:
    server = Server(path)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def test_messages_survive_a_kill_and_clients_resume(tmp_path: Path) -> None:
    path = tmp_path / "chat"
    with serving(path) as server:
        offsets = [
            server.request("POST", "/messages", author="alice", text=f"{n}")["offset"] for n in range(5)
        ]
        assert offsets == [0, 1, 2, 3, 4]
        with server.events() as events:
            seen = [next(events) for _ in range(5)]
            assert seen[4] == (4, {"offset": 4, "author": "alice", "text": "4"})
            assert server.request("POST", "/messages", author="bob", text="hi") == {"offset": 5}
            assert next(events) == (5, {"offset": 5, "author": "bob", "text": "hi"})
        assert server.end(signal.SIGKILL) == -signal.SIGKILL
    with serving(path) as server:
        with server.events(last=3) as events:
            assert [offset for offset, _ in (next(events), next(events))] == [4, 5]
        with websockets.connect(f"ws://127.0.0.1:{server.port}/messages/ws?start=5") as client:
            assert json.loads(client.recv(60)) == {"offset": 5, "author": "bob", "text": "hi"}
            assert server.request("POST", "/messages", author="bob", text="again") == {"offset": 6}
            assert json.loads(client.recv(60))["text"] == "again"
        deadline = time.monotonic() + 60
        while server.request("GET", "/totals") != {"alice": 5, "bob": 2}:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_signal_ends_the_server_with_open_streams(tmp_path: Path) -> None:
    path = tmp_path / "chat"
    with serving(path) as server:
        server.request("POST", "/messages", author="alice", text="hello")
        with server.events() as events, server.events() as others:
            next(events)
            next(others)
            assert server.end(signal.SIGTERM) in (0, -signal.SIGTERM)
    with commitlog.open(path) as log:
        assert [one.clean for one in log.recovery if one.partition == "messages-0"] == [True]
