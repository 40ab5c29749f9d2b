"""Requests to the elected controller: children of the znode `requests`; each answer replaces its request.

They are ephemeral: the requests of a node whose session has ended are never carried out.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kazoo.exceptions import NoNodeError

from commitlog.errors import CommitLogError, InvalidReplicasError, ProtocolError
from commitlog.replication import rules
from commitlog.replication.cluster import ClusterState
from commitlog.replication.commands import Submitted
from commitlog.replication.controllers.stored import dumped
from commitlog.replication.controllers.zookeeper.znodes import Layout, Watch, packed_topic
from commitlog.replication.messages import Refused
from commitlog.replication.ports import Decision
from commitlog.replication.refusals import error_of, refused
from commitlog.replication.transports.wire import command_from_json, command_to_json

MOST_TOPIC_BYTES = 900_000  # ZooKeeper refuses a megabyte


# --- deciding -----------------------------------------------------------------------------------------


def answered(state: ClusterState, raw: bytes) -> tuple[ClusterState, bytes]:
    """Decide a request; return the state after it, and the answer."""
    after, problem = state, None
    try:
        after = rules.apply(state, command_from_json(json.loads(raw)))
        _check_sizes(state, after)
    except CommitLogError as error:
        after, problem = state, refused(error)
    except (ValueError, RecursionError) as error:
        problem = refused(ProtocolError("a request", repr(error)))
    told = None if problem is None else [problem.error, problem.fields]
    return after, dumped({"version": after.version, "error": told})


def _check_sizes(before: ClusterState, after: ClusterState) -> None:
    """Refuse what is too large for ZooKeeper; otherwise every elected controller would try it forever."""
    for name, topic in after.topics.items():
        if topic is not before.topics.get(name) and len(packed_topic(topic)) > MOST_TOPIC_BYTES:
            reason = f"its state has more than {MOST_TOPIC_BYTES} bytes: too many partitions and replicas"
            raise InvalidReplicasError(name, reason)


def read_answer(raw: bytes) -> Decision:
    """Return the decision in an answer."""
    found = json.loads(raw)
    told = found["error"]
    return Decision(found["version"], None if told is None else error_of(Refused(told[0], tuple(told[1]))))


# --- asking ---------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Request:
    body: bytes
    answered: Callable[[Decision | None], None]
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    tried: bool = False  # the znode may exist even if create() failed
    path: str | None = None


class Requests:
    """The requests of this process. One thread sends them; any thread may add some."""

    def __init__(self, client: Any, layout: Layout, watch: Watch) -> None:
        self.client = client  # replaced if it cannot get through
        self._layout = layout
        self._watch = watch
        self._lock = threading.Lock()
        self._open: list[_Request] = []

    def add(self, command: Submitted, answered: Callable[[Decision | None], None]) -> None:
        """Add a request. `answered` gets None if the session ends first; it may have been carried out."""
        with self._lock:
            self._open.append(_Request(dumped(command_to_json(command)), answered))

    def look(self) -> None:
        """Send new requests, and take the answers to earlier ones."""
        with self._lock:
            waiting = [*self._open]
        for one in waiting:
            if one.path is None:
                self._send(one)
            self._see(one)

    def forget(self) -> None:
        """Drop all requests, because the session has ended or the node is fenced."""
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
            pass  # its session has ended
        with self._lock:
            if one not in self._open:
                return
            self._open.remove(one)
        one.answered(answer)
