"""LocalNetwork: connects nodes within one process, on a virtual clock, with injected faults.

Everything happens in the thread that drives the network, in an order that the seed decides: the same seed and
the same calls give the same run. Nothing waits in real time: an hour takes as long as its events.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from random import Random
from threading import Event

from commitlog.replication.messages import Message
from commitlog.replication.ports import Answered, Handler

_logger = logging.getLogger("commitlog.replication")


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of a network. A message takes between delay_ms[0] and delay_ms[1], inclusive.

    `loss` is the fraction of messages that get lost, `duplication` that of requests that arrive twice. With
    `reordering`, a message may overtake another one between the same two nodes.
    """

    delay_ms: tuple[int, int] = (1, 1)
    loss: float = 0.0
    duplication: float = 0.0
    reordering: bool = False


class LocalNetwork:
    """A network and a clock. `faults` may be replaced at any time."""

    def __init__(self, seed: int = 0, faults: Faults | None = None) -> None:
        self.random = Random(seed)
        self.faults = faults or Faults()
        self._now_ms = 0
        self._numbers = count()
        self._events: list[tuple[int, int, LocalTransport | None, Callable[[], None]]] = []
        self._nodes: dict[str, LocalTransport] = {}
        self._cut: set[tuple[str, str]] = set()
        self._paused: dict[str, list[tuple[LocalTransport, Callable[[], None]]]] = {}
        self._last_arrival: dict[tuple[str, str], int] = {}

    # --- time ---------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Return the virtual time."""
        return self._now_ms

    def run_for(self, ms: int) -> None:
        """Let this much time pass, handling all events that are due."""
        self.run_until(lambda: False, ms)

    def run_until(self, condition: Callable[[], bool], timeout_ms: int) -> bool:
        """Let time pass until a condition holds; False after timeout_ms."""
        deadline_ms = self._now_ms + timeout_ms
        while not condition():
            if not self._events or self._events[0][0] > deadline_ms:
                self._now_ms = max(self._now_ms, deadline_ms)
                return condition()
            self._step()
        return True

    def call_later(self, delay_ms: int, call: Callable[[], None]) -> None:
        """Make a call after this much time, whatever is paused or closed."""
        self._at(delay_ms, None, call)

    # --- nodes and faults ---------------------------------------------------------------------------

    def transport(self, name: str, *, skew_ms: int = 0, drift: float = 1.0) -> LocalTransport:
        """Return a transport for a node, whose address is its name. An earlier node of that name crashes.

        Its clock is `skew_ms` ahead, and runs `drift` times as fast as the network's.
        """
        self.crash(name)
        self._nodes[name] = LocalTransport(self, name, skew_ms, drift)
        return self._nodes[name]

    def crash(self, name: str) -> None:
        """Crash a node: none of its handlers and timers is called again."""
        transport = self._nodes.pop(name, None)
        if transport is not None:
            transport.closed = True
        self._paused.pop(name, None)

    def pause(self, name: str) -> None:
        """Pause a node. Its messages and timers wait until it resumes, while time passes for the others."""
        self._paused.setdefault(name, [])

    def resume(self, name: str) -> None:
        """Resume a paused node."""
        for transport, call in self._paused.pop(name, []):
            self._at(0, transport, call)

    def partition(self, one: str, other: str, *, one_way: bool = False) -> None:
        """Cut the link from `one` to `other`, and unless one_way, the link back."""
        self._cut.add((one, other))
        if not one_way:
            self._cut.add((other, one))

    def heal(self) -> None:
        """Restore all links, and resume all paused nodes."""
        self._cut.clear()
        for name in list(self._paused):
            self.resume(name)

    def alive(self, name: str) -> bool:
        """Return whether there is a node of this name that has not crashed."""
        return name in self._nodes

    def reaches(self, one: str, other: str) -> bool:
        """Return whether messages from `one` reach `other` now: the link is up, and neither is paused."""
        return (one, other) not in self._cut and one not in self._paused and other not in self._paused

    def delay_ms(self) -> int:
        """Return how long the next message takes."""
        low, high = self.faults.delay_ms
        return low if low == high else self.random.randint(low, high)

    # --- events -------------------------------------------------------------------------------------

    def _at(self, delay_ms: int, transport: LocalTransport | None, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._now_ms + delay_ms, next(self._numbers), transport, call))

    def _step(self) -> None:
        time_ms, _, transport, call = heapq.heappop(self._events)
        self._now_ms = max(self._now_ms, time_ms)
        if transport is not None and transport.closed:
            return
        if transport is not None and transport.name in self._paused:
            self._paused[transport.name].append((transport, call))
        else:
            call()

    def _carry(self, sender: str, receiver: str, deliver: Callable[[LocalTransport], None]) -> None:
        """Deliver something to the node that has the address when it arrives, or lose it."""
        if (sender, receiver) in self._cut:
            return
        if self.faults.loss and self.random.random() < self.faults.loss:
            return
        arrival_ms = self._now_ms + self.delay_ms()
        if not self.faults.reordering:
            arrival_ms = max(arrival_ms, self._last_arrival.get((sender, receiver), 0))
            self._last_arrival[sender, receiver] = arrival_ms

        def arrive() -> None:
            transport = self._nodes.get(receiver)
            if transport is not None and (sender, receiver) not in self._cut:
                self._at(0, transport, lambda: deliver(transport))

        self._at(arrival_ms - self._now_ms, None, arrive)


