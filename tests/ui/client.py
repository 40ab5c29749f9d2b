"""A page that is served for a test, and asking it without a browser."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from helpers import wait_until

from commitlog import CommitLog
from commitlog.ui.server import Server


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Asks the page at `url`, as a browser on that page would unless told otherwise."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.url, self.host, self.path = url, parts.netloc, parts.path

    def connect(self) -> HTTPConnection:
        return HTTPConnection(self.host, timeout=30)

    def raw(
        self,
        path: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Answer:
        connection = self.connect()
        try:
            connection.request(method, path, body, {"Host": self.host, **(headers or {})})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """Ask the API; the answer must be good."""
        answer = self.raw(f"{self.path}api/{path}")
        assert answer.status == 200, answer.body
        return answer.json

    def refused(self, path: str) -> tuple[int, str]:
        """Ask the API; returns how it refuses."""
        answer = self.raw(f"{self.path}api/{path}")
        return answer.status, answer.json["error"]

    def post(self, path: str, body: Any) -> Answer:
        headers = {"Origin": f"http://{self.host}", "Content-Type": "application/json"}
        return self.raw(f"{self.path}api/{path}", "POST", headers, json.dumps(body).encode())


@contextmanager
def served(log: CommitLog, *, writable: bool = False) -> Iterator[Client]:
    """Serve a log from a thread."""
    server = Server(log, writable=writable)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield Client(server.url)
    finally:
        server.stop()
        thread.join()
