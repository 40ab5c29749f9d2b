"""Transports between threads of one process, for tests of what is above them. A transport can be cut off."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from commitlog.replication.controllers.notifier import Caller
from commitlog.replication.messages import Message
from commitlog.replication.ports import Answered, Handler


class Hub:
    """Where transports find one another."""

    def __init__(self) -> None:
        self.handlers: dict[str, tuple[InProcessTransport, Handler]] = {}


class InProcessTransport:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._thread = Caller("test-transport")  # the thread that runs the callbacks of answers
        self._serving = Caller("test-handler")
        self._condition = threading.Condition()
        self._stopped = threading.Event()
        self._loops: list[threading.Thread] = []
        self._waiting: list[tuple[float, Answered]] = []
        self._connected = True
        self.requests = 0
        self.lose_next: type | None = None  # an answer of this kind
        self.call_every(5, self._give_up)

    @property
    def connected(self) -> bool:
        return self._connected

    def cut(self) -> None:
        """From now on nothing is sent or answered."""
        self._connected = False

    def mend(self) -> None:
        self._connected = True

    def serve(self, handle: Handler) -> str:
        address = f"hub:{len(self._hub.handlers) + 1}"
        self._hub.handlers[address] = self, handle
        return address

    def request(self, address: str, message: Message, answered: Answered, timeout_ms: int) -> None:
        self.requests += 1
        entry = (time.monotonic() + timeout_ms / 1000, answered)
        with self._condition:
            self._waiting.append(entry)
        found = self._hub.handlers.get(address)
        if found is None or not found[0].connected or not self._connected:
            return

        def reply(answer: Message) -> None:
            if self.lose_next is type(answer):
                self.lose_next = None
            elif self._connected and found[0].connected:
                self._thread.soon(lambda: self._finish(entry, answer))

        found[0]._serving.soon(lambda: found[1](message, reply))

    def _finish(self, entry: tuple[float, Answered], answer: Message | None) -> None:
        with self._condition:
            if entry not in self._waiting:
                return
            self._waiting.remove(entry)
        entry[1](answer)

    def _give_up(self) -> None:
        with self._condition:
            late = [entry for entry in self._waiting if entry[0] < time.monotonic()]
        for entry in late:
            self._thread.soon(lambda entry=entry: self._finish(entry, None))  # type: ignore[misc]

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def call_every(self, interval_ms: int, call: Callable[[], None]) -> None:
        def loop() -> None:
            while not self._stopped.wait(interval_ms / 1000):
                call()

        self._loops.append(threading.Thread(target=loop, daemon=True))
        self._loops[-1].start()

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        return event.wait(timeout_ms / 1000)

    def wait_for(self, condition: Callable[[], bool], timeout_ms: int) -> bool:
        with self._condition:
            return self._condition.wait_for(condition, timeout_ms / 1000)

    def wake(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def close(self) -> None:
        self._stopped.set()
        for loop in self._loops:
            loop.join()
        self._thread.close()
        self._serving.close()