class LocalTransport:
    """A Transport within a LocalNetwork."""

    def __init__(self, network: LocalNetwork, name: str, skew_ms: int, drift: float) -> None:
        self.name = name
        self.closed = False
        self._network = network
        self._skew_ms, self._drift = skew_ms, drift
        self._handle: Handler | None = None
        self._under_way: dict[int, Answered] = {}
        self._numbers = count()

    def serve(self, handle: Handler) -> str:
        """Start to accept requests; the address is the node's name."""
        self._handle = handle
        return self.name

    def request(self, address: str, message: Message, answered: Answered, timeout_ms: int) -> None:
        """Send a request; it, or its answer, may get lost."""
        number = next(self._numbers)
        self._under_way[number] = answered
        self._network._at(self._network_ms(timeout_ms), self, lambda: self._answered(number, None))
        faults, random = self._network.faults, self._network.random
        copies = 2 if faults.duplication and random.random() < faults.duplication else 1
        for _ in range(copies):
            self._network._carry(self.name, address, lambda there: there._receive(message, self, number))

    def now_ms(self) -> int:
        """Return this node's time."""
        return self._skew_ms + int(self._network.now_ms() * self._drift)

    def call_every(self, interval_ms: int, call: Callable[[], None]) -> None:
        """Call `call` repeatedly; errors that it raises are logged."""

        def once() -> None:
            try:
                call()
            except Exception:
                _logger.exception("a call made every %d ms failed", interval_ms)
            self._network._at(self._network_ms(interval_ms), self, once)

        self._network._at(self._network_ms(interval_ms), self, once)

    def wait(self, event: Event, timeout_ms: int) -> bool:
        """Drive the network until an event is set; False after timeout_ms."""
        return self.wait_for(event.is_set, timeout_ms)

    def wait_for(self, condition: Callable[[], bool], timeout_ms: int) -> bool:
        """Drive the network until a condition holds; False after timeout_ms."""
        return self._network.run_until(condition, self._network_ms(timeout_ms))

    def wake(self) -> None:
        """Do nothing: waiters check their conditions after every event."""

    def close(self) -> None:
        """Stop serving, and answer pending requests with None."""
        under_way, self._under_way = self._under_way, {}
        if not self.closed:
            self._network.crash(self.name)
        for answered in under_way.values():
            answered(None)

    def _network_ms(self, ms: int) -> int:
        return max(0, round(ms / self._drift))

    def _receive(self, message: Message, sender: LocalTransport, number: int) -> None:
        def reply(answer: Message) -> None:
            if not self.closed:
                self._network._carry(
                    self.name, sender.name, lambda there: sender._arrived(there, number, answer)
                )

        if self._handle is not None:
            self._handle(message, reply)

    def _arrived(self, there: LocalTransport, number: int, answer: Message) -> None:
        if there is self:  # and not a later life of the same name
            self._answered(number, answer)

    def _answered(self, number: int, answer: Message | None) -> None:
        answered = self._under_way.pop(number, None)
        if answered is not None:
            answered(answer)
