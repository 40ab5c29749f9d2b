"""Streams: the bytes of one connection, plain or with TLS.

One thread receives while another one sends; a third may shut the connection down, which unblocks both.
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

_STEP_BYTES = 1 << 20  # received or sent at once, so that progress is noticed
_COPY_BYTES = 1 << 18
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}

Result = TypeVar("Result")


@runtime_checkable
class InFile(Protocol):
    """Data that are still in a file."""

    file: files.Descriptor
    position: int
    size: int


def prepare(sock: socket.socket) -> None:
    """Set the options of a socket: send small messages at once, and detect a peer that has vanished."""
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


class Stream:
    """A connection without TLS. The kernel sends files without copying them."""

    def __init__(self, sock: socket.socket) -> None:
        self.moved_at = time.monotonic()  # when bytes were last sent
        self._sock = sock

    def receive_into(self, view: memoryview) -> int:
        """Receive the available bytes, at least one; 0 at the end."""
        return self._sock.recv_into(view)

    def receive_all(self, view: memoryview) -> None:
        """Fill a buffer; EOFError if the connection ends first."""
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
        """Send without waiting; return the number of bytes sent."""
        try:
            return self._sock.send(piece, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def send(self, *pieces: Buffer, more: bool = False) -> None:
        """Send all pieces; `more` says that others follow at once."""
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
        """Send data; straight from the file if they are in one."""
        if not isinstance(data, InFile):
            self.send(data.read())
            return
        position, end = data.position, data.position + data.size
        while position < end:
            count = self._send_file(data.file.fd, position, end - position)
            if count == 0:
                raise EOFError(f"the file ends before byte {end}")
            position += count

    def _send_file(self, descriptor: int, position: int, size: int) -> int:
        count = os.sendfile(self._sock.fileno(), descriptor, position, min(size, _STEP_BYTES))
        self.moved_at = time.monotonic()
        return count

    def close(self) -> None:
        """Close the socket, once no thread uses it."""
        self._sock.close()


class TlsStream(Stream):
    """A connection with TLS.

    OpenSSL allows one thread at a time, so its calls are made under a lock and never block: a thread that has
    to wait does so without the lock.
    """

    _sock: ssl.SSLSocket

    def __init__(self, sock: ssl.SSLSocket) -> None:
        import ssl

        super().__init__(sock)
        self._lock = threading.Lock()
        self._wants_read, self._wants_write = ssl.SSLWantReadError, ssl.SSLWantWriteError
        sock.setblocking(False)

    def greet(self) -> None:
        """Perform the TLS handshake."""
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
        """Receive the available bytes, at least one; 0 at the end."""
        return self._until_done(lambda: self._sock.recv_into(view))

    def receive_all(self, view: memoryview) -> None:
        """Fill a buffer; EOFError if the connection ends first."""
        have = 0
        while have < len(view):
            count = self._until_done(lambda: self._receive_some(view[have:]))  # noqa: B023 - called at once
            if count == 0:
                raise EOFError("the connection ends within a message")
            have += count

    def _receive_some(self, view: memoryview) -> int:
        """Receive all available bytes, with the lock held: TLS returns 16 KiB at a time."""
        have = count = self._sock.recv_into(view)
        while 0 < have < len(view) and count:
            try:
                count = self._sock.recv_into(view[have:])
            except (self._wants_read, self._wants_write):
                break
            have += count
        return have

    def try_send(self, piece: bytes) -> int:
        """Send without waiting; return the number of bytes sent. The rest must be sent next.

        OpenSSL may have encrypted its beginning already.
        """
        with self._lock:
            try:
                return self._sock.send(piece)
            except (self._wants_read, self._wants_write):
                return 0

    def send(self, *pieces: Buffer, more: bool = False) -> None:
        """Send all pieces."""
        small = sum(map(len, pieces)) <= _COPY_BYTES
        for piece in [b"".join(pieces)] if small else pieces:
            whole = memoryview(piece)
            for start in range(0, len(whole), _COPY_BYTES):
                self._send_all(whole[start : start + _COPY_BYTES])
                # only here: a peer that reads a little now and then makes no progress
                self.moved_at = time.monotonic()

    def _send_all(self, view: memoryview) -> None:
        while view:
            view = view[self._until_done(lambda: self._sock.send(view)) :]  # noqa: B023 - called at once

    def _send_file(self, descriptor: int, position: int, size: int) -> int:
        piece = os.pread(descriptor, min(size, _COPY_BYTES), position)  # only this process can encrypt it
        self.send(piece)
        return len(piece)
