"""Streams: the bytes of one connection, plain or within TLS.

One thread receives while another one sends, and a third may shut the connection down: both come back then.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from commitlog import files
from commitlog.record import Buffer
from commitlog.replication.messages import Data

if TYPE_CHECKING:
    import ssl

_STEP_BYTES = 1 << 20  # received or sent at once, so that one sees that it goes on
_COPY_BYTES = 1 << 18
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}

Result = TypeVar("Result")


@runtime_checkable
class InFile(Protocol):
    """Data that still lie in a file."""

    file: files.Descriptor
    position: int
    size: int


def prepare(sock: socket.socket) -> None:
    """Send small messages at once, and notice a peer that is gone without a word."""
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # not every system has them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def shut_down(sock: socket.socket) -> None:
    """End a connection: threads that receive or send on it return."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # not SSLSocket's, which drops TLS under its readers


class PlainStream:
    """A connection without TLS. Files are sent by the kernel, without a copy here."""

    def __init__(self, sock: socket.socket) -> None:
        self.moved_at = time.monotonic()  # when bytes were last sent
        self._sock = sock

    def receive_into(self, view: memoryview) -> int:
        """Receive what is there, at least a byte; 0 at the end."""
        return self._sock.recv_into(view)

    def receive_all(self, view: memoryview) -> None:
        """Fill a buffer; EOFError if the connection ends before."""
        have = 0
        while have < len(view):
            step = view[have : have + _STEP_BYTES]
            count = self._sock.recv_into(step, len(step), socket.MSG_WAITALL)
            if count == 0:
                raise EOFError("the connection ends within a message")
            have += count

    def receive(self, size: int) -> bytes:
        """Return the next `size` bytes; EOFError if there are fewer."""
        found = bytearray(size)
        self.receive_all(memoryview(found))
        return bytes(found)

    def try_send(self, piece: bytes) -> int:
        """Send what goes without waiting; returns how much that was."""
        try:
            return self._sock.send(piece, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def send(self, *pieces: Buffer, more: bool = False) -> None:
        """Send all of it; `more` says that something follows at once."""
        flags = socket.MSG_MORE if more else 0
        left = [memoryview(piece) for piece in pieces]
        while left:
            sent = self._sock.sendmsg(left, [], flags)
            self.moved_at = time.monotonic()
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if left:
                left[0] = left[0][sent:]

    def send_data(self, data: Data) -> None:
        """Send data; straight from the file if they lie in one."""
        if not isinstance(data, InFile):
            self.send(data.read())
            return
        position, end = data.position, data.position + data.size
        while position < end:
            count = os.sendfile(self._sock.fileno(), data.file.fd, position, min(end - position, _STEP_BYTES))
            if count == 0:
                raise EOFError(f"the file ends before byte {end}")
            position += count
            self.moved_at = time.monotonic()

    def shut_down(self) -> None:
        """End the connection: threads that receive or send on it return."""
        shut_down(self._sock)

    def close(self) -> None:
        """Let it go, once nobody uses it any more."""
        self._sock.close()


class TlsStream:
    """A connection within TLS.

    OpenSSL allows one thread at a time, so its calls are made under a lock and never wait: a thread that has
    to wait does so outside.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        import ssl

        self.moved_at = time.monotonic()
        self._sock = sock
        self._lock = threading.Lock()
        self._wants_read, self._wants_write = ssl.SSLWantReadError, ssl.SSLWantWriteError

    def greet(self) -> None:
        """Make the TLS handshake."""
        self._until_done(self._sock.do_handshake)

    def _until_done(self, call: Callable[[], Result]) -> Result:
        while True:
            try:
                with self._lock:
                    return call()
            except self._wants_read:
                self._wait(select.POLLIN)
            except self._wants_write:
                self._wait(select.POLLOUT)

    def _wait(self, event: int) -> None:
        poll = select.poll()
        poll.register(self._sock.fileno(), event)
        poll.poll()

    def receive_into(self, view: memoryview) -> int:
        """Receive what is there, at least a byte; 0 at the end."""
        return self._until_done(lambda: self._sock.recv_into(view))

    def receive_all(self, view: memoryview) -> None:
        """Fill a buffer; EOFError if the connection ends before."""
        have = 0
        while have < len(view):
            count = self._until_done(lambda: self._receive_some(view[have:]))  # noqa: B023 - called at once
            if count == 0:
                raise EOFError("the connection ends within a message")
            have += count

    def _receive_some(self, view: memoryview) -> int:
        """Receive what is there, with the lock held: TLS hands out 16 KiB at a time."""
        have = count = self._sock.recv_into(view)
        while 0 < have < len(view) and count:
            try:
                count = self._sock.recv_into(view[have:])
            except (self._wants_read, self._wants_write):
                break
            have += count
        return have

    def receive(self, size: int) -> bytes:
        """Return the next `size` bytes; EOFError if there are fewer."""
        found = bytearray(size)
        self.receive_all(memoryview(found))
        return bytes(found)

    def try_send(self, piece: bytes) -> int:
        """Send what goes without waiting; returns how much that was. The rest must be sent next.

        OpenSSL may have encrypted the beginning of it already.
        """
        with self._lock:
            try:
                return self._sock.send(piece)
            except (self._wants_read, self._wants_write):
                return 0

    def send(self, *pieces: Buffer, more: bool = False) -> None:
        """Send all of it."""
        small = sum(map(len, pieces)) <= _COPY_BYTES
        for piece in [b"".join(pieces)] if small else pieces:
            whole = memoryview(piece)
            for start in range(0, len(whole), _COPY_BYTES):
                self._send_all(whole[start : start + _COPY_BYTES])
                # not before: who reads a little now and then makes no progress
                self.moved_at = time.monotonic()

    def _send_all(self, view: memoryview) -> None:
        while view:
            view = view[self._until_done(lambda: self._sock.send(view)) :]  # noqa: B023 - called at once

    def send_data(self, data: Data) -> None:
        """Send data; what lies in a file is read piece by piece: only this process can encrypt it."""
        if not isinstance(data, InFile):
            self.send(data.read())
            return
        position, end = data.position, data.position + data.size
        while position < end:
            piece = os.pread(data.file.fd, min(end - position, _COPY_BYTES), position)
            if not piece:
                raise EOFError(f"the file ends before byte {end}")
            self.send(piece)
            position += len(piece)

    def shut_down(self) -> None:
        """End the connection: threads that receive or send on it return."""
        shut_down(self._sock)

    def close(self) -> None:
        """Let it go, once nobody uses it any more."""
        self._sock.close()


Stream = PlainStream | TlsStream
