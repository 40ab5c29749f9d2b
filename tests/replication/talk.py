"""What the tests of connections need: asking and waiting, files to send, certificates, raw sockets."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any

import trustme

from commitlog import files
from commitlog.record import TopicPartition
from commitlog.replication.messages import Message, Read
from commitlog.replication.transports.opener import split_address
from commitlog.replication.transports.tcp import TcpTransport
from commitlog.replication.transports.tls import TlsConfig

NAME = TopicPartition("orders", 0)
LONG_MS = 30_000


class Answers:
    """Collects answers; a test waits until there are so many."""

    def __init__(self) -> None:
        self.got: list[Message | None] = []
        self._changed = threading.Condition()

    def __call__(self, answer: Message | None) -> None:
        with self._changed:
            self.got.append(answer)
            self._changed.notify_all()

    def wait(self, count: int = 1) -> list[Message | None]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.got) >= count, 30), f"{len(self.got)} of {count}"
            return list(self.got)


def ask(transport: TcpTransport, address: str, message: Message, timeout_ms: int = LONG_MS) -> Message | None:
    """Send a request and wait for its answer."""
    answers = Answers()
    transport.request(address, message, answers, timeout_ms)
    return answers.wait()[0]


def question(offset: int = 0) -> Read:
    return Read(NAME, "id", offset, max_bytes=100, max_wait_ms=0)


class InFile:
    """Data that lie in a file, as a partition hands them out."""

    def __init__(self, path: Path, position: int, size: int) -> None:
        self.file = files.Descriptor(os.open(path, os.O_RDONLY))
        self.position = position
        self.size = size

    def read(self) -> bytes:
        raise AssertionError("what lies in a file is not read as a whole")


def raw_socket(address: str) -> socket.socket:
    """A connection on which a test says what it likes."""
    sock = socket.create_connection(split_address(address), timeout=30)
    return sock


def receive_to_end(sock: socket.socket) -> bytes:
    """Everything until the other side closes."""
    found = b""
    try:
        while piece := sock.recv(65536):
            found += piece
    except ConnectionResetError:
        pass
    return found


class Authority:
    """Signs certificates."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._ca = trustme.CA()
        self._count = 0

    def tls(self, *hosts: str, **settings: Any) -> TlsConfig:
        """A certificate for these hosts, as TlsConfig takes it."""
        self._count += 1
        paths = [self._folder / f"{self._count}-{part}.pem" for part in ("certificate", "key", "ca")]
        issued = self._ca.issue_cert(*(hosts or ("127.0.0.1",)))
        issued.cert_chain_pems[0].write_to_path(paths[0])
        issued.private_key_pem.write_to_path(paths[1])
        self._ca.cert_pem.write_to_path(paths[2])
        cert, key, authority = map(str, paths)
        return TlsConfig(cert, key, authority, **settings)
