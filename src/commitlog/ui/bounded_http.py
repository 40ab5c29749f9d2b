"""BoundedHttp: limits the number of HTTP connections, and the time a request may take to arrive."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 10.0
MOST_CONNECTIONS = 100


class BoundedHttp(H11Protocol):
    """uvicorn's protocol with limits; on its own it waits for a request as long as the peer likes.

    When there are too many connections, the oldest one without a request in progress is closed, so that idle
    connections cannot keep others out.
    """

    _since: float = 0.0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, and start waiting for its first request."""
        super().connection_made(transport)
        self._since = self.loop.time()
        self._expect()
        if len(self.connections) > MOST_CONNECTIONS:
            waiting = [one for one in self.connections if isinstance(one, BoundedHttp) and one._is_waiting]
            min(waiting, key=lambda one: one._since).transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting; the connection is closed."""
        self._stop_expecting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Receive bytes, and start or stop the deadline of the request they belong to."""
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._expect()
        else:
            self._stop_expecting()

    @property
    def _is_waiting(self) -> bool:
        return self._deadline is not None or self.cycle is None or self.cycle.response_complete

    def _expect(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.close)

    def _stop_expecting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
