"""Router: finds the node that leads a partition, and avoids nodes that do not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

from commitlog.errors import (
    AuthenticationError,
    ClosedError,
    CommitLogError,
    ConnectionFailedError,
    FencedEpochError,
    NoControllerError,
    NotJoinedError,
    NotLeaderError,
    PartitionFailedError,
    ReplicationTimeoutError,
    TopicReplacedError,
    UnknownEpochError,
    UnknownPartitionError,
    UnknownTopicError,
    WrongClusterError,
)
from commitlog.record import TopicPartition
from commitlog.replication.messages import Describe, Described, DescribedTopic, Message, Refused
from commitlog.replication.refusals import error_of
from commitlog.replication.transports.tcp import TcpTransport

ReadFrom = Literal["leader", "any"]
Make = Callable[[int], Message]  # makes a request, given the milliseconds that one try may take
Doubts = Callable[[Message], CommitLogError | None]
# errors that may pass: another node, or the same one later, may answer differently
PASSING = (
    NotLeaderError, FencedEpochError, UnknownEpochError, ReplicationTimeoutError, NoControllerError,
    ClosedError, PartitionFailedError, NotJoinedError,
)  # fmt: skip
# errors that a node which is behind may return about a topic; a node that is up to date is asked to confirm
_DOUBTFUL = (UnknownTopicError, UnknownPartitionError, TopicReplacedError)
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 5, 500
_SHORTEST_TRY_MS = 1000
_SILENT_SECONDS = 5.0  # after that it is tried again, or a node with an old state might be asked forever


class Deadline:
    """The time when a client gives up."""

    def __init__(self, timeout_ms: float) -> None:
        self.timeout_ms = int(timeout_ms)
        self._end = time.monotonic() + timeout_ms / 1000
        self._tries = 0

    @property
    def left_ms(self) -> int:
        """The remaining milliseconds."""
        return max(int((self._end - time.monotonic()) * 1000), 0)

    @property
    def try_ms(self) -> int:
        """How long one try may take, so that a silent node leaves time to ask another."""
        return min(self.left_ms, max(self.timeout_ms // 3, _SHORTEST_TRY_MS))

    def next_pause_ms(self) -> int:
        """Return how long to wait before the next try."""
        self._tries += 1
        return min(_FIRST_PAUSE_MS << min(self._tries - 1, 10), _LONGEST_PAUSE_MS, self.left_ms)


class Router:
    """Sends requests to nodes; caches who leads, and refreshes that when a node disagrees. Thread-safe."""

    def __init__(
        self, transport: TcpTransport, addresses: Sequence[str], timeout_ms: int, read_from: ReadFrom
    ) -> None:
        self.timeout_ms = timeout_ms
        self.read_from: ReadFrom = read_from
        self._transport = transport
        self._addresses = list(addresses)
        self._lock = threading.Lock()
        self.cluster_id = ""  # of the nodes that answered; nodes of other clusters are ignored
        self._version = -1  # of the newest state that a node described
        self._ids: dict[str, str] = {}  # of topics, in that state
        self._nodes: dict[int, str] = {}
        self._topics: dict[str, DescribedTopic] = {}
        self._silent: dict[str, float] = {}  # nodes that did not answer last time, and when that was
        self._unable: set[str] = set()  # nodes that failed the last request to a replica
        self._turn = 0  # which node to ask first who leads: not always one with an old state
        self._closed = False

    def close(self) -> None:
        """End all connections; pending requests get no answer."""
        self._closed = True
        self._transport.close()

    def check_open(self) -> None:
        """Raise ClosedError if the router is closed."""
        if self._closed:
            raise ClosedError("the connection")

    def deadline(self) -> Deadline:
        """Return a deadline timeout_ms from now."""
        return Deadline(self.timeout_ms)

    # --- asking one node

    def ask_once(self, address: str, message: Message, timeout_ms: int) -> Message | None:
        """Return a node's answer, None after timeout_ms."""
        self.check_open()
        answer = self.ask_soon(address, message, timeout_ms).wait()
        if answer is None:
            self._silent[address] = time.monotonic()
        else:
            self._silent.pop(address, None)
        return answer

    def ask_soon(self, address: str, message: Message, timeout_ms: int) -> Pending:
        """Send a request, and return its pending answer."""
        pending = Pending()
        self.ask_and_go(address, message, timeout_ms, pending)
        return pending

    def ask_and_go(
        self, address: str, message: Message, timeout_ms: int, answered: Callable[[Message | None], None]
    ) -> None:
        """Send a request; `answered` is called with the answer, or None, in another thread."""
        self._transport.request(address, message, answered, timeout_ms)

    def why_not(self, address: str, otherwise: CommitLogError) -> CommitLogError:
        """Return why a node did not answer, if that is known."""
        self.check_open()
        error = self._transport.last_error(address)
        if isinstance(error, AuthenticationError):
            raise error  # a retry would not help
        return error or otherwise

    # --- asking until a node answers

    def ask_any(
        self, make: Make, what: str, deadline: Deadline, doubts: Doubts = lambda answer: None
    ) -> Message:
        """Ask one node after another until one answers; raises an error that will not pass.

        `doubts` returns why an answer cannot be trusted, None if it can.
        """
        problem: CommitLogError = ReplicationTimeoutError(what, deadline.timeout_ms)
        while True:
            unknown: UnknownTopicError | None = None
            for address in self._known_addresses():
                if unknown is not None and address in self._silent:
                    break
                try_ms = deadline.try_ms
                answer = self.ask_once(address, make(try_ms), try_ms)
                if answer is None:
                    problem = self.why_not(address, problem)
                elif isinstance(answer, Refused):
                    problem = _passing(answer, PASSING)
                elif (doubt := doubts(answer)) is not None:
                    problem = doubt
                    if isinstance(doubt, UnknownTopicError):
                        unknown = doubt
                else:
                    return answer
                if deadline.left_ms == 0:
                    raise problem
            if unknown is not None:
                raise unknown  # all nodes in the cluster agree
            self.pause(deadline)

    def ask_for(
        self,
        name: TopicPartition,
        topic_id: str,
        make: Make,
        deadline: Deadline,
        *,
        any_replica: bool = False,
    ) -> Message:
        """Ask the node that leads a partition, until it answers.

        Once a leader was asked, no leader of an earlier epoch is: it would not know what the later one did.
        """
        problem: CommitLogError | None = None
        newest = -1
        while True:
            try:
                address, epoch = self.place_of(name, topic_id, deadline, any_replica=any_replica)
            except (*PASSING, ConnectionFailedError) as error:
                raise problem or error from None  # the leader's error says more
            if address is None or (epoch < newest and not any_replica):
                problem = _told_with(problem, NotLeaderError(str(name), None))
            else:
                newest = epoch
                try_ms = deadline.try_ms
                answer = self.ask_once(address, make(try_ms), try_ms)
                if answer is None:
                    late = ReplicationTimeoutError(str(name), deadline.timeout_ms)
                    problem = self.why_not(address, problem or late)
                elif isinstance(answer, Refused):
                    problem = _told_with(problem, _passing(answer, PASSING + _DOUBTFUL))
                else:
                    self._unable.discard(address)
                    return answer
            self.forget(name.topic)
            self._turn += 1  # another node says who leads
            if address is not None:
                self._unable.add(address)
            if deadline.left_ms == 0:
                raise problem
            self.pause(deadline)

    def pause(self, deadline: Deadline) -> None:
        """Wait before the next try."""
        self._transport.wait_for(lambda: False, deadline.next_pause_ms())
        self.check_open()

    # --- who leads

    def describe(self, names: tuple[str, ...], deadline: Deadline) -> Described:
        """Return a description of nodes and topics, and cache it."""
        answer = self.ask_any(lambda try_ms: Describe(names), "describe", deadline, self._doubts_about(names))
        assert isinstance(answer, Described)
        with self._lock:
            if answer.version >= self._version:
                self.cluster_id, self._version = answer.cluster_id, answer.version
                self._ids.update({topic.name: topic.topic_id for topic in answer.topics})
            self._nodes = dict(answer.nodes)
            self._topics.update({topic.name: topic for topic in answer.topics})
        return answer

    def _doubts_about(self, names: tuple[str, ...]) -> Doubts:
        """Reject answers of other clusters, and what a node that is behind says unless others agree."""

        def doubts(answer: Message) -> CommitLogError | None:
            if not isinstance(answer, Described):
                raise CommitLogError(f"Describe was answered with {type(answer).__name__}")
            if self.cluster_id not in ("", answer.cluster_id):
                return WrongClusterError(self.cluster_id, answer.cluster_id)
            told = {topic.name: topic.topic_id for topic in answer.topics}
            known = {**told, **self._ids}
            agrees = bool(names) and all(name in told and told[name] == known[name] for name in names)
            if answer.version < self._version and not agrees:
                return NotJoinedError("?", f"it is at version {answer.version}, others at {self._version}")
            missing = [name for name in names if name not in told]
            return UnknownTopicError(missing[0]) if missing else None

        return doubts

    def topic(self, name: str, deadline: Deadline) -> DescribedTopic:
        """Return the cached description of a topic, or ask for it; UnknownTopicError if there is none."""
        with self._lock:
            known = self._topics.get(name)
        if known is None:
            (known,) = self.describe((name,), deadline).topics
        return known

    def forget(self, name: str) -> None:
        """Drop the cached description of a topic, so that the next request asks again."""
        with self._lock:
            self._topics.pop(name, None)

    def place_of(
        self, name: TopicPartition, topic_id: str, deadline: Deadline, *, any_replica: bool = False
    ) -> tuple[str | None, int]:
        """Return the address of the leader, or with any_replica of a replica, and the leader epoch."""
        topic = self.topic(name.topic, deadline)
        if topic.topic_id != topic_id:
            raise TopicReplacedError(name.topic, topic_id, topic.topic_id)
        if name.partition >= len(topic.leaders):
            raise UnknownPartitionError(name.topic, name.partition, len(topic.leaders))
        with self._lock:
            nodes = dict(self._nodes)
        leader, epoch = topic.leaders[name.partition], topic.leader_epochs[name.partition]
        if any_replica:
            near = [nodes[one] for one in topic.replicas[name.partition] if one in nodes]
            # addresses that the user gave come first, if they work
            near.sort(key=lambda address: (address in self._unable, address not in self._addresses))
            return (near[0] if near else None), epoch
        return (nodes.get(leader) if leader is not None else None), epoch

    def _known_addresses(self) -> list[str]:
        """Return all addresses, recently silent ones last, because asking those takes time."""
        now = time.monotonic()
        with self._lock:
            others = [address for address in self._nodes.values() if address not in self._addresses]
            known = [*self._addresses, *others]
            turn = self._turn % len(known)
        return sorted(
            known[turn:] + known[:turn], key=lambda one: now - self._silent.get(one, 0) < _SILENT_SECONDS
        )


class Pending:
    """An answer that has not arrived yet."""

    __slots__ = ("_answer", "_lock")

    def __init__(self) -> None:
        self._answer: Message | None = None
        self._lock = threading.Lock()  # measured: half of what a threading.Event costs
        self._lock.acquire()

    def __call__(self, answer: Message | None) -> None:
        """Deliver the answer."""
        self._answer = answer
        self._lock.release()

    @property
    def is_there(self) -> bool:
        """Whether wait() returns at once."""
        return not self._lock.locked()

    def wait(self) -> Message | None:
        """Wait for the answer and return it, None if there was none in time."""
        with self._lock:
            return self._answer


def _passing(answer: Refused, passing: tuple[type[CommitLogError], ...]) -> CommitLogError:
    """Return an error that may pass; raise any other."""
    error = error_of(answer)
    if not isinstance(error, passing):
        raise error
    return error


def _told_with(before: CommitLogError | None, error: CommitLogError) -> CommitLogError:
    """Return the error to report after two tries: that nobody led does not say what became of the first."""
    return error if before is None or type(error) is not NotLeaderError else before
