"""Transport: what carries messages between nodes, and the clock by which they wait.

It may lose a request or its answer, delay them, deliver a request twice and requests out of order; it never
changes one. An answer comes at most once, and only to the request it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import Protocol

from commitlog.replication.messages import Message

Reply = Callable[[Message], None]
Handler = Callable[[Message, Reply], None]
Answered = Callable[[Message | None], None]


class Transport(Protocol):
    """How one node, or one client, talks to others. Nothing here blocks but wait(), wait_for(), close()."""

    def serve(self, handle: Handler) -> str:
        """Take requests from now on; returns the address by which others reach this node.

        `handle(request, reply)` may be called by several threads at once. It calls `reply` once, now or
        later, from any thread; nobody minds if the other side is gone by then.
        """

    def request(self, address: str, message: Message, answered: Answered, timeout_ms: int) -> None:
        """Send a request. `answered` is called once: with the answer, or with None if there is none in time.

        It is never called from within request() itself.
        """

    def now_ms(self) -> int:
        """Return the time, in milliseconds from an arbitrary start; it never goes back."""

    def call_every(self, interval_ms: int, call: Callable[[], None]) -> None:
        """Call this now and then, until close(); an error it raises is logged and does not end it."""

    def wait(self, event: Event, timeout_ms: int) -> bool:
        """Wait until an event is set; False if it is not in time. Nobody else is woken by that one."""

    def wait_for(self, condition: Callable[[], bool], timeout_ms: int) -> bool:
        """Wait until a condition holds; False if it does not in time. wake() makes it look again."""

    def wake(self) -> None:
        """Tell those who wait that their conditions may have come true."""

    def close(self) -> None:
        """Stop serving, answer what is under way with None, and let everything go. Closing twice is fine."""
