"""Serve the page of a log on a port of 127.0.0.1, behind a token."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress

import uvicorn

from commitlog.errors import ClosedError
from commitlog.inspect.rates import RateHistory
from commitlog.log import CommitLog
from commitlog.tasks import Task
from commitlog.ui.app import make_app
from commitlog.ui.bounded_http import BoundedHttp
from commitlog.ui.guard import Guard
from commitlog.ui.requests import Ui

_HOST = "127.0.0.1"
_RELEASE_SECONDS = 10.0
_MOST_HEADER_BYTES = 16 * 1024


class Server:
    """The page of one log. `url` contains the token, which is all one needs to see the log."""

    def __init__(self, log: CommitLog, *, port: int = 0, writable: bool = False) -> None:
        self._log = log
        self._socket = _bind(port)
        self._token = secrets.token_urlsafe(24)
        address = f"{_HOST}:{self._socket.getsockname()[1]}"
        self.url = f"http://{address}/{self._token}/"
        app = make_app(Ui(log, writable, RateHistory()), lambda: self._server.should_exit)
        hosts = frozenset({address, address.replace(_HOST, "localhost")})
        config = uvicorn.Config(
            Guard(app, self._token, hosts),
            http=BoundedHttp,
            h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
            ws="none",
            lifespan="off",
            log_config=None,  # logging is configured by the application
            log_level="error",  # do not log what strangers send
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)

    @property
    def started(self) -> bool:
        """Whether the server answers requests."""
        return self._server.started

    def run(self) -> None:
        """Serve until Ctrl-C, SIGTERM or stop()."""
        release = Task("ui", self._release)
        release.start()
        try:
            # uvicorn shuts down in order, then raises the signal again
            with self._socket, suppress(KeyboardInterrupt):
                self._server.run(sockets=[self._socket])
        finally:
            release.stop()

    def _release(self) -> float:
        with suppress(ClosedError):  # the owner has closed it
            self._log.release_removed()  # a page may stay open for days without requests
        return _RELEASE_SECONDS

    def stop(self) -> None:
        """Make run() return."""
        self._server.should_exit = True


def _bind(port: int) -> socket.socket:
    listening = socket.socket()
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((_HOST, port))
        listening.listen()  # a browser that connects before the server runs waits
    except OSError:
        listening.close()
        raise
    return listening
