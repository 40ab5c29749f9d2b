"""Requests that no browser makes, and connections that make none."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator

import pytest
from helpers import wait_until

from commitlog import CommitLog
from commitlog.ui import bounded_http

from .client import Client


def connected(client: Client) -> socket.socket:
    host, _, port = client.host.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def said(sock: socket.socket) -> bytes:
    """Everything until the other side closes."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := sock.recv(65536):
            found += piece
    return found


def answer(client: Client, request: bytes) -> bytes:
    with connected(client) as sock:
        sock.sendall(request)
        return said(sock)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(bounded_http, "REQUEST_SECONDS", 0.05)
    yield


@pytest.mark.parametrize("target", ["*", "//", "/%2e%2e/", "http://127.0.0.1/", "x", "/%00", "/%ff%fe/"])
@pytest.mark.parametrize("method", ["GET", "OPTIONS", "TRACE"])
def test_a_target_that_is_no_path_of_ours_is_refused(
    client: Client, method: str, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    request = f"{method} {target} HTTP/1.1\r\nHost: {client.host}\r\nConnection: close\r\n\r\n"
    assert answer(client, request.encode()).startswith(b"HTTP/1.1 403 ")
    assert caplog.text == ""


@pytest.mark.parametrize("name", ["value", "key"])
def test_half_a_surrogate_pair_is_a_bad_request(writable: Client, name: str) -> None:
    body = b'{"%s": "\\ud800"}' % name.encode()
    headers = {"Origin": f"http://{writable.host}", "Content-Type": "application/json"}
    for path in ("topics/t/append", "group/reset"):
        found = writable.raw(f"{writable.path}api/{path}", "POST", headers, body)
        assert found.status == 400, found.body


def test_half_a_surrogate_pair_in_a_name_can_be_answered() -> None:
    from commitlog.ui.requests import JsonAnswer

    assert json.loads(bytes(JsonAnswer({"name": "\ud800"}).body)) == {"name": "\ud800"}


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: x\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n",
    ],
    ids=["nothing", "line", "headers", "body"],
)
@pytest.mark.usefixtures("impatient")
def test_a_request_that_is_not_finished_is_given_up(client: Client, start: bytes) -> None:
    with connected(client) as sock:
        sock.sendall(start)
        said(sock)  # ends


@pytest.mark.usefixtures("impatient")
def test_the_second_request_of_a_connection_has_to_be_finished_too(client: Client) -> None:
    with connected(client) as sock:
        sock.sendall(f"GET /x HTTP/1.1\r\nHost: {client.host}\r\n\r\nGET / HT".encode())
        assert said(sock).startswith(b"HTTP/1.1 403 ")


@pytest.mark.usefixtures("impatient")
def test_a_body_that_does_not_come_is_given_up_without_a_traceback(
    writable: Client, caplog: pytest.LogCaptureFixture
) -> None:
    head = (
        f"POST {writable.path}api/topics/t/append HTTP/1.1\r\nHost: {writable.host}\r\n"
        f"Origin: http://{writable.host}\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{{"
    )
    with connected(writable) as sock:
        sock.sendall(head.encode())
        said(sock)
    assert caplog.text == ""


def test_connections_without_a_request_keep_nobody_out(client: Client, log: CommitLog) -> None:
    log.create_topic("t")
    with contextlib.ExitStack() as stack:
        for number in range(3 * bounded_http.MOST_CONNECTIONS):
            sock = stack.enter_context(connected(client))
            sock.sendall(b"GET / HT"[: number % 8])
        assert client.get("topics")["total"] == 1


def test_a_tail_is_not_given_up(client: Client, log: CommitLog, impatient: None) -> None:
    topic = log.create_topic("t")
    with contextlib.ExitStack() as stack:
        tail = stack.enter_context(connected(client))
        target = f"GET {client.path}api/topics/t/tail HTTP/1.1\r\nHost: {client.host}\r\n\r\n"
        tail.sendall(target.encode())
        seen = bytearray()

        def has(text: bytes) -> bool:
            seen.extend(tail.recv(65536))
            return text in seen

        wait_until(lambda: has(b"ready"))
        for _ in range(2 * bounded_http.MOST_CONNECTIONS):
            stack.enter_context(connected(client))
        topic.append(b"after the flood")
        wait_until(lambda: has(b"after the flood"))


def test_headers_without_end_are_refused(client: Client) -> None:
    with connected(client) as sock:
        with contextlib.suppress(OSError):
            sock.sendall(b"GET / HTTP/1.1\r\n")
            for number in range(100_000):
                sock.sendall(b"X-%d: y\r\n" % number)
        found = said(sock)
    assert found == b"" or found.startswith(b"HTTP/1.1 400 ")
    assert client.raw(client.path).status == 200
