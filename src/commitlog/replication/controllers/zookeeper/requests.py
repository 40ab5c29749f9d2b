"""Requests to the elected controller: children of the znode `requests`, each answered in its place.

They are ephemeral: those of a node whose session is over are never carried out.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kazoo.exceptions import NoNodeError

from commitlog.errors import CommitLogError, InvalidReplicasError, ProtocolError, StaleNodeError
from commitlog.ids import new_id
from commitlog.record import TopicPartition
from commitlog.replication import rules
from commitlog.replication.cluster import ClusterState, IsrChange
from commitlog.replication.controllers.stored import dumped
from commitlog.replication.controllers.zookeeper.znodes import Layout, Watch, packed_topic
from commitlog.replication.messages import Refused
from commitlog.replication.refusals import error_of, refused

MOST_TOPIC_BYTES = 900_000  # ZooKeeper refuses a megabyte


class Answer(NamedTuple):
    """What became of a request: the version of the state by which it was decided, and why not, if not."""

    version: int
    error: CommitLogError | None


# --- what may be asked, and how it is decided -----------------------------------------------------------


def isr_request(change: IsrChange) -> dict[str, Any]:
    """Return a leader's proposal as a request."""
    lives = [[node_id, life] for node_id, life in change.incarnations.items()]
    fields = [
        *change.name, change.topic_id, change.leader, change.leader_epoch, change.version, list(change.isr),
        lives,
    ]  # fmt: skip
    return {"do": "isr", "with": fields}


def answered(state: ClusterState, raw: bytes) -> tuple[ClusterState, bytes]:
    """Decide on a request; returns the state once that is done, and the answer."""
    after = state
    problem: CommitLogError | None = None
    try:
        asked = json.loads(raw)
        after = _RULES[asked["do"]](state, *asked["with"])
        _check_sizes(state, after)
    except CommitLogError as error:
        after, problem = state, error
    except (ValueError, KeyError, TypeError) as error:
        after, problem = state, ProtocolError("a request", repr(error))
    told = None
    if problem is not None:
        refusal = refused(problem)
        told = [refusal.error, refusal.fields]
    return after, dumped({"version": after.version, "error": told})


def _check_sizes(before: ClusterState, after: ClusterState) -> None:
    """Refuse what ZooKeeper would not take; whoever tried to write it would try again for ever."""
    for name, topic in after.topics.items():
        if topic is not before.topics.get(name) and len(packed_topic(topic)) > MOST_TOPIC_BYTES:
            after_all = f"its state has more than {MOST_TOPIC_BYTES} bytes: too many partitions and replicas"
            raise InvalidReplicasError(name, after_all)


def read_answer(raw: bytes) -> Answer:
    """Return what an elected controller answered."""
    found = json.loads(raw)
    told = found["error"]
    error = None if told is None else error_of(Refused(told[0], tuple(told[1])))
    return Answer(found["version"], error)


def _isr(
    state: ClusterState,
    topic: str,
    partition: int,
    topic_id: str,
    leader: int,
    leader_epoch: int,
    version: int,
    isr: list[int],
    lives: list[tuple[int, int]],
) -> ClusterState:
    name, incarnations = TopicPartition(topic, partition), dict(lives)
    change = IsrChange(name, topic_id, leader, leader_epoch, version, tuple(isr), incarnations)
    return rules.isr_changed(state, change)


def _leave(state: ClusterState, node_id: int, incarnation: int) -> ClusterState:
    node = state.nodes.get(node_id)
    if node is None or node.incarnation != incarnation:
        raise StaleNodeError(node_id)
    return rules.leaving(state, node_id)


def _create(
    state: ClusterState, name: str, partitions: int, replication_factor: int, config: dict[str, Any]
) -> ClusterState:
    return rules.topic_created(state, name, partitions, replication_factor, config, new_id())


def _reassign(state: ClusterState, topic: str, partition: int, replicas: list[int]) -> ClusterState:
    return rules.reassigned(state, TopicPartition(topic, partition), replicas)


_RULES: dict[str, Callable[..., ClusterState]] = {
    "isr": _isr,
    "leave": _leave,
    "create_topic": _create,
    "alter_topic": rules.topic_altered,
    "delete_topic": rules.topic_deleted,
    "add_partitions": rules.partitions_added,
    "reassign": _reassign,
    "elect_preferred": rules.preferred_elected,
}


# --- asking ---------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Request:
    body: bytes
    answered: Callable[[Answer | None], None]
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    tried: bool = False  # the znode may be there though we were not told
    path: str | None = None


class Requests:
    """The requests of this process. One thread looks after them; any may add some."""

    def __init__(self, client: Any, layout: Layout, watch: Watch) -> None:
        self.client = client  # another one takes its place if it cannot get through
        self._layout = layout
        self._watch = watch
        self._lock = threading.Lock()
        self._open: list[_Request] = []

    def add(self, request: dict[str, Any], answered: Callable[[Answer | None], None]) -> None:
        """Ask, at the next look(). `answered` is told None if the session ends first: it may be done."""
        with self._lock:
            self._open.append(_Request(dumped(request), answered))

    def look(self) -> None:
        """Send what is new, and see what is answered."""
        with self._lock:
            waiting = [*self._open]
        for one in waiting:
            if one.path is None:
                self._send(one)
            self._see(one)

    def forget(self) -> None:
        """The session is over, or the node is fenced: nothing is asked any more."""
        with self._lock:
            forgotten, self._open = self._open, []
        for one in forgotten:
            one.answered(None)

    def _send(self, one: _Request) -> None:
        prefix = f"{one.token}-"
        if one.tried:  # the answer to create() was lost
            names = self.client.get_children(self._layout.requests)
            found = [name for name in names if name.startswith(prefix)]
            if found:
                one.path = f"{self._layout.requests}/{found[0]}"
                return
        one.tried = True
        path = f"{self._layout.requests}/{prefix}"
        one.path = self.client.create(path, one.body, ephemeral=True, sequence=True)

    def _see(self, one: _Request) -> None:
        answer = None
        try:
            raw, stat = self.client.get(one.path, watch=self._watch)
            if stat.version == 0:
                return
            answer = read_answer(raw)
            self.client.delete(one.path)
        except NoNodeError:
            pass  # the session in which it was made is over
        with self._lock:
            if one not in self._open:
                return
            self._open.remove(one)
        one.answered(answer)
