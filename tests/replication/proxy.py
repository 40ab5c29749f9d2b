"""A way to a port that can be cut."""

from __future__ import annotations

import contextlib
import socket
import threading


class Proxy:
    """A way to a port that can be cut: then connections stay open, but nothing comes through."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = []
        self._cut = threading.Event()
        self._muted = 0  # how many connections have still to be accepted and never answered
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        self._cut.set()

    def mend(self) -> None:
        self._cut.clear()
        self._drop()  # what was swallowed meanwhile is missing in the streams

    def end_and_mute_next(self) -> None:
        """End all connections; the next one is accepted, and nothing comes through."""
        self._muted += 1
        self._drop()

    def _drop(self) -> None:
        dropped, self._sockets = self._sockets, []
        for one in dropped:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
                if self._muted:
                    self._muted -= 1
                    self._sockets.append(client)
                    threading.Thread(target=self._swallow, args=(client,), daemon=True).start()
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                continue
            self._sockets += [client, server]
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _swallow(self, source: socket.socket) -> None:
        with contextlib.suppress(OSError), source:
            while source.recv(65536):
                pass

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not self._cut.is_set():
                    target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        source.close()

    def close(self) -> None:
        self._closed = True
        self._cut.clear()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._drop()
